"""What must hold of any answer of a web server: the right data, or a documented error."""

from __future__ import annotations

import contextlib
import functools
import io
import re
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import npzkit
import numpy as np
from calls import Violation, shown, spent
from npzkit.errors import NpzkitError
from npzkit.stores import http_store, retries

__all__ = ["check_http", "http_seeds"]

PART = slice(100, 400)
"""The rows that a part of the array has: one byte each, and none of them is ASCII."""
OPENING = b"O"
"""What an input begins with that answers the first request of an open. Others answer a part's."""
_RANGE = re.compile(rb"Range: bytes=(\d*)-(\d*)\r\n")
_CHUNK = re.compile(rb"([0-9A-Fa-f]+)[ \t]*(?:;[^\r\n]*)?\r\n")
_CODING = re.compile(rb"^transfer-encoding[ \t]*:([^\n]*(?:\n[ \t][^\n]*)*)", re.I | re.M)
_MODIFIED = "Sun, 22 Nov 2026 10:00:00 GMT"


def _packed(**arrays: np.ndarray) -> bytes:
    stream = io.BytesIO()
    npzkit.save(stream, arrays)
    return stream.getvalue()


RIGHT = np.random.default_rng(0).integers(128, 256, 500, "u1")
FILES = {
    # Its beginning is not in what is read first.
    b"/part.npz": _packed(a=RIGHT, rest=np.zeros(80_000, "u1")),
    b"/open.npz": _packed(a=RIGHT),
}


class _Server:
    """Answers each request on a connection of its own, the next one with what it is told."""

    def __init__(self) -> None:
        self.next: bytes | None = None
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.address = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            client, _ = self._listener.accept()
            with client, contextlib.suppress(OSError):
                client.settimeout(10)
                head = b""
                while not head.endswith(b"\r\n\r\n"):
                    piece = client.recv(1 << 16)
                    if not piece:
                        break
                    head += piece
                if head:
                    answer, self.next = self.next, None
                    client.sendall(good(head) if answer is None else answer)
                    client.shutdown(socket.SHUT_WR)


def good(head: bytes, **changes: str) -> bytes:
    """Return a right answer; `changes` are fields, those that are empty are left out."""
    data = FILES.get(head.split(b" ")[1].partition(b"?")[0])
    if data is None:
        return b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"
    begin, end, status = 0, len(data), "200 OK"
    fields = {"ETag": '"one"', "Last-Modified": _MODIFIED, "Connection": "close"}
    if found := _RANGE.search(head):
        first, last = found.groups()
        begin = int(first) if first else max(len(data) - int(last), 0)
        end = min(int(last) + 1, len(data)) if first else len(data)
        status = "206 Partial Content"
        fields["Content-Range"] = f"bytes {begin}-{end - 1}/{len(data)}"
    fields = {**fields, "Content-Length": str(end - begin), **changes}
    lines = [f"HTTP/1.1 {status}", *(f"{name}: {value}" for name, value in fields.items() if value)]
    return "\r\n".join([*lines, "", ""]).encode() + data[begin:end]


@functools.cache
def _opened() -> tuple[_Server, Any]:
    """Return the server, and the array a part of which is read."""
    server = _Server()
    with _without_waits():
        lazy = npzkit.open(f"{server.address}/part.npz", storage_options={"timeout": 5}).lazy("a")
        # Its headers come with the first rows.
        np.testing.assert_array_equal(lazy[:3], RIGHT[:3])
    return server, lazy


@contextlib.contextmanager
def _without_waits() -> Iterator[None]:
    """Repeat no request, and compare times of a server's clock at once."""
    with patch.object(retries, "ATTEMPTS", 1), patch.object(http_store, "_TIME_STEP", 0.0):
        yield


def check_http(data: bytes, thorough: bool) -> list[str]:
    """Answer one request with these bytes, and all after it rightly."""
    server, lazy = _opened()
    begin = time.perf_counter()
    kind = "open" if data.startswith(OPENING) else "part"
    server.next = data.removeprefix(OPENING)
    try:
        with _without_waits():
            found = lazy[PART] if kind == "part" else _array_of(f"{server.address}/open.npz")
    except (OSError, NpzkitError) as error:
        if not str(error).isprintable():
            raise Violation(f"{kind}: an error that cannot be shown: {str(error)!r}") from error
        return [f"{kind}: {type(error).__name__}"]
    except Exception as error:
        raise Violation(f"{kind}: {shown(error)}") from error
    finally:
        server.next = None
        spent[0] += time.perf_counter() - begin
    right = RIGHT[PART] if kind == "part" else RIGHT
    if np.array_equal(found, right):
        return [f"{kind}: read"]
    if kind == "part" and found.tobytes().startswith(_body(data)[: len(found)] or b"?"):
        # These bytes are data by the answer's own framing.
        return [f"{kind}: read as framed"]
    raise Violation(f"{kind}: {found.tobytes()[:60]!r} instead of {right.tobytes()[:60]!r}")


