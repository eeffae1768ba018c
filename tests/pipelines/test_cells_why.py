"""`python -m pipelines cells why NAME` on a small sweep: paintings, which need no other stage."""

import importlib.metadata
import json
import re

import pytest
from checkouts import ROOT
from PIL import Image

from pipelines.cli import cells as command
from pipelines.cli.cells import explain
from pipelines.config.params import compose, load_config
from pipelines.engine.cells import CellStore
from pipelines.engine.execution import ExecutorConfig
from pipelines.engine.fanout import fan_out
from pipelines.engine.sweep import Recorder
from pipelines.stages import fetch_images
from singleshot.errors import UserError

NAME = "paintings/swirls"


@pytest.fixture
def store(tmp_path, monkeypatch):
    """The cells of a working directory with a configuration."""
    (tmp_path / "conf").symlink_to(ROOT / "conf")
    monkeypatch.chdir(tmp_path)
    return CellStore(tmp_path / "cells")


def draw(store, *overrides):
    """Compute the painting."""
    compose(["profile=smoke", *overrides], params := store.root.with_name("params.yaml"))
    cells = [cell for cell in fetch_images.cells(load_config(params).style) if cell.name == NAME]
    fan_out(cells, ExecutorConfig(kind="local"), store, Recorder())


@pytest.fixture
def why(store, monkeypatch, capsys):
    """What the command says with some overrides, where the profile's painting has been drawn, alone."""
    params = store.root.with_name("params.yaml")
    draw(store)
    monkeypatch.setattr(command, "open_store", lambda root: store)
    monkeypatch.setattr(command, "load_config", lambda: load_config(params))

    def ask(*overrides, name=NAME, forge=None):
        compose(["profile=smoke", *overrides], params)
        for manifest in store.root.glob("*/cell.json"):
            if forge:
                manifest.chmod(0o644)
                manifest.write_text(json.dumps(forge(json.loads(manifest.read_text()))))
        capsys.readouterr()
        explain(name)
        return capsys.readouterr().out.splitlines()

    return ask


def test_of_a_computed_cell_nothing_differs(why):
    (line,) = why()
    assert line.startswith(f"fetch_images/{NAME}: computed 20")
    assert "nothing differs" in line
    assert why(name=f"fetch_images/{NAME}") == [line]
    assert why(name=NAME.replace("/", "-")) == [line]  # as in the names of registered networks


def test_a_parameter_a_file_and_a_package_are_named(why):
    def older(manifest):
        manifest["packages"]["numpy"] = "1.0"
        manifest["source"]["singleshot.style.datasets.paintings"] = "0" * 64
        manifest["source"]["singleshot.style.gone"] = "0" * 64
        return manifest

    head, *lines = why("style.paintings.long_side_px=77", forge=older)
    assert head.startswith(f"fetch_images/{NAME}: not computed; the nearest cell, {NAME} of 20")
    numpy = importlib.metadata.version("numpy")
    assert [line.removeprefix(f"fetch_images/{NAME}:   ") for line in lines] == [
        f"package numpy is {numpy}, was 1.0",
        f"parameter long_side_px is 77, was {lines[1].rpartition(' ')[2]}",
        "source file singleshot/style/datasets/paintings.py was edited",
        "source file singleshot/style/gone.py is gone",
    ]


def test_a_file_of_ones_own_with_another_content_is_named(why, store):
    override = "style.paintings.sources.swirls.source=mine.png"
    Image.new("RGB", (64, 48), "navy").save("mine.png")
    draw(store, override)
    (line,) = why(override)
    assert "nothing differs" in line
    Image.new("RGB", (64, 48), "teal").save("mine.png")
    head, line = why(override)
    assert head.startswith(f"fetch_images/{NAME}: not computed; the nearest cell, {NAME} of 20")
    assert line == f"fetch_images/{NAME}:   input painting has another content"


def test_the_nearest_cell_may_have_another_name(why):
    head, *lines = why(name="paintings/waves")
    assert f"the nearest cell, {NAME} of" in head
    assert any("parameter name is waves, was swirls" in line for line in lines)


def test_an_equal_cell_comes_before_an_older_one_of_the_same_name(why, store):
    """The equal one was computed under another name."""

    def rename(manifest):
        equal = manifest["params"]["long_side_px"] == 77
        return manifest | {"name": "paintings/before"} if equal else manifest

    draw(store, "style.paintings.long_side_px=77")
    (line,) = why("style.paintings.long_side_px=77", forge=rename)
    assert line.startswith(f"fetch_images/{NAME}: computed 20")
    assert "nothing differs" in line


def test_a_cell_whose_inputs_are_not_there_yet(why):
    line = next(line for line in why(name="Hopper/bc/dense/seed-0") if line.startswith("train/"))
    assert "not computed, and an input is missing: data/offline_rl/Hopper" in line


def test_an_unknown_name_is_met_with_near_ones(why):
    with pytest.raises(
        UserError, match=r"no step has a cell 'paintings/swirl'; there are fetch_images/paintings/swirls, "
    ):
        why(name="paintings/swirl")


def test_a_slip_in_a_steps_name_is_met_with_the_step(why):
    with pytest.raises(UserError, match=r"no step has a cell 'trian'; there are train, "):
        why(name="trian")


def test_the_name_of_a_step_sums_up_its_cells(why):
    head, first, *lines = why(name="fetch_images")
    total = int(re.fullmatch(r"1 of (\d+) cells are computed with today's settings and code", head)[1])
    assert re.match(r"\d+ not, such as fetch_images/\S+: not computed", first)
    told = [int(line.split()[0]) for line in (first, *lines) if " not, such as " in line]
    assert sum(told) == total - 1
    assert len(told) == len({line for line in (first, *lines) if not line.startswith(" ")})
