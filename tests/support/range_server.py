"""A web server on the loopback that answers ranges, counts requests, and misbehaves on demand.

Owns no data: a test gives it bytes by path. It ends with the test's ``with`` block.
"""

from __future__ import annotations

import contextlib
import re
import socket
import ssl
import struct
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import BaseServer
from typing import Any, NamedTuple

__all__ = ["Handler", "RangeServer", "Request", "good", "serving"]

_RANGE = re.compile(r"bytes=(\d*)-(\d*)")


class Request(NamedTuple):
    """One request that the server answered: bytes are those of the body that was sent."""

    method: str
    path: str
    headers: dict[str, str]
    size: int


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Any

    def log_message(self, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        server: RangeServer = self.server.owner
        with server.lock:
            server.under_way += 1
            server.most_under_way = max(server.most_under_way, server.under_way)
            server.lock.notify_all()
            server.lock.wait_for(lambda: server.most_under_way >= server.together, 10)
        try:
            time.sleep(server.delay)
            server.answer(self, server)
        finally:
            with server.lock:
                server.under_way -= 1

    do_HEAD = do_GET

    def record(self, size: int) -> None:
        """Count a request, before the client can have its answer."""
        headers = {name.lower(): value for name, value in self.headers.items()}
        with self.server.owner.lock:
            self.server.owner.requests.append(Request(self.command, self.path, headers, size))

    def reply(self, status: int, body: bytes = b"", **headers: str) -> None:
        """Send a complete answer."""
        self.record(len(body))
        self.send_response(status)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        named.setdefault("Content-Length", str(len(body)))
        for name, value in named.items():
            if value:
                self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def reset(self) -> None:
        """End the connection as if the network broke."""
        self.wfile.flush()
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True
        self.connection.close()


Answer = Callable[[Handler, "RangeServer"], object]


def good(handler: Handler, server: RangeServer, **changes: Any) -> None:
    """Answer as a web server should; `changes` are headers."""
    data = server.files.get(handler.path.split("?")[0])
    if data is None:
        handler.reply(404, b"no such file")
        return
    etag = server.etag
    if "If-Match" in handler.headers and handler.headers["If-Match"] != etag:
        handler.reply(412)
        return
    common = {"ETag": etag, "Last_Modified": server.modified, **changes}
    found = _RANGE.fullmatch(handler.headers.get("Range", ""))
    if found is None:
        handler.reply(200, data, **common)
        return
    first, last = found.groups()
    begin = int(first) if first else max(len(data) - int(last), 0)
    end = min(int(last) + 1, len(data)) if first and last else len(data)
    if begin >= len(data):
        handler.reply(416, Content_Range=f"bytes */{len(data)}", **common)
        return
    named = {"Content_Range": f"bytes {begin}-{end - 1}/{len(data)}", **common}
    handler.reply(206, data[begin:end], **named)


class RangeServer:
    """The server of one test.

    Parameters
    ----------
    context : ssl.SSLContext, optional
        Of a server with TLS.

    Attributes
    ----------
    files : dict of str to bytes
        By path.
    answer : callable
        Makes an answer; `good` by default.
    requests : list of Request
    together : int
        Answers wait until so many requests are under way at the same time.
    """

    def __init__(self, context: ssl.SSLContext | None = None) -> None:
        self.files: dict[str, bytes] = {}
        self.answer: Answer = good
        self.etag = '"one"'
        self.modified = "Sun, 22 Nov 2026 10:00:00 GMT"
        self.delay = 0.0
        self.requests: list[Request] = []
        self.under_way = self.most_under_way = 0
        self.together = 0
        self.lock = threading.Condition()
        self._server = _Server(("127.0.0.1", 0), Handler)
        self._server.owner = self
        self._server.context = context
        self.scheme = "http" if context is None else "https"
        self.address = f"127.0.0.1:{self._server.server_address[1]}"

    def url(self, path: str = "/a.npz") -> str:
        return f"{self.scheme}://{self.address}{path}"

    def put(self, data: bytes, path: str = "/a.npz") -> str:
        """Serve bytes, and return their URL."""
        self.files[path] = data
        return self.url(path)

    @property
    def count(self) -> int:
        return len(self.requests)

    @property
    def size(self) -> int:
        """Bytes of all bodies that were sent."""
        return sum(request.size for request in self.requests)

    def forget(self) -> None:
        """Count from zero again."""
        self.requests.clear()
        self.most_under_way = 0

    @contextlib.contextmanager
    def running(self) -> Iterator[RangeServer]:
        with serving(self._server):
            yield self


def with_tls(context: ssl.SSLContext, request: Any) -> ssl.SSLSocket:
    """Return the socket of a request with TLS."""
    try:
        return context.wrap_socket(request, server_side=True)
    except OSError as error:
        # Python closes no socket whose client reset it before TLS began.
        for frame, _ in traceback.walk_tb(error.__traceback__):
            left = frame.f_locals.get("self")
            if isinstance(left, ssl.SSLSocket):
                left.close()
        raise


@contextlib.contextmanager
def serving(server: BaseServer) -> Iterator[None]:
    """Let a server answer in a thread until the block ends."""
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 64
    owner: RangeServer
    context: ssl.SSLContext | None

    def finish_request(self, request: Any, client_address: Any) -> None:
        # In the thread of the connection: a client may be slow, or refuse the certificate.
        if self.context is None:
            super().finish_request(request, client_address)
            return
        with with_tls(self.context, request) as wrapped:
            super().finish_request(wrapped, client_address)

    def handle_error(self, *args: Any) -> None:
        # Clients that give up, and answers that break off, are part of the tests.
        pass
