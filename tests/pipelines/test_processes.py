"""Real processes: who ends with whom."""

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from waiting import PATIENCE_S, wait_until

from pipelines.engine.processes import ends_with_its_parents, interrupted_later, is_alive, this_process

ROOT = Path(__file__).parents[2]
CHILD = "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(10000)'], start_new_session=True)"
DRIVER = f"""
import os, subprocess, sys, time
from pipelines.engine.processes import takes_its_children_along
earlier = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(10000)"])
print(earlier.pid, flush=True)
with takes_its_children_along():
    # A grandchild in a session of its own, as Ray's workers are.
    child = subprocess.Popen(
        [sys.executable, "-c", "import subprocess, sys, time; {CHILD}; time.sleep(10000)"]
    )
    print(child.pid, flush=True)
    sys.stdin.read()
"""
STAGE = """
import os, sys, time
print(os.getpid(), flush=True)
while sys.argv[1:] and os.getppid() == int(sys.argv[1]):  # as if it still imported its modules
    time.sleep(0.1)
from pipelines.engine.processes import ends_with_its_parents
try:
    with ends_with_its_parents():
        print("begun", flush=True)
        time.sleep(10000)
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""

HOLD = """
import sys
from pathlib import Path
from pipelines.engine.processes import one_at_a_time
with one_at_a_time(Path(sys.argv[1]), "the stage agents"):
    print("in", flush=True)
    sys.stdin.read()
"""
WAITS = "waiting for another process, which is working on the stage agents\n"


def start(command, stderr=None, **environment):
    return subprocess.Popen(
        command,
        cwd=ROOT,
        env=os.environ | environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        start_new_session=True,
    )


def test_a_process_keeps_its_name_when_the_clock_is_stepped(monkeypatch):
    """As on a laptop that wakes up; psutil works out the time of day at which a process started."""
    name = this_process()
    assert is_alive(name)
    monkeypatch.setattr(psutil.Process, "create_time", lambda self: 2.0)
    assert is_alive(name)
    assert this_process() == name
    assert not is_alive(name.replace(f":{os.getpid()}:", ":1:"))


@pytest.mark.parametrize("how", ["killed", "done"])
def test_descendants_go_with_a_driver_however_it_ends(how):
    driver = start([sys.executable, "-c", DRIVER])
    earlier = psutil.Process(int(driver.stdout.readline()))
    child = psutil.Process(int(driver.stdout.readline()))
    grandchild = wait_until(child.children, "the grandchild is there")[0]
    guard = next(p for p in psutil.Process(driver.pid).children() if "processes" in " ".join(p.cmdline()))
    known = [child, grandchild, guard]
    try:
        # The guard looks once a second.
        wait_until(lambda: guard.cpu_times().user > 0 and guard.status() == "sleeping", "the guard is up")
        psutil.wait_procs([guard], timeout=2.5)
        if how == "killed":
            driver.kill()
        else:
            driver.stdin.close()
        driver.wait(PATIENCE_S)
        assert not psutil.wait_procs(known, timeout=PATIENCE_S)[1]
        assert earlier.is_running()  # it was there before
    finally:
        for process in [*known, earlier]:
            if process.is_running():
                process.kill()
        driver.kill()
        driver.wait()


@pytest.mark.parametrize(
    ("number", "command"),
    [
        (signal.SIGKILL, "'{python} stage.py > log; true', shell=True"),
        (signal.SIGTERM, "'{python} stage.py > log; true', shell=True"),
        (signal.SIGKILL, "['{python}', 'stage.py', str(os.getpid())], stdout=open('log', 'w')"),
    ],
    ids=["killed", "terminated", "killed before the stage began"],
)
def test_a_stage_ends_with_the_dvc_that_started_it(tmp_path, number, command):
    """Through the shell between the two, and with an interrupt: its `finally`s run."""
    dvc, log = tmp_path / "dvc", tmp_path / "log"
    (tmp_path / "stage.py").write_text(STAGE)
    run = command.format(python=sys.executable)
    dvc.write_text(f"import os, subprocess\nos.chdir({str(tmp_path)!r})\nsubprocess.run({run})\n")
    process = start([sys.executable, str(dvc)], DVC_STAGE="train", PYTHONPATH=str(ROOT))
    told = "begun\n" if "shell" in command else "\n"
    wait_until(lambda: log.exists() and log.read_text().endswith(told), "the stage runs")
    stage = psutil.Process(int(log.read_text().split()[0]))
    try:
        process.send_signal(number)
        process.wait()
        assert not psutil.wait_procs([stage], timeout=PATIENCE_S)[1]
        assert log.read_text().endswith("interrupted\n")
    finally:
        if stage.is_running():
            stage.kill()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_is_kept_back_until_native_code_has_ended(number):
    before = signal.getsignal(number)
    steps = []

    @ends_with_its_parents()
    def work():
        with interrupted_later():
            signal.raise_signal(number)
            steps.append("inside")
        steps.append("after")

    with pytest.raises(KeyboardInterrupt):
        work()
    assert steps == ["inside"]
    assert signal.getsignal(number) == before


@pytest.mark.parametrize("end", ["ends", "is killed"])
def test_of_two_drivers_the_second_is_told_and_waits_until_the_first_ends(tmp_path, end):
    command = [sys.executable, "-c", HOLD, str(tmp_path / "new/stage.lock")]
    first = start(command)
    assert first.stdout.readline() == "in\n"
    with (tmp_path / "told").open("w") as told:
        second = start(command, stderr=told)
    wait_until(lambda: (tmp_path / "told").read_text() == WAITS, "the second is told")
    assert not select.select([second.stdout], [], [], 0)[0]
    if end == "ends":
        first.communicate()
    else:
        first.kill()
        first.communicate()
    assert second.stdout.readline() == "in\n"
    second.communicate()
    assert second.returncode == 0
