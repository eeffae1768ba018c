"""What was run, where, when and from which code."""

from collections.abc import Sequence
from typing import Any

from tasks.reporting import results
from tasks.reporting.results import Results
from tasks.reporting.words import Row, count, number

Record = dict[str, Any]
"""What a stage says of its cells in `results/provenance`."""


def read_records(found: Results) -> list[Record]:
    """The record of each stage, in the order in which they began."""
    return sorted(found.records(results.PROVENANCE), key=lambda r: (r["first"] or "", r["stage"]))


def machines(records: Sequence[Record]) -> list[str]:
    """The machines that computed."""
    return list(
        dict.fromkeys(
            f"{machine['processor']} ({count(machine['cores'], 'core')}, {number(machine['memory_gb'])} GB, "
            f"{machine['gpu'] or 'no GPU'})"
            for record in records
            for machine in record["machines"]
        )
    )


def commits(records: Sequence[Record]) -> list[str]:
    """The commits that were computed at."""
    return list(dict.fromkeys(commit[:10] for record in records for commit in record["commits"]))


def times(records: Sequence[Record]) -> list[str]:
    """When the first and the last cell were finished; empty if that is unknown."""
    moments = sorted(record[which] for record in records for which in ("first", "last") if record[which])
    return [_minute(moments[0]), _minute(moments[-1])] if moments else []


def mixed_processors(records: Sequence[Record]) -> dict[str, list[str]]:
    """The stages whose cells were computed on processors that round differently, with these."""
    kinds = {
        record["stage"]: {
            machine["gpu"] or f"{machine['processor']} with {machine['instructions']}"
            for machine in record["machines"]
        }
        for record in records
    }
    return {stage: sorted(found) for stage, found in kinds.items() if len(found) > 1}


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
