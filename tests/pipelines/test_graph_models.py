import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import mlflow
import numpy as np
import onnx
import pytest
from made import MADE
from ports import free_port
from small_networks import save_agent, save_style
from toy_tasks.work import SumParams, add_up
from waiting import wait_until

from pipelines.catalog import graph_models as models
from pipelines.engine.cells import Cell
from pipelines.engine.tracking import TrackingConfig, tracking
from singleshot.export.model_files import open_network
from singleshot.export.onnx_model import AgentScore, GraphCard, GraphInput, load_onnx
from singleshot.export.to_onnx import to_onnx, with_sparse_initializers

CELL = Cell("Hopper/bcq/snip-0.95/seed-0", add_up, SumParams(1))

# Graphs with the inputs and outputs of exported ones: what MLflow makes of them is asked here.
GRAPHS = {
    "bc": """(float[batch,11] state, float[batch,6] latents) => (float[batch,3] action) {
        start = Constant<value_ints = [3]>()
        end = Constant<value_ints = [6]>()
        axis = Constant<value_ints = [1]>()
        z = Slice(latents, start, end, axis)
        zero = Constant<value_ints = [0]>()
        s = Slice(state, zero, start, axis)
        sum = Add(s, z)
        action = Tanh(sum)
    }""",
    "bcq": """(float[batch,11] state, float[batch,samples,6] latents)
            => (float[batch,3] action, int64[batch] choice) {
        zero = Constant<value_ints = [0]>()
        three = Constant<value_ints = [3]>()
        axis = Constant<value_ints = [1]>()
        s = Slice(state, zero, three, axis)
        mean = ReduceMean<keepdims = 0>(latents, axis)
        z = Slice(mean, zero, three, axis)
        sum = Add(s, z)
        action = Tanh(sum)
        last = Constant<value_ints = [2]>()
        value = ReduceSum<keepdims = 0>(latents, last)
        choice = ArgMax<axis = 1, keepdims = 0>(value)
    }""",
    "style": """(float[batch,3,height,width] pictures) => (float[batch,3,height,width] stylised) {
        stylised = Sigmoid(pictures)
    }""",
}
INPUTS = {
    "bc": (GraphInput("state", ("batch", 11), -10.0, 10.0), GraphInput("latents", ("batch", 6), -0.5, 0.5)),
    "bcq": (
        GraphInput("state", ("batch", 11), -10.0, 10.0),
        GraphInput("latents", ("batch", "samples", 6), -0.5, 0.5),
    ),
    "style": (GraphInput("pictures", ("batch", 3, "height", "width"), 0.0, 1.0),),
}
MEANINGS = {"state": "What the robot sees."}
OUTPUTS = {"bc": ("action",), "bcq": ("action", "choice"), "style": ("stylised",)}


def graph_bytes(name, sparsity=0.95):
    graph = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 20]> {name} {GRAPHS[name]}')
    kind = "style" if name == "style" else "policy"
    GraphCard(
        kind,
        CELL.name,
        "masked",
        sparsity,
        "unknown",
        "0" * 64,
        INPUTS[name],
        OUTPUTS[name],
        {"environment": "Hopper"} | ({"samples": 7} if name == "bcq" else {}),
        MEANINGS,
    ).attach(graph)
    onnx.checker.check_model(graph, full_check=True)
    return graph.SerializeToString()


