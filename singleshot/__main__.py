"""`python -m singleshot COMMAND`, where the command `singleshot` is not on the PATH."""

from singleshot.command.app import main

if __name__ == "__main__":
    main()
