import pytest
import torch

from singleshot.style.datasets.weights import read_backbone
from singleshot.style.perceptual_loss import LossNetwork, LossWeights, PerceptualLoss, style_loss, style_ratio


@pytest.fixture(scope="module")
def network():
    return LossNetwork(read_backbone("vgg16", "packages")[0])


def noise(seed):
    return torch.rand(3, 48, 64, generator=torch.Generator().manual_seed(seed))


class TestStyleRatio:
    def test_sums_squares_over_layers(self):
        def of(*grams):
            return {str(i): torch.full((1, 2, 2), float(G)) for i, G in enumerate(grams)}

        # Four entries a layer: 4 (1² + 2²) = 20 is left of 4 (3² + 4²) = 100.
        stylized, photo, painting = of(1, 2), of(3, 4), of(0, 0)
        assert style_loss(stylized, painting) == 20
        assert style_ratio(stylized, photo, painting) == pytest.approx(0.2)


class TestPerceptualLoss:
    def test_content_is_the_mean_square_of_relu2_2(self, network):
        x, y = noise(0), noise(1)
        loss = PerceptualLoss(network, network.grams(x), LossWeights(2.0, 0.0, 0.0))
        φ_x, φ_y = (network.vgg16(picture[None], ["relu2_2"])["relu2_2"].numpy() for picture in (x, y))
        expected = ((φ_x - φ_y) ** 2).sum() / (128 * 24 * 32)
        terms = loss(x[None], network.content(y[None]))
        assert float(terms.content) == pytest.approx(expected, rel=1e-5)
        assert float(terms.total) == pytest.approx(2 * expected, rel=1e-5)
        assert loss(x[None], network.content(x[None])).total == 0

    def test_style_is_in_units_of_the_paintings_gram_matrices(self, network):
        painting = network.grams(noise(0))
        loss = PerceptualLoss(network, painting, LossWeights(0.0, 3.0, 0.0))
        terms = loss(noise(1)[None], network.content(noise(1)[None]))
        norm = sum(float(G.square().sum()) for G in painting.values()) ** 0.5
        assert float(terms.total) == pytest.approx(3 * float(terms.style) / norm, rel=1e-5)
