"""The one place that reads and writes picture files, including animated ones (GIF, WebP, APNG, AVIF).

A picture is float32 RGB in [0, 1], shape (3, H, W).

Whatever the file, a picture is what a colour-managed viewer shows of it: upright, in sRGB, and without the
colours that a transparent pixel hides.
"""

import io
import logging
import math
import re
import struct
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pillow_heif
import psutil
import torch
from numpy.typing import NDArray
from PIL import (
    ExifTags,
    Image,
    ImageCms,
    ImageDraw,
    ImageFont,
    ImageOps,
    PngImagePlugin,
    UnidentifiedImageError,
)
from torch import Tensor

from singleshot.errors import UserError
from singleshot.io.colour_profiles import coding_of, from_srgb, mode_of, to_srgb

logger = logging.getLogger(__name__)

pillow_heif.register_heif_opener()
# Pillow refuses pictures above 179 megapixels and warns above 89. A photo of 100 megapixels is read like any
# other here, and the server, whose limit is lower, refuses it by its header.
warnings.simplefilter("ignore", Image.DecompressionBombWarning)
LUMA = (0.299, 0.587, 0.114)
"""Weights of R, G and B in luma (ITU-R BT.601), as in Pillow and torchvision."""
Frame = NDArray[np.uint8]
"""A picture or a frame of a video: upright RGB pixels, (height, width, 3)."""

WRITTEN: dict[str, dict[str, Any]] = {
    # Colour at half the resolution (4:2:0) bleeds over the edges of strokes. WebP always has it at half, but
    # bleeds less with `use_sharp_yuv`.
    "JPEG": {"quality": 95, "subsampling": "4:4:4"},
    "PNG": {},
    "WEBP": {"quality": 95, "use_sharp_yuv": True},
    "TIFF": {},
    "HEIF": {"quality": 95, "chroma": 444},
    "AVIF": {"quality": 95, "subsampling": "4:4:4"},
    "JPEG2000": {},
    "GIF": {},
    "BMP": {},
}
"""Formats in which pictures are written, by Pillow's names, with the options to write them."""
FORMATS = (*WRITTEN, "DIB", "PPM", "PSD", "ICO", "ICNS", "PCX", "SGI", "QOI", "DDS")
"""Formats that are read, by Pillow's names. Results are PNGs where a format is not `WRITTEN`."""
WITH_PROFILE = ("JPEG", "PNG", "WEBP", "TIFF", "HEIF", "AVIF")
"""Formats whose files hold a colour profile, EXIF and XMP when Pillow writes them."""
ANIMATED = ("GIF", "WEBP", "PNG", "AVIF")
"""Formats whose several pictures are the frames of a film."""
CODES = {"PNG": (b"\0\0\0\4cICP", ">BB"), "HEIF": (b"colrnclx", ">HH"), "AVIF": (b"colrnclx", ">HH")}
"""What precedes the codes of primaries and of the transfer function (ITU-T H.273) in a file, and their form.
Pillow hands out neither."""
JPEG_END = b"\xff\xd9"
HEAD = 2**16
"""Bytes at the beginning of a file in which these codes are."""
PROMISED = rb"(?:G?Camera:(?:MotionPhoto|MicroVideo)\w*|(?:hdrgm|HDRGainMap):\w+|G?Container:Directory)"
IN_XMP = rb"\s%b=(?:\"[^\"]*\"|'[^']*')|<(%b)\b[^>]*?(?:/>|>.*?</\1>)" % (PROMISED, PROMISED)
"""What XMP says of a film or gain map after the picture (Google, Adobe, Apple), which a result hasn't got."""
TIFF_COMPRESSIONS = ("raw", "packbits", "tiff_lzw", "tiff_adobe_deflate", "tiff_deflate")
"""Compressions that a TIFF keeps. The others are lossy, or for black and white only."""
XMP_TAG, IPTC_TAG, DNG_TAG = 700, 33723, 50706
TIFF_TAGS = {
    *(ExifTags.Base.ImageDescription, ExifTags.Base.Make, ExifTags.Base.Model, ExifTags.Base.Software),
    *(ExifTags.Base.DateTime, ExifTags.Base.Artist, ExifTags.Base.Copyright, ExifTags.Base.Rating),
    *(ExifTags.IFD.Exif, ExifTags.IFD.GPSInfo, XMP_TAG, IPTC_TAG),
}
"""Tags that a TIFF keeps. Among the others are tags that say how its old pixels were laid out."""
UNTIMED_MS = 100
"""How long browsers show a frame for which a file states no time, or too short a one to be meant."""
SHORTEST_MS = 10
CAPTION_PX, FONT_PX = 36, 14
"""Height of a caption of two lines, and of its font."""


