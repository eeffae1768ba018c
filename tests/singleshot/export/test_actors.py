import csv

import numpy as np
import pytest
import torch
from small_networks import make_agent, save_agent
from waiting import PATIENCE_S

from singleshot.errors import UserError
from singleshot.export.actors import open_actor, pack_actor
from singleshot.export.model_files import open_network
from singleshot.export.runtimes import runtimes_here
from singleshot.io.tensor_file import read_tensor_file
from singleshot.rl.environments import LOCOMOTION
from singleshot.sparse.packed import pack
from tasks.benchmark import BenchmarkParams, InputSize
from tasks.benchmark_actor import ActorParams, benchmark_actor
from tasks.job import Job, Metrics

SIZES = [(14, 400), (400, 300), (300, 3)]
"""Of Hopper: 11 numbers of a state, 3 of an action."""


def packed(tmp_path, sparsity):
    path = tmp_path / "actor.packed"
    path.write_bytes(pack_actor(save_agent(tmp_path / "agent.safetensors", "bcq", sparsity)))
    return path


@pytest.mark.parametrize("form", ["masked", "compacted"])
def test_an_actor_computes_what_its_agent_has_kept(tmp_path, form):
    actor = open_actor(packed(tmp_path, 0.95), form)
    agent = make_agent("bcq", 0.95)
    x = np.random.default_rng(0).uniform(-1, 1, (5, 14)).astype(np.float32)
    y = x.astype(np.float64)
    for i, size in enumerate(SIZES):
        layer = f"pi.{i}"
        weight = agent.networks["actor"].weights[layer][0].numpy() * agent.masks["actor"][layer].numpy().T
        assert weight.shape == size
        y = y @ weight + agent.networks["actor"].biases[layer][0].numpy()
        y = np.maximum(y, 0) if i < 2 else y
    np.testing.assert_allclose(actor.module(torch.from_numpy(x)).detach().numpy(), y, atol=1e-6)
    assert (actor.kind, actor.form, actor.sparsity) == ("actor", form, 0.95)
    assert actor.inputs[0].shape == ("batch", 14)


def test_its_file_has_the_kept_weights_alone(tmp_path):
    kept = sum(int(mask.sum()) for mask in make_agent("bcq", 0.95).masks["actor"].values())
    size = packed(tmp_path, 0.95).stat().st_size
    assert 4 * (kept + 703) < size < 4 * (kept + 703) + kept + 1000  # biases; some bits a place


def test_a_packed_actor_is_recognised_among_networks(tmp_path):
    assert open_network(packed(tmp_path, 0), "dense").kind == "actor"
    with pytest.raises(UserError, match="the actor has no compacted form; ask for dense"):
        open_network(packed(tmp_path, 0), "compacted")


def test_other_files(tmp_path):
    agent = save_agent(tmp_path / "bc.safetensors", "bc", 0.9)
    with pytest.raises(UserError, match="has no actor; name an agent of bcq"):
        pack_actor(agent)
    (tmp_path / "bc.packed").write_bytes(pack(read_tensor_file(agent)))
    with pytest.raises(UserError, match=r"packed, but no actor; unpack it"):
        open_actor(tmp_path / "bc.packed", "masked")


def test_runtimes_are_given_the_actor_and_leave_a_table(tmp_path):
    source = save_agent(tmp_path / "agent.safetensors", "bcq", 0.9)
    names = ("torch", "onnxruntime", "numba-sparse")
    sizes = (InputSize(1), InputSize(40))
    benchmark = BenchmarkParams(runtimes_here(names), (1,), sizes, 0.02, PATIENCE_S, 5, LOCOMOTION["Hopper"])
    params = ActorParams("the/cell/actor", "compacted", 20, benchmark)
    output = tmp_path / "out"
    output.mkdir()
    events = list(benchmark_actor([Job(params, {"source": source}, output)]))
    assert [path.name for path in output.iterdir()] == ["timings.csv"]
    with (output / "timings.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["runtime"], row["batch"], row["status"]) for row in rows] == [
        (name, batch, "ok") for batch in ("1", "40") for name in names
    ]
    assert {(row["model"], row["form"]) for row in rows} == {("the/cell/actor", "compacted")}
    assert all(float(row["max_abs_error"]) <= float(row["tolerance"]) for row in rows)
    assert [event.step for event in events if isinstance(event, Metrics)] == [1, 40]
