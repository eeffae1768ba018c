import dataclasses
from pathlib import Path

from pipelines.catalog.paths import PRUNED_STYLES
from pipelines.config.params import load_config
from pipelines.engine.cells import CellStore
from pipelines.engine.execution import ExecutorConfig
from pipelines.engine.stage import Work
from pipelines.engine.sweep import Recorder
from pipelines.stages.measure_styles import measure_pruned
from tasks.measure_pruned_styles import PrunedStyleRow

ROOT = Path(__file__).parents[2]


class Recorded(Recorder):
    """A tracker that is told of no cells."""

    def reused(self, cells, store):
        assert not cells


def test_where_no_style_is_pruned_the_table_has_its_columns_and_no_rows(tmp_path, monkeypatch):
    """DVC warns of a file without content, and the page tells a run without pruned styles from none."""
    config = load_config(ROOT / "params.yaml")
    pruning = dataclasses.replace(config.style.pruning, styles=())
    config = dataclasses.replace(config, style=dataclasses.replace(config.style, pruning=pruning))
    monkeypatch.chdir(tmp_path)
    store = CellStore(tmp_path / "cells")
    measure_pruned.run(
        Work("measure_pruned_styles", "default", ExecutorConfig(kind="local"), store, Recorded()), config
    )
    columns = [column.name for column in dataclasses.fields(PrunedStyleRow)]
    assert PRUNED_STYLES.read_text() == ",".join(columns) + "\n"
