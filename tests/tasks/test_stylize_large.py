import torch
from small_networks import save_style, style_inputs

from singleshot.io.images import encode_png, read_rgb
from singleshot.style.apply.stylize import StylizeSettings, stylize
from singleshot.style.model_file import load_model
from tasks.job import Job
from tasks.stylize import DETAIL_PX, LargeConfig, LargeParams, stylize_large

SETTINGS = StylizeSettings(precision="float32", stroke=4.0)


def made(tmp_path, name, long_side_px, **inputs):
    output = tmp_path / f"output-{long_side_px}"
    output.mkdir()
    model = save_style(tmp_path / "model.safetensors")
    job = Job(LargeParams(LargeConfig(name, long_side_px), SETTINGS), {**inputs, "model": model}, output)
    list(stylize_large([job]))
    return output


def test_a_sample_is_enlarged_and_its_middle_shown_in_full_size(tmp_path) -> None:
    (tmp_path / "photos").mkdir()
    photos = style_inputs(tmp_path / "photos")["photos"]
    output = made(tmp_path, "a", 720, photos=photos)  # of 60 x 50 px
    picture, detail = (read_rgb(output / f"{name}.jpg") for name in ("picture", "detail"))
    assert picture.shape == (3, 600, 720)
    assert detail.shape == (3, DETAIL_PX, 2 * DETAIL_PX)
    middle = picture[:, 44 : 44 + DETAIL_PX, 104 : 104 + DETAIL_PX]
    assert (detail[..., DETAIL_PX:] - middle).abs().mean() < 0.03


def test_a_picture_of_ones_own_is_what_stylize_makes_of_it(tmp_path) -> None:
    pixels = torch.nn.functional.interpolate(torch.rand(1, 3, 6, 8), (300, 400), mode="bilinear")[0]
    (tmp_path / "mine.png").write_bytes(encode_png(pixels))
    output = made(tmp_path, "mine.png", 400, photo=tmp_path / "mine.png")
    network, _ = load_model(tmp_path / "model.safetensors")
    expected = stylize(network, read_rgb(tmp_path / "mine.png")[None], SETTINGS)[0]
    assert (read_rgb(output / "picture.jpg") - expected).abs().mean() < 0.05
