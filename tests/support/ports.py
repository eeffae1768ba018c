"""Ports of this machine."""

import socket


def free_port() -> int:
    """One that nothing listens on."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])
