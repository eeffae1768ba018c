"""`singleshot learn-style`: train a network for a user's own painting, in a given time."""

import math
import re
import unicodedata
from pathlib import Path

import joblib
import torch
from PIL import Image

from singleshot.errors import UserError
from singleshot.io.folders import LEARNED
from singleshot.style import Style, shipped
from singleshot.style.evaluation.verdict import STROKES, in_words
from singleshot.style.schedule import SHOW_SECONDS

FEW_BATCHES = 100
"""Number of batches after which a style's colours and strokes show, as measured with four paintings."""


def learn_style(painting: Path, photos: Path | None, name: str | None, minutes: float) -> None:
    """Learn a style (:meth:`Style.learn`) into `LEARNED/<name>/`; the default name is the painting's.

    Raises:
        UserError: the painting or the photos can't be read, or the name is taken or can't be one.
    """
    name = unicodedata.normalize("NFC", name or _as_name(painting.stem.lower()))
    if not name or name != (fit := _as_name(name)):
        raise UserError(f"{name!r} can't be a style's name; give --name one such as {fit or 'mine'}")
    cores = joblib.cpu_count()
    torch.set_num_threads(cores)
    Image.MAX_IMAGE_PIXELS = None  # Pillow's limit is for strangers' files
    where = "a GPU" if torch.cuda.is_available() else f"{cores} core{'s' * (cores > 1)}"
    output = LEARNED / name
    if name in shipped.FILES:
        print(f"{name}: in this folder, it hides the style of the same name that comes with the package")
    print(
        f"{name}: {minutes:.1f} minutes on {where}; the larger pictures and network, the more time there is\n"
        f"preview: {output / 'preview.jpg'}, renewed every {SHOW_SECONDS:.0f} s or more; an interruption "
        "costs a minute at most",
        flush=True,
    )
    card = Style.learn(painting, minutes=minutes, photos=photos, folder=output).card
    looks = f"on photos that it has not seen: {in_words(card.scores)}"
    then = f"singleshot stylize --style {name} photo.jpg"
    if card.steps < FEW_BATCHES:
        enough = math.ceil(minutes * FEW_BATCHES / max(1, card.steps))
        looks = f"not yet a style: it is faint before some {FEW_BATCHES} batches"
        then = f"the same command with --minutes {enough} goes on"
    johnson = card.settings["johnson"]
    print(
        f"{output}: model.safetensors, card.json, contact_sheet.jpg; {card.steps:,} batches, at last of "
        f"{johnson['batch_size']} x {johnson['image_px']} px, a network of width {johnson['width']}\n"
        f"{looks} ({card.scores[STROKES]:.0%} of a photo's distance to the painting is left, by AlexNet)\n"
        f"next: {then}"
    )


def _as_name(text: str) -> str:
    """The letters and digits of any script, with a hyphen for whatever is between them."""
    kept = (c if c == "_" or unicodedata.category(c)[0] in "LMN" else "-" for c in text)
    return re.sub("-+", "-", "".join(kept)).strip("-")
