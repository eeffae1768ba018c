"""Sparse networks: how many bytes they take in each storage format."""
