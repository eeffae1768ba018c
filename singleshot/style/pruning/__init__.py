"""Pruning of style networks: masks before training, and compaction after it."""
