import csv
import json
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import safetensors.torch
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from singleshot.errors import UserError
from singleshot.job import Checkpoint, Job, Metrics, Progress
from singleshot.pruning import dynamic
from singleshot.pruning.masks import PruningConfig
from singleshot.rl.agents import AgentSpec, load_agent, parts_of
from singleshot.rl.algorithms.bc import BCConfig
from singleshot.rl.algorithms.bcq import BCQConfig
from singleshot.rl.algorithms.iql import IQLConfig
from singleshot.rl.algorithms.td3bc import TD3BCConfig
from singleshot.rl.data.replay import Randomness
from singleshot.rl.environments import LOCOMOTION
from singleshot.rl.evaluation.episode import load_episode
from singleshot.rl.evaluation.play import Environments, EvaluationConfig, play
from singleshot.rl.training.stack import repeat
from tasks.prune_agent import PruneParams, prune_agent
from tasks.train_agents import Training, TrainingConfig, TrainParams, train

FILES = ("agent.safetensors", "agent.json", "episode.safetensors", "scores.csv")
BCQ_SMALL = BCQConfig(batch_size=20, evaluation_samples=2)
ALL_SMALL = [BCQ_SMALL, BCConfig(batch_size=20), TD3BCConfig(batch_size=20), IQLConfig(batch_size=20)]
TRAINING = TrainingConfig(updates=5, eval_every=3, checkpoint_every=2)

on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.fixture
def make_jobs(transitions, tmp_path):
    """Jobs of agents (pruner, sparsity, seed), with masks made, and a fresh output each time."""
    dataset = tmp_path / "transitions.safetensors"
    transitions.save(dataset)
    count = iter(range(1000))

    def make(*agents, algorithm=BCQ_SMALL, training=TRAINING, **others):
        jobs = []
        for agent in agents:
            name = type(algorithm).__name__.removesuffix("Config").lower()
            spec, inputs = AgentSpec("Hopper", name, *agent), {"dataset": dataset}
            if spec.mask_pruner:
                masks = tmp_path / f"masks-{spec}"
                if not masks.exists():
                    masks.mkdir()
                    params = PruneParams(spec, algorithm, PruningConfig())
                    list(prune_agent([Job(params, {"dataset": dataset}, masks)]))
                inputs["masks"] = masks / "masks.safetensors"
            output = tmp_path / f"output-{next(count)}"
            output.mkdir()
            params = TrainParams(
                spec, LOCOMOTION["Hopper"], algorithm, training, EvaluationConfig(episodes=2), **others
            )
            jobs.append(Job(params, inputs, output))
        return jobs

    return make


def files(jobs):
    return [{name: (job.output / name).read_bytes() for name in FILES} for job in jobs]


STACK = (("snip", 0.95, 0), ("dense", 0.0, 0), ("random", 0.5, 1))


@pytest.fixture
def frequent_changes(monkeypatch):
    """Masks change after updates 1 to 3 (`set`, `rigl`), 2 to 4 (`gradual`), 3 (`finetuned`) of 5."""
    monkeypatch.setattr(dynamic, "INTERVAL", 1)


LARGE = ("encoder.1", "decoder.1")
"""Layers of BC of which Erdős–Rényi densities leave some weights out."""
METHODS_STACK = tuple((method, 0.9, seed) for seed, method in enumerate(dynamic.METHODS))


@pytest.mark.usefixtures("frequent_changes")
@pytest.mark.parametrize(
    ("agents", "algorithm"),
    [
        (STACK, BCQ_SMALL),
        (STACK[:1], IQLConfig(batch_size=20)),  # alone, with its kept weights
        (STACK[1:2], TD3BCConfig(batch_size=20)),
        (METHODS_STACK, TD3BCConfig(batch_size=20)),
        ((("rigl", 0.9, 0),), BCQ_SMALL),
        ((("gradual", 0.9, 0),), BCConfig(batch_size=20)),
        ((("small", 0.95, 0),), BCConfig(batch_size=20)),
    ],
    ids=["stack", "snip", "dense", "stack of methods", "rigl", "gradual", "small"],
)
def test_interrupted_training_ends_with_the_same_bytes(make_jobs, agents, algorithm):
    through = make_jobs(*agents, algorithm=algorithm)
    list(train(through))

    checkpoints, interruptions = {}, 0
    while True:  # every call is killed right after its first checkpoints
        jobs = make_jobs(*agents, algorithm=algorithm)
        jobs = [replace(job, checkpoint=checkpoints.get(i)) for i, job in enumerate(jobs)]
        events, fresh = train(jobs), {}
        for event in events:
            if isinstance(event, Checkpoint):
                fresh[event.job] = event.state
                if len(fresh) == len(jobs):
                    events.close()
                    break
        else:
            break
        checkpoints, interruptions = fresh, interruptions + 1
        assert all(
            safetensors.torch.load(each)["update"] == 2 * interruptions for each in checkpoints.values()
        )

    assert interruptions == 2
    assert files(jobs) == files(through)


