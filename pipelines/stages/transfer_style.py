"""The step `transfer_style` has one cell for each picture of each study."""

from pipelines.catalog.paths import SAMPLES, STUDIES, TRANSFERS
from pipelines.catalog.styles import normalized, painting_of, transfer_name, transfers
from pipelines.config.params import Config
from pipelines.engine.cells import Cell
from pipelines.engine.stage import Step
from tasks.tables import concatenate
from tasks.transfer_style import TransferParams, transfer_style


def run(step: Step, config: Config) -> None:
    """Write `results/style/gatys/<study>/<variant>/`, and `studies.csv` with the histories of all losses."""
    cells = [_cell(picture) for picture in transfers(config)]
    directories = step.compute(cells, TRANSFERS, gpu=True)
    concatenate([directory / "history.csv" for directory in directories], STUDIES)


def _cell(picture: TransferParams) -> Cell:
    settings = picture.config
    inputs = {
        "photos": SAMPLES,
        "painting": painting_of(picture.style),
        "backbone": normalized(settings.backbone),
    }
    tags = {
        "study": picture.study,
        "style": picture.style,
        "backbone": settings.backbone,
        "loss": settings.criterion,
        "optimizer": settings.optimizer,
    }
    return Cell(transfer_name(picture), transfer_style, picture, inputs, tags)
