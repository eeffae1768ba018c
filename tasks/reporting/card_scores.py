"""The score on a network's card, apart from the scores of many agents, whose modules need no ONNX."""

import pandas

from singleshot.export.onnx_model import AgentScore
from singleshot.rl.environments import Environment
from tasks.reporting.scores import agent_scores
from tasks.reporting.statistics import BootstrapConfig, t_half_width


def score_of(evaluations: pandas.DataFrame, environment: Environment | None) -> AgentScore:
    """An agent's score in its training, with an interval by Student's t over its last evaluations."""
    (score,) = agent_scores(evaluations, ["seed"]).itertuples()
    low = high = None
    if score.evaluations > 1:
        half = t_half_width(score.spread, score.evaluations, BootstrapConfig())
        low, high = score.d4rl_score - half, score.d4rl_score + half
    last = float(evaluations.sort_values("update")["d4rl_score"].iloc[-1])
    referenced = environment and environment.reference_returns
    return AgentScore(
        "D4RL score" if referenced else "return", score.d4rl_score, low, high, score.evaluations, last
    )
