import zipfile
from fractions import Fraction

import av
import numpy as np
import pytest
import torch

from singleshot.errors import UserError
from singleshot.io.images import encode_jpeg
from singleshot.job import Job
from singleshot.style.datasets.photos import PhotoSet
from singleshot.style.video.reader import probe
from tasks.make_clip import SAMPLE_RATE, ClipParams, fetch_clip, make_clip, pan_and_zoom


@pytest.fixture
def photo():
    """A gradient from left to right and from top to bottom, (3, 90, 160)."""
    y, x = torch.meshgrid(torch.linspace(0.1, 0.9, 90), torch.linspace(0.1, 0.9, 160), indexing="ij")
    return torch.stack([x, y, torch.full_like(x, 0.5)])


@pytest.mark.parametrize(("size", "rate"), [((64, 48), "30000/1001"), ((65, 47), "25")])
def test_a_clip_is_what_was_asked_for(tmp_path, photo, size, rate):
    path = tmp_path / "clip.mp4"
    make_clip(photo, path, 1.5, Fraction(rate), size)
    info = probe(path)
    frames = round(1.5 * Fraction(rate))
    assert (info.width, info.height, info.frame_rate, info.frames) == (*size, Fraction(rate), frames)
    assert info.start == 0
    with av.open(path) as container:
        (sound,) = container.streams.audio
        assert (sound.codec_context.name, sound.rate, sound.channels) == ("aac", SAMPLE_RATE, 1)
        heard = np.concatenate([frame.to_ndarray()[0] for frame in container.decode(audio=0)])
    seconds = float(info.end * info.time_base)
    assert len(heard) / SAMPLE_RATE == pytest.approx(seconds, abs=1024 / SAMPLE_RATE)
    assert np.argmax(np.abs(np.fft.rfft(heard))) / len(heard) * SAMPLE_RATE == pytest.approx(220, abs=2)


def test_the_camera_begins_with_all_that_fits_and_ends_nearer(photo):
    frames = list(pan_and_zoom(photo, 20, (160, 90)))
    np.testing.assert_allclose(frames[0], (photo * 255).permute(1, 2, 0), atol=2.5)
    # 1.3 times nearer, two thirds of what is out of sight on the left: x from 2/3·(1 - 1/1.3) of the width.
    left = 0.1 + 0.8 * 2 / 3 * (1 - 1 / 1.3)
    row = frames[-1][45, :, 0] / 255
    assert row[0] == pytest.approx(left, abs=0.02)
    assert row[-1] - row[0] == pytest.approx(0.8 / 1.3, abs=0.02)


def test_the_task_takes_a_photo_of_the_set(tmp_path, photo):
    photos, output = tmp_path / "photos", tmp_path / "output"
    photos.mkdir()
    output.mkdir()
    with zipfile.ZipFile(photos / "photos.zip", "w") as archive:
        archive.writestr("gradient.jpg", encode_jpeg(photo))
    params = ClipParams("gradient", seconds=0.4, width=64, height=48)
    list(fetch_clip([Job(params, {"photos": photos}, output)]))
    direct = tmp_path / "direct.mp4"
    make_clip(PhotoSet.open(photos).read("gradient"), direct, 0.4, Fraction(30000, 1001), (64, 48))
    content = direct.read_bytes()
    assert (output / "clip.mp4").read_bytes() == content
    assert b"Lavf" not in content
    assert probe(direct).frames == 12


@pytest.mark.parametrize("fps", ["fast", "1/0", "-25"])
def test_wrong_rates_are_told(fps):
    with pytest.raises(UserError, match=f"clip.fps is '{fps}'"):
        ClipParams("photo", fps=fps)
