"""`singleshot pack`, `unpack` and `inspect`, as a user calls them."""

import pytest
import safetensors.torch
import torch
from typer.testing import CliRunner

from singleshot.command.app import app
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


def test_what_is_packed_is_unpacked_to_the_same_file(agent, here):
    """And by default nothing is written beside the model, where DVC would delete it.

    220 floats take 880 bytes without the mask's 200.
    """
    said = run("pack", agent, "--values", "exponents")
    size, packed = agent.stat().st_size, (here / "agent.packed").stat().st_size
    assert f"{size / packed:.1f} times fewer than {agent} ({size:,})" in said
    assert f"{880 / packed:.1f} than its tensors without masks (880)" in said
    assert "rounded" not in run("unpack", "agent.packed")
    assert (here / "agent.safetensors").read_bytes() == agent.read_bytes()
    assert [path.name for path in sorted(here.iterdir())] == ["agent.packed", "agent.safetensors"]
    assert list(agent.parent.iterdir()) == [agent]
    run("pack", agent, "--values", "int8", "-o", "small")
    assert "rounded to int8" in run("unpack", "small", "-o", "again")


def test_inspect_tells_what_each_layer_keeps_in_either_file(agent, tmp_path):
    """Of 200 weights 2: 8 bytes for the values."""
    run("pack", agent, "-o", tmp_path / "small")
    plain, packed = (run("inspect", path).splitlines() for path in (agent, tmp_path / "small"))
    assert plain[:3] == packed[:3]
    row = packed[2].split()
    assert row[:4] + row[5:] == ["pi.0.weight", "20×10", "2", "99.00%", "8"]
    assert any(f"safetensors of {agent.stat().st_size:,} bytes" in line for line in plain)
    assert any("values raw" in line for line in packed)


def test_mistakes_name_the_file_and_write_nothing(agent, here):
    run("pack", agent)
    packed, text = here / "agent.packed", here / "text.packed"
    text.write_text("some text\n")
    (here / "damaged.packed").write_bytes(packed.read_bytes()[:-1])
    content = {path: path.read_bytes() for path in (agent, *here.iterdir())}
    for command, source, output in [
        ("pack", packed, ""),
        ("unpack", agent, ""),
        ("unpack", here / "damaged.packed", ""),
        ("inspect", text, ""),
        ("pack", agent, agent),
        ("unpack", packed, packed),
    ]:
        with pytest.raises(UserError, match=f"^{output or source}: "):
            run(command, source, *(["-o", output] if output else []))
    assert {path: path.read_bytes() for path in (agent, *here.iterdir())} == content


def test_a_model_that_could_not_be_unpacked_is_not_packed(here):
    model, entries = here / "large.safetensors", packed_files.MOST_ENTRIES + 1
    safetensors.torch.save_file({"w": torch.zeros(entries, dtype=torch.uint8)}, model)
    with pytest.raises(UserError, match=rf"^{model}: .*{entries - 1:,}"):
        run("pack", model)
    assert [*here.iterdir()] == [model]