@pytest.mark.usefixtures("frequent_changes")
@pytest.mark.parametrize("agents", [METHODS_STACK, (("rigl", 0.9, 0),), (("gradual", 0.9, 0),)])
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=on_gpu)])
def test_masks_that_change_keep_as_many_weights_as_asked_for(make_jobs, agents, device):
    jobs = make_jobs(*agents, algorithm=BCConfig(batch_size=20))
    training = Training([replace(job, device=device) for job in jobs])
    stack = training.stack
    first = [member.masks["vae"] for member in stack.members]
    while stack.update < TRAINING.updates:
        stack.train_until(stack.next_stop())
        for i, (method, sparsity, _) in enumerate(agents):
            masks, whole = stack.members[i].masks["vae"], stack.learner.whole(i)["vae"]
            assert not any(whole.weights[layer][0].T[~mask].any() for layer, mask in masks.items())
            for layers in parts_of(stack.algorithm)["vae"].values():
                total = sum(masks[layer].numel() for layer in layers)
                if method in ("set", "rigl") or stack.update >= 4:
                    assert sum(int(masks[layer].sum()) for layer in layers) == total - round(sparsity * total)
    for before, member in zip(first, stack.members, strict=True):
        assert not any(torch.equal(before[layer], member.masks["vae"][layer]) for layer in LARGE)
    training.close()


def test_evaluations_are_rare_before_the_configured_update_and_end_with_the_last(make_jobs):
    training = TrainingConfig(updates=21, eval_every=2, checkpoint_every=100, eval_from=18)
    (job,) = make_jobs(STACK[0], training=training)
    list(train([job]))
    scores = (job.output / "scores.csv").read_text().splitlines()
    at = scores[0].split(",").index("update")
    assert [int(row.split(",")[at]) for row in scores[1:]] == [8, 16, 18, 20, 21]


def test_checkpoints_of_agents_from_different_stacks_can_be_joined(make_jobs):
    """Each checkpoint is its agent's own: two that trained apart go on together."""
    states = []
    for agent in STACK[:2]:
        (job,) = make_jobs(agent)
        states.append(next(e.state for e in train([job]) if isinstance(e, Checkpoint)))
    jobs = [replace(job, checkpoint=s) for job, s in zip(make_jobs(*STACK[:2]), states, strict=True)]
    list(train(jobs))

    (alone,) = make_jobs(STACK[0])
    list(train([alone]))
    joined, solo = (safetensors.torch.load_file(j.output / "agent.safetensors") for j in (jobs[0], alone))
    for name, tensor in solo.items():
        assert (joined[name].float() - tensor.float()).abs().max() < 1e-3, name


def test_events_and_files(make_jobs):
    jobs = make_jobs(*STACK)
    events = list(train(jobs))

    metrics = [event for event in events if isinstance(event, Metrics)]
    assert [(m.job, m.step) for m in metrics] == [(i, step) for step in (3, 5) for i in range(3)]
    losses = {"reconstruction_loss", "kl_loss", "critic_loss", "actor_loss"}
    assert set(metrics[0].values) == losses | {"return_mean", "d4rl_score", "updates_per_second"}
    checkpoints = [event for event in events if isinstance(event, Checkpoint)]
    assert [(c.job, c.step) for c in checkpoints] == [(i, step) for step in (2, 4) for i in range(3)]
    progress = [event.fraction for event in events if isinstance(event, Progress)]
    assert progress == sorted(progress)
    assert progress[-1] == 1

    for i, (job, agent) in enumerate(zip(jobs, STACK, strict=True)):
        with (job.output / "scores.csv").open() as file:
            rows = list(csv.DictReader(file))
        assert ",".join(rows[0]) == (
            "environment,algorithm,pruner,sparsity,seed,update,return_mean,return_std,d4rl_score,episodes"
        )
        assert [int(row["update"]) for row in rows] == [3, 5]
        for row, event in zip(rows, [m for m in metrics if m.job == i], strict=True):
            assert (row["pruner"], float(row["sparsity"]), int(row["seed"])) == agent
            assert float(row["return_mean"]) == event.values["return_mean"]
            score = LOCOMOTION["Hopper"].score(float(row["return_mean"]))
            assert float(row["d4rl_score"]) == score == event.values["d4rl_score"]
            assert row["episodes"] == "2"
        description = json.loads((job.output / "agent.json").read_text())
        assert description["stack_size"] == 3
        assert description["agent"]["pruner"] == agent[0]
        assert {path.name for path in job.output.iterdir()} == set(FILES)


