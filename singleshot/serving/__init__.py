"""Exported graphs as HTTP services, which the module `server` starts."""
