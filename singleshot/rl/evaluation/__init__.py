"""Evaluation of agents: episodes in lockstep, scores, videos."""