@pytest.fixture
def config(empty_database, tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")  # in the database's folder, MLflow itself would look there
    shutil.copy(empty_database, tmp_path / "mlflow.db")
    return TrackingConfig(f"sqlite:///{tmp_path / 'mlflow.db'}")


@pytest.fixture
def client(config):
    return mlflow.MlflowClient(config.uri)


@contextlib.contextmanager
def tracked(config):
    """MLflow for a stage whose cells leave graphs."""
    with tracking(config, "export_onnx", "smoke") as tracker:
        tracker.models = models
        yield tracker


def finish(tracker, store, files):
    tracker.started(CELL)
    store.commit(CELL, files, MADE)
    tracker.finished(CELL, store.path(CELL.digest))


def logged(client):
    experiment = client.get_experiment_by_name("singleshot/export_onnx")
    return client.search_logged_models([experiment.experiment_id])


def cell_run(client):
    experiment = client.get_experiment_by_name("singleshot/export_onnx")
    (run,) = client.search_runs([experiment.experiment_id], "tags.kind = 'cell'")
    return run


@pytest.fixture
def model(config, store, client):
    """Logs a graph as its cell's only one; returns its directory."""

    def log(name):
        with tracked(config) as tracker:
            finish(tracker, store, {f"{name}.onnx": graph_bytes(name)})
        (found,) = logged(client)
        return Path(found.artifact_location.removeprefix("file://"))

    return log


@pytest.mark.parametrize("name", GRAPHS)
def test_a_model_predicts_what_onnxruntime_does(model, store, name):
    directory = model(name)
    loaded = mlflow.pyfunc.load_model(str(directory))
    example = loaded.input_example
    if name == "bcq":
        assert example["latents"].shape == (1, 7, 6)  # as many samples as the agent was evaluated with
    predicted = loaded.predict(example)
    expected = load_onnx(store.path(CELL.digest) / f"{name}.onnx")(**example)
    assert predicted.keys() == expected.keys() == set(OUTPUTS[name])
    for output, values in expected.items():
        assert values.dtype == predicted[output].dtype
        np.testing.assert_array_equal(predicted[output], values)
    # What was logged is the graph with its card, as the stage keeps it.
    assert load_onnx(directory / "model.onnx").card.cell == CELL.name


def test_the_signature_has_the_outputs_names_types_and_free_sizes(model):
    signature = mlflow.models.get_model_info(str(model("bcq"))).signature
    assert signature.inputs is None  # with them, float64 would be refused
    assert [(spec.name, spec.shape, spec.type.name) for spec in signature.outputs] == [
        ("action", (-1, 3), "float32"),
        ("choice", (-1,), "int64"),
    ]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_any_batch_is_taken_in_either_precision_and_other_inputs_are_refused(model, dtype):
    loaded = mlflow.pyfunc.load_model(str(model("bcq")))
    state, latents = np.zeros((5, 11), dtype), np.zeros((5, 7, 6), dtype)
    assert loaded.predict({"state": state, "latents": latents})["action"].shape == (5, 3)
    with pytest.raises(ValueError, match="latents"):
        loaded.predict({"state": state})
    with pytest.raises(Exception, match="Got: 10 Expected: 11"):  # of a kind without a public name
        loaded.predict({"state": state[:, :10], "latents": latents})


def test_each_graph_of_a_cell_is_a_model_of_its_run(config, store, client):
    files = {
        "hopper-bcq-snip-0.95-seed-0.onnx": graph_bytes("bcq"),
        "hopper-bcq-snip-0.95-seed-0-compacted.onnx": graph_bytes("bcq"),
        "exports.csv": b"file\n",
    }
    with tracked(config) as tracker:
        finish(tracker, store, files)
    run, found = cell_run(client), logged(client)
    assert {each.name for each in found} == {
        "hopper-bcq-snip-0_95-seed-0", "hopper-bcq-snip-0_95-seed-0-compacted"
    }  # fmt: skip
    assert {each.source_run_id for each in found} == {run.info.run_id}
    assert {output.model_id for output in run.outputs.model_outputs} == {each.model_id for each in found}
    expected = {"kind": "policy", "cell": CELL.name, "form": "masked", "sparsity": "0.95"}
    assert all(expected.items() <= each.tags.items() for each in found)
    assert {file.path for file in client.list_artifacts(run.info.run_id)} == {"cell.json", "exports.csv"}
    requirements = Path(found[0].artifact_location.removeprefix("file://"), "requirements.txt").read_text(
        encoding="utf-8"
    )
    packages = {line.partition("==")[0] for line in requirements.splitlines()}
    assert packages == {"mlflow", "onnx", "onnxruntime"}


def test_cells_that_are_reused_or_computed_again_are_not_logged_again(config, store, client):
    files = {"bc.onnx": graph_bytes("bc")}
    with tracked(config) as tracker:
        finish(tracker, store, files)
    (before,) = logged(client)
    with tracked(config) as tracker:
        tracker.reused([CELL], store)
    with tracked(config) as tracker:
        finish(tracker, store, files)
    (after,) = logged(client)
    assert after.model_id == before.model_id
    assert after.last_updated_timestamp == before.last_updated_timestamp
    assert len(cell_run(client).outputs.model_outputs) == 1


def policy(cell, form="compacted"):
    graph = onnx.load_from_string(graph_bytes("bc"))
    ends = (INPUTS["bc"], OUTPUTS["bc"])
    score = AgentScore("D4RL score", 80.1, 78.0, 82.2, 5, 81.0)
    card = GraphCard(
        "policy", cell, form, 0.95, "c0ffee", "0" * 64, *ends, {"environment": "Hopper"}, MEANINGS, score
    )
    card.attach(graph)
    return graph.SerializeToString()


def registered(client, name):
    """By version, the cell it came from; and the version that is current."""
    versions = {
        version.version: client.get_run(version.run_id).data.tags["cell"]
        for version in client.search_model_versions(f"name = '{name}'")
    }
    return versions, client.get_model_version_by_alias(name, "current").version


def test_a_network_has_a_version_for_each_cell_that_exported_it(config, store, client):
    name = "Hopper-bcq-snip-0.95-seed-0"
    first, second = CELL, Cell(CELL.name, add_up, SumParams(2))
    for cell in (first, second):
        files = {"a-compacted.onnx": policy(CELL.name), "a.onnx": policy(CELL.name, "masked")}
        for _ in range(2):  # computed again, as after damage
            with tracked(config) as tracker:
                tracker.started(cell)
                store.commit(cell, files, MADE)
                tracker.finished(cell, store.path(cell.digest))
    (found,) = client.search_registered_models()
    assert found.name == name
    assert f"| network | `{CELL.name}` |" in found.description
    assert f"models:/{name}@current" in found.description
    assert f"set_tracking_uri({config.uri!r})" in found.description
    assert (
        "| score | D4RL score 81.0 in its last evaluation, 80.1 (95 % interval 78.0 to 82.2)"
        in found.description
    )
    assert "as the mean of the last 5; 0 is a random policy, 100 D4RL's expert |" in found.description
    assert "| licence | MIT" in found.description
    assert "| `state` batch x 11 | What the robot sees. |" in found.description
    versions = client.search_model_versions(f"name = '{name}'")
    assert all(version.description.startswith("Exported at commit ") for version in versions)
    assert registered(client, name) == ({1: first.digest, 2: second.digest}, 2)
    linked = [model.tags["mlflow.modelVersions"] for model in logged(client) if model.name == "a-compacted"]
    assert [json.loads(versions) for versions in linked] == [
        [{"name": name, "version": 2}], [{"name": name, "version": 1}]
    ]  # fmt: skip
    model = mlflow.pyfunc.load_model(f"models:/{name}@current")
    assert model.predict(model.input_example)["action"].shape == (1, 3)

    with tracked(config) as tracker:
        tracker.reused([first], store)  # the configuration is the first one again
    assert registered(client, name) == ({1: first.digest, 2: second.digest}, 1)


def test_a_database_that_is_younger_than_a_cell_gets_its_model(config, store, client):
    store.commit(CELL, {"bc-compacted.onnx": policy(CELL.name)}, MADE)
    for _ in range(2):
        with tracked(config) as tracker:
            tracker.reused([CELL], store)
    assert registered(client, "Hopper-bcq-snip-0.95-seed-0") == ({1: CELL.digest}, 1)


@pytest.mark.parametrize(
    "step",
    [
        "_save",
        "mlflow.MlflowClient.create_model_version",
        "mlflow.MlflowClient.log_outputs",
        "mlflow.MlflowClient.finalize_logged_model",
    ],
)
def test_the_next_driver_logs_what_a_killed_one_did_not(config, store, client, monkeypatch, step):
    """Whatever it was about to do; the cell was kept."""

    def killed(*_, **__):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), monkeypatch.context() as patch:  # noqa: PT012
        patch.setattr(step if "." in step else f"{models.__name__}.{step}", killed)
        with tracked(config) as tracker:
            finish(tracker, store, {"bc.onnx": policy(CELL.name)})
    (pending,) = logged(client)
    assert pending.status == "PENDING"
    assert cell_run(client).info.status == "KILLED"

    with tracked(config) as tracker:
        tracker.reused([CELL], store)
    (model,) = logged(client)
    assert (model.model_id, model.status) == (pending.model_id, "READY")
    run = cell_run(client)
    assert run.info.status == "FINISHED"
    assert [output.model_id for output in run.outputs.model_outputs] == [model.model_id]
    assert registered(client, "Hopper-bcq-snip-0.95-seed-0") == ({1: CELL.digest}, 1)
    loaded = mlflow.pyfunc.load_model(model.artifact_location)
    assert loaded.predict(loaded.input_example)["action"].shape == (1, 3)


