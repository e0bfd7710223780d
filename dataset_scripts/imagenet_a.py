"""Builds ImageNet-A on this machine.

    python dataset_scripts/imagenet_a.py --source PATH_OR_URL [--allow-incomplete] [--out DIR]

7,500 natural pictures of 200 ImageNet classes that a ResNet-50 gets wrong (arXiv 1907.07174). The official archive is
imagenet-a.tar, 687,552,512 bytes, one folder a class; 50 of its pictures do not end in ".jpg". The file names tell the
two wrong classes that were predicted and how confidently.

Afterwards `load_dataset("hf_robust/imagenet-a")` works offline from any folder. The same as
`hf-robust build imagenet-a`; counts, checksum and how a path becomes a row: hf_robust/builders/imagenet_a.py.
"""

import sys

from hf_robust.cli import main

if __name__ == "__main__":
    sys.exit(main(["build", "imagenet-a", *sys.argv[1:]]))
