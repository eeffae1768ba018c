import io
import zipfile

import pytest
import torch
from PIL import Image
from skimage.data import astronaut
from small_networks import save_style, style_inputs

from singleshot.errors import UserError
from singleshot.io.images import encode_png, read_rgb
from singleshot.job import Job, Metrics, Progress
from singleshot.style.apply.stylize import StylizeSettings, stylize
from singleshot.style.model_file import ModelCard, load_model, save_model
from singleshot.style.transformer_net import TransformerNet
from tasks.stylize import DETAIL_PX, LargeConfig, LargeParams, StylizeParams, stylize_large, stylize_photos

SETTINGS = StylizeSettings(strength=0.6, precision="float32")


@pytest.fixture
def network():
    torch.manual_seed(0)
    return TransformerNet(8).eval()


def a_job(directory, params, network):
    (directory / "output").mkdir(parents=True)
    (directory / "photos").mkdir()
    pixels = astronaut()
    with zipfile.ZipFile(directory / "photos/photos.zip", "w") as archive:
        for name, part in (("face", pixels[:96, 180:300]), ("suit", pixels[300:420, 100:180])):
            content = io.BytesIO()
            Image.fromarray(part).save(content, "JPEG")
            archive.writestr(f"{name}.jpg", content.getvalue())
    card = ModelCard("waves", "0" * 64, "photos", 7, {}, {}, "abc")
    save_model(network, card, directory / "waves/model.safetensors")
    (directory / "painting.png").write_bytes(encode_png(torch.full((3, 20, 30), 0.5)))
    inputs = {"photos": directory / "photos", "model": directory / "waves/model.safetensors"}
    inputs["painting"] = directory / "painting.png"
    return Job(params, inputs, directory / "output")


def test_the_task_writes_each_photo_and_all_before_and_after(network, tmp_path):
    params = StylizeParams("waves", ("face", "suit"), 64, SETTINGS)
    jobs = [a_job(tmp_path / name, params, network) for name in ("one", "two")]
    events = [list(stylize_photos([job])) for job in jobs]
    (metrics,) = [event for event in events[0] if isinstance(event, Metrics)]
    assert metrics.step == 7
    assert metrics.values["seconds_per_image"] > 0
    assert [event.fraction for event in events[0] if isinstance(event, Progress)] == [0.5, 1.0]
    files = {file.name: file.read_bytes() for file in jobs[0].output.iterdir()}
    assert sorted(files) == ["before_after.jpg", "face.jpg", "suit.jpg"]
    assert files == {file.name: file.read_bytes() for file in jobs[1].output.iterdir()}
    with zipfile.ZipFile(tmp_path / "one/photos/photos.zip") as archive:
        photo = read_rgb(io.BytesIO(archive.read("face.jpg")), short_side=64)
    written = read_rgb(jobs[0].output / "face.jpg")
    expected = stylize(network, photo[None], SETTINGS)[0]
    assert written.shape == (3, 64, 80)
    assert (written - expected).abs().mean() < 0.05  # JPEG, of noise
    sheet = read_rgb(jobs[0].output / "before_after.jpg")
    # Rows of a painting of 96 px and two photos of 80; and of 144 and two of 64, 96 px high.
    assert sheet.shape == (3, 64 + round(96 * 256 / 272), 256)
    assert (sheet[:, :64, :94] - 0.5).abs().max() < 0.1


def test_another_styles_model_is_an_error(network, tmp_path):
    job = a_job(tmp_path / "job", StylizeParams("swirls", ("face",)), network)
    with pytest.raises(UserError, match=r"model.safetensors: of style waves, not swirls"):
        list(stylize_photos([job]))


LARGE = StylizeSettings(precision="float32", stroke=4.0)


def made(tmp_path, name, long_side_px, **inputs):
    output = tmp_path / f"output-{long_side_px}"
    output.mkdir()
    model = save_style(tmp_path / "model.safetensors")
    job = Job(LargeParams(LargeConfig(name, long_side_px), LARGE), {**inputs, "model": model}, output)
    list(stylize_large([job]))
    return output


def test_a_sample_is_enlarged_and_its_middle_shown_in_full_size(tmp_path):
    """Like a picture of one's own, which is then stylised as `stylize` does it."""
    (tmp_path / "photos").mkdir()
    photos = style_inputs(tmp_path / "photos")["photos"]
    output = made(tmp_path, "a", 720, photos=photos)  # of 60 x 50 px
    picture, detail = (read_rgb(output / f"{name}.jpg") for name in ("picture", "detail"))
    assert picture.shape == (3, 600, 720)
    assert detail.shape == (3, DETAIL_PX, 2 * DETAIL_PX)
    middle = picture[:, 44 : 44 + DETAIL_PX, 104 : 104 + DETAIL_PX]
    assert (detail[..., DETAIL_PX:] - middle).abs().mean() < 0.03
    pixels = torch.nn.functional.interpolate(torch.rand(1, 3, 6, 8), (300, 400), mode="bilinear")[0]
    (tmp_path / "mine.png").write_bytes(encode_png(pixels))
    own = read_rgb(made(tmp_path, "mine.png", 400, photo=tmp_path / "mine.png") / "picture.jpg")
    network, _ = load_model(tmp_path / "model.safetensors")
    expected = stylize(network, read_rgb(tmp_path / "mine.png")[None], LARGE)[0]
    assert (own - expected).abs().mean() < 0.05
