"""The step `measure_pruned_styles` has one cell for each style, with all its networks; cells run alone."""

from itertools import groupby

from pipelines.catalog.exports import pruned_style_network, style_network
from pipelines.catalog.paths import PRUNED_PICTURES, PRUNED_STYLES, SAMPLES
from pipelines.catalog.styles import PrunedStyle, judges, pruned_styles
from pipelines.config.params import Config
from pipelines.engine.cells import Cell
from pipelines.engine.stage import Step
from singleshot.pruning.variant import DENSE
from tasks.measure_pruned_styles import (
    PrunedNetwork,
    PrunedStyleRow,
    PrunedStylesParams,
    measure_pruned_styles,
)
from tasks.tables import concatenate, write_csv


def run(step: Step, config: Config) -> None:
    """Write `pruning.csv`, and one photo stylised with each network."""
    by_style = groupby(pruned_styles(config), lambda network: network.style)
    cells = [_cell(config, style, list(networks)) for style, networks in by_style]
    directories = step.compute(cells, PRUNED_PICTURES, alone=True)
    if directories:
        concatenate([directory / "pruning.csv" for directory in directories], PRUNED_STYLES)
    else:
        write_csv(PRUNED_STYLES, PrunedStyleRow, [])  # DVC requires every out, even if no style is pruned


def _cell(config: Config, style: str, pruned: list[PrunedStyle]) -> Cell:
    quality, pruning = config.style.quality, config.style.pruning
    params = PrunedStylesParams(
        style,
        (PrunedNetwork(DENSE, 0.0), *(PrunedNetwork(each.pruner, each.sparsity) for each in pruned)),
        photos=quality.photos,
        quality_px=quality.size_px,
        speed_px=pruning.size_px,
        seconds=pruning.seconds,
    )
    sources = {DENSE: style_network(style), **{each.variant: pruned_style_network(each) for each in pruned}}
    networks = {variant: source.path for variant, source in sources.items()}
    for variant, source in sources.items():
        networks |= {f"{variant}/{form}": source.graph(form) for form in source.forms}
    inputs = {**judges(style), "photos": SAMPLES, **networks}
    return Cell(style, measure_pruned_styles, params, inputs, {"style": style})
