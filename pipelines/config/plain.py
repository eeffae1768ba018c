"""Check that `params.yaml` is plain: `python -m pipelines.config.plain`.

It has to be as small and plain as Hydra writes it, as DVC would expand nested aliases until memory is full.
`make repro` checks this before DVC runs. The module imports little, so that this takes only a moment.
"""

import sys
from pathlib import Path

import yaml

from singleshot.errors import UserError, in_a_line

PARAMS = Path("params.yaml")
MOST_BYTES = 1 << 18
"""Largest size of params.yaml, fifty times its usual size."""
DEEPEST = 20
"""Greatest depth of nesting in params.yaml, three times its usual depth."""
COMPOSE_AGAIN = "run `make params PROFILE=…` (or `dvc exp run`) to compose params.yaml again"


def check_plain(path: Path) -> None:
    """Check that a file is as small and plain as Hydra writes it.

    A few lines of aliases (`*a`) or interpolations (`${a}`), each of which repeats the previous line twice,
    expand to gigabytes.

    Raises:
        UserError: the file is too large or too deeply nested, or has aliases or interpolations.
    """
    if path.stat().st_size > MOST_BYTES:
        raise UserError(f"{path}: is larger than {MOST_BYTES:,} bytes; {COMPOSE_AGAIN}")
    text = path.read_text("utf-8")
    if "${" in text:
        raise UserError(f"{path}: has an interpolation, ${{…}}; {COMPOSE_AGAIN}")
    depth = 0
    for event in yaml.parse(text, yaml.SafeLoader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if isinstance(event, yaml.AliasEvent) or depth > DEEPEST:  # at once: brackets take n² time
            raise UserError(f"{path}: has an alias, *…, or is nested too deeply; {COMPOSE_AGAIN}")


if __name__ == "__main__":
    try:
        check_plain(PARAMS)
    except UserError as problem:
        sys.exit(f"error: {problem}")
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as problem:
        sys.exit(f"error: {PARAMS}: {in_a_line(problem)}; {COMPOSE_AGAIN}")
