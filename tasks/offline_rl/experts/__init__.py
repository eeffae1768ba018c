"""Policies that were trained online, and the rollouts of them that the default data sets are."""
