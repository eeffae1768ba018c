import gc
import logging
import wave
from fractions import Fraction
from itertools import pairwise

import av
import cv2
import numpy as np
import pytest
from av.video.frame import VideoFrame
from odd_videos import NTSC, make_video, number_of, numbered

from singleshot.errors import UserError
from singleshot.io.h264 import BT709
from singleshot.style.video.reader import probe, read_frames, read_segment

HEVC = "log-level=none:keyint=12:min-keyint=12"
KINDS = {
    "mp4": {},
    "mov": {"codec": "libx264", "options": {"x264-params": "open-gop=1:bframes=3:scenecut=0"}},
    "mkv": {"sound": ["flac"]},
    "webm": {"codec": "libvpx-vp9", "sound": ["libopus"], "options": {"deadline": "realtime"}},
    "ts": {"sound": ["aac"], "options": {"x264-params": "open-gop=1:bframes=4:scenecut=0:b-adapt=0"}},
    "hevc.mp4": {"codec": "libx265", "options": {"x265-params": f"{HEVC}:open-gop=1:bframes=4"}},
    "avi": {"sound": ["libmp3lame"]},
    "mpg": {"codec": "mpeg2video", "rate": Fraction(25), "options": {"bf": "2"}},
    "h264": {},
    "swf": {"codec": "flv1", "rate": Fraction(25)},
}
"""Of these only mp4, mov and mpg store times exactly; mkv and webm round them, avi and h264 have none.
FFmpeg can't seek in swf."""


@pytest.mark.parametrize("suffix", KINDS)
def test_every_container_gives_all_frames_at_exact_times_and_all_segments(tmp_path, suffix):
    video = make_video(tmp_path / f"video.{suffix}", **KINDS[suffix])
    info, frames = probe(video), list(read_frames(video))
    rate = KINDS[suffix].get("rate", NTSC)
    assert (info.format.width, info.format.height, info.frame_rate, info.frames) == (64, 48, rate, 30)
    assert [time * info.time_base for time in info.timestamps] == [n / rate for n in range(30)]
    assert info.end * info.time_base == 30 / rate
    assert info.expected_frames == 30
    assert [number_of(frame) for frame in frames] == list(range(30))
    bounds = [0, 1, 7, 11, 12, 13, 23, 30]  # keyframes are 0, 12 and 24 in most
    for start, stop in pairwise(bounds):
        np.testing.assert_array_equal(
            list(read_segment(video, info.segment(start, stop))), frames[start:stop], strict=True
        )


def test_frames_are_streamed(tmp_path):
    """However long the video, a few of its frames are in memory, and that without garbage collection."""
    video = make_video(tmp_path / "video.mov", frames=60, rotation=90)
    gc.disable()
    gc.freeze()  # objects that are there already need not be looked at
    try:
        alive = [sum(type(it) is VideoFrame for it in gc.get_objects()) for _ in read_frames(video)]
    finally:
        gc.unfreeze()
        gc.enable()
    assert len(alive) == 60
    assert max(alive) - alive[0] <= 5  # one packet may give several


def encoded(path, frames, codec="libx264", pix_fmt="yuv420p", options=None, matrix=None, scale=1, **tags):
    """A video of frames (RGB, or with an opacity), with tags of colours."""
    height, width, channels = frames[0].shape
    with av.open(path, "w") as container:
        stream = container.add_stream(codec, rate=25, options=options)
        stream.width, stream.height, stream.pix_fmt = width, height, pix_fmt
        for name, code in tags.items():
            setattr(stream.codec_context, name, code)
        for pixels in frames:
            frame = VideoFrame.from_ndarray(pixels, format="rgba" if channels == 4 else "rgb24")
            frame = frame.reformat(format=pix_fmt, dst_colorspace=matrix, dst_color_range=matrix and scale)
            if "color_trc" not in tags:
                frame.colorspace = frame.color_range = 2
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return path


@pytest.mark.parametrize("rotation", [90, 180, 270])
def test_rotated_videos_are_turned_as_opencv_turns_them(tmp_path, rotation):
    video = make_video(tmp_path / "video.mov", frames=2, rotation=rotation)
    info, frame = probe(video), next(read_frames(video))
    assert (
        frame.shape
        == (info.format.height, info.format.width, 3)
        == ((48, 64, 3) if rotation == 180 else (64, 48, 3))
    )
    _, bgr = cv2.VideoCapture(str(video)).read()
    assert np.abs(bgr[..., ::-1].astype(int) - frame).max() <= 2


