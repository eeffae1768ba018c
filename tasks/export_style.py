"""Task: export networks of styles as ONNX files."""

from collections.abc import Iterator

from singleshot.export.model_files import open_style
from tasks.export_graph import export
from tasks.job import Event, Job, per_job


@per_job
def export_style(job: Job) -> Iterator[Event]:
    """Export a job's style (:class:`~tasks.export_graph.ExportParams`).

    The input is `source`, a style's `model.safetensors`; outputs and errors are the same as in
    :func:`~tasks.export_policy.export_policy`.
    """
    source = job.inputs["source"]
    return export(job, job.params, source, [open_style(source)])
