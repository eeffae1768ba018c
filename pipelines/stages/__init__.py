"""One module for each stage: it plans cells, computes them and writes their tables."""
