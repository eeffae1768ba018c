"""`python -m pipelines ui`, `make ui`: MLflow's pages of this checkout's runs, or their address."""

import os
import signal
import socket
import subprocess
import sys

from pipelines.config.params import load_config
from pipelines.engine.processes import ends_with_its_parents
from pipelines.engine.tracking import (
    VIEWS,
    address,
    database_file,
    experiment_name,
    mlflow_client,
    tracking_uri,
)
from singleshot.errors import UserError, explained
from singleshot.secrets import without_secrets


def serve_runs(port: int) -> None:
    """Print the addresses of the runs in MLFLOW_TRACKING_URI or params.yaml; serve them if no server does.

    Raises:
        UserError: there is no such database yet, or the port is taken.
    """
    config = load_config().tracking
    uri = tracking_uri(config)
    if (database := database_file(uri)) and not database.is_file():
        raise UserError(f"{database}: no such file; `make repro` records its runs there")
    has_server = uri.startswith(("http://", "https://"))
    if not has_server:
        with explained(f"port {port} can't be used", "choose another: make ui PORT=5001"):
            socket.create_server(("127.0.0.1", port)).close()
    with mlflow_client(config) as (client, _):
        training = client.get_experiment_by_name(experiment_name(config, "train"))
    server = without_secrets(uri).rstrip("/") if has_server else f"http://localhost:{port}"
    # MLflow starts with pages for language models; a click, unlike a parameter of the address, is remembered.
    print(f"MLflow: {server}/#/experiments (choose Model training there, once)")
    if training:
        for view in VIEWS:
            print(f"agents, {view}: {server}/{address(training.experiment_id, view)}")
    if not has_server:
        print("Ctrl-C ends it", flush=True)
        # One worker instead of four, as SQLite has one writer; and no jobs, which judge language models.
        command = [sys.executable, "-m", "mlflow", "ui", "--backend-store-uri", uri, "--port", str(port)]
        command += ["--workers", "1", "--uvicorn-opts", "--log-level warning"]
        environment = os.environ | {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
        # In a session of its own, it does not get the terminal's interrupt: it would print tracebacks.
        started = subprocess.Popen(command, env=environment, start_new_session=True)
        with ends_with_its_parents(), started as process:
            try:
                if status := process.wait():
                    raise UserError(f"MLflow's server ended with status {status}; the reason is above")
            except KeyboardInterrupt:
                os.killpg(process.pid, signal.SIGTERM)
