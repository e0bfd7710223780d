"""Commands about spurious features: neural PCA of stored features, and SpuFix."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .display import DATA_HELP, command, console_of, folder

if TYPE_CHECKING:
    from ..spurious.training import Training

KEEP = 128  # components a class in a file; the published lists name none beyond the 50th
_EXAMPLE_FIT = "hf-robust neural-pca fit --run RUNS --classes 309 n04399382 --out components"
_EXAMPLE_SPUFIX = "hf-robust spufix fit --run RUNS --alphas components --components published --out fix.safetensors"
_EXAMPLE_EXPORT = "hf-robust spufix export --spufix fix.safetensors --model timm/resnet50 --out corrected"


def add_neural_pca(commands: Any) -> None:
    """Declare the commands."""
    actions = _group(commands, "neural-pca", "what the logit of a class is made of, from stored features")
    text = "write the neural PCA of each class, a file a class; what is there already is kept"
    parser = command(actions, "fit", fit_components, text, _EXAMPLE_FIT)
    _training_options(parser)
    parser.add_argument("--classes", nargs="+", metavar="C", help="ImageNet-1k indices or WordNet ids (default: all)")
    parser.add_argument(
        "--keep", type=int, default=KEEP, metavar="N",
        help="components a class, the others summed up in one; 0 keeps all (%(default)s)",
    )  # fmt: skip
    parser.add_argument("--out", type=folder, required=True, metavar="DIR")


def add_spufix(commands: Any) -> None:
    """Declare the commands."""
    actions = _group(commands, "spufix", "take spurious directions out of a classifier, without labels or training")
    text = "find a model's spurious directions and write the correction of its logits"
    parser = command(actions, "fit", fit_correction, text, _EXAMPLE_SPUFIX)
    _training_options(parser)
    parser.add_argument(
        "--alphas", required=True, metavar="DIR",
        help="what `neural-pca fit` wrote for the model whose components were judged; published .pt files; or `own`",
    )  # fmt: skip
    parser.add_argument(
        "--components", required=True, metavar="FILE", help="JSON {class: [component, …]}, or `published`"
    )
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="a .safetensors file")
    text = "write the corrected model into a folder that loads in two lines"
    parser = command(actions, "export", export_model, text, _EXAMPLE_EXPORT)
    parser.add_argument("--spufix", type=Path, required=True, metavar="FILE", help="what `spufix fit` wrote")
    parser.add_argument("--model", required=True, metavar="M", help="the model that it was fitted to")
    parser.add_argument("--checkpoint", type=Path, metavar="FILE", help="its weights, where they are not the published")
    parser.add_argument("--spufix-strength", type=float, default=1.0, metavar="X", help="from 0 to 1 (%(default)g)")
    parser.add_argument("--out", type=folder, required=True, metavar="DIR")


def _group(commands: Any, name: str, text: str) -> Any:
    parser = commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
    return parser.add_subparsers(title="actions", required=True, metavar="ACTION")


def _training_options(parser: argparse.ArgumentParser) -> None:
    where = parser.add_argument_group("features of training pictures: stored ones, or a model to run first")
    where.add_argument(
        "--run", type=Path, metavar="RUN", help="where `evaluate --benchmark imagenet-train --features --out` wrote"
    )
    where.add_argument("--model", metavar="M", help="run this model first; the predictions go to --runs")
    where.add_argument("--train", metavar="FOLDER_OR_REPO", help="training pictures in folders named by WordNet id")
    where.add_argument("--runs", type=folder, metavar="RUNS", help="folder for the predictions of --model")
    where.add_argument("--data", type=folder, metavar="DIR", help=DATA_HELP)


def fit_components(options: argparse.Namespace) -> int:
    """Write the neural PCA of the wanted classes."""
    from ..spurious.alpha_files import fit_classes
    from ..spurious.components import class_index

    training = _training(options)
    classes = training.classes() if options.classes is None else [class_index(name) for name in options.classes]
    with _classes_of(f"neural PCA of {training.plan['model']}") as meter:
        written = fit_classes(training, classes, options.out, keep=options.keep or None, meter=meter)
    print(f"{training.plan['model']}: {len(classes)} classes in {options.out}, {written} of them new")
    return 0


def fit_correction(options: argparse.Namespace) -> int:
    """Fit the correction and write it."""
    from ..spurious.alpha_files import alphas_from
    from ..spurious.components import read_components
    from ..spurious.spufix_files import fit_spufix, write_spufix

    components = read_components(options.components)
    training = _training(options)
    with _classes_of(f"SpuFix of {training.plan['model']}") as meter:
        fitted = fit_spufix(training, alphas_from(options.alphas, training), components, meter=meter)
    digest = write_spufix(options.out, fitted)
    for reason in fitted.facts["left_out"].values():
        print(f"left out: {reason}")
    fix = fitted.fix
    print(
        f"{training.plan['model']}: {len(fix.outputs)} directions of {len(fix.columns)} classes from "
        f"{fitted.facts['pictures']:,} pictures, in {options.out} (SHA-256 {digest[:12]})"
    )
    print(f"score with it: hf-robust score RUNS --spufix {options.out}")
    return 0


def export_model(options: argparse.Namespace) -> int:
    """Write the corrected model."""
    from ..spurious.spufix_module import export

    out = export(
        options.model, options.spufix, options.out, checkpoint=options.checkpoint, strength=options.spufix_strength
    )
    print(f"wrote {out}; load it:")
    print(f'  from hf_robust.spurious.spufix_module import load_corrected\n  model = load_corrected("{out}")')
    return 0


def _training(options: argparse.Namespace) -> Training:
    from ..spurious.training import open_training

    if (options.run is None) == (options.model is None):
        raise ValueError("expected --run RUN, or --model M with --train and --runs: give one of the two")
    if options.run is not None:
        return open_training(options.run)
    if options.train is None or options.runs is None:
        raise ValueError("expected --train FOLDER and --runs RUNS beside --model: the pictures, and where features go")
    from . import main

    data = [] if options.data is None else ["--data", str(options.data)]
    evaluate = ["evaluate", "--model", options.model, "--benchmark", "imagenet-train", "--features", "--allow-chance"]
    main([*evaluate, "--imagenet-train", options.train, "--out", str(options.runs), *data])
    return open_training(options.runs, model=options.model)


@contextmanager
def _classes_of(text: str) -> Iterator[Callable[[int, int], None] | None]:
    """A bar over classes with the remaining time, on a terminal."""
    from rich.progress import Progress

    console = console_of()
    if not console.is_terminal:
        yield None
        return
    with Progress(console=console) as progress:
        task = progress.add_task(text, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)
