"""Training of a stack of agents under masks."""
