import csv
from dataclasses import replace

import numpy as np
import pytest
import safetensors.torch
import torch

from singleshot.io.tables import columns_of
from singleshot.job import Job
from singleshot.pruning.masks import PRUNERS, PruningConfig, find_pruner
from singleshot.pruning.pruner import Pruner
from singleshot.pruning.pruners import snip
from singleshot.rl import pruning as library
from singleshot.rl.agents import AgentSpec, flatten_masks, load_masks, make_algorithm
from singleshot.rl.algorithm import algorithm_class
from singleshot.rl.algorithms.bc import BCConfig
from singleshot.rl.algorithms.bcq import BCQConfig
from singleshot.rl.data.replay import ReplayBuffer
from tasks.prune_agent import LayerRow, PruneParams, prune_agent

NETWORKS = {
    "bc": {"vae"},
    "bcq": {"actor", "critic", "vae"},
    "td3bc": {"actor", "critic"},
    "iql": {"actor", "critic", "value"},
}
READ_STATES = {"encoder.0", "decoder.0", "pi.0", "q1.0", "q2.0"}


def params(pruner, sparsity=0.95, seed=0, algorithm="bcq", **pruning):
    config = algorithm_class(algorithm).config_type()
    return PruneParams(
        AgentSpec("Hopper", algorithm, pruner, sparsity, seed), config, PruningConfig(**pruning)
    )


def make_masks(own, data):
    """The masks of an agent of Hopper's sizes."""
    spec, algorithm = own.agent, make_algorithm(own.agent, own.algorithm, 11, 3)
    return library.make_masks(algorithm, data, spec.mask_pruner, spec.sparsity, spec.seed, own.pruning)


@pytest.mark.parametrize(
    ("pruner", "algorithm"),
    [*((name, "bcq") for name in (*PRUNERS, "snip-shuffled")), *(("grasp", name) for name in NETWORKS)],
)
def test_each_network_has_exactly_the_sparsity_asked_for(pruner, algorithm, transitions):
    masks = make_masks(params(pruner, algorithm=algorithm), ReplayBuffer(transitions))
    assert set(masks) == NETWORKS[algorithm]
    for layers in masks.values():
        total = sum(mask.numel() for mask in layers.values())
        assert sum(int(mask.sum()) for mask in layers.values()) == total - round(0.95 * total)


def test_masks_depend_on_pruner_sparsity_and_seed(transitions):
    data = ReplayBuffer(transitions)
    reference = flatten_masks(make_masks(params("snip"), data))
    again = flatten_masks(make_masks(params("snip"), data))
    assert all(torch.equal(reference[key], again[key]) for key in reference)
    for other in (params("grasp"), params("snip", sparsity=0.9), params("snip", seed=1)):
        masks = flatten_masks(make_masks(other, data))
        assert not torch.equal(reference["vae.decoder.1"], masks["vae.decoder.1"])


@pytest.mark.parametrize(
    ("pruner", "pruning", "expected"),
    [("snip", {}, [100]), ("grasp", {}, [200]), ("snip", {"batch_size": 50, "iterations": 3}, [50, 50, 50])],
)
def test_scores_are_computed_on_the_paper_s_batch(pruner, pruning, expected, transitions, monkeypatch):
    seen = []
    bcq = algorithm_class("bcq")
    losses = bcq.losses

    def spy(self, networks, targets, batch, randomness):
        seen.append(batch)
        return losses(self, networks, targets, batch, randomness)

    monkeypatch.setattr(bcq, "losses", spy)
    make_masks(params(pruner, **pruning), ReplayBuffer(transitions))
    assert [batch.state.shape for batch in seen] == [(1, size, 11) for size in expected]
    assert len({batch.state.sum().item() for batch in seen}) == len(expected), "each round sees a new batch"


