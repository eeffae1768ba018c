"""What a Minari dataset says about itself: metadata.json, or in Minari 0.4 attributes of the main file."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Ge
from minari.dataset.minari_storage import METADATA_FILE_NAME
from pydantic import BeforeValidator, TypeAdapter, ValidationError

from singleshot.arguments import shown
from singleshot.errors import UserError, in_a_line
from singleshot.rl.data.hdf5 import open_hdf5

MAIN_FILE = "main_data.hdf5"


@dataclass(frozen=True)
class Wrapper:
    """A wrapper around the environment of a recording."""

    name: str


@dataclass(frozen=True)
class EnvironmentSpec:
    """The environment of a recording, as far as it is compared with the one in which agents act."""

    id: str
    kwargs: Mapping[str, Any] | None = None
    max_episode_steps: int | None = None
    additional_wrappers: tuple[Wrapper, ...] | None = None


def _parsed(value: Any) -> Any:
    """Minari keeps the environment as JSON in a text, which is empty where there is none."""
    return json.loads(value) if value and isinstance(value, str | bytes) else value or None


@dataclass(frozen=True)
class Metadata:
    """The metadata that are read here."""

    total_episodes: Annotated[int, Ge(0)] | None = None
    minari_version: str | None = None
    data_format: str | None = None
    env_spec: Annotated[EnvironmentSpec | None, BeforeValidator(_parsed)] = None

    @classmethod
    def of(cls, data: Path) -> "Metadata":
        """The metadata in the folder `data`.

        Raises:
            UserError: they can't be read, or a value is of another kind than Minari's.
        """
        path = data / METADATA_FILE_NAME
        if path.is_file():
            return cls._validated(_read_json(path), str(path))
        return cls._validated(_attributes(data / MAIN_FILE), f"{data / MAIN_FILE}: attributes")

    @classmethod
    def _validated(cls, given: Any, origin: str) -> "Metadata":
        try:
            return TypeAdapter(cls).validate_python(given)
        except ValidationError as error:
            first = error.errors()[0]
            key = ".".join(map(str, first["loc"]))
            what = f"'{key}' is {shown(first['input'])}" if key else "not Minari's metadata"
            reason = first["msg"].removeprefix("Value error, ")
            raise UserError(f"{origin}: {what} ({reason}); correct it, or give another copy of it") from error


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text("utf-8-sig"))  # some editors write a byte order mark
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path}: can't be read ({in_a_line(error)}); give another copy of it") from error


def _attributes(path: Path) -> dict[str, Any]:
    with open_hdf5(path, "give the folder of a Minari dataset") as file:
        found = {each.name: file.attrs[each.name] for each in fields(Metadata) if each.name in file.attrs}
    return {name: value.item() if getattr(value, "size", 0) == 1 else value for name, value in found.items()}
