"""How MLflow's pages present each stage: an experiment, what it says of itself, and views to begin with.

A stage is an experiment and each of its cells a run of it, side by side: MLflow folds runs that have a
parent, and charts nothing that is folded.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

CELLS = "tags.kind = 'cell'"
"""The filter of both views: without the run of the stage as a whole."""


@dataclass(frozen=True)
class Experiment:
    """What a person finds who opens a stage in MLflow."""

    about: str
    """One sentence: more is hidden until it is unfolded."""
    details: str = ""
    """Markdown: what the metrics mean, in what units; where the tables are."""
    tags: tuple[str, ...] = ()
    """What to filter by; columns of the table."""
    metrics: tuple[str, ...] = ()
    """Further columns. The table is sorted by the first, largest on top."""
    groups: tuple[str, ...] = ()
    """Tags whose runs are drawn as one, their average: all but the seed."""

    def labels(self, experiment_id: str) -> dict[str, str]:
        """The experiment's tags: description, kind and views, under the names that MLflow's pages read."""
        return {
            "mlflow.experimentKind": "custom_model_development",
            "mlflow.note.content": self._description(experiment_id),
            "mlflow.sharedViewState.table": json.dumps(self._table()),
            "mlflow.sharedViewState.charts": json.dumps(self._charts()),
        }

    def _description(self, experiment_id: str) -> str:
        table = f"[table]({_address(experiment_id, viewStateShareKey='table')})"
        charts = _address(experiment_id, viewStateShareKey="charts", compareRunsMode="CHART")
        paragraphs = [f"{self.about.rstrip('.')}: {table}, [charts]({charts}).", self.details]
        if self.tags:
            names = ", ".join(f"`tags.{name}`" for name in self.tags)
            paragraphs.append(f"Filter by {names}: `{CELLS} and tags.{self.tags[0]} = '…'`.")
        paragraphs.append(
            "One run is the stage's own, named with its profile; the tables of all cells are its artifacts."
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


def _address(experiment_id: str, **query: str) -> str:
    pairs = {"workflowType": "machine_learning", **query}
    return f"#/experiments/{experiment_id}/runs?" + "&".join(f"{k}={quote(v)}" for k, v in pairs.items())


AGENT = ("task", "algorithm", "pruner", "sparsity", "seed")

EXPERIMENTS: Mapping[str, Experiment] = {
    "prepare_data": Experiment(
        "The transitions that agents learn from",
        "`d4rl_score`: 0 is a random policy, 100 D4RL's expert. `return_mean`: of the episodes in the data.",
        ("task", "source"),
        ("d4rl_score", "return_mean"),
    ),
    "prune": Experiment(
        "Masks of the pruned agents, before any training",
        "What each mask leaves of each layer is in `layers.csv`.",
        AGENT,
    ),
    "train": Experiment(
        "Agents trained under their masks, scored as they train",
        "Steps are updates. `d4rl_score`: 0 is a random policy, 100 D4RL's expert; `return_mean`: of the "
        "episodes after so many updates. The charts average over seeds. All evaluations are in `scores.csv`.",
        AGENT,
        ("d4rl_score", "return_mean", "updates_per_second"),
        AGENT[:-1],
    ),
    "sizes": Experiment(
        "Bytes of each agent's networks in every storage format",
        "In `sizes.csv`; `ratio_to_dense` is dense bytes divided by these.",
        AGENT,
    ),
    "quantize": Experiment(
        "Trained agents packed with rounded values, scored again",
        "`d4rl_score_<values>` and `bytes_<values>`: `raw` are all bits. Returns are in `quantized.csv`.",
        AGENT,
        ("d4rl_score_raw", "d4rl_score_fp16", "d4rl_score_int8", "bytes_raw", "bytes_fp16", "bytes_int8"),
    ),
    "fetch_images": Experiment("Photos and paintings that styles are learned from", "", ("source", "style")),
    "fetch_weights": Experiment(
        "Backbones whose features define content and style",
        "Steps are layers. `mean`: of a layer's activations before normalisation; `clamped`: channels that "
        "are all but silent.",
        ("backbone",),
    ),
    "make_clip": Experiment("The video that is stylised", "", ("photo",)),
    "transfer_style": Experiment(
        "Version 1: one picture optimised at a time, with its losses",
        "Steps are iterations; the pictures are among each run's artifacts, all losses in `studies.csv`.",
        ("study", "backbone", "loss", "optimizer", "style"),
        ("total", "content", "style"),
    ),
    "prune_style": Experiment(
        "Masks of styles' networks that are pruned before they are trained",
        "What each mask leaves of each layer is in `layers.csv`.",
        ("style", "pruner", "sparsity"),
        ("weights_kept",),
    ),
    "train_style": Experiment(
        "Version 2: a network for each style, with previews as it learns; and pruned ones",
        "Steps are batches; previews and the contact sheet are among each run's artifacts.",
        ("style", "pruner", "sparsity"),
        ("total_loss", "content_loss", "style_loss", "seconds_per_batch"),
    ),
    "stylize": Experiment(
        "Photos and a video put into each style",
        "The photos are among the artifacts.",
        ("style", "video"),
        ("seconds_per_image", "frames_per_second"),
    ),
    "measure_quality": Experiment(
        "Styles in numbers, beside Version 1's",
        "`style_ratio`: what is left of the photo's distance to the painting; `ssim` and `lpips` compare "
        "with the photo; `equals_iterations`: of Version 1, to come to the same loss. Means over photos.",
        ("style",),
        ("style_ratio", "ssim", "lpips", "warping_error_ratio"),
    ),
    "measure_speed": Experiment(
        "Seconds a picture, by both versions",
        "Steps are pixels of a side. `seconds_<backbone>` is Version 1's optimisation; all in `speed.csv`.",
        ("style",),
    ),
    "measure_pruned_styles": Experiment(
        "What pruning leaves of a style, and in how many seconds",
        "By network: `style_ratio`, what is left of the photo's distance to the painting; `parameters` of "
        "the compacted network, and its `seconds` for a picture in onnxruntime. All in `pruning.csv`.",
        ("style",),
    ),
    "export_onnx": Experiment(
        "Every trained network as ONNX files",
        "`bytes_<form>`, `parameters_<form>`; `max_abs_error_<form>`: from PyTorch in float64. Each graph is "
        "a model (tab Models); of each network the smallest exact form is in the Model registry, where the "
        "alias `current` is the one in `models/onnx/`.",
        (*AGENT, "style", "architecture"),
        ("bytes_dense", "bytes_masked", "bytes_sparse", "bytes_compacted"),
    ),
    "benchmark": Experiment(
        "Latency of the networks on every runtime",
        "`<runtime>_p50_ms_threads_<n>`: median milliseconds; steps are batch sizes or, of pictures, pixels "
        "of a side. Parity and percentiles are in `timings.csv`.",
        (*AGENT, "form", "style", "architecture"),
        ("torch_p50_ms_threads_1", "onnxruntime_p50_ms_threads_1", "openvino-f32_p50_ms_threads_1"),
    ),
    "evaluate": Experiment("Statistics of the scores over tasks and seeds", "In `statistics.csv`."),
    "report": Experiment("Figures and the page of all results", "Among each run's artifacts."),
}
