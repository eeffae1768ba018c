import io
import logging
import struct
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from numpy.testing import assert_array_equal
from PIL import ExifTags, Image, ImageCms, ImageOps
from skimage.data import astronaut
from torch import Tensor

from singleshot.errors import UserError
from singleshot.style.apply import picture_files
from singleshot.style.apply import stylize_files as module
from singleshot.style.apply.stylize import StylizeSettings, stylize
from singleshot.style.apply.stylize_files import stylize_files
from singleshot.style.transformer_net import TransformerNet

PIXELS = np.ascontiguousarray(astronaut()[40:80, 200:256])
"""Of no symmetry: 56x40."""
SRGB = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()


@pytest.fixture(scope="module")
def network() -> TransformerNet:
    torch.manual_seed(0)
    return TransformerNet(4).eval()


def run(network: TransformerNet, inputs: str | Path | list[str], output: Path, **options) -> list[Path]:
    texts = inputs if isinstance(inputs, list) else [str(inputs)]
    return stylize_files(network, texts, output, **{"progress": False} | options)


def shown(path: Path) -> np.ndarray:
    """A file's pixels as a viewer shows them."""
    with Image.open(path) as image:
        return np.asarray(ImageOps.exif_transpose(image).convert("RGB"))


def stylized(network: TransformerNet, pixels: np.ndarray) -> np.ndarray:
    picture = torch.from_numpy(pixels.copy()).permute(2, 0, 1)[None]
    return stylize(network, picture)[0].permute(1, 2, 0).numpy()


def save(path: Path, image: Image.Image | np.ndarray | None = None, **options) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    image = (
        Image.fromarray(PIXELS if image is None else image) if not isinstance(image, Image.Image) else image
    )
    image.save(path, **options)
    return path


