"""The configuration: dataclasses of what conf/ composes to, and the reference of their keys."""
