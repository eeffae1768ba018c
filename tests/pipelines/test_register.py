"""The registry of models follows the files in `models/onnx`, with a real database of MLflow's."""

import json
import shutil

import mlflow
import numpy as np
import onnx
import pytest
import small_graphs
from checkouts import ROOT
from toy_tasks.work import SumParams, add_up

from pipelines.cli.register import REGISTERED, register_graphs
from pipelines.engine.cells import Cell
from pipelines.engine.tracking import TrackingConfig, tracking
from pipelines.stages import GRAPHS

NAME = small_graphs.BC.replace("/", "-")
POLICY = GRAPHS / small_graphs.BC / "bc.onnx"


@pytest.fixture(autouse=True)
def client(empty_database, tmp_path, monkeypatch):
    """MLflow's client, in a directory that has a finished run's networks and tables."""
    shutil.copy(empty_database, tmp_path / "mlflow.db")
    shutil.copy(ROOT / "params.yaml", tmp_path)
    monkeypatch.chdir(tmp_path)
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"  # MLflow remembers a relative one of another test
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    small_graphs.write_bc(POLICY, latents=True)
    return mlflow.MlflowClient(uri)


def current():
    """The version of the policy that is current, after the stage has run."""
    register_graphs()
    return json.loads(REGISTERED.read_text(encoding="utf-8"))[NAME]


def test_the_alias_follows_the_file_and_each_file_is_logged_once(client):
    first = POLICY.read_bytes()
    assert (current(), current()) == ("1", "1")
    graph = onnx.load(POLICY)
    graph.graph.doc_string = "of another configuration"
    onnx.save(graph, POLICY)
    assert current() == "2"
    POLICY.write_bytes(first)  # as DVC restores it
    assert current() == "1"
    assert client.get_model_version_by_alias(NAME, "current").version == 1
    assert len(client.search_model_versions(f"name = '{NAME}'")) == 2


def test_a_registered_policy_acts_in_either_precision():
    register_graphs()
    model = mlflow.pyfunc.load_model(f"models:/{NAME}@current")
    state = np.linspace(-1, 1, small_graphs.STATE)
    for dtype in (np.float32, np.float64):
        inputs = {"state": state[None].astype(dtype), "latents": np.zeros((1, small_graphs.LATENT), dtype)}
        action = model.predict(inputs)["action"][0]
        np.testing.assert_allclose(action, small_graphs.bc_action(state), atol=1e-6)


def test_what_was_deleted_is_registered_again(client):
    register_graphs()
    client.delete_registered_model(NAME)
    assert current() == "1"
    (run,) = client.search_runs([client.get_experiment_by_name("singleshot/register").experiment_id])
    client.delete_run(run.info.run_id)
    shutil.rmtree(client.get_model_version_download_uri(NAME, "1").removeprefix("file://"))
    assert current() == "2"
    assert mlflow.pyfunc.load_model(f"models:/{NAME}@current")


def test_a_driver_that_was_killed_between_two_steps_leaves_no_wrong_alias(monkeypatch):
    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(mlflow.MlflowClient, "set_model_version_tag", killed)
        with pytest.raises(KeyboardInterrupt):
            register_graphs()
    assert not REGISTERED.exists()
    assert current() == current() == "2"


def test_a_version_has_its_card_and_belongs_to_the_run_that_trained_the_network(client):
    cell = Cell(small_graphs.BC, add_up, SumParams(1))
    with tracking(TrackingConfig(), "train", "smoke") as tracker:
        tracker.started(cell)
    small_graphs.write_all(GRAPHS)
    register_graphs()
    (trained,) = client.search_runs(
        [client.get_experiment_by_name("singleshot/train").experiment_id], "tags.kind = 'cell'"
    )
    version = client.get_model_version_by_alias(NAME, "current")
    assert version.run_id == trained.info.run_id
    assert f"| network | `{small_graphs.BC}` |" in version.description
    others = client.get_model_version_by_alias("styles-swirls", "current")
    assert client.get_run(others.run_id).info.run_name.startswith("register ")
