"""Out-of-distribution scores from stored predictions: logits or features in, one number an image out; numpy only.

Higher = more out-of-distribution, for every score. Nothing here needs images, a model, torch or a GPU.
"""

from __future__ import annotations

from .fits import Fit, refuse_overlap
from .head import Head, LinearHead
from .registry import SCORES, Score, find, fit, score, scores

__all__ = ["SCORES", "Fit", "Head", "LinearHead", "Score", "find", "fit", "refuse_overlap", "score", "scores"]
