"""Exported graphs as HTTP services on Ray Serve: what `pipelines.serving.server` starts."""
