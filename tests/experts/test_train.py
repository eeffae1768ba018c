"""The script that trains experts; the slow tests need requirements-experts.lock."""

import importlib
import importlib.util
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from singleshot.errors import UserError
from singleshot.rl.experts.policy import load_expert

ROOT = Path(__file__).parents[2]
EXPERTS = ROOT / "experts"


def training():
    pytest.importorskip("sbx")
    return importlib.import_module("experts.train")


def config(train, directory: Path, *flags: str, **changes):
    arguments = [
        "Hopper",
        f"--output={directory / 'hopper.safetensors'}",
        f"--checkpoint-dir={directory / 'run'}",
    ]
    usual = {"steps": 400, "initial-steps": 200, "critic-warmup": 64, "checkpoint-every": 200}
    return train.parse(
        [*arguments, *flags, *(f"--{name}={value}" for name, value in (usual | changes).items())]
    )


@pytest.mark.skipif(importlib.util.find_spec("sbx") is not None, reason="sbx is installed")
def test_training_without_the_library_says_what_to_install():
    told = subprocess.run(
        [sys.executable, "-m", "experts.train", "Hopper"], cwd=ROOT, capture_output=True, text=True
    )
    assert told.returncode == 1
    assert told.stderr.count("\n") == 1
    assert "singleshot.io.uv pip install -r requirements-experts.lock" in told.stderr
    assert not (EXPERTS / "checkpoints").exists()


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["TQC", "TD3", "PPO"])
def test_training_goes_on_from_its_checkpoint(tmp_path, algorithm):
    train = training()
    first = train.train_expert(config(train, tmp_path, algorithm=algorithm))
    assert load_expert(tmp_path / "hopper.safetensors").card == first.card
    assert first.card.episodes == 30
    assert first.card.started_from is None

    with pytest.raises(UserError, match="holds a run already"):
        train.train_expert(config(train, tmp_path, algorithm=algorithm))
    with pytest.raises(UserError, match="seed was 0, not 1"):
        train.train_expert(config(train, tmp_path, "--resume", algorithm=algorithm, seed=1))
    resumed = train.train_expert(config(train, tmp_path, "--resume", algorithm=algorithm, steps=800))
    assert resumed.card.steps >= first.card.steps


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["TQC", "TD3", "PPO"])
def test_training_from_an_expert_begins_with_its_actions(tmp_path, algorithm):
    """With no step after the critics were fitted, the policy kept is the one it started from."""
    train = training()
    start = EXPERTS / "hopper.safetensors"
    trained = train.train_expert(
        config(train, tmp_path, algorithm=algorithm, **{"start-from": start}, steps=200)
    )
    observations = np.random.default_rng(0).standard_normal((20, 11))
    np.testing.assert_allclose(trained.act(observations), load_expert(start).act(observations), atol=1e-5)
    assert "300000 steps" in trained.card.started_from
