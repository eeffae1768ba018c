"""Singleshot: single-shot pruning, offline RL, style transfer and export, as a library."""