def test_losses_are_means_of_the_updates_that_computed_them_since_the_last_evaluation(make_jobs):
    """Evaluated at every update, losses are those that a later evaluation averages; TD3+BC's actor is updated
    in updates 2 and 4."""
    algorithm = TD3BCConfig(batch_size=20)
    (single, together) = (
        [
            event.values
            for event in train(
                make_jobs(STACK[0], algorithm=algorithm, training=TrainingConfig(5, eval_every, 100))
            )
            if isinstance(event, Metrics)
        ]
        for eval_every in (1, 5)
    )
    assert ["actor_loss" in values for values in single] == [False, True, False, True, False]
    mean = (single[1]["actor_loss"] + single[3]["actor_loss"]) / 2
    assert together[0]["actor_loss"] == pytest.approx(mean, rel=1e-12)
    critic_losses = [values["critic_loss"] for values in single]
    assert together[0]["critic_loss"] == pytest.approx(np.mean(critic_losses), rel=1e-12)


@pytest.mark.parametrize("algorithm", [BCQ_SMALL, IQLConfig(batch_size=20)])
def test_an_agent_trained_on_normalized_states_is_saved_for_raw_ones(make_jobs, algorithm):
    (job,) = make_jobs(STACK[0], algorithm=replace(algorithm, normalize_states=True))
    (*_, last) = [event for event in train([job]) if isinstance(event, Metrics)]
    agent = load_agent(job.output / "agent.safetensors")
    environments = Environments(LOCOMOTION["Hopper"], 1, 2)
    returns = play(agent.algorithm, agent.networks, environments, Randomness("evaluation", [0], 5))
    assert returns.mean() == pytest.approx(last.values["return_mean"], rel=1e-3)
    scored = load_episode(job.output / "episode.safetensors")
    assert scored.returns[-1] == pytest.approx(returns[0].min(), rel=1e-3), "the lower one of two"
    masks = safetensors.torch.load_file(job.inputs["masks"])
    for key, mask in masks.items():
        network, layer = key.split(".", 1)
        assert torch.equal(agent.networks[network].weights[layer][0].T != 0, mask), key


def test_reinitialized_agents_train_other_weights_under_the_same_mask(make_jobs):
    jobs = make_jobs(STACK[0]) + make_jobs(STACK[0], reinitialize=True)
    tensors = []
    for job in jobs:
        list(train([job]))
        tensors.append(safetensors.torch.load_file(job.output / "agent.safetensors"))
    scored, redrawn = tensors
    assert torch.equal(scored["actor.pi.1.mask"], redrawn["actor.pi.1.mask"])
    kept = scored["actor.pi.1.mask"]
    assert (scored["actor.pi.1.weight"] - redrawn["actor.pi.1.weight"])[kept].abs().mean() > 0.01


def test_a_loss_that_is_not_finite_stops_training_by_name(make_jobs):
    jobs = make_jobs(STACK[1], ("dense", 0.0, 1), algorithm=replace(BCQ_SMALL, learning_rate=1e18))
    with pytest.raises(UserError, match=r"Hopper bcq dense 0 seed 0: .*loss became (nan|inf).* update 2;"):
        list(train(jobs))


def test_jobs_that_are_no_stack_are_refused(make_jobs):
    state = next(event.state for event in train(make_jobs(STACK[0])) if isinstance(event, Checkpoint))
    first, second = make_jobs(*STACK[:2])
    for jobs, named in (
        (make_jobs(("small", 0.9, 0), ("dense", 0.0, 0)), "pruner"),
        (make_jobs(STACK[0]) + make_jobs(STACK[0], training=replace(TRAINING, updates=8)), "alone"),
        ([replace(first, checkpoint=state), second], "same update"),
    ):
        with pytest.raises(ValueError, match=named):
            next(train(jobs))


