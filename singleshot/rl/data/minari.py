"""Minari datasets: writing our own, reading any, and downloading those published by the Farama Foundation."""

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import minari
import numpy as np
from minari.data_collector import EpisodeBuffer
from minari.dataset.minari_dataset import parse_dataset_id
from minari.dataset.minari_storage import METADATA_FILE_NAME, MinariStorage
from numpy.typing import NDArray

from singleshot.errors import UserError, in_a_line
from singleshot.rl.actions import ActionBounds
from singleshot.rl.data.arrays import check_flags, check_values, check_vectors, flat, numbers, vectors
from singleshot.rl.data.doubts import Doubts
from singleshot.rl.data.hdf5 import member, open_hdf5, read_array
from singleshot.rl.data.minari_metadata import MAIN_FILE, EnvironmentSpec, Metadata
from singleshot.rl.data.transitions import Episode, Recording, from_episodes, width_of
from singleshot.rl.environments import Environment, Spaces, known_spaces, make_environment

RENDERING = (
    "render_mode",
    "width",
    "height",
    "camera_id",
    "camera_name",
    "default_camera_config",
    "max_geom",
)
"""Arguments of an environment that change its pictures alone."""
VECTORS = ("observations", "actions")
FLAGS = ("terminations", "truncations")
FIELDS = (*VECTORS, "rewards", *FLAGS)


def write_minari(
    episodes: Iterable[Episode], directory: Path, dataset_id: str, environment: Environment, algorithm: str
) -> None:
    """Write `directory/dataset_id`, which Minari finds with `MINARI_DATASETS_PATH=directory`.

    An episode that doesn't end in a terminal state is marked truncated. Equal episodes give equal bytes.
    """
    made = make_environment(environment)
    data = directory.resolve() / dataset_id / "data"  # Minari joins a relative path to itself
    data.mkdir(parents=True)
    storage = MinariStorage.new(data, made.observation_space, made.action_space, env_spec=made.spec)
    storage.update_metadata(
        {"dataset_id": dataset_id, "minari_version": minari.__version__, "algorithm_name": algorithm}
    )
    storage.update_episodes(_buffer(episode) for episode in episodes)


def read_minari(directory: Path, environment: Environment | None = None) -> Recording:
    """Read the transitions of a Minari dataset from the directory that holds `data/`, or from `data/` itself.

    The path of its main file or of its metadata does, too.

    The dataset may be of another version of Minari, as far as it has episodes in HDF5 or Arrow. Where an
    episode has no observation after its last step, that step is left out, unless it is terminal. Agents will
    act in `environment`; if they act in none, the data alone tell sizes and bounds of actions.

    What is doubtful, but can be used, is logged in one line.

    Raises:
        UserError: the dataset is unreadable, is another environment's, has wrong shapes, or fails
            :meth:`Transitions.check`.
    """
    doubts, spaces = Doubts(directory), known_spaces(environment)
    data = _data_folder(directory)
    metadata = Metadata.of(data)
    _check_version(metadata.minari_version, doubts)
    if environment and spaces:
        _check_environment(metadata.env_spec, directory, environment, spaces, doubts)
    arrow = metadata.data_format == "arrow"
    recorded = _from_arrow(data) if arrow else _from_hdf5(data, metadata.total_episodes or 0)
    episodes = [_episode(arrays, f"{directory}: {name}", spaces, doubts) for name, arrays in recorded]
    if not episodes:
        raise UserError(f"{directory}: holds no episode; give a dataset that has some")
    if len({episode.observations.shape[1:] + episode.actions.shape[1:] for episode in episodes}) > 1:
        raise UserError(f"{directory}: its episodes differ in size; give a dataset of one environment")
    loaded = from_episodes(episodes)
    actions = loaded.transitions.actions
    bounds = spaces.bounds if spaces else ActionBounds.of(actions)
    actions = np.asarray(doubts.clip_actions(bounds.to_unit(actions)), np.float32)
    transitions = replace(loaded.transitions, actions=actions, bounds=None if bounds.is_unit else bounds)
    doubts.check_signal(transitions.rewards, transitions.terminals)
    return replace(loaded, transitions=transitions.check(directory, spaces), doubts=doubts.told())


