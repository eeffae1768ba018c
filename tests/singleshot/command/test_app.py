import errno
import importlib
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import get_type_hints

import numpy as np
import onnx
import pytest
import safetensors.torch
import torch
import typer
from command_lines import assert_help_tells_all, assert_one_line, runner
from PIL import Image
from skimage.data import chelsea

from singleshot.__main__ import PACKAGES, main
from singleshot.command import app as command_line
from singleshot.export.model_files import open_network
from singleshot.export.stylizers import StylizerName
from singleshot.io.images import CAPTION_PX
from singleshot.io.onnx_model import AgentScore
from singleshot.io.to_onnx import card_of, to_onnx
from singleshot.rl.agents import Agent, AgentSpec, dense_masks, initial_networks, make_algorithm
from singleshot.rl.algorithms.bc import BCConfig
from singleshot.rl.environments import LOCOMOTION, Environment, FileEnvironment
from singleshot.style import shipped


@pytest.fixture
def run(monkeypatch, capsys):
    return runner(command_line.main, "singleshot", monkeypatch, capsys)


@pytest.fixture
def agent(tmp_path):
    """The file of an agent that has learnt nothing."""
    spec = AgentSpec("Hopper", "bc", "dense", 0.0, seed=0)
    algorithm = make_algorithm(spec, BCConfig(), 11, 3)
    networks = {name: stack.agent(0) for name, stack in initial_networks(algorithm, [0]).items()}
    own = Agent(spec, algorithm, networks, dense_masks(algorithm), environment=LOCOMOTION["Hopper"])
    own.save(tmp_path / "agent.safetensors")
    return tmp_path / "agent.safetensors"


def test_every_command_tells_of_each_of_its_options(run):
    assert_help_tells_all(run, typer.main.get_command(command_line.app).commands)


def test_too_little_memory_is_one_line(run, agent, monkeypatch):
    for error in (MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory")):
        monkeypatch.setattr("singleshot.command.pack.inspect_file", lambda _, error=error: raised(error))
        assert_one_line(run("inspect", agent), "out of memory", type(error).__name__)


def raised(error):
    raise error


def test_an_agent_and_its_graph_play(run, agent, tmp_path):
    video = tmp_path / "hopper.mp4"
    status, out, _ = run("evaluate", agent.parent, "--episodes", 2, "--video", video)
    assert status == 0
    assert f"{video}: an episode with a return of " in out
    assert video.read_bytes()[4:8] == b"ftyp"
    returns = [float(value) for value in re.findall(r"^episode +\d+ +return +(\S+)$", out, re.M)]
    (mean,) = re.findall(r"^mean return (\S+) ± \S+ \(standard deviation over 2 episodes\)$", out, re.M)
    (score,) = re.findall(r"^D4RL score (\S+) ± \S+ \(0 is a random policy, 100 D4RL's expert\)$", out, re.M)
    assert float(mean) == pytest.approx(sum(returns) / 2, abs=0.1)
    # D4RL: a random Hopper has -20.272305, an expert 3234.3
    assert float(score) == pytest.approx(100 * (float(mean) + 20.272305) / 3254.572305, abs=0.06)
    policy, cell = open_network(agent), "Hopper/bc/dense/seed-0"
    card = card_of(policy, cell, "0", agent, AgentScore("D4RL score", 5.0, 4.0, 6.0, 5, 5.5))
    onnx.save(to_onnx(policy, card, 20), tmp_path / "policy.onnx")
    status, of_graph, _ = run("act", tmp_path / "policy.onnx", "--episodes", 1)
    assert (status, "±" in of_graph) == (0, False)
    mean = "5.0 (95 % interval 4.0 to 6.0) as the mean of the last 5"
    assert of_graph.splitlines()[-1] == f"in training: D4RL score 5.5 in its last evaluation, {mean}"


def test_an_environment_that_the_user_names_takes_no_arguments_of_the_file(capsys):
    in_file = FileEnvironment("own:Own-v0", {"drag": 0.1}, 7)
    assert command_line._where(None, in_file) is in_file
    assert command_line._where("own:Own-v0", in_file) == Environment("own:Own-v0", {}, 7)
    assert "without the arguments that the file gives: drag" in capsys.readouterr().out


def test_what_a_file_says_gives_the_terminal_no_orders():
    """A title, a cleared screen, text from right to left, and half a character; not our colours and bars."""
    code = (
        "import typer; from singleshot.command.terminal import run; app = typer.Typer()\n"
        r"said = '\x1b]0;title\x07 \x1b[2J \x9b2J \u202e \udce4' + ' \x1b[1mbold\x1b[0m \r50%\x1b[A é\t'"
        "\napp.command('say')(lambda: print(said))\napp.command('other')(lambda: 1)\nrun(app)"
    )
    done = subprocess.run([sys.executable, "-c", code, "say"], capture_output=True, check=True)
    shown = r"\x1b]0;title\x07 \x1b[2J \x9b2J \u202e \udce4" + " \x1b[1mbold\x1b[0m \r50%\x1b[A é\t\n"
    assert done.stdout.decode() == shown


def test_files_of_no_use_are_named_before_anything_is_played(run, agent, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    safetensors.torch.save_file({"weight": torch.ones(2)}, "other.safetensors")
    Path("folder.mp4").mkdir()
    Path("there.mp4").write_bytes(b"mine")
    node = onnx.helper.make_node("Identity", ["x"], ["y"])
    x, y = (onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1]) for name in "xy")
    graph = onnx.helper.make_graph([node], "foreign", [x], [y])
    opset = [onnx.helper.make_opsetid("", 20)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=opset, ir_version=10), "foreign.onnx")
    for command, name, *words in [
        ("evaluate", "models/seed-9", "no such file"),
        ("evaluate", "other.safetensors"),
        *(("evaluate agent.safetensors --video", f"{name}.mp4") for name in ("no/video", "folder", "there")),
        ("evaluate agent.safetensors --video", "video.gif"),
        ("act", "none.onnx"),
        ("act", "foreign.onnx", "kind"),
        ("inspect", f"{'x' * 300}.packed", "too long"),
    ]:
        result = run(*command.split(), name)
        assert_one_line(result, name, *words)
        assert result[1] == ""
    assert Path("there.mp4").read_bytes() == b"mine"

    def refuse(*_):  # root, who runs tests in a container, may read all
        raise PermissionError(errno.EACCES, "Permission denied", "photos/private.jpg")

    os.mkfifo(tmp_path / "pipe.safetensors")  # nobody writes into it
    assert_one_line(run("inspect", tmp_path / "pipe.safetensors"), "pipe.safetensors", "no such file")
    monkeypatch.setattr("singleshot.command.pack.inspect_file", refuse)
    assert_one_line(run("inspect", tmp_path), "photos/private.jpg", "Permission")


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["--help"], 0, ""),
        (["--version"], 0, ""),
        (["styles"], 0, ""),
        (["stylize", "--style", "waves", "none.jpg"], 1, "none.jpg: no such file"),
        (["stylize", "--style", "waev", "photo.jpg"], 1, "no style 'waev'; did you mean waves?"),
        (["learn-style", "none.jpg"], 1, "none.jpg: no such file"),
        (["evaluate", "halfcheeta"], 1, "did you mean halfcheetah-snip?"),
    ],
)
def test_help_and_mistakes_in_arguments_need_no_pytorch(arguments, status, said):
    """Which takes seconds to import."""
    done = without("torch", *arguments)
    assert (done.returncode, said in done.stderr) == (status, True)


