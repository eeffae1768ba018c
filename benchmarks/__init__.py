"""Timings behind the figures in the docs. Run by hand; nothing here is a test."""
