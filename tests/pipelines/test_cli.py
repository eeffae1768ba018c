import errno
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import get_type_hints

import onnx
import pytest
import safetensors.torch
import torch
import typer
from checkouts import ROOT

import pipelines.cli.app as command_line
from pipelines.cli import tools
from pipelines.config.params import compose, configuration
from singleshot.errors import UserError
from singleshot.export.model_files import open_network
from singleshot.export.onnx_model import AgentScore
from singleshot.export.stylizers import StylizerName
from singleshot.export.to_onnx import card_of, to_onnx
from singleshot.rl.agents import Agent, AgentSpec, dense_masks, initial_networks, make_algorithm
from singleshot.rl.algorithms.bc import BCConfig
from singleshot.rl.environments import LOCOMOTION, Environment, FileEnvironment

COMMANDS = typer.main.get_command(command_line.app).commands


@pytest.fixture
def run(monkeypatch, capsys):
    """Run a command line in this process; its status, its output and what it said of an error."""
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("NO_COLOR", "1")

    def run_command(*arguments):
        monkeypatch.setattr(sys, "argv", ["python -m pipelines", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            command_line.main()
        out, err = capsys.readouterr()
        if isinstance(ended.value.code, str):  # what Python prints when it ends with a text
            return 1, out, f"{err}{ended.value.code}\n"
        return ended.value.code or 0, out, err

    return run_command


@pytest.fixture
def agent(tmp_path):
    """The file of an agent that has learnt nothing."""
    spec = AgentSpec("Hopper", "bc", "dense", 0.0, seed=0)
    algorithm = make_algorithm(spec, BCConfig(), 11, 3)
    networks = {name: stack.agent(0) for name, stack in initial_networks(algorithm, [0]).items()}
    own = Agent(spec, algorithm, networks, dense_masks(algorithm), environment=LOCOMOTION["Hopper"])
    own.save(tmp_path / "agent.safetensors")
    return tmp_path / "agent.safetensors"


def assert_one_line(result, *words):
    status, _, error = result
    assert status == 1
    assert re.fullmatch(r"error: [^\n]+\n", error), error
    for word in words:
        assert str(word) in error


def test_every_command_tells_of_each_of_its_options(run):
    _, commands, _ = run("--help")
    for name in COMMANDS:
        assert f" {name} " in commands
        status, out, _ = run(name, "--help")
        assert status == 0
        assert "<bool>" not in out  # as if a flag took a value
        for parameter in COMMANDS[name].params:
            assert parameter.param_type_name == "argument" or parameter.opts[0] in out
            assert parameter.name == "help" or parameter.help
        assert COMMANDS[name].help.partition(".")[0][:40] in out
    status, _, error = run("agents", "--no-such-option")
    assert (status, "Usage: " in error) == (2, True)


def test_a_mistake_of_the_configuration_is_one_line(run, tmp_path, monkeypatch):
    shutil.copytree(ROOT / "conf", tmp_path / "conf")
    (tmp_path / "experts").symlink_to(ROOT / "experts")
    monkeypatch.chdir(tmp_path)
    params = tmp_path / "params.yaml"
    compose(["profile=smoke", "executor=local"])
    before = params.read_bytes()
    assert_one_line(run("params", "profle=smoke"), "conf: no key profle", "did you mean profile?")
    assert params.read_bytes() == before
    painting = "style.paintings.sources.swirls.source=/no/painting.jpg"
    assert run("params", "profile=smoke", painting)[0] == 0
    assert_one_line(run("check-config"), "/no/painting.jpg: no such file", "paintings/swirls")
    params.unlink()
    assert_one_line(run("agents"), "params.yaml", "make params")


def test_an_agent_and_its_graph_play_beside_their_scores_in_training(run, agent, tmp_path):
    lines = ["environment,algorithm,pruner,sparsity,seed,update,d4rl_score", "Hopper,bc,dense,0,0,50,90"]
    lines += [f"Hopper,bc,dense,0,0,{update},{score}" for score, update in enumerate(range(60, 110, 10))]
    agent.with_name("scores.csv").write_text("\n".join(lines), "utf-8")
    video = tmp_path / "hopper.mp4"
    status, out, _ = run("evaluate-agent", agent.parent, "--episodes", 2, "--video", video)
    assert status == 0
    assert f"{video}: an episode with a return of " in out
    assert video.read_bytes()[4:8] == b"ftyp"
    returns = [float(value) for value in re.findall(r"^episode +\d+ +return +(\S+)$", out, re.M)]
    (mean,) = re.findall(r"^mean return (\S+) ± \S+ \(standard deviation over 2 episodes\)$", out, re.M)
    (score,) = re.findall(r"^D4RL score (\S+) ± \S+ \(0 is a random policy, 100 D4RL's expert\)$", out, re.M)
    assert float(mean) == pytest.approx(sum(returns) / 2, abs=0.1)
    # D4RL: a random Hopper has -20.272305, an expert 3234.3
    assert float(score) == pytest.approx(100 * (float(mean) + 20.272305) / 3254.572305, abs=0.06)
    # The last five have mean 2 and variance 2.5; t(0.975, 4) = 2.776, so half the interval is 1.96.
    assert "in training: D4RL score 4.0 in its last evaluation, 2.0 (95 % interval 0.0 to 4.0) as the" in out
    policy, cell = open_network(agent), "Hopper/bc/dense/seed-0"
    card = card_of(policy, cell, "0", agent, AgentScore("D4RL score", 5.0, 4.0, 6.0, 5, 5.5))
    onnx.save(to_onnx(policy, card, 20), tmp_path / "policy.onnx")
    status, of_graph, _ = run("act", "--model", tmp_path / "policy.onnx", "--episodes", 1)
    assert (status, "±" in of_graph) == (0, False)
    mean = "5.0 (95 % interval 4.0 to 6.0) as the mean of the last 5"
    assert of_graph.splitlines()[-1] == f"in training: D4RL score 5.5 in its last evaluation, {mean}"


def test_the_user_names_the_module_of_an_environment_not_the_file(tmp_path, monkeypatch):
    named = configuration("+offline_rl.environments.Own={id: own:Own-v0, kwargs: {drag: 0.1}}")
    monkeypatch.chdir(tmp_path)
    in_file = FileEnvironment("own:Own-v0", {"drag": 0.1})
    assert tools._where(None, in_file) is in_file
    assert tools._where("own:Own-v0", in_file) == Environment("own:Own-v0", {"drag": 0.1})
    with pytest.raises(UserError, match="xml_file"):
        tools._where("Hopper-v5", FileEnvironment("Hopper-v5", {"xml_file": "robot.xml"}))
    (tmp_path / "params.yaml").touch()
    monkeypatch.setattr("pipelines.catalog.agents.load_config", lambda _path: named)
    assert tools._where(None, in_file) == Environment("own:Own-v0", {"drag": 0.1})
    assert isinstance(tools._where(None, FileEnvironment("own:Own-v0")), FileEnvironment)


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
        ("evaluate-agent", "models/seed-9", "no such file"),
        ("evaluate-agent", "other.safetensors"),
        *(
            ("evaluate-agent agent.safetensors --video", f"{name}.mp4")
            for name in ("no/video", "folder", "there")
        ),
        ("evaluate-agent agent.safetensors --video", "video.gif"),
        ("act --model", "none.onnx"),
        ("act --model", "foreign.onnx", "kind"),
        ("inspect", f"{'x' * 300}.packed", "too long"),
    ]:
        result = run(*command.split(), name)
        assert_one_line(result, name, *words)
        assert result[1] == ""
    assert Path("there.mp4").read_bytes() == b"mine"

    def refuse(*_):  # root, who runs tests in a container, may read all
        raise PermissionError(errno.EACCES, "Permission denied", "photos/private.jpg")

    monkeypatch.setattr("pipelines.cli.pack.inspect_file", refuse)
    assert_one_line(run("inspect", tmp_path), "photos/private.jpg", "Permission")


def test_a_python_without_the_packages_is_told_how_to_get_them():
    """Such as the system's, which has none with the option -S."""
    command = [sys.executable, "-S", "-m", "pipelines", "--help"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert_one_line((done.returncode, done.stdout, done.stderr), "has no package", "make install")


BASH = """
source pipelines/completion.sh
COMP_WORDS=(python -m "$@"); COMP_CWORD=$(($# + 1))
_pipelines_complete
printf '%s\\n' "${COMPREPLY[@]}"
"""


def test_tab_completes_commands_options_and_choices():
    environment = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"}
    for typed, offered in [
        ("pipelines measure", ["measure-agents", "measure-styles"]),
        ("pipelines stylize --stro", ["--stroke"]),
        ("json.tool --he", [""]),  # another module's, which is none of our business
    ]:
        command = ["bash", "-c", BASH, "bash", *typed.split()]
        told = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
        assert (told.stderr, told.stdout.splitlines()) == ("", offered)


def test_the_command_and_the_runtimes_of_videos_agree():
    """The command's own list, as importing theirs would import PyTorch before `--help` is printed."""
    assert get_type_hints(tools.stylize)["runtime"] == StylizerName | None
