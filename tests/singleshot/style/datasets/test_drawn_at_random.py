"""Paintings drawn at random: always the same for a seed, and as different as their manners."""

import torch

from singleshot.style.datasets.drawn_at_random import MANNERS, draw_at_random


def test_a_seed_is_a_painting_and_others_are_others() -> None:
    paintings = [draw_at_random(seed, 96) for seed in range(2 * len(MANNERS))]
    for seed, painting in enumerate(paintings):
        _, height, width = painting.shape
        assert width == 96
        assert 0.68 * 96 <= height <= 96
        assert painting.min() >= 0
        assert painting.max() <= 1
        assert painting.std() > 0.03, "it is not empty"
        assert torch.equal(painting, draw_at_random(seed, 96))
    colors = torch.stack([painting.mean(dim=(1, 2)) for painting in paintings])
    apart = torch.cdist(colors, colors) + torch.eye(len(colors))
    assert apart.min() > 0.005
