"""Task: export policies of trained agents as ONNX files."""

from collections.abc import Iterator

from singleshot.export.policies import forms_of, open_policy
from singleshot.rl.agents import load_agent
from tasks.export_graph import export
from tasks.job import Event, Job, per_job


@per_job
def export_policy(job: Job) -> Iterator[Event]:
    """Export a job's agent (:class:`~tasks.export_graph.ExportParams`), in every form it has.

    The input is `source`, an `agent.safetensors`. The output gets a graph for each form, named by
    :func:`~tasks.export_graph.graph_name`, and `exports.csv`
    (:class:`~tasks.export_graph.ExportRow`). Equal parameters and inputs give equal bytes.

    Raises:
        UserError: the input holds no agent.
        ArithmeticError: a graph computes something else than the network.
    """
    source = job.inputs["source"]
    networks = [open_policy(source, form) for form in forms_of(load_agent(source).spec)]
    return export(job, job.params, source, networks)
