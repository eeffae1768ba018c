import logging
from contextlib import nullcontext
from fractions import Fraction
from pathlib import Path

import av
import cv2
import numpy as np
import pytest
import torch
from av.packet import Packet
from odd_videos import make_video

from singleshot.errors import UserError
from singleshot.io.h264 import add_h264, encode, mux
from singleshot.job import Job, Metrics, Progress
from singleshot.style.apply.light import bounded
from singleshot.style.apply.stylize import StylizeSettings
from singleshot.style.model_file import ModelCard, load_model, save_model
from singleshot.style.transformer_net import TransformerNet
from singleshot.style.video.join import join_segments
from singleshot.style.video.reader import probe, read_frames, read_segment
from singleshot.style.video.segments import SEGMENT, StylizeSegmentParams, plan_segments, with_lead
from singleshot.style.video.smoothing import LEAD, smooth
from tasks.stylize import stylize_segment

SOURCES = {
    "odd size": {"name": "video.mp4", "size": (65, 47), "pix_fmt": "yuv444p", "sound": ["aac"]},
    "phone": {"name": "video.mov", "rotation": 90, "sound": ["aac"], "rate": Fraction(30)},
    "variable rate": {
        "name": "video.mp4",
        "times": [0, 50, 73, 200, 300, 301, 360, 500, 533, 600],
        "frames": 10,
    },
    "silent": {"name": "video.mp4"},
    "two languages, late": {"name": "video.mkv", "sound": ["aac", "flac"], "sound_start": Fraction(1, 4)},
    "sound first": {"name": "video.mkv", "sound": ["aac"], "video_start": 5},
    "browser": {"name": "video.webm", "codec": "libvpx", "sound": ["libopus"]},
    "broadcast": {"name": "video.ts", "sound": ["ac3"], "rate": Fraction(25)},
    "camera": {"name": "video.avi", "sound": ["libmp3lame"]},
}


@pytest.fixture
def source(request, tmp_path):
    kind = SOURCES[request.param]
    return make_video(tmp_path / kind["name"], **{key: kind[key] for key in kind if key != "name"})


def copied(source, info, frames_per_segment):
    """Segments in the style of no style at all."""
    paths = []
    for segment in plan_segments(info, frames_per_segment):
        paths.append(source.with_name(f"{segment.start}.mp4"))
        with av.open(paths[-1], "w") as container:
            stream = add_h264(container, info.format)
            for packet in encode(stream, read_segment(source, segment)):
                container.mux(packet)
    return paths


def sounds(path):
    """Of each track, when its packets are heard, in seconds after the first frame, and what is in them."""
    with av.open(path) as container:
        first = next(container.decode(video=0))
        start = 0 if path.suffix == ".avi" else first.pts * first.time_base
    with av.open(path) as container:
        tracks: list[list[tuple[float, bytes]]] = [[] for _ in container.streams.audio]
        for packet in container.demux(audio=tuple(range(len(tracks)))) if tracks else []:
            if packet.size:
                track = container.streams.audio.index(packet.stream)
                tracks[track].append((float(packet.pts * packet.time_base - start), bytes(packet)))
    return tracks


@pytest.mark.parametrize("source", SOURCES, indirect=True)
def test_a_joined_video_is_as_its_source(source, tmp_path):
    output = tmp_path / "joined.mp4"
    info = probe(source)
    join_segments(copied(source, info, 7), source, info, output)
    joined = probe(output)
    assert joined.frames == info.frames
    assert joined.format == info.format
    assert [t * joined.time_base for t in joined.timestamps] == [t * info.time_base for t in info.timestamps]
    assert joined.end * joined.time_base == info.end * info.time_base
    assert joined.expected_frames == info.frames
    for before, after in zip(read_frames(source), read_frames(output), strict=True):
        assert np.abs(before.astype(int) - after).mean() < 6  # 4:2:0 and crf 18
    for before, after in zip(sounds(source), sounds(output), strict=True):
        assert [content for _, content in before] == [content for _, content in after]
        # MP4 says in milliseconds when a track begins; Matroska, all times.
        np.testing.assert_allclose([t for t, _ in after], [t for t, _ in before], atol=1.5e-3)
    capture = cv2.VideoCapture(str(output))
    shape = capture.get(cv2.CAP_PROP_FRAME_WIDTH), capture.get(cv2.CAP_PROP_FRAME_HEIGHT)
    assert (*shape, capture.get(cv2.CAP_PROP_FRAME_COUNT)) == (
        info.format.width,
        info.format.height,
        info.frames,
    )
    assert sum(1 for _ in iter(lambda: capture.read()[0], False)) == info.frames
    assert list(tmp_path.glob(".*")) == []


