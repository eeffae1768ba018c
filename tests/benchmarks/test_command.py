"""A user's mistakes: one line and a status, no traceback, and no table begun."""

import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import safetensors.torch
import torch
from small_networks import save_agent

from benchmarks.command import positive, run_main
from pipelines.serving.models import Model
from singleshot.errors import UserError
from singleshot.export.onnx_model import GraphCard
from singleshot.io.tensor_file import read_tensor_file
from singleshot.sparse.packed import pack


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


@pytest.fixture
def agent(tmp_path):
    """The directory of one without an actor."""
    tensors = {"vae.e1.weight": torch.ones(2, 3), "vae.e1.bias": torch.zeros(2)}
    safetensors.torch.save_file(tensors, tmp_path / "agent.safetensors")
    return tmp_path


def test_a_user_error_is_one_line_and_status_1():
    code = "from benchmarks.command import run_main\nfrom singleshot.errors import UserError\n"
    code += "def main():\n    raise UserError('x: no such file')\nrun_main(main)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "error: x: no such file\n")


def test_other_errors_pass():
    with pytest.raises(ZeroDivisionError):
        run_main(lambda: print(1 / 0))


def test_user_errors_end_a_run():
    def main():
        raise UserError("wrong")

    with pytest.raises(SystemExit, match=r"^error: wrong$"):
        run_main(main)


def test_positive_takes_what_is_above_zero():
    assert positive(int)("3") == 3
    assert positive(float)("0.5") == 0.5


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "many"])
@pytest.mark.parametrize(
    ("benchmark", "option"),
    [("offline_rl_updates", "--rounds"), ("gpu_sweep", "--agents"), ("style_tiles", "--threads")],
)
def test_counts_are_positive_integers(refusal, benchmark, option, text):
    said = refusal(benchmark, option, text)
    assert option in said
    assert text in said


@pytest.mark.parametrize("option", ["--width", "--image-px", "--batch-size"])
def test_sizes_of_style_training_are_positive(refusal, option):
    assert f"argument {option}: 0 is not above 0" in refusal("style_training", option, "0")


def test_pictures_of_style_training_are_large_enough_for_vgg16(refusal):
    assert refusal("style_training", "--image-px", "7").startswith("error: --image-px 7: ")


@pytest.mark.parametrize("seconds", ["0", "-0.5", "nan"])
def test_seconds_of_serving_are_positive(refusal, seconds):
    assert f"argument --seconds: {seconds} is not above 0" in refusal("serving", "--seconds", seconds)


@pytest.mark.parametrize("benchmark", ["gpu_sweep", "style_training"])
def test_without_a_gpu_its_option_is_refused(refusal, benchmark, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert refusal(benchmark, "--device", "cuda").startswith("error: --device cuda: PyTorch finds no GPU")


def test_no_agents_are_refused_before_a_table_begins(refusal, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert refusal("checkpoint_sizes").startswith("error: models/agents: no BCQ agent")


def test_agents_to_measure_are_there(refusal, agent, tmp_path):
    missing = tmp_path / "none"
    said = refusal("checkpoint_sizes", agent, missing)
    assert said == f"error: {missing}/agent.safetensors: no such file; name agents' directories"


def test_agents_to_measure_have_networks(refusal, tmp_path):
    file = tmp_path / "agent.safetensors"
    safetensors.torch.save_file({"x": torch.ones(1)}, file)
    assert refusal("checkpoint_sizes", tmp_path).startswith(f"error: {file}: no network's weights")


def test_packed_inference_takes_agents_of_bcq(refusal, tmp_path):
    file = save_agent(tmp_path / "agent.safetensors", "bc", 0.9)
    assert "has no actor; name an agent of bcq" in refusal("packed_inference", file)


def test_packed_inference_packs_by_itself(refusal, tmp_path):
    packed = tmp_path / "agent.packed"
    packed.write_bytes(pack(read_tensor_file(save_agent(tmp_path / "agent.safetensors", "bcq", 0.9))))
    assert refusal("packed_inference", packed).startswith(f"error: {packed}: is packed; unpack it first")


def test_packed_inference_takes_pruned_agents(refusal, tmp_path):
    file = save_agent(tmp_path / "agent.safetensors", "bcq", 0)
    assert refusal("packed_inference", file).startswith(f"error: {file}: was never pruned")


@pytest.mark.parametrize("name", ["", "none"])
def test_packed_inference_takes_a_file(refusal, agent, name):
    assert refusal("packed_inference", agent / name).startswith(f"error: {agent / name}: not a file")


@pytest.mark.parametrize("content", [b"", b"damaged" * 9])
def test_packed_inference_refuses_damaged_files(refusal, tmp_path, content):
    file = tmp_path / "damaged"
    file.write_bytes(content)
    assert refusal("packed_inference", file).startswith(f"error: {file}: ")


def test_serving_needs_models(refusal, tmp_path):
    assert refusal("serving", "--models", tmp_path).startswith(f"error: {tmp_path}: no graph to serve")


def test_serving_names_the_models_it_lacks(refusal, tmp_path, monkeypatch):
    card = GraphCard("policy", "actor", "dense", 0.0, "unknown", "", (), ("action",), {"algorithm": "bc"})
    monkeypatch.setattr("pipelines.serving.models.find_models", lambda directory: [Model(card, directory)])
    assert refusal("serving", "--models", tmp_path).startswith(
        f"error: {tmp_path}: no graph of bc pruned, bcq dense,"
    )


def test_style_pruners_needs_what_stages_fetch(refusal, tmp_path, monkeypatch):
    (tmp_path / "conf").symlink_to(Path(__file__).parents[2] / "conf")
    monkeypatch.chdir(tmp_path)
    assert refusal("style_pruners") == ("error: models/backbones: not there; `dvc repro pictures` makes it")


def test_a_sweep_has_no_more_agents_than_its_grid(tmp_path):
    jobs = runpy.run_module("benchmarks.gpu_sweep")["_jobs"]
    with pytest.raises(UserError, match="--agents 66: the grid has 65"):
        jobs(tmp_path, 66, "cpu")


def test_a_sweep_measures_agents_together_beside_one(capsys, monkeypatch):
    main = runpy.run_module("benchmarks.gpu_sweep")["main"]
    monkeypatch.setitem(main.__globals__, "TRANSITIONS", 1000)
    monkeypatch.setattr("sys.argv", ["gpu_sweep", "--device", "cpu", "--agents", "2"])
    main()
    rows = [line.split("|")[1:-1] for line in capsys.readouterr().out.splitlines() if " calls " in line]
    together = {name.strip(): (float(rate), float(total)) for name, rate, total, *_ in rows}
    assert list(together) == ["one agent, calls", "2 agents, calls"]
    rate, total = together["2 agents, calls"]
    assert total == pytest.approx(2 * rate, abs=2)
