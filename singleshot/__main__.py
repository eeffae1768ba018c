"""The command `singleshot`, which is `python -m singleshot`, too."""

import sys


def main() -> None:
    """Run a command, or say what has to be installed for that."""
    try:
        from singleshot.command import app
    except ModuleNotFoundError as error:
        if error.name != "typer":
            raise
        sys.exit("error: commands need an extra; run: pip install 'singleshot[style]'")
    app.main()


if __name__ == "__main__":
    main()
