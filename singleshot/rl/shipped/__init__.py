"""Agents that come with the package.

`benchmarks/results/shipped_styles.md` says how they were made.
"""

from pathlib import Path

FILES = {file.stem: file for file in sorted(Path(__file__).parent.glob("*.packed"))}
"""Packed files (:mod:`singleshot.sparse.packed`) of agents, by their names."""


def path_of(name: str) -> Path | None:
    """The packed file of the shipped agent called `name`, if there is one."""
    return FILES.get(name)