SOUNDS = {
    "camcorder": ("video.m2ts", "pcm_bluray", "pcm_s16le", {}),
    "telephone": ("video.avi", "pcm_mulaw", "pcm_s16le", {}),
    "Windows": ("video.avi", "adpcm_ms", "aac", {}),
}


def heard(path):
    """The sound in numbers from -1 to 1, from the first frame on."""
    with av.open(path) as container:
        codec = container.streams.audio[0].codec_context.name
        frames = [frame.to_ndarray() for frame in container.decode(audio=0)]
    sound = np.concatenate(frames, axis=1)[0]
    return codec, sound / (np.iinfo(sound.dtype).max if sound.dtype.kind == "i" else 1)


@pytest.mark.parametrize("kind", SOUNDS)
def test_sound_that_a_file_cannot_hold_is_encoded_and_that_is_said(tmp_path, caplog, kind):
    name, codec, encoded, options = SOUNDS[kind]
    source, output = make_video(tmp_path / name, sound=[codec], **options), tmp_path / "joined.mp4"
    info = probe(source)
    with caplog.at_level(logging.WARNING):
        join_segments(copied(source, info, 30), source, info, output)
    assert f"joined.mp4: encodes the sound ({codec}) as {encoded}" in caplog.text
    (_, before), (named, after) = heard(source), heard(output)
    assert named == encoded
    if encoded == "aac":
        assert abs(len(after) - len(before)) <= 2048
        assert after.std() == pytest.approx(before.std(), rel=0.05)
    else:
        np.testing.assert_array_equal(after, before)


def test_packets_that_ffmpeg_refuses_are_left_out(tmp_path):
    """Here one without the header that MP4's filter needs, and one that comes again."""
    source, output = make_video(tmp_path / "video.ts", sound=["aac"]), tmp_path / "sound.mp4"
    with av.open(source) as original, av.open(output, "w") as container:
        packets = [packet for packet in original.demux(audio=0) if packet.size]
        damaged = Packet(bytes(100))
        damaged.pts = damaged.dts = packets[5].pts
        damaged.time_base = packets[5].time_base
        track = container.add_stream_from_template(original.streams.audio[0])
        given = [*packets[:5], damaged, *packets[6:9], packets[8], *packets[9:]]
        for packet in given:
            packet.stream = track
        assert mux(container, given) == 2
    with av.open(output) as container:
        assert sum(bool(packet.size) for packet in container.demux(audio=0)) == len(packets) - 1


def test_what_cannot_be_joined_is_told_and_leaves_the_output_as_it_was(tmp_path, monkeypatch):
    source, output = make_video(tmp_path / "video.avi", sound=["pcm_mulaw"]), tmp_path / "joined.mov"
    info = probe(source)
    segments = copied(source, info, 10)
    output.write_text("from before")
    for wrong, path, named in (
        (segments[:2], output, "20 frames of 30"),
        ([*segments, segments[0]], output, "40 frames of 30"),
        (segments, tmp_path / "joined.webm", r"joined.webm: .*H.264"),
    ):
        with pytest.raises(UserError, match=named):
            join_segments(wrong, source, info, path)
    with monkeypatch.context() as patch:
        patch.setattr("singleshot.style.video.join.whole_file", lambda _: nullcontext(Path("/dev/full")))
        with pytest.raises(UserError, match=r"joined.mov: .*No space left"):
            join_segments(segments, source, info, output)
    assert output.read_text() == "from before"
    assert list(tmp_path.glob(".*")) == []
    join_segments(segments, source, info, output)
    assert probe(output).frames == 30


def test_sound_of_an_unknown_codec_is_left_out_with_a_warning(tmp_path, caplog):
    source, output = make_video(tmp_path / "video.mov", sound=["aac", "aac"]), tmp_path / "joined.mp4"
    before, trak, track = source.read_bytes().rpartition(b"trak")
    source.write_bytes(before + trak + track.replace(b"mp4a", b"apac").replace(b"esds", b"none"))
    info = probe(source)
    with caplog.at_level(logging.WARNING):
        join_segments(copied(source, info, 30), source, info, output)
    assert "joined.mp4: left out audio (an unknown codec)" in caplog.text
    assert probe(output).frames == 30
    assert len(sounds(output)) == 1
    assert [content for _, content in sounds(output)[0]] == [content for _, content in sounds(source)[0]]


