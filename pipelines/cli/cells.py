"""`cells why`: how a cell of this configuration differs from the cells that the store has."""

import contextlib
import importlib
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NoReturn, cast

from pipelines.catalog.stages import STEPS
from pipelines.config.params import Config, load_config
from pipelines.engine.cells import Cell, CellStore
from pipelines.engine.comparison import differences, nearest
from pipelines.engine.remote_cells import open_store
from pipelines.engine.stage import CELLS, Step
from singleshot.errors import UserError

COMPUTED = "computed"
"""How the explanation of a computed cell begins."""


def explain(name: str) -> None:
    """Print what differs between each cell of that name or step and the most similar cell in the store.

    A name may have dashes for slashes, as those of registered networks have.

    Raises:
        UserError: there is no such cell or step.
    """
    config, store = load_config(), open_store(CELLS)
    planned, unplanned = {}, []
    begins_with_step = [step for step in STEPS if f"{_dashed(name)}-".startswith(f"{step}-")]
    for step in begins_with_step or STEPS:  # each step imports what it computes with, which takes seconds
        try:
            planned[step] = _plan(step, config)
        except UserError as error:
            unplanned.append(f"; {step} cannot be planned yet: {error}")
    found = [
        (step, cell)
        for step, cells in planned.items()
        for cell in cells
        if _dashed(name) in map(_dashed, (step, cell.name, f"{step}/{cell.name}"))
    ]
    if not found:
        whole = {cell.name: f"{step}/{cell.name}" for step, cells in planned.items() for cell in cells}
        near = get_close_matches(name, [*planned, *whole, *whole.values()], cutoff=0)
        there = ", ".join(dict.fromkeys(whole.get(each, each) for each in near))
        raise UserError(
            f"no step has a cell {name!r}; there are {there}, …; a step's name stands for all its cells"
            + "".join(unplanned)
        )
    manifests = store.manifests()
    said = {f"{step}/{cell.name}": list(_explanation(cell, store, manifests)) for step, cell in found}
    named = (f"{cell}: {line}" for cell, lines in said.items() for line in lines)
    for line in _summary(said) if name in STEPS else named:
        print(line)


def _dashed(name: str) -> str:
    """A cell's name as registered networks have it: HalfCheetah-bc-dense-seed-0."""
    return name.replace("/", "-")


def _summary(said: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """How many cells are computed; then, for each difference once, how many cells have it and one of them."""
    missing = {name: lines for name, lines in said.items() if not lines[0].startswith(COMPUTED)}
    yield f"{len(said) - len(missing)} of {len(said)} cells are {COMPUTED} with today's settings and code"
    alike: dict[tuple[str, ...], list[str]] = {}
    for name, (first, *rest) in missing.items():
        alike.setdefault(tuple(rest) or (first,), []).append(name)
    for lines, names in alike.items():
        yield f"{len(names)} not, such as {names[0]}: {missing[names[0]][0]}"
        yield from lines if lines[0].startswith(" ") else ()


class _Planned(Exception):  # noqa: N818  # not an error
    """Raised at the point where a step would start to compute."""


class _Planner:
    """A step that computes nothing."""

    def __init__(self) -> None:
        self.cells: Sequence[Cell] = ()

    def compute(self, cells: Sequence[Cell], _out: Path | None = None, **_options: Any) -> NoReturn:
        """Keep `cells` and end the step."""
        self.cells = cells
        raise _Planned


def _plan(step: str, config: Config) -> Sequence[Cell]:
    """The cells of a step.

    Raises:
        UserError: they depend on a file that is not there yet.
    """
    planner = _Planner()
    with contextlib.suppress(_Planned):
        importlib.import_module(f"pipelines.stages.{step}").run(cast(Step, planner), config)
    return planner.cells


def _explanation(cell: Cell, store: CellStore, manifests: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    try:
        digest = cell.digest
    except UserError as error:
        yield f"not computed, and an input is missing: {error}"
        return
    before = nearest(cell, manifests)
    if before is None:
        yield "not computed, nor any other cell of its task"
        return
    different = differences(cell, before)
    made = before["made"]
    if not different:
        when = f"{made['finished']} in {made['seconds']:g} s"
        yield f"{COMPUTED} {when}; nothing differs ({store.path(digest)})"
        return
    yield f"not computed; the nearest cell, {before['name']} of {made['finished']}, differs from it:"
    for difference in different:
        yield f"  {difference}"
