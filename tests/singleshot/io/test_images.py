"""Pictures in every form that Pillow writes, against what was put into them."""

import io
import struct
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
import torch
from icc_profiles import icc_profile
from PIL import Image, PngImagePlugin

from singleshot.errors import UserError
from singleshot.io.colour_profiles import from_srgb, to_srgb
from singleshot.io.images import NamedBytes, read_animation, read_rgb, read_size, visible

RNG = np.random.default_rng(0)
PIXELS = RNG.integers(0, 256, (6, 9, 3), np.uint8)


def photo(height, width):
    """A smooth picture, which JPEG keeps well."""
    y, x = np.mgrid[:height, :width]
    waves = [np.sin(x / 17 + y / 23), np.cos(x / 29), np.sin(y / 13)]
    return Image.fromarray((127 + 100 * np.stack(waves, -1)).astype(np.uint8))


def to_bytes(image, file_format="PNG", **options):
    buffer = io.BytesIO()
    image.save(buffer, file_format, **options)
    return buffer.getvalue()


def tensor(pixels):
    return torch.from_numpy(np.array(pixels)).permute(2, 0, 1).float() / 255


# What a viewer has to do for each orientation of EXIF 2.3 (tag 0x0112), as numpy has it.
UPRIGHT = {
    1: lambda p: p,
    2: lambda p: p[:, ::-1],
    3: lambda p: p[::-1, ::-1],
    4: lambda p: p[::-1],
    5: lambda p: p.transpose(1, 0, 2),
    6: lambda p: p.transpose(1, 0, 2)[:, ::-1],
    7: lambda p: p[::-1, ::-1].transpose(1, 0, 2),
    8: lambda p: p.transpose(1, 0, 2)[::-1],
}


