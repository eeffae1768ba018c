import io
import logging
import struct
import sys
from types import SimpleNamespace
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from icc_profiles import icc_profile
from numpy.testing import assert_array_equal
from PIL import ExifTags, Image, ImageCms, ImageOps
from PIL.PngImagePlugin import PngInfo
from skimage.data import astronaut

from singleshot.errors import UserError
from singleshot.io import images
from singleshot.io.colour_profiles import from_srgb, to_srgb
from singleshot.io.images import read_animation
from singleshot.style import picture_files
from singleshot.style.apply.light import bounded
from singleshot.style.apply.stylize import StylizeSettings, stylize
from singleshot.style.picture_files import stylize_pictures, stylize_stream
from singleshot.style.transformer_net import TransformerNet

PIXELS = np.ascontiguousarray(astronaut()[40:80, 200:256])
"""Of no symmetry: 56x40."""
SRGB = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()


@pytest.fixture(scope="module")
def network():
    torch.manual_seed(0)
    return TransformerNet(4).eval()


def run(network, source, output, **options):
    """Stylise a picture, or those in a directory."""
    files = sorted(source.rglob("*.*")) if source.is_dir() else [source]
    sources = {
        output / file.relative_to(source if source.is_dir() else source.parent): file for file in files
    }
    return list(stylize_pictures(network, sources, **{"progress": False} | options))


def shown(path):
    """A file's pixels as a viewer shows them."""
    with Image.open(path) as image:
        return np.asarray(ImageOps.exif_transpose(image).convert("RGB"))


def stylized(network, pixels):
    picture = torch.from_numpy(pixels.copy()).permute(2, 0, 1)[None]
    return bounded(pixels, stylize(network, picture)[0].permute(1, 2, 0).contiguous().numpy())


