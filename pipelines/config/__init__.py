"""The configuration: the dataclasses that conf/ composes to, and the reference page of their keys."""
