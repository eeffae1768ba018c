"""The command `singleshot`, also as `python -m singleshot`."""

import sys

EXTRAS = {"evaluate": "rl,style", "act": "rl,export", "serve": "serve"}
"""The extras of `pip install` that commands need."""
PACKAGES = {"onnx": "export", "onnxruntime": "export", "onnxscript": "export", "openvino": "runtimes"}
"""The extras of packages that the other commands may need, if not `style`."""


def main() -> None:
    """Run a command, or say what has to be installed for that."""
    try:
        from singleshot.command import app

        app.main()
    except ModuleNotFoundError as error:
        if str(error.name).startswith("singleshot"):
            raise
        extra = EXTRAS.get(next(iter(sys.argv[1:]), "")) or PACKAGES.get(str(error.name), "style")
        sys.exit(
            f"error: the package {error.name} is missing; in the checkout, run: pip install '.[{extra}]'"
        )


if __name__ == "__main__":
    main()