class NamedBytes(io.BytesIO):
    """The content of a file, with a name for error messages."""

    def __init__(self, content: bytes, name: str) -> None:
        super().__init__(content)
        self.name = name


Source = Path | BinaryIO


@dataclass(frozen=True)
class StoredAs:
    """How a picture is kept in its file: all but its pixels."""

    format: str
    """Pillow's name of the format that a result is written in."""
    icc: bytes | None
    """Profile of the colours in the file; None for sRGB."""
    options: dict[str, Any]
    """Arguments for saving the picture with Pillow, metadata among them."""

    def image(self, pixels: Tensor, alpha: Image.Image | None) -> Image.Image:
        """Pixels in sRGB, uint8 (3, H, W), as an image in the file's colours, with an opacity (mode L)."""
        image = Image.fromarray(np.ascontiguousarray(pixels.permute(1, 2, 0).numpy()))
        if self.icc:
            image = from_srgb(image, self.icc)
        if alpha is not None:
            image.putalpha(alpha)
        return image


@dataclass(frozen=True)
class Picture:
    """The content of a picture file, upright."""

    pixels: Tensor
    """Colours in sRGB, uint8 (3, H, W)."""
    alpha: Image.Image | None
    """Opacity (mode L); None if the whole picture is opaque."""
    stored: StoredAs

    def encode(self, pixels: Tensor) -> bytes:
        """A file of other pixels, uint8 (3, H, W), with this file's format, opacity, colours and metadata.

        Raises:
            OSError, ValueError, RuntimeError: Pillow could read the metadata, but can't write them.
        """
        buffer = io.BytesIO()
        self.stored.image(pixels, self.alpha).save(buffer, self.stored.format, **self.stored.options)
        return buffer.getvalue()


def read_picture(source: Source) -> Picture:
    """Read a picture file with its metadata; if it has several frames, the first.

    Raises:
        UserError: the file is missing, damaged, of no format that is read, or has several pages.
    """
    with open_picture(source) as picture:
        if picture.format == "TIFF" and (pages := getattr(picture, "n_frames", 1)) > 1:
            raise UserError(f"{name_of(source)}: has {pages} pages; give each as a file")
        pixels, alpha = visible(picture)
        stored = stored_as(picture, name_of(source))
    return Picture(torch.from_numpy(pixels).permute(2, 0, 1), alpha, stored)


@dataclass(frozen=True)
class Animation:
    """An animated picture with whole frames, though files may hold only what differs from frame to frame."""

    frames: list[Frame]
    """Colours in sRGB."""
    alphas: list[Image.Image | None]
    """Opacity (mode L) of each frame; None if it is opaque."""
    milliseconds: list[int]
    """How long each frame is shown."""
    loops: int | None
    """How often it is shown; 0 for ever, None if the file doesn't say."""
    stored: StoredAs

    def encode(self, frames: Iterable[Frame]) -> bytes:
        """A file of as many other frames, with this one's format, times, opacity, colours and metadata."""
        pictures = [
            self.stored.image(torch.from_numpy(frame).permute(2, 0, 1), alpha)
            for frame, alpha in zip(frames, self.alphas, strict=True)
        ]
        options = self.stored.options | {"duration": self.milliseconds}
        if self.loops is not None:
            options["loop"] = self.loops
        if self.stored.format in ("GIF", "PNG") and any(self.alphas):
            options["disposal"] = 2 if self.stored.format == "GIF" else 1  # clear what was there before
        if self.stored.format == "WEBP":
            options |= {"kmin": 0, "kmax": 1}  # whole frames: of differences, Pillow 13 may lose the opacity
        buffer = io.BytesIO()
        pictures[0].save(buffer, self.stored.format, save_all=True, append_images=pictures[1:], **options)
        return buffer.getvalue()


