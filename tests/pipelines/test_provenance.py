import dataclasses
import json
import platform
from pathlib import Path

from made import MADE

from pipelines.engine.provenance import Machine, Made, write_provenance


def written(made, tmp_path):
    path = tmp_path / "provenance.json"
    write_provenance("train", "smoke", made, path)
    return json.loads(path.read_text())


def test_the_record_of_a_cell_names_this_code_and_this_machine():
    made = Made.now(1.23456, "c0ffee", "cpu", {"torch": "2.13.0"})
    assert (made.seconds, made.commit) == (1.235, "c0ffee")
    assert made.machine.gpu is None
    assert made.machine.processor in Path("/proc/cpuinfo").read_text(encoding="utf-8")
    assert made.packages == {"python": platform.python_version(), "torch": "2.13.0"}
    assert Made.read(json.loads(json.dumps(dataclasses.asdict(made)))) == made


def test_a_stage_sums_up_its_cells(tmp_path):
    gpu = Machine("Abacus", "AVX2", 2, 4.0, "Loom")
    later = dataclasses.replace(
        MADE, seconds=2.25, finished="2026-01-03T00:00:00Z", commit="beef", machine=gpu
    )
    summary = written([later, MADE, MADE], tmp_path)
    assert summary["cells"] == 3
    assert summary["seconds"] == 5.2
    assert (summary["first"], summary["last"]) == (MADE.finished, later.finished)
    assert summary["commits"] == ["beef", "c0ffee"]
    assert written([], tmp_path)["first"] is None
    assert {(machine["gpu"], machine["cells"]) for machine in summary["machines"]} == {("Loom", 1), (None, 2)}
