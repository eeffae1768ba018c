"""The command `singleshot`: styles and agents for people who need no pipeline."""
