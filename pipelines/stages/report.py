"""The stage `report` has one cell for each kind of figures, and one for the page."""

from pathlib import Path

from pipelines.catalog.paths import (
    PRUNED_PICTURES,
    PRUNED_STYLES,
    REPORT,
    SCORES,
    STUDIES,
    TIMINGS,
    TRANSFERS,
)
from pipelines.config.params import Config
from pipelines.engine.cells import Cell
from pipelines.engine.stage import Stage
from tasks.reporting.deployment_figures import DeploymentFigureParams, draw_deployment_figures
from tasks.reporting.figures import FigureParams, draw_figures
from tasks.reporting.page import TEMPLATES, PageParams, draw_page
from tasks.reporting.results import FILES
from tasks.reporting.style_figures import StyleFigureParams, draw_style_figures

OWN_RECORD = Path("results/provenance/report.json")


def run(stage: Stage, config: Config) -> None:
    """Leave `report/index.html`, and pictures in `figures/`, `style/` and `deployment/` below `report/`."""
    profile = config.profile
    *_, page = stage.compute(
        [
            Cell("figures", draw_figures, FigureParams(profile), {"scores": SCORES}),
            Cell(
                "style",
                draw_style_figures,
                StyleFigureParams(profile),
                {
                    "studies": STUDIES,
                    "pictures": TRANSFERS,
                    "pruning": PRUNED_STYLES,
                    "pruned": PRUNED_PICTURES,
                },
            ),
            Cell(
                "deployment",
                draw_deployment_figures,
                DeploymentFigureParams(profile),
                {"timings": TIMINGS},
            ),
            Cell("page", draw_page, PageParams(profile), page_inputs()),
        ],
        REPORT,
        brief=True,
    )
    (page / "index.html").rename(REPORT / "index.html")
    page.rmdir()
    print(f"open {REPORT / 'index.html'} in a browser")


def page_inputs() -> dict[str, Path]:
    """The files that the page shows, as far as they exist. This stage's own record is written afterwards."""
    found = {path for pattern in FILES for path in Path().glob(pattern)} - {OWN_RECORD}
    return {TEMPLATES: Path("tasks/reporting/templates")} | {path.as_posix(): path for path in sorted(found)}
