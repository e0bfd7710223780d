"""Builds ImageNet-O on this machine.

    python dataset_scripts/imagenet_o.py --source PATH_OR_URL [--allow-incomplete] [--out DIR]

2,000 pictures of classes outside ImageNet-1k that a ResNet-50 takes for one of 200 ImageNet classes (arXiv 1907.07174).
The official archive is imagenet-o.tar, 177,617,920 bytes. Its folders name the class that the picture is confused with:
the column is called `confused_with`, and there is no label.

Afterwards `load_dataset("hf_robust/imagenet-o")` works offline from any folder. The same as
`hf-robust build imagenet-o`; counts, checksum and how a path becomes a row: hf_robust/builders/imagenet_o.py.
"""

import sys

from hf_robust.cli import main

if __name__ == "__main__":
    sys.exit(main(["build", "imagenet-o", *sys.argv[1:]]))