def save(path, image=None, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    if not isinstance(image, Image.Image):
        image = Image.fromarray(PIXELS if image is None else image)
    image.save(path, **options)
    return path


@pytest.mark.parametrize("suffix", ["jpg", "png", "webp", "tif"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_every_orientation_is_shown_as_before(network, tmp_path, suffix, orientation):
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = orientation
    exif[ExifTags.Base.Artist] = "Ada"
    source = save(tmp_path / f"a.{suffix}", exif=exif)
    (target,) = run(network, source, tmp_path / "out")
    before = shown(source)
    assert before.shape == ((40, 56, 3) if orientation < 5 else (56, 40, 3))
    difference = np.abs(shown(target).astype(int) - stylized(network, before))
    assert difference.max() == 0 if suffix in ("png", "tif") else difference.mean() < 12
    with Image.open(target) as image:
        assert image.getexif()[ExifTags.Base.Artist] == "Ada"
        assert image.getexif().get(ExifTags.Base.Orientation, 1) == 1


@pytest.mark.parametrize("name", ["a.jpg", "a.png", "a.webp", "a.tif"])
def test_format_metadata_and_size_are_kept(network, tmp_path, name):
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


@pytest.mark.parametrize("compression", ["tiff_lzw", "tiff_adobe_deflate", "raw", "jpeg"])
def test_tiffs_of_any_layout(network, tmp_path, compression):
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
def test_opacity_is_put_back(network, tmp_path, name, mode):
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


@pytest.mark.parametrize("name", ["a.png", "grey.png", "a.tif"])
def test_16_bits_are_told(name, network, tmp_path, caplog):
    shape = (40, 52) if name == "grey.png" else (40, 52, 3)
    pixels = np.random.default_rng(0).integers(0, 2**16, shape, np.uint16)
    cv2.imwrite(str(tmp_path / name), pixels)
    run(network, tmp_path / name, tmp_path / "out")
    assert f"{name}: has 16 bits" in caplog.text


@pytest.mark.parametrize("mode", ["1", "L", "P", "CMYK"])
def test_other_modes_become_rgb(network, tmp_path, mode, caplog):
    source = save(tmp_path / "a.tif", Image.fromarray(PIXELS).convert(mode))
    (target,) = run(network, source, tmp_path / "out")
    with Image.open(source) as before:
        expected = np.asarray(before.convert("RGB"))
    assert_array_equal(shown(target), stylized(network, expected))
    assert ("a.tif: has CMYK colours without a profile" in caplog.text) == (mode == "CMYK")


@pytest.mark.parametrize("grey", [np.uint8(128), np.uint16(128 * 257)])
def test_a_grey_profile_is_not_kept_for_colours(network, tmp_path, grey):
    source = save(tmp_path / "a.png", np.full((40, 40), grey), icc_profile=icc_profile("GRAY", 1))
    (target,) = run(network, source, tmp_path / "out", settings=StylizeSettings(strength=0))
    assert abs(int(shown(target)[0, 0, 0]) - 188) <= 1  # half of the light
    with Image.open(target) as image:
        assert "icc_profile" not in image.info


def test_a_picture_that_cannot_be_encoded_costs_no_other(network, tmp_path, monkeypatch):
    exif = Image.Exif()
    exif[ExifTags.Base.Artist] = "Ada"
    save(tmp_path / "in/a.jpg", exif=exif)
    save(tmp_path / "in/b.jpg")
    monkeypatch.setattr(images, "_exif", lambda image, name: bytes(70_000) if image.getexif() else b"")
    why = r"in/a.jpg: can't be written as JPEG \(EXIF data is too"
    with pytest.raises(UserError, match=rf"1 of 2 .*\n.*{why}"):
        run(network, tmp_path / "in", tmp_path / "out")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["b.jpg"]
    with pytest.raises(UserError, match=why):
        stylize_stream(network, tmp_path / "in/a.jpg", StylizeSettings())
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"file/b.jpg: can't be written"):
        run(network, tmp_path / "in/b.jpg", tmp_path / "file")


def test_a_name_that_the_disk_refuses_costs_one_picture(network, tmp_path):
    for name in ("a.png", "b.png", "c.png"):
        save(tmp_path / "in" / name)
    sources = {tmp_path / f"out/{n * 60}.png": tmp_path / f"in/{n}.png" for n in "abc"}
    (long,) = (target for target in sources if target.name.startswith("b"))
    sources = {target.with_stem("b" * 300) if target == long else target: f for target, f in sources.items()}
    with pytest.raises(UserError, match=r"1 of 3 .*\n[^\n]*b.png: can't be written \(File name too long\)$"):
        list(stylize_pictures(network, sources, progress=False))
    assert {path.name[0] for path in (tmp_path / "out").iterdir()} == {"a", "c"}


def test_any_error_costs_one_picture(network, tmp_path, monkeypatch):
    for name in ("a.png", "b.png", "c.png"):
        save(tmp_path / "in" / name)
    read = picture_files.read_picture

    def failing(source):
        return read(source) if source.name != "b.png" else {}["MissingCode"]

    monkeypatch.setattr(picture_files, "read_picture", failing)
    with pytest.raises(UserError, match=r"1 of 3 .*\n.*in/b.png: KeyError: 'MissingCode'"):
        run(network, tmp_path / "in", tmp_path / "out")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["a.png", "c.png"]


def test_damaged_exif_costs_nothing_but_itself(network, tmp_path, monkeypatch, caplog):
    exif = Image.Exif()
    exif[ExifTags.Base.Artist] = "Ada"
    source = save(tmp_path / "a.jpg", exif=exif)

    def damaged(self, offset=8):
        raise TypeError("an integer is required")

    monkeypatch.setattr(Image.Exif, "tobytes", damaged)
    with caplog.at_level(logging.WARNING):
        (target,) = run(network, source, tmp_path / "out")
    assert target.is_file()
    assert "a.jpg: its EXIF is damaged" in caplog.text


@pytest.mark.parametrize("file_format", ["PNG", "JPEG"])
def test_from_standard_input_to_standard_output(network, monkeypatch, file_format):
    content = io.BytesIO()
    Image.fromarray(PIXELS).save(content, file_format)
    output = io.BytesIO()
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(content.getvalue())))
    monkeypatch.setattr(sys, "stdout", SimpleNamespace(buffer=output))
    stylize_stream(network, None, StylizeSettings())
    with Image.open(output) as image, Image.open(content) as before:
        assert image.format == file_format
        difference = np.asarray(image).astype(int) - stylized(network, np.asarray(before))
    assert np.abs(difference).max() == 0 if file_format == "PNG" else np.abs(difference).mean() < 6


