"""The commands `accelerate launch regenerate.py RECIPE …` and `hf-robust regenerate RECIPE …` are the same."""

import sys

from hf_robust.cli import main

if __name__ == "__main__":
    sys.exit(main(["regenerate", *sys.argv[1:]]))
