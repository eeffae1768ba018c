import shutil
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import av
import numpy as np
import pytest
from odd_videos import NTSC, make_video
from PIL import Image

from singleshot.command import stylize as module
from singleshot.command.styles import read_shares, style_model
from singleshot.command.stylize import StylizeOptions, stylize_inputs
from singleshot.errors import UserError
from singleshot.io.whole_file import whole_file
from singleshot.style.apply.regions import read_mask
from singleshot.style.apply.stylize import StylizeSettings
from singleshot.style.model_file import ModelCard, save_model
from singleshot.style.transformer_net import TransformerNet

INK = {"ink": 1.0}
OPTIONS = StylizeOptions(StylizeSettings(), batch_size=2, force=False)
PLAIN = StylizeOptions(StylizeSettings(strength=0.0), batch_size=2, force=False)


@pytest.fixture(autouse=True)
def workplace(tmp_path, monkeypatch):
    """A directory with a style that is trained, a picture and a video."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(module, "FRAMES_PER_SEGMENT", 5)
    monkeypatch.setattr(module, "fixed_runtime", lambda _: "torch")
    card = ModelCard("ink", "0" * 64, "none", 0, {}, {}, "unknown")
    save_model(TransformerNet(width=4), card, Path("models/styles/ink/model.safetensors"))
    pixels = np.random.default_rng(0).integers(0, 256, (40, 50, 3), np.uint8)
    Image.fromarray(pixels).save("photo.png")
    make_video(Path("film.mp4"), frames=13, sound=["aac"])


def frames_of(path):
    with av.open(path) as container:
        return [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]


def names_in(folder):
    return sorted(path.name for path in Path(folder).iterdir() if path.name != module.RECORD)


def test_pictures_and_videos_in_one_go(monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 20)  # a limit for servers
    stylize_inputs(INK, ["photo.png", "film.mp4"], Path("out"), OPTIONS)
    assert names_in("out") == ["film-ink.mp4", "photo-ink.png"]
    with Image.open("out/photo-ink.png") as result, Image.open("photo.png") as photo:
        assert result.size == photo.size
        assert np.abs(np.asarray(result, int) - np.asarray(photo, int)).mean() > 5
    with av.open("out/film-ink.mp4") as result:
        assert result.streams.video[0].average_rate == NTSC
        assert len(result.streams.audio) == 1
    assert len(frames_of("out/film-ink.mp4")) == 13


def test_the_second_style_of_a_photo_has_a_name_of_its_own_which_is_told(capsys):
    shutil.copytree("models/styles/ink", "styles/oil")
    for style in ("ink", "styles/oil/model.safetensors"):
        stylize_inputs({style: 1.0}, ["photo.png"], Path("out"), OPTIONS)
    stylize_inputs(INK, ["photo.png"], Path("own.png"), OPTIONS)
    said = [line.partition(" in ")[0] for line in capsys.readouterr().out.splitlines()]
    assert said == ["out/photo-ink.png", "out/photo-oil.png", "own.png"]
    assert all(Path(name).is_file() for name in said)


def test_a_name_with_a_colon_is_a_file_and_no_address():
    Path("film.mp4").rename("http:127.0.0.1:9.mp4")
    stylize_inputs(INK, ["http:127.0.0.1:9.mp4"], Path("12:30"), OPTIONS)
    assert len(frames_of(Path("12:30/http:127.0.0.1:9-ink.mp4").resolve())) == 13


def test_styles_are_blended_by_their_shares():
    """Two networks of which one is the other: the blend of them is that one."""
    both = ["ink:0.7", "models/styles/ink/model.safetensors:0.1"]
    for styles in (both, ["models/styles/ink"]):
        stylize_inputs(read_shares(styles), ["photo.png"], Path("out"), OPTIONS)
    pictures = [np.asarray(Image.open(f"out/photo-{name}.png"), int) for name in ("ink-ink", "ink")]
    assert np.abs(pictures[0] - pictures[1]).max() <= 1


def test_of_styles_of_one_name_the_users_own_comes_first_and_the_shipped_one_last():
    assert style_model("mosaic").suffix == ".packed"
    shutil.copytree("models/styles/ink", "models/styles/mosaic")
    assert style_model("mosaic") == Path("models/styles/mosaic/model.safetensors")
    assert style_model("ink") == Path("models/styles/ink/model.safetensors")
    shutil.copytree("models/styles/ink", "styles/ink")
    assert style_model("ink") == Path("styles/ink/model.safetensors")


def test_outside_a_mask_pictures_and_films_stay_as_they_are():
    mask = Image.new("L", (50, 40), 0)
    mask.paste(255, (0, 0, 25, 40))
    mask.save("mask.png")
    settings = StylizeSettings(mask=read_mask(Path("mask.png"), invert=False))
    stylize_inputs(INK, ["photo.png", "film.mp4"], Path("out"), replace(OPTIONS, settings=settings))
    result, photo = (
        np.asarray(Image.open(path).convert("RGB"), int) for path in ("out/photo-ink.png", "photo.png")
    )
    assert np.array_equal(result[:, 26:], photo[:, 26:])
    assert np.abs(result[:, :24] - photo[:, :24]).mean() > 5
    for made, original in zip(frames_of("out/film-ink.mp4"), frames_of("film.mp4"), strict=True):
        width = original.shape[1]
        difference = np.abs(made.astype(int) - original)
        assert difference[:, width // 2 + 4 :].mean() < 5
        assert difference[:, : width // 2 - 4].mean() > 2 * difference[:, width // 2 + 4 :].mean()


def test_an_interrupted_video_goes_on_from_its_finished_segments(monkeypatch):
    write, begun = module.write_segment, []

    def fail_at_the_third(*arguments):
        begun.append(arguments)
        if len(begun) == 3:
            raise OSError("no space left")
        return write(*arguments)

    monkeypatch.setattr(module, "write_segment", fail_at_the_third)
    with pytest.raises(UserError, match=r"film.mp4: OSError: no space left"):
        stylize_inputs(INK, ["film.mp4"], Path("out"), OPTIONS)
    assert not Path("out/film-ink.mp4").exists()
    stylize_inputs(INK, ["film.mp4"], Path("out"), OPTIONS)
    assert len(begun) == 4
    stylize_inputs(INK, ["film.mp4"], Path("whole"), OPTIONS)
    assert Path("out/film-ink.mp4").read_bytes() == Path("whole/film-ink.mp4").read_bytes()
    assert names_in("out") == ["film-ink.mp4"]


def test_the_same_command_goes_on_and_makes_what_is_missing_alone(capsys):
    """After an interruption, or for a picture that was damaged and is repaired."""
    shutil.copy("photo.png", "second.png")
    whole = Path("photo.png").read_bytes()
    Path("photo.png").write_bytes(whole[:200])
    inputs = ["photo.png", "second.png", "film.mp4"]
    with pytest.raises(UserError, match=r"photo\.png"):
        stylize_inputs(INK, inputs, Path("out"), OPTIONS)
    assert "out/second-ink.png in " in capsys.readouterr().out
    Path("photo.png").write_bytes(whole)
    before = {name: Path("out", name).stat().st_ino for name in names_in("out")}
    stylize_inputs(INK, inputs, Path("out"), OPTIONS)
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("2 of 3 results: made before from the same input")
    assert [line.partition(" in ")[0] for line in said[1:]] == ["out/photo-ink.png"]
    assert {name: Path("out", name).stat().st_ino for name in before} == before
    stylize_inputs(INK, inputs, Path("out"), replace(OPTIONS, force=True))
    assert all(Path("out", name).stat().st_ino != number for name, number in before.items())


@pytest.mark.parametrize("changed", ["input", "style", "settings", "result"])
def test_what_was_made_otherwise_is_refused_and_the_rest_is_made(changed):
    shutil.copy("photo.png", "second.png")
    stylize_inputs(INK, ["photo.png"], Path("out"), OPTIONS)
    shutil.copytree("models/styles/ink", "styles/ink")
    settings = StylizeSettings(strength=0.5 if changed == "settings" else 1)
    if changed == "style":
        card = ModelCard("ink", "0" * 64, "none", 0, {}, {}, "unknown")
        save_model(TransformerNet(width=4), card, Path("styles/ink/model.safetensors"))
    elif changed in ("input", "result"):
        Image.new("RGB", (50, 40), "red").save("photo.png" if changed == "input" else "out/photo-ink.png")
    before = Path("out/photo-ink.png").read_bytes()
    with pytest.raises(UserError, match=r"^out/photo-ink.png: exists .*--force") as refused:
        stylize_inputs(INK, ["photo.png", "second.png"], Path("out"), replace(OPTIONS, settings=settings))
    assert "second" not in str(refused.value)
    assert names_in("out") == ["photo-ink.png", "second-ink.png"]
    assert Path("out/photo-ink.png").read_bytes() == before


def test_a_record_that_is_a_link_is_refused():
    """In a folder that others may write to, it would append to a file of theirs, or wait for a reader."""
    Path("out").mkdir()
    Path("out", module.RECORD).symlink_to(Path("mine.txt").absolute())
    with pytest.raises(UserError, match=f"{module.RECORD}: not a file"):
        stylize_inputs(INK, ["photo.png"], Path("out"), PLAIN)
    assert not Path("mine.txt").exists()


def test_a_kill_before_a_result_is_there_leaves_none_that_is_unknown(monkeypatch):
    """At the worst moment: the result is known, and then moved or not."""
    for module_, source, result in (
        ("singleshot.style.picture_files", "photo.png", "out/photo-ink.png"),
        ("singleshot.style.video.join", "film.mp4", "out/film-ink.mp4"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(f"{module_}.whole_file", killed_after_the_move)
            with pytest.raises(KeyboardInterrupt):
                stylize_inputs(INK, [source], Path("out"), OPTIONS)
        made = Path(result).stat().st_ino
        stylize_inputs(INK, [source], Path("out"), OPTIONS)
        assert Path(result).stat().st_ino == made


@contextmanager
def killed_after_the_move(target):
    with whole_file(target) as file:
        yield file
    raise KeyboardInterrupt


def test_what_a_film_loses_is_told_before_its_first_frame(monkeypatch, caplog):
    make_video(Path("film.avi"), sound=["adpcm_ms"])
    monkeypatch.setattr(module, "write_segment", lambda *_: 1 / 0)
    with pytest.raises(UserError, match=r"(?s)film.avi: ZeroDivisionError.*film.mp4: ZeroDivisionError"):
        stylize_inputs(INK, ["film.avi", "film.mp4"], Path("out"), OPTIONS)
    assert "out/film-ink.mkv: encodes the sound (adpcm_ms) as aac" in caplog.text


def test_what_is_damaged_does_not_keep_the_rest_from_being_written():
    Path("broken.jpg").write_bytes(Path("photo.png").read_bytes()[:200])
    Path("broken.mp4").write_bytes(Path("film.mp4").read_bytes()[:100])
    with pytest.raises(UserError, match=r"(?s)broken\.jpg.*broken\.mp4"):
        stylize_inputs(INK, ["broken.jpg", "photo.png", "broken.mp4", "film.mp4"], Path("out"), OPTIONS)
    assert names_in("out") == ["film-ink.mp4", "photo-ink.png"]


@pytest.mark.parametrize(
    ("styles", "inputs", "output", "words"),
    [
        (["oil"], ["photo.png"], "new", ["'oil'", "ink", "mosaic"]),
        (["Ink"], ["photo.png"], "new", ["'Ink'", "did you mean ink?"]),
        (["oil.safetensors"], ["photo.png"], "new", ["oil.safetensors", "no such file"]),
        (["ink", "ink:half"], ["photo.png"], "new", ["ink:half"]),
        (["ink:nan"], ["photo.png"], "new", ["nan"]),
        (["ink"], ["none.mp4"], "new", ["none.mp4", "no such"]),
        (["ink"], ["film.mp4", "more/film.mp4"], "new", ["film.mp4", "more/film.mp4", "rename"]),
        (["ink"], ["film.mp4"], "more", ["more/film-ink.mp4", "--force"]),
        (["ink"], ["film.mp4"], "-", ["film.mp4"]),
        (["ink"], ["photo.png", "-"], "new", ["-"]),
    ],
)
def test_mistakes_are_told_before_any_work(styles, inputs, output, words):
    Path("more").mkdir()
    for name in ("film", "film-ink"):
        shutil.copy("film.mp4", f"more/{name}.mp4")
    before = sorted(Path.cwd().rglob("*"))
    with pytest.raises(UserError) as failure:
        stylize_inputs(read_shares(styles), inputs, Path(output), OPTIONS)
    assert all(word in str(failure.value) for word in words)
    assert sorted(Path.cwd().rglob("*")) == before


def test_a_runtime_that_is_asked_for_is_taken(monkeypatch, capsys):
    float32 = replace(OPTIONS, settings=StylizeSettings(precision="float32"))
    monkeypatch.setattr(module, "unavailable", lambda runtime: f"{runtime} is not installed")
    stylize_inputs(INK, ["film.mp4"], Path("out"), float32)
    advice = "pip install onnx openvino"
    assert advice in capsys.readouterr().out.splitlines()[1]
    stylize_inputs(INK, ["film.mp4"], Path("more"), replace(float32, runtime="onnxruntime"))
    out = capsys.readouterr().out
    assert "by onnxruntime" in out
    assert advice not in out
    # Runtimes differ in a last bit, and then the encoder may choose otherwise for a dozen frames: by 1.3.
    assert apart("out/film-ink.mp4", "more/film-ink.mp4") < 3
    assert apart("out/film-ink.mp4", "film.mp4") > 10


def apart(video, other):
    """The largest mean difference between two videos' frames, in steps of 255."""
    pairs = zip(frames_of(video), frames_of(other), strict=True)
    return max(np.abs(a.astype(int) - b).mean() for a, b in pairs)


@pytest.mark.slow
def test_frames_too_large_for_memory_are_pytorchs_which_has_tiles(monkeypatch, capsys):
    monkeypatch.setattr("singleshot.style.apply.stylize.free_memory", lambda _: 2 * 64 * 48 * 4 * 30 - 2)
    monkeypatch.setattr(module, "fixed_runtime", lambda _: "onnxruntime")
    stylize_inputs(INK, ["film.mp4"], Path("out"), OPTIONS)
    assert "by torch" in capsys.readouterr().out
