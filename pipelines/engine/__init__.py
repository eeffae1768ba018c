"""The machinery every stage shares, and nothing of any science."""
