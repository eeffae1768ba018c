"""What was run, where, when and from which code, beside the scale of the papers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from singleshot.pruning.variant import percentage
from tasks.reporting import paper, results
from tasks.reporting.results import Results
from tasks.reporting.words import Row, count, number

Record = dict[str, Any]
"""What a stage says of its cells in `results/provenance`."""


@dataclass(frozen=True)
class Departure:
    """A setting of the sweep that differs from the paper's."""

    setting: str
    here: str
    paper: str


def read_records(found: Results) -> list[Record]:
    """The record of each stage, in the order in which they began."""
    return sorted(found.records(results.PROVENANCE), key=lambda r: (r["first"] or "", r["stage"]))


def machines(records: Sequence[Record]) -> list[str]:
    """The machines that computed."""
    return list(dict.fromkeys(_machine(machine) for record in records for machine in record["machines"]))


def commits(records: Sequence[Record]) -> list[str]:
    """The commits that were computed at."""
    return list(dict.fromkeys(commit[:10] for record in records for commit in record["commits"]))


def times(records: Sequence[Record]) -> list[str]:
    """When the first and the last cell were finished; empty if that is unknown."""
    first = min((record["first"] for record in records if record["first"]), default="")
    last = max((record["last"] for record in records if record["last"]), default="")
    return [_minute(first), _minute(last)] if first else []


def citation(records: Sequence[Record], profile: str) -> str:
    """This run as a BibTeX entry, with the commit that computed its latest results; empty if unknown."""
    known = [record for record in records if record["last"] and record["commits"]]
    if not known:
        return ""
    latest = max(known, key=lambda record: record["last"])
    return (
        "@software{singleshot,\n"
        "  author = {{The Singleshot maintainers}},\n"
        "  title = {Singleshot: single-shot pruning of offline-RL agents, style transfer and deployment},\n"
        f"  version = {{commit {latest['commits'][-1]}}},\n"
        f"  note = {{profile {profile}}},\n"
        f"  year = {{{latest['last'][:4]}}}\n"
        "}"
    )


def mixed_processors(records: Sequence[Record]) -> dict[str, list[str]]:
    """The stages whose cells were computed on processors that round differently, with these."""
    kinds = {record["stage"]: {_kind(machine) for machine in record["machines"]} for record in records}
    return {stage: sorted(found) for stage, found in kinds.items() if len(found) > 1}


def _kind(machine: dict[str, Any]) -> str:
    return machine["gpu"] or f"{machine['processor']} with {machine['instructions']}"


def _machine(machine: dict[str, Any]) -> str:
    gpu = machine["gpu"] or "no GPU"
    size = f"{count(machine['cores'], 'core')}, {number(machine['memory_gb'])} GB"
    return f"{machine['processor']} ({size}, {gpu})"


def _minute(moment: str) -> str:
    return f"{moment[:10]} {moment[11:16]} UTC"


def steps(records: Sequence[Record]) -> list[Row]:
    """The steps of the pipeline; seconds are sums over cells."""
    return [
        {
            "step": record["stage"],
            "cells": f"{record['cells']:,}",
            "seconds": number(record["seconds"]),
            "commit": ", ".join(commit[:10] for commit in record["commits"]),
            "last cell": _minute(record["last"]) if record["last"] else "",
        }
        for record in records
    ]


def packages(records: Sequence[Record]) -> list[Row]:
    """The software that cells were computed with."""
    versions = sorted({item for record in records for item in record["packages"].items()})
    return [{"package": package, "version": version} for package, version in versions]


def scale(found: Results, departures: Sequence[Departure]) -> list[Row]:
    """The scale of the experiments, here and in the papers."""
    scores, studies = found.table(results.SCORES), found.table(results.STUDIES)
    if scores.empty:
        return []
    pruned = scores.loc[scores["sparsity"] > 0, "sparsity"]
    here = sorted({percentage(sparsity) for sparsity in pruned}, key=float)
    low, high = (percentage(sparsity) for sparsity in paper.SWEEP_SPARSITIES)
    updates = scores.groupby("algorithm")["update"].max()
    rows = [
        ("environments", ", ".join(scores["environment"].unique()), ", ".join(paper.SWEEP_ENVIRONMENTS)),
        ("seeds", f"{scores['seed'].nunique()}", f"{paper.SWEEP_SEEDS}"),
        ("sparsities in %", ", ".join(here) or "none", f"{low} to {high}"),
        (
            "gradient updates",
            ", ".join(f"{n:,} ({algorithm.upper()})" for algorithm, n in updates.items()),
            f"{paper.SWEEP_UPDATES:,}",
        ),
        *((each.setting, each.here, each.paper) for each in departures),
        ("other settings", "the same", ""),
    ]
    if len(studies):
        sizes = ", ".join(f"{size}" for size in sorted(studies["size_px"].unique()))
        rows.append(("optimised pictures, px", sizes, "512 (figures), 256 to 1024 (Table I)"))
    return [
        dict(zip(("setting", "here", "papers, or their authors' code"), row, strict=True)) for row in rows
    ]
