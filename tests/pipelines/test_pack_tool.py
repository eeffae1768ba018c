"""`python -m pipelines pack`, `unpack` and `inspect`, as a user calls them."""

import pytest
import safetensors.torch
import torch
from typer.testing import CliRunner

from pipelines.__main__ import app
from tasks.errors import UserError

RUNNER = CliRunner()


@pytest.fixture
def agent(tmp_path):
    """A file like an agent's, of one layer: a mask, its weights and a bias."""
    mask = torch.zeros(20, 10, dtype=torch.bool)
    mask[3, 4], mask[5, 6] = True, True
    weight = torch.where(mask, 1.5, 0.0)
    path = tmp_path / "agent.safetensors"
    tensors = {"pi.0.mask": mask, "pi.0.weight": weight, "pi.0.bias": torch.ones(20)}
    safetensors.torch.save_file(tensors, path, {"agent": "{}"})
    return path


def run(*arguments):
    result = RUNNER.invoke(app, [str(argument) for argument in arguments])
    if result.exception:
        raise result.exception
    return result.output


@pytest.mark.parametrize("values", ["raw", "exponents"])
def test_what_is_packed_is_unpacked_to_the_same_file(agent, tmp_path, values):
    content = agent.read_bytes()
    run("pack", agent, "--values", values)
    agent.unlink()
    run("unpack", tmp_path / "agent.packed")
    assert agent.read_bytes() == content


def test_rounded_values_unpack_to_a_model_file(agent, tmp_path):
    run("pack", agent, "--values", "int8", "-o", tmp_path / "small")
    run("unpack", tmp_path / "small", "-o", tmp_path / "again.safetensors")
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


def test_mistakes_are_one_line(agent, tmp_path):
    run("pack", agent)
    packed = tmp_path / "agent.packed"
    with pytest.raises(UserError, match=r"agent\.packed: is there already"):
        run("pack", agent)
    with pytest.raises(UserError, match=r"agent\.safetensors: is there already"):
        run("unpack", packed)
    with pytest.raises(UserError, match="its folder does not exist"):
        run("pack", agent, "-o", tmp_path / "nowhere" / "small")
    with pytest.raises(UserError, match=r"agent\.packed: not a whole safetensors file"):
        run("pack", packed, "-o", tmp_path / "twice")
    with pytest.raises(UserError, match=r"agent\.safetensors: not a packed file"):
        run("unpack", agent, "-o", tmp_path / "plain")
    for command in ("pack", "unpack", "inspect"):
        with pytest.raises(UserError, match=r"none: [Nn]o such file"):
            run(command, tmp_path / "none")
    packed.write_bytes(packed.read_bytes()[:-1])
    with pytest.raises(UserError, match=r"agent\.packed: its checksum"):
        run("inspect", packed)


def test_a_value_that_does_not_fit_is_named_with_its_file(tmp_path):
    path = tmp_path / "model.safetensors"
    safetensors.torch.save_file({"a.weight": torch.full((2, 2), 1e9)}, path)
    with pytest.raises(UserError, match=r"model\.safetensors: a\.weight: 1e\+09 is beyond float16"):
        run("pack", path, "--values", "fp16")
    assert not path.with_suffix(".packed").exists()
