"""Stages are told apart by DVC's lines: here a Makefile prints them."""

import pytest

from benchmarks.repro import Moment, _rows
from singleshot.errors import UserError

MAKEFILE = """
install params:
\t@echo $@ $(PROFILE)
repro:
\t@echo "Stage 'config' didn't change, skipping"
\t@echo "Running stage 'prune':"
\t@echo "> python -m pipelines prune"
\t@echo "Running stage 'train':"
"""


def test_each_stage_has_a_row_and_the_run_has_one(tmp_path):
    (tmp_path / "Makefile").write_text(MAKEFILE)
    rows = [row[0] for row in _rows(tmp_path, "smoke")]
    assert rows == [
        "make install",
        "make params",
        "DVC's plan",
        "prune",
        "train",
        "**make repro, profile smoke**",
        "a second make repro",
    ]


def test_a_run_that_fails_is_told(tmp_path):
    (tmp_path / "Makefile").write_text("install:\n\t@exit 3\n")
    with pytest.raises(UserError, match="make install in a fresh clone ended with status 2"):
        list(_rows(tmp_path, "smoke"))


def test_idle_is_a_share_of_the_cores_time():
    """Ten seconds of two cores, one of them at work all the time and the other half of it."""
    assert Moment(110, 15, 105).since(Moment(100, 0, 100)) == ("10.0", "15.0", "25%")
