"""Minari datasets: writing our own, reading any, and downloading those published by the Farama Foundation."""

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import minari
import numpy as np
from gymnasium.envs.registration import EnvSpec
from minari.data_collector import EpisodeBuffer

from singleshot.errors import UserError, explained, shown
from singleshot.rl.data.arrays import Doubts, check_steps, open_hdf5, read_arrays
from singleshot.rl.data.transitions import Episode, Recording, from_episodes
from singleshot.rl.environments import Environment, Spaces, known_spaces, make_environment

METADATA = "metadata.json"
SPACES = ("observation_space", "action_space")
FIELDS = ("observations", "actions", "rewards", "terminations", "truncations")


def write_minari(
    episodes: Iterable[Episode], directory: Path, dataset_id: str, environment: Environment, algorithm: str
) -> None:
    """Write `directory/dataset_id`, which Minari finds with `MINARI_DATASETS_PATH=directory`.

    An episode that doesn't end in a terminal state is marked truncated. Equal episodes give equal bytes.
    """
    made, buffers = make_environment(environment), []
    for episode in episodes:
        last = np.arange(len(episode)) == len(episode) - 1
        buffers.append(
            EpisodeBuffer(
                observations=episode.observations,
                actions=episode.actions,
                rewards=episode.rewards,
                terminations=last & episode.terminated,
                truncations=last & (not episode.terminated),
                infos={},
            )
        )
    with _datasets_path(directory):
        minari.create_dataset_from_buffers(
            dataset_id,
            buffers,
            env=made,
            eval_env=made,
            algorithm_name=algorithm,
            author="Singleshot",
            author_email="none",
            code_permalink="none",
            description=f"{environment.name}, played by {algorithm}",
        )


def read_minari(directory: Path, environment: Environment | None = None) -> Recording:
    """Read the transitions of a Minari dataset from the directory that holds `data/`, or from `data/` itself.

    Where an episode has no observation after its last step, that step is left out, unless it is terminal.
    Agents will act in `environment`; if they act in none, the data alone tell sizes and bounds of actions.

    What is doubtful, but can be used, is logged in one line.

    Raises:
        UserError: Minari can't read the dataset, or it is another environment's, has wrong shapes, or fails
            :meth:`Transitions.check`.
    """
    doubts, spaces = Doubts(directory), known_spaces(environment)
    data = _data_folder(directory)
    fix = f"give a copy that Minari {minari.__version__} reads"
    with explained(f"{directory}: Minari can't read it", fix):
        # Where metadata have no spaces, Minari would import the module of the environment that they name.
        metadata = json.loads((data / METADATA).read_text("utf-8"))
        if not set(SPACES) <= metadata.keys():
            raise UserError(f"{directory}: its {METADATA} has no spaces; record it with Minari 0.5 or later")
        if (kept_as := metadata.get("data_format", "hdf5")) != "hdf5":
            raise UserError(f"{directory}: its data_format is {shown(kept_as)}; record or convert it as hdf5")
        for name in SPACES:
            space = json.loads(metadata[name])
            numbers = np.dtype(space["dtype"]).kind in "biuf"
            if not numbers or space["type"] != "Box" or len(space["shape"]) > 1:
                raise UserError(f"{directory}: its {name} is {shown(space)}; agents take vectors")
        with open_hdf5(data / "main_data.hdf5") as main:
            stored = sum(key.startswith("episode_") for key in main)
            if not 0 < (told := metadata["total_episodes"]) == stored:
                has = f"its {METADATA} has {shown(told)} episodes, its data {stored}"
                raise UserError(f"{directory}: {has}; fetch it again")
            dataset = minari.MinariDataset(data)
            if environment and spaces:
                _check_environment(dataset.env_spec, directory, environment, spaces.time_limit, doubts)
            # Minari would read what is recorded beside these, too, and pictures of any format.
            read = read_arrays(main, [f"episode_{i}/{name}" for i in range(told) for name in FIELDS])
        episodes = [
            _episode(
                {name: read[f"episode_{i}/{name}"] for name in FIELDS},
                f"{directory}: episode {i}",
                spaces,
                doubts,
            )
            for i in range(told)
        ]
        loaded = from_episodes(episodes)
    own = loaded.transitions
    doubts.check_rows(own.observations, own.actions, own.rewards, own.terminals, known=spaces is not None)
    actions, bounds = doubts.unit_actions(own.actions, spaces)
    transitions = replace(own, actions=np.asarray(actions, np.float32), bounds=bounds)
    return replace(loaded, transitions=transitions.check(directory, spaces), doubts=doubts.told())


