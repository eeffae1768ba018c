"""`python -m pipelines COMMAND`."""

import sys

try:
    from pipelines.cli.app import main
except ModuleNotFoundError as error:
    if str(error.name).split(".")[0] in {"pipelines", "tasks", "singleshot"}:
        raise
    sys.exit(
        f"error: {sys.executable} has no package {error.name}; run `make install`, then use "
        ".venv/bin/python or activate the environment: . .venv/bin/activate"
    )

if __name__ == "__main__":
    main()