def _data_folder(directory: Path) -> Path:
    directory = _folder_of(directory)
    for data in (directory / "data", directory):
        if (data / METADATA_FILE_NAME).is_file() or (data / MAIN_FILE).is_file():
            return data
    if not directory.is_dir():
        raise UserError(f"{directory}: no such folder; give the folder of a Minari dataset, or its id")
    inside = sorted(file.parents[1] for file in directory.glob(f"**/data/{METADATA_FILE_NAME}"))
    if inside:
        names = ", ".join(str(dataset.relative_to(directory)) for dataset in inside[:5])
        more = ", …" if len(inside) > 5 else ""
        raise UserError(f"{directory}: a folder of Minari datasets ({names}{more}); give one of them")
    raise UserError(f"{directory}: no Minari dataset, as it has no data/{MAIN_FILE}; give the folder of one")


def _folder_of(given: Path) -> Path:
    """The folder of a dataset whose file is given."""
    return given.parent if given.is_file() and given.name in (MAIN_FILE, METADATA_FILE_NAME) else given


def _check_version(version: str | None, doubts: Doubts) -> None:
    if version not in minari.supported_dataset_versions:
        recorded = version or "an unknown version"
        doubts.add(f"it is of Minari {recorded}, which Minari {minari.__version__} does not know")


def _check_environment(
    spec: EnvironmentSpec | None,
    directory: Path,
    environment: Environment,
    spaces: Spaces,
    doubts: Doubts,
) -> None:
    """Compare the environment of the recording with the one in which agents will act.

    HalfCheetah and Walker2d have equal sizes, so only this tells one from the other.
    """
    if spec is None:
        doubts.add(f"it does not say in which environment it was recorded, so {environment.name} is a guess")
        return
    own = environment.id or ""
    if _without_module(Environment(spec.id).name) != _without_module(Environment(own).name):
        raise UserError(
            f"{directory}: was recorded in {spec.id}, not in {own}; correct offline_rl.data.minari"
        )
    if _without_module(spec.id) != _without_module(own):
        doubts.add(f"it was recorded in {spec.id}, and agents will act in {own}")
    changes = {key: value for key, value in (spec.kwargs or {}).items() if key not in RENDERING}
    if changes != dict(environment.kwargs):
        doubts.add(f"its environment had {', '.join(f'{key}={value!r}' for key, value in changes.items())}")
    limit, recorded = spaces.time_limit, spec.max_episode_steps
    if limit and recorded not in (None, limit):
        doubts.add(f"its time limit was {recorded:,} steps instead of {limit:,}")
    if spec.additional_wrappers:
        names = ", ".join(wrapper.name for wrapper in spec.additional_wrappers)
        doubts.add(f"its environment was wrapped in {names}, which may change rewards and states")


def _without_module(id_: str) -> str:
    """`Hopper-v5` of `my.package:mujoco/Hopper-v5`: an id, or a name without version."""
    return id_.rpartition(":")[2].rpartition("/")[2]


