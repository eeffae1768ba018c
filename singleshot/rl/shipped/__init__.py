"""Agents that come with the package.

`benchmarks/results/shipped_styles.md` says how they were made.
"""

from pathlib import Path

FILES = {file.stem: file for file in sorted(Path(__file__).parent.glob("*.packed"))}
"""Packed files (:mod:`singleshot.sparse.packed`) of agents, by their names."""
