"""Task: export the ImageNet classifier as an ONNX file."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge

from singleshot.export.classifier import ClassifierName, ClassifierSource, fetch_classifier, save_classifier
from singleshot.export.model_files import open_classifier
from tasks.export_graph import ExportParams, export
from tasks.job import Event, Job, per_job


@dataclass(frozen=True)
class ClassifierParams:
    """The classifier to export, and how."""

    cell: str
    """Cell of the classifier, `classifiers/<architecture>`."""
    architecture: ClassifierName
    weights: ClassifierSource
    opset: Annotated[int, Ge(18)]
    """Version of ONNX's operators."""


@per_job
def export_classifier(job: Job) -> Iterator[Event]:
    """Fetch a job's classifier (:class:`ClassifierParams`) and export it.

    There are no inputs. The output gets `classifier.safetensors`
    (see :func:`~singleshot.export.classifier.load_classifier`), its graph and `exports.csv`, as from
    :func:`~tasks.export_policy.export_policy`.

    Raises:
        UserError: the weights can't be fetched.
        ArithmeticError: the graph computes something else than the network.
    """
    params: ClassifierParams = job.params
    source = job.output / "classifier.safetensors"
    module, card = fetch_classifier(params.architecture, params.weights)
    save_classifier(module, card, source)
    return export(job, ExportParams(params.cell, params.opset), source, [open_classifier(source)])
