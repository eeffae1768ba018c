"""One module an algorithm."""
