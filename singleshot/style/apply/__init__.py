"""Stylising of pictures of any size and number with a trained network."""
