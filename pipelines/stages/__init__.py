"""One module for each stage of dvc.yaml with cells; a step plans them, computes them and writes tables."""
