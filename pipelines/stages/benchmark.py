"""The stage `benchmark`: exported graphs on every runtime."""

import logging
from collections.abc import Iterator

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
from singleshot.export.runtimes import RUNTIMES, runtimes_here
from singleshot.rl.environments import Environment
from tasks.benchmark import BenchmarkParams, InputSize, benchmark
from tasks.benchmark_classifier import ClassifierBenchmarkParams, benchmark_classifier
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
    batches = tuple(InputSize(batch) for batch in measured.batches)
    agents = list(benchmarked_agents(config))
    if not agents:
        log.warning("deployment.benchmark.agents matches no agent of offline_rl.sweep: no policy is timed")
    for agent in agents:
        yield from _forms(config, policy_of(agent), batches, environment_of(config, agent))
    squares = tuple(InputSize(1, size_px) for size_px in measured.sizes_px)
    yield from _forms(config, style_network(config.style.training.styles[0]), squares)
    yield _classifier(config)


def _forms(
    config: Config,
    source: TrainedNetwork,
    sizes: tuple[InputSize, ...],
    environment: Environment | None = None,
) -> Iterator[Cell]:
    for form in source.forms:
        inputs = {"onnx": source.graph(form), "source": source.path}
        params = _params(config, sizes, environment)
        tags, modules = {**source.tags, "form": form}, _modules(source, params)
        yield Cell(f"{source.cell}/{form}", benchmark, params, inputs, tags, modules=modules)


def _classifier(config: Config) -> Cell:
    source = classifier(config)
    params = ClassifierBenchmarkParams(config.deployment.benchmark.photos, _params(config, (InputSize(1),)))
    inputs = {"onnx": source.graph("dense"), "source": source.path, "photos": SAMPLES}
    tags, modules = {**source.tags, "form": "dense"}, _modules(source, params.benchmark)
    return Cell(f"{source.cell}/dense", benchmark_classifier, params, inputs, tags, modules=modules)


def _modules(source: TrainedNetwork, params: BenchmarkParams) -> tuple[str, ...]:
    """The modules that a task which times the network imports by name."""
    return (*source.modules, *(RUNTIMES[runtime.name].module for runtime in params.runtimes))


def _params(
    config: Config, sizes: tuple[InputSize, ...], environment: Environment | None = None
) -> BenchmarkParams:
    measured = config.deployment.benchmark
    return BenchmarkParams(
        runtimes=runtimes_here(measured.runtimes),
        threads=measured.threads,
        sizes=sizes,
        seconds=measured.seconds,
        time_limit_s=measured.time_limit_s,
        rollout_steps=measured.rollout_steps,
        environment=environment,
    )


STEPS = (benchmark_graphs,)
