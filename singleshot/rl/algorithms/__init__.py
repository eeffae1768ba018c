"""The algorithms, one per module."""
