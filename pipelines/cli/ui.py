"""`python -m pipelines ui`, `make ui`: MLflow's pages of this checkout's runs, or their address."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
import webbrowser
from collections.abc import Sequence

from pipelines.config.params import load_config
from pipelines.engine.processes import ends_with_its_parents
from pipelines.engine.tracking import address, database_file, experiment_name, mlflow_client, tracking_uri
from singleshot.errors import UserError
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
        try:
            socket.create_server(("127.0.0.1", port)).close()
        except OSError as error:
            fix = "choose another: make ui PORT=5001"
            raise UserError(f"port {port} can't be used ({error.strerror}); {fix}") from error
    with mlflow_client(config) as (client, _):
        training = client.get_experiment_by_name(experiment_name(config, "train"))
    server = without_secrets(uri).rstrip("/") if has_server else f"http://localhost:{port}"
    # MLflow starts with pages for language models; a click, unlike a parameter of the address, is remembered.
    print(f"MLflow: {server}/#/experiments (choose Model training there, once)")
    pages = []
    if training:
        for view in ("table", "charts"):
            pages.append(f"{server}/{address(training.experiment_id, view)}")
            print(f"agents, {view}: {pages[-1]}")
    # Without a desktop, the browser would be a terminal's.
    if sys.platform == "darwin" or {"DISPLAY", "WAYLAND_DISPLAY"} & os.environ.keys():
        own = None if has_server else port
        threading.Thread(target=_open, args=(own, pages), daemon=True).start()
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


def _open(port: int | None, pages: Sequence[str]) -> None:
    """Open pages in the desktop's browser, once our own server, if any, answers at its port."""
    answers = port is None
    while not answers:
        time.sleep(0.5)
        with socket.socket() as client:
            answers = client.connect_ex(("127.0.0.1", port)) == 0
    for page in pages:
        webbrowser.open(page)
