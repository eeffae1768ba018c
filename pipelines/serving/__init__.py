"""Exported graphs as HTTP services on Ray Serve: what `pipelines.serve` starts."""
