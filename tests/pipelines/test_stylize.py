import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import av
import numpy as np
import pytest
from odd_videos import NTSC, make_video
from PIL import Image
from waiting import wait_until

from pipelines.cli import stylize as module
from pipelines.cli.stylize import StylizeOptions, style_model, stylize_inputs
from singleshot.errors import UserError
from singleshot.style.apply.regions import read_mask
from singleshot.style.apply.stylize import StylizeSettings
from singleshot.style.model_file import ModelCard, save_model
from singleshot.style.transformer_net import TransformerNet
from singleshot.style.video.join import join_segments

ROOT = Path(__file__).parents[2]
OPTIONS = StylizeOptions(StylizeSettings(), batch_size=2, force=False)
PLAIN = StylizeOptions(StylizeSettings(strength=0.0), batch_size=2, force=False)


@pytest.fixture(autouse=True)
def workplace(tmp_path, monkeypatch):
    """A directory with a configuration, a style that is trained, a picture and a video."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(module, "FRAMES_PER_SEGMENT", 5)
    monkeypatch.setattr(module, "fixed_runtime", lambda _: "torch")
    params = (ROOT / "params.yaml").read_text()
    Path("params.yaml").write_text(params.replace("kind: ray", "kind: local"), encoding="utf-8")
    card = ModelCard("ink", "0" * 64, "none", 0, {}, {}, "unknown")
    save_model(TransformerNet(width=4), card, Path("models/styles/ink/model.safetensors"))
    pixels = np.random.default_rng(0).integers(0, 256, (40, 50, 3), np.uint8)
    Image.fromarray(pixels).save("photo.png")
    make_video(Path("film.mp4"), frames=13, sound=["aac"])


def frames_of(path):
    with av.open(path) as container:
        return [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]


def test_pictures_and_videos_in_one_go():
    stylize_inputs(["ink"], ["photo.png", "film.mp4"], Path("out"), OPTIONS)
    assert sorted(path.name for path in Path("out").iterdir()) == ["film.mp4", "photo.png"]
    with Image.open("out/photo.png") as result, Image.open("photo.png") as photo:
        assert result.size == photo.size
        assert np.abs(np.asarray(result, int) - np.asarray(photo, int)).mean() > 5
    with av.open("out/film.mp4") as result:
        assert result.streams.video[0].average_rate == NTSC
        assert len(result.streams.audio) == 1
    assert len(frames_of("out/film.mp4")) == 13


def test_styles_are_blended_by_their_shares():
    """Two networks of which one is the other: the blend of them is that one."""
    both = ["ink:0.7", "models/styles/ink/model.safetensors:0.1"]
    for styles, output in ((both, "out"), (["models/styles/ink"], "alone")):
        stylize_inputs(styles, ["photo.png"], Path(output), OPTIONS)
    pictures = [np.asarray(Image.open(f"{name}/photo.png"), int) for name in ("out", "alone")]
    assert np.abs(pictures[0] - pictures[1]).max() <= 1


def test_of_two_styles_of_one_name_the_users_own_comes_first():
    assert style_model("ink") == Path("models/styles/ink/model.safetensors")
    shutil.copytree("models/styles/ink", "styles/ink")
    assert style_model("ink") == Path("styles/ink/model.safetensors")


def test_outside_a_mask_pictures_and_films_stay_as_they_are():
    mask = Image.new("L", (50, 40), 0)
    mask.paste(255, (0, 0, 25, 40))
    mask.save("mask.png")
    settings = StylizeSettings(mask=read_mask(Path("mask.png"), invert=False))
    stylize_inputs(["ink"], ["photo.png", "film.mp4"], Path("out"), replace(OPTIONS, settings=settings))
    result, photo = (
        np.asarray(Image.open(path).convert("RGB"), int) for path in ("out/photo.png", "photo.png")
    )
    assert np.array_equal(result[:, 26:], photo[:, 26:])
    assert np.abs(result[:, :24] - photo[:, :24]).mean() > 5
    for made, original in zip(frames_of("out/film.mp4"), frames_of("film.mp4"), strict=True):
        width = original.shape[1]
        difference = np.abs(made.astype(int) - original)
        assert difference[:, width // 2 + 4 :].mean() < 5
        assert difference[:, : width // 2 - 4].mean() > 2 * difference[:, width // 2 + 4 :].mean()


def test_an_interrupted_video_goes_on_from_its_finished_segments(monkeypatch, capsys):
    commit = module.CellStore.commit
    kept = []

    def fail_at_the_third(store, cell, files, made):
        if len(kept) == 2:
            raise OSError("no space left")
        kept.append(cell.name)
        commit(store, cell, files, made)

    with monkeypatch.context() as patch:
        patch.setattr(module.CellStore, "commit", fail_at_the_third)
        with pytest.raises(OSError, match="no space left"):
            stylize_inputs(["ink"], ["film.mp4"], Path("out"), OPTIONS)
    assert not Path("out/film.mp4").exists()
    capsys.readouterr()
    stylize_inputs(["ink"], ["film.mp4"], Path("out"), OPTIONS)
    assert "3 in all, 2 reused, 1 to compute" in capsys.readouterr().out
    assert [path.name for path in Path("out").iterdir()] == ["film.mp4"]


@pytest.mark.slow
def test_of_two_with_one_target_the_second_waits_and_computes_nothing(monkeypatch):
    command = [sys.executable, "-m", "pipelines", "stylize", "-s", "ink", "-i", "film.mp4", "-o", "out"]
    started = []

    def join_beside_the_second(*arguments):
        with Path("said").open("w", encoding="utf-8") as said:
            environment = os.environ | {"PYTHONPATH": str(ROOT)}
            started.append(
                subprocess.Popen(command, env=environment, stdout=said, stderr=subprocess.STDOUT, text=True)
            )
        wait_until(
            lambda: started[0].poll() or Path("said").read_text(encoding="utf-8"), "the second says something"
        )
        words = "waiting for another process, which works on out/film.mp4\n"
        assert Path("said").read_text(encoding="utf-8") == words
        join_segments(*arguments)

    monkeypatch.setattr(module, "join_segments", join_beside_the_second)
    stylize_inputs(["ink"], ["film.mp4"], Path("out"), OPTIONS)
    written = Path("out/film.mp4").stat()
    assert started[0].wait() == 1
    _, *lines = Path("said").read_text(encoding="utf-8").splitlines()
    assert lines == ["error: out/film.mp4: exists; give --force to overwrite, or another output directory"]
    assert Path("out/film.mp4").stat().st_mtime_ns == written.st_mtime_ns
    assert [path.name for path in Path("out").iterdir()] == ["film.mp4"]


def test_what_is_damaged_does_not_keep_the_rest_from_being_written():
    Path("broken.jpg").write_bytes(Path("photo.png").read_bytes()[:200])
    Path("broken.mp4").write_bytes(Path("film.mp4").read_bytes()[:100])
    with pytest.raises(UserError, match=r"(?s)broken\.jpg.*broken\.mp4"):
        stylize_inputs(["ink"], ["broken.jpg", "photo.png", "broken.mp4", "film.mp4"], Path("out"), OPTIONS)
    assert sorted(path.name for path in Path("out").iterdir()) == ["film.mp4", "photo.png"]


@pytest.mark.parametrize(
    ("styles", "inputs", "output", "words"),
    [
        (["oil"], ["photo.png"], "new", ["'oil'", "models/styles", "ink"]),
        (["oil.safetensors"], ["photo.png"], "new", ["oil.safetensors", "no such file"]),
        (["ink", "ink:half"], ["photo.png"], "new", ["ink:half"]),
        (["ink:nan"], ["photo.png"], "new", ["nan"]),
        (["ink"], ["none.mp4"], "new", ["none.mp4", "no such"]),
        (["ink"], ["film.mp4", "more/film.mp4"], "new", ["film.mp4", "more/film.mp4", "rename"]),
        (["ink"], ["film.mp4"], "more", ["more/film.mp4", "--force"]),
        (["ink"], ["film.mp4"], "-", ["film.mp4"]),
        (["ink"], ["photo.png", "-"], "new", ["-"]),
    ],
)
def test_mistakes_are_told_before_any_work(styles, inputs, output, words):
    Path("more").mkdir()
    shutil.copy("film.mp4", "more/film.mp4")
    before = sorted(Path.cwd().rglob("*"))
    with pytest.raises(UserError) as failure:
        stylize_inputs(styles, inputs, Path(output), OPTIONS)
    assert all(word in str(failure.value) for word in words)
    assert sorted(Path.cwd().rglob("*")) == before


def test_a_runtime_that_is_asked_for_is_taken(monkeypatch, capsys):
    float32 = replace(OPTIONS, settings=StylizeSettings(precision="float32"))
    stylize_inputs(["ink"], ["film.mp4"], Path("out"), float32)
    stylize_inputs(["ink"], ["film.mp4"], Path("more"), replace(float32, runtime="onnxruntime"))
    assert "by onnxruntime" in capsys.readouterr().out
    # Runtimes differ in a last bit, and then the encoder may choose otherwise for a dozen frames: by 1.3.
    assert apart("out/film.mp4", "more/film.mp4") < 3
    assert apart("out/film.mp4", "film.mp4") > 10


def apart(video, other):
    """The largest mean difference between two videos' frames, in steps of 255."""
    pairs = zip(frames_of(video), frames_of(other), strict=True)
    return max(np.abs(a.astype(int) - b).mean() for a, b in pairs)


@pytest.mark.slow
def test_frames_too_large_for_memory_are_pytorchs_which_has_tiles(monkeypatch, capsys):
    monkeypatch.setattr("singleshot.style.apply.stylize.free_memory", lambda _: 2 * 64 * 48 * 4 * 30 - 2)
    monkeypatch.setattr(module, "fixed_runtime", lambda _: "onnxruntime")
    stylize_inputs(["ink"], ["film.mp4"], Path("out"), OPTIONS)
    assert "by torch" in capsys.readouterr().out
