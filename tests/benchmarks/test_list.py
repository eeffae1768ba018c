"""The list of benchmarks, and the page that says what came out."""

import re
import runpy
from pathlib import Path

ROOT = Path(__file__).parents[2]
COMMAND = re.compile(r"python -m benchmarks\.(\w+)")


def test_what_is_listed_is_on_the_page_and_can_be_run(capsys):
    runpy.run_module("benchmarks", run_name="__main__")
    listed = set(COMMAND.findall(capsys.readouterr().out))
    assert listed == set(COMMAND.findall((ROOT / "benchmarks/README.md").read_text()))
    runnable = {path.stem for path in (ROOT / "benchmarks").glob("*.py") if "def main()" in path.read_text()}
    assert listed == runnable - {"__main__"}


def test_every_result_says_when_and_by_which_command():
    for page in (ROOT / "benchmarks/results").glob("*.md"):
        text = page.read_text()
        own = f"python -m benchmarks.{page.stem}" in text
        assert own or re.search(r"^    singleshot ", text, re.M), page  # or by what users call
        assert not own or (ROOT / f"benchmarks/{page.stem}.py").exists() or "at commit c4b9fad" in text, page
        assert re.search(r"\b20\d\d-\d\d-\d\d\b", text) or "not measured" in text.lower(), page