def test_a_missing_package_is_told_with_its_extra_where_it_is_needed():
    done = without("av", "stylize", "--style", "waves", "README.md")
    assert done.stderr == "error: the package av is missing; in the checkout, run: pip install '.[style]'\n"


@pytest.mark.parametrize(
    ("missing", "command", "extra"),
    [
        ("typer", "--help", "style"),
        ("onnx", "stylize", "export"),
        ("openvino", "stylize", "runtimes"),
        ("onnx", "act", "rl,export"),
    ],
)
def test_the_extra_is_that_of_the_package(missing, command, extra, monkeypatch, capsys):
    monkeypatch.setattr(command_line, "main", lambda: importlib.import_module(missing))
    monkeypatch.setitem(sys.modules, missing, None)
    assert_one_line(runner(main, "singleshot", monkeypatch, capsys)(command), missing, f"'.[{extra}]'")


def without(package, *arguments):
    """The command in a Python that lacks a package."""
    program = f"import sys; sys.modules['{package}'] = None; from singleshot.__main__ import main; main()"
    return subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True)


def test_extras_have_the_packages_for_which_they_are_asked():
    project = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]
    for package, extra in PACKAGES.items():
        lines = {name: project["optional-dependencies"][name] for name in (extra, "style")}
        there = {name: any(line.startswith(package) for line in lines[name]) for name in lines}
        assert there == {extra: True, "style": False}


@pytest.mark.parametrize("arguments", ["--help", "styles", "stylize --style waves photo.png --output -"])
def test_a_full_disk_behind_the_output_is_one_line(arguments, tmp_path):
    Image.new("RGB", (32, 32)).save(tmp_path / "photo.png")
    command = [sys.executable, "-m", "singleshot", *arguments.split()]
    environment = os.environ | {"PYTHONPATH": str(Path.cwd())}
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert (done.returncode, done.stderr) == (1, "error: standard output: No space left on device\n")


def test_styles_are_listed_with_where_they_are(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("mine", "waves"):
        Path("styles", name).mkdir(parents=True)
        Path("styles", name, "model.safetensors").touch()
    told = dict(line.split(maxsplit=1) for line in run("styles")[1].splitlines())
    assert told["mine"] == "styles/mine/model.safetensors"
    assert told["mosaic"] == "comes with the package"
    assert told["waves"] == "styles/waves/model.safetensors, which hides the one of the package"


def test_a_sheet_shows_a_photo_in_each_style(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run("styles", "-o", "sheet.jpg")
    height, width = chelsea().shape[:2]
    with Image.open("sheet.jpg") as sheet:
        columns, rows = sheet.width / width, sheet.height / (height + CAPTION_PX)
        assert columns % 1 == rows % 1 == 0
        assert 0 <= columns * rows - (1 + len(shipped.FILES)) < columns  # the photo and each style
        photo = np.asarray(sheet)[:height, :width].astype(int)
    assert np.abs(photo - chelsea()).mean() < 3
    status, *_, said = run("styles", "-o", "sheet.jpg")
    assert status == 1
    assert "sheet.jpg: give --output a new name" in said


def test_the_command_and_the_runtimes_of_videos_agree():
    """The command's own list, as importing theirs would import PyTorch before `--help` is printed."""
    assert get_type_hints(command_line.stylize)["runtime"] == StylizerName | None
