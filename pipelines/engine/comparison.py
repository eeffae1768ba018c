"""Why a cell has to be computed: its differences from a cell that the store has."""

import dataclasses
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from textwrap import shorten
from typing import Any

from pipelines.engine.cells import Cell
from singleshot.secrets import without_secrets

SAID = 3
"""Number of reasons in the line that a run prints."""
LONGEST = 120
"""Greatest length of such a reason, in characters."""


@dataclasses.dataclass(frozen=True)
class Difference:
    """One thing that the digests of two cells cover and that differs between the cells."""

    kind: str
    """`task`, `params`, `inputs`, `source` or `packages`, as in a manifest."""
    name: str
    before: str | None
    """None if there was no such thing."""
    now: str | None
    """None if there is no such thing any more."""

    def __str__(self) -> str:
        match self.kind:
            case "params":
                return f"parameter {self.name} is {_word(self.now)}, was {_word(self.before)}"
            case "packages":
                return f"package {self.name} is {_word(self.now)}, was {_word(self.before)}"
            case "source":
                return f"source file {_file_of(self.name)} {self._change('was edited')}"
            case "inputs":
                return f"input {self.name} {self._change('has another content')}"
        return f"the {self.kind} is {_word(self.now)}, was {_word(self.before)}"

    def _change(self, otherwise: str) -> str:
        if self.before is None:
            return "is new"
        return "is gone" if self.now is None else otherwise


def differences(cell: Cell, manifest: Mapping[str, Any]) -> list[Difference]:
    """The differences between `cell` and the finished cell of `manifest`; none if they are the same."""
    old = dict(_flat({key: manifest.get(key) for key in cell.identity}))
    new = dict(_flat(json.loads(without_secrets(json.dumps(cell.identity)))))  # as in a manifest
    return [
        Difference(kind, ".".join(name), old.get((kind, *name)), new.get((kind, *name)))
        for kind, *name in sorted(old.keys() | new.keys())
        if old.get((kind, *name)) != new.get((kind, *name))
    ]


def nearest(cell: Cell, manifests: Iterable[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The finished cell of the same task that has most in common with `cell`.

    An equal cell comes first, then one of the same name, then the one with the fewest differences, then the
    newest.
    """

    def distance(manifest: Mapping[str, Any]) -> tuple[bool, bool, int]:
        different = len(differences(cell, manifest))
        return different > 0, manifest["name"] != cell.name, different

    same = [manifest for manifest in manifests if manifest.get("task") == cell.identity["task"]]
    newest_first = sorted(same, key=lambda manifest: manifest["made"]["finished"], reverse=True)
    return min(newest_first, key=distance, default=None)


def reasons(missing: Sequence[Cell], manifests: Sequence[Mapping[str, Any]]) -> str:
    """A line that says how many of `missing` were computed before, and why they are computed again.

    It is empty if none of them was computed before.
    """
    again = 0
    counted: Counter[str] = Counter()
    for cell in missing:
        before = nearest(cell, (manifest for manifest in manifests if manifest["name"] == cell.name))
        if before is not None:
            again += 1
            counted.update(shorten(str(each), LONGEST) for each in differences(cell, before))
    if not again:
        return ""
    said = [reason for reason, _ in counted.most_common(SAID)]
    more = len(counted) - len(said)
    others = f"; and {more} more differences (python -m pipelines cells why STEP)" if more else ""
    return f"computed before, and to compute again: {again}, as {'; '.join(said)}{others}"


def _flat(record: Any, *at: str) -> Iterable[tuple[tuple[str, ...], str]]:
    if isinstance(record, dict):
        for key, value in record.items():
            yield from _flat(value, *at, key)
    else:
        yield at, record if isinstance(record, str) else json.dumps(record, sort_keys=True)


def _file_of(module: str) -> str:
    path = module.replace(".", "/")
    return f"{path}/__init__.py" if Path(path).is_dir() else f"{path}.py"


def _word(value: str | None) -> str:
    return "not there" if value is None else value
