import uuid

import pytest
from object_store import BUCKET, s3_server
from s3fs import S3FileSystem


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
