import uuid

import pytest
from clusters import started_cluster
from object_store import BUCKET, s3_server
from s3fs import S3FileSystem

from pipelines.engine.cells import CellStore
from pipelines.engine.run import ExecutorConfig


@pytest.fixture
def store(tmp_path):
    return CellStore(tmp_path / "cells")


@pytest.fixture(scope="module")
def cluster():
    """A cluster that tests join, quicker than one each; its workers know nothing of this directory."""
    with started_cluster(num_cpus=2) as cluster:
        yield ExecutorConfig(kind="ray", address=cluster.address)


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory):
    """MLflow's schema takes seconds to make: once is enough."""
    import mlflow

    path = tmp_path_factory.mktemp("mlflow") / "mlflow.db"
    mlflow.MlflowClient(f"sqlite:///{path}").search_experiments()
    return path


@pytest.fixture(scope="session")
def _s3():
    with s3_server() as environment:
        yield environment


@pytest.fixture
def bucket_url(_s3, monkeypatch):
    """A place of its own in an S3 bucket."""
    for name, value in _s3.items():
        monkeypatch.setenv(name, value)
    S3FileSystem.clear_instance_cache()  # they know the server and credentials of their first request
    return f"s3://{BUCKET}/{uuid.uuid4().hex}"