def read_animation(source: Source) -> Animation | None:
    """Read an animated picture; None if the file has a still one.

    Raises:
        UserError: the file is missing, damaged, or of no format that is read.
    """
    with open_picture(source) as picture:
        count = getattr(picture, "n_frames", 1) if picture.format in ANIMATED else 1
        if count == 1:
            return None
        _must_fit(picture, count)
        frames, alphas, milliseconds = [], [], []
        for number in range(count):
            picture.seek(number)
            frame, alpha = visible(picture)
            if number == 0:
                loops, stored = picture.info.get("loop"), stored_as(picture, name_of(source))
            frames.append(frame)
            alphas.append(alpha)
            stated = round(picture.info.get("duration", 0))
            milliseconds.append(stated if stated >= SHORTEST_MS else UNTIMED_MS)
    return Animation(frames, alphas, milliseconds, loops, stored)


def visible(picture: Image.Image) -> tuple[Frame, Image.Image | None]:
    """What a viewer shows of a picture: colours in sRGB, and opacity (mode L), or None if all is opaque.

    Colours under full transparency, which nobody has seen, are replaced by the mean of the others.
    """
    _must_fit(picture)
    if (content := picture.info.get("ended")) and not _is_whole(picture, content.removesuffix(JPEG_END)):
        raise OSError("image file is truncated")
    upright = _to_8_bits(ImageOps.exif_transpose(picture))
    icc, coding = picture.info.get("icc_profile"), coding_of(picture.info)

    def colours(image: Image.Image) -> Frame:
        pixels = np.array(to_srgb(image, icc))
        return coding.in_srgb(pixels) if coding else pixels

    if not upright.has_transparency_data:
        return colours(upright), None
    with_alpha = upright.convert("RGBA") if upright.mode in ("P", "RGB", "1") else upright
    alpha = with_alpha.convert("RGBA").getchannel("A")
    rgb, hidden = colours(with_alpha), np.asarray(alpha) == 0
    if hidden.any():
        rgb[hidden] = 128 if hidden.all() else rgb[~hidden].mean(axis=0).round()
    return rgb, alpha


def _must_fit(picture: Image.Image, frames: int = 1) -> None:
    """Check that a machine has room for pixels of 8 bytes: twice RGBA, as while they are converted."""
    needed = 8 * picture.width * picture.height * frames
    if needed > psutil.virtual_memory().total:
        size = f"{picture.width} × {picture.height} pixels" + f" in {frames:,} frames" * (frames > 1)
        raise MemoryError(f"{size} need {needed / 2**30:,.0f} GB")


def laid_over(background: str, picture: Image.Image) -> Image.Image:
    """What a viewer shows of a picture, in sRGB, over a colour where it is transparent."""
    pixels, alpha = visible(picture)
    rgb = Image.fromarray(pixels)
    return rgb if alpha is None else Image.composite(rgb, Image.new("RGB", rgb.size, background), alpha)


def read_rgb(
    source: Source,
    *,
    short_side: int | None = None,
    enlarge: bool = True,
    background: str = "white",
    formats: tuple[str, ...] = FORMATS,
) -> Tensor:
    """Read the picture (3, H, W) in a file of one of Pillow's `formats`.

    The picture is turned as its EXIF orientation says, converted to sRGB, laid over `background` where it is
    transparent, and scaled (Lanczos) to a short side of `short_side` pixels; None keeps its size. Without
    `enlarge`, it is only scaled down. Of several frames, the first is read.

    Raises:
        UserError: the file is missing, damaged, truncated, or not a picture.
    """
    with open_picture(source, formats) as opened:
        # libjpeg scales while it decodes, by 1/8 or more; the last 1/2 is left to Lanczos.
        if short_side and "ended" not in opened.info:
            opened.draft(None, (2 * short_side, 2 * short_side))
        rgb = laid_over(background, opened)
    if short_side and (enlarge or short_side < min(rgb.size)):
        width, height = (round(side * (short_side / min(rgb.size))) for side in rgb.size)
        rgb = rgb.resize((width, height), Image.Resampling.LANCZOS)
    return torch.from_numpy(np.array(rgb)).permute(2, 0, 1).contiguous().float() / 255


