"""Three paintings of our own, to learn styles from if no others are at hand.

They differ in the elements of their styles: `swirls` has thick brush strokes that follow a flow, `waves` has
flat colours with outlines and stripes, and `mosaic` has small tiles with joints. They were drawn with NumPy
and OpenCV, by this module as it was at b0d4dff. Their long sides have 768 px.
"""

from pathlib import Path

from singleshot.errors import UserError

FOLDER = Path(__file__).with_name("drawn")


def drawn_painting(name: str) -> Path:
    """The file of the painting called `name`.

    Raises:
        UserError: there is no painting of that name.
    """
    files = {file.stem: file for file in sorted(FOLDER.iterdir())}
    if name not in files:
        raise UserError(
            f"no painting {name!r} comes with this project, only {', '.join(files)}; "
            "give a picture's path or URL for it"
        )
    return files[name]