@pytest.mark.parametrize("lengths", [(20, 30), (30, 20)])
def test_recordings_one_after_the_other_keep_all_their_sound(tmp_path, lengths):
    parts = [make_video(tmp_path / f"{frames}.ts", frames=frames, sound=["aac"]) for frames in lengths]
    source, output = tmp_path / "video.ts", tmp_path / "joined.mp4"
    source.write_bytes(b"".join(part.read_bytes() for part in parts))
    info = probe(source)
    join_segments(copied(source, info, 30), source, info, output)
    assert probe(output).frames == info.frames == 50
    times = [time for time, _ in sounds(output)[0]]
    assert len(times) >= sum(len(sounds(part)[0]) for part in parts) - 1
    assert np.abs(np.diff(times)).max() < 0.1


def test_packets_of_sound_may_share_a_time(tmp_path):
    source, output = tmp_path / "paired.mkv", tmp_path / "joined.mkv"
    made = make_video(tmp_path / "video.mkv", sound=["pcm_s16le"])
    with av.open(made) as video, av.open(source, "w") as container:
        copies = [container.add_stream_from_template(stream) for stream in video.streams]
        for packet in filter(lambda packet: packet.size, video.demux()):
            packet.stream = copies[packet.stream_index]
            if packet.stream is copies[1]:  # its packets come every 20 ms
                packet.pts = packet.dts = packet.pts // 40 * 40
            container.mux(packet)
    info = probe(source)
    join_segments(copied(source, info, 30), source, info, output)
    times = [time for time, _ in sounds(source)[0]]
    assert len(set(times)) <= len(times) / 2 + 1
    assert sounds(output) == sounds(source)


@pytest.mark.parametrize(("frames", "at_most", "lengths"), [(30, 7, [6] * 5), (8, 7, [4, 4]), (1, 9, [1])])
def test_segments_are_of_nearly_one_length(tmp_path, frames, at_most, lengths):
    segments = plan_segments(probe(make_video(tmp_path / "video.mp4", frames=frames)), at_most)
    assert [segment.frames for segment in segments] == lengths


@pytest.fixture
def model(tmp_path):
    torch.manual_seed(0)
    network = TransformerNet(width=4)
    save_model(
        network, ModelCard("waves", "0" * 64, "photos", 1, {}, {}, "commit"), tmp_path / "model.safetensors"
    )
    return tmp_path / "model.safetensors"


def stylized(tmp_path, model, video, params, name):
    output = tmp_path / name
    output.mkdir()
    events = list(stylize_segment([Job(params, {"video": video, "model": model}, output)]))
    return output / SEGMENT, events


@pytest.mark.parametrize("lead", [0, 3])
def test_the_task_stylises_its_own_frames_alone(tmp_path, model, lead):
    video = make_video(tmp_path / "video.mp4", size=(65, 47), pix_fmt="yuv444p")
    info = probe(video)
    segment = info.segment(13 - lead, 24)
    params = StylizeSegmentParams(segment, info.format, StylizeSettings(precision="float32"), 4, lead)
    path, events = stylized(tmp_path, model, video, params, "segment")
    network, _ = load_model(model)
    frames = [frame for n, frame in enumerate(read_frames(video)) if 13 - lead <= n < 24]
    with torch.inference_mode():
        pictures = network(torch.from_numpy(np.stack(frames)).permute(0, 3, 1, 2).float() / 255)
    by_network = (pictures.permute(0, 2, 3, 1) * 255).round().byte().numpy()
    own = list(map(bounded, frames, smooth(frames, by_network)))[lead:]
    for pair in zip(own, read_frames(path), strict=True):
        expected, written = (cv2.blur(frame.astype(np.float32), (8, 8)) for frame in pair)
        # A random network gives noise, of which crf 18 keeps little but its mean over a few pixels.
        assert np.abs(expected - written).mean() < 2
    assert probe(path).format == info.format
    *progress, metrics = events
    assert progress == [Progress((n + 1) / 11) for n in range(11)]
    assert isinstance(metrics, Metrics)
    assert metrics.step == 11
    assert metrics.values["frames_per_second"] > 0


