"""Task: the dataset of an environment, from whichever source is configured, with a card that describes it."""

import json
import tempfile
import time
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, Self

from singleshot.errors import UserError
from singleshot.io.addresses import is_remote, local_path
from singleshot.io.download import local_or_cached
from singleshot.io.whole_file import sha256_of
from singleshot.job import Event, Job, Metrics, Progress, per_job
from singleshot.rl.data.d4rl import read_d4rl
from singleshot.rl.data.minari import fetch_minari, local_minari, read_minari, write_minari
from singleshot.rl.data.transitions import DataConfig, Episode, Recording, from_episodes
from singleshot.rl.environments import LOCOMOTION, Environment
from singleshot.rl.experts.collect import Draw, Rollout, mix, roll_out
from singleshot.rl.experts.policy import Expert, load_expert

HELD_OUT = 0.1
"""Fraction of the data, its end, on which agents without an environment are judged."""
LIBRARIES = ("gymnasium", "mujoco", "minari", "numpy")
"""Libraries whose versions are recorded in a card, because their physics and formats shape the data."""


@dataclass(frozen=True)
class DatasetParams:
    """Everything that one environment's dataset depends on, besides its input file."""

    name: str
    """Name of the environment."""
    environment: Environment
    data: DataConfig

    @classmethod
    def of(cls, name: str, environment: Environment, data: DataConfig, draw: int | None) -> Self:
        """Make parameters with only the settings that the configured source uses for this environment.

        `draw` is the seed of an expert's rollouts.

        So a change of any other setting does not change this dataset.

        Raises:
            UserError: the source has no data for the environment.
        """
        if data.source == "expert":
            if name not in LOCOMOTION:
                raise UserError(
                    f"{name} has no expert, only {', '.join(LOCOMOTION)} have one; give its data: "
                    "data@offline_rl.data=minari or d4rl"
                )
            return cls(name, environment, replace(data, seed=draw, minari={}, d4rl={}))
        entries: Mapping[str, Any] = getattr(data, data.source)
        if name not in entries:
            raise UserError(f"data.{data.source} has no entry for {name}, only {sorted(entries)}; add one")
        own: dict[str, Any] = {"source": data.source, data.source: {name: entries[name]}}
        return cls(name, environment, DataConfig(**own))

    def inputs(self, expert: Path) -> dict[str, Path]:
        """Files or directories that :func:`prepare_dataset` reads, unless the source is remote."""
        if self.data.source == "expert":
            return {"expert": expert}
        if self.data.source == "minari":
            return {"minari": kept} if (kept := local_minari(self.data.minari[self.name])) else {}
        file = self.data.d4rl[self.name]
        return {} if is_remote(file.url) else {"d4rl": local_path(file.url)}


@dataclass(frozen=True)
class Found:
    """A dataset, and what its card says about its origin."""

    recording: Recording
    origin: str
    sha256: str | None = None
    failures: dict[str, Any] | None = None


