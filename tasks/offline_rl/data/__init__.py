"""Transitions: read from D4RL or Minari, kept in one form of file, drawn in batches."""
