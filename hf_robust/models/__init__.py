"""Model sources: a name on the command line becomes an ImageClassifier.

A source is one function Request -> ImageClassifier, found by the prefix of the name. Packages add theirs through the
entry-point group "hf_robust.models" (name = prefix).
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from types import MappingProxyType

from .base import Head, ImageClassifier, ModelError, Preprocessing, Request, Transform, weights_hash
from .from_open_clip import load_open_clip
from .from_python import check_file, is_factory, load_python
from .from_timm import check_offline, check_timm, load_offline, load_random, load_timm
from .from_transformers import load_transformers, load_transformers_clip
from .preprocessing import transform_for
from .trouble import library_errors
from .zero_shot import imagenet_d_prompt_name

__all__ = [
    "SOURCES",
    "Head",
    "ImageClassifier",
    "ModelError",
    "Preprocessing",
    "Request",
    "Transform",
    "check_name",
    "imagenet_d_prompt_name",
    "import_libraries",
    "load_model",
    "model_names",
    "transform_for",
    "weights_hash",
]

Loader = Callable[[Request], ImageClassifier]

SOURCES: Mapping[str, Loader] = MappingProxyType(
    {
        "timm": load_timm,
        "timm-random": load_random,
        "hf": load_transformers,
        "hf-clip": load_transformers_clip,
        "open_clip": load_open_clip,
        "offline": load_offline,
    }
)
_LIBRARIES = {
    **dict.fromkeys(("timm", "timm-random", "offline"), "timm"),
    **dict.fromkeys(("hf", "hf-clip"), "transformers"),
    "open_clip": "open_clip",
}
_TIMM_SCHEMAS = ("hf-hub:", "hf_hub:", "local-dir:")


def load_model(
    name: str,
    *,
    checkpoint: Path | None = None,
    prompts: Path | None = None,
    class_names: Path | None = None,
    trust_remote_code: bool = False,
) -> ImageClassifier:
    """The classifier of that name, in evaluation mode, float32, on the CPU.

    name         `timm/<name>` or a bare timm name, `timm-random/<name>`, `hf/<repository or folder>`,
                 `hf-clip/<repository or folder>`, `open_clip/<architecture>/<tag or file>`,
                 `offline/efficientnet_lite0|1|2`, `file.py:factory`, or a plug-in's prefix.
    prompts, class_names  files that change the texts of zero-shot models; models without text have no use for them.

    Raises ModelError, in one sentence, for whatever keeps the model from loading.
    """
    loader, argument = _resolve(name)
    request = Request(name, argument, checkpoint, prompts, class_names, trust_remote_code)
    with library_errors(name) if loader not in (*SOURCES.values(), load_python) else nullcontext():
        loaded = loader(request)
    if not isinstance(loaded, ImageClassifier):
        raise ModelError(f"{name}: expected its plug-in to give an ImageClassifier, got {type(loaded).__name__}")
    return loaded if loaded.name == name else replace(loaded, name=name)  # results go by the name that was asked for


def _resolve(name: str) -> tuple[Loader, str]:
    if is_factory(name):
        return load_python, name
    if name.endswith(".py"):
        raise ModelError(f"expected the function that gives the model, got the file alone: name it, as {name}:build")
    prefix, argument = _prefix(name)
    if not argument:
        raise ModelError(f"expected a model after the prefix, got {name!r}")
    if prefix in SOURCES:
        return SOURCES[prefix], argument
    if prefix == "hf-vqa":
        raise ModelError(f"expected a classifier, got {name!r}, which answers questions: hf-robust vqa --model {name}")
    plugins = {point.name: point for point in entry_points(group="hf_robust.models")}
    if prefix not in plugins:
        known = ", ".join(f"{p}/…" for p in sorted({*SOURCES, *plugins}))
        raise ModelError(
            f"unknown model source {prefix!r} in {name!r}; known: {known}, a bare timm name, file.py:factory"
        )
    with library_errors(f"{name}: the plug-in {plugins[prefix].value}"):
        loader: Loader = plugins[prefix].load()
    return loader, argument


def _prefix(name: str) -> tuple[str, str]:
    prefix, slash, argument = name.partition("/")
    return (prefix, argument) if slash and not name.startswith(_TIMM_SCHEMAS) else ("timm", name)


def check_name(name: str) -> None:
    """ModelError where it is plain without loading anything that no model has this name; no repository is looked up."""
    loader, argument = _resolve(name)
    checks = {load_timm: check_timm, load_random: check_timm, load_offline: check_offline, load_python: check_file}
    if loader in checks:
        checks[loader](Request(name, argument))


def import_libraries(names: Sequence[str]) -> None:
    """Import what loading these models will import; what is wrong with a library is told where its model is loaded.

    Their half a million objects stay to the end, so the garbage collector never looks at them: not while they are made,
    not at the end, and not in the forks of this process, where looking would copy them. That saves two seconds.
    """
    wanted = {_LIBRARIES.get(_prefix(name)[0], "torchvision") for name in names if not is_factory(name)}
    missing = {"torchvision", "pandas", *wanted} - set(sys.modules)  # pyarrow imports pandas as soon as it makes rows
    collects = gc.isenabled()
    gc.disable()
    for library in sorted(missing):
        with suppress(ImportError):
            import_module(library)
    if missing:
        gc.freeze()
    if collects:
        gc.enable()


def model_names(arguments: Sequence[str]) -> tuple[str, ...]:
    """The model names of a command line; `@file` stands for the names in it, one a line, with # comments.

    Raises ModelError for a file that cannot be read, for no name at all, and for a name given twice.
    """
    names = [
        name for argument in arguments for name in (_names_in(argument[1:]) if argument[:1] == "@" else [argument])
    ]
    if not names or not all(names):
        raise ModelError("expected at least one model name and none empty, such as timm/resnet50.a1_in1k")
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise ModelError(f"expected each model once, got {', '.join(repeated)} more than once")
    return tuple(names)


def _names_in(file: str) -> list[str]:
    try:
        lines = Path(file).read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ModelError(f"@{file}: expected a text file with one model name a line, got {error}") from error
    names = [line.partition("#")[0].strip() for line in lines]
    if not any(names):
        raise ModelError(f"@{file}: expected one model name a line, got none")
    return [name for name in names if name]
