"""How MLflow's pages present a stage: an experiment with a description and two views.

A stage is an experiment, and each of its cells is a run of that experiment. Runs have no parents, since
MLflow folds runs that have one, and does not chart folded runs.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CELLS = "tags.kind = 'cell' and tags.current = 'yes'"
"""Filter of both views: not the run of the stage as a whole, nor cells that the last sweep was without."""


@dataclass(frozen=True)
class Experiment:
    """What MLflow shows of a stage."""

    about: str
    """What the stage does, in one sentence: MLflow hides the rest until a reader unfolds it."""
    details: str = ""
    """Markdown: the meaning and unit of each metric, and which table has the rest."""
    tags: tuple[str, ...] = ()
    """Tags to filter runs by; also columns of the table."""
    metrics: tuple[str, ...] = ()
    """Metrics that are columns of the table, which is sorted by the first, largest on top."""
    groups: tuple[str, ...] = ()
    """Tags to group runs by: charts draw the average of runs that agree in all of them."""
    tables: tuple[Path, ...] = ()
    """CSV files that the stage writes, which become artifacts of the stage's own run."""

    def labels(self, experiment_id: str) -> dict[str, str]:
        """The experiment's description, kind and views, under the tags that MLflow's pages read."""
        return {
            "mlflow.experimentKind": "custom_model_development",
            "mlflow.note.content": self._description(experiment_id),
            "mlflow.sharedViewState.table": json.dumps(self._table()),
            "mlflow.sharedViewState.charts": json.dumps(self._charts()),
        }

    def _description(self, experiment_id: str) -> str:
        table, charts = (f"[{view}]({address(experiment_id, view)})" for view in ("table", "charts"))
        paragraphs = [f"{self.about} See the {table} or the {charts}.", self.details]
        if self.tags:
            names = ", ".join(f"`tags.{name}`" for name in self.tags)
            paragraphs.append(f"Filter by {names}: `tags.{self.tags[0]} = '…'`.")
        paragraphs.append(
            "One run is the stage's own: its name ends in the profile, and its artifacts are the tables."
        )
        return "\n\n".join(filter(None, paragraphs))

    def _table(self) -> dict[str, Any]:
        columns = [
            "attributes.`Created`",
            *(f"tags.`{name}`" for name in (*self.tags, "profile")),
            *(f"metrics.`{name}`" for name in self.metrics),
        ]
        order = {"orderByKey": f"metrics.`{self.metrics[0]}`", "orderByAsc": False} if self.metrics else {}
        return {"searchFilter": CELLS, "selectedColumns": columns, **order}

    def _charts(self) -> dict[str, Any]:
        keys = [{"mode": "tag", "groupByData": name} for name in self.groups]
        groups = {"groupBy": {"aggregateFunction": "average", "groupByKeys": keys}} if keys else {}
        return {"searchFilter": CELLS, "runsHiddenMode": "SHOWALL", **groups}


def address(experiment_id: str, view: str) -> str:
    """Where MLflow's pages show the view `table` or `charts` of an experiment."""
    mode = "&compareRunsMode=CHART" if view == "charts" else ""
    return f"#/experiments/{experiment_id}/runs?workflowType=machine_learning&viewStateShareKey={view}{mode}"
