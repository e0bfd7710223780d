"""Commands about data sets: list, build (and push), verify, remove."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from .display import DATA_HELP, command, console_of, folder, print_rows, progress_of


def add_list(commands: Any) -> None:
    """Declare the command."""
    parser = command(commands, "list", list_names, "what there is", "hf-robust list benchmarks --installed")
    parser.add_argument("what", nargs="?", choices=("benchmarks", "metrics", "scores"), default="benchmarks")
    parser.add_argument("--installed", action="store_true", help="only the data sets that are built on this machine")
    parser.add_argument("--data", type=folder, metavar="DIR", help=DATA_HELP)
    parser.add_argument("--json", action="store_true", help="machine-readable output")


def add_build(commands: Any) -> None:
    """Declare the command."""
    text = "build a benchmark's data set from its archive, so that load_dataset finds it on this machine"
    parser = command(commands, "build", build, text, "hf-robust build imagenet-a --source imagenet-a.tar")
    parser.add_argument("benchmark", help="imagenet-a, imagenet-o, spurious-imagenet, imagenet-d, imagenet-val")
    parser.add_argument(
        "--source",
        help="archive (tar, tar.gz, zip), extracted folder, or URL; to push a build that is here: not needed",
    )
    parser.add_argument("--devkit", type=Path, metavar="FILE", help="for imagenet-val from the flat tar")
    parser.add_argument("--allow-incomplete", action="store_true", help="build what is there and mark it as incomplete")
    parser.add_argument("--out", type=folder, metavar="DIR", help=DATA_HELP)
    push = parser.add_argument_group("publish it on the Hub")
    push.add_argument("--push-to-hub", metavar="REPO", help="OWNER/NAME; one commit with data, card and manifest")
    push.add_argument(
        "--dry-run", action="store_true", help="show files, sizes and what changes in the card; send nothing"
    )
    seen = push.add_mutually_exclusive_group()
    text = "only its owners see the repo (default for a new one, unless the pictures carry a licence)"
    seen.add_argument("--private", action="store_const", const=True, help=text)
    seen.add_argument("--public", action="store_const", const=False, dest="private", help="everyone sees the repo")
    text = "who wants the files has to ask: let everyone in who accepts (auto), or decide yourself (manual)"
    push.add_argument("--gated", choices=("auto", "manual", "off"), help=text)
    text = "add eval.yaml; the Hub takes it only from evaluation frameworks that it lists"
    push.add_argument("--eval-yaml", action="store_true", help=text)


def add_verify(commands: Any) -> None:
    """Declare the command."""
    text = "compute the SHA-256 of every picture again, and the fingerprint"
    parser = command(commands, "verify", verify, text, "hf-robust verify imagenet-a")
    help_text = "a built data set, or a build's folder, or pictures (folder, archive, downloaded repo) with a manifest"
    parser.add_argument("what", metavar="NAME|DIR", help=help_text)
    parser.add_argument(
        "--manifest", type=Path, metavar="FILE", help="manifest.sha256 of the pictures (default: in DIR)"
    )
    parser.add_argument("--out", type=folder, metavar="DIR", help=DATA_HELP)


def add_remove(commands: Any) -> None:
    """Declare the command."""
    parser = command(commands, "remove", remove, "remove a built data set", "hf-robust remove imagenet-a")
    parser.add_argument("benchmark")
    parser.add_argument("--out", type=folder, metavar="DIR", help=DATA_HELP)


def list_names(options: argparse.Namespace) -> int:
    """Print the benchmarks, metrics or out-of-distribution scores."""
    rows = {"benchmarks": _benchmark_rows, "metrics": _metric_rows, "scores": _score_rows}[options.what](options)
    if options.json:
        print(json.dumps(rows, indent=2))
    else:
        if rows:
            print_rows(rows)
        else:
            print("nothing is built here yet: hf-robust build NAME --source PATH")
    return 0


def _benchmark_rows(options: argparse.Namespace) -> list[dict[str, str]]:
    from .. import builders
    from ..benchmarks import benchmarks

    built = {b.name: b for b in reversed(builders.installed(out=options.data))}  # the newest of each name stays
    broken = {name: text for name, _, text in builders.damaged(out=options.data)}
    for text in broken.values():
        print(f"hf-robust: {text}", file=sys.stderr)
    rows = []
    for benchmark in benchmarks().values():
        here = built.get(benchmark.name)
        if here is not None or benchmark.name in broken or not options.installed:
            state = "no" if here is None else f"{here.rows:,} pictures{'' if here.complete else ', incomplete'}"
            state = "DAMAGED" if benchmark.name in broken else state
            facts = {"headline": benchmark.headline, "built here": state, "what": benchmark.description}
            rows.append({"benchmark": benchmark.name, **facts})
    return rows


def _metric_rows(options: argparse.Namespace) -> list[dict[str, str]]:
    from ..benchmarks import benchmarks

    return [
        {"metric": m.__name__, "benchmark": benchmark.name, "what": (m.__doc__ or "").splitlines()[0]}
        for benchmark in benchmarks().values()
        for m in benchmark.measures
    ]


def _score_rows(options: argparse.Namespace) -> list[dict[str, str]]:
    from ..ood_scores import scores

    return [
        {"score": s.name, "reads": s.needs, "fit": "yes" if s.fit_needed else "no", "what": s.source}
        for s in scores().values()
    ]


def build(options: argparse.Namespace) -> int:
    """Build a data set and say where it is; then push it, where that is asked for."""
    from .. import builders

    _check_push(options)
    if options.source is None:
        return _push(builders.find(options.benchmark, out=options.out), options)
    with progress_of(console_of()) as meter_of:
        built = builders.build(
            options.benchmark,
            options.source,
            allow_incomplete=options.allow_incomplete,
            out=options.out,
            devkit=options.devkit,
            progress=meter_of(f"build {options.benchmark}"),
        )
    for difference in built.differences:
        print(f"incomplete: {difference}", file=sys.stderr)
    state = "complete" if built.complete else f"INCOMPLETE ({len(built.differences)} differences)"
    print(f"{built.name}: {built.rows:,} pictures, {state}, fingerprint {built.fingerprint[:12]}, in {built.path}")
    if options.out is None:
        print(f'load it anywhere on this machine: load_dataset("hf_robust/{built.name}")')
    return 0 if options.push_to_hub is None else _push(built, options)


def _check_push(options: argparse.Namespace) -> None:
    """What can be refused before a long build."""
    if options.push_to_hub is not None:
        from ..hub.datasets import publishable
        from ..hub.patience import check_repo_name

        check_repo_name(options.push_to_hub)
        if options.source is not None:  # a build that is here says itself what it is
            publishable(options.benchmark)
        return
    given = {"--dry-run": options.dry_run, "--private or --public": options.private is not None}
    given |= {"--gated": options.gated is not None, "--eval-yaml": options.eval_yaml}
    alone = [name for name, is_given in given.items() if is_given]
    if alone:
        raise ValueError(f"expected --push-to-hub REPO with {alone[0]}, got none")
    if options.source is None:
        raise ValueError("expected --source PATH_OR_URL to build from, or --push-to-hub REPO for a build that is here")


def _push(built: Any, options: argparse.Namespace) -> int:
    from ..hub.datasets import publish_dataset

    def say(line: str) -> None:
        print(line, file=sys.stderr)

    done = publish_dataset(
        built,
        options.push_to_hub,
        private=options.private,
        gated=False if options.gated == "off" else options.gated,
        allow_incomplete=options.allow_incomplete,
        eval_page=options.eval_yaml,
        dry_run=options.dry_run,
        say=say,
    )
    _print_push(done, options)
    return 0


def _print_push(done: Any, options: argparse.Namespace) -> None:
    push = done.push
    if options.dry_run:
        for change in push.changes:
            print(f"{change.state:8}{change.path}  {change.size:,} bytes")
        print(f"card:\n{done.card_diff.rstrip()}" if done.card_diff else "card: as it is on the Hub")
    if done.unseen is not None:
        print(f"compared with nothing: {done.unseen}", file=sys.stderr)
    seen = f"{'private' if done.private else 'public'}{', gated' if done.gated else ''}"
    if options.dry_run:
        there = "is there" if push.before.exists else "would be made"
        print(f"dry run, nothing was sent: {push.page} {there}, afterwards {seen}")
    else:
        what = "pushed in one commit" if push.changed else "nothing to change"
        print(f"{what}: {push.page}, {seen}, commit {push.head}")
        print(f'load it: load_dataset("{options.push_to_hub}")')


def verify(options: argparse.Namespace) -> int:
    """Say which pictures were verified; an error names the first that differs."""
    from .. import builders

    place = Path(options.what)
    if options.manifest is not None and options.what in builders.recipes():
        raise ValueError(f"expected pictures with --manifest, got the data set {options.what!r}: it has its own hashes")
    if options.what in builders.recipes():
        found = [builders.find(options.what, out=options.out)]
    elif (built := builders.build_at(place)) is not None:
        found = [built]
    else:
        if not options.what or not place.exists():
            known = ", ".join(builders.recipes())
            raise LookupError(f"expected a data set or a folder, got {options.what!r}; known data sets: {known}")
        found = list(builders.installed(out=place)) if place.is_dir() and options.manifest is None else []
    with progress_of(console_of()) as meter_of:
        if not found:
            manifest = options.manifest or place / builders.MANIFEST
            done = builders.verify_pictures(place, manifest, progress=meter_of("verify"))
            print(f"{place}: all {done.pictures:,} pictures of {manifest}, fingerprint {done.fingerprint[:12]}")
        for built in found:
            done = builders.verify_build(built, progress=meter_of(f"verify {built.name}"))
            state = "" if built.complete else ", INCOMPLETE against the official archive"
            print(
                f"{built.name}: all {done.pictures:,} pictures as built, fingerprint {done.fingerprint[:12]}{state}, "
                f"in {done.place}"
            )
    return 0


def remove(options: argparse.Namespace) -> int:
    """Remove a built data set."""
    from .. import builders

    broken = (name for name, *_ in builders.damaged(out=options.out))
    if options.benchmark not in {*builders.recipes(), *(b.name for b in builders.installed(out=options.out)), *broken}:
        raise LookupError(f"unknown data set {options.benchmark!r}; known: {', '.join(builders.recipes())}")
    removed = builders.remove(options.benchmark, out=options.out)
    print(
        f"{options.benchmark}: removed {removed} builds" if removed else f"{options.benchmark}: nothing was built here"
    )
    return 0
