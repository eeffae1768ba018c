"""Exported graphs as HTTP services. `server` starts them."""
