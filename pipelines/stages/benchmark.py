"""Stage `benchmark`: one cell an exported graph, by all runtimes, and one for the classifier's answers."""

import logging
import shutil
from collections.abc import Iterator
from pathlib import Path

from pipelines.deployment import Source, benchmarked_policies, classifier, style_network
from pipelines.engine.cells import Cell
from pipelines.engine.config import Config
from pipelines.engine.stage import Stage
from pipelines.styles import SAMPLES
from tasks.deployment.benchmark import BenchmarkParams, Size, benchmark
from tasks.deployment.classify import ClassifyParams, classify
from tasks.deployment.runtimes import RuntimeAt, runtimes_here

log = logging.getLogger(__name__)

TIMINGS = Path("results/deployment/timings.csv")
CLASSIFICATION = Path("results/deployment/classification.csv")
PARTS = Path("build/benchmark")


def run(stage: Stage) -> None:
    """Leave `timings.csv` and `classification.csv`."""
    cells = [*_timed(stage.config), _classification(stage.config)]
    *parts, answers = stage.compute(cells, PARTS, gpu=True, alone=True)
    stage.tabulate([part / "timings.csv" for part in parts], TIMINGS)
    stage.tabulate([answers / "classification.csv"], CLASSIFICATION)
    shutil.rmtree(PARTS)


def _timed(config: Config) -> Iterator[Cell]:
    """Networks of one shape take as long as each other: of the styles it is the first."""
    measured = config.deployment.benchmark
    batches = tuple(Size(batch) for batch in measured.batches)
    policies = list(benchmarked_policies(config))
    if not policies:
        log.warning("deployment.benchmark.agents matches no agent of offline_rl.sweep: no policy is timed")
    for source in policies:
        yield from _forms(config, source, batches)
    squares = tuple(Size(1, size_px) for size_px in measured.sizes_px)
    yield from _forms(config, style_network(config.style.training.styles[0]), squares)
    yield from _forms(config, classifier(config), (Size(1),))


def _forms(config: Config, source: Source, sizes: tuple[Size, ...]) -> Iterator[Cell]:
    measured = config.deployment.benchmark
    params = BenchmarkParams(
        runtimes=_runtimes(config),
        threads=measured.threads,
        sizes=sizes,
        seconds=measured.seconds,
        time_limit_s=measured.time_limit_s,
        rollout_steps=measured.rollout_steps,
    )
    for form in source.forms:
        inputs = {"onnx": source.graph(form), "source": source.path}
        yield Cell(f"{source.cell}/{form}", benchmark, params, inputs, {**source.tags, "form": form})


def _classification(config: Config) -> Cell:
    measured, source = config.deployment.benchmark, classifier(config)
    params = ClassifyParams(measured.photos, _runtimes(config), measured.time_limit_s)
    inputs = {"onnx": source.graph("dense"), "source": source.path, "photos": SAMPLES}
    return Cell("classification", classify, params, inputs, source.tags)


def _runtimes(config: Config) -> tuple[RuntimeAt, ...]:
    return runtimes_here(config.deployment.benchmark.runtimes)