def test_mirrored_videos_are_mirrored(tmp_path):
    frame = next(read_frames(make_video(tmp_path / "video.mp4", frames=2, mirrored=True)))
    assert np.abs(frame[:, ::-1].astype(int) - numbered(0)).mean() < 5


def test_a_variable_rate_keeps_its_times(tmp_path):
    times = [0, 40, 73, 200, 233, 300, 301, 360, 500, 533]
    info = probe(make_video(tmp_path / "video.mp4", frames=10, times=times))
    assert [t * info.time_base for t in info.timestamps] == [Fraction(t, 1000) for t in times]
    assert info.frame_rate == pytest.approx(10 / float(info.end * info.time_base), rel=1e-3)


def test_the_last_frame_of_a_variable_rate_is_shown_as_long_as_the_file_says(tmp_path):
    at_rate = {"rate": Fraction(1), "options": {"bf": "0"}}
    made = make_video(tmp_path / "video.mp4", frames=3, times=[0, 5000, 7000], **at_rate)
    slideshow = tmp_path / "slideshow.mp4"
    with av.open(made) as video, av.open(slideshow, "w") as container:
        stream = container.add_stream_from_template(video.streams.video[0])
        for packet, seconds in zip(video.demux(video=0), (5, 2, 8), strict=False):
            packet.stream, packet.duration = stream, round(seconds / packet.time_base)
            container.mux(packet)
    info = probe(slideshow)
    assert [t * info.time_base for t in (*info.timestamps, info.end)] == [0, 5, 7, 15]


def test_lost_frames_leave_gaps_in_a_constant_rate(tmp_path):
    times = [round(n * 1001 / 30) for n in range(20) if n not in (7, 8)]
    info = probe(make_video(tmp_path / "video.mkv", frames=18, times=times))
    assert info.frame_rate == NTSC
    numbers = [n for n in range(20) if n not in (7, 8)]
    assert [t * info.time_base for t in info.timestamps] == [n / NTSC for n in numbers]


@pytest.mark.parametrize(("matrix", "scale"), [(1, 1), (1, 2), (6, 1), (5, 2)], ids=str)
def test_colours_are_those_that_were_encoded(tmp_path, matrix, scale):
    tags = {"colorspace": matrix, "color_range": scale, "color_primaries": 1, "color_trc": 1}
    options, frame = {"crf": "4"}, numbered(5)
    path = encoded(tmp_path / "a.mp4", [frame], "libx264", "yuv444p", options, matrix, scale, **tags)
    assert np.abs(next(read_frames(path)).astype(int) - frame).max() <= 5


def test_untagged_colours_of_hd_are_bt709(tmp_path):
    options, frame = {"crf": "4", "preset": "ultrafast"}, numbered(5, 128, 720)
    path = encoded(tmp_path / "video.mp4", [frame], "libx264", "yuv444p", options, matrix=1)
    assert np.abs(next(read_frames(path)).astype(int) - frame).max() <= 5


@pytest.mark.parametrize("suffix", ["mp4", "mkv"])
def test_a_truncated_video_is_read_up_to_its_end_with_a_warning(tmp_path, caplog, suffix):
    video = make_video(tmp_path / f"video.{suffix}", frames=60)
    whole = dict(zip(probe(video).pts, read_frames(video), strict=True))
    video.write_bytes(video.read_bytes()[: int(video.stat().st_size * 0.6)])
    with caplog.at_level(logging.WARNING):
        info = probe(video)
    assert 5 < info.frames < 60
    assert info.expected_frames == 60
    assert f"{video}: decoded {info.frames} of 60 frames" in caplog.text
    np.testing.assert_array_equal(list(read_frames(video)), [whole[pts] for pts in info.pts])


def test_damage_in_the_middle_costs_the_frames_there(tmp_path, caplog):
    video = make_video(tmp_path / "video.mp4", frames=60)
    whole, content = list(read_frames(video)), bytearray(video.read_bytes())
    with av.open(video) as container:
        positions = {packet.pts: packet.pos for packet in container.demux(video=0) if packet.size}
    keyframe = positions[24 * 1001]
    content[keyframe : keyframe + 200] = bytes(200)
    video.write_bytes(content)
    info = probe(video)
    assert 36 < info.frames < 60
    assert "of 60 frames" in caplog.text
    numbers = [t * info.time_base * NTSC for t in info.timestamps]
    frames = dict(zip(numbers, read_frames(video), strict=True))
    for n in [*range(24), *range(36, 60)]:
        np.testing.assert_array_equal(frames[n], whole[n])
    read = [len(list(read_segment(video, info.segment(n, n + 6)))) for n in range(0, info.frames - 6, 6)]
    assert set(read) == {6}


