"""`python -m pipelines pack`, `unpack` and `inspect`, as a user calls them."""

import resource
from pathlib import Path

import pytest
import safetensors.torch
import torch
from typer.testing import CliRunner

from pipelines.cli.app import app
from singleshot.errors import UserError
from singleshot.sparse import packed as packed_files

RUNNER = CliRunner()


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """The working directory, which has no model."""
    path = tmp_path / "here"
    path.mkdir()
    monkeypatch.chdir(path)
    return path


@pytest.fixture
def agent(tmp_path):
    """A file like an agent's, of one layer: a mask, its weights and a bias."""
    mask = torch.zeros(20, 10, dtype=torch.bool)
    mask[3, 4], mask[5, 6] = True, True
    weight = torch.where(mask, 1.5, 0.0)
    path = tmp_path / "models" / "agent.safetensors"
    path.parent.mkdir()
    tensors = {"pi.0.mask": mask, "pi.0.weight": weight, "pi.0.bias": torch.ones(20)}
    safetensors.torch.save_file(tensors, path, {"agent": "{}"})
    return path


def run(*arguments):
    result = RUNNER.invoke(app, [str(argument) for argument in arguments])
    if result.exception:
        raise result.exception
    return result.output


@pytest.mark.parametrize("values", ["raw", "exponents"])
def test_what_is_packed_is_unpacked_to_the_same_file(agent, here, values):
    """And by default nothing is written beside the model, where DVC would delete it."""
    run("pack", agent, "--values", values)
    assert "every value as before packing" in run("unpack", "agent.packed")
    assert (here / "agent.safetensors").read_bytes() == agent.read_bytes()
    assert [path.name for path in sorted(here.iterdir())] == ["agent.packed", "agent.safetensors"]
    assert list(agent.parent.iterdir()) == [agent]


def test_pack_says_what_it_compares_with(agent, here):
    """220 floats take 880 bytes without the mask's 200."""
    said = run("pack", agent)
    size, packed = agent.stat().st_size, (here / "agent.packed").stat().st_size
    assert f"{size / packed:.1f} times fewer than {agent} ({size:,})" in said
    assert f"{880 / packed:.1f} than its tensors without masks (880)" in said


def test_rounded_values_unpack_to_a_model_file(agent, tmp_path):
    run("pack", agent, "--values", "int8", "-o", tmp_path / "small")
    said = run("unpack", tmp_path / "small", "-o", tmp_path / "again.safetensors")
    assert "rounded them to int8" in said
    tensors = safetensors.torch.load_file(tmp_path / "again.safetensors")
    torch.testing.assert_close(tensors, safetensors.torch.load_file(agent))


def test_inspect_tells_what_each_layer_keeps_in_either_file(agent, tmp_path):
    """Of 200 weights 2: log2 (200 · 199 / 2) = 14.3 bits for the mask, 8 bytes for the values."""
    run("pack", agent, "-o", tmp_path / "small")
    lines = {path: run("inspect", path).splitlines() for path in (agent, tmp_path / "small")}
    (plain, packed) = (
        next(line.split() for line in lines[path] if line.startswith("pi.0.weight")) for path in lines
    )
    assert plain == ["pi.0.weight", "20×10", "2", "99.00%", "200", "(2)", "800", "(8)"]
    assert packed[:4] == plain[:4]
    assert packed[5:] == ["(2)", "8", "(8)"]
    assert any("safetensors" in line and f"{agent.stat().st_size:,} bytes" in line for line in lines[agent])
    assert any("values raw" in line for line in lines[tmp_path / "small"])


