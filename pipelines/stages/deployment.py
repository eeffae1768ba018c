"""Stages of deployment: `export` trained networks to ONNX, and `benchmark` them on every runtime."""

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path

from pipelines import stages
from pipelines.config.params import Config
from pipelines.engine.cells import Cell
from pipelines.engine.stage import Work, step
from pipelines.stages import AGENTS, CLASSIFICATION, EXPORTS, GRAPHS, SAMPLES, TIMINGS
from singleshot.export.measurement import InputSize, Measurement
from singleshot.export.runtimes import RUNTIMES, installed_version
from singleshot.io.onnx_model import Form
from singleshot.io.tables import concatenate
from singleshot.job import Task
from singleshot.pruning.variant import DENSE
from singleshot.rl.agents import AGENT_FILE, AgentSpec
from singleshot.rl.policies import forms_of
from tasks.benchmark import BenchmarkParams, benchmark
from tasks.export import (
    ClassifierParams,
    ExportParams,
    export_classifier,
    export_policy,
    export_style,
    graph_name,
)

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TrainedNetwork:
    """A trained network, from which ONNX graphs are exported."""

    cell: str
    """The network's directory below `GRAPHS`, and the name of its runs in MLflow."""
    path: Path
    """The file from which PyTorch loads the network."""
    tags: Mapping[str, str]
    forms: tuple[Form, ...] = ("dense",)
    """The forms in which the network is exported, besides the file with sparse initialisers."""
    modules: tuple[str, ...] = ()
    """The modules that a task which loads the network imports by name."""


def policy_of(agent: AgentSpec) -> TrainedNetwork:
    """A trained agent's policy. If pruned, it is exported both with its zeros and without its dead units."""
    path = AGENTS / agent.name / AGENT_FILE
    return TrainedNetwork(agent.name, path, agent.tags, forms_of(agent), (agent.module,))


def style_network(style: str) -> TrainedNetwork:
    """A trained style's network."""
    return TrainedNetwork(f"styles/{style}", stages.style_network(style), {"style": style})


def classifier(config: Config) -> TrainedNetwork:
    """The ImageNet classifier, whose weights the stage `export` saves beside its graph."""
    architecture = config.deployment.classifier.architecture
    cell = f"classifiers/{architecture}"
    return TrainedNetwork(cell, GRAPHS / cell / "classifier.safetensors", {"architecture": architecture})


def exported_agents(config: Config) -> Iterator[AgentSpec]:
    """The agents whose policies are exported."""
    seeds = config.deployment.export.seeds
    return (agent for agent in config.offline_rl.agents() if seeds is None or agent.seed in seeds)


def benchmarked_agents(config: Config) -> Iterator[AgentSpec]:
    """The exported agents that are timed."""
    chosen = config.deployment.benchmark.agents
    environments = chosen.environments or tuple(config.offline_rl.environments)[:1]
    return (
        agent
        for agent in exported_agents(config)
        if agent.environment in environments
        and agent.algorithm in chosen.algorithms
        and agent.pruner in {DENSE, *chosen.pruners}
        and agent.sparsity in chosen.sparsities
        and agent.seed in chosen.seeds
    )


@step("export_onnx", EXPORTS)
def export_onnx(work: Work, config: Config) -> None:
    """Export agents, style networks and an ImageNet classifier to ONNX.

    `bytes_<form>` and `parameters_<form>`: the size of the graph. `max_abs_error_<form>`: its largest
    difference from PyTorch in float64. The stage `register` enters the smallest exact form of each network
    in the model registry.
    """
    concatenate(work.compute(list(export_cells(config)), GRAPHS), EXPORTS)


def export_cells(config: Config) -> Iterator[Cell]:
    """A cell for the ImageNet classifier, each style network, and each exported agent.

    Pictures' networks take 6 to 10 s each, agents' 1 to 3. The long ones begin first, so that no core waits
    for them at the end.
    """
    chosen, source = config.deployment.classifier, classifier(config)
    export = ExportParams(source.cell, config.deployment.export.opset)
    params = ClassifierParams(chosen.architecture, chosen.weights, export)
    yield Cell(source.cell, export_classifier, params, tags=source.tags)
    for style in config.style.training.styles:
        yield _export_cell(config, export_style, style_network(style))
    for agent in exported_agents(config):
        source = policy_of(agent)
        yield _export_cell(config, export_policy, source, scores=source.path.with_name("scores.csv"))


def _export_cell(config: Config, task: Task, source: TrainedNetwork, **more: Path) -> Cell:
    export = config.deployment.export
    params = ExportParams(source.cell, export.opset, export.sparse_initializers)
    inputs = {"source": source.path, **more}
    return Cell(source.cell, task, params, inputs, source.tags, modules=source.modules)


@step("benchmark", TIMINGS, CLASSIFICATION)
def benchmark_graphs(work: Work, config: Config) -> None:
    """Run exported networks on every runtime, and compare their outputs and latencies.

    `<runtime>_p50_ms_threads_<n>`: the median latency in milliseconds. Steps are batch sizes or, for
    pictures, side lengths in pixels. `timings.csv` has errors and percentiles.
    """
    parts = work.compute(list(benchmark_cells(config)), gpu=True, alone=True)
    concatenate(parts, TIMINGS)
    concatenate(parts[-1:], CLASSIFICATION)


def benchmark_cells(config: Config) -> Iterator[Cell]:
    """A cell for each graph that is timed, the classifier's last.

    Style networks have the same shape and latency, so only one is timed.
    """
    measured = config.deployment.benchmark
    settings = Measurement(**{each.name: getattr(measured, each.name) for each in fields(Measurement)})
    runtimes = {name: installed_version(name) for name in measured.runtimes}
    states = BenchmarkParams(runtimes, tuple(InputSize(batch) for batch in measured.batches), settings)
    timed = list(benchmarked_agents(config))
    if not timed:
        log.warning("deployment.benchmark.agents matches no agent of offline_rl.sweep: no policy is timed")
    for agent in timed:
        environment, source = config.offline_rl.environment_of(agent), policy_of(agent)
        params = replace(states, environment=environment)
        yield from (_benchmark_cell(source, form, params) for form in source.forms)
    squares = tuple(InputSize(1, size_px) for size_px in measured.sizes_px)
    style = style_network(config.style.training.styles[0])
    yield _benchmark_cell(style, "dense", BenchmarkParams(runtimes, squares, settings))
    asked = BenchmarkParams(runtimes, (InputSize(1),), settings, photos=measured.photos)
    yield _benchmark_cell(classifier(config), "dense", asked, photos=SAMPLES)


def _benchmark_cell(source: TrainedNetwork, form: Form, params: BenchmarkParams, **more: Path) -> Cell:
    inputs = {"onnx": GRAPHS / source.cell / graph_name(source.cell, form), "source": source.path, **more}
    tags = {**source.tags, "form": form}
    # The modules that the task imports by name.
    modules = (*source.modules, *(RUNTIMES[name].module for name in params.runtimes))
    if params.environment:
        modules = (*modules, *params.environment.modules)
    return Cell(f"{source.cell}/{form}", benchmark, params, inputs, tags, modules=modules)
