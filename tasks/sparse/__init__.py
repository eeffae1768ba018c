"""Sparse networks: storage formats."""
