"""One module for each step of a stage: it plans cells, computes them and writes their tables."""
