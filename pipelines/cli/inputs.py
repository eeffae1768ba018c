"""A check of what params.yaml names, before any stage runs: the user's own files, and environments."""

from pathlib import Path

from pipelines.config.params import Config
from pipelines.stages.data import data_cells
from pipelines.stages.pictures import image_cells
from singleshot.errors import UserError
from singleshot.rl.environments import known_spaces


def check_inputs(config: Config) -> None:
    """Check that the files and directories that stages read exist, and that episodes end.

    Raises:
        UserError: one of them does not exist, or an environment can't be made or has no time limit.
    """
    for name, environment in config.offline_rl.environments.items():
        spaces = known_spaces(environment)
        if spaces and spaces.time_limit is None:
            raise UserError(
                f"offline_rl.environments.{name}: {environment.id} has no time limit, so its episodes may "
                f"never end; set time_limit in conf/environment/{name}.yaml"
            )
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
