import csv

import safetensors.torch
import torch

from singleshot.sparse.formats import FORMATS
from tasks.job import Job
from tasks.measure_sizes import SizeParams, measure_sizes


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
    list(measure_sizes([Job(SizeParams("Hopper/bc", "snip", 0.9, 3), {"model": model}, tmp_path / "out")]))
    rows = list(csv.DictReader((tmp_path / "out" / "sizes.csv").open()))
    assert {(row["network"], row["format"]) for row in rows} == {
        (network, format) for network in ("actor", "critic") for format in FORMATS
    }
    assert {(row["model"], row["pruner"], row["sparsity"], row["seed"]) for row in rows} == {
        ("Hopper/bc", "snip", "0.9", "3")
    }
    bounds = {row["network"]: row["entropy_bound_bytes"] for row in rows}
    # By hand: one of 16 entries is log2 16 = 4 bits and a value of 32, four biases are 128; 16 of 16 are 512.
    assert bounds == {"actor": str(round(164 / 8)), "critic": "64"}
    dense = {row["network"]: int(row["bytes"]) for row in rows if row["format"] == "dense"}
    for row in rows:
        assert float(row["ratio_to_dense"]) == round(dense[row["network"]] / int(row["bytes"]), 4)
