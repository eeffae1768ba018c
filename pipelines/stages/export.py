"""The stage `export`: trained networks as ONNX graphs."""

from collections.abc import Iterator
from pathlib import Path

from pipelines.catalog.agents import AGENT_TAGS
from pipelines.catalog.exports import (
    TrainedNetwork,
    classifier,
    exported_agents,
    policy_of,
    style_network,
)
from pipelines.catalog.paths import EXPORTS, GRAPHS
from pipelines.config.params import Config
from pipelines.engine.cells import Cell
from pipelines.engine.stage import Work, step
from tasks.export import ClassifierParams, ExportParams, export_classifier, export_policy, export_style
from tasks.job import Task
from tasks.tables import concatenate


@step(
    "export_onnx",
    tags=(*AGENT_TAGS, "style", "architecture"),
    metrics=("bytes_dense", "bytes_masked", "bytes_sparse", "bytes_compacted"),
    tables=(EXPORTS,),
)
def export_onnx(work: Work, config: Config) -> None:
    """Export agents, style networks and an ImageNet classifier to ONNX.

    `bytes_<form>` and `parameters_<form>`: the size of the graph. `max_abs_error_<form>`: its largest
    difference from PyTorch in float64. The stage `register` enters the smallest exact form of each network
    in the model registry.
    """
    directories = work.compute(list(export_cells(config)), GRAPHS)
    concatenate([directory / "exports.csv" for directory in directories], EXPORTS)


def export_cells(config: Config) -> Iterator[Cell]:
    """A cell for the ImageNet classifier, each style network, and each exported agent.

    Pictures' networks take 6 to 10 s each, agents' 1 to 3. The long ones begin first, so that no core waits
    for them in the end.
    """
    chosen, source = config.deployment.classifier, classifier(config)
    params = ClassifierParams(
        source.cell, chosen.architecture, chosen.weights, config.deployment.export.opset
    )
    yield Cell(source.cell, export_classifier, params, tags=source.tags)
    for style in config.style.training.styles:
        yield _cell(config, export_style, style_network(style))
    for agent in exported_agents(config):
        source = policy_of(agent)
        yield _cell(config, export_policy, source, scores=source.path.with_name("scores.csv"))


def _cell(config: Config, task: Task, source: TrainedNetwork, **more: Path) -> Cell:
    export = config.deployment.export
    params = ExportParams(source.cell, export.opset, export.sparse_initializers)
    inputs = {"source": source.path, **more}
    return Cell(source.cell, task, params, inputs, source.tags, modules=source.modules)


STEPS = (export_onnx,)
