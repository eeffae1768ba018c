# %% [markdown]
# # A style of your own
#
# A small network learns to put any photo into a painting's style, in two minutes of one core: it begins with
# a network that has learned many paintings, and comes with the library. Two such networks blend into one.

# %%
import os
from pathlib import Path

import matplotlib.pyplot as plt
import skimage.data

from singleshot.style import Style

SMALL = os.environ.get("SINGLESHOT_EXAMPLES") == "small"

# %% [markdown]
# A painting to learn: any picture file. Here, it is stained tissue under a microscope, which scikit-image
# carries, as it does the photo of a cat, which no network sees while it learns.

# %%
painting = Path(skimage.data.__file__).with_name("ihc.png")
photo = skimage.data.chelsea()

# %% [markdown]
# VGG-16 and AlexNet, which say how far a picture is from the photo and from the painting, come from a pinned
# package. The larger pictures and network, the more minutes there are.

# %%
tissue = Style.learn(painting, minutes=0.05 if SMALL else 2)
left = tissue.card.scores["style_ratio_alexnet"]
print(f"{tissue.card.steps} batches; {left:.0%} of a photo's distance to the painting is left")

# %% [markdown]
# A style is a function from a picture to a picture. `save` and `load` keep it in a file, which
# `singleshot stylize` takes too. Some styles come with the library.

# %%
waves = Style.load("waves")
pictures = {"tissue": tissue(photo), "waves": waves(photo)}
pictures["waves, half as strong"] = waves(photo, strength=0.5)
pictures["waves, the photo's colours"] = waves(photo, preserve_color=True)

# %% [markdown]
# Blending makes one network of two.

# %%
pictures["half tissue, half waves"] = Style.blend({tissue: 0.5, waves: 0.5})(photo)

# %%
figure, axes = plt.subplots(2, 3, figsize=(12, 6))
for axis, (name, picture) in zip(axes.flat, {"photo": photo, **pictures}.items(), strict=True):
    axis.imshow(picture)
    axis.set_title(name)
    axis.axis("off")
plt.show()
