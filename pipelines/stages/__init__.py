"""One module a stage: read params, make cells, fan out, write outs."""
