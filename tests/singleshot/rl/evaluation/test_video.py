import av
import numpy as np
import pytest
from PIL import Image

from singleshot.errors import UserError
from singleshot.job import Job
from singleshot.rl.environments import LOCOMOTION
from singleshot.rl.evaluation.drawing import Caption, write_drawing
from singleshot.rl.evaluation.episode import PlayedEpisode, load_episode
from tasks.animate import AnimateParams, animate

EPISODE = PlayedEpisode(
    LOCOMOTION["Hopper"], np.tile([0.0, 1.25, 0, 0, 0, 0], (41, 1)), np.arange(40.0), 0.008, True
)


def read(path):
    with av.open(path) as container:
        stream = container.streams.video[0]
        return (
            stream.codec_context.name,
            stream.average_rate,
            [frame.to_ndarray(format="rgb24") for frame in container.decode(stream)],
        )


def test_an_episode_is_kept_whole_and_no_other_file_is_one(tmp_path):
    EPISODE.save(tmp_path / "one.safetensors")
    EPISODE.save(tmp_path / "two.safetensors")
    assert (tmp_path / "one.safetensors").read_bytes() == (tmp_path / "two.safetensors").read_bytes()
    loaded = load_episode(tmp_path / "one.safetensors")
    assert np.array_equal(loaded.positions, EPISODE.positions)
    assert np.array_equal(loaded.rewards, EPISODE.rewards)
    assert (loaded.environment, loaded.step_seconds, loaded.fell) == (LOCOMOTION["Hopper"], 0.008, True)
    assert loaded.returns[[0, 1, 2, -1]].tolist() == [0, 0, 1, 780]
    (tmp_path / "two.safetensors").write_bytes(b"cut short")
    for name in ("two", "three"):
        with pytest.raises(UserError, match=rf"{name}\.safetensors"):
            load_episode(tmp_path / f"{name}.safetensors")


def test_a_drawn_video_is_h264_that_browsers_play(tmp_path):
    write_drawing(tmp_path / "hopper.mp4", EPISODE, "an agent")
    codec, rate, frames = read(tmp_path / "hopper.mp4")
    assert (codec, rate) == ("h264", 31.25)
    assert len(frames) == 11 + 31  # every fourth of 40 steps, and a second at the end
    assert frames[0].shape == (480, 854, 3)


def test_a_missing_folder_is_one_clear_error(tmp_path):
    with pytest.raises(UserError, match=r"no/video\.mp4"):
        write_drawing(tmp_path / "no/video.mp4", EPISODE, "an agent")


def test_agents_side_by_side_are_the_same_bytes_each_time(tmp_path):
    captions = (Caption("dense", "#1f2933"), Caption("SNIP", "#0072b2"), Caption("random", "#009e73"))
    EPISODE.save(tmp_path / "episode.safetensors")
    inputs = {caption.label: tmp_path / "episode.safetensors" for caption in captions}
    made = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        list(animate([Job(AnimateParams(EPISODE.environment, captions, 10), inputs, tmp_path / name)]))
        made.append({path.name: path.read_bytes() for path in (tmp_path / name).iterdir()})
    assert made[0] == made[1]
    assert sorted(made[0]) == ["animation.mp4", "still.jpg"]
    _, _, frames = read(tmp_path / "one/animation.mp4")
    with Image.open(tmp_path / "one/still.jpg") as still:
        assert frames[0].shape == (still.height, still.width, 3) == (2 * 226, 800, 3)
