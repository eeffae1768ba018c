"""`python -m pipelines stylize`: a user's own pictures and videos in a trained style."""

import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import joblib

from pipelines.catalog.paths import LEARNED, STYLES
from pipelines.catalog.styles import segment_cells
from pipelines.cli.media import STANDARD, find_media, plan_targets
from pipelines.config.params import load_config
from pipelines.engine.cells import CellStore
from pipelines.engine.execution import ExecutorConfig, device_of
from pipelines.engine.processes import ends_with_its_parents, one_at_a_time
from pipelines.engine.ray_cluster import cluster_address
from pipelines.engine.stage import fan_out
from pipelines.engine.sweep import Recorder
from singleshot.errors import UserError
from singleshot.export.stylizers import StylizerName, fixed_runtime
from singleshot.io.whole_file import sha256_of_value
from singleshot.style.apply.strokes import small_size
from singleshot.style.apply.stylize import StylizeSettings, check_size, fits_whole
from singleshot.style.blend import blend
from singleshot.style.model_file import load_model, save_model
from singleshot.style.picture_files import stylize_pictures, stylize_stream
from singleshot.style.video.join import join_segments
from singleshot.style.video.reader import VideoInfo, probe
from singleshot.style.video.segments import SEGMENT

MODEL = "model.safetensors"
FRAMES_PER_SEGMENT = 120
"""Number of frames in a segment, a few seconds of video. An interruption costs a segment at most, and a
cluster's workers compute segments in parallel."""


@dataclass(frozen=True)
class StylizeOptions:
    """How pictures and videos are stylised."""

    settings: StylizeSettings
    batch_size: int
    force: bool
    runtime: StylizerName | None = None
    """Runtime for videos; None is OpenVINO, else onnxruntime, else PyTorch."""


def stylize_inputs(
    styles: Sequence[str], inputs: Sequence[str], output: Path, options: StylizeOptions
) -> None:
    """Stylise `inputs` and write them to `output`.

    Each style is a name, a model file or that file's directory; several are blended by the shares after their
    colons, e.g. `swirls:0.7`, which are 1 by default. Inputs and output may be "-", for one picture. An
    interrupted video goes on from its finished segments the next time. Inputs that can't be read don't keep
    the others from being written; what directories hold besides is told in the end.

    Raises:
        UserError: there is no such style, or an input or the output cannot be used.
    """
    executor = load_config().executor
    if not cluster_address(executor):  # segments are computed one after another, each on all cores
        executor = replace(executor, kind="local", num_cpus=joblib.cpu_count())
    shares = dict(map(_share_of, styles))
    loaded = [load_model(style_model(name)) for name in shares]
    network = blend([network for network, _ in loaded], list(shares.values()))
    on_device = network.to(device_of(executor, gpu=True))
    if STANDARD in (*inputs, str(output)):
        if len(inputs) != 1 or str(output) != STANDARD:
            raise UserError(f"{STANDARD} is for one picture: give one --input, and --output {STANDARD}")
        stylize_stream(on_device, None if inputs[0] == STANDARD else Path(inputs[0]), options.settings)
        return
    media, left_out = find_media(inputs, output)
    targets = plan_targets(media, output)
    for target in targets:
        _check_free(target, options.force)
    pictures = {target: medium.file for target, medium in targets.items() if medium.kind == "picture"}
    failures = []
    start = time.perf_counter()
    if pictures:
        try:
            written = stylize_pictures(
                on_device,
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
    with tempfile.TemporaryDirectory(prefix="singleshot-") as directory:
        model = Path(directory) / MODEL
        save_model(network, replace(loaded[0][1], style=" ".join(styles), scores={}), model)
        for target, medium in targets.items():
            if medium.kind == "picture":
                continue
            start = time.perf_counter()
            try:
                runtime = _stylize_video(medium.file, target, model, executor, options)
            except UserError as error:
                failures.append(str(error))
            else:
                print(f"{target}: {time.perf_counter() - start:.1f} s by {runtime}")
    print("".join(f"{line}\n" for line in left_out), end="")
    if failures:
        raise UserError("\n".join(failures))


def style_model(style: str) -> Path:
    """The model file of a style, which is given by its name, its file or that file's directory.

    A style of the user's own hides one of the pipeline that has its name.

    Raises:
        UserError: there is no such style.
    """
    if Path(style).suffix == ".safetensors" or (Path(style) / MODEL).is_file():
        return Path(style)
    found = {
        path.parent.relative_to(root).as_posix(): path
        for root in (STYLES, LEARNED)
        for path in sorted(root.rglob(MODEL))
    }
    if style not in found:
        fix = "learn one by `python -m pipelines learn-style`, or run `make repro` first"
        there = f"there are {', '.join(sorted(found))}" if found else fix
        raise UserError(f"no style {style!r} in {STYLES} or {LEARNED}; {there}")
    return found[style]


def _share_of(style: str) -> tuple[str, float]:
    name, _, text = style.partition(":")
    try:
        return name, float(text or 1)
    except ValueError as error:
        raise UserError(f"{style}: the share {text!r} is no number; give one above 0") from error


def _check_free(target: Path, force: bool) -> None:
    if target.is_dir():
        raise UserError(f"{target}: is a directory; give another output directory")
    if target.exists() and not force:
        raise UserError(f"{target}: exists; give --force to overwrite, or another output directory")


def _stylize_video(
    video: Path, target: Path, model: Path, executor: ExecutorConfig, options: StylizeOptions
) -> StylizerName:
    info = probe(video)
    check_size(info.width, info.height, str(video))
    store = CellStore(target.parent / f".{target.name}.segments")
    # The lock isn't beside the target, where the file would stay.
    lock = Path(tempfile.gettempdir()) / f"singleshot-{sha256_of_value(str(target.absolute()))[:16]}.lock"
    with ends_with_its_parents(), one_at_a_time(lock, str(target)):
        _check_free(target, options.force)  # again: another process may have written it meanwhile
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
