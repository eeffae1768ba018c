"""Policies that were trained online, and their rollouts, which are the default datasets."""