@pytest.mark.parametrize("orientation", UPRIGHT)
def test_exif_orientation(orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    content = to_bytes(Image.fromarray(PIXELS), exif=exif)
    assert torch.equal(read_rgb(io.BytesIO(content)), tensor(UPRIGHT[orientation](PIXELS)))


def test_transparent_is_white():
    rgba = np.array([[[200, 100, 0, 255], [200, 100, 0, 0], [200, 100, 0, 51]]], np.uint8)
    content = to_bytes(Image.fromarray(rgba))
    expected = [[200, 100, 0], [255, 255, 255], [244, 224, 204]]  # c·α + 255·(1 - α), α = 1, 0, 0.2
    assert (read_rgb(io.BytesIO(content))[:, 0].T * 255).round().tolist() == expected


@pytest.mark.parametrize("file_format", ["PNG", "TIFF", "PPM"])
def test_sixteen_bits_keep_their_range(file_format):
    grey = np.array([[0, 128, 257, 25700, 65535]], np.uint16)
    read = read_rgb(io.BytesIO(to_bytes(Image.fromarray(grey), file_format)))
    assert (read[1, 0] * 255).round().tolist() == [0, 0, 1, 100, 255]


@pytest.mark.parametrize(("short_side", "size"), [(20, (20, 27)), (90, (90, 120))])
def test_short_side_is_scaled_as_pillow_scales(short_side, size):
    image = photo(60, 80)
    scaled = image.resize(size[::-1], Image.Resampling.LANCZOS)
    assert torch.equal(read_rgb(io.BytesIO(to_bytes(image)), short_side=short_side), tensor(np.array(scaled)))


def test_a_large_jpeg_decoded_small_looks_the_same():
    image = photo(800, 1200)
    content = to_bytes(image, "JPEG", quality=95)
    read = read_rgb(io.BytesIO(content), short_side=50)
    assert read.shape == (3, 50, 75)
    scaled = image.resize((75, 50), Image.Resampling.LANCZOS)
    assert (read - tensor(np.array(scaled))).abs().max() < 0.03


@pytest.mark.parametrize("file_format", ["JPEG", "PNG", "WEBP", "GIF", "TIFF"])
def test_a_truncated_file_is_named(tmp_path, file_format):
    content = to_bytes(Image.fromarray(RNG.integers(0, 256, (64, 64, 3), np.uint8)), file_format)
    path = tmp_path / "broken.img"
    for kept in (0, 40, len(content) // 2):
        path.write_bytes(content[:kept])
        with pytest.raises(UserError, match=r"broken\.img: can't be read as a picture \(.+\)"):
            read_rgb(path)


@pytest.mark.parametrize("options", [{}, {"progressive": True}], ids=["baseline", "progressive"])
def test_a_jpeg_may_lack_its_last_marker_and_nothing_else(options):
    content = to_bytes(photo(64, 80), "JPEG", **options)
    whole = read_rgb(io.BytesIO(content))
    assert torch.equal(read_rgb(io.BytesIO(content[:-2])), whole)
    assert torch.equal(read_rgb(io.BytesIO(content + b"a film")), whole)
    for lost in (12, 50, len(content) // 2):
        with pytest.raises(UserError, match=r"(?i)truncated"):
            read_rgb(io.BytesIO(content[:-lost]))


@pytest.mark.parametrize(("largest", "white"), [(0.8, 1.0), (4.0, 4.0)])
def test_white_of_floating_point_samples_is_1_or_what_is_brighter(largest, white):
    grey = np.array([[0, largest / 2, largest]], np.float32)
    read = read_rgb(io.BytesIO(to_bytes(Image.fromarray(grey), "TIFF")))
    np.testing.assert_allclose(read[0, 0], grey[0] / white, atol=1 / 255)


def test_a_profile_is_obeyed_unless_it_is_damaged():
    """What Little CMS makes of colours in a space is read as those colours again."""
    icc = icc_profile("RGB ", 2.2)
    content = to_bytes(from_srgb(photo(30, 40), icc), icc_profile=icc)
    assert (read_rgb(io.BytesIO(content)) - tensor(np.array(photo(30, 40)))).abs().max() < 4 / 255
    content = to_bytes(Image.fromarray(PIXELS), icc_profile=icc[:200])
    assert torch.equal(read_rgb(io.BytesIO(content)), tensor(PIXELS))


def png(pixels, **chunks):
    """A PNG with chunks that tell its colours."""
    told = PngImagePlugin.PngInfo()
    for name, data in chunks.items():
        told.add(name.encode(), data)
    return to_bytes(Image.fromarray(pixels), pnginfo=told)


def encoded(light):
    """Levels of sRGB for light from 0 to 1 (IEC 61966-2-1)."""
    return 255 * (12.92 * light if light <= 0.0031308 else 1.055 * light ** (1 / 2.4) - 0.055)


@pytest.mark.parametrize(
    ("chunks", "levels", "lights"),
    [  # signals of 203, 100 and 26 cd/m2 (ITU-R BT.2408, table 1; BT.2100), where 203 are a white sheet's
        ({"cICP": bytes((9, 16, 0, 1))}, (0.581, 0.508, 0.38), (1, 100 / 203, 26 / 203)),
        ({"cICP": bytes((9, 18, 0, 1))}, (0.75, 0.63, 0.38), (1, 100 / 203, 26 / 203)),
        ({"gAMA": struct.pack(">I", 100_000)}, (1, 0.5, 0.1), (1, 0.5, 0.1)),
        ({"gAMA": struct.pack(">I", 45_455)}, (1,), (1,)),
        ({"cHRM": bytes(32)}, (1, 0.5), (1, 0.2140)),
    ],
    ids=["PQ", "HLG", "linear", "rounded", "nonsense"],
)
def test_light_that_codes_or_numbers_tell_is_shown_in_srgb(chunks, levels, lights):
    greys = np.round(255 * np.array(levels))[None, :, None].repeat(3, 2).astype(np.uint8)
    shown = 255 * read_rgb(io.BytesIO(png(greys, **chunks)))
    assert np.abs(shown[:, 0].numpy() - [encoded(light) for light in lights]).max() <= 6


@pytest.mark.parametrize("form", ["cICP", "cHRM", "AVIF", "HEIF"])
def test_wide_colours_without_a_profile_are_those_with_one(form):
    photo_in_p3 = np.array(photo(32, 48))
    if form == "cICP":
        content = png(photo_in_p3, cICP=bytes((12, 13, 0, 1)))
    elif form == "cHRM":
        p3 = (31270, 32900, 68000, 32000, 26500, 69000, 15000, 6000)
        content = png(photo_in_p3, cHRM=struct.pack(">8I", *p3))
    else:
        content = to_bytes(Image.fromarray(photo_in_p3), form, quality=100)
        at = content.index(b"colrnclx") + 8
        content = content[:at] + struct.pack(">HH", 12, 13) + content[at + 4 :]
    with Image.open(io.BytesIO(content)) as opened:
        stored = opened.convert("RGB")
    expected = np.array(to_srgb(stored, icc_profile("RGB ", 2.2))).astype(int)
    assert np.abs(expected - np.array(stored)).mean() > 3
    assert np.abs(read_rgb(io.BytesIO(content)).permute(1, 2, 0).numpy() * 255 - expected).mean() < 2


def test_a_cameras_raw_file_is_told_from_its_preview():
    content = to_bytes(Image.fromarray(PIXELS), "TIFF", tiffinfo={254: 1})
    with pytest.raises(UserError, match=r"raw\.nef: a camera's raw file"):
        read_rgb(NamedBytes(content, "raw.nef"))


def test_hidden_colours_are_the_mean_of_the_others():
    rgba = np.zeros((32, 32, 4), np.uint8)
    rgba[:, :16] = (200, 40, 90, 255)
    rgba[:, 16:] = (0, 255, 0, 0)
    colours, alpha = visible(Image.fromarray(rgba))
    assert (colours == (200, 40, 90)).all()
    assert np.array_equal(np.asarray(alpha), rgba[..., 3])
    nothing, _ = visible(Image.fromarray(np.zeros((5, 7, 4), np.uint8)))
    assert nothing.min() == nothing.max() == 128


def test_a_size_is_read_from_the_header_alone():
    content = to_bytes(Image.fromarray(PIXELS))
    assert read_size(io.BytesIO(content[:60])) == (9, 6)
    with pytest.raises(UserError):
        read_rgb(io.BytesIO(content[:60]))
    with pytest.raises(
        UserError, match=r"^upload: can't be read as a picture \(empty, or of no known format\)"
    ):
        read_size(NamedBytes(content, "upload"), formats=("JPEG",))
    with pytest.raises(UserError, match="no known format"):
        read_rgb(io.BytesIO(content), formats=("JPEG",))


def test_what_is_larger_than_the_memory_is_refused_before_it_is_decoded(monkeypatch):
    frames = [Image.new("L", (300, 200), value) for value in range(4)]
    still, animated = io.BytesIO(), io.BytesIO()
    frames[0].save(still, "PNG"), frames[0].save(animated, "GIF", save_all=True, append_images=frames[1:])
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(total=1_000_000))
    assert read_rgb(still).shape == (3, 200, 300)
    with pytest.raises(UserError, match=r"300 × 200 pixels in 4 frames need 0 GB"):
        read_animation(animated)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(total=400_000))
    with pytest.raises(UserError, match=r"300 × 200 pixels need 0 GB"):
        read_rgb(still)


def test_pillows_refusal_of_a_bomb_is_the_errors_cause(monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 20)
    with pytest.raises(UserError, match=r"\(it has more than 40 pixels\)") as caught:
        read_size(io.BytesIO(to_bytes(Image.fromarray(PIXELS))))
    assert isinstance(caught.value.__cause__, Image.DecompressionBombError)
