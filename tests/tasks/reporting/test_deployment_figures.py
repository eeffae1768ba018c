import pandas
import pytest
from matplotlib import image, pyplot
from matplotlib.colors import to_rgba

from tasks.job import Job
from tasks.reporting.deployment_figures import draw_deployment_figures, draw_latencies
from tasks.reporting.look import FigureParams

AGENT = "Hopper/bcq/snip-0.95/seed-0"
RUNTIMES = ["torch", "onnxruntime", "tvm", "tensorflow"]


def row(model, runtime, form, threads, batch, size_px, p50_ms, status="ok", reason=None):
    timed = status == "ok"
    return {
        "model": model, "runtime": runtime, "form": form, "threads": threads, "batch": batch,
        "size_px": size_px, "p50_ms": p50_ms if timed else None, "p99_ms": 1.5 * p50_ms if timed else None,
        "status": status, "reason": reason,
    }  # fmt: skip


def cell(runtime, form, threads, batch):
    """Of an agent: TVM gives wrong numbers at batch 256, TensorFlow isn't there."""
    p50_ms = (1 + RUNTIMES.index(runtime)) * batch / threads / (10 if form == "compacted" else 1)
    trouble = {
        ("tvm", 256): ("failed", "off by 0.31, more than 16 times PyTorch's own error"),
        ("tensorflow", batch): ("unavailable", "not installed; run `make compilers`"),
    }
    return row(AGENT, runtime, form, threads, batch, None, p50_ms, *trouble.get((runtime, batch), ()))


@pytest.fixture
def timings():
    forms, threads, batches = ("masked", "compacted"), (1, 2), (1, 256)
    rows = [cell(r, f, t, b) for f in forms for t in threads for b in batches for r in RUNTIMES]
    rows += [
        row("styles/waves", r, "dense", 1, 1, size, size / (10 + i))
        for size in (256, 512)
        for i, r in enumerate(RUNTIMES)
    ]
    return pandas.DataFrame(rows)


@pytest.fixture(autouse=True)
def _close():
    yield
    pyplot.close("all")


def draw(timings, directory):
    directory.mkdir()
    timings.to_csv(directory.parent / "timings.csv", index=False)
    inputs = {"timings": directory.parent / "timings.csv"}
    (metrics,) = draw_deployment_figures([Job(FigureParams("smoke"), inputs, directory)])
    return metrics.values


def test_a_figure_a_model_the_same_bytes_each_time(timings, tmp_path):
    assert draw(timings, tmp_path / "1") == {"figures": 2}
    files = {path.name: path for path in (tmp_path / "1").iterdir()}
    assert files.keys() == {"hopper-bcq-snip-0.95-seed-0.png", "styles-waves.png"}
    draw(timings, tmp_path / "2")
    assert all(path.read_bytes() == (tmp_path / "2" / name).read_bytes() for name, path in files.items())


def test_bars_are_medians_and_whiskers_end_at_the_99th_percentile(timings):
    figure = draw_latencies(AGENT, timings[timings["model"] == AGENT])
    assert [axis.get_title() for axis in figure.axes] == [
        "masked, 1 thread", "masked, 2 threads", "compacted, 1 thread", "compacted, 2 threads"
    ]  # fmt: skip
    assert [label.get_text() for label in figure.axes[3].get_xticklabels()] == ["torch", "onnxruntime", "tvm"]
    batch_1, batch_256 = figure.axes[3].containers[1::2]
    assert [bars.get_label() for bars in (batch_1, batch_256)] == ["batch 1", "batch 256"]
    assert [bar.get_height() for bar in batch_1] == pytest.approx([0.05, 0.1, 0.15])
    assert [bar.get_height() for bar in batch_256][:2] == pytest.approx([12.8, 25.6])
    whiskers = [segment[:, 1].tolist() for segment in batch_1.errorbar.lines[2][0].get_segments()]
    assert whiskers == [pytest.approx([p50, 1.5 * p50]) for p50 in (0.05, 0.1, 0.15)]


def test_runtimes_without_a_time_are_named_with_their_reason(timings):
    figure = draw_latencies(AGENT, timings[timings["model"] == AGENT])
    assert figure.get_supxlabel().splitlines() == [
        "tensorflow: unavailable, not installed; run `make compilers`",
        "tvm (batch 256): failed, off by 0.31, more than 16 times PyTorch's own error",
    ]


def test_conditions_that_have_nothing_in_common_are_told_one_by_one(timings):
    rows = timings[timings["model"] == AGENT].copy()
    for form, threads in (("masked", 1), ("compacted", 2)):
        lost = (rows["runtime"] == "torch") & (rows["form"] == form) & (rows["threads"] == threads)
        rows.loc[lost & (rows["batch"] == 1), ["status", "reason"]] = ["failed", "killed"]
    notes = draw_latencies(AGENT, rows).get_supxlabel()
    assert "torch (masked, 1 thread, batch 1; compacted, 2 threads, batch 1): failed, killed" in notes


def test_a_wide_span_is_drawn_on_a_logarithmic_scale(timings):
    def scale(model):
        return draw_latencies(model, timings[timings["model"] == model]).axes[0].get_yscale()

    assert scale(AGENT) == "log"  # 0.05 to 768 ms
    assert scale("styles/waves") == "linear"  # 20 to 51 ms


def test_pictures_are_told_by_their_size(timings):
    axis = draw_latencies("styles/waves", timings[timings["model"] == "styles/waves"]).axes[0]
    assert axis.get_legend_handles_labels()[1] == ["256 px", "512 px"]


def test_where_nothing_ran_the_reasons_are_drawn(timings, tmp_path):
    lost = timings.assign(status="unavailable", reason="no such machine", p50_ms=None, p99_ms=None)
    assert draw(lost, tmp_path / "1") == {"figures": 2}
    assert draw_latencies(AGENT, lost[lost["model"] == AGENT]).get_supxlabel().count("no such machine") == 4
    shown = image.imread(tmp_path / "1" / "styles-waves.png")
    assert (shown != to_rgba("white")).any()