@pytest.fixture
def serve(config):
    """Starts `mlflow models serve` for a model; returns its address."""
    servers = []

    def start(model):
        port = free_port()
        command = [sys.executable, "-m", "mlflow", "models", "serve", "--env-manager", "local"]
        command += ["--model-uri", f"models:/{model.model_id}", "--host", "127.0.0.1", "--port", str(port)]
        environment = os.environ | {
            "MLFLOW_TRACKING_URI": config.uri,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        }
        servers.append(subprocess.Popen(command, env=environment, start_new_session=True))
        address = f"http://127.0.0.1:{port}"
        wait_until(lambda: answers(servers[-1], address), "the server answers")
        return address

    yield start
    for server in servers:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def answers(server, address):
    assert server.poll() is None
    with contextlib.suppress(OSError), urllib.request.urlopen(f"{address}/health", timeout=5):
        return True


def invoke(address, inputs):
    body = json.dumps({"inputs": {name: values.tolist() for name, values in inputs.items()}}).encode()
    request = urllib.request.Request(f"{address}/invocations", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)["predictions"]


@pytest.fixture
def exported(tmp_path):
    """Graphs as the stage writes them, with sparse initialisers too."""
    opened = {
        "bc": open_network(save_agent(tmp_path / "bc.safetensors", "bc", 0.95), "masked"),
        "bcq": open_network(save_agent(tmp_path / "bcq.safetensors", "bcq", 0.95), "compacted"),
        "style": open_network(save_style(tmp_path / "style.safetensors"), "dense"),
    }
    graphs = {}
    for name, network in opened.items():
        card = GraphCard(
            network.kind, name, network.form, network.sparsity, "unknown", "0" * 64, network.inputs,
            network.outputs, network.details,
        )  # fmt: skip
        graphs[name] = to_onnx(network, card, opset=20)
    graphs["bc-sparse"] = with_sparse_initializers(graphs["bc"])
    return {f"{name}.onnx": graph.SerializeToString() for name, graph in graphs.items()}


