"""Agents' sizes, and their scores when they are packed with rounded values."""

import csv

import pytest
import safetensors.torch
import torch

from singleshot.job import Job, Metrics
from singleshot.rl.agents import AgentSpec
from singleshot.rl.algorithms.bc import BCConfig
from singleshot.rl.algorithms.bcq import BCQConfig
from singleshot.rl.environments import LOCOMOTION
from singleshot.rl.evaluation.play import EvaluationConfig
from singleshot.sparse.formats import FORMATS
from tasks.measure_sizes import measure_sizes
from tasks.quantize_agent import QuantizeParams, quantize_agent
from tasks.train_agents import TrainingConfig, TrainParams, train

EPISODES = EvaluationConfig(episodes=2)


@pytest.fixture(params=[BCConfig(batch_size=20), BCQConfig(batch_size=20, evaluation_samples=2)])
def trained(request, transitions, tmp_path):
    """The outputs of a dense agent's training, of three updates, and what it was trained with."""
    dataset, output = tmp_path / "transitions.safetensors", tmp_path / "agent"
    transitions.save(dataset)
    output.mkdir()
    name = "bc" if isinstance(request.param, BCConfig) else "bcq"
    spec = AgentSpec("Hopper", name, "dense", 0.0, 3)
    params = TrainParams(spec, LOCOMOTION["Hopper"], request.param, TrainingConfig(3, 2, 100), EPISODES)
    list(train([Job(params, {"dataset": dataset}, output)]))
    return output, spec


def rows_of(path):
    with path.open() as file:
        return list(csv.DictReader(file))


def quantize(agent, spec, output, values):
    output.mkdir()
    params = QuantizeParams(spec, LOCOMOTION["Hopper"], values, EPISODES, update=3)
    return list(quantize_agent([Job(params, {"agent": agent}, output)]))


def test_lossless_values_play_the_last_score_of_training_again(trained, tmp_path):
    output, spec = trained
    quantize(output / "agent.safetensors", spec, tmp_path / "out", ("raw", "exponents"))
    last = rows_of(output / "scores.csv")[-1]
    assert last.pop("update") == "3"
    for row, values in zip(rows_of(tmp_path / "out/quantized.csv"), ("raw", "exponents"), strict=True):
        assert row.pop("values") == values
        del row["bytes"]
        assert row == last


def test_fewer_bits_take_fewer_bytes_and_leave_other_agents(trained, tmp_path):
    output, spec = trained
    events = quantize(output / "agent.safetensors", spec, tmp_path / "out", ("raw", "fp16", "int8"))
    rows = rows_of(tmp_path / "out/quantized.csv")
    raw, half, byte = (int(row["bytes"]) for row in rows)
    assert raw / half == pytest.approx(2, rel=0.01)
    assert raw / byte == pytest.approx(4, rel=0.05)
    assert len({row["return_mean"] for row in rows}) == 3
    (metrics,) = (event for event in events if isinstance(event, Metrics))
    assert metrics.step == 3
    assert metrics.values["d4rl_score_int8"] == float(rows[2]["d4rl_score"])
    assert metrics.values["bytes_fp16"] == half
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["quantized.csv"]


def test_a_row_for_each_network_and_format(tmp_path):
    weight = torch.zeros(4, 4)
    weight[0, 0] = 1.5
    tensors = {
        "actor.pi.0.weight": weight,
        "actor.pi.0.bias": torch.ones(4),
        "actor.pi.0.mask": weight != 0,
        "critic.q1.0.weight": torch.ones(2, 8),
    }
    model = tmp_path / "agent.safetensors"
    safetensors.torch.save_file(tensors, model)
    (tmp_path / "out").mkdir()
    list(measure_sizes([Job(AgentSpec("Hopper", "bc", "snip", 0.9, 3), {"model": model}, tmp_path / "out")]))
    rows = rows_of(tmp_path / "out" / "sizes.csv")
    formats = [(network, format) for network in ("actor", "critic") for format in FORMATS]
    assert sorted((row["network"], row["format"]) for row in rows) == sorted(formats)
    assert {tuple(row[name] for name in ("model", "pruner", "sparsity", "seed")) for row in rows} == {
        ("Hopper/bc", "snip", "0.9", "3")
    }
    bounds = {row["network"]: row["entropy_bound_bytes"] for row in rows}
    # By hand: one of 16 entries is log2 16 = 4 bits and a value of 32, four biases are 128; 16 of 16 are 512.
    assert bounds == {"actor": str(round(164 / 8)), "critic": "64"}
    dense = {row["network"]: int(row["bytes"]) for row in rows if row["format"] == "dense"}
    for row in rows:
        assert float(row["ratio_to_dense"]) == round(dense[row["network"]] / int(row["bytes"]), 4)
