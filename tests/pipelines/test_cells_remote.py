"""What a store at a URL is for: several machines, each with a directory of its own. S3 is moto's server."""

import dataclasses
import errno
import hashlib
import re
from pathlib import Path

import pytest
from made import MADE
from object_store import Objects
from toy_tasks.work import PreviewParams, SumParams, add_up, show_previews

from pipelines.engine.cells import Cell, CellStore, read_made
from pipelines.engine.execution import ExecutorConfig
from pipelines.engine.remote_cells import RemoteCellStore, open_store
from pipelines.engine.stage import fan_out
from pipelines.engine.sweep import CellsFailedError, Recorder
from singleshot.errors import UserError

CELL = Cell("a/b", add_up, SumParams(1))
FILES = {"result.json": b'{"sum": 1}', "sub/more.bin": b"\0\1" * 1000}
LOCAL = ExecutorConfig(kind="local")


@pytest.fixture
def machine(bucket_url, tmp_path):
    """A machine by its name: the store that it opens."""
    return lambda name: RemoteCellStore(tmp_path / name, bucket_url)


@pytest.fixture
def objects(bucket_url):
    return Objects(bucket_url.rpartition("/")[2])


def let(store, **operations):
    """Do something else at a store's URL than what is asked for."""
    files = store._files

    class Files:
        def __getattr__(self, name):
            return operations.get(name) or getattr(files, name)

    store._files = Files()


def contents(store, cell=CELL):
    directory = store.path(cell.digest)
    return {
        file.relative_to(directory).as_posix(): file.read_bytes()
        for file in directory.rglob("*")
        if file.is_file()
    }


def fetched(store, cell=CELL):
    store.fetch([cell])
    return store.has(cell)


class Watcher(Recorder):
    """Knows which cells were computed, from which step on."""

    def __init__(self, stop_at=None):
        self.stop_at = stop_at
        self.begun, self.steps = [], []

    def started(self, cell):
        self.begun.append(cell.name)

    def metrics(self, cell, step, values):
        self.steps.append(step)
        if step == self.stop_at:
            raise KeyboardInterrupt


def test_another_machine_computes_nothing(machine, tmp_path):
    cells = [Cell(f"sum-{start}", add_up, SumParams(start)) for start in range(3)]
    here, there = machine("here"), machine("there")
    fan_out(cells, LOCAL, here, Watcher())
    watcher = Watcher()
    fan_out(cells, LOCAL, there, watcher)
    assert watcher.begun == []
    for cell in cells:
        assert contents(there, cell) == contents(here, cell)
        there.link(cell, tmp_path / "out")
        assert (tmp_path / "out/result.json").samefile(there.path(cell.digest) / "result.json")
        assert read_made(there.path(cell.digest)) == read_made(here.path(cell.digest))


def test_another_machine_goes_on_where_a_driver_stopped(machine):
    with pytest.raises(KeyboardInterrupt):
        fan_out([CELL], LOCAL, machine("here"), Watcher(stop_at=3))
    watcher, undisturbed = Watcher(), CellStore(machine("undisturbed").root)
    fan_out([CELL], LOCAL, there := machine("there"), watcher)
    assert watcher.steps == [3, 4]
    fan_out([CELL], LOCAL, undisturbed, Watcher())
    result = (undisturbed.path(CELL.digest) / "result.json").read_bytes()
    assert (there.path(CELL.digest) / "result.json").read_bytes() == result


def test_what_a_cell_has_shown_goes_to_the_machine_that_finishes_it(machine, objects):
    cell = Cell("previews", show_previews, PreviewParams(fail_at=2))
    with pytest.raises(CellsFailedError):
        fan_out([cell], LOCAL, machine("here"), Watcher())
    fan_out([cell], LOCAL, there := machine("there"), Watcher())
    shown = {f"previews/{step}.txt": f"step {step}".encode() for step in (1, 2, 3)}
    assert shown.items() <= contents(there, cell).items()
    assert not [key for key in objects if key.startswith("checkpoints/")]


