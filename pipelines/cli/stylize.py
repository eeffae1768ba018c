"""`python -m pipelines stylize`: a user's own pictures and videos in a trained style."""

import hashlib
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import joblib

from pipelines.catalog.styles import segment_cells
from pipelines.cli.media import STANDARD, Medium, find_media, plan_targets
from pipelines.cli.trained import share_of, style_model
from pipelines.config.params import load_config
from pipelines.engine.cells import CellStore
from pipelines.engine.execution import ExecutorConfig, device_of, temporary_directory
from pipelines.engine.processes import ends_with_its_parents, one_at_a_time
from pipelines.engine.ray_cluster import cluster_address
from pipelines.engine.stage import fan_out
from pipelines.engine.sweep import Recorder
from singleshot.errors import UserError
from singleshot.export.stylizers import StylizerName, fixed_runtime
from singleshot.style.apply.strokes import small_size
from singleshot.style.apply.stylize import StylizeSettings, check_size, fits_whole
from singleshot.style.blend import blend
from singleshot.style.model_file import load_model, save_model
from singleshot.style.picture_files import stylize_pictures, stylize_stream
from singleshot.style.video.join import join_segments
from singleshot.style.video.reader import VideoInfo, probe
from singleshot.style.video.segments import SEGMENT

FRAMES_PER_SEGMENT = 120
"""Number of frames in a segment, a few seconds of video. An interruption costs a segment at most, and a
cluster's workers compute segments in parallel."""
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
    """Runtime for videos; None is OpenVINO, else onnxruntime, else PyTorch."""


def stylize_inputs(style: str, inputs: Sequence[str], output: Path, options: StylizeOptions) -> None:
    """Stylise `inputs` and write them to `output`.

    The style is given by its name, its model file or that file's directory. Inputs and output may be "-", for
    one picture. An interrupted video goes on from its finished segments the next time. Inputs that can't be
    read don't keep the others from being written; what directories hold besides is told in the end.

    Raises:
        UserError: there is no such style, or an input or the output cannot be used.
    """
    executor = load_config().executor
    if not cluster_address(executor):  # segments are computed one after another, each on all cores
        executor = replace(executor, kind="local", num_cpus=joblib.cpu_count())
    network, _ = load_model(model := style_model(style))
    if STANDARD in (*inputs, str(output)):
        stylize_stream(network.to(device_of(executor, gpu=True)), _streamed(inputs, output), options.settings)
        return
    media, left_out = find_media(inputs, output)
    targets = plan_targets(media, output)
    for target, medium in targets.items():
        _check_free(target, medium, options.force)
    pictures = {target: medium.file for target, medium in targets.items() if medium.kind == "picture"}
    failures = []
    start = time.perf_counter()
    if pictures:
        try:
            written = stylize_pictures(
                network.to(device_of(executor, gpu=True)),
                pictures,
                options.settings,
                batch_size=options.batch_size,
                progress=sys.stderr.isatty(),
            )
        except UserError as error:
            failures.append(str(error))
        else:
            seconds = time.perf_counter() - start
            print(f"{output}: {len(written)} picture{'s' * (len(written) > 1)} in {seconds:.1f} s by PyTorch")
    with temporary_directory() as directory:
        kept = Path(shutil.copy(model, directory))  # the stage `styles` removes the original when it begins
        for target, medium in targets.items():
            if medium.kind == "picture":
                continue
            start = time.perf_counter()
            try:
                runtime = _stylize_video(medium, target, kept, executor, options)
            except UserError as error:
                failures.append(str(error))
            else:
                print(f"{target}: {time.perf_counter() - start:.1f} s by {runtime}")
    print("".join(f"{line}\n" for line in left_out), end="")
    if failures:
        raise UserError("\n".join(failures))


def _streamed(inputs: Sequence[str], output: Path) -> Path | None:
    if len(inputs) != 1 or str(output) != STANDARD:
        raise UserError(
            f"{STANDARD} is for one picture: give it as the output, and {STANDARD} or one file as the input"
        )
    if inputs[0] == STANDARD:
        return None
    if Path(inputs[0]).is_dir():
        raise UserError(f"{inputs[0]}: is a directory; {STANDARD} is for one picture")
    (medium,), _ = find_media(inputs, output)
    if medium.kind == "video":
        raise UserError(f"{inputs[0]}: a video can't go to standard output; give a directory as the output")
    return medium.file


@contextmanager
def blended(styles: Sequence[str]) -> Iterator[str]:
    """The style that :func:`stylize_inputs` takes for one style, or for several with their shares.

    Each is a name, or a name with a colon and its share, e.g. `swirls:0.7`; without one, the share is 1. The
    blend of several is a temporary model file.

    Raises:
        UserError: there is no such style, or a share is not above 0.
    """
    named = [share_of(style) for style in styles]
    if len(named) == 1:
        (name, share) = named[0]
        if share != 1:
            raise UserError(f"{styles[0]}: a share is for a blend of several styles; give --strength")
        yield name
        return
    loaded = [load_model(style_model(name)) for name, _ in named]
    network = blend([network for network, _ in loaded], [share for _, share in named])
    card = replace(loaded[0][1], style=" ".join(styles), scores={})
    with temporary_directory() as directory:
        save_model(network, card, path := Path(directory) / "blend.safetensors")
        yield str(path)


def _check_free(target: Path, medium: Medium, force: bool) -> None:
    if target.is_dir():
        raise UserError(f"{target}: is a directory; give another output directory")
    # With this file, a video was written by a run that ended before it could remove the segments. Segments
    # alone may be those of an interrupted run with --force, and the target an older video.
    joined = medium.kind == "video" and (_segments(target) / JOINING).exists()
    if target.exists() and not force and not joined:
        raise UserError(f"{target}: exists; give --force to overwrite, or another output directory")


def _stylize_video(
    medium: Medium, target: Path, model: Path, executor: ExecutorConfig, options: StylizeOptions
) -> StylizerName:
    video, info = medium.file, probe(medium.file)
    check_size(info.width, info.height, str(video))
    store = CellStore(_segments(target))
    # The lock isn't beside the target, where the file would stay.
    name = hashlib.sha256(str(target.absolute()).encode()).hexdigest()[:16]
    lock = Path(tempfile.gettempdir()) / f"singleshot-{name}.lock"
    with ends_with_its_parents(), one_at_a_time(lock, str(target)):
        _check_free(target, medium, options.force)  # again: another process may have written it meanwhile
        runtime = options.runtime or _runtime(model, info, executor, options.settings)
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
            runtime=runtime,
        )
        # A user's own files are not recorded in MLflow.
        fan_out(cells, executor, store, Recorder(), gpu=True, unit="frame")
        segments = [store.path(cell.digest) / SEGMENT for cell in cells]
        if not target.exists():
            (store.root / JOINING).touch()
        join_segments(segments, video, info, target)
        shutil.rmtree(store.root)
    return runtime


def _runtime(
    model: Path, info: VideoInfo, executor: ExecutorConfig, settings: StylizeSettings
) -> StylizerName:
    """A GPU is fastest by PyTorch, a cluster's nodes are other machines, and only PyTorch has tiles."""
    height, width = small_size(info.height, info.width, settings.stroke)
    whole = fits_whole(1, width, height, channels=load_model(model)[0].width)
    if device_of(executor, gpu=True) != "cpu" or cluster_address(executor) or not whole:
        return "torch"
    return fixed_runtime(settings)


def _segments(target: Path) -> Path:
    return target.parent / f".{target.name}.segments"
