"""The user's own files that params.yaml names: they are looked for before the stages that read them."""

from pathlib import Path

from pipelines.config.params import Config
from pipelines.stages import fetch_images, prepare_data
from tasks.errors import UserError


def check_inputs(config: Config) -> list[Path]:
    """The files and directories that the first stages read.

    Raises:
        UserError: one of them does not exist.
    """
    datasets = [prepare_data.cell(config, task) for task in config.offline_rl.sweep.tasks]
    found = []
    for cell in (*datasets, *fetch_images.cells(config.style)):
        for path in cell.inputs.values():
            if not path.exists():
                raise UserError(f"{path}: no such file, for {cell.name}; correct its path in params.yaml")
            found.append(path)
    return found
