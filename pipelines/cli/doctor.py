"""`python -m pipelines doctor`: checks what a run needs and the failing command would not explain.

Each check is one function without side effects. If it raises an exception, the exception is printed as a
problem, and the other checks go on.
"""

import collections
import functools
import importlib.metadata
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import joblib
import psutil

from pipelines.engine.execution import ExecutorConfig, first_line
from pipelines.engine.ray_cluster import check_joinable, cluster_address, ray_cluster
from pipelines.engine.tracking import TrackingConfig, check_answers, tracking_uri
from singleshot.errors import UserError

if TYPE_CHECKING:
    from packaging.requirements import Requirement
    from sqlalchemy import URL

    from pipelines.config.params import Config

LOCK = Path("requirements.lock")
DVC_CACHE = Path(".dvc/cache")

AGENT_BYTES = 10e6
"""Bytes of a BCQ agent: 1.5 million weights in single precision, with masks (7.7 MB for Hopper)."""
TRANSITION_BYTES = 400
"""Bytes of a transition of HalfCheetah: 165 as safetensors, some 200 in the Minari copy."""
COPIES = 3
"""Copies of each result: in the store of cells, DVC's cache and the workspace."""
CHECKPOINT_BYTES = 25e6
"""Bytes of an agent in training: weights, target networks and Adam's two moments."""
SPARE_BYTES = 1e9
"""Bytes for MLflow, Ray's logs and new files that are written before old ones are deleted."""

NETWORK_SECONDS = 5
PROCESS_SECONDS = 300
"""Time after which a separate process is taken for hanging. It first imports Ray, MLflow or MuJoCo, which
takes 2 to 10 s on two busy cores."""


@dataclass(frozen=True)
class Finding:
    """The result of a check."""

    state: Literal["ok", "warning", "problem"]
    found: str
    fix: str = ""
    """The remedy, unless `found` names it."""


def diagnose() -> Iterator[tuple[str, Finding]]:
    """The name and finding of every check, one after another."""
    config = _read_config()
    # If params.yaml cannot be read, the other checks use the defaults of conf/.
    executor = config.executor if config else ExecutorConfig()
    tracking = config.tracking if config else TrackingConfig()
    checks: Mapping[str, Callable[[], Finding]] = {
        "packages": check_packages,
        "PyTorch": functools.partial(check_torch, executor),
        "params.yaml": check_params,
        "disk": functools.partial(check_disk, config),
        "MLflow": functools.partial(check_mlflow, tracking),
        "Ray": functools.partial(check_ray, executor),
    }
    for name, check in checks.items():
        yield name, examine(check)


def examine(check: Callable[[], Finding]) -> Finding:
    """The finding of `check`; a problem if it raises."""
    try:
        return check()
    except UserError as error:
        return Finding("problem", str(error))
    except ImportError as error:
        return Finding("problem", str(error), "make install")
    except Exception as error:
        return Finding("problem", f"{type(error).__name__}: {first_line(error)}")


