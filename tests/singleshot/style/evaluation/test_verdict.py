import pytest
import torch
from small_networks import random_alexnet

from singleshot.style.backbones import load_backbone
from singleshot.style.evaluation.verdict import COLORS, LIKENESS, STROKES, in_words, judged


def test_a_photo_is_all_of_its_distance_away_and_the_painting_none(tmp_path):
    alexnet = load_backbone(random_alexnet(tmp_path / "alexnet.safetensors"))
    photo, painting = torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(0)) * torch.tensor(
        [0.5, 1.0]
    ).view(2, 1, 1, 1)
    itself = judged([photo], [photo], painting, alexnet)
    assert itself == pytest.approx({STROKES: 1, COLORS: 1, LIKENESS: 1})
    there = judged([painting], [photo], painting, alexnet)
    assert (there[STROKES], there[COLORS]) == pytest.approx((0, 0), abs=1e-6)
    both = judged([photo, painting], [photo, photo], painting, alexnet)
    assert both[STROKES] == pytest.approx(0.5)


def test_scores_have_words():
    words = in_words({STROKES: 0.2, COLORS: 0.05, LIKENESS: 0.3})
    assert words == (
        "the painting's strokes are everywhere; light and colours are the painting's; "
        "the photo's things stay recognisable"
    )
    photo = in_words({STROKES: 1.0, COLORS: 1.0, LIKENESS: 1.0})
    assert photo.startswith("there are hardly any of the painting's strokes")
