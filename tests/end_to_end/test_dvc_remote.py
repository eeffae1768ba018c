"""What a clone elsewhere gets of a finished run, from a DVC remote or a store of cells (moto's S3)."""

import pytest
from checkouts import cleaned, progress
from object_store import BUCKET, s3_server

pytestmark = pytest.mark.slow
LEFT = ("data", "models", "results", "report")


@pytest.fixture(scope="module")
def s3():
    with s3_server() as environment:
        yield environment


@pytest.fixture
def clone(smoke, tmp_path):
    """A clone of the finished run's repository, after its results were committed as docs/remote.md says."""
    smoke.run("dvc", "remote", "add", "--default", "storage", f"s3://{BUCKET}/dvc")
    smoke.run("git", "add", "--all")
    smoke.run("git", "-c", "user.name=a", "-c", "user.email=a@example.org", "commit", "-qm", "A finished run")
    clone = smoke.clone(tmp_path / "elsewhere")
    with cleaned(clone):
        yield clone


def test_pull_restores_every_result_of_a_push(smoke, clone, s3):
    smoke.run("dvc", "push", **s3)
    clone.run("dvc", "pull", **s3)
    assert clone.files(*LEFT) == smoke.files(*LEFT)
    assert progress(clone.repro(**s3)) == {}
    assert clone.cells() == {}


def test_a_store_of_cells_spares_a_clone_the_computing(smoke, clone, s3):
    """Without DVC's remote: each stage of the clone runs, and finds its cells done."""
    store = {**s3, "SINGLESHOT_CELLS": f"s3://{BUCKET}/cells"}
    done = progress(smoke.repro("--force", "agents", **store))
    assert done["train"] == (6, 6, 0)
    (clone.path / "dvc.lock").unlink()
    assert progress(clone.repro("agents", **store)) == done
    assert not any(missing for _, _, missing in done.values())
    agents, masks = "models/agents", "models/masks"
    assert clone.files(agents, masks) == smoke.files(agents, masks)
