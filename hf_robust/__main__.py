"""`python -m hf_robust` and `accelerate launch -m hf_robust`: the same as `hf-robust`."""

import sys

from .cli import main

if __name__ == "__main__":
    sys.exit(main())
