"""An S3 server of our own, on loopback."""

import contextlib
from collections.abc import Iterator, Mapping

import boto3
import pytest
from moto.server import ThreadedMotoServer

BUCKET = "singleshot"


@contextlib.contextmanager
def s3_server() -> Iterator[Mapping[str, str]]:
    """A server with an empty bucket; yields the environment that leads there, which is this process's too."""
    server = ThreadedMotoServer("127.0.0.1", 0)
    server.start()
    host, port = server.get_host_and_port()
    environment = {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_ACCESS_KEY_ID": "a-key",
        "AWS_SECRET_ACCESS_KEY": "a-secret",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        boto3.client("s3").create_bucket(Bucket=BUCKET)
        yield environment
    server.stop()


class Objects:
    """What is below a prefix of the bucket, by key."""

    def __init__(self, prefix: str):
        self.prefix = f"{prefix}/"
        self._s3 = boto3.client("s3")

    def __iter__(self) -> Iterator[str]:
        pages = self._s3.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=self.prefix)
        for page in pages:
            for entry in page.get("Contents", []):
                yield entry["Key"].removeprefix(self.prefix)

    def __getitem__(self, key: str) -> bytes:
        return self._s3.get_object(Bucket=BUCKET, Key=self.prefix + key)["Body"].read()

    def __setitem__(self, key: str, content: bytes) -> None:
        self._s3.put_object(Bucket=BUCKET, Key=self.prefix + key, Body=content)

    def __delitem__(self, key: str) -> None:
        self._s3.delete_object(Bucket=BUCKET, Key=self.prefix + key)