def test_pictures_that_cannot_be_read_do_not_keep_the_others_from_being_written(network, tmp_path):
    directory = tmp_path / "in"
    for name in ("a.png", "z.png"):
        save(directory / name)
    content = save(directory / "cut.jpg").read_bytes()
    (directory / "cut.jpg").write_bytes(content[: len(content) // 2])
    (directory / "text.jpg").write_text("none")
    save(directory / "tiny.png", PIXELS[:4])
    frames = [Image.fromarray(np.roll(PIXELS, i, axis=0)) for i in range(3)]
    save(directory / "pages.tif", frames[0], save_all=True, append_images=frames[1:])
    with pytest.raises(UserError) as caught:
        run(network, directory, tmp_path / "out")
    first, *lines = str(caught.value).splitlines()
    assert first == "4 of 6 pictures were not stylised:"
    said = {
        "cut.jpg": "can't be read",
        "pages.tif": "3 pages",
        "text.jpg": "can't be read",
        "tiny.png": "56x4",
    }
    for line, (name, reason) in zip(lines, said.items(), strict=True):
        assert f"{name}: " in line
        assert reason in line
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["a.png", "z.png"]


@pytest.mark.parametrize(
    ("name", "transparent"), [("a.gif", False), ("a.gif", True), ("a.png", True), ("a.webp", True)]
)
def test_an_animated_picture_is_a_film(network, tmp_path, name, transparent):
    lossless = name != "a.webp"
    grey = np.linspace(20, 235, 40, dtype=np.uint8)[:, None, None] * np.ones((1, 56, 3), np.uint8)
    frames = [Image.fromarray(np.roll(grey, 5 * i, axis=0)) for i in range(3)]
    if transparent:
        for i, frame in enumerate(frames):
            alpha = Image.new("L", frame.size, 255)
            alpha.paste(0, (10 * i, 0, 10 * i + 10, 40))
            frame.putalpha(alpha)
    options = {"a.gif": {"disposal": 2}, "a.png": {}, "a.webp": {"lossless": True, "kmin": 0, "kmax": 1}}[
        name
    ]
    options |= {"duration": [50, 100, 150], "loop": 0, "append_images": frames[1:]}
    source = save(tmp_path / name, frames[0], save_all=True, **options)
    animation = read_animation(source)
    (target,) = run(network, source, tmp_path / "out", settings=StylizeSettings(strength=0))
    with Image.open(target) as image:
        assert (image.format, image.n_frames) == (Image.open(source).format, 3)
    written = read_animation(target)
    assert (written.milliseconds, written.loops) == ([50, 100, 150], 0)
    for before, after, original in zip(animation.frames, written.frames, frames, strict=True):
        assert np.abs(before.astype(int) - after).mean() <= (0 if lossless else 4)
        assert np.abs(np.asarray(original.convert("RGB")).astype(int) - after)[:, 30:].mean() < 6
    for alpha, original in zip(written.alphas, frames, strict=True):
        if transparent:
            assert_array_equal(np.asarray(alpha), np.asarray(original)[..., 3])
        else:
            assert alpha is None
    (styled,) = run(network, source, tmp_path / "styled")
    assert np.abs(read_animation(styled).frames[0].astype(int) - animation.frames[0]).mean() > 5


def test_networks_see_srgb_and_results_have_the_colours_of_the_file(network, tmp_path):
    icc = icc_profile("RGB ", 2.2)
    in_space = from_srgb(Image.fromarray(PIXELS), icc)
    assert np.abs(np.asarray(in_space).astype(int) - PIXELS).mean() > 2
    (plain,) = run(network, save(tmp_path / "plain.png"), tmp_path / "out")
    (target,) = run(network, save(tmp_path / "a.png", in_space, icc_profile=icc), tmp_path / "out")
    with Image.open(target) as image:
        assert image.info["icc_profile"] == icc
        difference = np.asarray(to_srgb(image, icc)).astype(int) - shown(plain)
    assert np.abs(difference).mean() < 3  # 8 bits are rounded twice, and the network sees that


@pytest.mark.parametrize("name", ["a.jpg", "a.png", "a.webp", "a.heic", "a.avif"])
def test_texts_are_kept(network, tmp_path, name):
    xmp = b'<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:RDF/></x:xmpmeta>'
    options: dict[str, Any] = {"xmp": xmp}
    if name == "a.png":
        info = PngInfo()
        info.add_text("Author", "Ada")
        info.add_itxt("XML:com.adobe.xmp", xmp.decode())
        options = {"pnginfo": info}
    if name == "a.jpg":
        caption = b"Photoshop 3.0\08BIM\x04\x04\0\0\0\0\0\x0a\x1c\x02\x78\0\x05Hello"
        options |= {
            "comment": b"by Ada",
            "extra": b"\xff\xed" + struct.pack(">H", 2 + len(caption)) + caption,
        }
    (target,) = run(network, save(tmp_path / name, **options), tmp_path / "out")
    with Image.open(target) as image:
        assert image.info["xmp"].strip(b"\0") == xmp
        if name == "a.png":
            assert image.text["Author"] == "Ada"
        if name == "a.jpg":
            assert image.info["comment"] == b"by Ada"
            assert image.info["photoshop"][0x0404].endswith(b"Hello")


def test_what_is_left_out_is_cut_from_xmp_and_said(network, tmp_path, caplog):
    promises = (
        b'<rdf:Description GCamera:MotionPhoto="1" hdrgm:Version="1.0" dc:creator="Ada">'
        b"<Container:Directory><rdf:Seq><rdf:li/></rdf:Seq></Container:Directory></rdf:Description>"
    )
    (target,) = run(network, save(tmp_path / "a.jpg", xmp=promises), tmp_path / "out")
    assert "left out its film or gain map" in caplog.text
    with Image.open(target) as image:
        assert image.info["xmp"] == b'<rdf:Description dc:creator="Ada"></rdf:Description>'


def test_hdr_becomes_sdr_and_that_is_said(network, tmp_path, caplog):
    told = PngInfo()
    told.add(b"cICP", bytes((9, 16, 0, 1)))
    (target,) = run(network, save(tmp_path / "a.png", pnginfo=told), tmp_path / "out")
    assert "a.png: is HDR (PQ), mapped to SDR" in caplog.text
    assert b"cICP" not in target.read_bytes()


@pytest.mark.parametrize("name", ["a.heic", "a.avif", "a.jp2", "a.bmp", "a.gif", "a.mpo"])
def test_formats_of_phones_and_archives_are_kept(network, tmp_path, name):
    more = {"save_all": True, "append_images": [Image.fromarray(PIXELS[:20])]} if name == "a.mpo" else {}
    source = save(tmp_path / name, **more)
    (target,) = run(network, source, tmp_path / "out")
    with Image.open(source) as before, Image.open(target) as after:
        assert (after.format, after.size) == ({"MPO": "JPEG"}.get(before.format, before.format), (56, 40))
        difference = np.asarray(after.convert("RGB")).astype(int) - stylized(network, shown(source))
    assert np.abs(difference).mean() < 16  # a palette, or lossy noise
