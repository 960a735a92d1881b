"""A real S3 server on this machine, moto's, in a process of its own: `python -m tests.s3 [--ignores-conditions]`.

moto looks whether an object is there and then writes it, in threads: requests are let in one by one, so that a
conditional write is what it is on S3. One key is refused, as S3 refuses an unknown one. `--ignores-conditions` makes it
a server that does not know conditional writes.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

REFUSED = "refused"
"""An access key that the server does not know."""
BUCKET = "bucket"
_DENIED = b"<Error><Code>InvalidAccessKeyId</Code><Message>The key does not exist in our records.</Message></Error>"


@contextmanager
def running(*options: str) -> Iterator[str]:
    """Run a server with one bucket, and yield the URL of its API."""
    command = [sys.executable, "-m", "tests.s3", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None
            endpoint = process.stdout.readline().strip()
            assert endpoint, "the server did not start"
            yield endpoint
        finally:
            process.kill()


def settings(endpoint: str) -> dict[str, str]:
    """The environment of a process that uses the server."""
    return {
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_EC2_METADATA_DISABLED": "true",
    }


def use(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process use the server."""
    for name, value in settings(endpoint).items():
        monkeypatch.setenv(name, value)
    forget()


def forget() -> None:
    """Have this process read its credentials and the server's address anew."""
    from s3fs import S3FileSystem

    S3FileSystem.clear_instance_cache()


def serve(ignores_conditions: bool) -> None:
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
    from werkzeug.serving import make_server

    moto: Callable[[dict[str, Any], Any], Iterable[bytes]] = DomainDispatcherApplication(create_backend_app)
    alone = threading.Lock()

    def application(environ: dict[str, Any], start: Any) -> Iterable[bytes]:
        if f"Credential={REFUSED}/" in environ.get("HTTP_AUTHORIZATION", ""):
            start("403 Forbidden", [("Content-Type", "application/xml")])
            return [_DENIED]
        if ignores_conditions:
            environ.pop("HTTP_IF_NONE_MATCH", None)
        with alone:
            return list(moto(environ, start))

    server = make_server("127.0.0.1", 0, application, threaded=True, request_handler=MotoRequestHandler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    endpoint = f"http://127.0.0.1:{server.port}"
    _make_bucket(endpoint)
    print(endpoint, flush=True)
    threading.Event().wait()


def _make_bucket(endpoint: str) -> None:
    import boto3

    client = boto3.client(
        "s3", endpoint_url=endpoint, aws_access_key_id="key", aws_secret_access_key="secret", region_name="us-east-1"
    )
    client.create_bucket(Bucket=BUCKET)


if __name__ == "__main__":
    serve("--ignores-conditions" in sys.argv)
