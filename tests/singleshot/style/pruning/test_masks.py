import io

import pytest
import safetensors.torch
import torch
from small_networks import style_inputs

from singleshot.errors import UserError
from singleshot.style.datasets.photos import PhotoSet
from singleshot.style.johnson import JohnsonConfig, TrainStyleParams, initial_network, open_loss
from singleshot.style.model_file import load_model
from singleshot.style.pruning.masks import StyleMask, load_mask, prunable
from tasks.job import Checkpoint, Job
from tasks.train_style import train_style

TINY = JohnsonConfig(
    width=4, image_px=32, style_px=32, batch_size=2, batches=4, augment=True, checkpoint_every=2
)
ORIGIN = {"pruner": "random", "sparsity": 0.7}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    return style_inputs(tmp_path_factory.mktemp("inputs"))


@pytest.fixture
def mask(tmp_path):
    generator = torch.Generator().manual_seed(3)
    weights = prunable(initial_network(4, 0))
    kept = {name: torch.rand(θ.shape, generator=generator) >= 0.7 for name, θ in weights.items()}
    kept["stages.9.body.0.weight"][:] = False  # a whole layer
    StyleMask(ORIGIN, kept).save(tmp_path / "mask.safetensors")
    return tmp_path / "mask.safetensors"


def job(inputs, output, mask=None, checkpoint=None, **settings):
    output.mkdir(exist_ok=True)
    params = TrainStyleParams("stripes", JohnsonConfig(**{**vars(TINY), **settings}), 0)
    masked = {} if mask is None else {"mask": mask}
    return Job(params, inputs | masked, output, checkpoint=checkpoint)


def test_pruned_weights_and_their_moments_stay_zero_and_others_train(inputs, mask, tmp_path):
    events = list(train_style([job(inputs, tmp_path / "a", mask)]))
    network, card = load_model(tmp_path / "a" / "model.safetensors")
    kept, initial = load_mask(mask).kept, prunable(initial_network(4, 0))
    for name, θ in prunable(network).items():
        assert not θ[~kept[name]].any()
        if "stages.9." not in name:  # the first block, in which one layer is gone
            moved = (θ != initial[name])[kept[name]]
            assert float(moved.float().mean()) > 0.9
    assert card.settings["pruning"] == ORIGIN
    (checkpoint,) = [event for event in events if isinstance(event, Checkpoint)]
    state = torch.load(io.BytesIO(checkpoint.state), weights_only=True)
    names = [name for name, _ in network.named_parameters()]
    for i, moments in state["optimizer"]["state"].items():
        if names[i] in kept:
            assert not moments["exp_avg"][~kept[names[i]]].any()
            assert not moments["exp_avg_sq"][~kept[names[i]]].any()


def test_the_first_gradient_is_the_dense_one_of_the_masked_network(inputs, mask, tmp_path):
    """One step of Adam moves each kept weight by its gradient's sign, as that of a dense network whose pruned
    weights are zero would."""
    list(train_style([job(inputs, tmp_path / "a", mask, batches=1, precision="float32")]))
    trained, _ = load_model(tmp_path / "a" / "model.safetensors")
    kept = load_mask(mask).kept

    network = initial_network(4, 0)
    for name, θ in prunable(network).items():
        θ.data *= kept[name]
    loss = open_loss(inputs, TINY, "cpu", torch.float32)
    x = PhotoSet.open(inputs["photos"]).batch(0, 0, 2, 32, True)
    loss(network(x), loss.network.content(x)).total.backward()
    name = "stages.22.weight"
    moved = dict(trained.named_parameters())[name] - prunable(network)[name]
    gradient = prunable(network)[name].grad
    assert torch.equal(moved.sign()[kept[name]], -gradient.sign()[kept[name]])


def test_interrupted_training_under_a_mask_ends_with_the_same_bytes(inputs, mask, tmp_path):
    events = list(train_style([job(inputs, tmp_path / "a", mask)]))
    (checkpoint,) = [event.state for event in events if isinstance(event, Checkpoint)]
    list(train_style([job(inputs, tmp_path / "b", mask, checkpoint)]))
    files = [(tmp_path / name / "model.safetensors").read_bytes() for name in "ab"]
    assert files[0] == files[1]


def test_a_mask_of_everything_changes_nothing_but_the_card(inputs, tmp_path):
    weights = prunable(initial_network(4, 0))
    StyleMask(ORIGIN, {name: torch.ones_like(θ, dtype=torch.bool) for name, θ in weights.items()}).save(
        tmp_path / "mask.safetensors"
    )
    list(
        train_style([job(inputs, tmp_path / "a"), job(inputs, tmp_path / "b", tmp_path / "mask.safetensors")])
    )
    (dense, card), (masked, pruned) = (load_model(tmp_path / name / "model.safetensors") for name in "ab")
    assert all(torch.equal(θ, masked.state_dict()[name]) for name, θ in dense.state_dict().items())
    assert dict(pruned.settings) == {**card.settings, "pruning": ORIGIN}


def test_another_network_s_mask(inputs, mask, tmp_path):
    with pytest.raises(UserError, match=r"mask\.safetensors: not the mask of a network of width 8"):
        list(train_style([job(inputs, tmp_path / "a", mask, width=8)]))


def test_files_that_hold_no_mask(tmp_path):
    path = tmp_path / "mask.safetensors"
    with pytest.raises(UserError, match=r"mask\.safetensors: no such file; make it again"):
        load_mask(path)
    path.write_bytes(b"12345")
    with pytest.raises(UserError, match=r"mask\.safetensors: not a whole safetensors file .*; make it again"):
        load_mask(path)
    safetensors.torch.save_file({"a": torch.ones(1)}, path)
    with pytest.raises(UserError, match="not the mask of a style's network"):
        load_mask(path)
