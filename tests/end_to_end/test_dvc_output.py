"""What DVC shows of a run: its metrics, and its plots by the templates in .dvc/plots."""

import json
import re

import pytest


@pytest.fixture(scope="module")
def plots(finished_smoke):
    """By name, each plot's Vega-Lite specification as DVC fills it in."""
    output = finished_smoke.run("dvc", "plots", "show", "--json")
    answer = json.loads(output[output.index("{") :])
    assert "errors" not in answer
    return {name: plot["content"] for name, (plot,) in answer["data"].items()}


def parts(specification):
    """Every object of a specification."""
    if isinstance(specification, dict):
        yield specification
    children = specification.values() if isinstance(specification, dict) else specification
    for child in children:
        if isinstance(child, dict | list):
            yield from parts(child)


def used_fields(specification):
    for part in parts(specification):
        yield from [part["field"]] if "field" in part else []
        yield from part.get("groupby", [])
        for expression in (part.get("filter"), part.get("calculate")):
            if isinstance(expression, str):
                yield from re.findall(r"datum\.(\w+)|datum\['(\w+)'\]", expression)


def test_every_plot_has_data_and_uses_columns_that_it_has(plots):
    for name, filled in plots.items():
        rows = filled["data"]["values"]
        assert rows, name
        plot = {key: value for key, value in filled.items() if key != "data"}
        made = {part["as"] for part in parts(plot) if "as" in part}
        used = {field if isinstance(field, str) else "".join(field) for field in used_fields(plot)}
        assert len(used) > 4
        assert used <= made | set(rows[0]), name
        assert "DVC_METRIC" not in json.dumps(plot), name
    assert len(plots["learning_curves"]["data"]["values"]) == 24  # every evaluation


def test_metrics_are_shown_by_file(finished_smoke):
    output = finished_smoke.run("dvc", "metrics", "show", "--json")
    files = json.loads(output[output.index("{") :])[""]["data"]
    retention = files["results/offline_rl/evaluation.json"]["data"]
    summary = files["results/offline_rl/summary.json"]["data"]
    assert retention["retention/all/bcq/grasp-0.95"] == pytest.approx(
        summary["Hopper/bcq/grasp-0.95"] / summary["Hopper/bcq/dense"], abs=0.01
    )