def test_mistakes_are_one_line(agent, here):
    run("pack", agent)
    packed = here / "agent.packed"
    with pytest.raises(UserError, match=r"agent\.packed: already packed"):
        run("pack", packed)
    with pytest.raises(UserError, match=r"agent\.safetensors: not a packed file"):
        run("unpack", agent)
    with pytest.raises(UserError, match="its folder does not exist"):
        run("pack", agent, "-o", here / "nowhere" / "small")
    for command, source in (("pack", agent), ("unpack", packed)):
        with pytest.raises(UserError, match=r"-: a model can't go to standard output; name a file"):
            run(command, source, "-o", "-")
    assert not Path("-").exists()
    for command in ("pack", "unpack", "inspect"):
        with pytest.raises(UserError, match=r"none: no such file"):
            run(command, here / "none")
        with pytest.raises(
            UserError, match=r"models: is a folder; name a file in it, as .*agent\.safetensors"
        ):
            run(command, agent.parent)
    text = here / "text.packed"
    text.write_text("some text\n")
    with pytest.raises(UserError, match=r"text\.packed: neither a packed nor a whole safetensors file"):
        run("inspect", text)
    graph = here / "policy.onnx"
    graph.write_bytes(b"\x08\x09")
    with pytest.raises(UserError, match=r"policy\.onnx: an ONNX graph; name the safetensors file"):
        run("inspect", graph)
    with pytest.raises(UserError, match=r"text\.packed: not a whole safetensors file"):
        run("pack", text, "-o", "small")
    packed.write_bytes(packed.read_bytes()[:-1])
    with pytest.raises(UserError, match=r"agent\.packed: its checksum"):
        run("inspect", packed)


@pytest.mark.parametrize("command", ["pack", "inspect"])
def test_a_model_that_could_not_be_unpacked_is_not_packed(agent, here, monkeypatch, command):
    """It has 200 weights, their mask and 20 biases."""
    monkeypatch.setattr(packed_files, "MOST_ENTRIES", 420)
    run("pack", agent, "-o", "whole")
    run("unpack", "whole")
    monkeypatch.setattr(packed_files, "MOST_ENTRIES", 419)
    with pytest.raises(UserError, match=rf"^{agent}: its tensors have more than 419 entries; name a smaller"):
        run(command, agent)
    assert not (here / "agent.packed").exists()


def test_what_is_there_stays_and_no_one_is_told_to_remove_it(agent, here, monkeypatch):
    run("pack", agent)
    monkeypatch.chdir(agent.parent)
    content = agent.read_bytes()
    packed = here / "agent.packed"
    for arguments in (("unpack", packed), ("pack", agent, "-o", agent), ("unpack", packed, "-o", packed)):
        with pytest.raises(UserError, match="exists already") as refused:
            run(*arguments)
        assert "remove" not in str(refused.value)
    assert agent.read_bytes() == content


def test_a_failed_write_is_one_line_and_leaves_nothing(agent, here):
    """As of a full disk: the kernel takes the first 64 bytes of a file and no more."""
    run("pack", agent)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64, limits[1]))
    try:
        with pytest.raises(UserError, match=r"^small: File too large"):
            run("pack", agent, "-o", "small")
        with pytest.raises(UserError, match=r"^agent\.safetensors: File too large"):
            run("unpack", "agent.packed")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [path.name for path in here.iterdir()] == ["agent.packed"]


@pytest.mark.parametrize("name", ["/proc/small", "x" * 300])
def test_names_that_can_not_be_written_are_one_line(agent, name):
    with pytest.raises(UserError, match=f"^{name}: (No such file|File name too long)"):
        run("pack", agent, "-o", name)


def test_an_empty_model_is_inspected(here):
    safetensors.torch.save_file({}, "empty.safetensors")
    assert "empty.safetensors: safetensors" in run("inspect", "empty.safetensors")


def test_tools_that_want_a_model_tell_how_to_unpack_one(agent, here):
    run("pack", agent)
    (here / "photo.png").touch()
    for arguments in (
        ("evaluate-agent", "agent.packed"),
        ("stylize", "-s", "agent.packed", "-i", "photo.png", "-o", "y"),
    ):
        with pytest.raises(UserError, match=r"`python -m pipelines unpack agent\.packed`"):
            run(*arguments)


def test_a_value_that_does_not_fit_is_named_with_its_file(here):
    safetensors.torch.save_file({"a.weight": torch.full((2, 2), 1e9)}, "model.safetensors")
    with pytest.raises(UserError, match=r"model\.safetensors: a\.weight: 1e\+09 is beyond float16"):
        run("pack", "model.safetensors", "--values", "fp16")
    assert not (here / "model.packed").exists()