def read_size(source: Source, formats: tuple[str, ...] = FORMATS) -> tuple[int, int]:
    """Width and height of the picture in a file, read from its header without decoding any pixel.

    Raises:
        UserError: the file is missing, no picture in one of the formats, or so large that Pillow refuses to
            decode it; in the last case, the error's cause is `PIL.Image.DecompressionBombError`.
    """
    with open_picture(source, formats) as picture:
        return picture.size


def picture_suffixes() -> set[str]:
    """Suffixes of the formats that are read, with their dots."""
    return {suffix for suffix, name in Image.registered_extensions().items() if name in FORMATS}


def written_format(path: Path) -> str | None:
    """The format of the result of a file, by Pillow's name; None if there is no picture in the file."""
    try:
        with open_picture(path) as picture:
            return _written_format(picture)
    except UserError:
        return None


@contextmanager
def open_picture(source: Source, formats: tuple[str, ...] = FORMATS) -> Iterator[Image.Image]:
    """Open a file as a Pillow image, whose pixels are not decoded yet.

    Raises:
        UserError: the file can't be read as a picture, or the body of the `with` statement raised an
            error, e.g. when it decoded damaged bytes.
    """
    try:
        with (
            source.open("rb") if isinstance(source, Path) else nullcontext(source) as file,
            Image.open(_ended(file), formats=formats) as picture,
        ):
            if isinstance(picture.fp, _Ended):
                picture.info["ended"] = picture.fp.getvalue()
            picture.info["deep"] = ";16" in str(picture.tile) or picture.mode[0] in "IF"
            if picture.format in CODES:
                picture.info["cicp"] = _codes(file, *CODES[picture.format])
            tags = getattr(picture, "tag_v2", {})
            if DNG_TAG in tags or tags.get(254, 0) & 1:  # the first picture is a preview (NewSubfileType)
                raise UserError(f"{name_of(source)}: a camera's raw file; export it as a TIFF or JPEG")
            yield picture
    except UserError:
        raise
    except Exception as error:  # damaged bytes: OSError, SyntaxError, ValueError, struct.error, zlib.error, …
        # libheif's words end in a line's end.
        reason = getattr(error, "strerror", None) or " ".join(str(error).split()) or type(error).__name__
        if isinstance(error, UnidentifiedImageError):  # Pillow's message would have an object's address.
            reason = "empty, or of no known format"
        if isinstance(error, Image.DecompressionBombError):  # Pillow suspects an attack.
            reason = f"it has more than {2 * (Image.MAX_IMAGE_PIXELS or 0):,} pixels"
        raise UserError(
            f"{name_of(source)}: can't be read as a picture ({reason}); give another copy, or leave it out"
        ) from error


class _Ended(io.BytesIO):
    """A JPEG to which the last marker was added."""


def _ended(file: BinaryIO) -> BinaryIO:
    """A file, in memory and with a JPEG's last marker if it is one and has none, as some phones' haven't."""
    file.seek(0)
    if file.read(2) == b"\xff\xd8" and file.seek(-2, io.SEEK_END) and file.read() != JPEG_END:
        file.seek(0)
        return _Ended(file.read() + JPEG_END)
    file.seek(0)
    return file


def _is_whole(picture: Image.Image, content: bytes) -> bool:
    """Whether a JPEG lacked nothing but its last marker: what else comes before that is then not decoded."""
    with Image.open(io.BytesIO(content + bytes(range(1, 100)) + JPEG_END)) as other:
        return np.array_equal(np.asarray(picture), np.asarray(other))


def _codes(file: BinaryIO, mark: bytes, form: str) -> tuple[int, ...] | None:
    at = file.tell()
    file.seek(0)
    _, found, codes = file.read(HEAD).partition(mark)
    file.seek(at)
    return struct.unpack_from(form, codes) if found else None


