"""Photo sets: what a batch holds, and that it depends on nothing but its arguments and the photos."""

import io
import multiprocessing
import pickle
import zipfile

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Generator

from singleshot.errors import UserError
from singleshot.io.images import encode_jpeg, encode_png
from singleshot.style.datasets.photos import PhotoSet

COLORS = {"a": (250, 10, 10), "b": (10, 250, 10), "c": (10, 10, 250), "d": (240, 240, 10), "e": (90, 90, 90)}


def archive(directory, photos):
    directory.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(directory / "photos.zip", "w") as file:
        for name, content in photos.items():
            file.writestr(f"{name}.jpg", content)
    return directory


def plain(color, height=40, width=60):
    return encode_jpeg(torch.tensor(color).view(3, 1, 1).expand(3, height, width) / 255, 95)


@pytest.fixture
def photos(tmp_path):
    return PhotoSet.open(archive(tmp_path, {name: plain(color) for name, color in COLORS.items()}))


def name_of(crop):
    """Which of COLORS a crop shows."""
    mean = crop.mean(dim=(1, 2)) * 255
    return min(COLORS, key=lambda name: float((mean - torch.tensor(COLORS[name])).abs().sum()))


def test_shards_make_one_set_whatever_their_number(tmp_path):
    contents = {name: plain(color) for name, color in COLORS.items()}
    whole = PhotoSet.open(archive(tmp_path / "whole", contents))
    assert (whole.read("c").shape, whole.read("c", short_side=20).shape) == ((3, 40, 60), (3, 20, 30))
    for i, name in enumerate("bdeca"):
        archive(tmp_path / "shards" / str(i), {name: contents[name]})
    shards = PhotoSet.open(tmp_path / "shards")
    assert list(whole.names) == list(shards.names) == list("abcde")
    assert torch.equal(whole.batch(3, 1, 4, 32, augment=True), shards.batch(3, 1, 4, 32, augment=True))


def test_no_archive_a_damaged_archive_and_doubles_are_named(tmp_path):
    with pytest.raises(UserError, match=r"no photos\.zip"):
        PhotoSet.open(tmp_path)
    path = archive(tmp_path / "0", {"a": plain(COLORS["a"])}) / "photos.zip"
    archive(tmp_path / "1", {"a": plain(COLORS["a"])})
    with pytest.raises(UserError, match=r"another archive in .* has a too"):
        PhotoSet.open(tmp_path)
    whole = path.read_bytes()
    inside = bytearray(whole)
    inside[300] ^= 1
    for content in (whole[:-30], inside):
        path.write_bytes(content)
        with pytest.raises(UserError, match=r"0/photos\.zip: damaged"):
            PhotoSet.open(path.parent).read("a")


def test_without_augmentation_it_is_pillows_resize_and_centre_crop(tmp_path):
    content = encode_png(torch.rand(3, 70, 100, generator=Generator().manual_seed(0)))
    photos = PhotoSet.open(archive(tmp_path, {"a": content}))
    image = Image.open(io.BytesIO(content)).resize((46, 32), Image.Resampling.LANCZOS)  # 100·32/70 = 45.7
    expected = np.asarray(image.crop((7, 0, 39, 32)), np.float32).transpose(2, 0, 1) / 255
    generator = Generator().manual_seed(0)
    before = generator.get_state()
    assert torch.equal(photos.crop(0, 32, generator, augment=False), torch.from_numpy(expected))
    assert torch.equal(generator.get_state(), before)


def test_augmentation_mirrors_moves_zooms_and_shades(tmp_path):
    """On a picture of its own coordinates (red: x, green: y) a crop tells where it is from."""
    y, x = torch.meshgrid(torch.linspace(0.2, 0.8, 200), torch.linspace(0.2, 0.8, 300), indexing="ij")
    photos = PhotoSet.open(archive(tmp_path, {"a": encode_png(torch.stack([x, y, torch.zeros_like(x)]))}))
    generator = Generator().manual_seed(2)
    crops = torch.stack([photos.crop(0, 32, generator, augment=True) for _ in range(100)])
    across = (crops[:, 0, :, -1] - crops[:, 0, :, 0]).mean(dim=1)
    down = (crops[:, 1, -1] - crops[:, 1, 0]).mean(dim=1)
    assert 30 < (across < 0).sum() < 70  # mirrored half of the time
    assert (down > 0).all()  # never upside down
    # A square of all the height spans 0.6 of green; a quarter of its area spans half of that. Jitter: ±20 %.
    assert 0.6 * 0.5 * 0.8 * 0.6 < down.min() < 0.42
    assert 0.5 < down.max() < 0.6 * 1.25 * 1.5
    means = crops.mean(dim=(2, 3))
    assert (means.amax(dim=0) - means.amin(dim=0))[:2].min() > 0.1


def test_a_batch_depends_on_seed_and_step_alone(photos):
    batch = photos.batch(7, 5, 4, 16, augment=True)
    assert batch.shape == (4, 3, 16, 16)
    torch.manual_seed(99)
    photos.batch(1, 0, 4, 16, augment=True)
    assert torch.equal(photos.batch(7, 5, 4, 16, augment=True), batch)
    assert not torch.equal(photos.batch(7, 6, 4, 16, augment=True), batch)
    assert not torch.equal(photos.batch(8, 5, 4, 16, augment=True), batch)


@pytest.mark.parametrize("batch_size", [1, 2, 5, 7])
def test_each_epoch_has_each_photo_once_in_another_order(photos, batch_size):
    steps = -(-20 // batch_size)
    order = "".join(
        name_of(crop) for step in range(steps) for crop in photos.batch(0, step, batch_size, 8, False)
    )
    epochs = [order[i : i + 5] for i in range(0, 20, 5)]
    assert all(sorted(epoch) == list("abcde") for epoch in epochs)
    assert len(set(epochs)) > 1


def batch_in_child(photos, queue):
    queue.put(photos.batch(0, 0, 4, 8, augment=True).numpy().tobytes())


def test_it_survives_pickling_and_forks(photos):
    expected = photos.batch(0, 0, 4, 8, augment=True)
    copy = pickle.loads(pickle.dumps(photos))
    assert torch.equal(copy.batch(0, 0, 4, 8, augment=True), expected)
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    children = [context.Process(target=batch_in_child, args=(photos, queue)) for _ in range(3)]
    for child in children:
        child.start()
    assert [queue.get() for _ in children] == [expected.numpy().tobytes()] * 3
    for child in children:
        child.join()
