"""Spurious features of a class: what its logit is made of (neural PCA), and how to take a part of it out (SpuFix)."""
