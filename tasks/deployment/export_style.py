"""Task: networks of styles as ONNX files."""

from collections.abc import Iterator, Sequence

from tasks.deployment.export import export
from tasks.deployment.networks import open_style, style_forms
from tasks.job import Event, Job, Progress


def export_style(jobs: Sequence[Job]) -> Iterator[Event]:
    """Export each job's style (:class:`~tasks.deployment.export.ExportParams`), in every form it has.

    Input is `source`, a style's `model.safetensors`; outputs and errors are as
    :func:`~tasks.deployment.export_policy.export_policy`'s.
    """
    for i, job in enumerate(jobs):
        source = job.inputs["source"]
        yield from export(
            i, job, job.params, source, [open_style(source, form) for form in style_forms(source)]
        )
        yield Progress((i + 1) / len(jobs))
