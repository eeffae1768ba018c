import os
import signal
import subprocess
import sys
import time

import numpy as np
import psutil
import pytest
from waiting import wait_until

from singleshot.errors import UserError
from singleshot.io.images import read_rgb
from singleshot.io.own_process import OwnProcess, ProcessFailed, TookTooLong


def is_running(pid):
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


@pytest.fixture
def process():
    with OwnProcess() as opened:
        yield opened


def test_calls_are_answered_by_one_other_process(process):
    pid = process.call(60, os.getpid)
    assert pid != os.getpid()
    assert process.call(60, os.getpid) == pid
    np.testing.assert_array_equal(process.call(60, np.add, np.arange(10**6), 1), np.arange(10**6) + 1)


def test_a_users_mistake_is_raised_as_it_is_and_another_error_as_a_line(process, tmp_path):
    with pytest.raises(UserError, match="none"):
        process.call(60, read_rgb, tmp_path / "none.jpg")
    pid = process.call(60, os.getpid)
    with pytest.raises(ProcessFailed, match=r"^ValueError: invalid literal for int"):
        process.call(60, int, "one\ntwo")
    assert process.call(60, os.getpid) == pid


def test_a_crash_is_reported_and_the_next_call_has_a_new_process(process):
    with pytest.raises(ProcessFailed, match=r"^killed by SIGABRT$"):
        process.call(60, os.abort)
    with pytest.raises(ProcessFailed, match=r"^ended with status 3: last words$"):
        process.call(60, exec, "import os; os.write(2, b'more\\nlast words\\n'); os._exit(3)")
    assert process.call(60, int, "1") == 1


def test_a_call_that_takes_too_long_is_killed_with_the_processes_it_started(process):
    child = process.call(60, eval, "__import__('subprocess').Popen(['sleep', '1000']).pid")
    with pytest.raises(TookTooLong, match=r"0\.3 s"):
        process.call(0.3, time.sleep, 1000)
    wait_until(lambda: not is_running(child), f"the end of {child}")
    assert process.call(60, int, "1") == 1


def test_the_process_ends_with_the_one_that_calls_it_even_in_a_call():
    program = (
        "import os, time; from singleshot.io.own_process import OwnProcess\n"
        "process = OwnProcess(); print(process.call(60, os.getpid), flush=True)\n"
        "process.call(60, time.sleep, 1000)"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as caller:
        assert caller.stdout is not None
        child = int(caller.stdout.readline())
        caller.send_signal(signal.SIGKILL)
    wait_until(lambda: not is_running(child), f"the end of {child}")
