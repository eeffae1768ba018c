"""`singleshot stylize`: a user's own pictures and videos in a style."""

import shutil
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import joblib
import torch
from filelock import FileLock
from PIL import Image
from tqdm import tqdm

from singleshot.command.media import STANDARD, Medium, find_media, plan_targets
from singleshot.command.styles import Shares, short_name, style_model
from singleshot.errors import UserError
from singleshot.export.stylizers import StylizerName, fixed_runtime, open_stylizer, unavailable
from singleshot.io.folders import MODEL
from singleshot.io.whole_file import move_synced, sha256_of, sha256_of_value, sync
from singleshot.style import Style
from singleshot.style.apply.regions import face_detector
from singleshot.style.apply.strokes import small_size
from singleshot.style.apply.stylize import StylizeSettings, check_size, fits_whole
from singleshot.style.model_file import load_model, save_model
from singleshot.style.picture_files import stylize_pictures, stylize_stream, told
from singleshot.style.transformer_net import TransformerNet
from singleshot.style.video.join import join_segments, plan_tracks
from singleshot.style.video.reader import VideoInfo, probe
from singleshot.style.video.segments import StylizeSegmentParams, plan_segments, with_lead, write_segment

RECORD = ".stylized"
FRAMES_PER_SEGMENT = 120
"""Number of frames in a segment, a few seconds of video. An interruption costs a segment at most."""


@dataclass(frozen=True)
class StylizeOptions:
    """How pictures and videos are stylised."""

    settings: StylizeSettings
    batch_size: int
    force: bool
    runtime: StylizerName | None = None
    """Runtime for videos; None is OpenVINO, else onnxruntime, else PyTorch."""


class Record:
    """What results were made from: a line for each in the file `RECORD` beside them.

    A line is written before its result is there, so a kill between the two leaves none that is unknown.
    """

    def __init__(self, media: Mapping[Path, Medium], made_by: object):
        self._media, self._made_by = media, repr(made_by)
        files = {target.parent / RECORD for target in media}
        for file in files:
            if file.is_symlink() or (file.exists() and not file.is_file()):
                raise UserError(f"{file}: not a file that this command wrote; remove it")
        texts = [file.read_text("utf-8", errors="replace") for file in files if file.is_file()]
        self._lines = {line for text in texts for line in text.splitlines()}

    def has(self, target: Path) -> bool:
        """Whether the file was made from the same input, by the same style and settings."""
        return self._line(target, target) in self._lines

    def add(self, target: Path, whole: Path) -> None:
        """Note that `whole` is made, which is to be moved to `target`."""
        with (target.parent / RECORD).open("a", encoding="utf-8") as file:
            file.write(f"{self._line(target, whole)}\n")
        sync(target.parent / RECORD)

    def _line(self, target: Path, result: Path) -> str:
        made_from = sha256_of(self._media[target].file), self._made_by
        return f"{sha256_of_value(made_from)} {sha256_of(result)}"


def stylize_inputs(shares: Shares, inputs: Sequence[str], output: Path, options: StylizeOptions) -> None:
    """Stylise `inputs` and write them to `output`, a directory, or the file of one picture or video.

    Styles are blended by their shares. Inputs and output may be "-", for one picture. An interrupted video
    goes on from its finished segments the next time, and what is finished stays. Inputs that can't be read,
    and results that have no place, don't keep the others from being written; what directories hold besides is
    told in the end.

    Raises:
        UserError: a model file, an input or the output cannot be used.
    """
    torch.set_num_threads(joblib.cpu_count())
    Image.MAX_IMAGE_PIXELS = None  # Pillow's limit is for strangers' files
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if options.settings.keep_faces:
        face_detector()  # if it can't be had, that is said once
    style = Style.blend({Style(*load_model(style_model(name))): share for name, share in shares.items()})
    on_device = style.network.to(device)
    if STANDARD in (*inputs, str(output)):
        if len(inputs) != 1 or str(output) != STANDARD:
            raise UserError(f"{STANDARD} is for one picture: give one, and --output {STANDARD}")
        stylize_stream(on_device, None if inputs[0] == STANDARD else Path(inputs[0]), options.settings)
        return
    media, left_out = find_media(inputs, output)
    targets, failures = plan_targets(media, output, "-".join(map(short_name, shares)))
    with tempfile.TemporaryDirectory(prefix="singleshot-") as directory:
        model = Path(directory) / MODEL
        save_model(style.network, style.card, model)
        record = Record(targets, (sha256_of(model), options.settings))
        missing = _missing(targets, record, options.force, failures)
        pictures = {target: medium.file for target, medium in missing.items() if medium.kind == "picture"}
        failures += _stylize_pictures(on_device, pictures, output, options, record)
        for target, medium in missing.items():
            if medium.kind == "picture":
                continue
            start = time.perf_counter()
            try:
                runtime = _stylize_video(medium.file, target, model, device, options, record)
            except ModuleNotFoundError:  # a runtime's, not the video's
                raise
            except Exception as error:  # of FFmpeg, of a runtime, or of a full disk
                failures.append(told(medium.file, error))
            else:
                print(f"{target} in {time.perf_counter() - start:.1f} s by {runtime}")
    print("".join(f"{line}\n" for line in left_out), end="")
    if failures:
        raise UserError("\n".join(failures))