def _array_of(url: str) -> Any:
    with npzkit.open(url) as npz:
        return npz["a"]


def _body(data: bytes) -> bytes:
    """Return the body of an answer, read strictly; empty if it is not valid."""
    head, body = b"HTTP/1.1 100", data
    while re.match(rb"HTTP/1\.\d 1\d\d", head):
        # A line may end without its CR (RFC 9112, 2.2).
        head, body = [*re.split(rb"\r?\n\r?\n", body, maxsplit=1), b""][:2]
    codings = [found.strip().lower() for found in _CODING.findall(head)]
    if set(codings) <= {b"identity"}:
        said = re.search(rb"^content-range:[ \t]*bytes (\d+)-(\d+)/", head, re.I | re.M)
        return body[: int(said[2]) - int(said[1]) + 1] if said else body
    if codings != [b"chunked"]:
        return b""
    pieces, place = [], 0
    while found := _CHUNK.match(body, place):
        size, place = int(found[1], 16), found.end()
        pieces.append(body[place : place + size])
        place += size + 2
        if not size:
            return b"".join(pieces)
        if body[place - 2 : place] != b"\r\n":
            break
    return b""


def _chunked(
    answer: bytes, sizes: list[int], extension: bytes = b"", trailer: bytes = b""
) -> bytes:
    """Return an answer with its body in chunks; the last one has the rest."""
    head, _, body = answer.partition(b"\r\n\r\n")
    pieces = []
    for size in [*sizes, len(body)]:
        piece, body = body[:size], body[size:]
        pieces += [b"%x%b\r\n" % (len(piece), extension), piece, b"\r\n"]
    return b"".join([head, b"\r\n\r\n", *pieces, b"0\r\n", trailer, b"\r\n"])


def http_seeds() -> list[bytes]:
    """Return answers of many kinds to both requests."""
    _opened()
    place = FILES[b"/part.npz"].index(RIGHT.tobytes())
    first, last = place + PART.start, place + PART.stop - 1
    part = b"GET /part.npz HTTP/1.1\r\nRange: bytes=%d-%d\r\n\r\n" % (first, last)
    tail = b"GET /open.npz HTTP/1.1\r\nRange: bytes=-65600\r\n\r\n"
    chunks = {"Content_Length": "", "Transfer-Encoding": "chunked", "Content-Length": ""}
    found = []
    for request, mark in ((part, b""), (tail, OPENING)):
        plain, coded = good(request), good(request, **chunks)
        whole = re.sub(rb"Range: [^\r]*\r\n", b"", request)
        few = b"GET /%b.npz HTTP/1.1\r\nRange: bytes=%d-%d\r\n\r\n" % (
            b"open" if mark else b"part", first if not mark else 0, last - 100,
        )  # fmt: skip
        answers = [
            plain,
            _chunked(coded, []), _chunked(coded, [1, 16, 100]), _chunked(coded, [255], b" ;a=b"),
            _chunked(coded, [5], b"", b"X: y\r\nETag: z\r\n"),
            good(request, **{"Content-Length": ""}),
            good(request, **{**chunks, "Transfer-Encoding": "gzip, chunked"}),
            good(request, **{"Content-Encoding": "gzip"}), good(request, ETag='W/"one"'),
            good(request, ETag=""), good(request, **{"ETag": "", "Last-Modified": ""}),
            good(request, Date=_MODIFIED, ETag=""),
            b"HTTP/1.1 100 Continue\r\n\r\n" + plain,
            b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" * 2 + _chunked(coded, [7]),
            plain.replace(b"HTTP/1.1", b"HTTP/1.0"), plain.replace(b"\r\n", b"\n", 9),
            plain.replace(b"ETag: ", b"ETag:\r\n\t "),
            plain.replace(b"Connection: close\r\n", b"Connection: keep-alive\r\n") + plain,
            good(whole), _chunked(good(whole, **chunks), [50]), good(few),
            b"HTTP/1.1 416 No\r\nContent-Range: bytes */1500\r\nContent-Length: 0\r\n\r\n",
            b"HTTP/1.1 302 Found\r\nLocation: /part.npz?x\r\nContent-Length: 0\r\n\r\n",
            b"HTTP/1.1 503 Wait\r\nRetry-After: 3\r\nContent-Length: 2\r\n\r\nno",
            b"HTTP/1.1 412 No\r\n\r\n", b"HTTP/1.1 404 No\r\n\r\n", b"HTTP/1.1 204 No\r\n\r\n",
        ]  # fmt: skip
        found += [mark + answer for answer in answers if len(answer) < 1 << 14]
    return found
