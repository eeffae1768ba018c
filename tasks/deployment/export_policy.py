"""Task: export policies of trained agents as ONNX files."""

from collections.abc import Iterator

from tasks.deployment.export import export
from tasks.deployment.policies import forms_of, open_policy
from tasks.job import Event, Job, per_job
from tasks.offline_rl.agents import load_agent


@per_job
def export_policy(job: Job) -> Iterator[Event]:
    """Export a job's agent (:class:`~tasks.deployment.export.ExportParams`), in every form it has.

    The input is `source`, an `agent.safetensors`. The output gets a graph for each form, named by
    :func:`~tasks.deployment.export.graph_name`, and `exports.csv`
    (:class:`~tasks.deployment.export.ExportRow`). Equal parameters and inputs give equal bytes.

    Raises:
        UserError: the input holds no agent.
        ArithmeticError: a graph computes something else than the network.
    """
    source = job.inputs["source"]
    networks = [open_policy(source, form) for form in forms_of(load_agent(source).spec)]
    return export(job, job.params, source, networks)
