"""Cells, their store, executors, tracking and provenance, independent of the science and of all stages."""
