"""Predictions on disk: the plan, the parts, the proof, and reading them back. No torch, no pictures."""
