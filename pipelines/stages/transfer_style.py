"""Stage `transfer_style`: Gatys et al.'s optimisation; one cell a picture of each study."""

from pathlib import Path

from pipelines.engine.cells import Cell
from pipelines.engine.config import Config
from pipelines.engine.stage import Stage
from pipelines.styles import SAMPLES, TRANSFERS, normalized, painting_of, transfer_name, transfers
from tasks.style.gatys import GatysConfig
from tasks.style.transfer_style import TransferParams, transfer_style

STUDIES = Path("results/style/studies.csv")


def run(stage: Stage) -> None:
    """Leave `results/style/gatys/<study>/<variant>/` and the histories of all losses, in `studies.csv`."""
    cells = [_cell(stage.config, *variant) for variant in transfers(stage.config)]
    directories = stage.compute(cells, TRANSFERS, gpu=True)
    stage.tabulate([directory / "history.csv" for directory in directories], STUDIES)


def _cell(config: Config, study: str, settings: GatysConfig) -> Cell:
    transfer = config.style.transfer
    params = TransferParams(study, transfer.content, transfer.style, settings)
    inputs = {
        "photos": SAMPLES,
        "painting": painting_of(transfer.style),
        "backbone": normalized(settings.backbone),
    }
    tags = {
        "study": study,
        "style": transfer.style,
        "backbone": settings.backbone,
        "loss": settings.criterion,
        "optimizer": settings.optimizer,
    }
    return Cell(transfer_name(study, settings), transfer_style, params, inputs, tags)