def _missing(
    targets: Mapping[Path, Medium], record: Record, force: bool, failures: list[str]
) -> dict[Path, Medium]:
    """What there is to do. What exists and was made otherwise is added to the `failures`."""
    missing: dict[Path, Medium] = {}
    same: list[Path] = []
    other: list[Path] = []
    for target, medium in targets.items():
        if target.is_dir():
            failures.append(f"{target}: is a directory; give another output directory")
        elif force or not target.exists():
            missing[target] = medium
        else:
            (same if record.has(target) else other).append(target)
    if same:
        what = same[0] if len(same) == 1 else f"{len(same)} of {len(targets)} results"
        print(f"{what}: made before from the same input, style and settings; --force makes it again")
    if other:
        named = f"{', '.join(map(str, other[:5]))}{', …' * (len(other) > 5)}"
        what = "exists and was" if len(other) == 1 else f"{len(other)} files exist and were"
        failures.append(
            f"{named}: {what} not made from this input, style and settings; give --force to overwrite, or "
            "another output directory"
        )
    return missing


def _stylize_pictures(
    network: TransformerNet,
    pictures: Mapping[Path, Path],
    output: Path,
    options: StylizeOptions,
    record: Record,
) -> list[str]:
    """Write pictures, say how many are written, and return what has to be said about the others."""
    start = time.perf_counter()
    written: list[Path] = []
    failures: list[str] = []
    results = stylize_pictures(
        network,
        pictures,
        options.settings,
        batch_size=options.batch_size,
        progress=bool(pictures) and sys.stderr.isatty(),
        before=record.add,
    )
    try:
        for target in results:
            written.append(target)  # as far as they come
    except UserError as error:
        failures.append(str(error))
    if written:
        what = written[0] if len(written) == 1 else f"{output}: {len(written)} pictures"
        print(f"{what} in {time.perf_counter() - start:.1f} s by PyTorch")
    return failures


def _stylize_video(
    video: Path, target: Path, model: Path, device: str, options: StylizeOptions, record: Record
) -> StylizerName:
    info = probe(video)
    check_size(info.format.width, info.format.height, str(video))
    # The lock isn't beside the target, where the file would stay.
    lock = Path(tempfile.gettempdir()) / f"singleshot-{sha256_of_value(str(target.absolute()))[:16]}.lock"
    with FileLock(lock):
        if target.exists() and not options.force:
            raise UserError(f"{target}: another process has just written it; give --force to overwrite")
        runtime = options.runtime or _runtime(model, info, device, options.settings)
        size, rate = f"{info.format.width}x{info.format.height}", float(info.frame_rate)
        print(f"{video}: {info.frames} frames of {size} at {rate:g} a second, by {runtime}", flush=True)
        if runtime == "torch" and not options.runtime and unavailable("openvino-f32"):
            print("OpenVINO is two to six times as fast: pip install onnx openvino", flush=True)
        ways = plan_tracks(video, target)
        work = target.parent / f".{sha256_of_value(target.name)[:16]}.segments"  # names may be long already
        segments = _segments(video, info, model, device, runtime, options, work)
        join_segments(segments, video, info, target, ways, record.add)
        shutil.rmtree(work)
    return runtime


def _segments(
    video: Path,
    info: VideoInfo,
    model: Path,
    device: str,
    runtime: StylizerName,
    options: StylizeOptions,
    work: Path,
) -> list[Path]:
    """The files of a video's segments; those that an interrupted call with equal arguments left are kept."""
    made_from = (sha256_of(video), sha256_of(model), options.settings, options.batch_size, runtime)
    directory = work / sha256_of_value(repr(made_from))[:16]
    directory.mkdir(parents=True, exist_ok=True)
    planned = plan_segments(info, FRAMES_PER_SEGMENT)
    files = [directory / f"{number:04}.mp4" for number in range(len(planned))]
    missing = [(file, segment) for file, segment in zip(files, planned, strict=True) if not file.exists()]
    width, height = info.format.width, info.format.height
    stylizer = open_stylizer(model, runtime, width, height, options.settings, device, torch.get_num_threads())
    left = sum(segment.frames for _, segment in missing)
    with tqdm(total=info.frames, initial=info.frames - left, unit="frame", disable=None) as progress:
        for file, segment in missing:
            read, lead = with_lead(info, segment)
            params = StylizeSegmentParams(read, info.format, options.settings, options.batch_size, lead)
            partial = directory / "partial.mp4"
            for _ in write_segment(video, partial, params, stylizer):
                progress.update()
            move_synced(partial, file)
    return files


def _runtime(model: Path, info: VideoInfo, device: str, settings: StylizeSettings) -> StylizerName:
    """A GPU is fastest by PyTorch, and only PyTorch has tiles."""
    height, width = small_size(info.format.height, info.format.width, settings.stroke)
    whole = fits_whole(1, width, height, channels=load_model(model)[0].width)
    return fixed_runtime(settings) if device == "cpu" and whole else "torch"
