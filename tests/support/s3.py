"""A server of S3 on the loopback, where moto's is installed."""

from __future__ import annotations

import contextlib
import importlib.util
import os
from collections.abc import Iterator
from typing import Any

import pytest

__all__ = ["HAS_S3", "counted_uploads", "needs_s3", "s3_server"]

HAS_S3 = bool(importlib.util.find_spec("moto") and importlib.util.find_spec("s3fs"))
needs_s3 = pytest.mark.skipif(not HAS_S3, reason="moto's server and s3fs are not installed")


@contextlib.contextmanager
def s3_server() -> Iterator[dict[str, Any]]:
    """Yield the storage options for a server that has an empty bucket named data."""
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN"):
        os.environ.pop(name, None)
    import fsspec
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    options = {
        "key": "AKIDSECRET", "secret": "verysecret", "endpoint_url": f"http://{host}:{port}",
        "client_kwargs": {"region_name": "us-east-1"},
    }  # fmt: skip
    try:
        file_system = fsspec.filesystem("s3", skip_instance_cache=True, **options)
        file_system.call_s3("create_bucket", Bucket="data")
        yield options
    finally:
        server.stop()


@contextlib.contextmanager
def counted_uploads() -> Iterator[list[int]]:
    """Yield a list that gets the bytes of each upload to S3."""
    from aiobotocore.httpsession import AIOHTTPSession

    sent: list[int] = []
    send = AIOHTTPSession.send

    async def counted(session: Any, request: Any) -> Any:
        sent.append(len(request.body or b"") if request.method == "PUT" else 0)
        return await send(session, request)

    AIOHTTPSession.send = counted
    try:
        yield sent
    finally:
        AIOHTTPSession.send = send
