"""Stage `measure_pruned_styles`: one cell a style, its dense and its pruned networks, which runs alone."""

from itertools import groupby
from pathlib import Path

from pipelines.deployment import pruned_style_network, style_network
from pipelines.engine.cells import Cell
from pipelines.engine.config import Config
from pipelines.engine.stage import Stage
from pipelines.styles import (
    BACKBONES,
    PRUNED_PICTURES,
    SAMPLES,
    PrunedStyle,
    painting_of,
    pruned_styles,
    trained,
)
from tasks.data.tables import write_csv
from tasks.deployment.measure_pruned_styles import (
    PrunedNetwork,
    PrunedStyleRow,
    PrunedStylesParams,
    measure_pruned_styles,
)
from tasks.pruning.variant import DENSE

PRUNING = Path("results/style/pruning.csv")


def run(stage: Stage) -> None:
    """Leave `pruning.csv`, and one photo as each network stylises it."""
    by_style = groupby(pruned_styles(stage.config), lambda network: network.style)
    cells = [_cell(stage.config, style, list(networks)) for style, networks in by_style]
    directories = stage.compute(cells, PRUNED_PICTURES, alone=True)
    if directories:
        stage.tabulate([directory / "pruning.csv" for directory in directories], PRUNING)
    else:
        write_csv(PRUNING, PrunedStyleRow, [])  # DVC wants every out, also where none is pruned


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
    networks = {
        name: path
        for variant, source in sources.items()
        for name, path in [
            (variant, source.path),
            *((f"{variant}/{form}", source.graph(form)) for form in source.forms),
        ]
    }
    inputs = {
        "photos": SAMPLES,
        "painting": painting_of(style),
        "vgg16": trained("vgg16"),
        "alexnet": trained("alexnet"),
        "lpips": BACKBONES / "lpips" / "heads.safetensors",
    }
    return Cell(style, measure_pruned_styles, params, inputs | networks, {"style": style})
