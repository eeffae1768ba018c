"""The study's findings: statistics of its agents, verdicts on claims, figures, and the page of docs/study."""
