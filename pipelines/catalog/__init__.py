"""What this product has: its stages, agents, styles and networks, and where their files are."""
