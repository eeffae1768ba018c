"""Agents at play: episodes in lockstep, scores, videos."""