def print_findings() -> bool:
    """Run all checks and print their findings; returns whether there is no problem."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    # A pipe has no width, and in 80 columns the commands of the fixes would be broken.
    console = Console() if sys.stdout.isatty() else Console(width=160)
    colours = {"ok": "green", "warning": "yellow", "problem": "red"}
    states = collections.Counter[str]()
    for name, finding in diagnose():
        states[finding.state] += 1
        row = Table.grid(padding=(0, 2))
        row.add_column(width=len("warning"))
        row.add_column(width=len("params.yaml"))
        row.add_column(overflow="fold")
        row.add_row(Text(finding.state, colours[finding.state]), name, Text(finding.found))
        if finding.fix:
            row.add_row("", "", Text(f"fix: {finding.fix}"))
        console.print(row)
    console.print(f"problems: {states['problem']}, warnings: {states['warning']}", highlight=False)
    return not states["problem"]


def check_packages(lock: Path = LOCK) -> Finding:
    """Compare installed versions with the lock file.

    Packages that are in no lock file are not a problem: users may add packages, and `make clean` would be the
    only remedy. But they are listed, since plug-ins (of DVC, MLflow, pytest, fsspec) are loaded although no
    code imports them.
    """
    from packaging.utils import canonicalize_name

    requirements = _read_lock(lock)
    wrong = []
    for requirement in requirements:
        try:
            installed = importlib.metadata.version(requirement.name)
        except importlib.metadata.PackageNotFoundError:
            wrong.append(f"{requirement.name} is missing")
            continue
        if not requirement.specifier.contains(installed, prereleases=True):
            wrong.append(f"{requirement.name} is {installed}, locked {requirement.specifier}")
    if wrong:
        return Finding(
            "problem", "; ".join(wrong), "make install (if that has nothing to do: make clean first)"
        )
    more = [path for path in lock.parent.glob("requirements*.lock") if path != lock]
    locked = {canonicalize_name(each.name) for own in (requirements, *map(_read_lock, more)) for each in own}
    here = {canonicalize_name(each.name) for each in importlib.metadata.distributions() if each.name}
    others = ", ".join(sorted(here - locked - {"pip", "setuptools"}))  # every environment has these
    found = f"the {len(requirements)} of {lock}, at its versions"
    return Finding("ok", f"{found}; in no lock: {others}" if others else found)


def _read_lock(lock: Path) -> "list[Requirement]":
    from packaging.requirements import Requirement

    lines = [line for line in lock.read_text("utf-8").splitlines() if line and line[0] not in " #"]
    return [Requirement(line.rstrip(" \\")) for line in lines]


def check_torch(executor: ExecutorConfig) -> Finding:
    """What PyTorch computes on here; having no GPU is fine."""
    import torch

    gpus = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    devices = [f"{gpu.name} with {gpu.total_memory / 2**30:.0f} GiB" for gpu in gpus]
    found = f"{torch.__version__}, {', '.join(devices) or 'no CUDA device'}; {joblib.cpu_count()} cores"
    if gpus:
        return Finding("ok", found)
    if Path("/proc/driver/nvidia/version").exists():
        fix = "install a PyTorch built for the CUDA version that `nvidia-smi` shows, or a newer driver"
        return Finding("warning", f"{found}, though an NVIDIA driver is here", fix)
    if executor.device == "cuda" and cluster_address(executor) is None:
        found = f"{found}, and executor.device is cuda"
        return Finding("problem", found, "set executor.device to auto or cpu in conf/")
    return Finding("ok", found)


def check_params() -> Finding:
    """Check that `params.yaml` is valid and up to date with `conf/`."""
    from pipelines.config.params import check

    config = check()
    found = f"profile {config.profile}, {_agents(config)[0]} agents, up to date with conf/"
    return Finding("ok", found)


def check_disk(config: "Config | None") -> Finding:
    """Check that there is room for what is still to be computed of the sweep in `params.yaml`."""
    from pipelines.engine.stage import CELLS

    stores = [path for path in (Path(), CELLS, DVC_CACHE) if path.exists()]
    free = min(shutil.disk_usage(path).free for path in stores)
    needed = SPARE_BYTES + (_bytes_to_come(config) if config else 0)
    found = f"{free / 1e9:.1f} GB free, this sweep takes up to {needed / 1e9:.1f} GB more"
    if free < needed:
        fix = "free some space, mount a larger disk at .cells and .dvc/cache, or shorten the sweep in conf/"
        return Finding("problem", found, fix)
    return Finding("ok", found)


def check_mlflow(config: TrackingConfig) -> Finding:
    """Check that the tracking server answers and lets us in, or that the database can be written or made."""
    from sqlalchemy import make_url
    from sqlalchemy.exc import ArgumentError

    uri = tracking_uri(config)
    if uri.startswith(("http://", "https://")):
        return _check_server(uri)
    try:
        url = make_url(uri)
    except ArgumentError:
        return Finding(
            "problem", f"{uri}: neither a server nor a database", f"{_SET_URI} sqlite:///mlflow.db"
        )
    if url.get_backend_name() == "sqlite" and (finding := _check_file(url)):
        return finding
    return _check_schema(url)


_SET_URI = "set MLFLOW_TRACKING_URI, or tracking.uri in conf/, to"


def _check_server(uri: str) -> Finding:
    import requests

    try:
        check_answers(uri)
    except requests.RequestException as error:
        fix = f"start it (`mlflow server`), or {_SET_URI} where it is"
        return Finding("problem", f"{uri}: nothing answers ({type(error).__name__})", fix)
    # MLflow's own command uses the credentials and certificates with which runs would be recorded.
    limits = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0", "MLFLOW_HTTP_REQUEST_TIMEOUT": str(NETWORK_SECONDS)}
    command = ["-m", "mlflow", "experiments", "search"]
    done = _python(command, MLFLOW_TRACKING_URI=uri, MLFLOW_DISABLE_TELEMETRY="true", **limits)
    if done.returncode == 0:
        return Finding("ok", f"{uri}: answers and lets us in")
    reason = _last_line(done.stderr)
    if "Invalid Host header" in reason:
        fix = f"start it with `mlflow server --allowed-hosts {uri.split('/')[2]} …`: it takes only such names"
    elif "CERTIFICATE_VERIFY_FAILED" in done.stderr:
        reason = "its certificate is not trusted here"
        fix = "set MLFLOW_TRACKING_SERVER_CERT_PATH to a file with the certificate of who signed it"
    elif "error code 401" in reason or "error code 403" in reason:
        fix = "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN"
    else:
        fix = f"look at the server's log, or {_SET_URI} another"
    return Finding("problem", f"{uri}: {reason}", fix)


def _check_file(url: "URL") -> Finding | None:
    """The finding for an SQLite file that cannot be written or does not exist; None if it can be written."""
    path = Path(url.database or "")
    try:
        if not path.exists() or path.stat().st_size == 0:
            tempfile.TemporaryFile(dir=path.parent).close()
            return Finding("ok", f"{path} will be made by the first stage")
        with closing(sqlite3.connect(path, timeout=NETWORK_SECONDS, isolation_level=None)) as connection:
            connection.execute("BEGIN IMMEDIATE")
    except OSError as error:
        fix = f"make {path.parent} a folder you can write in, or {_SET_URI} a database elsewhere"
        return Finding("problem", f"{path} cannot be made: {error.strerror}", fix)
    except sqlite3.Error as error:
        fix = f"see that nothing else holds it and you may write it, or {_SET_URI} another database"
        return Finding("problem", f"{path}: {error}", fix)
    return None


def _check_schema(url: "URL") -> Finding:
    """Check the database's schema without MLflow itself, which would make or migrate the tables."""
    from alembic.migration import MigrationContext
    from alembic.script import ScriptDirectory
    from sqlalchemy import create_engine, inspect

    mlflow = importlib.metadata.distribution("mlflow")
    newest = ScriptDirectory(str(mlflow.locate_file("mlflow/store/db_migrations"))).get_current_head()
    engine = create_engine(url)
    with engine.connect() as connection:
        current = MigrationContext.configure(connection).get_current_revision()
        tables = inspect(connection).get_table_names()
    engine.dispose()
    where = url.render_as_string()  # hides a password
    if current == newest:
        return Finding("ok", f"{where}, schema as MLflow {mlflow.version} has it")
    if not tables:
        return Finding("ok", f"{where}: its tables will be made by the first stage")
    if current is None:
        return Finding("problem", f"{where}: a database, but not MLflow's", f"{_SET_URI} another")
    fix = f"back it up, then `mlflow db upgrade {where}`; if a newer MLflow made it, {_SET_URI} another"
    return Finding("problem", f"{where}: schema {current}, MLflow {mlflow.version} has {newest}", fix)


