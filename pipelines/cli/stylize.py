"""`python -m pipelines stylize`: a user's own pictures and videos in a trained style."""

import glob
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import joblib

from pipelines.catalog.paths import LEARNED, STYLES
from pipelines.catalog.styles import model_of
from pipelines.catalog.videos import segment_cells, stylized_name
from pipelines.cli.stylize_runtime import fastest_runtime
from pipelines.config.params import load_config
from pipelines.engine.cells import CellStore
from pipelines.engine.execution import ExecutorConfig, device_of
from pipelines.engine.fanout import fan_out
from pipelines.engine.lifecycle import ends_with_its_parents
from pipelines.engine.ray_cluster import cluster_address
from pipelines.engine.scratch import scratch_directory
from pipelines.engine.sweep import Recorder
from pipelines.engine.turns import alone
from singleshot.errors import UserError
from singleshot.export.stylizers import STYLIZERS, StylizerName
from singleshot.style.apply.input_files import STANDARD, check_directory, expand
from singleshot.style.apply.picture_files import picture_suffixes
from singleshot.style.apply.stylize import StylizeSettings, fits_whole
from singleshot.style.apply.stylize_files import stylize_files
from singleshot.style.model_file import load_model
from singleshot.style.video.reader import VideoInfo, probe
from singleshot.style.video.segments import SEGMENT, join_segments
from tasks.stylize_segment import RuntimeSegmentParams, stylize_segment_by_runtime

VIDEO_SUFFIXES = {".mp4", ".m4v", ".mov", ".mkv", ".webm", ".avi", ".mpg", ".mpeg", ".wmv", ".ts"}
FRAMES_PER_SEGMENT = 120
"""Number of frames in a segment, a few seconds of video. An interruption costs a segment at most, and a
cluster's workers compute segments in parallel."""
RUNTIME = "runtime"
"""Name of the file beside a video's segments that holds the name of their runtime."""
JOINING = "joining"
"""Name of the file beside a video's segments that says that there was no target when they began to be joined:
if there is one now, the join has written it."""


@dataclass(frozen=True)
class StylizeOptions:
    """How pictures and videos are stylised."""

    settings: StylizeSettings
    batch_size: int
    force: bool
    runtime: StylizerName | None = None
    """Runtime for videos; None stands for the fastest one, as measured on this machine."""


def stylize_inputs(style: str, inputs: Sequence[str], output: Path, options: StylizeOptions) -> None:
    """Stylise `inputs` and write them to `output`.

    The style is given by its name, its model file or that file's directory. Videos are recognised by their
    suffix, in directories and patterns too. An interrupted video goes on from its finished segments the next
    time. Inputs that can't be read don't keep the others from being written.

    Raises:
        UserError: there is no such style, or an input or the output cannot be used.
    """
    executor = _on_all_cores(load_config().executor)
    network, _ = load_model(model := _model(style))
    videos = _plan_videos(inputs, output, options.force)
    pictures = [name for name in inputs if _may_hold_pictures(name, output)]
    failures = []
    if pictures:
        try:
            written = stylize_files(
                network.to(device_of(executor, gpu=True)),
                pictures,
                output,
                options.settings,
                batch_size=options.batch_size,
                force=options.force,
                progress=sys.stderr.isatty(),
            )
        except UserError as error:
            failures.append(str(error))
        else:
            if str(output) != STANDARD:
                print(f"{output}: {len(written)} picture{'s' * (len(written) > 1)}")
    with _kept(model) as kept:
        for target, video in videos.items():
            try:
                _stylize_video(video, target, kept, executor, options)
            except UserError as error:
                failures.append(str(error))
            else:
                print(target)
    if failures:
        raise UserError("\n".join(failures))


@contextmanager
def _kept(model: Path) -> Iterator[Path]:
    """A temporary copy of a model, as the stage `train_style` removes the original when it begins."""
    with scratch_directory() as directory:
        yield Path(shutil.copy(model, directory))


def _model(style: str) -> Path:
    if Path(style).suffix == ".safetensors":
        return Path(style)
    if (Path(style) / "model.safetensors").is_file():
        return Path(style) / "model.safetensors"
    if (LEARNED / style / "model.safetensors").is_file():
        return LEARNED / style / "model.safetensors"
    model = model_of(style)
    if not model.exists():
        found = [(root, path) for root in (LEARNED, STYLES) for path in root.rglob("model.safetensors")]
        # E.g. `mine`, `ink`, and the pruned `ink/snip-0.95`.
        known = ", ".join(sorted(path.parent.relative_to(root).as_posix() for root, path in found))
        raise UserError(
            f"no style {style!r} in {STYLES} or {LEARNED}; "
            + (f"there are {known}" if known else "run `make repro` first")
        )
    return model


def _stands_for_others(name: str) -> bool:
    """Whether an input is a directory or a pattern, even if its name ends in a video's suffix."""
    path = Path(name)
    return path.is_dir() or (glob.has_magic(name) and not path.exists())


