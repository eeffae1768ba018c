"""README's pictures are those of today's default profile."""

import json

import pytest
from checkouts import ROOT

from benchmarks.pictures import RECORD, made_from, styles_shown
from pipelines.config.params import configuration
from singleshot.io.whole_file import sha256_of

AGAIN = "run the profile default, then `python -m benchmarks.pictures`"


def test_pictures_are_made_from_what_the_default_profile_is_now():
    record = json.loads((ROOT / "docs" / RECORD).read_text(encoding="utf-8"))
    assert record["made_from"] == made_from(configuration("profile=default")), AGAIN
    for file, digest in record["sha256"].items():
        assert sha256_of(ROOT / "docs" / file) == digest, f"docs/{file}: {AGAIN}"


def test_each_row_of_styles_has_four_pictures():
    rows = list(styles_shown(configuration("profile=default")))
    assert [len(row) for row in rows] == [4, 4]


@pytest.mark.parametrize(
    "override",
    [
        "offline_rl.training.bc.updates=8001",
        "offline_rl.sweep.pruners=[grasp]",
        "offline_rl.algorithms.bc.normalize_states=false",
        "style.training.johnson.batches=401",
        "style.training.styles=[swirls]",
    ],
)
@pytest.mark.slow
def test_another_default_would_be_noticed(override):
    default = made_from(configuration("profile=default"))
    assert made_from(configuration("profile=default", override)) != default
