"""What the study found: its tables, each claim of the paper beside it, figures and the page of docs/study."""
