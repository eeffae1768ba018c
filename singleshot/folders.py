"""Folders of networks in the working directory, where the pipeline and `learn-style` write them."""

from pathlib import Path

TRAINED = Path("models/styles")
"""Networks of styles that the pipeline has trained."""
LEARNED = Path("styles")
"""Networks for users' own paintings, from the command `learn-style`; no stage uses this directory."""
GRAPHS = Path("models/onnx")
PAINTINGS = Path("data/images/paintings")
