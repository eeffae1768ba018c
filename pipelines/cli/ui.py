"""`python -m pipelines ui`, `make ui`: MLflow's pages of this checkout's runs, or their address."""

import errno
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

from pipelines.config.params import load_config
from pipelines.engine.artifact_paths import database_file, follow_move
from pipelines.engine.processes import ends_with_its_parents, takes_its_children_along
from pipelines.engine.tracking import tracking_uri
from singleshot.errors import UserError
from singleshot.secrets import without_secrets

START = "/#/experiments?workflowType=machine_learning"
"""The list of experiments, in the pages for training: MLflow's own start has those for language models."""
GRACE_SECONDS = 10


def serve_runs(port: int) -> None:
    """Serve the runs at the address in MLFLOW_TRACKING_URI or params.yaml, until SIGINT or SIGTERM.

    Raises:
        UserError: there is no such database yet, the port is taken, or MLflow fails.
    """
    config = load_config().tracking
    uri = tracking_uri(config)
    if uri.startswith(("http://", "https://")):
        print(f"MLflow's server has the runs: {without_secrets(uri).rstrip('/')}{START}")
        return
    database = database_file(uri)
    if database:
        _check_database(database)
    _check_port(port)
    if database:
        follow_move(database, config.experiment)
    hint = "Ctrl-C ends it; if pages for language models appear, choose Model training at the top left"
    print(f"MLflow: http://localhost:{port}{START} ({hint})", flush=True)
    options = ["--backend-store-uri", uri, "--host", "127.0.0.1", "--port", str(port)]
    # One worker instead of the default four, which take memory and seconds: SQLite has one writer anyway.
    options += ["--workers", "1", "--uvicorn-opts", "--log-level warning"]
    with ends_with_its_parents(), takes_its_children_along():
        _run_to_interrupt([sys.executable, "-m", "mlflow", "server", *options])


def _run_to_interrupt(command: list[str]) -> None:
    # Each of the server's processes would print a traceback if an interrupt reached it during imports. In a
    # session of their own they don't get the terminal's interrupts, and SIGTERM ends them silently.
    # Without jobs, which judge answers of language models, the server has fewer processes.
    environment = os.environ | {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    with subprocess.Popen(command, env=environment, start_new_session=True) as server:
        try:
            if status := server.wait():
                raise UserError(f"MLflow's server ended with status {status}; the reason is above")
        except KeyboardInterrupt:
            os.killpg(server.pid, signal.SIGTERM)
            try:
                server.wait(GRACE_SECONDS)
            except subprocess.TimeoutExpired:
                os.killpg(server.pid, signal.SIGKILL)


def _check_database(path: Path) -> None:
    if not path.is_file():
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
            why = "is taken" if error.errno == errno.EADDRINUSE else f"can't be used ({error.strerror})"
            other = port + 1 if 1024 <= port < 65535 else 5001
            raise UserError(f"port {port} {why}; choose another: make ui PORT={other}") from error
