from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch
from small_networks import save_style

from singleshot.errors import UserError
from singleshot.export import stylizers
from singleshot.export.stylizers import fixed_runtime, open_stylizer, unavailable
from singleshot.style.apply.stylize import StylizeSettings, stylize
from singleshot.style.model_file import load_model

FLOAT32 = StylizeSettings(precision="float32")
OTHERS = stylizers.STYLIZERS[1:]


@pytest.fixture
def model(tmp_path):
    return save_style(tmp_path / "model.safetensors", width=6)


@pytest.fixture
def frames():
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (5, 46, 61, 3), dtype=torch.uint8, generator=generator)
    return pixels.permute(0, 3, 1, 2)  # as a decoder gives them


def opened(model, runtime, settings=FLOAT32, threads=2):
    if reason := unavailable(runtime):
        pytest.skip(reason)
    return open_stylizer(model, runtime, 61, 46, settings, "cpu", threads)


def steps(a, b):
    """The largest difference, in steps of 8 bits."""
    return int((a.int() - b.int()).abs().max())


@pytest.mark.parametrize("runtime", OTHERS)
@pytest.mark.parametrize(
    "changes", [{}, {"strength": 0.5}, {"preserve_color": True}, {"stroke": 20}], ids=str
)
def test_frames_are_what_pytorch_makes_of_them(model, frames, runtime, changes):
    settings = replace(FLOAT32, **changes)
    expected = stylize(load_model(model)[0], frames, settings)
    result = opened(model, runtime, settings).stylize(frames)
    assert (result.dtype, result.shape) == (torch.uint8, frames.shape)
    # bfloat16 keeps 8 bits of each product: a few steps where activations are some units large.
    assert steps(result, expected) <= (16 if runtime == "openvino-bf16" else 1)


@pytest.mark.parametrize("runtime", OTHERS)
def test_neither_threads_nor_company_change_a_byte(model, frames, runtime):
    alone = opened(model, runtime, threads=1)
    expected = [alone.stylize(frame[None]) for frame in frames]
    several = opened(model, runtime, threads=3)
    assert (alone.at_once, several.at_once) == (1, 3)
    with ThreadPoolExecutor(3) as pool:
        results = list(pool.map(several.stylize, [frame[None] for frame in frames] * 4))
    assert all(torch.equal(a, b) for a, b in zip(results, expected * 4, strict=True))


def test_as_many_frames_at_once_as_memory_holds(model, monkeypatch):
    # Each takes 46 · 61 px · width 6 · 30 bytes, of half the memory.
    monkeypatch.setattr("singleshot.style.apply.stylize.free_memory", lambda _: 2 * 2.5 * 46 * 61 * 6 * 30)
    assert opened(model, "onnxruntime", threads=8).at_once == 2


@pytest.mark.parametrize(
    ("installed", "precision", "chosen"),
    [
        ({"openvino-f32", "openvino-bf16", "onnxruntime"}, "float32", "openvino-f32"),
        ({"openvino-f32", "openvino-bf16", "onnxruntime"}, "bfloat16", "openvino-bf16"),
        ({"onnxruntime"}, "float32", "onnxruntime"),
        (set(), "float32", "torch"),
    ],
)
def test_films_run_on_openvino_else_onnxruntime_else_pytorch(monkeypatch, installed, precision, chosen):
    monkeypatch.setattr(stylizers, "unavailable", lambda name: None if name in installed else "no")
    assert fixed_runtime(StylizeSettings(precision=precision)) == chosen


def test_a_runtime_that_is_absent_or_takes_another_precision_is_named(model, monkeypatch):
    if unavailable("openvino-f32") is None:
        monkeypatch.setattr("singleshot.export.runtimes.openvino._precision", lambda _: "bfloat16")
        with pytest.raises(UserError, match=r"openvino-f32: .*bfloat16"):
            opened(model, "openvino-f32")
    monkeypatch.setattr(stylizers, "installed_version", {"torch": "2"}.get)
    with pytest.raises(UserError, match=r"openvino-f32: .*not installed"):
        open_stylizer(model, "openvino-f32", 61, 46, FLOAT32, "cpu", 1)
