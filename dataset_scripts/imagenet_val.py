"""Builds the ImageNet validation set on this machine.

    python dataset_scripts/imagenet_val.py --source PATH_OR_URL [--allow-incomplete] [--out DIR]

50,000 pictures of 1,000 classes (ILSVRC 2012), for controls and in-distribution pictures; never published from here.
From wnid folders, from the flat ILSVRC2012_img_val.tar with the devkit (`--devkit`), or from the gated Hub set
(`--source hf://ILSVRC/imagenet-1k`). Folders named by WordNet id need no build:
`hf-robust evaluate --imagenet-val FOLDER`.

Afterwards `load_dataset("hf_robust/imagenet-val")` works offline from any folder. The same as
`hf-robust build imagenet-val`; counts, checksum and how a path becomes a row: hf_robust/builders/imagenet_val.py.
"""

import sys

from hf_robust.cli import main

if __name__ == "__main__":
    sys.exit(main(["build", "imagenet-val", *sys.argv[1:]]))
