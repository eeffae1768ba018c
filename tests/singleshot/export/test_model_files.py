import pytest
import safetensors.torch
import torch
from small_networks import save_agent, save_style

from singleshot.errors import UserError
from singleshot.export.classifier import fetch_classifier, save_classifier
from singleshot.export.model_files import open_network


def test_each_kind_of_file_is_recognised(tmp_path):
    agent = open_network(save_agent(tmp_path / "a.safetensors", "bc", 0.9), "masked")
    style = open_network(save_style(tmp_path / "b.safetensors"), "dense")
    save_classifier(*fetch_classifier("efficientnet_lite0", "random"), tmp_path / "c.safetensors")
    classifier = open_network(tmp_path / "c.safetensors", "dense")

    assert [network.kind for network in (agent, style, classifier)] == ["policy", "style", "classifier"]
    assert style.details == {"style": "dots"}
    assert style.inputs[0].shape == ("batch", 3, "height", "width")
    pictures = torch.rand(2, 3, 17, 22)
    assert style.module(pictures).shape == pictures.shape
    assert classifier.inputs[0].shape == ("batch", 3, 224, 224)
    assert len(classifier.details["labels"]) == 1000
    assert not any(network.module.training for network in (agent, style, classifier))


def test_other_files(tmp_path):
    with pytest.raises(UserError, match="no such file"):
        open_network(tmp_path / "missing.safetensors", "dense")
    (tmp_path / "cut.safetensors").write_bytes(b"12345")
    with pytest.raises(UserError, match="not a whole safetensors file"):
        open_network(tmp_path / "cut.safetensors", "dense")
    safetensors.torch.save_file({"a": torch.ones(1)}, tmp_path / "other.safetensors")
    with pytest.raises(UserError, match="neither an agent nor a style nor a classifier"):
        open_network(tmp_path / "other.safetensors", "dense")


def test_styles_are_dense(tmp_path):
    with pytest.raises(UserError, match="no compacted form"):
        open_network(save_style(tmp_path / "b.safetensors"), "compacted")
