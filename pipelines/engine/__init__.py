"""Cells, store, executors, tracking and provenance: no science, and nothing of this product."""
