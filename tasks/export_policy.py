"""Task: export policies of trained agents as ONNX files."""

from collections.abc import Iterator

import pandas

from singleshot.export.policies import forms_of, open_policy
from singleshot.rl.agents import load_agent
from tasks.export_graph import export
from tasks.job import Event, Job, per_job
from tasks.reporting.card_scores import score_of


@per_job
def export_policy(job: Job) -> Iterator[Event]:
    """Export a job's agent (:class:`~tasks.export_graph.ExportParams`), in every form it has.

    Inputs are `source`, an `agent.safetensors`, and `scores`, its evaluations (`scores.csv`), of which
    the last ones make its score. The output gets a graph for each form, named by
    :func:`~tasks.export_graph.graph_name`, and `exports.csv`
    (:class:`~tasks.export_graph.ExportRow`). Equal parameters and inputs give equal bytes.

    Raises:
        UserError: the input holds no agent.
        ArithmeticError: a graph computes something else than the network.
    """
    source, scores = job.inputs["source"], pandas.read_csv(job.inputs["scores"])
    agent = load_agent(source)
    networks = [open_policy(source, form) for form in forms_of(agent.spec)]
    scored = None if scores.empty else score_of(scores, agent.environment)
    return export(job, job.params, source, networks, scored)