def _data_folder(directory: Path) -> Path:
    for data in (directory / "data", directory):
        if (data / METADATA).is_file():
            return data
    raise UserError(f"{directory}: no Minari dataset, as it has no data/{METADATA}; give the folder of one")


def _check_environment(
    spec: EnvSpec | None, directory: Path, environment: Environment, limit: int | None, doubts: Doubts
) -> None:
    """Compare the environment of the recording with the one in which agents will act.

    HalfCheetah and Walker2d have equal sizes, so only this tells one from the other.
    """
    if spec is None:
        doubts.add(f"it does not say in which environment it was recorded, so {environment.name} is a guess")
        return
    own = environment.id or ""
    if _without_module(Environment(spec.id).name) != _without_module(Environment(own).name):
        raise UserError(f"{directory}: recorded in {spec.id}, not in {own}; correct offline_rl.data.minari")
    if (_without_module(spec.id), spec.kwargs or {}) != (_without_module(own), dict(environment.kwargs)):
        doubts.add(f"it was recorded in {spec.id} with {spec.kwargs or {}}, and agents will act in {own}")
    if wrappers := ", ".join(wrapper.name for wrapper in spec.additional_wrappers):
        doubts.add(f"it was recorded through {wrappers}, and agents will act without")
    if spec.max_episode_steps != limit:
        doubts.add(f"its episodes end after {spec.max_episode_steps} steps, those of agents after {limit}")


def _without_module(id_: str) -> str:
    """`Hopper-v5` of `my.package:mujoco/Hopper-v5`: an id, or a name without version."""
    return id_.rpartition(":")[2].rpartition("/")[2]


def _episode(stored: Mapping[str, Any], origin: str, spaces: Spaces | None, doubts: Doubts) -> Episode:
    arrays = check_steps(stored, origin, spaces)
    observations, steps = arrays["observations"], len(arrays["actions"])
    if any(arrays[name][:-1].any() for name in ("terminations", "truncations")):
        raise UserError(f"{origin}: continues after its end; split it there")
    limit = spaces.time_limit if spaces else None
    terminated = bool(arrays["terminations"].any())
    truncated = steps == limit if limit else bool(arrays["truncations"].any())
    if terminated and truncated:
        doubts.add("a terminal stands at the time limit, read as a time-out")
        terminated = False
    without_last = len(observations) == steps > 0
    if without_last:
        doubts.add("there is no observation after the last step of an episode; that step is left out")
        observations = np.concatenate([observations, observations[-1:]])
    episode = Episode(observations, arrays["actions"], arrays["rewards"], terminated, truncated)
    return episode.first(steps - 1) if without_last and not terminated else episode


def local_minari(name: str) -> Path | None:
    """The directory of a dataset on this machine; None for a published one that Minari hasn't fetched yet.

    `name` is the directory, or a published dataset's id, such as `mujoco/hopper/expert-v0`.
    """
    given = Path(name).expanduser()
    if given.is_dir() or not re.fullmatch(r"[-\w]+(/[-\w]+)*-v\d+", name):
        return given
    kept = Path(os.environ.get("MINARI_DATASETS_PATH") or "~/.minari/datasets").expanduser() / name
    return kept if (kept / "data").is_dir() else None


def fetch_minari(dataset_id: str, directory: Path) -> Path:
    """Download a published dataset into `directory` and return its own directory there.

    Raises:
        UserError: the id is unknown, there is no network, or the remote's client is not installed.
    """
    what = f"Minari dataset {dataset_id!r}: neither a directory here nor available"
    fix = "`minari list remote` shows what is; check the network, or use data.source: expert"
    with _datasets_path(directory), explained(what, fix):
        minari.download_dataset(dataset_id)
    return directory / dataset_id


@contextmanager
def _datasets_path(directory: Path) -> Iterator[None]:
    """Have Minari keep its datasets in `directory` instead of ~/.minari."""
    variable, previous = "MINARI_DATASETS_PATH", os.environ.get("MINARI_DATASETS_PATH")
    os.environ[variable] = str(directory.resolve())
    try:
        yield
    finally:
        if previous is None:
            del os.environ[variable]
        else:
            os.environ[variable] = previous
