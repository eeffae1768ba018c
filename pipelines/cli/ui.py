"""`make ui`: MLflow's pages of this checkout's runs, or where they are."""

import os
import socket
import sys
from pathlib import Path

from pipelines.config.params import load_config
from pipelines.engine.tracking import tracking_uri
from tasks.errors import UserError

START = "/#/experiments"
SWITCH = "choose Model training at the top left: MLflow begins with its pages for language models"


def serve(uri: str, port: int) -> None:
    """Become MLflow's server of the database at `uri`; of a server, tell the address.

    Raises:
        UserError: there is no such database yet, or the port is taken.
    """
    if uri.startswith(("http://", "https://")):
        print(f"MLflow's server has the runs: {uri.rstrip('/')}{START}; {SWITCH}")
        return
    _check_database(uri)
    _check_port(port)
    print(f"MLflow: http://localhost:{port}{START} (Ctrl-C ends it); {SWITCH}", flush=True)
    options = ["--backend-store-uri", uri, "--host", "127.0.0.1", "--port", str(port)]
    # One worker of the four that are its default: they take memory and seconds, and SQLite has one writer.
    options += ["--workers", "1", "--uvicorn-opts", "--log-level warning"]
    os.execv(sys.executable, [sys.executable, "-m", "mlflow", "server", *options])


def _check_database(uri: str) -> None:
    path = Path(uri.removeprefix("sqlite:///"))
    if uri.startswith("sqlite:///") and not path.is_file():
        raise UserError(
            f"{path}: no such file; `make repro` records its runs there; set MLFLOW_TRACKING_URI if they are "
            "elsewhere"
        )


def _check_port(port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise UserError(f"port {port} is taken; choose another: make ui PORT={port + 1}") from error


def main(port: str) -> None:
    """Serve at `port`; a user's mistake is one line and status 1."""
    try:
        if not (port.isdecimal() and 0 < int(port) < 65536):
            raise UserError(f"PORT={port}: not a port; give a number from 1 to 65535")
        serve(tracking_uri(load_config().tracking), int(port))
    except UserError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main(sys.argv[1])
