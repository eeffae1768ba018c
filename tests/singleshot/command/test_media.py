"""What a user's files are, by their content, and where their results go."""

import os
import shutil
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from odd_videos import make_video
from PIL import Image

from singleshot.command.media import find_media, plan_targets
from singleshot.errors import UserError


@pytest.fixture(autouse=True)
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory with a picture and a video."""
    monkeypatch.chdir(tmp_path)
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 50, 3), np.uint8)).save("photo.png")
    make_video(Path("film.mp4"), frames=3, sound=["aac"])
    Path("in").mkdir()


def found(*inputs: str) -> dict[str, str]:
    """The kinds of the files found, by the path of the result."""
    return {medium.name.as_posix(): medium.kind for medium in find_media(inputs, Path("out"))[0]}


def test_the_content_decides_what_a_file_is() -> None:
    """FFmpeg finds the JPEG in a PDF, and makes videos of pictures."""
    for name in ("a", "a.mts", "a.JPG.part"):
        shutil.copy("film.mp4", f"in/{name}")
    for name in ("b.dat", "b.jpg", "b.mp4"):
        shutil.copy("photo.png", f"in/{name}")
    make_video(Path("in/c.ts"), frames=30, rate=Fraction(25))
    with Image.open("photo.png") as photo:
        photo.convert("RGB").save("in/scan.pdf")
        photo.convert("1").save("in/drawn.msp")
        photo.convert("RGB").save("in/texture.pcx")
    pictures = dict.fromkeys(["b.dat", "b.jpg", "b.mp4", "texture.png"], "picture")
    assert found("in") == pictures | dict.fromkeys(["a.mkv", "a.JPG.mkv", "c.mkv"], "video")


def test_a_directory_says_what_it_leaves_out() -> None:
    for name in ("photo.png", "film.mp4"):
        shutil.copy(name, "in")
    Path("in/notes.txt").write_text("milk", encoding="utf-8")
    Path("in/list.dat").write_text("#EXTM3U\n#EXTINF:1,\n/etc/passwd\n", encoding="utf-8")
    make_video(Path("sound.mkv"), frames=30, sound=["aac"])
    Path("in/noise").write_bytes(np.random.default_rng(0).bytes(5000))
    media, lines = find_media(["photo.png", "in"], Path("out"))
    assert [medium.file.as_posix() for medium in media] == ["photo.png", "in/film.mp4", "in/photo.png"]
    assert lines == [
        "in: left out what isn't a picture or video, or can't be opened: 3 (list.dat, noise, notes.txt)"
    ]


def test_locked_folders_and_names_that_are_too_long_cost_nothing_else(tmp_path: Path) -> None:
    for folder in ("in/closed", "in/listed"):
        Path(folder).mkdir()
        shutil.copy("photo.png", f"{folder}/inner.png")
    shutil.copy("photo.png", f"in/{'x' * 250}.png")
    shutil.copy("photo.png", "in")
    Path("out").mkdir()
    Path("in/closed").chmod(0)
    Path("in/listed").chmod(0o444)
    for folder in (tmp_path.parent.parent, tmp_path.parent, tmp_path):
        folder.chmod(0o755)
    user = os.getuid()
    os.setresuid(user or 65534, user or 65534, user)  # root may open everything
    try:
        media, (locked,) = find_media(["in"], Path("out"))
        targets, (long,) = plan_targets(media, Path("out"), "waves")
    finally:
        os.setresuid(user, user, user)
    assert list(targets) == [Path("out/photo-waves.png")]
    assert locked == "in: left out what isn't a picture or video, or can't be opened: 2 (closed, listed)"
    assert long.endswith(f"rename in/{'x' * 250}.png")


def test_damaged_files_count_as_what_their_suffix_says() -> None:
    Path("in/cut.mov").write_bytes(Path("film.mp4").read_bytes()[:90])
    Path("in/cut.jpg").write_text("404", encoding="utf-8")
    Path("in/cut.M2TS").write_bytes(bytes(90))
    Path("in/cut.webp").write_bytes(bytes(90))
    kinds = {"cut.jpg": "picture", "cut.mkv": "video", "cut.mov": "video", "cut.webp": "picture"}
    assert found("in") == kinds


def test_directories_are_read_to_the_bottom_and_their_tree_is_kept() -> None:
    for name in ("a.png", "sub/a.PNG", "sub/deep/b.png", ".hidden/c.png", "._a.png", "out/a.png"):
        Path("in", name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy("photo.png", f"in/{name}")
    media, _ = find_media(["in"], Path("in/out"))  # whose files an earlier run has written
    assert [medium.name.as_posix() for medium in media] == ["a.png", "sub/a.PNG", "sub/deep/b.png"]


def test_globs() -> None:
    Path("in/x").mkdir()
    for name in ("a1.png", "a2.png", "b1.png", "x/a1.png", "[1].png"):
        shutil.copy("photo.png", f"in/{name}")
    assert list(found("in/a*")) == ["a1.png", "a2.png"]
    assert list(found("in/**/*1.png")) == ["a1.png", "b1.png", "x/a1.png"]
    assert list(found("in/[1].png")) == ["[1].png"]


@pytest.mark.parametrize(
    ("inputs", "output", "named"),
    [
        (["none.jpg"], "out", "none.jpg"),
        (["in"], "out", "in"),
        (["*.none"], "out", "*.none"),
        (["in/**.jpg"], "out", "in/**.jpg"),
        (["photo.png", "photo-waves.png"], "link", "photo-waves.png"),
        (["film.mp4", "film-waves.mp4"], ".", "film-waves.mp4"),
        (["*.png"], ".", "*.png"),
        (["photo.png"], "film.mp4", "film.mp4"),
        (["photo.png"], "film.mp4/sub", "film.mp4"),
        (["photo.png"], "new.jpg", "PNG"),
        (["photo.png", "film.mp4"], "new.png", "new.png"),
    ],
)
def test_inputs_and_outputs_of_no_use_are_named(inputs: list[str], output: str, named: str) -> None:
    """An input is never overwritten."""
    Path("link").symlink_to(Path.cwd())
    for name in ("photo.png", "film.mp4"):
        shutil.copy(name, Path(name).with_stem(f"{Path(name).stem}-waves"))
    with pytest.raises(UserError) as told:
        plan_targets(find_media(inputs, Path(output))[0], Path(output), "waves")
    assert named in str(told.value)


def test_an_input_that_is_named_twice_is_one_and_a_folder_may_have_a_suffix() -> None:
    (medium,), _ = find_media(["photo.png", "./photo.png", "*.png"], Path("out"))
    Path("folder.jpg").mkdir()
    assert list(plan_targets([medium], Path("folder.jpg"), "waves")[0]) == [
        Path("folder.jpg/photo-waves.png")
    ]


@pytest.mark.parametrize(("source", "result"), [("photo.png", "new.PNG"), ("film.mp4", "more/new.mkv")])
def test_a_file_can_be_named_for_the_result_of_one(source: str, result: str) -> None:
    media, _ = find_media([source], Path(result))
    assert list(plan_targets(media, Path(result), "waves")[0]) == [Path(result)]


def test_two_of_one_name_have_no_place_and_leave_the_others_theirs() -> None:
    for name in ("a.png", "b.png"):
        shutil.copy("photo.png", f"in/{name}")
    with Image.open("photo.png") as photo:
        photo.save("in/a.pcx")
    media, _ = find_media(["in"], Path("out"))
    targets, lines = plan_targets(media, Path("out"), "waves")
    assert {target.name: medium.file.name for target, medium in targets.items()} == {"b-waves.png": "b.png"}
    (line,) = lines
    assert all(name in line for name in ("in/a.pcx", "in/a.png", "out/a-waves.png"))