@pytest.mark.slow
def test_exported_networks_are_loaded_and_served(config, store, client, exported, serve):
    with tracked(config) as tracker:
        finish(tracker, store, exported)
    found = {model.name: model for model in logged(client)}
    assert found.keys() == {"bc", "bc-sparse", "bcq", "style"}
    for name, model in found.items():
        loaded = mlflow.pyfunc.load_model(model.artifact_location)
        inputs = {key: values.astype(np.float32) for key, values in loaded.input_example.items()}
        expected = load_onnx(store.path(CELL.digest) / f"{name}.onnx")(**inputs)
        predicted = loaded.predict(loaded.input_example)
        assert predicted.keys() == expected.keys()
        for output, values in expected.items():
            np.testing.assert_allclose(predicted[output], values, rtol=1e-5, atol=1e-6)

    address = serve(found["bcq"])
    generator = np.random.default_rng(0)
    inputs = {
        "state": generator.normal(size=(3, 11)).astype(np.float32),
        "latents": generator.normal(size=(3, 5, 6)).astype(np.float32),
    }
    expected = load_onnx(store.path(CELL.digest) / "bcq.onnx")(**inputs)
    served = invoke(address, inputs)
    np.testing.assert_allclose(served["action"], expected["action"], rtol=1e-5, atol=1e-6)
    assert served["choice"] == expected["choice"].tolist()
    with pytest.raises(urllib.error.HTTPError) as refused:
        invoke(address, {"state": inputs["state"]})
    assert refused.value.code == 400


def test_current_follows_files_that_dvc_restores_and_comes_back_when_deleted(config, store, client, tmp_path):
    name, graphs = "Hopper-bcq-snip-0.95-seed-0", {"a": policy(CELL.name), "b": graph_of_another_agent()}
    for start, graph in enumerate(graphs.values()):
        cell = Cell(CELL.name, add_up, SumParams(start))
        with tracked(config) as tracker:
            tracker.started(cell)
            store.commit(cell, {"a-compacted.onnx": graph}, MADE)
            tracker.finished(cell, store.path(cell.digest))
    experiment = client.get_experiment_by_name("singleshot/export_onnx").experiment_id
    file = tmp_path / "a-compacted.onnx"

    def measured(card):
        return {"latency": f"as of {card.cell}"}

    def current(graph):
        file.write_bytes(graphs[graph])
        assert models.follow_files(client, experiment, [file], measured) == []
        return client.get_model_version_by_alias(name, "current").version

    assert [current(graph) for graph in "abab"] == [1, 2, 1, 2]
    description = client.get_registered_model(name).description
    assert f"| bytes | {file.stat().st_size:,} |\n| latency | as of {CELL.name} |" in description
    client.update_registered_model(name, "A person's words.")
    current("a")
    assert client.get_registered_model(name).description == "A person's words."
    client.delete_registered_model(name)
    assert current("a") == 1  # of the model that was registered again
    assert mlflow.pyfunc.load_model(f"models:/{name}@current").predict
    file.write_bytes(policy("never/logged"))
    assert models.follow_files(client, experiment, [file], measured) == [file]


def graph_of_another_agent():
    graph = onnx.load_from_string(policy(CELL.name))
    graph.graph.doc_string = "of another configuration"
    return graph.SerializeToString()
