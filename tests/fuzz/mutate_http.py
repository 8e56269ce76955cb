"""Mutations of a web server's answer: its lines, its numbers, its chunks; never its data.

Bytes of data that must not be taken for others have their high bit set, and stay as they are.
"""

from __future__ import annotations

import random
import re

__all__ = ["mutate_http"]

_LINES = (
    b"Transfer-Encoding: chunked", b"Transfer-Encoding: gzip, chunked", b"Transfer-Encoding: chunked,",
    b"Transfer-Encoding:\r\n chunked", b"Transfer-Encoding : chunked", b"transfer-encoding: CHUNKED",
    b"Transfer-Encoding: identity", b"Transfer-Encoding: chunked\r", b"Content-Length: 300", b"Content-Length: 0",
    b"Content-Length: -1", b"Content-Length: 300, 300", b"Content-Length: 3_00", b"Content-Length: +300",
    b"Content-Length: 99999999999999999999", b"Content-Encoding: gzip", b"Content-Encoding: identity", b"no field",
    b": no name", b" folded", b"\tfolded", b"", b"HTTP/1.1 206 OK", b"HTTP/1.1 100 Continue\r\n", b"HTTP/1.1 103 Hints\r\n",
    b"HTTP/1.1 101 Switching Protocols", b"From a mailbox", b"Connection: keep-alive", b"Connection: close", b"Keep-Alive: max=0",
    b"Content-Type: multipart/byteranges; boundary=x", b"Content-Range: bytes */1500", b"X: " + b"x" * 5000, b"X\0: \0",
    b"Last-Modified: Sun, 22 Nov 2026 10:00:00 GMT", b"Date: Sun, 22 Nov 2026 10:00:00 GMT", b'ETag: "two"', b"Location: /a",
    b"Trailer: ETag", b"0", b"-1", b"-5", b"1;x", b"\r", b"Retry-After: 1", b"Content-Length: 12c", b"Content-Length: 0x12c",
)  # fmt: skip
_PIECES = (
    b"\r\n", b"\n", b"\r", b"\r\n\r\n", b"\n\n", b" ", b"\t", b":", b";", b",", b"-", b"+", b"0", b"_", b"0x", b"1", b"f", b"\0",
    b"\x0b", b"\x0c", b"\x1c", b"\x7f", b'"', b"/", b"*", b"HTTP/1.1 ", b"chunked", b"bytes ",
)  # fmt: skip
_STATUSES = (
    b"200",
    b"204",
    b"206",
    b"100",
    b"103",
    b"301",
    b"304",
    b"404",
    b"412",
    b"416",
    b"500",
    b"999",
    b"20",
    b"2_06",
    b"x",
)
_ASCII = re.compile(rb"[\x00-\x7f]+")
_NUMBER = re.compile(rb"[0-9]+")
_SIZE_LINE = re.compile(rb"(?<=\r\n)[0-9a-f]+(?=[ ;\r])")


def mutate_http(data: bytes, rng: random.Random, seeds: tuple[bytes, ...]) -> bytes:
    """Return an answer that differs from `data` in one to three ways."""
    for _ in range(rng.choice((1, 1, 2, 3))):
        data = rng.choice(_MUTATIONS)(data, rng)
    return data


def _framing(data: bytes, rng: random.Random) -> tuple[int, int]:
    """Return where some bytes begin and end that are no data."""
    found = list(_ASCII.finditer(data))
    if not found:
        return 0, 0
    chosen = rng.choice(found) if rng.random() < 0.5 else found[0]
    return chosen.start(), chosen.end()


def _piece(data: bytes, rng: random.Random) -> bytes:
    """Insert some bytes, or put them in the place of others."""
    begin, end = _framing(data, rng)
    place = rng.randrange(begin, end) if begin < end else 0
    stop = min(place + rng.randrange(3), end)
    piece = rng.choice(_PIECES) if rng.random() < 0.9 else bytes([rng.randrange(128)])
    return data[:place] + piece + data[stop:]


def _cut(data: bytes, rng: random.Random) -> bytes:
    """Remove some bytes, or all from a place on."""
    if rng.random() < 0.2:
        return data[: rng.randrange(len(data) + 1)]
    begin, end = _framing(data, rng)
    place = rng.randrange(begin, end) if begin < end else 0
    return data[:place] + data[min(place + rng.randrange(1, 9), end) :]


def _lines(data: bytes, rng: random.Random) -> bytes:
    """Remove, repeat, swap or insert lines of the head."""
    head, blank, body = data.partition(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    place, other = rng.randrange(len(lines)), rng.randrange(len(lines))
    what = rng.randrange(8)
    if what == 0:
        del lines[place]
    elif what == 1:
        lines.insert(place, lines[other])
    elif what == 2:
        lines[place], lines[other] = lines[other], lines[place]
    elif what == 3:
        lines[place] = rng.choice(_LINES)
    else:
        lines.insert(rng.randrange(len(lines) + 1), rng.choice(_LINES))
    return b"\r\n".join(lines) + blank + body


def _number(data: bytes, rng: random.Random) -> bytes:
    """Change a number that is no data."""
    begin, end = _framing(data, rng)
    found = list(_NUMBER.finditer(data, begin, end))
    if not found:
        return data
    chosen = rng.choice(found)
    number = int(chosen[0][:30])
    new = rng.choice(
        (number + 1, number - 1, number * 2, -number, 0, number + 2, number - 2, 1 << 63)
    )
    return data[: chosen.start()] + b"%d" % new + data[chosen.end() :]


def _size(data: bytes, rng: random.Random) -> bytes:
    """Change the size of a chunk."""
    found = list(_SIZE_LINE.finditer(data))
    if not found:
        return _number(data, rng)
    chosen = rng.choice(found)
    number = int(chosen[0][:15], 16)
    texts = (
        b"%x" % (number + rng.choice((1, 2, 4, 16))), b"%x" % max(number - rng.choice((1, 2, 4)), 0), b"-%x" % number, b"-1",
        b"+%x" % number, b"0x%x" % number, b"0%x" % number, b" %x" % number, b"%x " % number, b"%x_0" % number, b"%X" % number,
        b"", b"%x" % (number << 64), b"%x\n" % number, b"%x;" % number + b"x" * 5000, b"%d" % number,
    )  # fmt: skip
    return data[: chosen.start()] + rng.choice(texts) + data[chosen.end() :]


def _status(data: bytes, rng: random.Random) -> bytes:
    """Change the status line."""
    version = rng.choice(
        (
            b"HTTP/1.1",
            b"HTTP/1.0",
            b"HTTP/2",
            b"HTTP/0.9",
            b"HTTP/1.",
            b"ICY",
            b"http/1.1",
            b"HTTP/1.1 ",
        )
    )
    line = version + b" " + rng.choice(_STATUSES) + rng.choice((b" OK", b"", b" \xff", b"  \r"))
    return re.sub(
        rb"\AO?HTTP/[^\r]*", lambda found: (b"O" if found[0][:1] == b"O" else b"") + line, data
    )


_MUTATIONS = (_piece, _cut, _lines, _lines, _number, _size, _size, _status)
