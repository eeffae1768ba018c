"""Statistics, figures and the report page, made from the results of a run."""
