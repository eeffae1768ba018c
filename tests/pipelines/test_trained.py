"""Names of trained networks, as a user types or completes them."""

import pytest

from pipelines.cli import trained
from singleshot.errors import UserError


@pytest.fixture(autouse=True)
def checkout(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("models/styles/ink", "models/styles/ink/snip-0.95", "styles/mine", "styles/ink"):
        (tmp_path / name).mkdir(parents=True, exist_ok=True)
        (tmp_path / name / "model.safetensors").touch()
    return tmp_path


@pytest.mark.parametrize(
    ("given", "directory"),
    [
        ("mine", "styles/mine"),
        ("ink", "styles/ink"),  # the user's own comes first
        ("ink/snip-0.95", "models/styles/ink/snip-0.95"),
        ("ink-snip-0.95", "models/styles/ink/snip-0.95"),
        ("models/styles/ink", "models/styles/ink"),
        ("elsewhere/model.safetensors", "elsewhere"),
    ],
)
def test_a_style_is_known_by_each_of_its_names(given, directory):
    assert trained.style_model(given).as_posix() == f"{directory}/model.safetensors"


def test_a_wrong_name_is_told_with_the_nearest():
    with pytest.raises(
        UserError, match=r"no style 'mone' .*; did you mean mine; there are ink, ink/snip-0.95, mine$"
    ):
        trained.style_model("mone")


def test_names_are_completed(checkout):
    assert trained.complete_style("in") == ["ink", "ink/snip-0.95"]
    agent = checkout / "models/agents/Hopper/bc/dense/seed-0/agent.safetensors"
    agent.parent.mkdir(parents=True)
    agent.touch()
    assert trained.complete_agent("models/a") == ["models/agents/Hopper/bc/dense/seed-0"]
    graph = checkout / "models/onnx/a/b.onnx"
    graph.parent.mkdir(parents=True)
    graph.touch()
    assert trained.complete_graph("models/o") == ["models/onnx/a/b.onnx"]
