# %% [markdown]
# # A style of your own
#
# A small network learns to put any photo into a painting's style, in two minutes of one core: it begins with
# a network that has learned many paintings, and comes with the library. Two such networks blend into one.

# %%
import os

import matplotlib.pyplot as plt
import numpy as np
import skimage.data
import torch
from torch import Tensor

from singleshot.io.images import read_rgb
from singleshot.style import Style
from singleshot.style.blend import blend
from singleshot.style.datasets.paintings import drawn_painting
from singleshot.style.datasets.photos import random_crop
from singleshot.style.datasets.weights import read_backbone
from singleshot.style.johnson import JohnsonConfig, Trainer, initial_network
from singleshot.style.losses import levels
from singleshot.style.model_file import ModelCard
from singleshot.style.perceptual_loss import LossNetwork, PerceptualLoss
from singleshot.style.start import START

SMALL = os.environ.get("SINGLESHOT_EXAMPLES") == "small"
BATCHES = 2 if SMALL else 150

# %% [markdown]
# Photos to learn from, and one that no network sees while it learns. The paintings come with the library;
# `read_rgb(Path("painting.jpg"), short_side=256)` reads another.


# %%
def as_tensor(pixels: np.ndarray) -> Tensor:
    """A picture (H, W, 3) of bytes as (3, H, W), in [0, 1]."""
    return torch.from_numpy(pixels.copy()).permute(2, 0, 1) / 255


photos = [as_tensor(pixels) for pixels in (skimage.data.astronaut(), skimage.data.rocket())]
photo = skimage.data.chelsea()
paintings = {name: read_rgb(drawn_painting(name), short_side=256) for name in ("swirls", "waves")}

# %% [markdown]
# VGG-16, whose activations say how far a picture is from the photo's content and from the painting's style,
# comes from a pinned package. `levels_weight` makes light and colours the painting's.

# %%
backbone, _ = read_backbone("vgg16", "packages")
vgg16 = LossNetwork(backbone)
config = JohnsonConfig(
    width=16, image_px=128, learning_rate=0.003, style_weight=8.0, levels_weight=100.0, augment=True
)


def learned(name: str) -> Style:
    """A network that has learned a painting."""
    painting = paintings[name]
    trainer = Trainer(
        initial_network(config.width, seed=0, start=START),
        PerceptualLoss(vgg16, vgg16.grams(painting), config.loss_weights),
        config,
        levels=levels(painting[None]),
        batches=BATCHES,
        seed=0,
        dtype=torch.float32,
    )
    random = torch.Generator().manual_seed(0)
    for step in range(BATCHES):
        batch = random_crop(photos[step % len(photos)], config.image_px, random)[None]
        *_, total = trainer.update(batch).tolist()
        if step % 50 == 0 or step == BATCHES - 1:
            print(f"{name}, batch {step + 1}: loss {total:.1f}")
    card = ModelCard(name, "0" * 64, "2, from scikit-image", BATCHES, {}, {}, "unknown")
    return Style(trainer.network, card)


styles = {name: learned(name) for name in paintings}

# %% [markdown]
# A style is a function from a picture to a picture. `save` and `load` keep it in a file, which
# `singleshot stylize` takes too.

# %%
pictures = {name: style(photo, stroke=1) for name, style in styles.items()}
pictures["waves, half as strong"] = styles["waves"](photo, strength=0.5)
pictures["waves, the photo's colours"] = styles["waves"](photo, preserve_color=True)

# %% [markdown]
# Blending makes one network of two.

# %%
both = Style(blend([style.network for style in styles.values()], [0.5, 0.5]), styles["waves"].card)
pictures["half swirls, half waves"] = both(photo)

# %%
figure, axes = plt.subplots(2, 3, figsize=(12, 6))
for axis, (name, picture) in zip(axes.flat, {"photo": photo, **pictures}.items(), strict=True):
    axis.imshow(picture)
    axis.set_title(name)
    axis.axis("off")
plt.show()
