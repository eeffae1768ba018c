"""Task: the report page `index.html`, made only from a run's result files; equal files give equal bytes."""

import re
from base64 import b64decode
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from string import ascii_lowercase

import jinja2
from markupsafe import Markup, escape

from tasks.job import Event, Job, Metrics, per_job
from tasks.reporting.blocks import Block, Download, Figure, NotRun, Section, Table
from tasks.reporting.look import embedded
from tasks.reporting.opening import opening
from tasks.reporting.results import Results
from tasks.reporting.section_deployment import (
    exported_bytes,
    hyyppa,
    milliseconds_of_agents,
    which_compiler_is_fastest,
)
from tasks.reporting.section_pruning import (
    arnob,
    bytes_of_agents,
    did_pruning_keep_the_return,
    rounded_values,
)
from tasks.reporting.section_run import Departure, citation, what_was_run
from tasks.reporting.section_style import shen, what_do_the_styles_look_like
from tasks.reporting.statistics import BootstrapConfig

SVG = "data:image/svg+xml;base64,"
TEMPLATES = "templates"
"""The input directory with the template and style sheet. It is an input because the digest of the source
code covers only Python."""


@dataclass(frozen=True)
class PageParams:
    """What the page says about the run that it shows."""

    profile: str
    departures: tuple[Departure, ...] = ()
    normalized: bool = False
    """Whether the agents get normalised states."""
    confidence: float = BootstrapConfig.confidence
    """Confidence level of the intervals in the tables."""


@per_job
def draw_page(job: Job) -> Iterator[Event]:
    """Write a job's `index.html`, which needs no other file.

    Inputs: the directory `templates`, and the files of `results.FILES` that exist, each under its path from
    the repository's root. The page says which results are missing. Metrics: the numbers of `figures` and
    `tables`, and `not_run`, the number of figures and tables without results.

    Raises:
        UserError: a table lacks a column, or a picture is damaged.
    """
    found = Results(job.inputs, job.params.confidence)
    sections, not_run = _without_missing(make_sections(found, job.params))
    loader = jinja2.FileSystemLoader(job.inputs[TEMPLATES])
    environment = jinja2.Environment(
        loader=loader,
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters |= {"code": _code, "breakable": _breakable}
    blocks = [block for section in sections for block in (*section.blocks, *section.details)]
    html = environment.get_template("page.html").render(
        opening=opening(found),
        sections=sections,
        tables=_downloads(found, blocks),
        not_run=not_run,
        citation=citation(found, job.params.profile),
        profile=job.params.profile,
    )
    (job.output / "index.html").write_text(html, encoding="utf-8")
    figures = [block for block in blocks if isinstance(block, Figure)]
    tables = sum(isinstance(block, Table) for block in blocks)
    _write_charts(figures, job.output / "figures")
    counts = {"figures": len(figures), "tables": tables, "not_run": len(not_run)}
    yield Metrics(0, {name: float(count) for name, count in counts.items()})


def _without_missing(sections: Sequence[Section]) -> tuple[list[Section], list[NotRun]]:
    """The sections that have something to show, and what is missing from all of them."""
    missing = [
        block
        for section in sections
        for block in (*section.blocks, *section.details)
        if isinstance(block, NotRun)
    ]

    def shown(blocks: Sequence[Block]) -> list[Block]:
        return [
            block.varied() if isinstance(block, Table) else block
            for block in blocks
            if not isinstance(block, NotRun)
        ]

    made = [replace(each, blocks=shown(each.blocks), details=shown(each.details)) for each in sections]
    return [each for each in made if each.anchor == "run" or _has_results(each)], missing


def _has_results(section: Section) -> bool:
    return any(isinstance(block, Figure | Table) for block in (*section.blocks, *section.details))


def _code(text: str) -> Markup:
    """Escape a text for HTML, and set what is between backticks as code."""
    return Markup(re.sub("`([^`]+)`", r"<code>\1</code>", str(escape(text))))


def _breakable(text: str) -> Markup:
    """:func:`_code`, where a line may break after the slashes of a name."""
    return Markup(re.sub(r"(?<=\w)/(?=\w)", "/<wbr>", _code(text)))


def _write_charts(figures: Sequence[Figure], directory: Path) -> None:
    """Write each chart as an SVG file of its own, named by the number of its figure on the page."""
    directory.mkdir()
    for number, figure in enumerate(figures, start=1):
        charts = [panel.source.partition(SVG)[2] for panel in figure.panels if panel.source.startswith(SVG)]
        for i, chart in enumerate(charts):
            letter = ascii_lowercase[i] if len(charts) > 1 else ""
            (directory / f"figure-{number:02}{letter}.svg").write_bytes(b64decode(chart))


def make_sections(found: Results, params: PageParams) -> list[Section]:
    """Make the page's sections: five questions with answers, then the three reports."""
    return [
        what_was_run(found, params.profile, params.departures),
        did_pruning_keep_the_return(found, params.normalized),
        _what_did_it_cost(found),
        what_do_the_styles_look_like(found),
        which_compiler_is_fastest(found),
        arnob(found),
        hyyppa(found),
        shen(found),
        _next(),
    ]


def _what_did_it_cost(found: Results) -> Section:
    """Answer in bytes, which come from the sweep, and in milliseconds, which come from deployment."""
    stored, in_bytes = bytes_of_agents(found)
    timed, in_milliseconds = milliseconds_of_agents(found)
    answer = (
        "; ".join(filter(None, (stored, timed))) or "Not known: neither bytes nor milliseconds were measured"
    )
    title = "What does it cost in bytes and milliseconds?"
    return Section(
        "cost",
        title,
        f"{answer[0].upper()}{answer[1:]}.",
        [*in_bytes, *in_milliseconds],
        [rounded_values(found), *exported_bytes(found)],
    )


def _next() -> Section:
    """What a reader may do now."""
    rows = (
        ("Try the agents, the styles and the classifier in a browser", "`python -m pipelines serve`"),
        ("See the curves and files of each network in MLflow", "`make ui`"),
        ("Stylise a photo or video", "`python -m pipelines stylize -s STYLE -i photo.jpg -o out`"),
        ("Learn the style of a painting", "`python -m pipelines learn-style painting.jpg`"),
        ("Use a network without this repository", "docs/elsewhere.md"),
        ("Read what the paper's own settings give, or repeat it", "docs/study/README.md, `make study`"),
    )
    table = Table("What to do with these networks", ("to do", "command or page"), rows)
    return Section("next", "Next", "The networks of this run are ready to be used.", [table])


def _downloads(found: Results, blocks: Sequence[Block]) -> list[Download]:
    """The CSV files that the page's figures and tables are made from."""
    shown = {block.data for block in blocks if isinstance(block, Figure | Table)}
    paths = sorted(path for path in shown if path in found.files)
    return [embedded(path, found.files[path]) for path in paths]