def test_what_is_no_video_is_named(tmp_path):
    text, named_mp4, empty, cut = (tmp_path / name for name in ("a.txt", "a.mp4", "empty.mp4", "cut.mp4"))
    for path in (text, named_mp4):
        path.write_text("no video\n" * 100)
    empty.touch()
    video = make_video(tmp_path / "video.mp4", frames=5, sound=["aac"])
    cut.write_bytes(video.read_bytes()[:400])
    sound = tmp_path / "sound.wav"
    with wave.open(str(sound), "wb") as file:
        file.setparams((1, 2, 8000, 0, "NONE", ""))
        file.writeframes(bytes(16000))
    for path in (tmp_path / "missing.mp4", text, named_mp4, empty, cut, sound):
        with pytest.raises(UserError, match=f"{path}: "):
            probe(path)
    segment = probe(video).segment(2, 5)
    make_video(video, frames=4)
    with pytest.raises(UserError, match=r"3 frames from number 2"):
        list(read_segment(video, segment))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("list.mp4", "ffconcat version 1.0\nfile film.ts\n"),
        ("list.m3u8", "#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\nfilm.ts\n"),
    ],
)
def test_what_names_other_films_is_no_film(tmp_path, name, text):
    make_video(tmp_path / "film.ts", frames=2)
    (tmp_path / name).write_text(text)
    with pytest.raises(UserError, match=r"list.m.*: not a video \(not in a film's format"):
        probe(tmp_path / name)


def test_a_palette_of_quicktime_counts(tmp_path):
    """It comes with the first packet alone, which a seek leaves out."""
    path = tmp_path / "game.mov"
    with av.open(path, "w") as container:
        stream = container.add_stream("qtrle", rate=25, options={"g": "2"})
        stream.width, stream.height, stream.pix_fmt = 64, 48, "gray"
        for number in range(6):
            container.mux(stream.encode(VideoFrame.from_ndarray(numbered(number)[..., 0], format="gray")))
        container.mux(stream.encode(None))
    info, frames = probe(path), list(read_frames(path))
    assert [number_of(frame) for frame in frames] == list(range(6))
    for start, stop in ((0, 3), (3, 6)):
        np.testing.assert_array_equal(list(read_segment(path, info.segment(start, stop))), frames[start:stop])


@pytest.mark.parametrize("colours", [{"colorspace": 8}, {"color_trc": 9}])
def test_colours_that_ffmpeg_cannot_convert_are_taken_for_bt709_and_that_is_said(tmp_path, caplog, colours):
    tags = {"colorspace": 1, "color_primaries": 1, "color_trc": 1, "color_range": 1} | colours
    options, frame = {"crf": "4"}, numbered(5)
    path = encoded(tmp_path / "a.mp4", [frame], "libx264", "yuv444p", options, matrix=1, **tags)
    with caplog.at_level(logging.WARNING):
        assert probe(path).format.transfer == BT709
    assert "that FFmpeg can't convert; read as BT.709" in caplog.text
    assert np.abs(next(read_frames(path)).astype(int) - frame).max() <= 5


@pytest.mark.parametrize(
    ("suffix", "options", "ahead"),
    [("ts", {}, False), ("ts", {}, True), ("mpg", {"codec": "mpeg2video"}, False)],
)
def test_a_clock_that_starts_anew_goes_on(tmp_path, caplog, suffix, options, ahead):
    """Two recordings, one after the other, as `cat` joins them."""
    made = make_video(tmp_path / f"one.{suffix}", 10, rate=Fraction(25), sound=["mp2"], **options)
    hour = {"video_start": 90_000, "sound_start": Fraction(3600)}
    later = make_video(tmp_path / f"two.{suffix}", 10, rate=Fraction(25), sound=["mp2"], **hour, **options)
    path = tmp_path / f"both.{suffix}"
    path.write_bytes(made.read_bytes() + (later if ahead else made).read_bytes())
    with caplog.at_level(logging.WARNING):
        info = probe(path)
    assert not caplog.text
    times = [float(time * info.time_base) for time in info.timestamps]
    assert len(times) == 20
    assert max(b - a for a, b in pairwise(times)) < 0.2
    frames = [number_of(frame) for frame in read_segment(path, info.segment(8, 14))]
    assert frames == [8, 9, 0, 1, 2, 3]


