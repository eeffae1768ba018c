"""`python -m pipelines doctor`: whether params.yaml, the disk, MLflow and Ray are what a run needs."""

import os
import shutil
from collections import Counter
from pathlib import Path

import joblib

from pipelines.config.params import Config, check, load_config
from pipelines.engine.on_ray import cluster_address, ray_cluster
from pipelines.engine.run import ExecutorConfig
from pipelines.engine.tracking import database_file, mlflow_client, tracking_uri
from pipelines.stages import AGENTS, DATASETS
from singleshot.errors import UserError, in_a_line
from singleshot.io.own_process import OwnProcess, ProcessFailed
from singleshot.secrets import without_secrets

AGENT_BYTES, TRANSITION_BYTES, SPARE_BYTES = 3 * 10e6 + 25e6, 3 * 400, 1e9
"""Bytes of a BCQ agent and of a transition in the store of cells, DVC's cache and the workspace, with an
agent's checkpoint; and for MLflow, Ray's logs and new files that are written before old ones are deleted."""
JOIN_SECONDS = 300
"""Time after which joining a cluster is taken for hanging: Ray's import alone takes seconds."""


def print_findings() -> bool:
    """Run all checks, whatever they raise, and print their findings; returns whether there is no problem."""
    checks = {"params.yaml": check_params, "disk": check_disk, "MLflow": check_mlflow, "Ray": check_ray}
    fine = True
    for name, run in checks.items():
        try:
            print(f"ok        {name:13}{run()}")
        except Exception as error:
            print(f"problem   {name:13}{error if isinstance(error, UserError) else in_a_line(error)}")
            fine = False
    return fine


def check_params() -> str:
    """`params.yaml` is valid and up to date with `conf/`."""
    config = check()
    return f"profile {config.profile}, {len(list(config.offline_rl.agents()))} agents, up to date with conf/"


def check_inputs(config: Config) -> None:
    """Check that the files and directories that stages read exist, and that episodes end.

    Raises:
        UserError: one of them does not exist, or an environment can't be made or has no time limit.
    """
    from pipelines.stages.offline_rl import data_cells
    from pipelines.stages.style import image_cells
    from singleshot.rl.environments import known_spaces

    for name, environment in config.offline_rl.environments.items():
        if (spaces := known_spaces(environment)) and spaces.time_limit is None:
            fix = f"so its episodes may never end; set time_limit in conf/environment/{name}.yaml"
            raise UserError(f"offline_rl.environments.{name}: {environment.id} has no time limit, {fix}")
    cells = (*data_cells(config.offline_rl), *image_cells(config.style))
    paths = {path: cell.name for cell in cells for path in cell.inputs.values()}
    paths[Path(config.style.stylize.video)] = "style.stylize.video"
    for path, name in paths.items():
        if not path.exists():
            raise UserError(f"{path}: no such file, for {name}; correct its path with `make params SET=…`")


def check_disk() -> str:
    """There is room for the agents and data of the sweep that are not there yet."""
    from pipelines.engine.stage import CELLS

    offline_rl = load_config().offline_rl
    untrained = sum(not (AGENTS / agent.name).exists() for agent in offline_rl.agents())
    datasets = {DATASETS / offline_rl.data_of(agent) for agent in offline_rl.agents()}
    data = sum(not path.exists() for path in datasets) * offline_rl.data.transitions * TRANSITION_BYTES
    needed = SPARE_BYTES + data + untrained * AGENT_BYTES
    places = [path for path in (Path(), CELLS, Path(".dvc/cache")) if path.exists()]
    free = min(shutil.disk_usage(path).free for path in places)
    found = f"{free / 1e9:.1f} GB free, this sweep takes up to {needed / 1e9:.1f} GB more"
    if free < needed:
        raise UserError(f"{found}; free some, or mount a larger disk at .cells and .dvc/cache")
    return found


def check_mlflow() -> str:
    """The server lets us in, or the database can be used or made."""
    config = load_config().tracking
    uri = tracking_uri(config)
    if (database := database_file(uri)) and not database.exists():
        if not os.access(database.absolute().parent, os.W_OK):
            raise UserError(f"{database} can't be made; set MLFLOW_TRACKING_URI, or tracking.uri in conf/")
        return f"{database} will be made by the first stage"
    with mlflow_client(config) as (client, _):
        client.search_experiments(max_results=1)
    return without_secrets(uri)


def check_ray() -> str:
    """The cluster can be joined."""
    executor = load_config().executor
    if executor.kind == "local":
        return "not used: executor.kind is local"
    address = cluster_address(executor)
    if address is None:
        return f"one will be started here, with {joblib.cpu_count()} cores"
    # Ray asks a cluster that refuses it 20 times by default, a second apart; some refusals end the process.
    with OwnProcess(environment=os.environ | {"RAY_NUM_REDIS_GET_RETRIES": "2"}) as process:
        try:
            nodes = Counter(process.call(JOIN_SECONDS, nodes_of, executor))
        except (UserError, ProcessFailed) as error:
            raise UserError(
                f"{str(error).partition('; `python -m')[0]}; its versions have to be those of "
                "requirements.lock, and RAY_AUTH_TOKEN, or ~/.ray/auth_token, its token"
            ) from error
    return f"{address}: " + "; ".join(f"{number} x {node}" for node, number in nodes.items())


def nodes_of(executor: ExecutorConfig) -> list[str]:
    """Join the cluster as a stage does; the CPUs, GPUs and memory of its nodes."""
    with ray_cluster(executor):
        import ray

        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    return [
        f"{node.get('CPU', 0):g} CPU, {node.get('GPU', 0):g} GPU, {node.get('memory', 0) / 2**30:.1f} GiB"
        for node in nodes
    ]
