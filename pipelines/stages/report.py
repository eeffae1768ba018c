"""Stage `report`: figures of agents, of Version 1 of styles and of deployment, and the page; a cell each."""

from pathlib import Path

from pipelines.engine.cells import Cell
from pipelines.engine.stage import Stage
from tasks.reporting.deployment_figures import DeploymentFigureParams, draw_deployment_figures
from tasks.reporting.figures import FigureParams, draw_figures
from tasks.reporting.page import TEMPLATES, PageParams, draw_page
from tasks.reporting.results import FILES
from tasks.reporting.style_figures import StyleFigureParams, draw_style_figures

SCORES = Path("results/offline_rl/scores.csv")
STUDIES = Path("results/style/studies.csv")
TIMINGS = Path("results/deployment/timings.csv")
PICTURES = Path("results/style/gatys")
PRUNING = Path("results/style/pruning.csv")
PRUNED = Path("results/style/pruned")
REPORT = Path("report")
OWN_RECORD = Path("results/provenance/report.json")


def run(stage: Stage) -> None:
    """Leave `report/index.html`, and pictures in `figures/`, `style/` and `deployment/` below `report/`."""
    profile = stage.config.profile
    *_, page = stage.compute(
        [
            Cell("figures", draw_figures, FigureParams(profile), {"scores": SCORES}),
            Cell(
                "style",
                draw_style_figures,
                StyleFigureParams(profile),
                {"studies": STUDIES, "pictures": PICTURES, "pruning": PRUNING, "pruned": PRUNED},
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
    """Every file there is that the page shows. It cannot show what this stage has yet to record of itself."""
    found = {path for pattern in FILES for path in Path().glob(pattern)} - {OWN_RECORD}
    return {TEMPLATES: Path("tasks/reporting/templates")} | {path.as_posix(): path for path in sorted(found)}
