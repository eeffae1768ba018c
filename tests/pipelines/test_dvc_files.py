"""Files that DVC writes in place, as a kill or a power cut leaves them."""

import importlib.util
import json
import os
import py_compile
import shutil
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import filelock
import pytest
from checkouts import ROOT

from pipelines.engine.dvc_files import CHECKED, LOCAL, LOCK, SITE, USED, keep_private, make_absolute, mend
from pipelines.engine.remote_cells import open_store
from pipelines.engine.tracking import TrackingConfig, tracking_uri

STAGES = """
stages:
  first: {cmd: echo one >> ran && echo 1 > one, deps: [given], outs: [one]}
  second: {cmd: echo two >> ran && echo 2 > two && mkdir d && touch d/empty, deps: [one], outs: [two, d]}
"""


def dvc(*arguments):
    command = [sys.executable, "-m", "dvc", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """DVC after a run of two stages."""
    directory = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(directory)
        assert dvc("init", "--no-scm", "--quiet").returncode == 0
        Path("dvc.yaml").write_text(STAGES, encoding="utf-8")
        Path("given").touch()
        assert dvc("repro").returncode == 0
    return directory


@pytest.fixture
def repository(made, tmp_path, monkeypatch):
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def ran():
    """The stages whose commands have run."""
    return Path("ran").read_text(encoding="utf-8").split()


@pytest.mark.slow
def test_a_lock_file_that_was_cut_off_is_made_again_and_nothing_is_computed_again(repository):
    whole = LOCK.read_text()
    for cut in (0, 0.7):
        LOCK.write_text(whole[: int(cut * len(whole))] + "\n    c")
        (line,) = mend()
        assert line.startswith("dvc.lock was cut off")
    assert dvc("repro").returncode == 0
    assert LOCK.read_text() == whole
    assert ran() == ["one", "two"]
    assert list(mend()) == []


def test_a_compiled_module_that_a_full_disk_cut_off_is_compiled_again(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("tasks").mkdir()
    for name in ("whole", "cut"):
        Path(f"tasks/{name}.py").write_text("value = [1, 2, 3]\n", encoding="utf-8")
        py_compile.compile(f"tasks/{name}.py")
    whole, cut = (Path(importlib.util.cache_from_source(f"tasks/{name}.py")) for name in ("whole", "cut"))
    cut.write_bytes(cut.read_bytes()[:-5])
    command = [sys.executable, "-c", "import cut"]
    failed = subprocess.run(command, cwd="tasks", capture_output=True, text=True, check=False)
    assert "EOFError: " in failed.stderr
    assert list(mend()) == [f"{cut} was cut off: removed; Python compiles it again"]
    assert whole.exists()
    subprocess.run(command, cwd="tasks", check=True)


@pytest.mark.slow
def test_paths_of_a_dvc_that_was_killed_are_free_though_another_process_has_its_id(repository):
    """After a restart of the machine, processes have the ids that others had before."""
    for cut_off in ("", '{"write": {"/a"'):
        USED.write_text(cut_off)
        assert list(mend()) == []
        assert not USED.exists()
    entry = {"pid": os.getpid(), "cmd": "/somewhere/dvc repro"}
    USED.write_text(json.dumps({"write": {str(repository / "one"): entry}, "read": {}}))
    Path("given").write_text("other", encoding="utf-8")
    assert "busy" in dvc("repro").stderr
    assert list(mend()) == []
    assert dvc("repro").returncode == 0


def test_paths_of_a_dvc_that_runs_stay_its_own(repository):
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(999)  # dvc"]) as running:
        used = {"write": {str(repository / "one"): {"pid": running.pid, "cmd": "dvc repro"}}, "read": {}}
        USED.write_text(json.dumps(used))
        assert list(mend()) == []
        assert json.loads(USED.read_text()) == used
        running.kill()


@pytest.mark.parametrize(
    ("left", "since"), [(b"", "the last check"), (b"3\n", "this machine's start")], ids=["empty", "changed"]
)
def test_a_damaged_file_of_the_cache_is_not_restored(repository, left, since):
    """A power cut left it and the result, as DVC doesn't sync what it writes; nothing tells when."""
    (cached,) = (path for path in Path(".dvc/cache/files/md5").glob("*/*") if path.read_text() == "2\n")
    assert list(mend()) == []
    for file in (cached, Path("two")):
        file.chmod(0o644)
        file.write_bytes(left)
    if since == "this machine's start":
        time.sleep(2)
        CHECKED.write_text("of an earlier one")
    (line,) = mend()
    assert "removed 1 damaged files" in line
    assert not cached.exists()
    assert list(mend()) == []
    assert dvc("repro").returncode == 0
    assert Path("two").read_text(encoding="utf-8") == "2\n"
    assert ran() == ["one", "two", "two"]


def test_files_that_a_running_dvc_may_be_writing_are_left_alone(repository):
    LOCK.write_text("")
    with filelock.FileLock(".dvc/tmp/lock"):
        assert list(mend()) == []
    assert LOCK.exists()
    assert len(list(mend())) == 1


@pytest.mark.slow
def test_make_repro_mends_first(repository):
    for name in ("Makefile", "pipelines", "tasks", "singleshot", "params.yaml"):
        (repository / name).symlink_to(ROOT / name)
    environment = repository / ".venv"
    (environment / "bin").mkdir(parents=True)
    for name, command in (("python", sys.executable), ("dvc", f"{sys.executable} -m dvc")):
        (environment / "bin" / name).write_text(f'#!/bin/sh\nexec {command} "$@"\n')
        (environment / "bin" / name).chmod(0o755)
    for path in ("requirements.lock", "requirements-dev.lock", ".venv/pyvenv.cfg", ".venv/.installed"):
        (repository / path).touch()
    LOCK.write_text("")
    repro = partial(subprocess.run, ["make", "repro"], capture_output=True, text=True, check=False)
    done = repro()
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("mended: ") == 1
    assert "mended: " not in repro().stderr
    assert ran() == ["one", "two"]


@pytest.mark.slow
def test_only_the_user_may_write_to_the_index_of_dvc(repository):
    """It has pickles, and DVC makes its folder so that everybody may replace them."""
    Path(".dvc/config").write_text((ROOT / ".dvc/config").read_text(), encoding="utf-8")
    Path(".dvc/config.local").write_text("[core]\n    no_scm = true\n", encoding="utf-8")
    Path("given").write_text("other", encoding="utf-8")
    assert dvc("repro").returncode == 0
    assert any(SITE.rglob("*.db"))
    keep_private()
    assert SITE.stat().st_mode & 0o077 == 0


@pytest.mark.slow
def test_an_experiment_in_a_copy_uses_the_index_of_its_checkout(repository):
    """DVC would take the path in .dvc/config to be below the copy, and end with an error of its database."""
    shutil.rmtree(".dvc")
    identity = ("-c", "user.name=test", "-c", "user.email=test@example.org")
    subprocess.run(["git", "init", "--quiet"], check=True)
    assert dvc("init", "--quiet").returncode == 0
    Path(".dvc/config").write_text((ROOT / ".dvc/config").read_text().partition("[hydra]")[0], "utf-8")
    Path("params.yaml").write_text("rate: 1\n", "utf-8")
    subprocess.run(["git", "add", ".dvc", "dvc.yaml", "given", "params.yaml"], check=True)
    subprocess.run(["git", *identity, "commit", "--quiet", "--message", "All"], check=True)
    LOCAL.write_text("[core]\n    autostage = true\n")
    make_absolute()
    assert "autostage = true" in LOCAL.read_text()
    run = dvc("exp", "run", "--temp", "--name", "other", "--set-param", "rate=2")
    assert run.returncode == 0, run.stderr
    assert "other" in dvc("exp", "list", "--name-only").stdout.split()
    assert list(Path(".dvc/tmp/exps").rglob(SITE.name)) == []


def test_an_experiment_of_the_queue_shares_cells_and_runs_with_its_checkout(tmp_path, monkeypatch):
    copy = tmp_path / ".dvc/tmp/exps/tmpabc"
    copy.mkdir(parents=True)
    monkeypatch.delenv("SINGLESHOT_CELLS", raising=False)
    monkeypatch.chdir(copy)
    assert open_store(Path(".cells")).root == tmp_path / ".cells"
    assert tracking_uri(TrackingConfig()) == f"sqlite:///{tmp_path}/mlflow.db"
    monkeypatch.chdir(tmp_path)
    assert open_store(Path(".cells")).root == Path(".cells")
    assert tracking_uri(TrackingConfig()) == "sqlite:///mlflow.db"