def test_a_matroska_file_that_begins_later_is_whole(tmp_path, caplog):
    video = make_video(tmp_path / "video.mkv", video_start=150)
    with caplog.at_level(logging.WARNING):
        assert probe(video).expected_frames == 30
    assert not caplog.text


def woven(number):
    """A frame with a white bar that moves: its even lines are of one moment, its odd lines of the next."""
    frame = np.full((96, 128, 3), 60, np.uint8)
    for parity in (0, 1):
        left = 4 * (2 * number + parity) + 16
        frame[parity::2, left : left + 24] = 220
    return frame


@pytest.mark.parametrize("codec", ["libx264", "mpeg2video"])
def test_interlaced_frames_are_whole_pictures(tmp_path, codec):
    options = {"flags": "+ilme+ildct", "x264-params": "tff=1", "crf": "5", "qmin": "1", "qmax": "2"}
    path = encoded(tmp_path / "camcorder.ts", [woven(n) for n in range(10)], codec, options=options)
    with av.open(path) as container:
        assert all(frame.interlaced_frame for frame in container.decode(video=0))
    frames = list(read_frames(path))
    assert len(frames) == probe(path).frames == 10
    for number, frame in list(enumerate(frames))[1:-1]:
        combed = np.abs(np.diff(woven(number)[..., 1].astype(int), axis=0)).mean()
        assert np.abs(np.diff(frame[..., 1].astype(int), axis=0)).mean() < combed / 4
    info = probe(path)
    for whole, segment in zip(frames[3:7], read_segment(path, info.segment(3, 7)), strict=True):
        assert np.abs(whole.astype(int) - segment).mean() < 4  # at its ends, fields have fewer around them


def test_progressive_frames_are_left_as_they_are(tmp_path):
    path = make_video(tmp_path / "video.mp4", options={"crf": "1"})
    with av.open(path) as container:
        decoded = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    assert all(np.array_equal(a, b) for a, b in zip(decoded, read_frames(path), strict=True))


@pytest.mark.parametrize(("transfer", "name"), [(16, "PQ"), (18, "HLG")])
def test_hdr_is_read_and_tagged_as_sdr(tmp_path, caplog, transfer, name):
    white = np.full((64, 64, 3), round((0.581 if name == "PQ" else 0.75) * 255), np.uint8)  # BT.2408, table 1
    white[16:32] = round((0.508 if name == "PQ" else 0.38) * 255)  # light of 100 and 26 cd/m2, not of 203
    white[32:] = 0
    tags = {"color_primaries": 9, "color_trc": transfer, "colorspace": 9}
    path = encoded(tmp_path / "hdr.mp4", [white], options={"crf": "1"}, matrix=9, **tags)
    with caplog.at_level(logging.WARNING):
        info = probe(path)
    assert f"hdr.mp4: is HDR ({name}); the result is mapped to SDR" in caplog.text
    assert (info.format.primaries, info.format.transfer) == (BT709, BT709)
    (read,) = read_frames(path)
    assert read[8, 32].min() >= 250
    grey = ((100 if name == "PQ" else 26) / 203) ** (1 / 2.4) * 255
    assert np.abs(read[24, 32] - grey).max() <= 6
    assert read[48, 32].max() <= 2


@pytest.mark.parametrize(
    ("name", "codec", "pix_fmt", "transfer"),
    [
        ("a.mov", "qtrle", "argb", 1),
        ("hdr.mov", "prores_ks", "yuva444p10le", 16),
        ("browser.webm", "libvpx-vp9", "yuva420p", 1),
    ],
)
def test_transparent_frames_are_laid_over_black_and_that_is_said(
    tmp_path, caplog, name, codec, pix_fmt, transfer
):
    rgba = np.full((64, 64, 4), (200, 200, 200, 255), np.uint8)
    rgba[:, 32:, 3] = 0
    path = encoded(tmp_path / name, [rgba] * 3, codec, pix_fmt, color_trc=transfer)
    with caplog.at_level(logging.WARNING):
        info = probe(path)
    assert info.frames == 3
    assert f"{name}: has an alpha channel" in caplog.text
    for frame in read_frames(path):
        assert transfer != 1 or np.abs(frame[:, 4:24].astype(int) - 200).max() <= 6
        assert frame[:, 4:24].min() > 100
        assert frame[:, 40:60].max() <= 6
