"""`python -m benchmarks` lists the benchmarks; each is a command of its own, whose `--help` says more."""

import ast
from pathlib import Path

HERE = Path(__file__).parent


def main() -> None:
    """Print each benchmark's command and what it measures."""
    for path in sorted(HERE.glob("*.py")):
        measures = _measures(path)
        if measures:
            print(f"python -m benchmarks.{path.stem:20} {measures}")
    print("\nGoals and measured results: benchmarks/README.md")


def _measures(path: Path) -> str | None:
    """The part of a module's docstring before its command; None if it names no command."""
    docstring = ast.get_docstring(ast.parse(path.read_text("utf-8"))) or ""
    title, _, command = docstring.partition("\n")[0].partition(": `")
    return title if f"-m benchmarks.{path.stem}" in command else None


if __name__ == "__main__":
    main()
