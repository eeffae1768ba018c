"""What a person types: the commands of `python -m pipelines`."""
