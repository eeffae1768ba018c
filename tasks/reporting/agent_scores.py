"""The score of an agent: the mean of its last evaluations.

One evaluation is a snapshot: in the study, an agent's last five differ by a standard deviation of 6 points in
the mean over agents and of 35 at most, where the standard error over the 50 episodes of the very last one is
0.7 in the median.
"""

from collections.abc import Sequence

import pandas

EVALUATIONS = 5
"""Number of an agent's evaluations, counted from the last one, whose mean is the agent's score."""


def agent_scores(evaluations: pandas.DataFrame, agent: Sequence[str]) -> pandas.DataFrame:
    """Score each agent from its `evaluations` (columns `update`, `d4rl_score` and those of `agent`).

    Returns:
        a row per agent with the columns of `agent`, and
            `d4rl_score`: mean of the last :data:`EVALUATIONS` evaluations, or of all if there are fewer;
            `spread`: their sample standard deviation in points, NaN for a single one;
            `evaluations`: their number.
    """
    last = evaluations.sort_values("update").groupby(list(agent), dropna=False).tail(EVALUATIONS)
    scores = last.groupby(list(agent), dropna=False)["d4rl_score"]
    columns = {"d4rl_score": "mean", "spread": "std", "evaluations": "count"}
    return scores.agg(**columns).reset_index()
