"""What a store at a URL is for: several machines, each with a directory of its own. S3 is moto's server."""

import dataclasses
import errno
import io
import re
import shutil
import zipfile
from pathlib import Path
from random import Random

import pytest
from made import MADE
from object_store import Objects
from toy_tasks.work import PreviewParams, SumParams, add_up, show_previews

from pipelines.engine.cells import Cell, CellStore, checkpoint_name
from pipelines.engine.remote_cells import RemoteCellStore, open_store
from pipelines.engine.run import CellsFailedError, ExecutorConfig, Recorder
from pipelines.engine.stage import fan_out
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


def refusing(error):
    def refuse(*_: object) -> None:
        raise error

    return refuse


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


def test_another_machine_goes_on_where_a_driver_stopped_and_a_third_computes_nothing(machine, objects):
    with pytest.raises(KeyboardInterrupt):
        fan_out([CELL], LOCAL, machine("here"), Watcher(stop_at=3))
    watcher, undisturbed = Watcher(), CellStore(machine("undisturbed").root)
    fan_out([CELL], LOCAL, there := machine("there"), watcher)
    assert watcher.steps == [3, 4]
    fan_out([CELL], LOCAL, undisturbed, Watcher())
    assert contents(there)["result.json"] == contents(undisturbed)["result.json"]
    assert list(objects) == [f"{CELL.digest}.zip"]
    third, watcher = machine("a third"), Watcher()
    fan_out([CELL], LOCAL, third, watcher)
    assert watcher.begun == []
    assert contents(third) == contents(there)


def test_what_a_cell_has_shown_goes_to_the_machine_that_finishes_it(machine):
    cell = Cell("previews", show_previews, PreviewParams(fail_at=2))
    with pytest.raises(CellsFailedError):
        fan_out([cell], LOCAL, machine("here"), Watcher())
    fan_out([cell], LOCAL, there := machine("there"), Watcher())
    shown = {f"previews/{step}.txt": f"step {step}".encode() for step in (1, 2, 3)}
    assert shown.items() <= contents(there, cell).items()


def edited(packed, name, content):
    """A zip with another member in the place of one."""
    made = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(packed)) as old, zipfile.ZipFile(made, "w") as new:
        for member in old.namelist():
            new.writestr(member, content if member == name else old.read(member))
    return made.getvalue()


@pytest.mark.parametrize(
    "damage",
    [
        lambda packed: packed[:100],
        lambda packed: packed.replace(b"\0\1\0\1", b"\0\2\0\2"),
        lambda packed: edited(packed, "sub/more.bin", b"\0\2" * 1000),
        lambda packed: edited(packed, "cell.json", b'{"files": ["result.json"]}'),
    ],
    ids=["cut", "changed", "another file", "manifest of another kind"],
)
def test_a_damaged_cell_is_computed_again_and_mended(machine, objects, caplog, damage):
    machine("here").commit(CELL, FILES, MADE)
    (key,) = objects
    objects[key] = damage(objects[key])
    there = machine("there")
    assert not fetched(there)
    assert "is damaged" in caplog.text
    assert not list((there.root / "staging").iterdir())
    there.commit(CELL, FILES, MADE)
    assert fetched(machine("a third"))


def test_two_drivers_that_finish_a_cell_at_once_both_end_well(machine):
    """They compute other bytes, as machines do that round differently."""
    here, there = machine("here"), machine("there")
    put = here._files.put_file

    def with_the_other_in_between(*arguments):
        there.commit(CELL, {"result.json": b"0.3", "more.json": b"there"}, MADE)
        return put(*arguments)

    let(here, put_file=with_the_other_in_between)
    here.commit(CELL, {"result.json": b"0.30000000000000004"}, MADE)
    assert here.has(CELL)
    assert there.has(CELL)
    third = machine("a third")
    assert fetched(third)
    assert contents(third) in (contents(here), contents(there))


def test_the_newest_checkpoint_of_both_places_is_taken_unless_it_is_damaged(machine, objects, caplog):
    here, there = machine("here"), machine("there")
    here.save_checkpoint(CELL, 10, b"ten")
    there.save_checkpoint(CELL, 9, b"nine")
    there.fetch([CELL])
    assert (there.checkpoint(CELL).step, there.checkpoint(CELL).state) == (10, b"ten")
    here.save_checkpoint(CELL, 11, b"eleven")
    (key,) = objects
    assert key.rpartition("/")[2].startswith("11-")
    here.fetch([CELL])
    assert here.checkpoint(CELL).step == 11
    good, place = objects[key], key.rpartition("/")[0]
    objects[key] = good[:-10]
    there.fetch([CELL])
    assert there.checkpoint(CELL).step == 10
    assert "damaged" in caplog.text
    objects[key] = good
    for name in (f"{place}/²-x.zip", f"{place}/{checkpoint_name(12, b'twelve')}.zip"):
        objects[name] = good  # which has no state of that name
    third = machine("a third")
    third.fetch([CELL])
    assert third.checkpoint(CELL).step == 11


