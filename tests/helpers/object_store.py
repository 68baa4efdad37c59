"""An S3 server of this process on loopback (moto's), and what a client needs to reach it."""

import logging
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import fsspec
import pytest

VARIABLES = {
    "AWS_ACCESS_KEY_ID": "tester",
    "AWS_SECRET_ACCESS_KEY": "secret",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_CONFIG_FILE": "/dev/null",
    "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
    "AWS_EC2_METADATA_DISABLED": "true",
}


class ObjectStore:
    """A server, and a bucket of it. address: http://127.0.0.1:PORT"""

    def __init__(self, address: str, bucket: str):
        self.address, self.bucket = address, bucket
        self.url = f"s3://{bucket}"

    @property
    def variables(self) -> dict[str, str]:
        """Environment variables with which any S3 client reaches it."""
        return {**VARIABLES, "AWS_ENDPOINT_URL": self.address}

    def write(self, name: str, content: bytes) -> None:
        """Put an object by a client that caches nothing."""
        self._client().pipe_file(f"{self.bucket}/{name}", content)

    def objects(self) -> dict[str, bytes]:
        """Name in the bucket -> content, of all objects."""
        client = self._client()
        names = client.find(self.bucket)
        return {name.partition("/")[2]: client.cat_file(name) for name in names}

    def _client(self) -> fsspec.AbstractFileSystem:
        client = fsspec.filesystem(
            "s3",
            key=VARIABLES["AWS_ACCESS_KEY_ID"],
            secret=VARIABLES["AWS_SECRET_ACCESS_KEY"],
            endpoint_url=self.address,
            skip_instance_cache=True,
            use_listings_cache=False,
        )
        if not client.exists(self.bucket):
            client.mkdir(self.bucket)
        return client


@contextmanager
def serving() -> Iterator[ObjectStore]:
    """A server with an empty bucket; it ends with the block."""
    pytest.importorskip("s3fs", reason="s3fs is not installed")
    server_module = pytest.importorskip("moto.server", reason="moto is not installed")
    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # a line for every request
    server = server_module.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        store = ObjectStore(f"http://{host}:{port}", f"bucket-{uuid.uuid4().hex}")
        store._client()
        yield store
    finally:
        server.stop()
