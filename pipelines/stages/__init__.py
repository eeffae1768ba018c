"""Stages of dvc.yaml with cells, by science; a step plans cells, computes them and writes tables."""
