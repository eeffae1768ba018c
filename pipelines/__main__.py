"""`python -m pipelines COMMAND`."""

from pipelines.cli.app import main

if __name__ == "__main__":
    main()
