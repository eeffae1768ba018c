"""What a style's network has learned, in figures by a network that did not train it, and in words."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from singleshot.style.backbones import Backbone
from singleshot.style.evaluation.metrics import ssim
from singleshot.style.losses import levels, levels_loss
from singleshot.style.perceptual_loss import layer_grams, style_ratio

STROKES, COLORS, LIKENESS = "style_ratio_alexnet", "colors_ratio", "ssim"
WORDS: Mapping[str, Sequence[tuple[float, str]]] = {
    STROKES: (
        (0.3, "the painting's strokes are everywhere"),
        (0.75, "the painting's strokes are plain to see"),
        (0.9, "the strokes hint at the painting"),
        (float("inf"), "there are hardly any of the painting's strokes"),
    ),
    COLORS: (
        (0.15, "light and colours are the painting's"),
        (0.5, "light and colours lean towards the painting's"),
        (float("inf"), "light and colours are still the photo's"),
    ),
    LIKENESS: (
        (0.2, "the photo's things dissolve"),
        (0.4, "the photo's things stay recognisable"),
        (float("inf"), "the photo's drawing is kept in detail"),
    ),
}
"""What a score below each bound is called. The bounds part the networks that style_levels.md and
learned_style.md in benchmarks/results/ describe by eye: a style ratio of 0.93 is a mere contour there, 0.77
is hatching in the painting's colours, and 0.71 a mosaic."""


@torch.no_grad()
def judged(
    pictures: Sequence[Tensor], photos: Sequence[Tensor], painting: Tensor, alexnet: Backbone
) -> dict[str, float]:
    """Means of three scores over pictures of photos, all (3, H, W) in [0, 1], on the device of `alexnet`.

    The scores are the shares of a photo's squared distance to the painting that are left, by AlexNet's Gram
    matrices and by levels of colours, and the pictures' SSIM to the photos.
    """
    style, light = layer_grams(alexnet, painting), levels(painting[None])
    scores = [
        (
            style_ratio(layer_grams(alexnet, picture), layer_grams(alexnet, photo), style),
            float(levels_loss(picture[None], light) / levels_loss(photo[None], light)),
            ssim(picture, photo),
        )
        for picture, photo in zip(pictures, photos, strict=True)
    ]
    means = torch.tensor(scores, dtype=torch.float64).mean(dim=0).tolist()
    return dict(zip((STROKES, COLORS, LIKENESS), means, strict=True))


def in_words(scores: Mapping[str, float]) -> str:
    """What pictures with these scores of :func:`judged` look like."""
    said = (next(words for bound, words in WORDS[name] if scores[name] < bound) for name in WORDS)
    return "; ".join(said)
