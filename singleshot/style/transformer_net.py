"""The image transformation network of Johnson et al. 2016 (the report's Version 2, step 4)."""

from torch import Tensor, nn
from torch.nn import functional

MIN_SIDE_PX = 5
"""Smallest side of a picture, in pixels. Reflection needs two rows at a quarter of the size, and always more
rows than it adds."""
RESIDUAL_BLOCKS = 5


class TransformerNet(nn.Module):
    """Stylises pictures: a 9x9 convolution, two halvings, five residual blocks, two doublings, 9x9 again.

    `forward` takes pictures (N, 3, H, W) in [0, 1], with sides of `MIN_SIDE_PX` or more, and returns pictures
    of the same shape and range. Internally, it pads sides to multiples of 4.

    The network differs from Johnson et al.'s in four points: instance normalisation instead of batch
    normalisation (Ulyanov et al. 2016); nearest-neighbour upsampling and a convolution instead of a
    transposed convolution, whose overlaps leave a checkerboard (Odena et al. 2016); reflection padding in
    every convolution, so that residual blocks keep their size and pictures need no border of 40 px; and a
    sigmoid as the output instead of 150 tanh, which learns more slowly (after 140 batches, total loss is 41.8
    with 150 tanh, 27.6 with a sigmoid and 33.9 with a linear output).

    `stages` is the whole network without padding and conversion of the range of values: run in order, it maps
    (N, 3, 4h, 4w) to the same shape. `width` is the number of channels of the first convolution (32 in the
    paper).
    """

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.width = width
        self.stages = nn.Sequential(
            *_block(3, width, kernel=9),
            *_block(width, 2 * width, kernel=3, stride=2),
            *_block(2 * width, 4 * width, kernel=3, stride=2),
            *(Residual(4 * width) for _ in range(RESIDUAL_BLOCKS)),
            nn.Upsample(scale_factor=2, mode="nearest"),
            *_block(4 * width, 2 * width, kernel=3),
            nn.Upsample(scale_factor=2, mode="nearest"),
            *_block(2 * width, width, kernel=3),
            _convolution(width, 3, kernel=9),
        )

    def forward(self, pictures: Tensor) -> Tensor:
        """Stylised pictures, (N, 3, H, W) like `pictures`."""
        bottom, right = (-side % 4 for side in pictures.shape[-2:])
        padded = functional.pad(pictures, (0, right, 0, bottom), mode="reflect")
        stylised = self.from_output(self.stages(self.to_input(padded)))
        # Not a slice: whether it is contiguous depends on the example's size, and torch.export would assume
        # the same for all sizes.
        return functional.pad(stylised, (0, -right, 0, -bottom))

    @staticmethod
    def to_input(pictures: Tensor) -> Tensor:
        """Scale pictures from [0, 1] to about zero mean and unit variance, as `stages` expects."""
        return (pictures - 0.5) / 0.25

    @staticmethod
    def from_output(values: Tensor) -> Tensor:
        """Turn the output of `stages` into colours in [0, 1], in float32."""
        return values.float().sigmoid()


class InstanceNorm(nn.InstanceNorm2d):
    """Instance normalisation, in training with one picture as batch normalisation, which is then the same.

    PyTorch's instance normalisation copies maps that keep a pixel's channels side by side to another layout
    and back, which takes an eighth of the time of training with one picture.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Map (N, channels, H, W) to the same shape."""
        if self.training and len(x) == 1:
            return functional.batch_norm(x, None, None, self.weight, self.bias, training=True, eps=self.eps)
        return super().forward(x)


class Residual(nn.Module):
    """x + f(x) with f two 3x3 convolutions; no ReLU after the sum (Gross and Wilber 2016).

    The scale of f's last norm starts at zero (Goyal et al. 2017), so that the content of a picture passes
    through from the first batch on: after 200 batches of 2 photos, content loss is 6.6 instead of 8.1, and
    style loss isn't higher.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        norm = InstanceNorm(channels, affine=True)
        nn.init.zeros_(norm.weight)
        self.body = nn.Sequential(
            *_block(channels, channels, kernel=3), _convolution(channels, channels, kernel=3), norm
        )

    def forward(self, x: Tensor) -> Tensor:
        """Map (N, channels, H, W) to the same shape."""
        return x + self.body(x)


def _block(inputs: int, outputs: int, kernel: int, stride: int = 1) -> tuple[nn.Module, ...]:
    return (_convolution(inputs, outputs, kernel, stride), InstanceNorm(outputs, affine=True), nn.ReLU())


def _convolution(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, padding_mode="reflect")