def check_ray(executor: ExecutorConfig) -> Finding:
    """Check that the cluster can be joined, and has a node that can run a cell."""
    if executor.kind == "local":
        return Finding("ok", "not used: executor.kind is local")
    address = cluster_address(executor)
    if address is None:
        return _check_nodes(executor, "one to be started here", [_this_node()])
    try:
        check_joinable(address)
    except ConnectionError as error:
        return Finding("problem", f"{address}: {error}")
    # Ray asks a cluster that refuses it 20 times by default, a second apart.
    done = _call(join_ray, RAY_ADDRESS=address, RAY_NUM_REDIS_GET_RETRIES="2")
    if done.returncode:
        return explain_ray(address, done.stderr)
    return _check_nodes(executor, f"{address}, same versions", json.loads(_last_line(done.stdout)))


def _check_nodes(executor: ExecutorConfig, where: str, nodes: Sequence[Mapping[str, float]]) -> Finding:
    """Check that a node has the resources of a cell: Ray would wait for them for ever."""
    gpus = 0 if executor.device == "cpu" or executor.num_gpus == "auto" else executor.num_gpus
    asked = {"CPU": executor.num_cpus, "GPU": gpus, "memory": (executor.memory_gb or 0) * 2**30}
    found = f"{importlib.metadata.version('ray')}, {where}: {_describe(nodes)}"
    if any(all(node.get(name, 0) >= amount for name, amount in asked.items()) for node in nodes):
        return Finding("ok", found)
    fix = "lower executor.num_cpus, num_gpus or memory_gb in conf/, or add a larger node"
    return Finding("problem", f"{found}; no node has the {_describe([asked])} that a cell asks for", fix)


