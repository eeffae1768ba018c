"""Contact sheets: pictures from a training, with captions."""

import math
from collections.abc import Sequence

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

CAPTION_PX = 36
"""Height of a caption of two lines, in pixels."""
FONT_PX = 14


def contact_sheet(pictures: Sequence[Tensor], captions: Sequence[str], columns: int | None = None) -> Tensor:
    """Pictures (3, H, W) of one size, each above its caption, in rows that make about a square.

    `columns` is the number of pictures in a row, if it shall be another.
    """
    cells = [
        torch.cat([picture, _caption(text, picture.shape[-1])], dim=-2)
        for picture, text in zip(pictures, captions, strict=True)
    ]
    height, width = cells[0].shape[-2:]
    columns = columns or math.ceil((len(cells) * height / width) ** 0.5)
    cells += [torch.ones(3, height, width)] * (-len(cells) % columns)
    rows = [torch.cat(cells[i : i + columns], dim=-1) for i in range(0, len(cells), columns)]
    return torch.cat(rows, dim=-2)


def _caption(text: str, width: int) -> Tensor:
    """The text in black on white, (3, CAPTION_PX, width)."""
    strip = Image.new("L", (width, CAPTION_PX), "white")
    ImageDraw.Draw(strip).multiline_text((4, 1), text, "black", ImageFont.load_default(FONT_PX), spacing=2)
    return torch.from_numpy(np.array(strip)).float().div(255).expand(3, -1, -1)
