"""What a run has measured of its exported networks: quality and latency, which are known after the export.

A graph's file keeps what was known when it was written, so that its bytes do not depend on how fast it ran
somewhere. These facts go into the network's description in MLflow.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

import pandas

from pipelines.catalog.paths import CLASSIFICATION, QUALITY, TIMINGS
from singleshot.errors import UserError
from singleshot.export.onnx_model import GraphCard

UNTIMED = "not measured (`deployment.benchmark` chooses the networks that are timed)"


def measured(card: GraphCard) -> Mapping[str, str]:
    """Quality and latency of the network of `card`, in words, as far as the run's tables have them."""
    facts = {"quality": _quality(card), "latency": next(_latencies(card), UNTIMED)}
    return {key: value for key, value in facts.items() if value}


def _quality(card: GraphCard) -> str:
    match card.kind:
        case "classifier":
            return _agreement()
        case "style":
            return _stylised(card)
    return ""


def _stylised(card: GraphCard) -> str:
    """Photos by the network, as a judge sees them that had no part in training it."""
    rows = _rows(QUALITY, style=card.details["style"], method="johnson").dropna(subset="style_ratio_alexnet")
    rows = rows[rows["warping_error_ratio"].isna()]  # not the clip
    if rows.empty:
        return ""
    left, ssim, lpips = rows[["style_ratio_alexnet", "ssim", "lpips"]].mean()
    return (
        f"{1 - left:.0%} of the way from photo to painting, as AlexNet sees it, which had no part in the "
        f"training; beside the photo, SSIM {ssim:.2f} and LPIPS {lpips:.2f} (means over {len(rows)} photos)"
    )


def _agreement() -> str:
    rows = _rows(CLASSIFICATION, runtime="onnxruntime", preprocessing="right", rank=1)
    if rows.empty:
        return ""
    same = f"{int((rows['same_top5_as_torch'] == True).sum())} of {len(rows)}"  # noqa: E712
    return f"accuracy is not measured here; onnxruntime gives {same} photos the five labels that PyTorch does"


def _latencies(card: GraphCard) -> Iterator[str]:
    """The fastest runtime's median for one picture or state."""
    rows = _rows(TIMINGS, form=card.form, status="ok", batch=1)
    # All networks of styles have one shape, so that only one of them is timed.
    rows = rows[
        rows["model"].str.startswith("styles/") if card.kind == "style" else rows["model"] == card.cell
    ]
    for best in rows.nsmallest(1, "p50_ms").itertuples():
        size = f" of {best.size_px:g} x {best.size_px:g} px" if best.size_px > 0 else ""
        threads = {0: "all cores", 1: "one thread"}.get(best.threads, f"{best.threads} threads")
        twin = "" if best.model == card.cell else f"; measured on {best.model}, which has the same shape"
        yield (
            f"{best.p50_ms:.3g} ms for one {'state' if card.kind == 'policy' else f'picture{size}'} by "
            f"{best.runtime}, the fastest of {rows['runtime'].nunique()} runtimes (median; {threads}, "
            f"{best.device}){twin}"
        )


def _rows(table: Path, **values: object) -> pandas.DataFrame:
    """The rows of a table that have these values. Raises UserError if there is no such table."""
    if not table.exists():
        raise UserError(f"{table}: no such file; make it with `dvc repro`")
    rows = pandas.read_csv(table)
    for column, value in values.items():
        rows = rows[rows[column] == value]
    return rows
