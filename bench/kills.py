"""Kills each long command at random moments and starts it again: the result must be the one of an uninterrupted run.

python bench/kills.py [--kills N] [--seed N] [--command NAME ...]

Twenty kills a command by default, each at a moment drawn from the whole length of the work; half of them hit only the
first process, whose workers have to notice. After each kill, nothing half-written may count as whole; after the last,
the command runs to its end, and every file must have the bytes of the uninterrupted run while finished parts stay as
they were. Exit code 1 for a broken promise.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from kill_review import kill_review_often
from kill_runs import KILLABLE, BrokenError, kill_often, killable

REVIEW = "review"


def main() -> int:
    commands = (*KILLABLE, REVIEW)
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=20, metavar="N", help="a command (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the moments (%(default)s)")
    parser.add_argument(
        "--command", nargs="+", choices=commands, default=commands, metavar="NAME", help=", ".join(commands)
    )
    options = parser.parse_args()
    broken = 0
    with tempfile.TemporaryDirectory() as scratch:
        for number, name in enumerate(options.command):
            started = time.monotonic()
            try:
                said = outcome(name, Path(scratch, str(number)), options.kills, options.seed)
            except BrokenError as error:
                broken += 1
                print(f"{name}: BROKEN with seed {options.seed}: {error}", flush=True)
                continue
            print(f"{name}: {said}; {time.monotonic() - started:.0f} s in all", flush=True)
    return 1 if broken else 0


def outcome(name: str, folder: Path, kills: int, seed: int) -> str:
    if name == REVIEW:
        report = kill_review_often(folder, kills, seed=seed)
        moments = f"{min(report.moments):.0f} to {max(report.moments):.0f}"
        return f"{report.kills} kills after {moments} answers, none lost, none doubled"
    report = kill_often(killable(folder, name), folder, kills, seed=seed)
    return (
        f"{report.kills} kills between {min(report.moments):.2f} and {max(report.moments):.2f} s of work, "
        f"{report.finished} done before their moment, same bytes at the end; {report.pieces_kept} finished pieces kept "
        "untouched after the last"
    )


if __name__ == "__main__":
    sys.exit(main())
