"""Task: one photo in one painting's style by Gatys et al.'s optimisation, with the history of its losses."""

import io
import json
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, astuple, dataclass
from functools import partial
from typing import Any

import torch

from singleshot.io.images import encode_png, read_rgb
from singleshot.io.tables import write_csv
from singleshot.job import Artifact, Checkpoint, Event, Job, Metrics, Progress, per_job
from singleshot.style.backbones import load_backbone
from singleshot.style.datasets.photos import PhotoSet
from singleshot.style.gatys import GatysConfig, optimize

CHECKPOINT_SECONDS = 60.0
"""Seconds of optimisation between checkpoints, which an interruption costs at most. A number of iterations
would not do, since one iteration takes from milliseconds to a minute."""
PREVIEWS = (0.1, 0.25, 0.5, 0.75)
"""Fractions of the iterations at which the picture is shown."""


@dataclass(frozen=True)
class TransferParams:
    """Parameters that one picture depends on, besides its input files."""

    study: str
    """The comparison that the picture is made for, a column of history.csv."""
    content: str
    """Name of the photo in its set."""
    style: str
    """Name of the painting."""
    config: GatysConfig

    @property
    def name(self) -> str:
        """The picture's directory below those of all, and the name of its run."""
        config = self.config
        return f"{self.study}/{config.backbone}-{config.criterion}-{config.optimizer}-{self.style}"


@dataclass(frozen=True)
class HistoryRow:
    """One iteration: a row of history.csv."""

    study: str
    backbone: str
    loss: str
    """Name of the criterion."""
    optimizer: str
    style: str
    """Name of the painting."""
    size_px: int
    iteration: int
    """Number of evaluations of loss and gradient since the initial picture's, which has number 0. L-BFGS
    accepts a picture after one or a few evaluations, so it skips numbers."""
    content_loss: float
    """Unweighted content loss (eq. 1)."""
    style_loss: float
    """Unweighted style loss (eq. 2)."""
    total_loss: float
    """The weighted loss that is minimised."""
    seconds: float
    """Seconds of optimisation up to and including this iteration, without reading, previews and
    interruptions."""


@dataclass(frozen=True)
class Summary:
    """The result of the optimisation: summary.json."""

    params: TransferParams
    iteration: int
    """Iteration of the picture: the configured number, or less if losses diverged or could fall no
    further."""
    content_loss: float
    style_loss: float
    total_loss: float
    seconds_per_iteration: float
    diverged: bool
    """Whether the loss ended above its initial value or stopped being finite; in the second case, the picture
    is the last one with finite losses."""


@per_job
def transfer_style(job: Job) -> Iterator[Event]:
    """Make a job's picture (:class:`TransferParams`).

    Inputs: `photos` (directory of a :class:`PhotoSet`), `painting` (picture file),
    `backbone` (`normalized.safetensors`). The output gets `picture.png`; `content.png` and `style.png`, the
    photo and the painting at the size they were used; `history.csv` (:class:`HistoryRow`); `summary.json`
    (:class:`Summary`). Diverging losses are a result, not an error. All results except the seconds depend
    only on parameters and inputs.

    Raises:
        UserError: an input is missing or damaged, or the set has no such photo.
        FloatingPointError: the losses are not finite from the start.
    """
    params: TransferParams = job.params
    config = params.config
    content = PhotoSet.open(job.inputs["photos"]).read(params.content, short_side=config.size_px)
    style = read_rgb(job.inputs["painting"], short_side=config.size_px)
    backbone = load_backbone(job.inputs["backbone"], pooling="average").to(job.device)
    for name, read in (("content", content), ("style", style)):
        (job.output / f"{name}.png").write_bytes(encode_png(read))

    settings = config.backbone, config.criterion, config.optimizer, params.style, config.size_px
    row_of = partial(HistoryRow, params.study, *settings)
    history, state = _reached(job.checkpoint)
    saved = before = history[-1].seconds if history else 0.0
    diverged, start = False, time.perf_counter()
    for iterate in optimize(content.to(job.device), style.to(job.device), backbone, config, state):
        seconds, losses = before + time.perf_counter() - start, iterate.losses
        if not math.isfinite(losses.total):
            diverged = True
            break
        if seconds - saved >= CHECKPOINT_SECONDS:
            saved = seconds
            yield Checkpoint(iterate.iteration, _checkpoint(history, iterate.state))
        earlier = history[-1].iteration if history else 0
        if any(earlier < part * config.iterations <= iterate.iteration for part in PREVIEWS):
            yield Artifact(f"previews/{iterate.iteration:05}.png", encode_png(iterate.picture))
        history.append(row_of(iterate.iteration, losses.content, losses.style, losses.total, seconds))
        picture = iterate.picture
        yield Metrics(iterate.iteration, asdict(losses))
        yield Progress(iterate.iteration / config.iterations)
        before, start = seconds, time.perf_counter()
    if not history:
        raise FloatingPointError(f"{job.inputs['backbone']}: the losses of the first picture are not finite")

    (job.output / "picture.png").write_bytes(encode_png(picture))
    write_csv(job.output / "history.csv", HistoryRow, history)
    last = history[-1]
    losses_of_last = last.content_loss, last.style_loss, last.total_loss
    per_iteration = last.seconds / (last.iteration + 1)
    diverged = diverged or last.total_loss > history[0].total_loss
    summary = Summary(params, last.iteration, *losses_of_last, per_iteration, diverged)
    (job.output / "summary.json").write_text(json.dumps(asdict(summary), indent=2) + "\n", encoding="utf-8")


def _checkpoint(history: Sequence[HistoryRow], state: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save({"history": [astuple(row) for row in history], "state": state}, buffer)
    return buffer.getvalue()


def _reached(checkpoint: bytes | None) -> tuple[list[HistoryRow], Any]:
    """The rows so far and the optimiser's state; nothing without a checkpoint."""
    if checkpoint is None:
        return [], None
    found = torch.load(io.BytesIO(checkpoint), map_location="cpu", weights_only=True)
    return [HistoryRow(*row) for row in found["history"]], found["state"]
