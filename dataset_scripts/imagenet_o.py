"""Builds ImageNet-O on this machine.

    python dataset_scripts/imagenet_o.py --source PATH_OR_URL [--allow-incomplete] [--out DIR]

Afterwards `load_dataset("hf_robust/imagenet-o")` works offline from any folder.
Where the archive lies, its counts and how a path becomes a row: hf_robust/builders/imagenet_o.py.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from hf_robust.builders import BuildError, build


def main() -> int:
    """Exit code 0 once the data set is built; 1 with the reason on stderr."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--source", required=True, help="tar, tar.gz, zip, folder, address, or 'official'")
    parser.add_argument("--allow-incomplete", action="store_true", help="build what is usable, marked as incomplete")
    parser.add_argument("--out", type=Path, help="a folder in place of the cache of datasets")
    arguments = parser.parse_args()
    try:
        built = build("imagenet-o", arguments.source, allow_incomplete=arguments.allow_incomplete, out=arguments.out)
    except BuildError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"{built.name}: {built.rows:,} pictures, {'complete' if built.complete else 'INCOMPLETE'}, in {built.path}")
    for difference in built.differences:
        print(f"  {difference}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
