import pytest
import torch

from singleshot.style.perceptual_loss import style_loss, style_ratio


def test_style_ratio_sums_squares_over_layers():
    def of(*grams):
        return {str(i): torch.full((1, 2, 2), float(G)) for i, G in enumerate(grams)}

    # Four entries a layer: 4 (1² + 2²) = 20 is left of 4 (3² + 4²) = 100.
    stylized, photo, painting = of(1, 2), of(3, 4), of(0, 0)
    assert style_loss(stylized, painting) == 20
    assert style_ratio(stylized, photo, painting) == pytest.approx(0.2)