def name_of(source: Source) -> str:
    """What a message calls a file."""
    return str(source if isinstance(source, Path) else getattr(source, "name", "picture"))


def _to_8_bits(picture: Image.Image) -> Image.Image:
    """Convert a picture to 8 bits per sample. Greys of 16 or 32 bits are scaled; Pillow would clip them.

    White is an integer's largest value, of floats 1 or more.
    """
    if picture.mode != "F" and not picture.mode.startswith("I"):
        return picture
    grey = np.asarray(picture)
    if grey.dtype == np.int32:  # of unsigned samples of 16 bits (PPM) or 32 (TIFF)
        grey = grey.view(np.uint32)
        grey = grey.astype(np.uint16) if grey.max(initial=0) <= 65535 else grey
    grey = np.nan_to_num(grey, posinf=1.0)
    white = np.iinfo(grey.dtype).max if grey.dtype.kind == "u" else max(float(grey.max(initial=0)), 1)
    scaled = Image.fromarray((grey * (255 / white)).round().clip(0, 255).astype(np.uint8))
    scaled.info = dict(picture.info)  # above all its colour profile
    if "transparency" in scaled.info:  # the grey that is transparent
        scaled.info["transparency"] = round(scaled.info["transparency"] / 257)
    return scaled


def stored_as(picture: Image.Image, name: str) -> StoredAs:
    """How the result of a decoded picture is stored. Afterwards, the picture's EXIF has no orientation."""
    file_format = _written_format(picture)
    options = dict(WRITTEN[file_format])
    icc = _kept_profile(picture, file_format)
    if coding := coding_of(picture.info):
        logger.warning("%s: %s", name, coding)
    if picture.info.get("deep"):
        logger.warning("%s: has 16 bits or more in a sample; the result has 8", name)
    if picture.mode == "CMYK" and icc is None:
        logger.warning("%s: has CMYK colours without a profile; the result is RGB", name)
    if file_format in WITH_PROFILE:
        upright = ImageOps.exif_transpose(picture)  # it also turns what XMP says
        options["icc_profile"] = icc
        if exif := _exif(picture, name):
            options["exif"] = exif
        if (xmp := upright.info.get("xmp")) and file_format not in ("PNG", "TIFF"):
            options["xmp"], broken = re.subn(IN_XMP, b"", xmp, flags=re.DOTALL)
            if broken:
                logger.warning("%s: left out its film or gain map, and what its XMP says of it", name)
        if file_format == "PNG":
            options["pnginfo"] = _texts(upright)
    if file_format in ("JPEG", "GIF", "JPEG2000") and (comment := picture.info.get("comment")):
        options["comment"] = comment
    if file_format == "JPEG":
        # Photoshop's segments have captions and keywords (IPTC).
        segments = [data for marker, data in getattr(picture, "applist", []) if marker == "APP13"]
        options["extra"] = b"".join(b"\xff\xed" + struct.pack(">H", len(s) + 2) + s for s in segments)
    if file_format == "TIFF":
        options["compression"] = _compression(picture)
    if "dpi" in picture.info and file_format != "GIF":
        options["dpi"] = picture.info["dpi"]
    return StoredAs(file_format, icc, options)


def _written_format(picture: Image.Image) -> str:
    # A telephone's MPO is a JPEG with more pictures after it, such as a depth map or a second view.
    file_format = {"MPO": "JPEG", "DIB": "BMP"}.get(str(picture.format), str(picture.format))
    return file_format if file_format in WRITTEN else "PNG"


def _kept_profile(picture: Image.Image, file_format: str) -> bytes | None:
    """The profile of the picture's colours, if a result can have it."""
    icc = picture.info.get("icc_profile")
    mode = mode_of(icc)
    if icc is None or file_format not in WITH_PROFILE or picture.mode == "LAB":
        return None
    if mode == "RGB" or (mode == "CMYK" and picture.mode == "CMYK" and file_format in ("JPEG", "TIFF")):
        with suppress(ImageCms.PyCMSError):  # a profile that is only for reading
            from_srgb(Image.new("RGB", (1, 1)), icc)
            return icc
    return None


