"""Transitions: read from D4RL or Minari, stored in one file format, drawn in batches."""
