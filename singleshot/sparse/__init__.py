"""Sparse networks: storage formats and their sizes, compaction, and kernels for the kept weights."""
