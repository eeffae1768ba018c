"""Minari datasets: writing our own, reading any, and downloading those published by the Farama Foundation."""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import gymnasium
import h5py
import minari
import numpy as np
from minari.data_collector import EpisodeBuffer
from minari.dataset.minari_dataset import parse_dataset_id
from minari.dataset.minari_storage import MinariStorage

from singleshot.errors import UserError, in_a_line
from singleshot.rl.data.hdf5 import check_arrays
from singleshot.rl.data.transitions import Dataset, Episode, from_episodes
from singleshot.rl.environments import MujocoTask


def write_minari(
    episodes: Iterable[Episode], directory: Path, dataset_id: str, environment_id: str, algorithm: str
) -> None:
    """Write `directory/dataset_id`, which Minari finds with `MINARI_DATASETS_PATH=directory`.

    An episode that doesn't end in a terminal state is marked truncated. Equal episodes give equal bytes.
    """
    environment = gymnasium.make(environment_id)
    data = directory.resolve() / dataset_id / "data"  # Minari joins a relative path to itself
    data.mkdir(parents=True)
    storage = MinariStorage.new(
        data, environment.observation_space, environment.action_space, env_spec=environment.spec
    )
    storage.update_metadata(
        {"dataset_id": dataset_id, "minari_version": minari.__version__, "algorithm_name": algorithm}
    )
    storage.update_episodes(_buffer(episode) for episode in episodes)


def read_minari(directory: Path, task: MujocoTask) -> Dataset:
    """Read the transitions of a Minari dataset from the directory that holds `data/`, or from `data/` itself.

    Raises:
        UserError: the dataset is unreadable, is another task's, has wrong shapes, or fails
            :meth:`Transitions.check`.
    """
    data = directory / "data" if (directory / "data").is_dir() else directory
    try:
        for file in sorted(data.glob("*.hdf5")):
            with h5py.File(file) as arrays:
                check_arrays(arrays, file)
        dataset = minari.MinariDataset(data)
        _check_environment(dataset, directory, task)
        episodes = [_episode(recorded, directory, task) for recorded in dataset]
    except UserError:
        raise
    except Exception as error:  # Minari checks nothing, so damaged files may raise any exception
        raise UserError(
            f"{directory}: not a whole Minari dataset ({in_a_line(error)}); delete it and fetch or make it "
            "again"
        ) from error
    if not episodes:
        raise UserError(f"{directory}: holds no episode; fetch or make it again")
    loaded = from_episodes(episodes)
    loaded.transitions.check(directory, task)
    return loaded


def is_minari_id(name: str) -> bool:
    """Whether a name has the form of a published dataset's id, such as `mujoco/hopper/expert-v0`."""
    try:
        parse_dataset_id(name)
    except (ValueError, TypeError):  # TypeError: without a version
        return False
    return True


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


def _check_environment(dataset: minari.MinariDataset, directory: Path, task: MujocoTask) -> None:
    """Check the environment's name, because HalfCheetah and Walker2d have equal sizes."""
    environment = dataset.spec.env_spec
    if environment and environment.name != task.name:
        raise UserError(
            f"{directory}: was recorded in {environment.id}, not in {task.name}; "
            f"correct offline_rl.data.minari.{task.name}"
        )


def _episode(recorded: minari.EpisodeData, directory: Path, task: MujocoTask) -> Episode:
    steps = len(recorded.rewards)
    expected = {
        "observations": (steps + 1, task.observation_size),
        "actions": (steps, task.action_size),
        "rewards": (steps,),
        "terminations": (steps,),
        "truncations": (steps,),
    }
    origin = f"{directory}: episode {recorded.id}"
    for name, shape in expected.items():
        found = np.shape(getattr(recorded, name))
        if found != shape:
            raise UserError(
                f"{origin}: '{name}' has shape {found}, {task.name} needs {shape}; fetch it again"
            )
    if (recorded.terminations | recorded.truncations)[:-1].any():
        raise UserError(f"{origin}: goes on after its end; split it there")
    return Episode(
        recorded.observations, recorded.actions, recorded.rewards, bool(np.any(recorded.terminations))
    )
