"""Task: the report page `index.html`, made only from a run's result files; equal files give equal bytes."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import jinja2

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

TEMPLATES = "templates"
"""The input directory with the template and style sheet. It is an input because the digest of the source
code covers only Python."""


@dataclass(frozen=True)
class PageParams:
    """What the page says about the run that it shows."""

    profile: str
    departures: tuple[Departure, ...] = ()
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
    sections = make_sections(found, job.params)
    loader = jinja2.FileSystemLoader(job.inputs[TEMPLATES])
    environment = jinja2.Environment(
        loader=loader,
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    blocks = [block for section in sections for block in (*section.blocks, *section.details)]
    html = environment.get_template("page.html").render(
        opening=opening(found),
        sections=sections,
        tables=_downloads(found, blocks),
        citation=citation(found, job.params.profile),
        profile=job.params.profile,
    )
    (job.output / "index.html").write_text(html, encoding="utf-8")
    kinds = {"figures": Figure, "tables": Table, "not_run": NotRun}
    counts = {name: sum(isinstance(block, kind) for block in blocks) for name, kind in kinds.items()}
    yield Metrics(0, {name: float(count) for name, count in counts.items()})


def make_sections(found: Results, params: PageParams) -> list[Section]:
    """Make the page's sections: five questions with answers, then the three reports."""
    return [
        what_was_run(found, params.profile, params.departures),
        did_pruning_keep_the_return(found),
        _what_did_it_cost(found),
        what_do_the_styles_look_like(found),
        which_compiler_is_fastest(found),
        arnob(found),
        hyyppa(found),
        shen(found),
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


def _downloads(found: Results, blocks: Sequence[Block]) -> list[Download]:
    """The CSV files that the page's figures and tables are made from."""
    shown = {block.data for block in blocks if isinstance(block, Figure | Table)}
    paths = sorted(path for path in shown if path in found.files)
    return [embedded(path, found.files[path]) for path in paths]
