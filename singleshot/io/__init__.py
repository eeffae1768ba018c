"""Reading, writing and downloading files, and random streams."""
