"""Task: the report page `index.html`, made only from a run's result files; equal files give equal bytes.

What the page says, and in which order, is in the directory `templates`; its templates call the functions of
:mod:`~tasks.reporting.pruning` and the modules beside it for figures, tables and numbers.
"""

import re
from base64 import b64decode
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from string import ascii_lowercase
from typing import Any

import jinja2
from markupsafe import Markup, escape

from singleshot.errors import explained
from singleshot.job import Event, Job, Metrics, per_job
from tasks.reporting import claims, deployment, look, paper, provenance, pruning, results, style, words
from tasks.reporting.results import Results
from tasks.reporting.statistics import BootstrapConfig

SVG = "data:image/svg+xml;base64,"
TEMPLATES = "templates"
"""The input directory with the templates and style sheet. It is an input because the digest of the source
code covers only Python."""
MODULES = (claims, deployment, look, paper, provenance, pruning, results, style, words)
"""Modules whose functions the templates call."""


@dataclass(frozen=True)
class Setting:
    """A setting of the sweep, and what the paper, or its authors' code, has."""

    setting: str
    here: str
    paper: str


@dataclass(frozen=True)
class PageParams:
    """What the page says about the run that it shows."""

    profile: str
    scale: tuple[Setting, ...] = ()
    confidence: float = BootstrapConfig.confidence
    """Confidence level of the intervals in the tables."""


class Numbered(dict[str, Any]):
    """Figures or tables by their numbers, which are in the order in which a reader sees them.

    A reader passes over closed details, so what is in them has separate numbers: D1, D2.
    """

    def add(self, shown: Any, closed: object) -> str:
        """Number what comes next."""
        kind = "D" if closed else ""
        number = f"{kind}{1 + sum(each.startswith('D') == bool(closed) for each in self)}"
        self[number] = shown
        return number


@per_job
def draw_page(job: Job) -> Iterator[Event]:
    """Write a job's `index.html`, which needs no other file, and its charts as files in `figures`.

    Inputs: the directory `templates`, and the files of `results.FILES` that exist, each under its path from
    the repository's root. The page says which results are missing. Metrics: the numbers of `figures` and
    `tables`, and `not_run`, the number of figures and tables without results.

    Raises:
        UserError: a table lacks a column, or a picture is damaged.
    """
    # The templates append to these, in the order of the page.
    lists: dict[str, list[Any]] = {"sections": [], "files": [], "not_run": [], "closed": []}
    figures, tables = Numbered(), Numbered()
    page = _environment(job.inputs[TEMPLATES]).get_template("page.html")
    with explained("a table of the results lacks a column", "make them again with `dvc repro -f`", KeyError):
        found = Results(job.inputs)
        html = page.render(found=found, params=job.params, figures=figures, tables=tables, **lists)
    (job.output / "index.html").write_text(html, encoding="utf-8")
    _write_charts(figures, job.output / "figures")
    counts = {"figures": figures, "tables": tables, "not_run": lists["not_run"]}
    yield Metrics(0, {name: float(len(listed)) for name, listed in counts.items()})


def _environment(templates: Path) -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(templates),
        extensions=["jinja2.ext.do"],
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.globals |= {module.__name__.rpartition(".")[2]: module for module in MODULES}
    of_numbers = (words.exact_percent, words.number, words.pace, words.percent, words.points)
    formats = (words.count, words.duration, words.listing, *of_numbers)
    environment.filters |= {each.__name__: each for each in (*formats, look.name, breakable)}
    return environment


def breakable(text: str) -> Markup:
    """Escape a text for HTML, set text between backticks as code, and let lines break after slashes."""
    code = re.sub("`([^`]+)`", r"<code>\1</code>", str(escape(text)))
    return Markup(re.sub(r"(?<=\w)/(?=\w)", "/<wbr>", code))


def _write_charts(figures: Mapping[str, look.Figure], directory: Path) -> None:
    """Write each chart as a separate SVG file, named by the number of its figure on the page."""
    directory.mkdir()
    for number, figure in figures.items():
        charts = [panel.source.partition(SVG)[2] for panel in figure.panels if panel.source.startswith(SVG)]
        for i, chart in enumerate(charts):
            letter = ascii_lowercase[i] if len(charts) > 1 else ""
            (directory / f"figure-{number.zfill(2)}{letter}.svg").write_bytes(b64decode(chart))
