"""Exported graphs as HTTP services on Ray Serve. `server` starts them."""
