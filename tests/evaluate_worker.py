"""One process that imports `evaluate` once, without network, and answers requests: a JSON line in, a JSON line out."""

from __future__ import annotations

import contextlib
import doctest
import gc
import io
import json
import re
import socket
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np


def no_network(*_: object, **__: object) -> None:
    raise OSError("no network in this process")


def batch(columns: dict[str, Any], dtypes: dict[str, str]) -> dict[str, Any]:
    return {name: np.array(v, dtype=dtypes[name]) if name in dtypes else v for name, v in columns.items()}


def compute(module: Any, batches: list[dict[str, Any]], options: dict[str, Any]) -> Any:
    if len(batches) == 1:
        return module.compute(**batches[0], **options)
    for columns in batches:
        module.add_batch(**columns)
    return module.compute(**options)


def facts(module: Any) -> dict[str, Any]:
    texts = {name: getattr(module, name) for name in ("name", "description", "citation", "inputs_description")}
    return {**texts, "columns": list(module.features), "module_type": module.module_type}


def doctests(evaluate: Any, page: str) -> list[Any]:
    """Failed and attempted examples, and what the failed ones said, of the python blocks of a Markdown page."""
    said, runner = io.StringIO(), doctest.DocTestRunner(verbose=False)
    for block in re.findall(r"^```python\n(.*?)^```", Path(page).read_text(encoding="utf-8"), re.M | re.S):
        runner.run(doctest.DocTestParser().get_doctest(block, {}, page, page, 0), out=said.write)
    return [runner.failures, runner.tries, said.getvalue()]


def answer(evaluate: Any, request: dict[str, Any]) -> Any:
    if "page" in request:
        return doctests(evaluate, request["page"])
    if "save" in request:
        return json.loads(Path(evaluate.save(request["save"], **request["values"])).read_text(encoding="utf-8"))
    names, options = request["modules"], request.get("options", {})
    modules = [evaluate.load(f"metrics/{name}") for name in names]
    if "facts" in request:
        return facts(modules[0])
    module = modules[0] if len(modules) == 1 else evaluate.combine(modules)
    batches = [batch(columns, request.get("dtypes", {})) for columns in request["batches"]]
    if not request.get("first"):
        return compute(module, batches, options)
    with contextlib.suppress(ValueError, TypeError):  # a first, failing computation by the same module
        compute(module, [request["first"]], options)
    return compute(module, batches, options)


def main() -> None:
    replies, sys.stdout = sys.stdout, sys.stderr  # whatever the library prints must not mix with the replies
    import evaluate

    socket.socket.connect = socket.socket.connect_ex = no_network  # type: ignore[method-assign, assignment]
    for line in sys.stdin:
        with warnings.catch_warnings(record=True) as raised:
            warnings.simplefilter("always")
            try:
                reply: dict[str, Any] = {"result": answer(evaluate, json.loads(line))}
                json.dumps(reply)
            except Exception as error:
                reply = {"error": f"{type(error).__name__}: {error}"}
        if "error" in reply:
            gc.collect()  # frees the lock of the failed computation, for which the next one would wait a second
        ours = [str(w.message) for w in raised if issubclass(w.category, UserWarning)]
        print(json.dumps({**reply, "warnings": ours}), file=replies, flush=True)


if __name__ == "__main__":
    main()