def join_ray() -> None:
    """Join the cluster as a stage does, and print the resources of its nodes as JSON."""
    with ray_cluster(ExecutorConfig()):
        import ray

        print(json.dumps([node["Resources"] for node in ray.nodes() if node["Alive"]]))


def explain_ray(address: str, log: str) -> Finding:
    """The finding for a cluster that answers but could not be joined; `log` is what Ray wrote."""
    if "InvalidAuthToken" in log or "authentication token" in log:
        fix = (
            "put the cluster's token (its ~/.ray/auth_token, or what `ray get-auth-token` prints there) into "
            "RAY_AUTH_TOKEN or this ~/.ray/auth_token, with RAY_AUTH_MODE=token"
        )
        return Finding("problem", f"{address}: the cluster does not take this token", fix)
    if "Version mismatch" in log:
        lines = [line.strip() for line in log.partition("Version mismatch:")[2].splitlines()]
        theirs, ours = (" and ".join(lines[start : start + 2]) for start in (1, 4))
        fix = "start the cluster with the versions of requirements.lock, as the Dockerfile has them"
        return Finding("problem", f"{address} has {theirs}, here is {ours}", fix)
    fix = "see that this machine is a node of it, and Ray's ports are open between all nodes"
    return Finding("problem", f"{address}: {_last_line(log)}", fix)


def _read_config() -> "Config | None":
    """The configuration; None if params.yaml cannot be read, which :func:`check_params` reports."""
    try:
        from pipelines.config.params import load_config

        return load_config()
    except Exception:
        return None


def _agents(config: "Config") -> tuple[int, int]:
    """How many agents the sweep has, and how many of them are still to be trained."""
    from pipelines.catalog.agents import agents, model_of

    models = [model_of(agent) for agent in agents(config)]
    return len(models), sum(not model.exists() for model in models)


def _bytes_to_come(config: "Config") -> float:
    """The bytes that the rest of the sweep adds to the disk."""
    from pipelines.catalog.agents import agents, dataset_of

    datasets = {dataset_of(config, agent) for agent in agents(config)}
    missing = sum(not dataset.exists() for dataset in datasets)
    data = missing * config.offline_rl.data.transitions * TRANSITION_BYTES
    untrained = _agents(config)[1]
    # At worst, all agents train at once, as one stack.
    return COPIES * (data + untrained * AGENT_BYTES) + untrained * CHECKPOINT_BYTES


def _this_node() -> dict[str, float]:
    import torch

    memory = psutil.virtual_memory().total
    return {"CPU": joblib.cpu_count(), "GPU": torch.cuda.device_count(), "memory": memory}


def _describe(nodes: Sequence[Mapping[str, float]]) -> str:
    amounts = [[node.get("CPU", 0), node.get("GPU", 0), node.get("memory", 0) / 2**30] for node in nodes]
    counts = collections.Counter("{:g} CPU, {:g} GPU, {:.1f} GiB".format(*amount) for amount in amounts)
    return "; ".join(f"{count} × {node}" if count > 1 else node for node, count in counts.items())


def _call(function: Callable[[], None], **environment: str) -> subprocess.CompletedProcess[str]:
    """Call a function of this module in a separate process, so that a crash or hang stays there."""
    return _python(["-c", f"import {__name__} as doctor; doctor.{function.__name__}()"], **environment)


def _python(arguments: Sequence[str], **environment: str) -> subprocess.CompletedProcess[str]:
    """Run Python with some more environment variables."""
    command, env = [sys.executable, *arguments], os.environ | environment
    try:
        return subprocess.run(command, env=env, capture_output=True, text=True, timeout=PROCESS_SECONDS)
    except subprocess.TimeoutExpired as error:
        raise UserError(f"no answer within {PROCESS_SECONDS} s") from error


def _last_line(text: str) -> str:
    return text.strip().rpartition("\n")[2]
