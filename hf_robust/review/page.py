"""The page of a review as a gradio app: a skeleton, its script and style, and three calls that answer with a screen."""

from __future__ import annotations

import os
from collections.abc import Callable
from html import escape
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from .base import Mode, ReviewError
from .screens import Desk, Screen, question_text

if TYPE_CHECKING:
    import gradio as gr

_SKELETON = """
<style>{style}</style>
<div id="review">
  <p class="notice" data-part="notice" role="alert" hidden></p>
  <section data-part="start" aria-label="Start">
    <h1>{title}</h1>
    <div class="about">{instructions}</div>
    <form data-part="enter">
      <label for="review-worker">Your worker id</label>
      <input id="review-worker" name="worker" maxlength="100" autocomplete="username" autocapitalize="none"
        spellcheck="false" required disabled>
      <button class="main" type="submit" data-part="begin" disabled>Start</button>
    </form>
    <p class="small">With the same id you continue where you stopped, on any device. It is stored as a hash wherever
      answers leave this server.</p>
  </section>
  <section data-part="item" class="item" aria-label="Question" hidden>
    <header>
      <span data-part="count"></span>
      <progress data-part="progress" aria-label="Answered in this task"></progress>
      <button type="button" data-part="undo" data-does="undo">Undo <kbd>Backspace</kbd></button>
      <button type="button" data-does="help" aria-label="Instructions, key question mark">Help <kbd>?</kbd></button>
    </header>
    <figure>
      <img data-part="picture" alt="The picture that the question is about">
      <figcaption data-part="broken" hidden>The picture could not be loaded.
        <button type="button" data-does="reload">Load it again</button></figcaption>
    </figure>
    <div class="ask">
      <p class="which" data-part="which"></p>
      <h2 data-part="question" id="review-question" tabindex="-1"></h2>
      <div class="choices" data-part="choices" role="group" aria-labelledby="review-question"></div>
    </div>
  </section>
  <section data-part="rest" aria-label="Thank you" hidden>
    <h1 data-part="thanks" tabindex="-1"></h1>
    <p data-part="left"></p>
    <p class="row">
      <button type="button" class="main" data-part="again" data-does="next">Next task <kbd>Enter</kbd></button>
      <button type="button" data-part="back" data-does="undo">Undo the last answer <kbd>Backspace</kbd></button>
    </p>
    <p><button type="button" class="quiet" data-does="leave">Not you? Change the worker id</button></p>
  </section>
  <dialog data-part="help" aria-label="Instructions">
    <h2>{title}</h2>
    {instructions}
    <p class="small keys">Keys: <kbd>Backspace</kbd> takes back the last answer, <kbd>?</kbd> shows this, <kbd>Esc</kbd>
      closes it.</p>
    <button type="button" class="main" data-does="close">Continue</button>
  </dialog>
</div>
"""


def instructions(mode: Mode) -> str:
    """What a person reads before starting, as HTML: the instructions, then every question with its answers and keys."""
    said = [f"<p>{escape(mode.instructions)}</p>", "<ol>"]
    for question in mode.questions:
        keys = [f"<kbd>{escape(choice.key)}</kbd>{escape(choice.text)}" for choice in question.choices]
        answers = "<br>".join(keys) or "by number"
        said.append(f"<li>{escape(question_text(question, '…'))}<br>{answers}</li>")
    return "\n".join([*said, "</ol>"])


def skeleton(mode: Mode) -> str:
    """The page's HTML without any item; whatever comes from the review is escaped."""
    style = (files("hf_robust") / "assets" / "review.css").read_text(encoding="utf-8")
    return _SKELETON.format(style=style, title=escape(mode.title), instructions=instructions(mode))


def build_page(desk: Desk) -> gr.Blocks:
    """The page as gradio serves it; ImportError names what to install.

    Its calls `start`, `answer` and `undo` also work for programs: {"data": [worker id, {...}]} gives a screen.
    """
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"  # read on import: nothing is sent anywhere
    try:
        import gradio as gr
    except ImportError as error:
        raise ImportError('the page of a review needs gradio: pip install "hf-robust[review]"') from error

    def start(worker: str) -> dict[str, Any]:
        return _told(lambda: desk.start(worker))

    def answer(worker: str, given: dict[str, Any]) -> dict[str, Any]:
        return _told(lambda: desk.answer(worker, given))

    def undo(worker: str, given: dict[str, Any]) -> dict[str, Any]:
        return _told(lambda: desk.undo(worker, given))

    mode = desk.store.review.mode
    script = (files("hf_robust") / "assets" / "review.js").read_text(encoding="utf-8")
    with gr.Blocks(title=mode.title, analytics_enabled=False) as blocks:
        gr.HTML(skeleton(mode))
        for function in (start, answer, undo):
            gr.api(function, api_name=function.__name__, queue=False)
        blocks.load(None, js=script)
    return blocks


def _told(call: Callable[[], Screen]) -> Screen:
    """The screen, or what is wrong as a screen of its own: the person reads it, the server's log does not."""
    try:
        return call()
    except ReviewError as error:
        return {"screen": "trouble", "text": str(error)}
