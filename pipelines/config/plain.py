"""Whether `params.yaml` is as small and plain as what Hydra composes: `python -m pipelines.config.plain`.

`make repro` asks before DVC reads the file, as DVC would expand what doubles itself until memory is full.
Imports little, so that it takes a moment.
"""

import sys
from pathlib import Path

import yaml

from tasks.errors import UserError, in_a_line

PARAMS = Path("params.yaml")
MOST_BYTES = 1 << 18
"""Of params.yaml: fifty times what there is to configure."""
DEEPEST = 20
"""Of what is nested in params.yaml; three times what there is."""
COMPOSE_AGAIN = "run `make params PROFILE=…` (or `dvc exp run`) to compose params.yaml again"


def check_plain(path: Path) -> None:
    """Check that a file is as small and plain as what Hydra composes.

    A few lines of aliases (`*a`) or interpolations (`${a}`) that double each other are gigabytes.

    Raises:
        UserError: it isn't.
    """
    if path.stat().st_size > MOST_BYTES:
        raise UserError(f"{path}: is larger than {MOST_BYTES:,} bytes; {COMPOSE_AGAIN}")
    text = path.read_text()
    if "${" in text:
        raise UserError(f"{path}: has an interpolation, ${{…}}; {COMPOSE_AGAIN}")
    depth = 0
    for event in yaml.parse(text, yaml.SafeLoader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if isinstance(event, yaml.AliasEvent) or depth > DEEPEST:  # as it is reached: brackets take n² time
            raise UserError(f"{path}: has an alias, *…, or lists in lists in lists; {COMPOSE_AGAIN}")


if __name__ == "__main__":
    try:
        check_plain(PARAMS)
    except UserError as problem:
        sys.exit(f"error: {problem}")
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as problem:
        sys.exit(f"error: {PARAMS}: {in_a_line(problem)}; {COMPOSE_AGAIN}")
