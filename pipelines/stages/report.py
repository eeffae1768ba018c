"""The stage `report`: what pruned agents keep of the score, and the page of all results."""

import shutil
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from pipelines.config.offline_rl import OfflineRLConfig
from pipelines.config.params import Config
from pipelines.engine.cells import Cell
from pipelines.engine.stage import PROVENANCE, Work, step
from pipelines.stages import EVALUATION, REPORT, SCORES, STATISTICS
from singleshot.pruning.variant import percentage
from tasks.reporting import paper
from tasks.reporting.page import TEMPLATES, PageParams, Setting, draw_page
from tasks.reporting.results import FILES
from tasks.reporting.scores import evaluate_scores

OWN_RECORD = PROVENANCE / "report" / "report.json"


@step("evaluate", STATISTICS)
def evaluate(work: Work, config: Config) -> None:
    """Estimate how much of the score pruned agents keep, with intervals over environments and seeds."""
    cell = Cell("statistics", evaluate_scores, config.offline_rl.statistics, {"scores": SCORES})
    (directory,) = work.compute([cell])
    for path in (STATISTICS, EVALUATION):
        shutil.copyfile(directory / path.name, path)


@step("report")
def report(work: Work, config: Config) -> None:
    """Write report/index.html, a page of all results beside those of the papers, and its charts as SVG.

    The page and the figures are among each run's artifacts.
    """
    settings = tuple(scale(config.offline_rl))
    params = PageParams(config.profile, settings, config.offline_rl.statistics.confidence)
    (page,) = work.compute([Cell("page", draw_page, params, page_inputs())], REPORT)
    for made in sorted(page.iterdir()):
        made.rename(REPORT / made.name)
    page.rmdir()
    print(f"open {REPORT / 'index.html'} in a browser")


def scale(config: OfflineRLConfig) -> Iterator[Setting]:
    """The sweep's scale, and its settings that differ from those of Arnob et al. (2021) or of their code."""
    sweep = config.sweep
    ids = ", ".join(str(environment.id or "none") for environment in config.environments.values())
    here = f"Gymnasium's {ids}, scored by D4RL's reference returns of -v2"
    yield Setting("environments", here, ", ".join(f"{each}-v2" for each in paper.SWEEP_ENVIRONMENTS))
    yield Setting("seeds", f"{len(sweep.seeds)}", f"{paper.SWEEP_SEEDS}")
    yield Setting("sparsities in %", ", ".join(map(percentage, sorted(sweep.sparsities))), "10 to 95")
    updates = (f"{config.training[each].updates:,} ({each.upper()})" for each in sweep.algorithms)
    yield Setting("gradient updates", ", ".join(updates), f"{paper.SWEEP_UPDATES:,}")
    if config.data.source != "d4rl":
        here = {
            "expert": f"{config.data.transitions:,} transitions of this project's experts, "
            f"noise of {config.data.action_noise:g} on their actions",
            "minari": "Minari's data sets of experts",
        }[config.data.source]
        yield Setting("data", here, "1,000,000 transitions of D4RL's experts")
    if config.pruning.scope != "part":
        yield Setting("scope of pruning", config.pruning.scope, "part")
    for algorithm in sweep.algorithms:
        own = config.algorithms[algorithm]
        theirs = asdict(type(own)())  # its defaults
        for setting, value in asdict(own).items():
            if value != theirs[setting]:
                words = f"{setting.replace('_', ' ')} ({algorithm.upper()})"
                code = f"not said; its authors' code: {_in_words(theirs[setting])}"
                yield Setting(words, _in_words(value), code)


def _in_words(value: object) -> str:
    return ("no", "yes")[value] if isinstance(value, bool) else str(value)


def page_inputs() -> dict[str, Path]:
    """The files that the page shows, as far as they exist. This stage's own record is written later."""
    found = {path for pattern in FILES for path in Path().glob(pattern)} - {OWN_RECORD}
    return {TEMPLATES: Path("tasks/reporting/templates")} | {path.as_posix(): path for path in sorted(found)}
