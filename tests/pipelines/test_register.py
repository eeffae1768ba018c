import shutil
import time

import mlflow
import pytest

from pipelines.cli.register import FIRST, all_steps, register_graphs


@pytest.fixture
def client(empty_database, tmp_path, monkeypatch):
    shutil.copy(empty_database, tmp_path / "mlflow.db")
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    return mlflow.MlflowClient(uri)


def listed(client):
    """As MLflow's page lists them."""
    found = client.search_experiments(order_by=["last_update_time DESC"])
    return [each.name.removeprefix("singleshot/") for each in found if each.name != "Default"]


def test_training_and_data_are_listed_first_then_the_steps_in_their_order(client):
    for step in all_steps():
        client.create_experiment(f"singleshot/{step}")
        time.sleep(0.002)  # MLflow's times are in milliseconds
    assert listed(client)[0] == "report"
    register_graphs()
    assert listed(client) == [*FIRST, *(step for step in all_steps() if step not in FIRST)]
    before = client.get_experiment_by_name("singleshot/train").last_update_time
    register_graphs()
    assert client.get_experiment_by_name("singleshot/train").last_update_time == before


def test_a_deleted_experiment_stays_as_it_is(client):
    for step in ("prepare_data", "prune", "train"):
        client.create_experiment(f"singleshot/{step}")
        time.sleep(0.002)
    client.delete_experiment(client.get_experiment_by_name("singleshot/prune").experiment_id)
    register_graphs()
    assert listed(client) == ["train", "prepare_data"]
