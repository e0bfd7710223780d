"""Your own model: `file.py:factory`, a function that takes nothing and gives the model."""

from __future__ import annotations

import hashlib
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import CodeType
from typing import Any

from ..labels import LabelSpace
from .base import ImageClassifier, ModelError, Preprocessing, Request
from .checkpoints import load_checkpoint
from .classifier import classifier
from .doubts import normalisation_doubts
from .from_timm import timm_preprocessing
from .preprocessing import measured
from .trouble import require

_FACTORY = re.compile(r"(?P<file>.+\.py):(?P<function>[A-Za-z_]\w*)")


def is_factory(name: str) -> bool:
    """Whether a model name is `file.py:function`.

    >>> is_factory("models/mine.py:build"), is_factory("timm/resnet50")
    (True, False)
    """
    return _FACTORY.fullmatch(name) is not None


def load_python(request: Request) -> ImageClassifier:
    """`file.py:factory`: what the factory gives, made into a classifier.

    It gives an nn.Module with a `pretrained_cfg` (timm's description of the input), a pair (module, transform), or a
    finished ImageClassifier. The module may carry `label_space` (a LabelSpace) or `wnids` (the class of each output),
    and its forward may give a dict with "logits", "confidence_logit", "rotation_logits". A checkpoint goes into the
    module; a finished ImageClassifier takes none.
    """
    require("torch", "run", name=request.name)
    made, code = _made(request), _code(request)
    if isinstance(made, ImageClassifier):
        if request.checkpoint is not None:
            raise ModelError(f"{request.name}: its factory gives a finished classifier, which takes no --checkpoint")
        return replace(made, code=code)
    module, transform = _module_and_transform(made, name=request.name)
    if request.checkpoint is not None:
        load_checkpoint(module, request.checkpoint, name=request.name)
    preprocessing = _preprocessing(module, transform, name=request.name)
    made_of = classifier(request.name, module, preprocessing, label_space=_space(module, name=request.name))
    return replace(made_of, code=code, notes=normalisation_doubts(module, preprocessing))


def _code(request: Request) -> str:
    return hashlib.sha256(Path(request.argument.rpartition(":")[0]).read_bytes()).hexdigest()


def check_file(request: Request) -> tuple[Path, str]:
    """The file and the function of `file.py:function`; ModelError where there is no such file."""
    match = _FACTORY.fullmatch(request.argument)
    if match is None:
        raise ModelError(f"{request.name}: expected file.py:function")
    if not Path(match["file"]).is_file():
        raise ModelError(f"{request.name}: no such file {match['file']}")
    return Path(match["file"]).resolve(), match["function"]


def _made(request: Request) -> Any:
    file, function = check_file(request)
    with _user_code(request.name, file):
        content = _imported(file)
        factory = getattr(content, function, None)
        if factory is None or not callable(factory):
            found = sorted(k for k, v in vars(content).items() if callable(v) and not k.startswith("_"))
            raise ModelError(f"{request.name}: no function {function!r} in {file.name}; it has {', '.join(found[:10])}")
        return factory()


def _imported(file: Path) -> Any:
    name = f"hf_robust_factory_{hashlib.sha256(str(file).encode()).hexdigest()[:12]}"
    spec = spec_from_file_location(name, file, loader=_FromSource(name, str(file)))
    if spec is None or spec.loader is None:
        raise ModelError(f"{file}: Python cannot import it")
    content = module_from_spec(spec)
    sys.modules[name] = content  # dataclasses and pickling look their module up here
    spec.loader.exec_module(content)
    return content


class _FromSource(SourceFileLoader):
    """Compiles the file as it is now: stored bytecode stands for any version of equal size of the same second."""

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self.get_data(self.path), self.path)


@contextmanager
def _user_code(name: str, file: Path) -> Iterator[None]:
    """Imports of neighbours of the file work inside, and an error there is told with its line."""
    sys.path.insert(0, str(file.parent))
    try:
        yield
    except ModelError:
        raise
    except (Exception, SystemExit) as error:  # anything can go wrong in another's code, which may be a script
        frames = [f for f in traceback.extract_tb(error.__traceback__) if Path(f.filename) == file]
        line = frames[-1].lineno if frames else getattr(error, "lineno", "?")
        raise ModelError(f"{name}: {type(error).__name__} at line {line} of {file.name}: {error}") from error
    finally:
        if str(file.parent) in sys.path:
            sys.path.remove(str(file.parent))


def _module_and_transform(made: Any, *, name: str) -> tuple[Any, Callable[..., Any] | None]:
    import torch

    module, transform = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
    if not isinstance(module, torch.nn.Module) or not (transform is None or callable(transform)):
        raise ModelError(
            f"{name}: expected its factory to give an nn.Module, (module, transform) or an ImageClassifier, got "
            + (
                f"({type(module).__name__}, {type(transform).__name__})"
                if transform is not None
                else type(made).__name__
            )
        )
    return module, transform


def _preprocessing(module: Any, transform: Callable[..., Any] | None, *, name: str) -> Preprocessing:
    if transform is not None:
        return measured(transform, {}, name=name)
    if getattr(module, "pretrained_cfg", None):
        return timm_preprocessing(module, name=name)
    raise ModelError(
        f"{name}: how its input is made is unknown: let the factory give (module, transform), where transform turns an "
        "RGB PIL picture into a normalised tensor, or set module.pretrained_cfg"
    )


def _space(module: Any, *, name: str) -> LabelSpace | None:
    space, wnids = getattr(module, "label_space", None), getattr(module, "wnids", None)
    if space is None and wnids is None:
        return None
    if isinstance(space, LabelSpace):
        return space
    if isinstance(wnids, Sequence) and not isinstance(wnids, str) and len(set(map(str, wnids))) == len(wnids):
        return LabelSpace(f"factory:{name.rpartition(':')[2]}", tuple(map(str, wnids)))
    raise ModelError(
        f"{name}: expected module.label_space to be a LabelSpace or module.wnids a list of different WordNet ids, got "
        f"{type(wnids if space is None else space).__name__}"
    )
