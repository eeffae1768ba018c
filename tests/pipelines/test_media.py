"""What a user's files are, by their content, and where their results go."""

import shutil
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from odd_videos import make_video
from PIL import Image

from pipelines.cli.media import find_media, plan_targets
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
    for name in ("a", "a.dat", "a.mts", "a.3gp", "a.JPG.part"):
        shutil.copy("film.mp4", f"in/{name}")
    for name in ("b", "b.dat", "b.jpg", "b.mp4"):
        shutil.copy("photo.png", f"in/{name}")
    make_video(Path("in/c.ts"), frames=30, rate=Fraction(25))
    assert found("in") == {
        **{f"{name}.mp4": "video" for name in ("a", "a.JPG")},
        "b": "picture",
        "b.dat": "picture",
        "b.jpg": "picture",
        "b.mp4": "picture",
        "c.mkv": "video",
    }


def test_a_directory_says_what_it_leaves_out() -> None:
    for name in ("photo.png", "film.mp4"):
        shutil.copy(name, "in")
    Path("in/notes.txt").write_text("milk", encoding="utf-8")
    Path("in/list.dat").write_text("#EXTM3U\n#EXTINF:1,\n/etc/passwd\n", encoding="utf-8")
    make_video(Path("sound.mkv"), frames=30, sound=["aac"])
    Path("in/noise").write_bytes(np.random.default_rng(0).bytes(5000))
    media, lines = find_media(["photo.png", "in"], Path("out"))
    assert [medium.file.as_posix() for medium in media] == ["photo.png", "in/film.mp4", "in/photo.png"]
    assert lines == ["in: left out 3 files without a picture or video (list.dat, noise, notes.txt)"]


def test_damaged_files_count_as_what_their_suffix_says() -> None:
    Path("in/cut.mov").write_bytes(Path("film.mp4").read_bytes()[:90])
    Path("in/cut.jpg").write_text("404", encoding="utf-8")
    Path("in/cut.M2TS").write_bytes(bytes(90))
    Path("in/cut.webp").write_bytes(bytes(90))
    kinds = {"cut.jpg": "picture", "cut.mkv": "video", "cut.mov": "video", "cut.webp": "picture"}
    assert found("in") == kinds


def test_a_picture_within_another_file_is_no_video() -> None:
    """FFmpeg finds the JPEG in a PDF, and makes videos of pictures."""
    with Image.open("photo.png") as photo:
        photo.convert("RGB").save("in/scan.pdf")
        photo.convert("1").save("in/drawn.msp")
        photo.save("in/texture.tga")
    assert found("in") == {"texture.png": "picture"}


def test_formats_that_are_only_read_become_pngs() -> None:
    with Image.open("photo.png") as photo:
        photo.save("in/old.ppm")
        photo.save("in/icon.ico")
        photo.save("in/new.avif")
    assert found("in") == {"icon.png": "picture", "new.avif": "picture", "old.png": "picture"}


def test_directories_are_read_to_the_bottom_and_their_tree_is_kept() -> None:
    for name in ("a.png", "sub/a.PNG", "sub/deep/b.png", ".hidden/c.png", "._a.png", "out/a.png"):
        Path("in", name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy("photo.png", f"in/{name}")
    media, _ = find_media(["in"], Path("in/out"))  # whose files an earlier run has written
    assert [medium.name.as_posix() for medium in media] == ["a.png", "sub/a.PNG", "sub/deep/b.png"]


def test_globs() -> None:
    for name in ("a1.png", "a2.png", "b1.png", "x/a1.png", "[1].png"):
        Path("in", name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy("photo.png", f"in/{name}")
    assert list(found("in/a*")) == ["a1.png", "a2.png"]
    assert list(found("in/**/*1.png")) == ["a1.png", "b1.png", "x/a1.png"]
    assert list(found("in/[1].png")) == ["[1].png"]
    with pytest.raises(UserError, match=r"in/\*\*\.jpg: \*\* can only be an entire path component"):
        found("in/**.jpg")


@pytest.mark.parametrize("name", ["none.jpg", "in", "*.none"])
def test_an_input_without_pictures_and_videos_is_an_error(name: str) -> None:
    with pytest.raises(
        UserError, match="no such file" if name == "none.jpg" else "no picture or video there"
    ):
        found(name)


def test_an_input_is_never_overwritten() -> None:
    Path("link").symlink_to(Path.cwd())
    for inputs, output in (("photo.png", "."), (".", "."), ("photo.png", "link"), ("film.mp4", ".")):
        with pytest.raises(UserError, match=r"(photo\.png|film\.mp4): is an input"):
            plan_targets(find_media([inputs], Path(output))[0], Path(output))


def test_two_inputs_of_one_name_are_an_error() -> None:
    shutil.copy("photo.png", "in")
    media, _ = find_media(["photo.png", "in/photo.png"], Path("out"))
    with pytest.raises(
        UserError, match=r"photo\.png and in/photo\.png would both be written to out/photo\.png"
    ):
        plan_targets(media, Path("out"))
    assert len(find_media(["photo.png", "./photo.png", "*.png"], Path("out"))[0]) == 1


def test_pictures_and_films_of_one_name_in_several_formats_are_all_written() -> None:
    folder = Path("formats")
    folder.mkdir()
    with Image.open("photo.png") as photo:
        for suffix in ("png", "tga", "pcx", "jpg"):
            photo.convert("RGB").save(folder / f"same.{suffix}")
    shutil.copy("film.mp4", folder / "same.mp4")
    shutil.copy("film.mp4", folder / "same.avi")
    targets = plan_targets(find_media(["formats"], Path("out"))[0], Path("out"))
    written = {target.name: medium.file.name for target, medium in targets.items()}
    assert written == {
        "same.png": "same.png",
        "same.tga.png": "same.tga",
        "same.pcx.png": "same.pcx",
        "same.jpg": "same.jpg",
        "same.mp4": "same.mp4",
        "same.avi.mp4": "same.avi",
    }


def test_a_file_as_output_directory_is_an_error() -> None:
    (medium,), _ = find_media(["photo.png"], Path("out"))
    for output in ("film.mp4", "film.mp4/sub"):
        with pytest.raises(UserError, match=r"film\.mp4: is a file; give a directory"):
            plan_targets([medium], Path(output))
    for name in ("new.jpg", "new.MP4"):
        with pytest.raises(UserError, match=rf"{name}: is a file's name; give a directory"):
            plan_targets([medium], Path(name))
    Path("folder.jpg").mkdir()
    assert list(plan_targets([medium], Path("folder.jpg"))) == [Path("folder.jpg/photo.png")]
