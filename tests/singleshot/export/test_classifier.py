"""The classifier of a package: its answers to known photos, its preprocessing against timm's and NumPy's."""

import numpy as np
import pytest
import safetensors.torch
import torch
from PIL import Image
from skimage.data import chelsea, coffee, rocket

from singleshot.errors import UserError
from singleshot.export.classifier import (
    PREPROCESSING,
    build,
    fetch_classifier,
    load_classifier,
    preprocess,
    preprocess_as_reported,
    save_classifier,
    top,
)
from singleshot.io.vision import models  # before timm, which imports torchvision itself

LITE0 = PREPROCESSING["efficientnet_lite0"]


@pytest.fixture(scope="module")
def lite0():
    return fetch_classifier("efficientnet_lite0", "package")


def tensor(pixels):
    return torch.from_numpy(pixels.copy()).permute(2, 0, 1).float() / 255


def answers(lite0, picture):
    module, card = lite0
    with torch.inference_mode():
        return dict(top(module(picture[None])[0], card.labels))


@pytest.mark.parametrize(
    ("pixels", "labels", "probability"),
    [
        (chelsea(), {"tiger cat", "Egyptian cat"}, 0.7),
        (coffee(), {"espresso"}, 0.9),
        (rocket(), {"missile"}, 0.2),
    ],
)
def test_photos_are_what_they_show(lite0, pixels, labels, probability):
    found = answers(lite0, preprocess(tensor(pixels), LITE0))
    assert set(list(found)[: len(labels)]) == labels
    assert sum(found[label] for label in labels) > probability


def test_probabilities_are_by_hand_and_fall():
    # exp(ln 2) : exp(0) : exp(0)
    found = top(torch.tensor([0.0, np.log(2), 0.0]), "abc", k=3)
    assert found[0][0] == "b"
    assert [probability for _, probability in found] == pytest.approx([0.5, 0.25, 0.25])


@pytest.mark.parametrize("pixels", [chelsea(), coffee()[:, :401], coffee()[:100, :180], coffee()[:, :137]])
def test_preprocessing_is_timms(pixels):
    """Landscape, odd and upright sizes, and one that has to be enlarged."""
    from timm.data import create_transform, resolve_data_config

    expected = create_transform(**resolve_data_config({}, model=build("efficientnet_lite0")))(
        Image.fromarray(pixels)
    )
    found = preprocess(tensor(pixels), LITE0)
    assert found.shape == expected.shape
    levels = (
        (found - expected).abs() * 255 / 2
    )  # of grey; torch's weights and Pillow's are rounded differently
    assert levels.max() < 2.1
    assert (levels > 0.5).float().mean() < 0.01


def test_preprocessing_of_resnet50_is_torchvisions():
    transform = models.ResNet50_Weights.IMAGENET1K_V1.transforms()
    expected = transform(Image.fromarray(chelsea()))
    found = preprocess(tensor(chelsea()), PREPROCESSING["resnet50"])
    torch.testing.assert_close(found, expected, rtol=0, atol=1.5 / 255 / 0.224)


def reported(img):
    """The report's own lines, but for reading the file."""
    img_data = np.expand_dims(np.swapaxes(img, 0, 2), axis=0)
    mean_vec = np.array([0.485, 0.456, 0.406])
    stddev_vec = np.array([0.229, 0.224, 0.225])
    norm_img_data = np.zeros(img_data.shape).astype("float32")
    for i in range(img_data.shape[0]):
        norm_img_data[i, :, :] = (img_data[i, :, :] / 255 - mean_vec[i]) / stddev_vec[i]
    return norm_img_data


def test_the_reports_preprocessing_is_its_formula():
    pixels = np.random.default_rng(0).integers(0, 256, (256, 256, 3), np.uint8)
    expected = reported(pixels[16:240, 16:240])  # of 256 px nothing is scaled; the middle is 224
    found = preprocess_as_reported(tensor(pixels), LITE0)[None]
    torch.testing.assert_close(found, torch.from_numpy(expected), rtol=0, atol=1e-6)


def test_a_strip_takes_little_memory():
    assert preprocess(torch.rand(3, 1, 200_000), LITE0).shape == (3, 224, 224)


def test_labels_are_timms_but_tell_all_classes_apart(lite0):
    from timm.data import ImageNetInfo

    labels = lite0[1].labels
    imagenet = ImageNetInfo()
    theirs = [imagenet.index_to_description(i).split(",")[0] for i in range(1000)]
    different = {ours: name for ours, name in zip(labels, theirs, strict=True) if ours != name}
    assert different == {"crane bird": "crane", "maillot tank suit": "maillot"}
    assert len(set(labels)) == 1000


def test_a_file_holds_network_and_card(lite0, tmp_path):
    module, card = lite0
    paths = [tmp_path / name / "classifier.safetensors" for name in "ab"]
    for path in paths:
        save_classifier(module, card, path)
    assert paths[0].read_bytes() == paths[1].read_bytes()
    loaded, loaded_card = load_classifier(paths[0])
    assert loaded_card == card
    assert not loaded.training
    picture = preprocess(tensor(coffee()), LITE0)[None]
    with torch.inference_mode():
        assert torch.equal(loaded(picture), module(picture))


def test_random_weights_are_always_the_same_and_leave_other_draws_alone():
    torch.manual_seed(1)
    expected = torch.rand(1)
    torch.manual_seed(1)
    (first, card), (again, _) = (fetch_classifier("efficientnet_lite0", "random") for _ in range(2))
    assert torch.equal(torch.rand(1), expected)
    weights = [module.get_parameter("conv_stem.weight") for module in (first, again)]
    assert torch.equal(weights[0], weights[1])
    assert card.weights.origin == "untrained: for timing alone"


def test_other_files_and_missing_weights_are_refused(tmp_path):
    with pytest.raises(UserError, match="resnet50"):
        fetch_classifier("resnet50", "package")
    path = tmp_path / "classifier.safetensors"
    safetensors.torch.save_file({"weight": torch.ones(1)}, path, {"agent": "{}"})
    with pytest.raises(UserError, match=r"classifier\.safetensors"):
        load_classifier(path)
