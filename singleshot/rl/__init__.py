"""Offline reinforcement learning: datasets, BCQ, BC, training, evaluation, experts."""
