"""Pictures of any size and number through a trained network."""