def test_any_bytes_in_the_place_of_a_cell_are_damage_and_no_fault_of_the_connection(machine, objects):
    """Of random changes, some make a zip that is encrypted, of another version, or packed in another way."""
    machine("here").commit(CELL, {"sub/result.json": b"0123456789" * 20}, MADE)
    (key,) = objects
    whole, random = objects[key], Random(0)
    with zipfile.ZipFile(packed := io.BytesIO(), "w") as both:
        both.writestr("a", b"a file")
        both.writestr("a/b", b"and a folder")
    damaged = [packed.getvalue()]
    for position in range(0, len(whole), 11):
        damaged.append(whole[:position] + random.randbytes(1) + whole[position + 1 :])
    there = machine("there")
    for content in damaged:
        objects[key] = content
        if fetched(there):
            assert contents(there)["sub/result.json"] == b"0123456789" * 20
            shutil.rmtree(there.path(CELL.digest))


@pytest.mark.parametrize("name", ["../../outside.txt", "{root}/outside.txt", "a/../../../outside.txt"])
def test_no_name_in_a_shared_store_leads_out_of_its_cell(machine, objects, tmp_path, name):
    """Whoever may write there would write any file of those who fetch."""
    name = name.format(root=tmp_path)
    machine("here").commit(CELL, {"inside.txt": b"x"}, MADE)
    (key,) = objects
    objects[key] = edited(objects[key], "cell.json", f'{{"made": {{}}, "files": {{"{name}": "0"}}}}'.encode())
    assert not fetched(machine("there"))
    state = checkpoint_name(1, b"state")
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for member, content in {name: b"x", f"artifacts/{name}": b"x", state: b"state"}.items():
            archive.writestr(member, content)
    objects[key] = packed.getvalue()
    objects[f"checkpoints/{CELL.digest}/{state}.zip"] = packed.getvalue()
    third = machine("a third")
    assert not fetched(third)
    assert third.checkpoint(CELL).state == b"state"
    outside = [path for path in tmp_path.rglob("outside.txt") if not path.is_relative_to(third.root)]
    assert [*outside, *third.root.glob("*.txt"), *third.root.glob("staging/*")] == []


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
    let(here, put_file=refusing(PermissionError("Access Denied")))
    cell = Cell("without checkpoints", add_up, SumParams(1, steps=0))
    with pytest.raises(UserError, match="Access Denied"):
        fan_out([cell], LOCAL, here, Watcher())
    assert not fetched(machine("there"), cell)
    watcher = Watcher()
    fan_out([cell], LOCAL, machine("here"), watcher)
    assert watcher.begun == []
    assert fetched(machine("there"), cell)


def test_a_missing_input_and_a_full_disk_are_not_blamed_on_the_connection(machine, tmp_path):
    cell = dataclasses.replace(CELL, inputs={"dataset": tmp_path / "gone.csv"})
    with pytest.raises(UserError, match=r"gone\.csv: ") as told:
        machine("here").fetch([cell])
    assert "SINGLESHOT_CELLS" not in str(told.value)
    machine("here").commit(CELL, FILES, MADE)
    let(there := machine("there"), get_file=refusing(OSError(errno.ENOSPC, "No space left on device")))
    # The command line has words of its own for it.
    with pytest.raises(OSError, match="No space left on device"):
        there.fetch([CELL])


@pytest.mark.parametrize("where", ["mine", "mine/cells"])
def test_a_place_of_no_use_is_said_in_a_line_and_nothing_is_made(tmp_path, monkeypatch, where):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").write_text("mine")
    monkeypatch.setenv("SINGLESHOT_CELLS", where)
    with pytest.raises(UserError, match=f"{where}.*SINGLESHOT_CELLS"):
        open_store(tmp_path / "root").prepare()
    assert [file.name for file in tmp_path.iterdir()] == ["mine"]


def test_the_environment_says_where_cells_are_kept(bucket_url, tmp_path, monkeypatch):
    monkeypatch.delenv("SINGLESHOT_CELLS", raising=False)
    assert open_store(tmp_path).root == tmp_path
    # An experiment runs in a copy of the checkout, which DVC removes with all that is in it.
    (copy := tmp_path / ".dvc/tmp/exps/tmpabc").mkdir(parents=True)
    monkeypatch.chdir(copy)
    monkeypatch.setenv("SINGLESHOT_CELLS", "shared disk")
    assert open_store(Path(".cells")).root == tmp_path / "shared disk"
    monkeypatch.setenv("SINGLESHOT_CELLS", bucket_url)
    remote = open_store(tmp_path)
    assert (remote.root, remote.where) == (tmp_path, bucket_url)
