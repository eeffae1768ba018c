"""Task: networks of styles as ONNX files."""

from collections.abc import Iterator, Sequence

from tasks.deployment.export import export
from tasks.deployment.networks import open_style
from tasks.job import Event, Job, Progress


def export_style(jobs: Sequence[Job]) -> Iterator[Event]:
    """Export each job's style (:class:`~tasks.deployment.export.ExportParams`).

    Input is `source`, a style's `model.safetensors`; outputs and errors are as
    :func:`~tasks.deployment.export_policy.export_policy`'s.
    """
    for i, job in enumerate(jobs):
        source = job.inputs["source"]
        yield from export(i, job, job.params, source, [open_style(source)])
        yield Progress((i + 1) / len(jobs))
