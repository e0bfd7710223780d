"""Builds Spurious ImageNet on this machine.

    python dataset_scripts/spurious_imagenet.py --source PATH_OR_URL [--allow-incomplete] [--out DIR]

100 classes with 75 square pictures each that show only a spurious feature of the class (arXiv 2212.04871). The official
archive is images_100_classes.zip, one folder a (class, component). No checksum is published, so the first build records
its SHA-256.

Afterwards `load_dataset("hf_robust/spurious-imagenet")` works offline from any folder. The same as
`hf-robust build spurious-imagenet`; counts and how a path becomes a row: hf_robust/builders/spurious_imagenet.py.
"""

import sys

from hf_robust.cli import main

if __name__ == "__main__":
    sys.exit(main(["build", "spurious-imagenet", *sys.argv[1:]]))
