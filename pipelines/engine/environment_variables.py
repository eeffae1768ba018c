"""Settings of libraries by environment variables, which the libraries read when they are imported."""

import os

LONGEST_TEMPORARY = 36
"""Longest TMPDIR, in bytes, below which the paths of Ray's sockets have the 107 bytes that the system allows
(`ray/session_2026-11-25_14-49-28_123456_1234567/sockets/plasma_store`)."""


def set_variables() -> None:
    """Set the variables for MLflow and Ray."""
    os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
    # An unreachable server is reported after some ten seconds rather than after minutes.
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "3")
    os.environ.setdefault("PGCONNECT_TIMEOUT", "10")
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    if len(os.fsencode(os.environ.get("TMPDIR", ""))) > LONGEST_TEMPORARY:  # as batch systems set it
        os.environ.setdefault("RAY_TMPDIR", "/tmp")
    # Without this, a task with num_gpus=0 sees every GPU.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "1")
    # Set so that a cluster with a token can be joined by host:port, and a local one starts without a warning.
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    # The executor's `excludes` are complete; Ray would add to them, with two warnings.
    os.environ["RAY_OVERRIDE_RUNTIME_ENV_DEFAULT_EXCLUDES"] = ""
