"""Task: the effect of rounding a trained agent's values on its return and on its size in bytes."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, MinLen

from singleshot.io.tables import write_csv
from singleshot.io.tensor_file import TensorFile, read_tensor_file
from singleshot.job import Event, Job, Metrics, Progress, per_job
from singleshot.rl.agents import AgentSpec, agent_of
from singleshot.rl.data.replay import Randomness
from singleshot.rl.environments import Environment
from singleshot.rl.evaluation.play import Environments, EvaluationConfig, Score, play
from singleshot.sparse.packed import ValuesName, pack, unpack


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
        score = _score(unpack(packed).model, params)
        rows.append(QuantizedRow(params.agent, values, len(packed), score))
        metrics[f"d4rl_score_{values}"] = score.d4rl_score
        metrics[f"bytes_{values}"] = float(len(packed))
        yield Progress(n / len(params.values))
    write_csv(job.output / "quantized.csv", QuantizedRow, rows)
    yield Metrics(params.update, metrics)


def _score(model: TensorFile, params: QuantizeParams) -> Score:
    agent = agent_of(model)
    environments = Environments(params.environment, 1, params.evaluation.final.episodes)
    randomness = Randomness("evaluation", [params.agent.seed], params.update)
    (returns,) = play(agent.algorithm, agent.acting_networks(), environments, randomness)
    environments.close()
    return Score.of(returns, params.environment)
