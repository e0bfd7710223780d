"""Commands about spurious features: neural PCA of stored features, and SpuFix."""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .display import DATA_HELP, command, console_of, folder

if TYPE_CHECKING:
    from PIL.Image import Image

    from ..spurious.alpha_files import StoredPCA
    from ..spurious.sheets import Locate, Visualise
    from ..spurious.training import Training
    from ..spurious.visualise import Visualisation

KEEP = 128  # components a class in a file; the published lists name none beyond the 50th
_EXAMPLE_FIT = "hf-robust neural-pca fit --run RUNS --classes 309 n04399382 --out components"
_EXAMPLE_SHOW = (
    "hf-robust neural-pca show --components components --run RUNS --imagenet-train FOLDER --model timm/resnet50 "
    "--out pages"
)
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
    text = "write a page and a contact sheet for each class: what its components respond to"
    parser = command(actions, "show", show_components, text, _EXAMPLE_SHOW)
    _show_options(parser)


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


def _show_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--components", type=folder, required=True, metavar="DIR", help="what `neural-pca fit` wrote")
    parser.add_argument("--run", type=Path, required=True, metavar="RUN", help="the run that they were fitted to")
    parser.add_argument("--classes", nargs="+", metavar="C", help="ImageNet-1k indices or WordNet ids (default: all)")
    parser.add_argument("--out", type=folder, required=True, metavar="DIR")
    where = parser.add_argument_group("the training pictures, to show them")
    where.add_argument("--imagenet-train", metavar="FOLDER_OR_REPO", help="in folders named by WordNet id")
    where.add_argument("--data", type=folder, metavar="DIR", help=DATA_HELP)
    seen = parser.add_argument_group("pictures made to raise a component, by the model that the components belong to")
    seen.add_argument("--model", metavar="M", help="without it only training pictures are shown")
    seen.add_argument("--checkpoint", type=Path, metavar="FILE", help="its weights, where they are not the published")
    seen.add_argument(
        "--first", type=int, metavar="N", help="visualise the first N components of a class only (default: all stored)"
    )
    seen.add_argument(
        "--steps", type=int, default=200, metavar="N", help="of the ascent (%(default)s); 0: make no pictures"
    )
    seen.add_argument("--radius", type=float, default=30.0, metavar="R", help="l2 distance from grey (%(default)g)")
    seen.add_argument(
        "--gradcam", action="store_true", help="where each training picture shows the component (extra gradcam)"
    )


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


def show_components(options: argparse.Namespace) -> int:
    """Write the page and the contact sheet of each class, and the page that leads to them."""
    from ..spurious.alpha_files import read_class
    from ..spurious.components import class_index
    from ..spurious.sheet_list import write_component_sheets
    from ..spurious.sheets import classes_in, sheet_of, write_index, write_sheet
    from ..spurious.training import open_training

    _check_show(options)
    training, read = open_training(options.run), _pictures(options)
    visualise, locate = _from_model(options)
    wanted = options.classes and [class_index(name) for name in options.classes]
    for index in wanted or classes_in(options.components):
        stored = read_class(options.components, index)
        candidates = range(len(stored.pca.components) - stored.pca.remainder)[: options.first]
        sheet = sheet_of(training, stored, candidates, visualise, read, locate=locate)
        page, picture = write_sheet(options.out, index, sheet)
        write_component_sheets(options.out, index, sheet)
        lacking = f"; {sheet.lacking} examples are not on this machine: give --imagenet-train" if sheet.lacking else ""
        print(f"{sheet.name}: {len(sheet.components)} components in {page} and {picture.name}{lacking}")
    print(f"all classes: {write_index(options.out)}")
    return 0


def _check_show(options: argparse.Namespace) -> None:
    """Options that cannot be followed are refused before anything is read."""
    if options.first is not None and options.first < 1:
        raise ValueError(f"expected --first of at least 1, got {options.first}: leave it out for all components")
    if options.model is None and options.checkpoint is not None:
        raise ValueError("expected --model beside --checkpoint, got the checkpoint alone: name the architecture")
    if options.model is None and options.gradcam:
        raise ValueError("expected --model beside --gradcam, got none: name the model that the components belong to")
    if options.gradcam:
        from ..spurious.gradcam import require_package

        require_package()


def _from_model(options: argparse.Namespace) -> tuple[Visualise, Locate]:
    """What makes the pictures of a class, and what finds its components in pictures; neither does without --model."""
    from ..spurious.sheets import nowhere

    def nothing(stored: StoredPCA, components: Sequence[int]) -> Sequence[Visualisation]:
        return ()

    if options.model is None:
        return nothing, nowhere
    from ..models import load_model
    from ..spurious.visualise import visualise

    model = load_model(options.model, checkpoint=options.checkpoint)

    def visualised(stored: StoredPCA, components: Sequence[int]) -> Sequence[Visualisation]:
        with _classes_of(f"components of class {stored.facts['class']}") as meter:
            return visualise(model, stored, components, radius=options.radius, steps=options.steps, meter=meter)

    def located(stored: StoredPCA, component: int, pictures: Sequence[Image]) -> Sequence[Image]:
        from ..spurious.gradcam import overlays

        return overlays(model, stored, component, pictures)

    return visualised if options.steps else nothing, located if options.gradcam else nowhere


def _pictures(options: argparse.Namespace) -> Callable[[str, str | None], Image | None]:
    """Reads a training picture by id, if its bytes have the given SHA-256; None for what is not on this machine."""
    from ..data import MissingDataError, PictureError, decode, open_rows

    try:
        rows = open_rows("imagenet-train", built=options.data, place=options.imagenet_train)
    except MissingDataError:
        if options.data is not None or options.imagenet_train is not None:
            raise
        return lambda key, sha256: None
    places = {key: i for i, key in enumerate(rows.table.ids)}

    def read(key: str, sha256: str | None) -> Image | None:
        if key not in places:
            return None
        content = rows.read(places[key])
        if sha256 is not None and hashlib.sha256(content).hexdigest() != sha256:
            return None
        try:
            return decode(content)
        except PictureError:
            return None

    return read


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