@per_job
def prepare_dataset(job: Job) -> Iterator[Event]:
    """Make a job's dataset (:class:`DatasetParams`).

    Inputs: `expert` (safetensors), `minari` (a local dataset's directory) or `d4rl` (a local HDF5 file), as
    :meth:`DatasetParams.inputs` says; remote data need none. The output gets `transitions.safetensors`
    (:meth:`singleshot.rl.data.transitions.Transitions.load`), `card.json`, and for rollouts `minari/`, the
    same episodes as a Minari dataset. If there is no environment, the last tenth of the transitions is in
    `heldout.safetensors` instead. Equal parameters and inputs give equal bytes.

    The card says where the data are from, with the SHA-256 of the expert or the D4RL file; the undiscounted
    returns of complete episodes; what is doubtful; and of rollouts, which episodes of those played failed
    (:mod:`singleshot.rl.experts.collect`), with their returns, and whether the data have them.

    Raises:
        UserError: the source can't be reached, or its data are damaged or another environment's.
    """
    params: DatasetParams = job.params
    data, rolled_out = params.data, params.data.source == "expert"
    found = (yield from _roll_out(job)) if rolled_out else _read(job)
    recording = found.recording
    kept = recording.transitions
    if params.environment.id is None:
        size = len(kept)
        held_out = round(HELD_OUT * size)
        if not 0 < held_out < size:
            raise UserError(
                f"{found.origin}: has {size} transitions, too few to hold a tenth out; give at least 5"
            )
        kept.part(size - held_out, size).save(job.output / "heldout.safetensors")
        kept = kept.part(0, size - held_out)
    kept.save(job.output / "transitions.safetensors")
    returns = _returns(recording, params.environment)
    card = {
        "environment": params.name,
        "source": data.source,
        "origin": found.origin,
        "sha256": found.sha256,
        "environment_id": params.environment.id or "none",
        "action_noise": data.action_noise if rolled_out else None,
        "seed": data.seed if rolled_out else None,
        "transitions": len(recording.transitions),
        "episodes": recording.episodes,  # including those cut short
        "returns": returns,
        "failures": found.failures,
        "doubts": recording.doubts,
        "versions": {library: version(library) for library in LIBRARIES},
    }
    (job.output / "card.json").write_text(json.dumps(card, indent=2) + "\n", encoding="utf-8")
    if returns:
        values = {"return_mean": returns["mean"], "d4rl_score": returns["d4rl_score"]}
        yield Metrics(len(recording.transitions), values)


def _read(job: Job) -> Found:
    """Minari's or D4RL's data."""
    params: DatasetParams = job.params
    if params.data.source == "minari":
        origin = params.data.minari[params.name]
        if kept := job.inputs.get("minari"):
            return Found(read_minari(kept, params.environment), Path(origin).name)
        with tempfile.TemporaryDirectory(dir=job.output) as directory:
            return Found(read_minari(fetch_minari(origin, Path(directory)), params.environment), origin)
    file, setting = params.data.d4rl[params.name], f"offline_rl.data.d4rl.{params.name}.url"
    path, origin, sha256 = local_or_cached(job.inputs.get("d4rl"), file.url, file.sha256, setting)
    return Found(read_d4rl(path, params.environment), origin, sha256)


def _returns(recording: Recording, environment: Environment) -> dict[str, float] | None:
    returns = recording.returns
    if len(returns) == 0:
        return None
    statistics = {name: float(getattr(returns, name)()) for name in ("mean", "std", "min", "max")}
    return {"episodes": len(returns), **statistics, "d4rl_score": environment.score(statistics["mean"])}


def _roll_out(job: Job) -> Generator[Event, None, Found]:
    params: DatasetParams = job.params
    data = params.data
    expert = _expert(job.inputs["expert"], params.name)
    assert data.seed is not None, "DatasetParams.of sets the draw"
    episodes_played = roll_out(expert.act, params.environment, data.action_noise, data.seed)
    draw = Draw(episodes_played, expert.card.deterministic.mean)
    rollouts: Iterator[Rollout] = draw
    if data.failed_episodes is not None:
        rollouts = mix(draw, data.failed_episodes, data.transitions)
    used, episodes, start = set[int](), list[Episode](), time.perf_counter()
    missing = data.transitions
    while missing > 0:
        rollout = next(rollouts)
        used.add(rollout.number)
        episodes.append(rollout.episode.first(missing))
        missing -= len(episodes[-1])
        yield Progress(1 - missing / data.transitions)
    seconds = time.perf_counter() - start
    yield Metrics(data.transitions, {"steps_per_second": data.transitions / seconds})
    recording = from_episodes(episodes)
    recording.transitions.check(job.inputs["expert"])
    algorithm = f"{expert.card.algorithm}, Gaussian action noise {data.action_noise:g}"
    dataset = f"{params.name.lower()}-expert-v0"
    write_minari(episodes, job.output / "minari", dataset, params.environment, algorithm)
    origin = f"{expert.card.algorithm}, {expert.card.steps:,} steps, seed {expert.card.seed}"
    return Found(recording, origin, sha256_of(job.inputs["expert"]), draw.failures(used))


def _expert(path: Path, name: str) -> Expert:
    expert = load_expert(path)
    if expert.card.environment != name:
        raise UserError(f"{path}: an expert for {expert.card.environment}, not {name}; give that one's file")
    return expert
