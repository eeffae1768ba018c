import json

import pytest
import safetensors.torch
import torch

from singleshot.errors import UserError
from singleshot.sparse.packed import read_model
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
    with safetensors.safe_open(path, framework="np") as file:  # as anybody may read it
        header = json.loads(file.metadata()["style_model"])
    assert (header["style"], header["width"]) == ("waves", 4)


def test_equal_models_give_equal_bytes_in_any_layout(network, path):
    other = TransformerNet(4)
    other.load_state_dict(network.state_dict())
    other = other.to(memory_format=torch.channels_last)
    assert encode_model(other, CARD) == path.read_bytes()


def test_what_is_no_style_is_told(network, path):
    with pytest.raises(UserError, match=r"mosaic/model\.safetensors: .*waves"):
        load_model(path.parent.parent / "mosaic" / "model.safetensors")
    broken, whole = TransformerNet(4), path.read_bytes()
    broken.stages[0].bias.data[0] = torch.nan
    huge = {name: tensor.double() * 1e300 for name, tensor in network.state_dict().items()}
    large = {name: tensor.sign() * 3e38 for name, tensor in network.state_dict().items()}
    header = read_model(path).metadata
    for write in (
        lambda: path.write_bytes(whole[:-100]),
        lambda: safetensors.torch.save_file(network.state_dict(), path),
        lambda: safetensors.torch.save_file(network.state_dict(), path, {"style_model": '{"width": 4}'}),
        lambda: save_model(broken, CARD, path),
        lambda: safetensors.torch.save_file(huge, path, header),
        lambda: safetensors.torch.save_file(large, path, header),
    ):
        write()
        with pytest.raises(UserError, match=r"waves/model\.safetensors"):
            load_model(path)
