"""Builds ImageNet-D on this machine.

    python dataset_scripts/imagenet_d.py --source PATH_OR_URL [--allow-incomplete] [--out DIR]

4,835 pictures made by a diffusion model: 113 categories on unusual backgrounds, textures and materials
(arXiv 2403.18775), one split for each. Categories are mapped by folder name; some have two or three
acceptable ImageNet classes.

Afterwards `load_dataset("hf_robust/imagenet-d")` works offline from any folder. The same as
`hf-robust build imagenet-d`; counts, checksum and how a path becomes a row: hf_robust/builders/imagenet_d.py.
"""

import sys

from hf_robust.cli import main

if __name__ == "__main__":
    sys.exit(main(["build", "imagenet-d", *sys.argv[1:]]))