def test_a_checkpoint_of_another_kind_of_device_goes_on_with_other_draws(make_jobs):
    """A GPU's generator has a state of 16 bytes, a CPU's of 5,056: what it would have drawn nobody knows."""
    (job,) = make_jobs(STACK[1])
    state = next(event.state for event in train([job]) if isinstance(event, Checkpoint))
    tensors = safetensors.torch.load(state)
    from_gpu = safetensors.torch.save(tensors | {"generator": torch.zeros(16, dtype=torch.uint8)})
    ends = []
    for checkpoint in (state, from_gpu, from_gpu):
        (job,) = make_jobs(STACK[1])
        list(train([replace(job, checkpoint=checkpoint)]))
        ends.append((job.output / "agent.safetensors").read_bytes())
    own, other, again = ends
    assert own != other == again


# What a CUDA graph asks of an update, and any machine can tell.


@pytest.mark.parametrize("algorithm", [BCQ_SMALL, IQLConfig(batch_size=20)])
def test_what_changes_in_training_stays_where_it_is(make_jobs, algorithm):
    training = Training(make_jobs(*STACK, algorithm=algorithm))
    stack = training.stack

    def places():
        networks = [*stack.learner.networks.values(), *stack.learner.targets.values()]
        optimizers = stack.learner.optimizers.values()
        tensors = [parameter for network in networks for parameter in network.parameters().values()]
        tensors += [moment for o in optimizers for state in o.state.values() for moment in state.values()]
        tensors += [*stack.losses.sums.values(), *stack.losses.counts.values()]
        return [tensor.data_ptr() for tensor in tensors], list(map(id, stack.randomness.generators.values()))

    training.train_until(2)
    before = places()
    training.train_until(3)
    list(training.evaluate())
    list(training.checkpoints())
    training.train_until(5)
    assert places() == before


class Operations(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.names = set()

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        self.names.add(operation.overloadpacket.__name__)
        return operation(*args, **(kwargs or {}))


@pytest.mark.parametrize("algorithm", [BCQ_SMALL, IQLConfig(batch_size=20)])
def test_an_update_neither_reads_a_value_back_nor_brings_one_in(make_jobs, algorithm):
    stack = Training(make_jobs(*STACK, algorithm=algorithm)).stack
    stack.make_update(0)
    with Operations() as seen:
        stack.make_update(0)
    assert {"bmm", "_fused_adam_", "randint"} <= seen.names
    assert not seen.names & {"_local_scalar_dense", "nonzero", "masked_select", "lift_fresh", "_to_copy"}

    with Operations() as seen:  # the names are those that such operations have
        torch.tensor([1.0]).to(torch.float64).nonzero().sum().item()
    assert {"_local_scalar_dense", "nonzero", "lift_fresh", "_to_copy"} <= seen.names


LONGER = TrainingConfig(updates=40, eval_every=30, checkpoint_every=20)


def gpu_jobs(make_jobs, *agents, training=LONGER, **others):
    return [replace(job, device="cuda") for job in make_jobs(*agents, training=training, **others)]


@on_gpu
@pytest.mark.parametrize("algorithm", ALL_SMALL)
@pytest.mark.parametrize("agents", [STACK, STACK[1:2]], ids=["stack", "dense"])
def test_a_graph_makes_the_updates_that_calls_make(make_jobs, algorithm, agents):
    states = []
    for captured in (True, False):
        training = Training(gpu_jobs(make_jobs, *agents, algorithm=algorithm))
        stack = training.stack
        if not captured:
            stack.make_updates = partial(repeat, stack.make_update, stack.algorithm.delay)
        training.train_until(2)
        training.train_until(20)
        list(training.evaluate())
        training.train_until(40)
        states.append([event.state for event in training.checkpoints()])
    assert states[0] == states[1]


@on_gpu
@pytest.mark.parametrize("algorithm", ALL_SMALL)
def test_interrupted_training_on_a_gpu_ends_with_the_same_bytes(make_jobs, algorithm):
    through = gpu_jobs(make_jobs, *STACK, algorithm=algorithm)
    states = [event.state for event in train(through) if isinstance(event, Checkpoint)]
    resumed = gpu_jobs(make_jobs, *STACK, algorithm=algorithm)
    list(train([replace(job, checkpoint=state) for job, state in zip(resumed, states, strict=True)]))
    assert files(resumed) == files(through)
