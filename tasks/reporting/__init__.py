"""What is made of results: statistics, figures, the page."""
