"""Deployment of trained networks (Hyyppä 2019): ONNX, one adapter a runtime, parity, timing, a classifier."""