def test_segments_of_a_style_join_and_are_the_same_each_time(tmp_path, model):
    video = make_video(tmp_path / "video.mp4", sound=["aac"])
    info = probe(video)
    paths = []
    for segment in plan_segments(info, 12):
        read, lead = with_lead(info, segment)
        assert (read.start, lead) == ((0, 0) if not segment.start else (segment.start - LEAD, LEAD))
        params = StylizeSegmentParams(read, info.format, lead=lead)
        path, _ = stylized(tmp_path, model, video, params, f"{segment.start}")
        again, _ = stylized(tmp_path, model, video, params, f"{segment.start}_again")
        assert path.read_bytes() == again.read_bytes()
        paths.append(path)
    join_segments(paths, video, info, tmp_path / "joined.mp4")
    assert probe(tmp_path / "joined.mp4").timestamps == info.timestamps


ASS_HEADER = b"""[Script Info]
ScriptType: v4.00+

[V4+ Styles]
Format: Name, Fontname, Fontsize
Style: Default,Arial,16

[Events]
Format: Layer, Start, End, Style, Name, MarginL, MarginR, MarginV, Effect, Text
"""
"""What FFmpeg's encoders of subtitles begin with."""


def rich(path):
    """A video with a title, a date, a place, chapters and subtitles, in MKV also with a font."""
    sub = {".mkv": "srt", ".mp4": "mov_text"}[path.suffix]
    plain = make_video(path.with_name(f"plain{path.suffix}"), sound=["aac", "aac"])
    with av.open(plain) as original, av.open(path, "w") as container:
        date, place = "2024-05-01T10:00:00.000000Z", "+48.2082+016.3738/"
        container.metadata.update({"title": "Holiday", "creation_time": date, "location": place})
        titles = enumerate(("One", "Two"))
        chapters = [{"id": n, "start": n, "end": n + 1, "metadata": {"title": title}} for n, title in titles]
        container.set_chapters([chapter | {"time_base": Fraction(1, 2)} for chapter in chapters])
        copies = [container.add_stream_from_template(stream) for stream in original.streams]
        copies[2].metadata.update({"language": "deu", "title": "Commentary"})
        if path.suffix == ".mkv":
            container.add_attachment("letters.ttf", "font/ttf", b"letters")
        text = container.add_stream(sub)
        text.codec_context.subtitle_header = ASS_HEADER
        text.metadata["language"] = "fra"
        for packet in original.demux():
            if packet.size:
                packet.stream = copies[packet.stream_index]
                container.mux(packet)
        words = b"Bonjour"
        packet = Packet(words if sub == "srt" else len(words).to_bytes(2, "big") + words)
        packet.stream, packet.time_base = text, Fraction(1, 1000)
        packet.pts = packet.dts = 200
        packet.duration = 300
        container.mux(packet)
    return path


@pytest.mark.parametrize("name", ["video.mkv", "video.mp4"])
def test_all_that_a_player_shows_is_kept_or_said_to_be_left_out(tmp_path, caplog, name):
    source, output = rich(tmp_path / name), tmp_path / f"joined_{name}"
    info = probe(source)
    with caplog.at_level(logging.WARNING):
        join_segments(copied(source, info, 30), source, info, output)
    assert caplog.text == ""
    with av.open(source) as before, av.open(output) as after:
        told, kept = ({k.lower(): v for k, v in file.metadata.items()} for file in (before, after))
        assert all(kept[key] == told[key] for key in ("title", "creation_time", "location"))
        titles = [[chapter["metadata"]["title"] for chapter in file.chapters()] for file in (before, after)]
        assert titles == [["One", "Two"]] * 2
        assert after.streams.audio[1].language == "deu"
        if name == "video.mkv":
            assert [(file.name, file.data) for file in after.streams.attachments] == [
                ("letters.ttf", b"letters")
            ]
            assert after.streams.audio[1].metadata["title"] == "Commentary"
        assert after.streams.subtitles[0].language == "fra"
        texts = [[bytes(p)[-7:] for p in file.demux(subtitles=0) if p.size > 2] for file in (before, after)]
        assert texts == [[b"Bonjour"]] * 2
    if name == "video.mkv":
        join_segments(copied(source, info, 30), source, info, tmp_path / "joined.mp4")
        assert "joined.mp4: left out subtitle (srt), attachment (" in caplog.text
        assert len(sounds(tmp_path / "joined.mp4")) == 2
