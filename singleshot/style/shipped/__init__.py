"""Styles that come with the package, trained on paintings that this project draws.

`benchmarks/results/shipped_styles.md` says how they were made.
"""

from pathlib import Path

FILES = {file.stem: file for file in sorted(Path(__file__).parent.glob("*.packed"))}
"""Packed model files (:mod:`singleshot.style.model_file`), by the styles' names."""
