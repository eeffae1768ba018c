"""The registry of models follows the files in `models/onnx`, with a real database of MLflow's."""

import json
import shutil

import mlflow
import numpy as np
import onnx
import pytest
import small_graphs
from checkouts import ROOT

from pipelines.cli.register import REGISTERED, register_graphs
from pipelines.stages import GRAPHS, QUALITY, TIMINGS

NAME = small_graphs.BC.replace("/", "-")
POLICY = GRAPHS / small_graphs.BC / "bc.onnx"
TABLES = {
    TIMINGS: f"""model,form,runtime,device,threads,batch,size_px,p50_ms,status,precision,same_choices
{small_graphs.BC},dense,torch,cpu,1,1,,0.5,ok,float32,
{small_graphs.BC},dense,tvm,cpu,0,1,,0.0213,ok,float32,
{small_graphs.BC},dense,xla,cpu,1,1,,0.001,failed,float32,
{small_graphs.BC},dense,openvino-bf16,cpu,1,1,,0.002,ok,bfloat16,
{small_graphs.BC},dense,openvino-f32,cpu,1,256,,0.01,ok,float32,
{small_graphs.BCQ},dense,torch,cpu,1,1,,0.7,ok,float32,1.0
{small_graphs.BCQ},dense,xla,cpu,1,1,,0.3,ok,float32,0.6
styles/swirls,dense,onnxruntime,cpu,1,1,256,41.26,ok,float32,
""",
    QUALITY: """style,method,image,style_ratio_alexnet,ssim,lpips,warping_error_ratio
swirls,johnson,chelsea,0.6,0.5,0.3,
swirls,johnson,coffee,0.7,0.7,0.4,
swirls,johnson,clip,0.1,0.1,0.1,0.4
swirls,gatys-vgg19,chelsea,0.1,0.1,0.1,
""",
}


@pytest.fixture(autouse=True)
def client(empty_database, tmp_path, monkeypatch):
    """MLflow's client, in a directory that has a finished run's networks and tables."""
    shutil.copy(empty_database, tmp_path / "mlflow.db")
    shutil.copy(ROOT / "params.yaml", tmp_path)
    monkeypatch.chdir(tmp_path)
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"  # MLflow remembers a relative one of another test
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    for path, text in TABLES.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    small_graphs.write_bc(POLICY, latents=True)
    return mlflow.MlflowClient(uri)


def current():
    """The version of the policy that is current, after the stage has run."""
    register_graphs()
    return json.loads(REGISTERED.read_text(encoding="utf-8"))[NAME]


def described(client, cell):
    return client.get_registered_model(cell.replace("/", "-")).description


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


def test_a_registered_policy_acts_in_either_precision_and_a_persons_words_stay(client):
    register_graphs()
    model = mlflow.pyfunc.load_model(f"models:/{NAME}@current")
    state = np.linspace(-1, 1, small_graphs.STATE)
    for dtype in (np.float32, np.float64):
        inputs = {"state": state[None].astype(dtype), "latents": np.zeros((1, small_graphs.LATENT), dtype)}
        action = model.predict(inputs)["action"][0]
        np.testing.assert_allclose(action, small_graphs.bc_action(state), atol=1e-6)
    client.update_registered_model(NAME, "A person's words.")
    register_graphs()
    assert described(client, small_graphs.BC) == "A person's words."


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


def test_a_description_says_what_was_measured_by_the_fastest_runtime_that_acts_the_same(client):
    small_graphs.write_all(GRAPHS)
    register_graphs()
    bc = described(client, small_graphs.BC)
    assert "| latency | 0.0213 ms for one state by tvm in float32 (median; all cores, cpu;" in bc
    assert f"models:/{NAME}@current" in bc
    assert "| latency | 0.7 ms for one state by torch" in described(client, small_graphs.BCQ)
    style = described(client, "styles/swirls")
    assert "| quality | 35% of the way from photo to painting" in style
    assert "SSIM 0.60 and LPIPS 0.35 to the photo (means over 2 photos)" in style
    assert "41.3 ms for one picture of 256 x 256 px by onnxruntime" in style
    classifier = described(client, "classifiers/efficientnet_lite0")
    assert "| latency | not measured" in classifier