def _from_hdf5(data: Path, total: int) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The arrays of each of at least `total` episodes, with its name."""
    path = data / MAIN_FILE
    with open_hdf5(path, "give another copy of the dataset") as file:
        names = sorted((name for name in file if name.startswith("episode_")), key=_number)
        if len(names) < total:
            raise UserError(f"{path}: has {len(names):,} of {total:,} episodes; give another copy of it")
        for name in names:
            yield name.replace("_", " "), _stored(member(file, name, path), path)


def _stored(episode: h5py.Group | h5py.Dataset, path: Path) -> dict[str, Any]:
    """The arrays of an episode, each of them a mapping if it is several."""
    found = sorted(episode) if isinstance(episode, h5py.Group) else []
    missing = [field for field in FIELDS if field not in found]
    if missing:
        raise UserError(f"{path}: {episode.name[1:]} has no {', '.join(map(repr, missing))}")
    stored = {field: member(episode, field, path) for field in FIELDS}
    return {
        field: read_array(each, path) if isinstance(each, h5py.Dataset) else dict(each)
        for field, each in stored.items()
    }


def _number(name: str) -> int:
    digits = name.removeprefix("episode_")
    return int(digits) if digits.isdecimal() else -1


def _from_arrow(data: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    try:
        storage = MinariStorage.read(data)
        for episode in storage.get_episodes(range(storage.total_episodes)):
            yield f"episode {episode['id']}", episode
    except Exception as error:  # Minari checks nothing, so damaged files may raise any exception
        raise UserError(
            f"{data}: not a whole Minari dataset ({in_a_line(error)}); give another copy of it"
        ) from error


def local_minari(name: str) -> Path | None:
    """The directory of a dataset on this machine; None for a published one that Minari hasn't fetched yet.

    `name` is the directory, its main file, or a published dataset's id, such as `mujoco/hopper/expert-v0`.
    """
    given = _folder_of(Path(name).expanduser())
    if given.is_dir():
        return given
    try:
        parse_dataset_id(name)
    except (ValueError, TypeError):  # TypeError: without a version
        return given
    root = os.environ.get("MINARI_DATASETS_PATH") or "~/.minari/datasets"
    kept = Path(root).expanduser() / name
    return kept if (kept / "data").is_dir() else None


def fetch_minari(dataset_id: str, directory: Path) -> Path:
    """Download a published dataset into `directory` and return its own directory there.

    Raises:
        UserError: the id is unknown, there is no network, or the remote's client is not installed.
    """
    with _datasets_path(directory):
        try:
            minari.download_dataset(dataset_id)
        except ImportError as error:
            raise UserError(
                f"Minari dataset {dataset_id!r}: downloading needs a package ({error})"
            ) from error
        except ValueError as error:
            raise UserError(
                f"Minari dataset {dataset_id!r}: neither a directory here nor to be had ({error}); "
                "`minari list remote` shows what is"
            ) from error
        except Exception as error:  # each remote's client raises its own: httpx's, requests', google's
            raise UserError(
                f"Minari dataset {dataset_id!r}: can't be downloaded ({type(error).__name__}: {error}). "
                "Check the network, give a local Minari directory, or use data.source: expert"
            ) from error
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


def _buffer(episode: Episode) -> EpisodeBuffer:
    last = np.arange(len(episode)) == len(episode) - 1
    return EpisodeBuffer(
        observations=episode.observations,
        actions=episode.actions,
        rewards=episode.rewards,
        terminations=last & episode.terminated,
        truncations=last & (not episode.terminated),
        infos={},
    )


def _episode(stored: Mapping[str, Any], origin: str, spaces: Spaces | None, doubts: Doubts) -> Episode:
    arrays = _arrays(stored, origin, spaces)
    steps = len(arrays["rewards"])
    without_last = len(arrays["observations"]) == steps > 0
    _check_shapes(arrays, origin, spaces, steps + (not without_last))
    for name, values in arrays.items():
        (check_flags if name in FLAGS else check_values)(values, name, origin)
    if any(arrays[name][:-1].any() for name in FLAGS):
        raise UserError(f"{origin}: goes on after its end; split it there")
    limit = spaces.time_limit if spaces else None
    terminated = bool(arrays["terminations"].any())
    truncated = steps == limit if limit else bool(arrays["truncations"].any())
    if terminated and truncated:
        doubts.add("a terminal stands at the time limit, read as a time-out")
        terminated = False
    doubts.check_rewards(arrays["rewards"])
    observations = arrays["observations"]
    if without_last:
        doubts.add("there is no observation after the last step of an episode; that step is left out")
        observations = np.concatenate([observations, observations[-1:]])
    episode = Episode(observations, arrays["actions"], arrays["rewards"], terminated, truncated)
    return episode.first(steps - 1) if without_last and not terminated else episode


def _arrays(stored: Mapping[str, Any], origin: str, spaces: Spaces | None) -> dict[str, NDArray]:
    """An episode's arrays of numbers: vectors are columns, one number a step is flat."""
    for name in FIELDS:
        if isinstance(stored[name], Mapping):
            raise UserError(
                f"{origin}: '{name}' are several arrays ({', '.join(stored[name])}), agents take one; "
                "record with a wrapper such as gymnasium.wrappers.FlattenObservation"
            )
    arrays = {name: np.atleast_1d(numbers(stored[name], name, origin)) for name in FIELDS}
    sizes = (spaces.observation_size, spaces.action_size) if spaces else (None, None)
    for name, size in zip(VECTORS, sizes, strict=True):
        arrays[name] = vectors(arrays[name], size)
        if not spaces:
            check_vectors(arrays[name], name, origin)
    return arrays | {name: flat(arrays[name]) for name in ("rewards", *FLAGS)}


def _check_shapes(arrays: Mapping[str, NDArray], origin: str, spaces: Spaces | None, states: int) -> None:
    """Raise a UserError unless an episode has a row of each array for each step, and this many states."""
    steps = len(arrays["rewards"])
    sizes = [width_of(arrays[name]) for name in VECTORS]
    if spaces:
        sizes = [spaces.observation_size, spaces.action_size]
    shapes = dict.fromkeys(FIELDS, (steps,)) | {
        "observations": (states, sizes[0]),
        "actions": (steps, sizes[1]),
    }
    for name, shape in shapes.items():
        if arrays[name].shape != shape:
            raise UserError(
                f"{origin}: '{name}' has shape {arrays[name].shape}, "
                f"{spaces.name if spaces else 'an episode'} needs {shape}; "
                "is it another environment's dataset?"
            )
