"""Photos, paintings and trained weights: where they come from, and how they are read."""
