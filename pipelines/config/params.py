"""The whole configuration as frozen dataclasses, read from `params.yaml`, which `conf/` composes to."""

import dataclasses
import difflib
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import pydantic
from annotated_types import Ge, Lt, MinLen
from omegaconf import OmegaConf
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException
from pydantic_core import ErrorDetails
from yaml import YAMLError

from pipelines.config.deployment import DeploymentConfig
from pipelines.config.names import PrunerName
from pipelines.config.schema import NAME, groups
from pipelines.config.serving import ServingConfig
from pipelines.config.style import StyleConfig
from pipelines.engine.execution import ExecutorConfig
from pipelines.engine.tracking import TrackingConfig
from tasks.errors import UserError
from tasks.offline_rl.agents import AlgorithmName
from tasks.offline_rl.bc import BCConfig
from tasks.offline_rl.bcq import BCQConfig
from tasks.offline_rl.datasets import DataConfig
from tasks.offline_rl.environments import TaskName
from tasks.offline_rl.evaluation import EvaluationConfig
from tasks.offline_rl.learner import Execution
from tasks.offline_rl.training import TrainingConfig
from tasks.pruning.masks import PruningConfig
from tasks.reporting.statistics import BootstrapConfig
from tasks.sparse.values import ValuesName

PARAMS = Path("params.yaml")
CONF = Path("conf")
COMPOSE_AGAIN = "run `make params PROFILE=…` (or `dvc exp run`) to compose params.yaml again"


@dataclasses.dataclass(frozen=True)
class SweepConfig:
    """The grid of agents: every combination, but sparsity 0 once, as the pruner `dense`."""

    tasks: Annotated[tuple[TaskName, ...], MinLen(1)]
    algorithms: Annotated[tuple[AlgorithmName, ...], MinLen(1)]
    pruners: Annotated[tuple[PrunerName, ...], MinLen(1)]
    sparsities: Annotated[tuple[Annotated[float, Ge(0), Lt(1)], ...], MinLen(1)]
    seeds: Annotated[tuple[Annotated[int, Ge(0)], ...], MinLen(1)]

    def __post_init__(self) -> None:
        if not any(self.sparsities):
            raise UserError("offline_rl.sweep.sparsities is [0], so nothing would be pruned; add one above 0")


@dataclasses.dataclass(frozen=True)
class TrainingConfigs:
    """How long the agents of each algorithm train."""

    bc: TrainingConfig
    bcq: TrainingConfig


@dataclasses.dataclass(frozen=True)
class QuantizationConfig:
    """What rounding values costs: agents of the sweep's highest sparsity are packed so and scored again."""

    values: Annotated[tuple[ValuesName, ...], MinLen(1)]
    """Kinds of values to pack them with; `raw` is what to compare with."""
    seeds: Annotated[int, Ge(1)]
    """How many of the sweep's seeds, the first ones."""


@dataclasses.dataclass(frozen=True)
class OfflineRLConfig:
    """Seed 1: single-shot pruning of offline-RL agents."""

    sweep: SweepConfig
    data: DataConfig
    pruning: PruningConfig
    training: TrainingConfigs
    execution: Execution
    """How pruned agents train: `masked` in full with zeros; `sparse` with their kept weights alone, one agent
    at a time on a CPU; `auto` is `sparse` where that is faster."""
    evaluation: EvaluationConfig
    statistics: BootstrapConfig
    quantization: QuantizationConfig
    bcq: BCQConfig
    bc: BCConfig


@dataclasses.dataclass(frozen=True)
class Config:
    """Everything `params.yaml` says."""

    conf_digest: str
    """SHA-256 of the files of `conf/` that params.yaml was composed from."""
    profile: str
    offline_rl: OfflineRLConfig
    style: StyleConfig
    deployment: DeploymentConfig
    serving: ServingConfig
    executor: ExecutorConfig
    tracking: TrackingConfig


def load_config(path: Path = PARAMS) -> Config:
    """Read and check `params.yaml`.

    Raises:
        UserError: the file cannot be read, or has an unknown, missing or mistyped key.
    """
    return _parse(_read(path, path), path)


def _read(path: Path, origin: Path) -> Any:
    try:
        return OmegaConf.to_container(OmegaConf.load(path), resolve=True, throw_on_missing=True)
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}; {COMPOSE_AGAIN}") from error
    except MissingMandatoryValue as error:
        raise UserError(
            f"{origin}: {error.full_key} has no value; give it one and {COMPOSE_AGAIN}"
        ) from error
    except (YAMLError, OmegaConfBaseException) as error:
        raise UserError(f"{origin}: {' '.join(str(error).split())}") from error


