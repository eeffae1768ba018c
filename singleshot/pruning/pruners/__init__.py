"""The pruners, one per module."""
