() => {
  "use strict";
  const review = document.getElementById("review");
  if (!review || review.dataset.ready) return;
  review.dataset.ready = "yes";
  document.documentElement.lang = "en";

  const part = (name) => review.querySelector(`[data-part="${name}"]`);
  const REMEMBERED = "hf-robust-review-worker", AGAIN_MS = 1000;
  let worker = "", screen = null, busy = false, loaded = "", shownAt = 0;

  const remember = (name) => {
    try { name ? localStorage.setItem(REMEMBERED, name) : localStorage.removeItem(REMEMBERED); } catch { /* a browser that keeps nothing */ }
  };
  const remembered = () => {
    try { return localStorage.getItem(REMEMBERED) || ""; } catch { return ""; }
  };
  const notice = (text) => { part("notice").textContent = text; part("notice").hidden = !text; };
  const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

  // Sends a call until it is answered. The server takes the same call twice for one, so nothing is lost or doubled.
  async function call(name, data) {
    for (;;) {
      let response = null;
      try {
        response = await fetch(`gradio_api/run/${name}`, {
          method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ data }),
        });
      } catch { /* no connection: below */ }
      if (response && response.ok) {
        const answer = await response.json().catch(() => null);
        if (answer) { notice(""); return answer.data[0]; }
      } else if (response && response.status < 500) {
        return { screen: "trouble", text: "The server does not let this page in any more. Load the page again." };
      }
      notice("Connection lost. What you answered is kept; trying again …");
      await pause(AGAIN_MS);
    }
  }

  async function ask(name, ...data) {
    if (busy) return;
    busy = true;
    enable();
    const next = await call(name, data);
    busy = false;
    show(next);
  }

  function show(next) {
    if (next.screen === "trouble") {
      notice(next.text);
      review.querySelectorAll(".chosen").forEach((button) => button.classList.remove("chosen"));
      enable();
      return;
    }
    screen = next;
    for (const name of ["start", "item", "rest"]) part(name).hidden = name !== next.screen;
    if (next.screen === "item") showItem(next);
    if (next.screen === "rest") showRest(next);
    enable();
    if (next.screen === "start") part("enter").elements.worker.focus();
  }

  function showItem({ number, of, which, questions, answered, asked, text, choices, picture, following }) {
    part("count").textContent = `Picture ${number} of ${of}`;
    part("progress").max = asked;
    part("progress").value = answered;
    part("which").textContent = `Question ${which} of ${questions}`;
    part("which").hidden = questions === 1;
    part("question").textContent = text;
    part("choices").className = `choices ${choices.length > 4 ? "many" : choices.length === 2 ? "few" : ""}`;
    part("choices").replaceChildren(...choices.map(button));
    shownAt = performance.now();
    if (loaded !== picture) load(picture);
    for (const name of following) new Image().src = `images/${name}`;
    part("question").focus({ preventScroll: true });
    part("question").parentElement.scrollTop = 0;
  }

  function button({ value, text, key }) {
    const made = document.createElement("button");
    made.type = "button";
    made.dataset.value = value;
    if (key) {
      const cap = document.createElement("kbd");
      cap.textContent = key;
      made.append(cap);
      made.setAttribute("aria-keyshortcuts", key);
    }
    const words = document.createElement("span");
    words.textContent = text;
    made.append(words);
    made.addEventListener("click", () => choose(made));
    return made;
  }

  // The last picture is hidden at once and buttons wait for the new one: nobody judges what is not there.
  function load(name, again) {
    const picture = part("picture");
    loaded = "";
    picture.classList.add("waiting");
    picture.onload = () => {
      if (screen.picture !== name) return;
      loaded = name;
      shownAt = performance.now();
      picture.classList.remove("waiting");
      part("broken").hidden = true;
      enable();
    };
    picture.onerror = () => {
      if (screen.picture !== name) return;
      part("broken").hidden = false;
      setTimeout(() => { if (screen.picture === name && !loaded) load(name, (again || 0) + 1); }, 2 * AGAIN_MS);
    };
    picture.src = `images/${name}${again ? `?again=${again}` : ""}`;
  }

  function showRest({ finished, left, last }) {
    const tasks = (n) => (n === 1 ? "1 task" : `${n} tasks`);
    const done = finished ? `You have finished ${tasks(finished)}. ` : "";
    part("thanks").textContent = finished ? (left ? "Thank you: this task is done" : "Thank you, that was all") : "Nothing to do just now";
    part("left").textContent = done + (left
      ? `${left === 1 ? "1 more is" : `${left} more are`} waiting for you, if you like.`
      : finished ? "You can close this page." : "Every task is done or being done by someone. Some may come free again later.");
    part("again").firstChild.textContent = left ? "Next task " : "Look again ";
    part("again").classList.toggle("main", left > 0);
    part("back").hidden = !last;
    part("thanks").focus({ preventScroll: true });
  }

  function enable() {
    const open = !busy && screen && screen.screen === "item" && loaded === screen.picture;
    part("choices").setAttribute("aria-busy", String(!open));
    for (const made of part("choices").children) made.disabled = !open;
    part("undo").disabled = busy || !(screen && screen.last);
    for (const name of ["begin", "again", "back"]) part(name).disabled = busy;
  }

  function choose(made) {
    if (busy || made.disabled) return;
    made.classList.add("chosen");
    const { task, item, question } = screen;
    ask("answer", worker, { task, item, question, value: made.dataset.value, seconds: (performance.now() - shownAt) / 1000 });
  }

  const does = {
    undo: () => { if (screen && screen.last) ask("undo", worker, screen.last); },
    next: () => ask("start", worker),
    help: () => { if (!part("help").open) part("help").showModal(); },
    close: () => part("help").close(),
    reload: () => load(screen.picture, Date.now()),
    leave: () => { worker = ""; remember(""); part("enter").reset(); show({ screen: "start" }); },
  };
  review.addEventListener("click", (event) => {
    const pressed = event.target.closest("[data-does]");
    if (pressed) does[pressed.dataset.does]();
  });
  part("help").addEventListener("close", () => { if (screen && screen.screen === "item") part("question").focus(); });

  part("enter").addEventListener("submit", (event) => {
    event.preventDefault();
    worker = event.target.elements.worker.value.trim();
    if (!worker) return;
    remember(worker);
    ask("start", worker);
  });

  document.addEventListener("keydown", (event) => {
    if (event.repeat || event.ctrlKey || event.metaKey || event.altKey || event.target.closest?.("input, dialog")) return;
    if (part("help").open || !screen || screen.screen === "start") return;
    const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
    if (key === "?") does.help();
    else if (key === "Backspace") does.undo();
    else if (key === "Enter" && screen.screen === "rest" && event.target.tagName !== "BUTTON") does.next();
    else if (screen.screen === "item") {
      const place = screen.choices.findIndex((choice) => choice.key === key);
      if (place < 0) return;
      choose(part("choices").children[place]);
    } else return;
    event.preventDefault();
  });

  part("enter").elements.worker.value = remembered();
  part("enter").elements.worker.disabled = false;  // closed until here: a form sent before this script would load the page again
  if (remembered()) part("begin").textContent = "Continue";
  show({ screen: "start" });
}