def test_a_cell_without_its_manifest_is_not_there(machine, objects):
    here = machine("here")

    def lose_power(*_: object) -> None:
        raise KeyboardInterrupt

    let(here, pipe_file=lose_power)
    with pytest.raises(KeyboardInterrupt):
        here.commit(CELL, FILES, MADE)
    assert {objects[key] for key in objects} == set(FILES.values())
    assert not fetched(machine("there"))
    # The next run of the driver that was stopped brings there what is missing.
    assert fetched(machine("here"))
    assert fetched(machine("there"))


@pytest.mark.parametrize("damage", ["edit", "remove", "manifest of another kind"])
def test_a_damaged_cell_is_computed_again_and_mended(machine, objects, caplog, damage):
    machine("here").commit(CELL, FILES, MADE)
    key = f"{CELL.digest}/{hashlib.sha256(FILES['sub/more.bin']).hexdigest()}"
    manifest = f"{CELL.digest}/cell.json"
    match damage:
        case "edit":
            objects[key] = b"\0\2" * 1000
        case "remove":
            del objects[key]
        case _:
            objects[manifest] = b'{"files": ["result.json"]}'
    there = machine("there")
    assert not fetched(there)
    assert "is damaged; computing the cell a/b again" in caplog.text
    assert not list((there.root / "staging").iterdir())
    there.commit(CELL, FILES, MADE)
    assert fetched(machine("a third"))


@pytest.mark.parametrize("operation", ["put", "pipe_file"])
def test_two_drivers_that_finish_a_cell_at_once_both_end_well(machine, operation):
    """They compute other bytes, as machines do that round differently."""
    here, there = machine("here"), machine("there")
    original = getattr(here._files, operation)

    def with_the_other_in_between(*arguments):
        there.commit(CELL, {"result.json": b"0.3", "more.json": b"there"}, MADE)
        return original(*arguments)

    let(here, **{operation: with_the_other_in_between})
    here.commit(CELL, {"result.json": b"0.30000000000000004"}, MADE)
    assert here.has(CELL)
    assert there.has(CELL)
    third = machine("a third")
    assert fetched(third)
    assert contents(third) in (contents(here), contents(there))


def test_the_newest_checkpoint_of_both_places_is_taken(machine, objects):
    here, there = machine("here"), machine("there")
    here.save_checkpoint(CELL, 10, b"ten")
    there.save_checkpoint(CELL, 9, b"nine")
    there.fetch([CELL])
    assert (there.checkpoint(CELL).step, there.checkpoint(CELL).state) == (10, b"ten")
    here.save_checkpoint(CELL, 11, b"eleven")
    assert [key.rpartition("/")[2][:3] for key in objects] == ["11-"]
    here.fetch([CELL])
    assert here.checkpoint(CELL).step == 11


def test_a_damaged_checkpoint_is_not_gone_on_from(machine, objects, caplog):
    machine("here").save_checkpoint(CELL, 10, b"ten")
    (key,) = objects
    objects[key] = b"te"
    (there := machine("there")).fetch([CELL])
    assert there.checkpoint(CELL) is None
    assert "damaged" in caplog.text


def test_a_checkpoint_is_found_below_a_prefix_that_is_named_artifacts(tmp_path, bucket_url):
    here, there = (RemoteCellStore(tmp_path / name, f"{bucket_url}/artifacts/cells") for name in "ab")
    here.save_artifact(CELL, "shown.txt", b"shown")
    here.save_checkpoint(CELL, 10, b"ten")
    there.fetch([CELL])
    assert (there.checkpoint(CELL).step, there.checkpoint(CELL).state) == (10, b"ten")
    there.commit(CELL, FILES, MADE)
    assert contents(there)["shown.txt"] == b"shown"


