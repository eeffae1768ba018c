"""Deployment of trained networks (Hyyppä 2019): ONNX, adapters for runtimes, parity, timing, a classifier."""

import singleshot.io  # noqa: F401 (it keeps onnxruntime from recording its use)
