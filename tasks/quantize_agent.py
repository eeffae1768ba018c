"""Task: the effect of rounding a trained agent's values on its return and on its size in bytes."""

import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import safetensors.torch
from annotated_types import Ge, MinLen

from singleshot.io.tensor_file import read_tensor_file
from singleshot.rl.agents import Agent, AgentSpec, load_agent
from singleshot.rl.environments import Environment
from singleshot.rl.evaluation.play import EvaluationConfig, make_environments, play
from singleshot.rl.randomness import Randomness
from singleshot.sparse.packed import pack, unpack
from singleshot.sparse.values import ValuesName
from tasks.job import Event, Job, Metrics, Progress, per_job
from tasks.tables import write_csv


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

    environment: str
    algorithm: str
    pruner: str
    sparsity: float
    seed: int
    values: ValuesName
    bytes: int
    """Bytes of the packed file."""
    return_mean: float
    return_std: float
    """Population standard deviation over the episodes."""
    d4rl_score: float
    episodes: int


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
    rows = []
    for n, values in enumerate(params.values, start=1):
        rows.append(_score(job, values))
        yield Progress(n / len(params.values))
    write_csv(job.output / "quantized.csv", QuantizedRow, rows)
    scores = {f"d4rl_score_{row.values}": row.d4rl_score for row in rows}
    sizes = {f"bytes_{row.values}": float(row.bytes) for row in rows}
    yield Metrics(params.update, scores | sizes)


def _score(job: Job, values: ValuesName) -> QuantizedRow:
    params: QuantizeParams = job.params
    spec = params.agent
    data = pack(read_tensor_file(job.inputs["agent"]), values)
    agent = _open(data, job.output)
    environments = make_environments(params.environment, params.evaluation.final, agents=1)
    randomness = Randomness("evaluation", [spec.seed], params.update)
    (returns,) = play(agent.algorithm, agent.acting_networks(), environments, randomness)
    environments.close()
    mean = float(returns.mean())
    score = params.environment.score(mean)
    return QuantizedRow(
        **asdict(spec),
        values=values,
        bytes=len(data),
        return_mean=mean,
        return_std=float(returns.std()),
        d4rl_score=score,
        episodes=len(returns),
    )


def _open(data: bytes, directory: Path) -> Agent:
    """Load the agent in a packed file, which is first unpacked to a model file."""
    model = unpack(data).model
    with tempfile.TemporaryDirectory(dir=directory) as unpacked:
        path = Path(unpacked) / "agent.safetensors"
        safetensors.torch.save_file(dict(model.tensors), path, dict(model.metadata))
        return load_agent(path)
