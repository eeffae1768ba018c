"""A user's mistakes: one line and a status, no traceback, and no table begun."""

import runpy
import sys

import pytest

from benchmarks.command import positive, run_main
from singleshot.errors import UserError
from singleshot.io.onnx_model import GraphCard
from singleshot.serving.models import Model


@pytest.fixture
def refusal(monkeypatch, capsys):
    """What a benchmark says to these arguments, as it is run by `python -m`."""

    def of(benchmark, *arguments):
        monkeypatch.setattr(sys, "argv", [benchmark, *map(str, arguments)])
        with pytest.raises(SystemExit) as stopped:
            runpy.run_module(f"benchmarks.{benchmark}", run_name="__main__")
        said = capsys.readouterr()
        assert said.out == ""
        if stopped.value.code == 2:  # argparse's own, below its usage
            return said.err.splitlines()[-1]
        return stopped.value.code

    return of


def test_user_errors_end_a_run_and_others_pass():
    def main():
        raise UserError("wrong")

    with pytest.raises(SystemExit, match=r"^error: wrong$"):
        run_main(main)
    with pytest.raises(ZeroDivisionError):
        run_main(lambda: print(1 / 0))


def test_counts_are_positive_integers(refusal):
    assert positive(float)("0.5") == 0.5
    for text in ("0", "1.5"):
        said = refusal("offline_rl_updates", "--rounds", text)
        assert "--rounds" in said
        assert text in said


def test_serving_names_the_models_it_lacks(refusal, tmp_path, monkeypatch):
    monkeypatch.setattr("pipelines.stages.GRAPHS", tmp_path)
    assert refusal("serving").startswith(f"error: {tmp_path}: no graph to serve")
    card = GraphCard(kind="policy", cell="actor", inputs=(), outputs=("action",), details={"algorithm": "bc"})
    monkeypatch.setattr("singleshot.serving.models.find_models", lambda directory: [Model(card, directory)])
    assert refusal("serving").startswith(f"error: {tmp_path}: no graph of bc pruned, bcq dense,")
