"""Measurements behind the numbers in the docs. They are run by hand; nothing here is a test."""
