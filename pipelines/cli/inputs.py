"""A check that the user's own files exist, which params.yaml names, before the stages that read them run."""

from pathlib import Path

from pipelines.config.params import Config
from pipelines.stages.data import data_cells
from pipelines.stages.pictures import image_cells
from singleshot.errors import UserError


def check_inputs(config: Config) -> None:
    """Check that the files and directories that stages read exist.

    Raises:
        UserError: one of them does not exist.
    """
    for cell in (*data_cells(config), *image_cells(config.style)):
        for path in cell.inputs.values():
            if not path.exists():
                raise UserError(
                    f"{path}: no such file, for {cell.name}; correct its path by `make params SET=…`"
                )
    video = config.style.stylize.video
    if video is not None and not Path(video).is_file():
        raise UserError(
            f"{video}: no such file, for style.stylize.video; correct its path by `make params SET=…`"
        )
