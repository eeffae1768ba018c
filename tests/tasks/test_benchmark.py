import csv

import pytest
from small_networks import save_agent, save_scores, save_style
from waiting import PATIENCE_S

from singleshot.export import isolation
from singleshot.export.isolation import Worker
from singleshot.export.runtimes import RuntimeAt, runtimes_here
from singleshot.rl.environments import LOCOMOTION
from tasks.benchmark import BenchmarkParams, InputSize, benchmark
from tasks.export_graph import ExportParams, graph_name
from tasks.export_policy import export_policy
from tasks.export_style import export_style
from tasks.job import Job, Metrics, Progress

FIRST_COLUMNS = "model,runtime,device,threads,batch,size_px,p50_ms,p90_ms,p99_ms,max_abs_error,status,reason"
ONE = InputSize(batch=1)
MEASURED = ("p50_ms", "p90_ms", "p99_ms", "cpu_p50_ms", "calls")


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    return export(export_policy, save_agent, tmp_path_factory.mktemp("policy"), "bcq", 0.5)


@pytest.fixture(scope="module")
def style(tmp_path_factory):
    return export(export_style, save_style, tmp_path_factory.mktemp("style"))


def export(task, save, directory, *arguments):
    """A job's inputs."""
    source = save(directory / "source.safetensors", *arguments)
    inputs = {"source": source, "scores": save_scores(directory / "scores.csv", [])}
    list(task([Job(ExportParams("the/cell", opset=20), inputs, directory)]))
    form = "compacted" if arguments else "dense"
    return {"onnx": directory / graph_name("the/cell", form), "source": source}


def run(inputs, output, names, threads=(1,), sizes=(ONE,)):
    output.mkdir()
    here = tuple(RuntimeAt(name, None if name == "absent" else "1") for name in names)
    params = BenchmarkParams(here, threads, sizes, 0.02, PATIENCE_S, 5, LOCOMOTION["Hopper"])
    events = list(benchmark([Job(params, inputs, output)]))
    with (output / "timings.csv").open() as file:
        return list(csv.DictReader(file)), events


def test_a_runtime_that_fails_leaves_the_rest_of_the_table_intact(policy, tmp_path, monkeypatch):
    monkeypatch.setattr(isolation, "WORKER", "toy_worker")
    names = ["toy-raises", "toy", "toy-dies", "toy-wrong", "absent", "toy-dies-later", "toy-missing"]
    rows, events = run(policy, tmp_path / "out", names, sizes=(ONE, InputSize(2)))
    assert [(row["runtime"], row["batch"]) for row in rows] == [(name, b) for b in "12" for name in names]
    assert ",".join(rows[0]).startswith(f"{FIRST_COLUMNS},")
    for row in rows:
        assert (row["model"], row["form"], row["threads"], row["size_px"]) == (
            "the/cell",
            "compacted",
            "1",
            "",
        )
        if row["runtime"] == "toy":
            assert (row["status"], row["reason"], row["same_choices"]) == ("ok", "", "1.0")
            assert float(row["p50_ms"]) <= float(row["p90_ms"]) <= float(row["p99_ms"])
            assert 0 < float(row["max_abs_error"]) <= float(row["tolerance"])
        else:
            assert all(row[column] == "" for column in MEASURED)
    outcomes = {row["runtime"]: (row["status"], row["reason"]) for row in rows[len(names) :]}
    assert outcomes["toy-raises"] == ("failed", f"ValueError: no operator Foo in {'line ' * 33}…")
    assert outcomes["toy-dies"] == ("failed", "killed by SIGSEGV: Fatal: bad kernel")
    assert outcomes["toy-dies-later"] == ("failed", "ended with status 3")
    assert outcomes["toy-missing"] == ("unavailable", "no such accelerator")
    assert outcomes["absent"] == (
        "unavailable",
        "not installed; `make compilers` installs the optional runtimes",
    )
    assert outcomes["toy-wrong"][0] == "failed"
    wrong = next(row for row in rows if row["runtime"] == "toy-wrong")
    assert float(wrong["max_abs_error"]) == pytest.approx(0.04, rel=0.01)
    assert "off by 0.04" in wrong["reason"]
    metrics = [event for event in events if isinstance(event, Metrics)]
    assert [(event.step, list(event.values)) for event in metrics] == [
        (batch, ["toy_p50_ms_threads_1"]) for batch in (1, 2)
    ]
    assert [event.fraction for event in events if isinstance(event, Progress)] == [0.5, 1.0]


def test_a_runtime_that_hangs_costs_its_own_row(policy, tmp_path, monkeypatch):
    monkeypatch.setattr(isolation, "WORKER", "toy_worker")
    limits = {"toy-hangs": 1, "toy": PATIENCE_S}
    monkeypatch.setattr("tasks.benchmark.Worker", lambda name, _: Worker(name, limits[name]))
    rows, _ = run(policy, tmp_path / "out", ["toy-hangs", "toy"])
    assert [(row["status"], row["reason"]) for row in rows] == [
        ("failed", "no answer within 1 s"),
        ("ok", ""),
    ]


def test_pictures_are_of_the_size_and_number_asked_for(style, tmp_path):
    sizes = (InputSize(1, 20), InputSize(2, 33))
    rows, events = run(style, tmp_path / "out", ["onnxruntime"], threads=(1, 0, 1), sizes=sizes)
    per_thread_count = [("1", "20"), ("2", "33")]
    assert [(row["batch"], row["size_px"]) for row in rows][:2] == per_thread_count
    assert {row["status"] for row in rows} == {"ok"}
    assert len({(row["threads"], row["size_px"]) for row in rows}) == len(rows)
    assert [event.step for event in events if isinstance(event, Metrics)][:2] == [20, 33]
    assert int(rows[0]["file_bytes"]) == style["onnx"].stat().st_size


@pytest.mark.parametrize("kind", ["policy", "style"])
def test_runtimes_compute_what_pytorch_does_in_float64(request, tmp_path, kind):
    names = ["torch", "onnxruntime", "openvino-f32"]
    check_errors(request.getfixturevalue(kind), tmp_path / "out", names)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["policy", "style"])
def test_torch_compile_computes_what_pytorch_does_in_float64(request, tmp_path, kind):
    check_errors(request.getfixturevalue(kind), tmp_path / "out", ["torch-compile"])


def check_errors(inputs, output, names):
    size = InputSize(3, 24) if "style" in str(inputs["source"]) else InputSize(3)
    rows, _ = run(inputs, output, names, sizes=(size,))
    assert [row["runtime"] for row in rows] == names
    for row in rows:
        assert (row["status"], row["reason"], row["precision"], row["device"]) == ("ok", "", "float32", "cpu")
        # Values are up to 1: some ten roundings of 6e-8 each.
        assert float(row["max_abs_error"]) < 2e-6
        assert float(row["max_rel_error"]) < 2e-6
        # One thread never has more than one core: what it computes on is what it was told.
        assert float(row["cpu_p50_ms"]) < 1.2 * float(row["p50_ms"])


def test_versions_are_those_installed():
    import onnxruntime

    assert runtimes_here(("onnxruntime",)) == (RuntimeAt("onnxruntime", onnxruntime.__version__),)
