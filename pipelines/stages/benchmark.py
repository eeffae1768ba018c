"""The stage `benchmark`: exported graphs on every runtime."""

import logging
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path

from pipelines.catalog.agents import AGENT_TAGS, environment_of
from pipelines.catalog.exports import (
    TrainedNetwork,
    benchmarked_agents,
    classifier,
    policy_of,
    style_network,
)
from pipelines.catalog.paths import CLASSIFICATION, SAMPLES, TIMINGS
from pipelines.config.params import Config
from pipelines.engine.cells import Cell
from pipelines.engine.stage import Work, step
from singleshot.export.measurement import InputSize, Measurement
from singleshot.export.onnx_model import Form
from singleshot.export.runtimes import RUNTIMES, installed_version
from tasks.benchmark import BenchmarkParams, benchmark
from tasks.tables import concatenate

log = logging.getLogger(__name__)


@step(
    "benchmark",
    tags=(*AGENT_TAGS, "form", "style", "architecture"),
    metrics=("torch_p50_ms_threads_1", "onnxruntime_p50_ms_threads_1", "openvino-f32_p50_ms_threads_1"),
    tables=(TIMINGS, CLASSIFICATION),
)
def benchmark_graphs(work: Work, config: Config) -> None:
    """Run exported networks on every runtime, and compare their outputs and latencies.

    `<runtime>_p50_ms_threads_<n>`: the median latency in milliseconds. Steps are batch sizes or, for
    pictures, side lengths in pixels. `timings.csv` has errors and percentiles.
    """
    parts = work.compute(list(benchmark_cells(config)), gpu=True, alone=True)
    concatenate([part / "timings.csv" for part in parts], TIMINGS)
    concatenate([parts[-1] / "classification.csv"], CLASSIFICATION)


def benchmark_cells(config: Config) -> Iterator[Cell]:
    """A cell for each graph that is timed, the classifier's last.

    Style networks have the same shape and latency, so only one is timed.
    """
    measured = config.deployment.benchmark
    settings = Measurement(**{each.name: getattr(measured, each.name) for each in fields(Measurement)})
    runtimes = {name: installed_version(name) for name in measured.runtimes}
    states = BenchmarkParams(runtimes, tuple(InputSize(batch) for batch in measured.batches), settings)
    agents = list(benchmarked_agents(config))
    if not agents:
        log.warning("deployment.benchmark.agents matches no agent of offline_rl.sweep: no policy is timed")
    for agent in agents:
        params, source = replace(states, environment=environment_of(config, agent)), policy_of(agent)
        yield from (_cell(source, form, params) for form in source.forms)
    squares = tuple(InputSize(1, size_px) for size_px in measured.sizes_px)
    style = style_network(config.style.training.styles[0])
    yield _cell(style, "dense", BenchmarkParams(runtimes, squares, settings))
    asked = BenchmarkParams(runtimes, (InputSize(1),), settings, photos=measured.photos)
    yield _cell(classifier(config), "dense", asked, photos=SAMPLES)


def _cell(source: TrainedNetwork, form: Form, params: BenchmarkParams, **more: Path) -> Cell:
    inputs = {"onnx": source.graph(form), "source": source.path, **more}
    tags = {**source.tags, "form": form}
    # The modules that the task imports by name.
    modules = (*source.modules, *(RUNTIMES[name].module for name in params.runtimes))
    return Cell(f"{source.cell}/{form}", benchmark, params, inputs, tags, modules=modules)


STEPS = (benchmark_graphs,)
