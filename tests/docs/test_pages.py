"""The pages as a whole: up to date, with links that lead somewhere and commands that exist."""

import datetime
import os
import re
import subprocess
import sys
import tomllib

import pandas
import pytest
import typer
import yaml
from checkouts import ROOT
from pages import blocks

import pipelines.__main__ as command_line
from pipelines.config import reference
from pipelines.config.params import Config
from pipelines.stages import STAGES
from singleshot.command.app import app

PATTERNS = ("*.md", "docs/**/*.md", "benchmarks/*.md", "experts/*.md")
PAGES = sorted(path.relative_to(ROOT).as_posix() for each in PATTERNS for path in ROOT.glob(each))
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
SETUP, *RECIPES = (block for block in blocks("recipes") if block.language == "python")
COMMANDS = typer.main.get_command(command_line.app).commands


def without_code(page):
    return re.sub(r"^```.*?^```$", "", (ROOT / page).read_text(), flags=re.MULTILINE | re.DOTALL)


def added_stages(text):
    """The stages that a page adds to dvc.yaml."""
    return re.findall(
        r"^  (\w+):$", "".join(re.findall(r"^```yaml dvc.yaml\n(.*?)^```$", text, re.M | re.S)), re.M
    )


def anchor(heading):
    """As GitHub makes it of a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    assert not re.search(r"^ *<!-- [a-z0-9-]+ -->\S", (ROOT / page).read_text(), re.MULTILINE), (
        "HTML, no Markdown"
    )
    for link in LINK.findall(without_code(page)):
        if re.match(r"\w+:", link):
            continue
        path, _, fragment = link.partition("#")
        target = (ROOT / page).parent / path if path else ROOT / page
        assert target.exists(), f"{page}: {link}"
        if fragment:
            headings = re.findall(
                r"^#+ (.*)$", without_code(target.resolve().relative_to(ROOT)), re.MULTILINE
            )
            assert fragment in map(anchor, headings), f"{page}: {link}"


@pytest.mark.parametrize("page", PAGES)
def test_commands_in_pages_exist_with_their_options(page):
    text = (ROOT / page).read_text()
    for program, line in re.findall(r"(python -m pipelines|(?:\$ |`)singleshot) +([^\n`]+)", text):
        commands = COMMANDS if "pipelines" in program else typer.main.get_command(app).commands
        name, *words = line.split()
        if name in ("COMMAND", "STAGE", "TOOL", "--help") or name.replace("-", "_") in added_stages(text):
            continue
        assert name in commands, f"{page}: {line}"
        options = {option for parameter in commands[name].params for option in parameter.opts}
        given = {word for word in words if re.fullmatch(r"--[a-z-]+", word)}
        assert given <= options | {"--help"}, f"{page}: {line}"


@pytest.mark.parametrize("page", PAGES)
def test_make_targets_and_stages_in_pages_exist(page):
    text = (ROOT / page).read_text()
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"(?:^\$ |`)make ([a-z-]+)", text, re.MULTILINE)) <= targets, page
    stages = {*STAGES, *added_stages(text)}
    for command in re.findall(r"(?:^\$ .*?|`)dvc repro([^`\n#]*)", text, re.MULTILINE):
        named = {word for word in command.split() if not word.startswith("-")}
        assert named <= stages, f"{page}: dvc repro{command}"


def test_the_reference_of_the_configuration_is_up_to_date(monkeypatch):
    monkeypatch.chdir(ROOT)
    assert reference.PAGE.read_text() == reference.render(), "run `make docs`"


def test_the_reference_has_every_key_of_params_yaml():
    told = {key.name for group in reference.groups(Config) for key in group.keys}
    composed = pandas.json_normalize(yaml.safe_load((ROOT / "params.yaml").read_text())).columns
    for key in composed:
        name = re.sub(r"(sources|studies|d4rl|environments)\.\w+\.", r"\1.NAME.", key)  # keys that users name
        assert any(name == known or name.startswith(f"{known}.") for known in told), key
    assert "offline_rl.algorithms.bcq.tau" in composed


def test_what_the_reference_says_of_a_key():
    keys = {key.name: key for group in reference.groups(Config) for key in group.keys}
    tau = keys["offline_rl.algorithms.bcq.tau"]
    assert (tau.type, tau.meaning.split()[0]) == ("number > 0 and ≤ 1", "Fraction")
    assert keys["executor.kind"].type == "`local` or `ray`"
    assert keys["style.photos.limit"].type == "integer ≥ 1 or null"
    assert keys["offline_rl.sweep.seeds"].type == "list of integer ≥ 0, at least 1 long"
    pruners = keys["offline_rl.sweep.pruners"].type.partition("known are ")[2].split(", ")
    assert {"grasp", "snip"} <= set(pruners)


def test_the_citation_is_of_this_version():
    """By the Citation File Format 1.2.0: its required keys, and what they may hold."""
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation.keys() >= {"authors", "cff-version", "message", "title"}
    released = f"## {citation['version']} (unreleased)" not in (ROOT / "CHANGELOG.md").read_text()
    assert released == isinstance(citation.get("date-released"), datetime.date)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert (citation["version"], citation["license"]) == (project["version"], project["license"])
    for work in (citation, *citation["references"]):
        people = ({"name"}, {"given-names", "family-names"})
        assert all(author.keys() in people for author in work["authors"]), work["title"]


def test_the_readme_is_short_and_its_python_runs_line_by_line(tmp_path):
    """As it does in a prompt; the weights of its last two networks are a twentieth of the first's."""
    text = (ROOT / "README.md").read_text()
    assert len(text.encode()) <= 7 * 1024
    (code,) = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    command = [sys.executable, "-i", "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r})"]
    done = subprocess.run(command, cwd=tmp_path, input=code, capture_output=True, text=True, check=True)
    assert "Traceback" not in done.stderr, done.stderr
    printed = re.findall(r"^(\w+): ([\d,]+) weights, loss (\d\.\d{3})$", done.stdout, re.MULTILINE)
    assert [row[:2] for row in printed] == [("dense", "70,912"), ("pruned", "3,546"), ("narrow", "3,550")]
    assert all(float(loss) < 0.2 for _, _, loss in printed)


@pytest.mark.parametrize("recipe", [recipe.text for recipe in RECIPES if not recipe.path])
def test_a_recipe_runs_and_leaves_a_pruned_network(recipe, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(SETUP.text + recipe, names)
    weights = [θ for θ in names.get("adapted", names["model"]).parameters() if θ.ndim > 1]
    assert sum(int(θ.count_nonzero()) for θ in weights) < 0.5 * sum(θ.numel() for θ in weights)


@pytest.mark.slow
@pytest.mark.parametrize("recipe", [recipe for recipe in RECIPES if recipe.path], ids=lambda own: own.path)
def test_two_processes_train_one_pruned_network(recipe, tmp_path):
    script = tmp_path / recipe.path
    script.write_text(recipe.text)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", script]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, env=os.environ | {"PYTHONPATH": str(ROOT)}
    )
    told = re.findall(r"process (\d): (\d+) weights", done.stdout)  # the two may write into one line
    assert sorted(told) == [("0", "210"), ("1", "210")]