def compose(overrides: Sequence[str], output: Path = PARAMS) -> None:
    """Compose `conf/` to `output`, as `dvc exp run -S OVERRIDE…` does.

    Raises:
        UserError: an override that `conf/` has no place for, or a wrong value.
    """
    from dvc.utils.hydra import compose_and_dump
    from hydra.errors import HydraException

    with tempfile.TemporaryDirectory() as directory:
        composed = Path(directory) / output.name
        try:
            compose_and_dump(str(composed), str(CONF.absolute()), None, "config", str(CONF), list(overrides))
        except (HydraException, OmegaConfBaseException, YAMLError, ValueError) as error:
            if isinstance(error.__cause__, OmegaConfBaseException):
                raise UserError(_no_such_key(str(error.__cause__.full_key))) from error
            # Hydra goes on with advice for its own command line, and with where it searched.
            reason = " ".join(str(error).split()).partition(" Config search path:")[0]
            reason = reason.partition(" To append to your")[0].partition(" See https")[0]
            given = f" (given {' '.join(overrides)})" if overrides else ""
            raise UserError(f"{CONF}: {reason}{given}; docs/configuration.md has the keys") from error
        _parse(_read(composed, CONF), CONF)
        output.write_text(composed.read_text())


def check(path: Path = PARAMS) -> Config:
    """Read `params.yaml` and make sure that it was composed from `conf/` as it is now.

    `dvc repro` reads params.yaml alone, so without this an edit in `conf/` would change nothing and
    nobody would notice.

    Raises:
        UserError: `conf/` was edited since; or what :func:`load_config` raises.
    """
    config = load_config(path)
    with tempfile.TemporaryDirectory() as directory:
        compose([], Path(directory) / "params.yaml")
        current = load_config(Path(directory) / "params.yaml").conf_digest
    if config.conf_digest != current:
        raise UserError(f"{CONF}/ was edited after {path} was composed from it; {COMPOSE_AGAIN}")
    return config


def _no_such_key(name: str) -> str:
    keys = {key.name: key for group in groups(Config) for key in group.keys}
    above = name.rpartition(".")[0]
    if above in keys and keys[above].named:
        return f"{CONF}: no key {name}; add others as +{above}.{NAME}=… ({keys[above].type})"
    for key in keys:
        if key.startswith(f"{above}.{NAME}."):
            return f"{CONF}: no key {name}; add others as +{key}=…"
    known = [*keys, *({key.rpartition(".")[0] for key in keys} - {""})]
    likely = difflib.get_close_matches(name, known, n=1)
    fix = f"did you mean {likely[0]}?" if likely else "docs/configuration.md has the keys"
    return f"{CONF}: no key {name}; {fix}"


def _parse(values: Any, origin: Path) -> Config:
    adapter = pydantic.TypeAdapter(Config)
    try:
        # From JSON's point of view: lists become tuples, but "5" does not become 5.
        return adapter.validate_json(pydantic.TypeAdapter(Any).dump_json(values), strict=True, extra="forbid")
    except pydantic.ValidationError as error:
        problems = "; ".join(_problems(error.errors(), values))
        raise UserError(f"{origin}: {problems}; correct it and {COMPOSE_AGAIN}") from error


def _problems(errors: Sequence[ErrorDetails], values: Any) -> Iterator[str]:
    """What is wrong with each key; pydantic tells every type that a value might have had apart."""
    wrong: dict[tuple[tuple[int | str, ...], str], list[str]] = {}
    for error in errors:
        given = "" if isinstance(error["input"], dict) else f" (it is {error['input']!r})"
        words = error["msg"].removeprefix("Value error, ").replace("Tuple should", "List should")
        wrong.setdefault((_key(error, values), given), []).append(words)
    for (key, given), (words, *others) in wrong.items():
        # A list that is too short only because a value in it was refused.
        if not any(key == other[: len(key)] != other for other, _ in wrong):
            either = " or ".join([words, *(other.removeprefix("Input should be ") for other in others)])
            yield f"{'.'.join(map(str, key))}: {either}{given}"


def _key(error: ErrorDetails, values: Any) -> tuple[int | str, ...]:
    """The value's place, without what pydantic adds: the type that was tried, or `[key]` of a wrong name."""
    location = error["loc"]
    if error["type"] == "missing":
        return location
    for depth, part in enumerate(location):
        try:
            values = values[part]
        except (KeyError, TypeError):
            return location[:depth]
    return location
