"""The commands, the only place that prints; commands that join rooms are composed here."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from .. import __version__
from .data import add_build, add_list, add_remove, add_verify
from .demo import add_demo
from .evaluate import add_evaluate
from .health import add_distance, add_health
from .hub import add_publish, add_setup
from .hub_runs import add_export, add_pull
from .regenerate import add_regenerate
from .results import add_compare, add_report, add_score
from .review import add_review
from .spurious import add_neural_pca, add_spufix
from .vqa import add_vqa

INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code: 0 only when everything that was asked for was done."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    options = _parser().parse_args(given)
    options.given = given
    try:
        return int(options.command(options))
    except KeyboardInterrupt:
        print("\nhf-robust: stopped; what was finished is kept, the same command goes on from there", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        sys.stdout = None  # nothing is flushed into it at the end
        return 1
    except (ValueError, LookupError, OSError, ImportError, RuntimeError) as error:
        print(f"hf-robust: error: {_sentence(error)}", file=sys.stderr)
        return 1


def _sentence(error: Exception) -> str:
    """What an error says; one of the operating system in the words of the others."""
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        place = error.filename if error.filename2 is None else error.filename2
        return (
            f"expected a place to read or write at {str(place)!r}, got: {error.strerror}; check it and its permissions"
        )
    return str(error.args[0] if len(error.args) == 1 else error)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="hf-robust",
        description="Can this image classifier be trusted? ImageNet-A, ImageNet-O, Spurious ImageNet and ImageNet-D, "
        "scored as published.",
        epilog="First look, without any download: hf-robust demo --out demo-output",
    )
    parser.add_argument("--version", action="version", version=f"hf-robust {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    own = (add_demo, add_list, add_setup, add_build, add_verify, add_remove)
    runs = (add_evaluate, add_vqa, add_score, add_compare, add_report, add_publish, add_pull, add_export)
    making = (add_neural_pca, add_spufix, add_regenerate, add_review, add_distance, add_health)
    for add in (*own, *runs, *making):
        add(commands)
    return parser
