"""Commands about the Hub, and about what its load lines find on this machine: setup, publish."""

from __future__ import annotations

import argparse
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from .. import __version__
from .display import command
from .hub_runs import add_publish_predictions, add_publish_results

if TYPE_CHECKING:
    from ..hub import Space


def add_setup(commands: Any) -> None:
    """Declare the command."""
    text = "register the metrics, so that evaluate.load finds them by name on this machine, without network"
    parser = command(commands, "setup", setup, text, "hf-robust setup")
    parser.add_argument("--remove", action="store_true", help="undo it")


def add_publish(commands: Any) -> None:
    """Declare the command and what it publishes, each a command of its own."""
    text = "publish something on the Hub"
    parser = commands.add_parser("publish", help=text, description=text[0].upper() + text[1:] + ".")
    kinds = parser.add_subparsers(title="what to publish", required=True, metavar="WHAT")
    for add in (_add_metric, add_publish_results, add_publish_predictions):
        add(kinds)


def _add_metric(kinds: Any) -> None:
    example = "hf-robust publish metric spurious_score --to my-name --dry-run"
    parser = command(kinds, "metric", publish_metric, "publish a metric as a Space with its page", example)
    parser.add_argument("name", help="a folder of metrics/, such as spurious_score")
    parser.add_argument("--to", required=True, metavar="OWNER", help="user or organisation on the Hub")
    parser.add_argument("--private", action="store_true", help="create the Space as a private one")
    parser.add_argument("--dry-run", action="store_true", help="show the files and the card, send nothing")


def setup(options: argparse.Namespace) -> int:
    """Register the metric modules, or undo it, and say which version is there."""
    from .. import hub

    place = hub.modules_cache()
    if options.remove:
        removed = hub.remove_metric_modules()
        for own in removed:
            print(f"{own.name} of hf-robust {own.version} removed from {place}")
        if not removed:
            print(f"nothing of hf-robust was registered in {place}")
        return 0
    registered = hub.register_metric_modules()
    names = ", ".join(r.name for r in registered if r.version == __version__)
    if names:
        print(f"registered from hf-robust {__version__} in {place}: {names}")
    for newer in (r for r in registered if r.version != __version__):
        print(f"{newer.name} stays at the newer hf-robust {newer.version}; to go back: hf-robust setup --remove first")
    print(f'load one anywhere on this machine: evaluate.load("{registered[-1].name}")')
    if find_spec("evaluate") is None:
        print('evaluate itself is not installed: pip install "hf-robust[evaluate]"', file=sys.stderr)
    return 0


def publish_metric(options: argparse.Namespace) -> int:
    """Publish a metric, or show what would be."""
    from .. import hub

    space = hub.metric_space(options.name, options.to)
    if options.dry_run:
        _show(space)
        return 0
    done = hub.publish_metric(space, private=options.private or None, say=_say)
    what = "published" if done.changed else "nothing had changed in"
    print(f"{what} {done.page} (commit {str(done.head)[:12]}, tag {space.tag})")
    print(f'load it anywhere: evaluate.load("{space.repo_id}")')
    return 0


def _show(space: Space) -> None:
    """The files of a Space against what the Hub has, and its card."""
    from .. import hub

    try:
        states = {c.path: c.state for c in hub.publish_metric(space, dry_run=True, say=_say).changes}
    except hub.HubError as error:
        print(f"what is there now is unknown: {error}", file=sys.stderr)
        states = {}
    print(f"would publish the Space {space.repo_id}, tagged {space.tag}; nothing was sent\n")
    for name, content in space.files.items():
        print(f"{len(content):>8,} bytes  {states.get(name, 'unknown'):<8} {name}")
    print(f"\nREADME.md:\n\n{space.card}", end="")


def _say(text: str) -> None:
    print(text, file=sys.stderr)
