import json

import pytest
import safetensors.torch
import torch

from singleshot.errors import UserError
from singleshot.style.model_file import ModelCard, encode_model, load_model, save_model
from singleshot.style.transformer_net import TransformerNet

CARD = ModelCard(
    style="waves",
    style_sha256="0" * 64,
    photos="8 photos",
    steps=300,
    settings={"johnson": {"width": 4, "batches": None}, "seed": 0},
    scores={"style_ratio": 0.25},
    commit="abc",
)


@pytest.fixture(scope="module")
def network():
    torch.manual_seed(0)
    return TransformerNet(4)


@pytest.fixture
def path(network, tmp_path):
    path = tmp_path / "waves" / "model.safetensors"
    save_model(network, CARD, path)
    return path


def test_round_trip(network, path):
    loaded, card = load_model(path)
    assert card == CARD
    picture = torch.rand(1, 3, 20, 24)
    assert torch.equal(loaded(picture), network(picture))
    assert not loaded.training


def test_equal_models_give_equal_bytes_in_any_layout(network, path):
    other = TransformerNet(4)
    other.load_state_dict(network.state_dict())
    other = other.to(memory_format=torch.channels_last)
    assert encode_model(other, CARD) == path.read_bytes()


def test_the_card_can_be_read_without_this_code(path):
    with safetensors.safe_open(path, framework="np") as file:
        header = json.loads(file.metadata()["style_model"])
    assert header["style"] == "waves"
    assert header["width"] == 4


def test_a_missing_style_names_those_there_are(path):
    with pytest.raises(UserError, match=r"mosaic/model\.safetensors: no such file; there are waves"):
        load_model(path.parent.parent / "mosaic" / "model.safetensors")


def test_a_truncated_file(path):
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(UserError, match="not a whole safetensors file"):
        load_model(path)


@pytest.mark.parametrize(
    "metadata", [None, {"style_model": "{}"}, {"style_model": json.dumps({"width": 4, "style": "waves"})}]
)
def test_another_safetensors_file(network, path, metadata):
    safetensors.torch.save_file(network.state_dict(), path, metadata)
    with pytest.raises(UserError, match="not a style's model"):
        load_model(path)


def test_weights_that_are_not_numbers(path):
    broken = TransformerNet(4)
    broken.stages[0].bias.data[0] = torch.nan
    save_model(broken, CARD, path)
    with pytest.raises(UserError, match="NaN"):
        load_model(path)
