"""Seconds per batch of style training: `python -m benchmarks.style_training [--device cuda]`.

Networks have the default profile's sizes (or others), VGG16 has random weights, photos are random, and one
thread computes. The first batch of a compiled variant shows the cost of compiling.
"""

import argparse
import itertools
from collections.abc import Callable
from typing import Literal, get_args

import torch
from torch import Tensor

from benchmarks.command import check_device, positive, run_main
from benchmarks.paired import heading, table, take_turns, timed
from singleshot.errors import UserError
from singleshot.style.backbones import Backbone
from singleshot.style.losses import feature_reconstruction_loss, normalized_gram, style_reconstruction_loss
from singleshot.style.perceptual_loss import CONTENT_LAYER, STYLE_LAYERS
from singleshot.style.precision import autocast
from singleshot.style.transformer_net import TransformerNet

Layout = Literal["contiguous", "channels_last"]
Mode = Literal["eager", "compile"]
FORMATS = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}
VGG16_CHANNELS = (3, 64, 64, 128, 128, 256, 256, 256, 512, 512, 512, 512, 512, 512)
SMALLEST_PX = 8
ROUNDS = 5


def main() -> None:
    """Print a Markdown table, with what it was measured on."""
    arguments = _arguments()
    check_device(arguments.device)
    if arguments.image_px < SMALLEST_PX:
        raise UserError(f"--image-px {arguments.image_px}: VGG16 halves it thrice; give ≥ {SMALLEST_PX}")
    torch.set_num_threads(1)
    torch._dynamo.config.recompile_limit = 64  # per function: each variant compiles VGG16 three times
    variants = list(itertools.product(get_args(Layout), (torch.float32, torch.bfloat16), get_args(Mode)))
    updates = {variant: _update(*variant, arguments) for variant in variants}
    first = {variant: timed(update) for variant, update in updates.items()}
    on_gpu = arguments.device == "cuda"
    compared = take_turns(updates, ROUNDS, busy=0 if on_gpu else 0.95)
    print(heading("torch", device=torch.cuda.get_device_name() if on_gpu else None))
    print(f"Width {arguments.width}, batches of {arguments.batch_size} at {arguments.image_px} px.\n")
    rows = []
    for layout, dtype, mode in variants:
        variant, name = (layout, dtype, mode), str(dtype).removeprefix("torch.")
        seconds, times = compared.seconds(variant), compared.speedup(variant, variants[0], of="cpu")
        figures = f"{seconds.wall:.3f}", f"{seconds.cpu:.3f}", times, f"{first[variant].cpu:.1f}"
        rows.append((layout, name, mode, *figures))
    columns = (
        "layout",
        "precision",
        "mode",
        "s/batch",
        "CPU s/batch",
        "times the first",
        "first batch, CPU s",
    )
    print(table(columns, rows))
    print(f"\n{compared.remark}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--width", type=positive(int), default=16)
    parser.add_argument("--image-px", type=positive(int), default=128)
    parser.add_argument("--batch-size", type=positive(int), default=2)
    return parser.parse_args()


def _update(
    layout: Layout, dtype: torch.dtype, mode: Mode, arguments: argparse.Namespace
) -> Callable[[], None]:
    """A function that makes one step of training, as :mod:`singleshot.style.johnson` does."""
    device, memory_format = arguments.device, FORMATS[layout]
    network = TransformerNet(arguments.width).to(device)
    vgg16 = _vgg16().to(device)
    for module in (network, vgg16):
        module.to(memory_format=memory_format)  # type: ignore[call-overload]  # in PyTorch's docs alone
    if mode == "compile":
        network.compile()
        vgg16.compile()
    optimizer = torch.optim.Adam(network.parameters())
    photos = torch.rand(arguments.batch_size, 3, arguments.image_px, arguments.image_px, device=device)
    photos = photos.contiguous(memory_format=memory_format)

    def features(pictures: Tensor, layers: tuple[str, ...]) -> dict[str, Tensor]:
        with autocast(device, dtype):
            return {layer: φ.float() for layer, φ in vgg16(pictures, layers).items()}

    with torch.no_grad():
        targets = {layer: normalized_gram(φ) for layer, φ in features(photos, STYLE_LAYERS).items()}

    def update() -> None:
        with autocast(device, dtype):
            stylised = network(photos)
        φ = features(stylised, STYLE_LAYERS)
        with torch.no_grad():
            content = features(photos, (CONTENT_LAYER,))[CONTENT_LAYER]
        style = [
            style_reconstruction_loss(normalized_gram(φ[layer]), target) for layer, target in targets.items()
        ]
        loss = feature_reconstruction_loss(φ[CONTENT_LAYER], content) + torch.stack(style).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if device == "cuda":
            torch.cuda.synchronize()

    return update


def _vgg16() -> Backbone:
    convolutions = [
        (torch.randn(outputs, inputs, 3, 3) * (2 / (9 * inputs)) ** 0.5, torch.zeros(outputs))
        for inputs, outputs in itertools.pairwise(VGG16_CHANNELS)
    ]
    return Backbone("vgg16", convolutions, torch.full((3,), 0.5), torch.full((3,), 0.25))


if __name__ == "__main__":
    run_main(main)
