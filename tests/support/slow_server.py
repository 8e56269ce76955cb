"""A server of objects on the loopback that is silent, sends byte by byte, or lies about ranges.

It speaks enough of the protocols of web servers, S3, Google and Azure for one object to be found.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import socketserver
import threading
import time
from collections.abc import Iterator
from typing import Any

from range_server import serving

__all__ = ["KINDS", "LIES", "SlowServer", "location_in"]

# Read when gcsfs is imported, which would ask by gRPC for the kind of bucket.
os.environ.setdefault("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")

PAUSE = 0.05
"""Seconds between two pieces of an answer that is sent piece by piece."""
PIECE = 1
"""Bytes of each."""
_RANGE = re.compile(rb"(?i)(?:x-ms-)?range: *bytes=(\d*)-(\d*)")
_DATE = b"Sun, 22 Nov 2026 10:00:00 GMT"
KINDS = {
    "http": "",
    "s3": "s3fs",
    "gs": "gcsfs",
    "az": "adlfs",
    "simplecache": "aiohttp",
    "blockcache": "aiohttp",
    "zip": "aiohttp",
}
"""Kinds of stores, and the package that each needs."""
LIES = {
    "later": "the range is said to begin 64 bytes later",
    "overlapping": "bytes before the range come with it",
    "longer": "bytes after the range come with it",
    "shorter": "fewer bytes come than the head says",
    "more": "more bytes come than the head says",
    "whole": "all bytes come, with the status 200",
    "size": "the object is said to be larger",
}
"""How a server may lie."""


def location_in(kind: str, base: str, folder: Any) -> tuple[str, dict[str, Any]]:
    """Return URL and options of the object on a server, for a kind of store."""
    if kind == "http":
        return f"{base}/a.npz?sig=S3_CRET", {}
    if kind == "s3":
        options: dict[str, Any] = {
            "key": "AKID", "secret": "S3_CRET", "endpoint_url": base,
            "client_kwargs": {"region_name": "us-east-1"},
        }  # fmt: skip
        return "s3://data/a.npz", options
    if kind == "gs":
        return "gs://data/a.npz", {"token": "anon", "endpoint_url": base, "project": "p"}
    if kind == "az":
        text = f"AccountName=account;AccountKey=UzNfQ1JFVA==;BlobEndpoint={base}/account;"
        return "az://data/a.npz", {"connection_string": text}
    if kind == "zip":
        return f"zip://x.npy::{base}/a.zip?sig=S3_CRET", {}
    options = {} if kind == "blockcache" else {kind: {"cache_storage": str(folder)}}
    return f"{kind}::{base}/a.npz?sig=S3_CRET", options


class SlowServer(socketserver.ThreadingTCPServer):
    """The server of one test.

    Parameters
    ----------
    data : bytes
        Of the object.

    Attributes
    ----------
    mode : {"good", "silent", "head", "body", "busy", "reset"} or one of `LIES`
        Whether it answers, is silent, is busy, closes the connection, sends the head or the body of an answer byte by byte, or
        lies about the bytes of a range.
    next_modes : list of str
        Those of the next answers, before that.
    answers : int
        Answers under way: not complete, on connections that nobody closed.
    """

    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 64

    def __init__(self, data: bytes) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.data = data
        self.mode = "silent"
        self.next_modes: list[str] = []
        self.answers = 0
        self.lock = threading.Lock()
        self.over = threading.Event()
        self.base = f"http://127.0.0.1:{self.server_address[1]}"

    @contextlib.contextmanager
    def running(self) -> Iterator[SlowServer]:
        with serving(self):
            try:
                yield self
            finally:
                self.over.set()

    def handle_error(self, *args: Any) -> None:
        # Clients that give up are part of the tests.
        pass

    def wait_until_idle(self, seconds: float) -> bool:
        """Return whether no answer is under way at last."""
        end = time.monotonic() + seconds
        while self.answers and time.monotonic() < end:
            time.sleep(0.01)
        return not self.answers


class _Handler(socketserver.StreamRequestHandler):
    server: SlowServer

    def handle(self) -> None:
        while line := self.rfile.readline():
            asked = None
            while (header := self.rfile.readline()) not in (b"\r\n", b""):
                asked = _RANGE.match(header) or asked
            with self.server.lock:
                self.server.answers += 1
                modes = self.server.next_modes
                mode = modes.pop(0) if modes else self.server.mode
            try:
                self._answer(line, mode, *self._parts(line, asked, mode))
            finally:
                with self.server.lock:
                    self.server.answers -= 1

    def _parts(self, line: bytes, asked: Any, lie: str) -> tuple[bytes, bytes]:
        """Return head and body of a good answer."""
        data = self.server.data
        if b"/b/data/o" in line and b"alt=media" not in line:
            # Google's store tells of an object by JSON.
            said = {"name": "a.npz", "bucket": "data", "size": str(len(data)), "generation": "1"}
            body = json.dumps(said).encode()
            head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
            return head + b"Content-Length: %d\r\n\r\n" % len(body), body
        begin, end, status = 0, len(data), b"200 OK\r\n"
        if asked is not None and lie != "whole":
            first, last = asked.groups()
            begin = int(first) if first else max(len(data) - int(last), 0)
            end = min(int(last) + 1, len(data)) if first and last else len(data)
            begin = max(begin - 64 * (lie == "overlapping"), 0)
            end = min(end + 64 * (lie == "longer"), len(data))
            move = 64 * (lie == "later")
            status = b"206 Partial Content\r\nContent-Range: bytes %d-%d/%d\r\n" % (
                begin + move, end - 1 + move, len(data) + 64 * (lie in ("size", "later")),
            )  # fmt: skip
        head = b"HTTP/1.1 " + status + b'ETag: "one"\r\nAccept-Ranges: bytes\r\n'
        head += b"Last-Modified: %s\r\nx-ms-creation-time: %s\r\n" % (_DATE, _DATE)
        head += b"x-ms-blob-type: BlockBlob\r\nContent-Length: %d\r\n\r\n" % (end - begin)
        return head, data[begin:end]

    def _answer(self, line: bytes, mode: str, head: bytes, body: bytes) -> None:
        if line.startswith(b"HEAD"):
            body = b""
        if mode == "silent":
            # Until the client closes the connection.
            self.rfile.read(1)
        elif mode == "busy":
            self.wfile.write(b"HTTP/1.1 503 Slow Down\r\nContent-Length: 2\r\n\r\nno")
        elif mode == "reset":
            self.request.shutdown(socket.SHUT_RDWR)
        elif mode == "head":
            self._drip(head + body)
        elif mode == "body" and len(body) > 1000:
            self.wfile.write(head)
            self._drip(body)
        else:
            if mode == "shorter" and body:
                self.wfile.write(head + body[:-9])
                self.request.shutdown(socket.SHUT_RDWR)
            self.wfile.write(head + body + b"?" * (9 * (mode == "more" and bool(body))))

    def _drip(self, data: bytes) -> None:
        for start in range(0, len(data), PIECE):
            self.wfile.write(data[start : start + PIECE])
            if self.server.over.wait(PAUSE):
                break
