"""The stages, agents, styles and networks of this project, and the paths of their files."""
