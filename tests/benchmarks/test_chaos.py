"""What a power cut of `benchmarks.chaos` leaves behind."""

import signal
import sys
from types import SimpleNamespace

from checkouts import Checkout, cleaned
from waiting import wait_until

from benchmarks.chaos import Run


def test_a_run_whose_power_was_cut_has_not_succeeded(tmp_path):
    steps = []
    disk = SimpleNamespace(keep=lambda: steps.append("keep"), go_back=lambda: steps.append("go back"))
    with cleaned(Checkout(tmp_path)) as checkout:
        run = Run(checkout, (sys.executable, "-c", "import time; print(1, flush=True); time.sleep(600)"), {})
        run.start()
        wait_until(lambda: run.checkout.output, "it runs")
        run.cut_power(disk)
        assert run.process.poll() == -signal.SIGKILL
        assert not run.is_done()
    assert steps == ["keep", "go back"]
