"""`params.yaml`: composed from `conf/`, read into frozen dataclasses, and checked."""

import dataclasses
import json
import re
import runpy
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pydantic
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from pipelines.config.deployment import DeploymentConfig
from pipelines.config.offline_rl import OfflineRLConfig
from pipelines.config.overrides import read_yaml, readable, refuse_references
from pipelines.config.style import StyleConfig
from pipelines.engine.run import ExecutorConfig
from pipelines.engine.tracking import TrackingConfig
from singleshot.errors import UserError, did_you_mean, explained, in_a_line
from singleshot.serving.config import ServingConfig

CONF = Path("conf")
PARAMS = Path("params.yaml")
RESOLVER = CONF / "hydra_plugins/conf_digest.py"
"""Gives `conf_digest` its value; `dvc exp run` imports it, too."""
COMPOSE_AGAIN = "run `make params PROFILE=…` (or `dvc exp run`) to compose params.yaml again"


@dataclasses.dataclass(frozen=True)
class Config:
    """The whole of `params.yaml`."""

    conf_digest: str
    """SHA-256 of the files of `conf/` from which params.yaml was composed."""
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
    return _parse(read_yaml(path, COMPOSE_AGAIN), path)


def configuration(*overrides: str) -> Config:
    """The configuration that `conf/` composes to with some overrides; raises as :func:`compose`."""
    return compose(overrides, None)


def compose(overrides: Sequence[str], output: Path | None = PARAMS) -> Config:
    """Compose `conf/`, as `dvc exp run -S OVERRIDE…` does, to `output` unless that is None.

    Later overrides take precedence. A value that isn't valid in Hydra's grammar counts as text.

    Raises:
        UserError: an override names a key that `conf/` lacks, or has a wrong value.
    """
    import hydra
    from hydra.errors import HydraException, OverrideParseException

    for path in {*CONF.rglob("*.yaml")} - {*CONF.glob("cluster/*")}:
        with explained(f"{path}: can't be read", "write it in UTF-8"):
            refuse_references(path, path.read_text("utf-8"))
    given = f" with {' '.join(overrides)}" if overrides else ""
    try:
        words = [readable(override) for override in overrides]
        with hydra.initialize_config_dir(str(CONF.absolute()), version_base=None):
            runpy.run_path(str(RESOLVER))  # after Hydra has added its resolvers, which are cleared, too
            composed = hydra.compose("config", words)
        values = OmegaConf.to_container(composed, resolve=True, throw_on_missing=True)
    except OverrideParseException as error:
        raise UserError(
            f"{error.override!r} is not of the form KEY=VALUE; a list is written 'key=[0,1]', in quotes"
        ) from error
    except (HydraException, OmegaConfBaseException, YAMLError, ValueError) as error:
        if overrides and isinstance(error.__cause__, OmegaConfBaseException):
            raise UserError(_no_such_key(str(error.__cause__.full_key))) from error
        # Hydra appends advice for its own command line, and the path it searched.
        reason = re.split(" (?:Config search path:|To append to your|See https)", in_a_line(error))[0]
        raise UserError(f"{CONF}{given}: {reason}; docs/configuration.md lists the keys") from error
    config = _parse(values, f"{CONF}{given}")
    if output:
        output.write_text(OmegaConf.to_yaml(composed, resolve=True), encoding="utf-8")
    return config


def check(path: Path = PARAMS) -> Config:
    """Read `params.yaml` and make sure that it was composed from `conf/` as it is now: an edit had no effect.

    Raises:
        UserError: `conf/` was edited since, or :func:`load_config` raises it.
    """
    config = load_config(path)
    if config.conf_digest != configuration().conf_digest:
        raise UserError(f"{CONF}/ was edited after {path} was composed from it; {COMPOSE_AGAIN}")
    return config


def _no_such_key(name: str) -> str:
    known = set(_keys(dataclasses.asdict(configuration())))
    similar = (
        "" if name in known else did_you_mean(name, known, "docs/configuration.md lists the keys") + "; "
    )
    return f"{CONF}: no key {name}; {similar}one that no file there has is added by +KEY=VALUE"


def _keys(values: Mapping[str, Any], above: str = "") -> Iterator[str]:
    for name, value in values.items():
        yield f"{above}{name}"
        if isinstance(value, Mapping):
            yield from _keys(value, f"{above}{name}.")


def _parse(values: Any, origin: Path | str) -> Config:
    try:
        # With pydantic's rules for JSON, lists become tuples, but "5" does not become 5.
        return pydantic.TypeAdapter(Config).validate_json(json.dumps(values), strict=True, extra="forbid")
    except pydantic.ValidationError as error:
        inside = {each["loc"][:-1] for each in error.errors()}
        problems = [
            f"{_key(each['loc'], values)}: {each['msg'].removeprefix('Value error, ')}"
            + ("" if isinstance(each["input"], dict) else f" (it is {each['input']!r})")
            for each in error.errors()
            if each["type"] != "too_short" or each["loc"] not in inside  # by what is told of its items
        ]
        raise UserError(f"{origin}: {'; '.join(problems)}; correct it and {COMPOSE_AGAIN}") from error


def _key(location: Sequence[int | str], values: Any) -> str:
    """The key of a value, without what pydantic adds to it, such as the type that it tried."""
    key: list[str] = []
    for part in location:
        if isinstance(values, dict):
            values = values.get(part)
        elif isinstance(values, list) and isinstance(part, int):
            values = values[part] if part < len(values) else None  # an item that is missing
        else:
            break
        key.append(str(part))
    return ".".join(key) or "the whole"