@pytest.mark.parametrize("name", ["../../outside.txt", "{root}/outside.txt", "a/../../outside.txt", ""])
def test_no_name_in_a_shared_store_leads_out_of_its_cell(machine, objects, tmp_path, name):
    """Whoever may write there would write any file of those who fetch."""
    name = name.format(root=tmp_path)
    machine("here").commit(CELL, {"inside.txt": b"x"}, MADE)
    manifest = objects[f"{CELL.digest}/cell.json"]
    objects[f"{CELL.digest}/cell.json"] = manifest.replace(b"inside.txt", name.encode())
    assert not fetched(machine("there"))
    del objects[f"{CELL.digest}/cell.json"]
    key = f"checkpoints/{CELL.digest}/1-{hashlib.sha256(b'state').hexdigest()}"
    objects[key] = b"state"
    objects[f"checkpoints/{CELL.digest}/artifacts/{name or '..'}"] = b"x"
    assert not fetched(machine("a third"))
    assert machine("a third").checkpoint(CELL).state == b"state"
    assert not [file for file in tmp_path.rglob("outside.txt") if file.is_file()]


@pytest.mark.parametrize(
    ("url", "environment"),
    [
        ("s3://no-such-bucket/cells", {}),
        ("{url}", {"AWS_ENDPOINT_URL": "http://127.0.0.1:1"}),
        ("s5://bucket/cells", {}),
        ("s3://", {}),
    ],
)
def test_what_is_wrong_with_a_store_is_said_in_a_line(bucket_url, tmp_path, monkeypatch, url, environment):
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    url = url.format(url=bucket_url)
    monkeypatch.setenv("SINGLESHOT_CELLS", url)
    with pytest.raises(UserError) as told:
        open_store(tmp_path).fetch([CELL])
    assert re.fullmatch(rf"cells at {re.escape(url)}: .*SINGLESHOT_CELLS.*", str(told.value))


def test_a_store_that_goes_away_costs_no_finished_cell(machine):
    here = machine("here")

    def refuse(*_: object) -> None:
        raise PermissionError("Access Denied")

    let(here, put=refuse)
    with pytest.raises(UserError, match="Access Denied"):
        fan_out([CELL], LOCAL, here, Watcher())
    watcher = Watcher()
    fan_out([CELL], LOCAL, machine("here"), watcher)
    assert watcher.begun == []
    assert fetched(machine("there"))


def test_a_missing_input_and_a_full_disk_are_not_blamed_on_the_connection(machine, tmp_path):
    cell = dataclasses.replace(CELL, inputs={"dataset": tmp_path / "gone.csv"})
    with pytest.raises(UserError, match=r"gone\.csv: ") as told:
        machine("here").fetch([cell])
    assert "SINGLESHOT_CELLS" not in str(told.value)
    machine("here").commit(CELL, FILES, MADE)
    there = machine("there")

    def fill_the_disk(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    let(there, get=fill_the_disk)
    # The command line has words of its own for it.
    with pytest.raises(OSError, match="No space left on device"):
        there.fetch([CELL])


@pytest.mark.parametrize("where", ["mine", "mine/cells", "s3:/bucket/cells"])
def test_a_place_of_no_use_is_said_in_a_line_and_nothing_is_made(tmp_path, monkeypatch, where):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").write_text("mine")
    monkeypatch.setenv("SINGLESHOT_CELLS", where)
    with pytest.raises(UserError, match=f"{where}.*SINGLESHOT_CELLS|SINGLESHOT_CELLS={where}: "):
        open_store(tmp_path / "root").prepare()
    assert [file.name for file in tmp_path.iterdir()] == ["mine"]


def test_the_environment_says_where_cells_are_kept(bucket_url, tmp_path, monkeypatch):
    monkeypatch.delenv("SINGLESHOT_CELLS", raising=False)
    assert open_store(tmp_path).root == tmp_path
    monkeypatch.setenv("SINGLESHOT_CELLS", f"file://{tmp_path}/shared disk")
    open_store(tmp_path).commit(CELL, FILES, MADE)
    assert CellStore(tmp_path / "shared disk").has(CELL)
    # An experiment runs in a copy of the checkout, which DVC removes with all that is in it.
    (copy := tmp_path / ".dvc/tmp/exps/tmpabc").mkdir(parents=True)
    monkeypatch.chdir(copy)
    monkeypatch.setenv("SINGLESHOT_CELLS", "shared disk")
    assert open_store(Path(".cells")).root == tmp_path / "shared disk"
    monkeypatch.setenv("SINGLESHOT_CELLS", bucket_url)
    remote = open_store(tmp_path)
    assert remote.root == tmp_path
    assert remote.where == bucket_url
