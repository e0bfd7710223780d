"""Weights from a file into a module: strict about every key and shape, tolerant about wrapping and prefixes."""

from __future__ import annotations

import argparse
import pickle
import re
import struct
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from .base import ModelError

if TYPE_CHECKING:
    import torch

    State = Mapping[str, torch.Tensor]

# First found wins; the averaged weights are the ones that a training run publishes.
_WRAPPERS = ("state_dict_ema", "model_ema", "state_dict", "model_state_dict", "model")

# What an unpickler stops with that meets bytes of anything else.
_JUNK = (ArithmeticError, AssertionError, AttributeError, EOFError, LookupError, TypeError, ValueError, struct.error)


def read_state(path: Path) -> State:
    """Name -> tensor on the CPU, from safetensors or from a pickle that holds tensors only; no code of the file runs.

    Looks inside {"state_dict": …}, {"model": …} and their kin. Raises ModelError for a file that is missing, damaged,
    needs code to load, or holds no tensors.
    """
    if not path.is_file():
        raise ModelError(f"checkpoint {path}: no such file")
    content = _safetensors(path) if path.suffix == ".safetensors" else _pickle(path)
    state = _unwrapped(content)
    if not state:
        kind = f"the keys {sorted(map(str, content))[:5]}" if isinstance(content, Mapping) else type(content).__name__
        raise ModelError(f"checkpoint {path}: expected a state dict of tensors, got {kind}")
    return state


def read_tensor(path: Path) -> NDArray[Any]:
    """The array in a PyTorch file that holds one tensor and nothing else; no code of the file runs.

    Raises ModelError for a file that is missing, damaged, needs code to load, or holds anything else.
    """
    import torch

    if not path.is_file():
        raise ModelError(f"tensor {path}: no such file")
    content = _pickle(path)
    if not isinstance(content, torch.Tensor):
        raise ModelError(f"tensor {path}: expected one tensor, got {type(content).__name__}")
    array: NDArray[Any] = content.detach().float().numpy() if content.dtype != torch.float64 else content.numpy()
    return array


def _safetensors(path: Path) -> Mapping[str, Any]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return dict(load_file(path))
    except (SafetensorError, OSError) as error:
        raise ModelError(f"checkpoint {path}: not a readable safetensors file ({error})") from error


def _pickle(path: Path) -> object:
    import torch

    try:
        # training scripts store their arguments beside the weights; a Namespace is a plain bag of values
        with warnings.catch_warnings(), torch.serialization.safe_globals([argparse.Namespace]):
            warnings.filterwarnings("ignore", "Detected pickle protocol")
            return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        code = re.search(r"GLOBAL ([\w.]+)", str(error))
        if code is None:
            raise ModelError(f"checkpoint {path}: not a PyTorch file of tensors alone") from error
        raise ModelError(
            f"checkpoint {path}: it holds more than tensors, and loading it would run code ({code[1]}): refused; save "
            "model.state_dict() alone, best as safetensors"
        ) from error
    except (*_JUNK, RuntimeError, OSError) as error:
        first = (str(error).splitlines() or [""])[0][:200]
        raise ModelError(f"checkpoint {path}: not a readable PyTorch file ({type(error).__name__}: {first})") from error


def _unwrapped(content: object) -> State:
    import torch

    if not isinstance(content, Mapping):
        return {}
    for key in _WRAPPERS:
        if isinstance(content.get(key), Mapping):
            return _unwrapped(content[key])
    return {str(k): v for k, v in content.items() if isinstance(v, torch.Tensor)}


def fit_state(state: State, expected: State) -> State:
    """`state` with the prefix removed under which most of the expected names are found ("module.", "_orig_mod.", …)."""
    names = set(expected)
    prefixes: Counter[str] = Counter()
    for key in state:
        parts = key.split(".")
        prefixes.update(
            ".".join((*parts[:n], "")) if n else "" for n in range(len(parts)) if ".".join(parts[n:]) in names
        )
    prefix = max(prefixes, key=lambda p: (prefixes[p], -len(p)), default="")
    return {key[len(prefix) :] if key.startswith(prefix) else key: value for key, value in state.items()}


def load_state(module: torch.nn.Module, state: State, *, name: str, source: str) -> None:
    """Puts `state` into `module`; ModelError lists the first missing, unexpected and misshapen keys and counts them."""
    expected = module.state_dict()
    fitted = fit_state(state, expected)
    # old files lack this counter, which evaluation never reads
    missing = [k for k in expected if k not in fitted and not k.endswith("num_batches_tracked")]
    unexpected = [k for k in fitted if k not in expected]
    misshapen = [
        f"{k} {tuple(fitted[k].shape)} instead of {tuple(expected[k].shape)}"
        for k in expected
        if k in fitted and fitted[k].shape != expected[k].shape
    ]
    problems = [
        _listed(found, what)
        for found, what in ((missing, "missing"), (unexpected, "unexpected"), (misshapen, "of another shape"))
        if found
    ]
    if problems:
        raise ModelError(
            f"{name}: {source} does not fit the architecture: {'; '.join(problems)}; check the model name and the file"
        )
    module.load_state_dict({**expected, **fitted}, strict=True)


def _listed(found: Sequence[str], what: str) -> str:
    rest = f" and {len(found) - 3} more" if len(found) > 3 else ""
    return f"{len(found)} {'key' if len(found) == 1 else 'keys'} {what} ({', '.join(found[:3])}{rest})"


def load_checkpoint(module: torch.nn.Module, path: Path, *, name: str) -> None:
    """Loads the file into the module: `read_state`, then `load_state`."""
    load_state(module, read_state(path), name=name, source=f"checkpoint {path}")