def _videos(name: str, output: Path) -> list[tuple[Path, Path]]:
    """The videos of an input, each with its path below the output."""
    if _stands_for_others(name):
        return expand(name, output, VIDEO_SUFFIXES)
    path = Path(name)
    return [(path, Path(path.name))] if path.suffix.lower() in VIDEO_SUFFIXES else []


def _may_hold_pictures(name: str, output: Path) -> bool:
    """Whether an input may have pictures: it is neither a video nor a pattern or directory of only videos."""
    if not _videos(name, output):
        return True
    return _stands_for_others(name) and bool(expand(name, output, picture_suffixes()))


def _plan_videos(inputs: Sequence[str], output: Path, force: bool) -> Mapping[Path, Path]:
    """The videos by the files that are to be written."""
    targets: dict[Path, Path] = {}
    videos = [video for name in inputs for video in _videos(name, output)]
    if videos and str(output) == STANDARD:
        raise UserError(
            f"{videos[0][0]}: a video can't go to standard output; give a directory as the output"
        )
    for video, name in videos:
        if not video.is_file():
            raise UserError(f"{video}: no such file; correct the path")
        target = output / name.with_name(stylized_name(video))
        if target in targets and not targets[target].samefile(video):
            raise UserError(f"{targets[target]} and {video} would both become {target}; rename one")
        if target.exists() and target.samefile(video):
            raise UserError(f"{target}: is an input; choose another output directory")
        check_directory(target.parent)
        _check_free(target, force)
        targets[target] = video
    return targets


def _check_free(target: Path, force: bool) -> None:
    if target.is_dir():
        raise UserError(f"{target}: is a directory; give another output directory")
    # With this file, the target was written by a run that ended before it could remove the segments. Segments
    # alone may be those of an interrupted run with --force, and the target an older video.
    if target.exists() and not force and not (_segments(target) / JOINING).exists():
        raise UserError(f"{target}: exists; give --force to overwrite, or another output directory")


def _stylize_video(
    video: Path, target: Path, model: Path, executor: ExecutorConfig, options: StylizeOptions
) -> None:
    info = probe(video)
    store = CellStore(_segments(target))
    with ends_with_its_parents(), alone(store.root.with_suffix(".lock"), str(target)):
        _check_free(target, options.force)  # again: another process may have written it meanwhile
        runtime = _runtime(store.root / RUNTIME, model, info, executor, options)
        size, rate = f"{info.width}x{info.height}", float(info.frame_rate)
        print(f"{video}: {info.frames} frames of {size} at {rate:g} a second, by {runtime}; ", end="")
        cells = segment_cells(
            video.stem,
            video,
            info,
            model,
            settings=options.settings,
            batch_size=options.batch_size,
            frames_per_segment=FRAMES_PER_SEGMENT,
            tags={},
        )
        cells = [
            replace(cell, task=stylize_segment_by_runtime, params=RuntimeSegmentParams(cell.params, runtime))
            for cell in cells
        ]
        # A user's own files are not recorded in MLflow.
        fan_out(cells, executor, store, Recorder(), gpu=True, unit="frame")
        segments = [store.path(cell.digest) / SEGMENT for cell in cells]
        if not target.exists():
            (store.root / JOINING).touch()
        join_segments(segments, video, info, target)
        shutil.rmtree(store.root)


def _on_all_cores(executor: ExecutorConfig) -> ExecutorConfig:
    """The executor; without a cluster, one that computes segments one after another, each on all cores."""
    if cluster_address(executor):
        return executor
    return replace(executor, kind="local", num_cpus=joblib.cpu_count())


def _runtime(
    record: Path, model: Path, info: VideoInfo, executor: ExecutorConfig, options: StylizeOptions
) -> StylizerName:
    """The runtime of a video's segments. The file `record` keeps it in case the video is interrupted."""
    runtime = options.runtime or (_recorded(record) if record.exists() else None)
    if not runtime:
        on_gpu = device_of(executor, gpu=True) != "cpu"
        if on_gpu or cluster_address(executor) or not _fits_whole(model, info):
            # A GPU is faster than any other runtime, a cluster's nodes are other machines, and only PyTorch
            # computes tiles.
            runtime = "torch"
        else:
            runtime = fastest_runtime(model, options.settings, executor.num_cpus)
    record.parent.mkdir(parents=True, exist_ok=True)
    record.write_text(f"{runtime}\n")
    return runtime


def _fits_whole(model: Path, info: VideoInfo) -> bool:
    return fits_whole(1, info.width, info.height, channels=load_model(model)[0].width)


def _recorded(record: Path) -> StylizerName | None:
    name = record.read_text().strip()
    return next((each for each in STYLIZERS if each == name), None)


def _segments(target: Path) -> Path:
    """The directory of a video's finished segments, until the video is complete."""
    return target.parent / f".{target.name}.segments"
