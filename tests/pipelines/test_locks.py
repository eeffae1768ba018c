"""Two drivers at once: the second is told, and waits."""

import subprocess
import sys

import pytest
from checkouts import ROOT
from waiting import wait_until

HOLD = """
import sys
from pathlib import Path
from pipelines.engine.locks import one_at_a_time
with one_at_a_time(Path(sys.argv[1]), "the stage agents"):
    print("in", flush=True)
    sys.stdin.read()
"""
WAITS = "waiting for another process, which works on the stage agents\n"


@pytest.fixture
def start(tmp_path):
    """Starts a process that holds the lock; returns it, and the files with what it says."""
    started = []

    def start():
        said, errors = (tmp_path / f"{len(started)}-{name}" for name in ("said", "errors"))
        with said.open("w") as out, errors.open("w") as err:
            command = [sys.executable, "-c", HOLD, str(tmp_path / "new/stage.lock")]
            process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=out, stderr=err)
        started.append(process)
        return process, lambda: said.read_text() == "in\n", errors.read_text

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("end", ["ends", "is killed"])
def test_the_second_waits_until_the_first_ends(start, end):
    first, first_is_in, _ = start()
    wait_until(first_is_in, "the first is at it")
    second, second_is_in, told = start()
    wait_until(lambda: told() == WAITS, "the second is told")
    assert not second_is_in()
    if end == "ends":
        first.communicate()
    else:
        first.kill()
    wait_until(second_is_in, "it is the second's turn")
    second.communicate()
    assert second.returncode == 0
