"""The stage `data`: the transitions that agents are trained on."""

import json
import logging
from collections.abc import Iterator
from pathlib import Path

from pipelines.catalog.agents import agents, dataset_name, draw_of
from pipelines.catalog.paths import DATASETS, EXPERTS
from pipelines.config.params import Config
from pipelines.engine.cells import Cell
from pipelines.engine.stage import Work, step
from singleshot.io.whole_file import sha256_of
from singleshot.rl.data.transitions import DataConfig
from singleshot.rl.environments import LOCOMOTION
from tasks.prepare_dataset import DatasetParams, prepare_dataset

log = logging.getLogger(__name__)

DIGESTS = EXPERTS / "datasets.sha256"
"""Digests of the datasets that the default settings give, in the format of `sha256sum`."""


@step("prepare_data", tags=("environment", "source"), metrics=("d4rl_score", "return_mean"))
def prepare_data(work: Work, config: Config) -> None:
    """Make each environment's transitions, from rollouts of experts or from Minari's or D4RL's data.

    `d4rl_score`: 0 is a random policy, 100 is D4RL's expert. `return_mean`: the mean return of the episodes
    in the data.
    """
    planned = list(data_cells(config))
    for cell, directory in zip(planned, work.compute(planned, DATASETS), strict=True):
        failures = json.loads((directory / "card.json").read_text("utf-8"))["failures"]
        if failures:
            used, left_out = len(failures["used"]), len(failures["left_out"])
            print(f"{cell.name}: {used} failed episodes in the data, {left_out} left out of it")
        check_digest(cell.params, directory / "transitions.safetensors")


def data_cells(config: Config) -> Iterator[Cell]:
    """The cells of all datasets that agents of the sweep are trained on, by environment and draw."""
    for environment, draw in dict.fromkeys(
        (agent.environment, draw_of(config, agent)) for agent in agents(config)
    ):
        yield data_cell(config, environment, draw)


def data_cell(config: Config, environment: str, draw: int | None) -> Cell:
    """The cell that makes a dataset of an environment."""
    offline_rl = config.offline_rl
    params = DatasetParams.of(environment, offline_rl.environments[environment], offline_rl.data, draw)
    inputs = params.inputs(EXPERTS / f"{environment.lower()}.safetensors")
    tags = {"environment": environment, "source": offline_rl.data.source}
    return Cell(dataset_name(environment, draw), prepare_dataset, params, inputs, tags)


def check_digest(params: DatasetParams, dataset: Path) -> None:
    """Warn if a dataset of the default settings is not the one whose digest is in the repository."""
    if params != DatasetParams(
        params.name, LOCOMOTION.get(params.name, params.environment), DataConfig(seed=params.data.seed)
    ):
        return
    lines = (line.split() for line in DIGESTS.read_text("utf-8").splitlines())
    known = {path: digest for digest, path in lines}.get(dataset.as_posix())
    found = sha256_of(dataset)
    if known and found != known:
        log.warning(
            "%s: its SHA-256 is %s…, not %s… as in %s: MuJoCo or NumPy compute otherwise here, and scores "
            "may differ from the documented ones",
            *(dataset, found[:8], known[:8], DIGESTS),
        )


STEPS = (prepare_data,)
