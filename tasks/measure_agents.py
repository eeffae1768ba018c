"""Tasks: agents in motion, bytes of their networks in each storage format, and the cost of rounded values."""

import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import safetensors.torch
from annotated_types import Ge, Gt, MinLen
from PIL import Image
from torch import Tensor

from singleshot.io.tensor_file import TensorFile, read_tensor_file
from singleshot.rl.agents import AgentSpec, load_agent
from singleshot.rl.environments import Environment
from singleshot.rl.evaluation.drawing import Caption, SideBySide
from singleshot.rl.evaluation.episode import load_episode
from singleshot.rl.evaluation.play import EvaluationConfig, Score, make_environments, play
from singleshot.rl.evaluation.video import write_video
from singleshot.rl.randomness import Randomness
from singleshot.sparse.formats import Size, measure
from singleshot.sparse.packed import ValuesName, pack, unpack
from tasks.job import Event, Job, Metrics, Progress, per_job
from tasks.tables import write_csv

VIDEO, STILL = "animation.mp4", "still.jpg"
WIDTH, HEIGHT = 400, 226
"""Size of each agent's lane, in pixels."""


@dataclass(frozen=True)
class SizeRow:
    """A row of `sizes.csv`: one network in one storage format."""

    model: str
    network: str
    pruner: str
    sparsity: float
    seed: int
    size: Size


@per_job
def measure_sizes(job: Job) -> None:
    """Write `sizes.csv` for an agent: a :class:`SizeRow` for each network and format.

    The parameters are its :class:`~singleshot.rl.agents.AgentSpec`. The input is `model`, a safetensors file
    with tensors `network.layer.weight` and `….bias`; its other tensors (masks) are not counted.
    """
    spec: AgentSpec = job.params
    model = f"{spec.environment}/{spec.algorithm}"
    rows = [
        SizeRow(model, network, spec.pruner, spec.sparsity, spec.seed, size)
        for network, tensors in _networks(read_tensor_file(job.inputs["model"]).tensors).items()
        for size in measure(tensors)
    ]
    write_csv(job.output / "sizes.csv", SizeRow, rows)


def _networks(tensors: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    networks: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        network, _, parameter = name.partition(".")
        if parameter.endswith((".weight", ".bias")):
            networks.setdefault(network, {})[parameter] = tensor
    return networks


@dataclass(frozen=True)
class QuantizeParams:
    """Everything that the results depend on, besides the agent's file."""

    agent: AgentSpec
    environment: Environment
    values: Annotated[tuple[ValuesName, ...], MinLen(1)]
    """Kinds of values that the agent is packed with, one after another."""
    evaluation: EvaluationConfig
    update: Annotated[int, Ge(1)]
    """Update of the evaluation whose noise is used: the last one of the agent's training."""


@dataclass(frozen=True)
class QuantizedRow:
    """A row of `quantized.csv`: an agent packed with one kind of values."""

    agent: AgentSpec
    values: ValuesName
    bytes: int
    """Bytes of the packed file."""
    score: Score


@per_job
def quantize_agent(job: Job) -> Iterator[Event]:
    """Pack a job's agent with each kind of values, unpack it and score the result (:class:`QuantizeParams`).

    The input is `agent`, an `agent.safetensors`. The output gets `quantized.csv` (:class:`QuantizedRow`).

    Episodes start, and noise is drawn, as in the evaluation after `update`: with lossless values, an agent
    that was trained on raw states reproduces its score in `scores.csv`. An agent that was trained on
    normalised states may not, because its file's weights include the scales of the states and are therefore
    rounded differently.

    Raises:
        UserError: the input holds no agent, or `values` can't hold one of its tensors.
    """
    params: QuantizeParams = job.params
    rows, metrics = [], {}
    for n, values in enumerate(params.values, start=1):
        packed = pack(read_tensor_file(job.inputs["agent"]), values)
        score = _score(unpack(packed).model, job.output, params)
        rows.append(QuantizedRow(params.agent, values, len(packed), score))
        metrics[f"d4rl_score_{values}"] = score.d4rl_score
        metrics[f"bytes_{values}"] = float(len(packed))
        yield Progress(n / len(params.values))
    write_csv(job.output / "quantized.csv", QuantizedRow, rows)
    yield Metrics(params.update, metrics)


def _score(model: TensorFile, directory: Path, params: QuantizeParams) -> Score:
    with tempfile.TemporaryDirectory(dir=directory) as unpacked:
        path = Path(unpacked) / "agent.safetensors"
        safetensors.torch.save_file(dict(model.tensors), path, dict(model.metadata))
        agent = load_agent(path)
    environments = make_environments(params.environment, params.evaluation.final, agents=1)
    randomness = Randomness("evaluation", [params.agent.seed], params.update)
    (returns,) = play(agent.algorithm, agent.acting_networks(), environments, randomness)
    environments.close()
    return Score.of(returns, params.environment)


@dataclass(frozen=True)
class AnimateParams:
    """What is shown of which episodes."""

    environment: Environment
    captions: tuple[Caption, ...]
    """Captions of the agents, in the order of their lanes."""
    seconds: Annotated[float, Gt(0)]
    """Seconds of the episodes that are shown: Hopper's and Walker2d's last 8, HalfCheetah's 50."""


@per_job
def animate(job: Job) -> None:
    """Draw a job's agents side by side, from the start of their episodes.

    Inputs: an `episode.safetensors` for each caption, by the caption's label. The output gets
    `animation.mp4`, and `still.jpg`, the frame after a third of the time.

    Raises:
        UserError: an input holds no episode.
    """
    captions, seconds = job.params.captions, job.params.seconds
    # The environment is the configuration's, because those in files may not import a module.
    episodes = [
        replace(load_episode(job.inputs[caption.label]), environment=job.params.environment)
        for caption in captions
    ]
    scene = SideBySide(episodes, captions, WIDTH, HEIGHT)
    write_video(job.output / VIDEO, scene.frames(seconds), scene.frames_per_second)
    third = min(scene.longest, round(seconds / scene.step_seconds)) // 3
    Image.fromarray(scene.draw(third)).save(job.output / STILL, quality=85)