def test_a_blind_agent_is_dense_but_for_the_coordinates_that_snip_never_reads(transitions):
    """With a state's first coordinate at a millionth of its size, SNIP keeps none of its weights."""
    scales = np.array([1e-6] + [1.0] * 10, np.float32)
    small = replace(transitions, observations=transitions.observations * scales)
    data = ReplayBuffer(small)
    masks = flatten_masks(make_masks(params("snip-blind"), data))
    for key, mask in masks.items():
        if key.partition(".")[2] in READ_STATES:
            assert not mask[:, 0].any()
            assert mask[:, 1:].all()
        else:
            assert mask.all()


@pytest.mark.parametrize(("trained", "scored"), [(True, None), (True, False), (False, True)])
def test_masks_may_be_scored_on_other_states_than_those_of_training(trained, scored, transitions, tmp_path):
    dataset = tmp_path / "transitions.safetensors"
    transitions.save(dataset)
    own = params("snip", algorithm="bc", normalize_states=scored)
    own = replace(own, algorithm=BCConfig(normalize_states=trained))
    list(prune_agent([Job(own, {"dataset": dataset}, tmp_path)]))
    wanted = make_masks(own, ReplayBuffer(transitions, "cpu", trained if scored is None else scored))
    found = safetensors.torch.load_file(tmp_path / "masks.safetensors")
    assert all(torch.equal(found[key], mask) for key, mask in flatten_masks(wanted).items())


def test_snip_scores_of_the_real_objectives_are_finite_differences(transitions):
    """Change of each network's loss when one weight, the highest scored of its layer, is scaled by 1 ± ε."""
    data = ReplayBuffer(transitions)
    scored = {}
    score = find_pruner("snip").score

    def spy(objective, weights):
        scores = score(objective, weights)
        scored[next(iter(weights))] = (objective, weights, scores)
        return scores

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(snip, "PRUNER", Pruner(spy))
        make_masks(params("snip"), data)
    assert set(scored) == {"pi.0", "q1.0", "encoder.0"}
    for objective, weights, scores in scored.values():
        for layer, score_ in scores.items():
            index = score_.flatten().argmax()
            θ, ε = weights[layer], 1e-2
            scaled = [θ.clone() for _ in range(2)]
            for tensor, sign in zip(scaled, (1, -1), strict=True):
                tensor.view(-1)[index] *= 1 + sign * ε
            up, down = (objective.loss(weights | {layer: tensor}).double() for tensor in scaled)
            assert abs(up - down).item() / (2 * ε) == pytest.approx(score_.max().item(), rel=0.05, abs=1e-5)


def test_files(transitions, tmp_path):
    dataset = tmp_path / "transitions.safetensors"
    transitions.save(dataset)
    outputs = [tmp_path / "first", tmp_path / "second"]
    for output in outputs:
        output.mkdir()
    jobs = [Job(params("grasp", seed=seed), {"dataset": dataset}, out) for seed, out in enumerate(outputs)]

    list(prune_agent(jobs))

    algorithm = make_algorithm(jobs[1].params.agent, BCQConfig(), 11, 3)
    masks = load_masks(outputs[1] / "masks.safetensors", algorithm)
    with (outputs[1] / "layers.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == columns_of(LayerRow)
    for row in rows:
        mask = masks[row["network"]][row["layer"]]
        assert (int(row["weights_kept"]), int(row["weights_total"])) == (int(mask.sum()), mask.numel())
        # Of the layers that read the state, which is what their first 11 inputs are.
        seen = sum(bool(mask[:, i].any()) for i in range(11)) if row["layer"] in READ_STATES else None
        assert (row["states_kept"], row["states_total"]) == (("", "") if seen is None else (str(seen), "11"))
        assert (row["environment"], row["pruner"], row["sparsity"], row["seed"]) == (
            "Hopper",
            "grasp",
            "0.95",
            "1",
        )
    assert len(rows) == 3 + 6 + 7
    first = safetensors.torch.load_file(outputs[0] / "masks.safetensors")
    assert not torch.equal(first["vae.mean"], masks["vae"]["mean"])
