"""The page's first answer: what was run, where, when and from which code, beside the scale of the papers."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from singleshot.pruning.variant import percentage
from tasks.reporting import paper, results
from tasks.reporting.blocks import Caution, NotRun, Section, Table, count, duration, listing, number
from tasks.reporting.results import Results

SCALE = "Scale of the experiments, here and in the papers"


@dataclass(frozen=True)
class Departure:
    """A setting of the sweep that differs from the paper's."""

    setting: str
    here: str
    paper: str


def what_was_run(found: Results, profile: str, departures: Sequence[Departure]) -> Section:
    """Section `run`, from `results/provenance` and the sizes of the tables."""
    records = sorted(found.records(results.PROVENANCE), key=lambda r: (r["first"] or "", r["stage"]))
    if not records:
        answer = f"Profile {profile}; where and when it was computed was not recorded."
        missing = NotRun(
            "Commit, hardware and time",
            "Every stage writes to results/provenance/; to get it, run dvc repro",
        )
        return Section("run", "What was run?", answer, [missing], [_scale(found, departures)])
    details = [_scale(found, departures), _stages(records), _packages(records)]
    return Section("run", "What was run?", _answer(records, profile), list(_mixed(records)), details)


def _answer(records: Sequence[dict[str, Any]], profile: str) -> str:
    cells = count(sum(record["cells"] for record in records), "cell")
    steps = count(len(records), "step")
    seconds = sum(record["seconds"] for record in records)
    machines = dict.fromkeys(_machine(machine) for record in records for machine in record["machines"])
    known = dict.fromkeys(commit[:10] for record in records for commit in record["commits"])
    first = min((record["first"] for record in records if record["first"]), default="")
    last = max((record["last"] for record in records if record["last"]), default="")
    when = f", finished between {_minute(first)} and {_minute(last)}" if first else ""
    return (
        f"Profile {profile}: {cells} of {steps}, {duration(seconds)} of computing on "
        f"{listing(machines or ['an unrecorded machine'])}, at commit {listing(known or ['unknown'])}{when}."
    )


def citation(found: Results, profile: str) -> str:
    """This run as a BibTeX entry, with the commit that computed its latest results; empty if unknown."""
    records = [record for record in found.records(results.PROVENANCE) if record["last"] and record["commits"]]
    if not records:
        return ""
    latest = max(records, key=lambda record: record["last"])
    return (
        "@software{singleshot,\n"
        "  author = {{The Singleshot maintainers}},\n"
        "  title = {Singleshot: single-shot pruning of offline-RL agents, style transfer and deployment},\n"
        f"  version = {{commit {latest['commits'][-1]}}},\n"
        f"  note = {{profile {profile}}},\n"
        f"  year = {{{latest['last'][:4]}}}\n"
        "}"
    )


def _mixed(records: Sequence[dict[str, Any]]) -> Iterator[Caution]:
    """A caution about stages whose cells were computed on processors that round differently, if any."""
    kinds = {
        record["stage"]: sorted({_kind(machine) for machine in record["machines"]}) for record in records
    }
    mixed = {stage: found for stage, found in kinds.items() if len(found) > 1}
    if not mixed:
        return
    names = listing(sorted({kind for found in mixed.values() for kind in found}))
    yield Caution(
        f"Cells of {listing(mixed)} were computed on several kinds of processor ({names}), which round "
        "float32 differently: part of a difference between such cells may come from that."
    )


def _kind(machine: dict[str, Any]) -> str:
    return machine["gpu"] or f"{machine['processor']} with {machine['instructions']}"


def _machine(machine: dict[str, Any]) -> str:
    gpu = machine["gpu"] or "no GPU"
    size = f"{count(machine['cores'], 'core')}, {number(machine['memory_gb'])} GB"
    return f"{machine['processor']} ({size}, {gpu})"


def _minute(moment: str) -> str:
    return f"{moment[:10]} {moment[11:16]} UTC"


def _stages(records: Sequence[dict[str, Any]]) -> Table:
    rows = [
        (
            record["stage"],
            f"{record['cells']:,}",
            number(record["seconds"]),
            ", ".join(commit[:10] for commit in record["commits"]),
            _minute(record["last"]) if record["last"] else "",
        )
        for record in records
    ]
    return Table(
        "The steps of the pipeline; seconds are sums over cells, each as measured when the cell was computed",
        ("step", "cells", "seconds", "commit", "last cell"),
        rows,
        numbers=("cells", "seconds"),
    )


def _packages(records: Sequence[dict[str, Any]]) -> Table:
    versions = sorted({item for record in records for item in record["packages"].items()})
    return Table("Software that the cells were computed with", ("package", "version"), versions)


def _scale(found: Results, departures: Sequence[Departure]) -> Table | NotRun:
    scores = found.table(results.SCORES)
    if scores.empty:
        return results.not_run(SCALE, results.SCORES)
    pruned = scores.loc[scores["sparsity"] > 0, "sparsity"]
    here = sorted({percentage(sparsity) for sparsity in pruned}, key=float)
    low, high = (percentage(sparsity) for sparsity in paper.SWEEP_SPARSITIES)
    rows = [
        (
            "environments",
            ", ".join(dict.fromkeys(scores["environment"])),
            ", ".join(paper.SWEEP_ENVIRONMENTS),
        ),
        ("seeds", f"{scores['seed'].nunique()}", f"{paper.SWEEP_SEEDS}"),
        ("sparsities in %", ", ".join(here) or "none", f"{low} to {high}"),
        (
            "gradient updates",
            ", ".join(
                f"{n:,} ({name.upper()})" for name, n in scores.groupby("algorithm")["update"].max().items()
            ),
            f"{paper.SWEEP_UPDATES:,}",
        ),
        *((each.setting, each.here, each.paper) for each in departures),
        ("other settings", "as in the papers, or in their authors' earlier code where these name none", ""),
    ]
    studies = found.table(results.STUDIES)
    if len(studies):
        sizes = ", ".join(f"{size}" for size in sorted(studies["size_px"].unique()))
        rows.append(("optimised pictures, px", sizes, "512 (figures), 256 to 1024 (Table I)"))
    return Table(SCALE, ("", "here", "papers"), rows)
