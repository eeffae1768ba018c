"""The commands of `python -m pipelines`."""
