"""Deployment of trained networks (Hyyppä 2019): ONNX, adapters for runtimes, parity, timing, a classifier."""