def _texts(picture: Image.Image) -> PngImagePlugin.PngInfo:
    """A PNG's texts, XMP among them, without those of ImageMagick, which have the old EXIF again."""
    texts = PngImagePlugin.PngInfo()
    for key, text in getattr(picture, "text", picture.info).items():
        if isinstance(text, str) and not key.startswith("Raw profile type"):
            texts.add_itxt(key, picture.info.get(key, text))
    return texts


def _compression(image: Image.Image) -> str:
    """Compression for a TIFF like `image`. With EXIF directories, Pillow can only write it uncompressed."""
    if not {ExifTags.IFD.Exif, ExifTags.IFD.GPSInfo}.isdisjoint(image.getexif()):
        return "raw"
    compression = image.info.get("compression", "raw")
    return compression if compression in TIFF_COMPRESSIONS else "tiff_lzw"


def _exif(image: Image.Image, name: str) -> bytes:
    """EXIF for pixels that are upright now, without the thumbnail, which shows the original photo."""
    exif = image.getexif()
    exif.pop(ExifTags.Base.Orientation, None)
    if image.format == "TIFF":
        for tag in set(exif) - TIFF_TAGS:
            del exif[tag]
    try:
        return exif.tobytes() if exif else b""
    except Exception as error:  # values of another type than their tags': struct.error, TypeError, …
        logger.warning("%s: its EXIF is damaged and left out (%s)", name, error)
        return b""


def encode_png(picture: Tensor) -> bytes:
    """A PNG file of a picture (3, H, W); values are clamped and rounded."""
    return _encode(picture, "PNG")


def encode_jpeg(picture: Tensor, quality: int = 92) -> bytes:
    """A JPEG file of a picture (3, H, W); values are clamped and rounded.

    Colour has the full resolution: at the usual half resolution (4:2:0), it bleeds over the edges of strokes.
    """
    return _encode(picture, "JPEG", quality=quality, subsampling="4:4:4")


def luma(pictures: Tensor) -> Tensor:
    """Luma (…, 1, H, W) of pictures (…, 3, H, W)."""
    return (pictures * torch.tensor(LUMA, device=pictures.device).view(3, 1, 1)).sum(dim=-3, keepdim=True)


def contact_sheet(pictures: Sequence[Tensor], captions: Sequence[str]) -> Tensor:
    """Pictures (3, H, W) of one size, each above its caption, in rows that make about a square."""
    cells = [
        torch.cat([picture, _caption(text, picture.shape[-1])], dim=-2)
        for picture, text in zip(pictures, captions, strict=True)
    ]
    height, width = cells[0].shape[-2:]
    columns = math.ceil((len(cells) * height / width) ** 0.5)
    cells += [torch.ones(3, height, width)] * (-len(cells) % columns)
    rows = [torch.cat(cells[i : i + columns], dim=-1) for i in range(0, len(cells), columns)]
    return torch.cat(rows, dim=-2)


def _caption(text: str, width: int) -> Tensor:
    """The text in black on white, (3, CAPTION_PX, width)."""
    strip = Image.new("L", (width, CAPTION_PX), "white")
    ImageDraw.Draw(strip).multiline_text((4, 1), text, "black", ImageFont.load_default(FONT_PX), spacing=2)
    return torch.from_numpy(np.array(strip)).float().div(255).expand(3, -1, -1)


def middle(picture: Tensor, side: int) -> Tensor:
    """The middle of a picture (3, H, W): a square of `side` pixels, or of the shorter side if less."""
    height, width = picture.shape[1:]
    side = min(side, height, width)
    top, left = (height - side) // 2, (width - side) // 2
    return picture[:, top : top + side, left : left + side]


def _encode(picture: Tensor, file_format: str, **options: object) -> bytes:
    pixels = picture.detach().float().clamp(0, 1).mul(255).round().byte().permute(1, 2, 0).cpu().numpy()
    buffer = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(pixels)).save(buffer, file_format, **options)
    return buffer.getvalue()