@pytest.mark.parametrize("suffix", ["jpg", "png", "webp", "tif"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_every_orientation_is_shown_as_before(
    network: TransformerNet, tmp_path: Path, suffix: str, orientation: int
) -> None:
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = orientation
    exif[ExifTags.Base.Artist] = "Ada"
    source = save(tmp_path / f"a.{suffix}", exif=exif)
    same, other = tmp_path / "same", tmp_path / "other"
    run(network, source, same, settings=StylizeSettings(strength=0))
    run(network, source, other)
    before = shown(source)
    assert before.shape == ((40, 56, 3) if orientation < 5 else (56, 40, 3))
    lossless = suffix in ("png", "tif")
    difference = np.abs(shown(same / source.name).astype(int) - before)
    assert difference.max() == 0 if lossless else difference.mean() < 3
    difference = np.abs(shown(other / source.name).astype(int) - stylized(network, before))
    assert difference.max() == 0 if lossless else difference.mean() < 12
    with Image.open(other / source.name) as image:
        assert image.getexif()[ExifTags.Base.Artist] == "Ada"
        assert image.getexif().get(ExifTags.Base.Orientation, 1) == 1


@pytest.mark.parametrize("name", ["a.jpg", "a.png", "a.webp", "a.tif"])
def test_format_metadata_and_size_are_kept(network: TransformerNet, tmp_path: Path, name: str) -> None:
    exif = Image.Exif()
    exif[ExifTags.Base.Model] = "Camera"
    exif.get_ifd(ExifTags.IFD.Exif)[ExifTags.Base.ISOSpeedRatings] = 400
    exif.get_ifd(ExifTags.IFD.GPSInfo)[ExifTags.GPS.GPSLatitudeRef] = "N"
    source = save(tmp_path / name, exif=exif.tobytes(), icc_profile=SRGB, dpi=(300, 300))
    (target,) = run(network, source, tmp_path / "out")
    assert target == tmp_path / "out" / name
    with Image.open(source) as before, Image.open(target) as after:
        assert (after.format, after.size, after.mode) == (before.format, (56, 40), "RGB")
        assert after.info["icc_profile"] == SRGB
        assert after.getexif()[ExifTags.Base.Model] == "Camera"
        assert after.getexif().get_ifd(ExifTags.IFD.Exif)[ExifTags.Base.ISOSpeedRatings] == 400
        assert after.getexif().get_ifd(ExifTags.IFD.GPSInfo)[ExifTags.GPS.GPSLatitudeRef] == "N"
        if name != "a.webp":  # it has no place for it
            assert after.info["dpi"] == pytest.approx((300, 300), abs=0.1)


def test_jpegs_have_quality_95_and_whole_colour(network: TransformerNet, tmp_path: Path) -> None:
    (target,) = run(network, save(tmp_path / "a.jpg", quality=30), tmp_path / "out")
    expected = io.BytesIO()
    Image.new("RGB", (8, 8)).save(expected, "JPEG", quality=95)
    with Image.open(target) as image, Image.open(expected) as reference:
        assert image.quantization == reference.quantization
        assert [layer[1:3] for layer in image.layer] == [(1, 1)] * 3


@pytest.mark.parametrize("compression", ["tiff_lzw", "tiff_adobe_deflate", "raw", "jpeg"])
def test_tiffs_of_any_layout(network: TransformerNet, tmp_path: Path, compression: str) -> None:
    tags = {278: 3, 317: 2} if compression == "tiff_lzw" else {}  # three rows a strip, predictor
    source = save(tmp_path / "a.tif", compression=compression, tiffinfo=tags)
    (target,) = run(network, source, tmp_path / "out")
    assert_array_equal(shown(target), stylized(network, shown(source)))
    with Image.open(target) as image:
        assert image.info["compression"] == ("tiff_lzw" if compression == "jpeg" else compression)


@pytest.mark.parametrize(
    ("name", "mode"),  # a TIFF's palette has no opacity
    [(f"a.{suffix}", mode) for suffix in ("png", "webp", "tif") for mode in ("RGBA", "LA", "P")][:-1],
)
def test_opacity_is_put_back(network: TransformerNet, tmp_path: Path, name: str, mode: str) -> None:
    image = Image.fromarray(PIXELS)
    image.putalpha(Image.linear_gradient("L").resize(image.size))
    image = image.quantize(8) if mode == "P" else image.convert(mode)
    source = save(tmp_path / name, image, **({"lossless": True} if name == "a.webp" else {}))
    (target,) = run(network, source, tmp_path / "out")
    with Image.open(source) as before, Image.open(target) as after:
        assert after.mode == "RGBA"
        alpha = np.asarray(before.convert("RGBA"))[..., 3]
        assert len(np.unique(alpha)) > 3
        assert_array_equal(np.asarray(after)[..., 3], alpha)
        if name != "a.webp":
            rgb = np.asarray(before.convert("RGBA"))[..., :3]
            assert_array_equal(np.asarray(after)[..., :3], stylized(network, rgb))


@pytest.mark.parametrize("mode", ["1", "L", "P", "CMYK"])
def test_other_modes_become_rgb(network: TransformerNet, tmp_path: Path, mode: str) -> None:
    source = save(tmp_path / "a.tif", Image.fromarray(PIXELS).convert(mode))
    (target,) = run(network, source, tmp_path / "out")
    with Image.open(source) as before:
        expected = np.asarray(before.convert("RGB"))
    assert_array_equal(shown(target), stylized(network, expected))


def test_16_bit_grey_is_scaled(network: TransformerNet, tmp_path: Path) -> None:
    grey = PIXELS[..., 0]
    source = save(tmp_path / "a.png", grey.astype(np.uint16) * 257)
    (target,) = run(network, source, tmp_path / "out", settings=StylizeSettings(strength=0))
    assert_array_equal(shown(target)[..., 1], grey)


@pytest.mark.parametrize("grey", [np.uint8(128), np.uint16(128 * 257)])
def test_a_grey_profile_is_not_kept_for_colours(
    network: TransformerNet, tmp_path: Path, grey: np.integer
) -> None:
    # A grey profile of gamma 1, as ICC.1:2010 lays it out: 0.5 is shown as sRGB's 188.
    curve = b"curv" + bytes(8)
    white = b"XYZ " + bytes(4) + b"".join(int(v * 65536).to_bytes(4, "big") for v in (0.9642, 1.0, 0.8249))
    text = b"desc" + bytes(4) + (2).to_bytes(4, "big") + b"g\0" + bytes(78)
    parts, table, offset = b"", b"", 128 + 4 + 3 * 12
    for tag, data in ((b"kTRC", curve), (b"wtpt", white), (b"desc", text)):
        table += tag + (offset + len(parts)).to_bytes(4, "big") + len(data).to_bytes(4, "big")
        parts += data + bytes(-len(data) % 4)
    header = bytearray(128)
    header[0:4] = (offset + len(parts)).to_bytes(4, "big")
    header[8:24] = b"\x02\x40\0\0mntrGRAYXYZ "
    header[36:40] = b"acsp"
    header[68:80] = white[8:]
    profile = bytes(header) + (3).to_bytes(4, "big") + table + parts
    source = save(tmp_path / "a.png", np.full((40, 40), grey), icc_profile=profile)
    (target,) = run(network, source, tmp_path / "out", settings=StylizeSettings(strength=0))
    assert abs(int(shown(target)[0, 0, 0]) - 188) <= 1
    with Image.open(target) as image:
        assert "icc_profile" not in image.info


def test_compressed_tiffs_keep_their_exif(network: TransformerNet, tmp_path: Path) -> None:
    source = save(tmp_path / "a.tif", compression="tiff_lzw", tiffinfo={305: "Some words"})
    content = bytearray(source.read_bytes())
    # Pillow can't write it: turn the entry of tag 305 into one that leads to a directory of EXIF at the end.
    directory = struct.unpack_from("<I", content, 4)[0] + 2
    entry = next(i for i in range(directory, len(content), 12) if content[i : i + 2] == b"\x31\x01")
    struct.pack_into("<HHII", content, entry, ExifTags.IFD.Exif, 4, 1, len(content))
    content += struct.pack("<HHHIII", 1, ExifTags.Base.ISOSpeedRatings, 3, 1, 400, 0)
    source.write_bytes(content)
    with Image.open(source) as image:
        assert image.info["compression"] == "tiff_lzw"
    (target,) = run(network, source, tmp_path / "out")
    with Image.open(target) as image:
        assert image.getexif().get_ifd(ExifTags.IFD.Exif)[ExifTags.Base.ISOSpeedRatings] == 400
    assert_array_equal(shown(target), stylized(network, PIXELS))


def test_a_telephones_jpeg_with_more_after_it(network: TransformerNet, tmp_path: Path) -> None:
    source = tmp_path / "a.jpg"
    first, second = Image.fromarray(PIXELS), Image.fromarray(PIXELS[:20])
    first.save(source, "MPO", save_all=True, append_images=[second])
    with Image.open(source) as image:
        assert image.format == "MPO"
    (target,) = run(network, source, tmp_path / "out")
    with Image.open(target) as image:
        assert (image.format, image.size) == ("JPEG", (56, 40))


def test_a_picture_that_cannot_be_encoded_costs_no_other(
    network: TransformerNet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exif = Image.Exif()
    exif[ExifTags.Base.Artist] = "Ada"
    save(tmp_path / "in/a.jpg", exif=exif)
    save(tmp_path / "in/b.jpg")
    monkeypatch.setattr(picture_files, "_exif", lambda image, name: bytes(70_000) if image.getexif() else b"")
    why = r"in/a.jpg: can't be written as JPEG \(EXIF data is too"
    with pytest.raises(UserError, match=rf"1 of 2 .*\n.*{why}"):
        run(network, tmp_path / "in", tmp_path / "out")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["b.jpg"]
    with pytest.raises(UserError, match=why):
        run(network, tmp_path / "in/a.jpg", Path("-"))


def test_damaged_exif_costs_nothing_but_itself(
    network: TransformerNet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    exif = Image.Exif()
    exif[ExifTags.Base.Artist] = "Ada"
    source = save(tmp_path / "a.jpg", exif=exif)

    def damaged(self: Image.Exif, offset: int = 8) -> bytes:
        raise TypeError("an integer is required")

    monkeypatch.setattr(Image.Exif, "tobytes", damaged)
    with caplog.at_level(logging.WARNING):
        (target,) = run(network, source, tmp_path / "out")
    assert target.is_file()
    assert "a.jpg: its EXIF is damaged" in caplog.text


def test_directories_are_read_to_the_bottom_and_their_tree_is_kept(
    network: TransformerNet, tmp_path: Path
) -> None:
    for name in ("a.jpg", "sub/a.JPG", "sub/deep/b.png", ".hidden/c.png", "._a.jpg"):
        save(tmp_path / "in" / name)
    (tmp_path / "in/notes.txt").write_text("none")
    written = run(network, tmp_path / "in", tmp_path / "in/out")
    assert [path.relative_to(tmp_path / "in/out").as_posix() for path in written] == [
        "a.jpg",
        "sub/a.JPG",
        "sub/deep/b.png",
    ]
    again = run(network, tmp_path / "in", tmp_path / "in/out", force=True)
    assert again == written  # what the first run wrote is no input of the second


def test_globs(network: TransformerNet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("in/a1.jpg", "in/a2.png", "in/b1.jpg", "in/x/a1.jpg", "in/[1].jpg"):
        save(tmp_path / name)
    monkeypatch.chdir(tmp_path)
    out = Path("out")

    def names(pattern: str) -> list[str]:
        written = run(network, [pattern], out, force=True)
        return [path.relative_to(out).as_posix() for path in written]

    assert names("in/a*") == ["a1.jpg", "a2.png"]
    assert names("in/**/*1.jpg") == ["a1.jpg", "b1.jpg", "x/a1.jpg"]
    assert names("in/[1].jpg") == ["[1].jpg"]
    with pytest.raises(UserError, match=r"in/z\*: no picture there"):
        names("in/z*")
    with pytest.raises(UserError, match=r"in/\*\*\.jpg: .* an entire path component; write e\.g\. "):
        names("in/**.jpg")


@pytest.mark.parametrize("name", ["none.jpg", "empty", "*.none"])
def test_an_input_without_pictures_is_an_error(network: TransformerNet, tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="no picture there" if name != "none.jpg" else "no such file"):
        run(network, tmp_path / name, tmp_path / "out")


def test_batches_are_of_one_size_and_give_what_single_pictures_give(
    network: TransformerNet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for i, height in enumerate((40, 40, 40, 30, 40)):
        save(tmp_path / f"in/{i}.png", np.roll(PIXELS, i, axis=1)[:height])
    sizes = []

    def spy(network: TransformerNet, pictures: Tensor, settings: StylizeSettings) -> Tensor:
        sizes.append(tuple(pictures.shape))
        return stylize(network, pictures, settings)

    monkeypatch.setattr(module, "stylize", spy)
    single = run(network, tmp_path / "in", tmp_path / "single")
    sizes.clear()
    batched = run(network, tmp_path / "in", tmp_path / "batched", batch_size=2)
    assert sizes == [(2, 3, 40, 56), (1, 3, 40, 56), (1, 3, 30, 56), (1, 3, 40, 56)]
    for one, other in zip(single, batched, strict=True):
        assert (
            np.abs(shown(one).astype(int) - shown(other)).max() <= 2
        )  # products of other sizes round otherwise


def test_nothing_is_overwritten_without_force(network: TransformerNet, tmp_path: Path) -> None:
    save(tmp_path / "in/a.png")
    save(tmp_path / "in/b.png")
    (tmp_path / "out").mkdir()
    (tmp_path / "out/b.png").write_text("mine")
    with pytest.raises(UserError, match=r"out/b.png: exists; give --force"):
        run(network, tmp_path / "in", tmp_path / "out")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["b.png"]
    run(network, tmp_path / "in", tmp_path / "out", force=True)
    assert shown(tmp_path / "out/b.png").shape == (40, 56, 3)


@pytest.mark.parametrize("force", [False, True])
def test_an_input_is_never_overwritten(network: TransformerNet, tmp_path: Path, force: bool) -> None:
    source = save(tmp_path / "a.png")
    (tmp_path / "link").symlink_to(tmp_path)
    before = source.read_bytes()
    for inputs, output in ((source, tmp_path), (tmp_path, tmp_path), (source, tmp_path / "link")):
        with pytest.raises(UserError, match=r"a.png: is an input"):
            run(network, inputs, output, force=force)
    assert source.read_bytes() == before


def test_two_inputs_of_one_name_are_an_error(network: TransformerNet, tmp_path: Path) -> None:
    one, other = save(tmp_path / "1/a.png"), save(tmp_path / "2/a.png")
    with pytest.raises(UserError, match=r"1/a.png and .*2/a.png would both be written to .*out/a.png"):
        run(network, [str(one), str(other)], tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert len(run(network, [str(one), str(one)], tmp_path / "out")) == 1


def test_a_file_as_output_directory_is_an_error(network: TransformerNet, tmp_path: Path) -> None:
    source = save(tmp_path / "a.png")
    with pytest.raises(UserError, match=r"a.png: is a file; give a directory"):
        run(network, source, source)
    with pytest.raises(UserError, match=r"a.png: is a file; give a directory"):
        run(network, source, source / "sub")
    for name in ("new.jpg", "new.MP4"):
        with pytest.raises(UserError, match=rf"{name}: is a file's name; give a directory"):
            run(network, source, tmp_path / name)
    (tmp_path / "folder.jpg").mkdir()
    assert run(network, source, tmp_path / "folder.jpg") == [tmp_path / "folder.jpg/a.png"]


def test_a_file_that_cannot_be_written_is_told(network: TransformerNet, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out/sub").write_text("a file where a directory has to be")
    save(tmp_path / "in/sub/a.png")
    with pytest.raises(UserError, match=r"out/sub/a.png: can't be written"):
        run(network, tmp_path / "in", tmp_path / "out")


def test_unreadable_pictures_are_told_in_the_end_and_the_others_are_done(
    network: TransformerNet, tmp_path: Path
) -> None:
    directory = tmp_path / "in"
    for name in ("a.png", "z.png"):
        save(directory / name)
    content = save(directory / "cut.jpg").read_bytes()
    (directory / "cut.jpg").write_bytes(content[: len(content) // 2])
    (directory / "text.jpg").write_text("none")
    save(directory / "tiny.png", PIXELS[:4])
    frames = [Image.fromarray(np.roll(PIXELS, i, axis=0)) for i in range(3)]
    save(directory / "moving.webp", frames[0], save_all=True, append_images=frames[1:])
    save(directory / "pages.tif", frames[0], save_all=True, append_images=frames[1:])
    gif = save(tmp_path / "still.gif", frames[0])
    (tmp_path / "clip.mp4").write_bytes(b"\0\0\0\x18ftypmp42" + bytes(100))
    inputs = [str(directory), str(gif), str(tmp_path / "clip.mp4")]
    with pytest.raises(UserError) as caught:
        run(network, inputs, tmp_path / "out")
    first, *lines = str(caught.value).splitlines()
    assert first == "7 of 9 pictures were not stylised:"
    for line, (name, reason) in zip(
        lines,
        {
            "in/cut.jpg": "can't be read as a picture",
            "in/moving.webp": "several frames",
            "in/pages.tif": "several frames or pages",
            "in/text.jpg": "can't be read as a picture",
            "in/tiny.png": "is 56x4 px; sides have to be 5 or more",
            "still.gif": "is GIF; convert it",
            "clip.mp4": "can't be read as a picture",
        }.items(),
        strict=True,
    ):
        assert f"{name}: " in line
        assert reason in line
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["a.png", "z.png"]


def standard(monkeypatch: pytest.MonkeyPatch, content: bytes) -> io.BytesIO:
    """Standard input of that content; what goes to standard output."""
    output = io.BytesIO()
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(content)))
    monkeypatch.setattr(sys, "stdout", SimpleNamespace(buffer=output))
    return output


@pytest.mark.parametrize("file_format", ["PNG", "JPEG"])
def test_from_standard_input_to_standard_output(
    network: TransformerNet, monkeypatch: pytest.MonkeyPatch, file_format: str
) -> None:
    content = io.BytesIO()
    Image.fromarray(PIXELS).save(content, file_format)
    output = standard(monkeypatch, content.getvalue())
    assert run(network, ["-"], Path("-")) == []
    with Image.open(output) as image, Image.open(content) as before:
        assert image.format == file_format
        difference = np.asarray(image).astype(int) - stylized(network, np.asarray(before))
    assert np.abs(difference).max() == 0 if file_format == "PNG" else np.abs(difference).mean() < 6


def test_from_a_file_to_standard_output(
    network: TransformerNet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = standard(monkeypatch, b"")
    run(network, save(tmp_path / "a.png"), Path("-"))
    with Image.open(output) as image:
        assert_array_equal(np.asarray(image), stylized(network, PIXELS))


def test_standard_streams_take_one_picture(
    network: TransformerNet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = standard(monkeypatch, b"no picture")
    with pytest.raises(UserError, match="standard input: can't be read as a picture"):
        run(network, ["-"], Path("-"))
    for inputs, target in ((["-"], tmp_path), (["-", "-"], Path("-")), (["a.png", "b.png"], Path("-"))):
        with pytest.raises(UserError, match="- is for one picture"):
            run(network, inputs, target)
    assert output.getvalue() == b""


def test_progress_goes_to_standard_error(
    network: TransformerNet, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    run(network, save(tmp_path / "a.png"), tmp_path / "out", progress=True)
    captured = capsys.readouterr()
    assert "1/1" in captured.err
    assert captured.out == ""


def test_a_batch_has_a_picture(network: TransformerNet, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="batch_size is 0"):
        run(network, save(tmp_path / "a.png"), tmp_path / "out", batch_size=0)
