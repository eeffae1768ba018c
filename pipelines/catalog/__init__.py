"""The styles and networks of this project, and the paths of its files."""
