"""Answers that HTTP allows and few servers send, and what hostile servers write into them."""

from __future__ import annotations

import base64

import npzkit
import numpy as np
import pytest
from archives import packed
from npzkit.errors import StaleArchiveError, UnsupportedError, ZipFormatError
from npzkit.stores import connections, http_store, remote_source, retries
from npzkit.stores.retries import TransientError
from range_server import RangeServer, good

from tables import each_row

ARRAYS = {f"w{i}": np.random.default_rng(i).random(16_384) for i in range(4)}
DATA = packed(ARRAYS)
OTHER = packed({key: array + 1 for key, array in ARRAYS.items()})


@pytest.fixture
def server():
    with RangeServer().running() as server:
        server.put(DATA)
        yield server


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(retries, "FIRST_DELAY", 0.001)


def check_reads(npz):
    np.testing.assert_array_equal(npz.lazy("w1")[5:9], ARRAYS["w1"][5:9])
    np.testing.assert_array_equal(npz["w3"], ARRAYS["w3"])
    found = npz.load_all()
    assert all(np.array_equal(found[key], ARRAYS[key]) for key in ARRAYS)


# -- fewer bytes than were asked for ----------------------------------------


def span_of(handler):
    """Return where the range of a request begins and ends."""
    first, last = handler.headers["Range"].removeprefix("bytes=").split("-")
    return (int(first), int(last) + 1) if first else (max(len(DATA) - int(last), 0), len(DATA))


def at_most(size, data=DATA):
    """Answer no more bytes than this, from where they were asked for."""

    def answer(handler, server):
        begin, end = span_of(handler)
        if size < end - begin:
            del handler.headers["Range"]
            handler.headers["Range"] = f"bytes={begin}-{begin + size - 1}"
        good(handler, server)

    return answer


@pytest.mark.slow
@pytest.mark.parametrize("size", [9_000, 70_000])
@pytest.mark.parametrize("etag", ['"one"', "", None])
def test_answers_that_end_early_are_continued(server, size, etag):
    """The next request begins where the answer ended, and is for the same version."""
    server.answer = at_most(size)
    server.etag = etag or ""
    if etag is None:
        server.modified = ""
    with npzkit.open(server.url()) as npz:
        server.forget()
        np.testing.assert_array_equal(npz["w3"], ARRAYS["w3"])
        ranges = [request.headers["range"] for request in server.requests]
        spans = [tuple(map(int, text.removeprefix("bytes=").split("-"))) for text in ranges]
        ends = [begin + min(size, last + 1 - begin) for begin, last in spans]
        assert [begin for begin, _ in spans[1:]] == ends[:-1]
        if etag:
            assert all(request.headers["if-match"] == etag for request in server.requests)
            check_reads(npz)


def test_a_file_that_is_replaced_between_two_answers_to_one_range(server):
    """What the first answer had is not continued by another version, in an open either."""

    def answer(handler, server):
        del handler.headers["If-Match"]
        if server.count == last:
            server.put(OTHER)
            server.etag = '"two"'
        at_most(40_000)(handler, server)

    server.answer, last = answer, 2
    with pytest.raises(StaleArchiveError):
        npzkit.open(server.url())
    server.answer, server.etag = good, '"one"'
    server.put(DATA)
    with npzkit.open(server.url()) as npz:
        server.forget()
        server.answer, last = answer, 1
        with pytest.raises(StaleArchiveError):
            npz["w3"]


def test_answers_that_end_early_for_ever(server, monkeypatch):
    """A byte per answer is an error after a number of them."""
    monkeypatch.setattr(http_store, "_MOST_ANSWERS", 5)
    with npzkit.open(server.url()) as npz:
        server.answer = at_most(1)
        server.forget()
        with pytest.raises(OSError, match=r"sent 5 of \d+ bytes in 5 answers"):
            npz["w3"]
        assert server.count == 5


@pytest.mark.parametrize(("before", "behind"), [(-64, -64), (64, 64), (0, 64), (-64, 0)])
def test_another_range(server, before, behind):
    """Bytes beside those that were asked for are refused, also where there is nothing to check."""

    def answer(handler, server):
        begin, end = span_of(handler)
        begin, end = begin + before, end + behind
        named = f"bytes {begin}-{end - 1}/{len(DATA)}"
        handler.reply(206, DATA[begin:end], Content_Range=named, ETag=server.etag)

    with npzkit.open(server.url()) as npz:
        lazy = npz.lazy("w1")
        server.answer = answer
        with pytest.raises(OSError, match="another range than was asked for"):
            lazy[5:9]


@pytest.mark.parametrize(
    ("begin", "size"),
    [(len(DATA) - 65_664, 65_600), (0, 65_600), (0, len(DATA)), (len(DATA) - 99, 99)],
)
def test_other_bytes_than_the_last_ones(server, begin, size):
    """An open takes neither bytes before the end for the last ones, nor more than it asked for."""

    def answer(handler, server):
        if handler.headers["Range"].startswith("bytes=-"):
            del handler.headers["Range"]
            handler.headers["Range"] = f"bytes={begin}-{begin + size - 1}"
        good(handler, server)

    server.answer = answer
    with npzkit.open(server.url()) as npz:
        assert server.count == 2
        check_reads(npz)


@pytest.mark.parametrize("is_larger", [False, True])
def test_a_complete_answer_instead_of_a_range(server, is_larger):
    """A file of another size was replaced; one of this size is on a server without ranges."""
    server.etag = server.modified = ""
    with npzkit.open(server.url()) as npz:
        server.answer = lambda handler, server: handler.reply(200, DATA + b"?" * is_larger)
        with pytest.raises(StaleArchiveError if is_larger else UnsupportedError):
            npz["w3"]
        server.answer = whole_in_chunks_always
        with pytest.raises(UnsupportedError, match="ranges of bytes"):
            npz["w3"]


# -- ranges from the end ----------------------------------------------------


def refusing(status, **headers):
    """Refuse a range from the end."""

    def answer(handler, server):
        if handler.headers["Range"].startswith("bytes=-"):
            handler.reply(status, b"no", **headers)
        else:
            good(handler, server)

    return answer


@pytest.mark.slow
@pytest.mark.parametrize("status", [400, 405, 416, 501])
def test_servers_that_refuse_a_range_from_the_end(server, status):
    """The size is asked for with one byte, and then the range by its offsets."""
    server.answer = refusing(status)
    with npzkit.open(server.url()) as npz:
        ranges = [request.headers["range"] for request in server.requests]
        assert ranges[1:] == ["bytes=0-0", f"bytes={len(DATA) - 65600}-{len(DATA) - 1}"]
        check_reads(npz)
        server.put(OTHER)
        server.etag = '"two"'
        with pytest.raises(StaleArchiveError):
            npz["w2"]
    server.put(b"")
    with pytest.raises(ZipFormatError, match="empty"):
        npzkit.open(server.url())
    server.put(packed({"a": np.arange(3)}))
    with npzkit.open(server.url()) as npz:
        np.testing.assert_array_equal(npz["a"], [0, 1, 2])


def test_a_refusal_that_says_the_size(server):
    """A size in the answer needs no request of its own."""
    server.answer = refusing(416, Content_Range=f"bytes */{len(DATA)}")
    with npzkit.open(server.url()) as npz:
        assert server.count == 2
        check_reads(npz)


def whole_in_chunks(handler, server):
    """Send the complete file, without saying how long it is."""
    if handler.headers["Range"].startswith("bytes=-"):
        whole_in_chunks_always(handler, server)
    else:
        good(handler, server)


def whole_in_chunks_always(handler, server):
    handler.record(len(DATA))
    handler.send_response(200)
    handler.send_header("Transfer-Encoding", "chunked")
    handler.end_headers()
    handler.wfile.write(f"{len(DATA):x}\r\n".encode() + DATA + b"\r\n0\r\n\r\n")


def test_a_complete_answer_without_a_size(server):
    """A server may ignore a range from the end, and send all in chunks: its size is asked for."""
    server.answer = whole_in_chunks
    with npzkit.open(server.url()) as npz:
        assert server.count == 3
        check_reads(npz)
    server.answer = whole_in_chunks_always
    with pytest.raises(UnsupportedError, match="ranges of bytes"):
        npzkit.open(server.url())


# -- answers before the answer ----------------------------------------------


def after(interim, count=1):
    """Send answers that announce another one, and then that one."""

    def answer(handler, server):
        handler.wfile.write(interim * count)
        good(handler, server)

    return answer


@pytest.mark.slow
@pytest.mark.parametrize("status", [100, 102, 103, 104, 199])
def test_interim_answers_are_skipped(server, status):
    """Only the final answer counts, and the connection stays open."""
    interim = f"HTTP/1.1 {status} Wait\r\nLink: </style.css>; rel=preload\r\n\r\n".encode()
    server.answer = after(interim, 3)
    with npzkit.open(server.url()) as npz:
        check_reads(npz)


@pytest.mark.parametrize("status", [100, 103])
def test_too_many_interim_answers(server, status):
    """A server that only ever announces its answer is an error."""
    count = connections._MOST_LINES // 2 + 1
    server.answer = after(f"HTTP/1.1 {status} Wait\r\n\r\n".encode(), count)
    with pytest.raises(OSError, match="not valid HTTP"):
        npzkit.open(server.url())


def test_another_protocol_is_an_error(server):
    """101 is no interim answer: what follows it is not HTTP."""
    server.answer = after(b"HTTP/1.1 101 Switching Protocols\r\n\r\n")
    with pytest.raises(OSError, match="101 Switching"):
        npzkit.open(server.url())


@pytest.mark.parametrize(
    ("text", "pause"),
    [("3", 3.0), ("12345", 12345.0), ("123456", 0.0), ("-3", 0.0), ("soon", 0.0), ("\xb2", 0.0)],
)
def test_how_long_a_server_asks_to_wait(server, monkeypatch, text, pause):
    """Seconds count, and anything else does not."""
    errors = []

    def tried_once(request, what, is_wanted=None):
        try:
            return request()
        except TransientError as error:
            errors.append(error)
            raise OSError(what) from None

    monkeypatch.setattr(remote_source, "tried", tried_once)
    server.answer = lambda handler, server: handler.reply(503, Retry_After=text)
    with pytest.raises(OSError, match="bytes"):
        npzkit.open(server.url())
    assert [error.delay for error in errors] == [pause]


# -- what a server writes ---------------------------------------------------

PLACES = [
    "http://[::1/a", "http://host:99999/a", "http://host:-1/a", "http://host:port/a",
    f"http://{'x' * 70}.example/a", "http://a..b/a", "//[::1/a", "http://[x]/a", "gopher://host/a",
    "javascript:alert(1)",
]  # fmt: skip


@pytest.mark.parametrize("place", PLACES)
def test_a_redirect_to_what_is_no_server(server, place):
    """It is an error that names the URL that was asked for."""
    server.answer = lambda handler, server: handler.reply(302, Location=place)
    with pytest.raises(OSError, match=f"{server.url()}: a redirect leads nowhere") as caught:
        npzkit.open(server.url())
    assert type(caught.value) is OSError
    assert server.count == 1


@pytest.mark.parametrize("place", ["/b\x1b[31m.npz", "/b\x00.npz", "/b \x85.npz", "/b\x7f.npz"])
def test_a_redirect_with_control_characters(server, place):
    """They are escaped in the next request."""

    def answer(handler, server):
        if handler.path == "/a.npz":
            handler.reply(302, Location=place)
        else:
            assert handler.path.isprintable()
            handler.path = "/a.npz"
            good(handler, server)

    server.answer = answer
    with npzkit.open(server.url()) as npz:
        check_reads(npz)


@each_row("url", ["http:///a", *(place for place in PLACES if place.startswith("http:"))])
def test_a_url_without_a_server(url):
    """What cannot be asked is refused before any request, as one of npzkit's errors."""
    with pytest.raises(UnsupportedError, match="no valid host and port"):
        npzkit.open(url)


@pytest.mark.remedy("In a user or a password, write / as %2F, ? as %3F, # as %23 and @ as %40.")
@pytest.mark.parametrize("word", ["a/b", "a?b", "a#b", "a/b?c#d@e"])
def test_a_password_with_characters_of_urls(server, word):
    """Characters that end a host are refused, and taken if they are written as the error says."""

    def url(password):
        return server.url().replace("//", f"//me:{password}@")

    with pytest.raises(UnsupportedError, match="no valid host and port"):
        npzkit.open(url(word))
    written = word
    for character, code in ("/", "%2F"), ("?", "%3F"), ("#", "%23"), ("@", "%40"):
        written = written.replace(character, code)
    with npzkit.open(url(written)) as npz:
        check_reads(npz)
    token = server.requests[0].headers["authorization"].removeprefix("Basic ")
    assert base64.b64decode(token).decode() == f"me:{word}"


RED = "\x1b[31mred\x9b\x07"


def said(head):
    """Answer with these lines as they are."""

    def answer(handler, server):
        handler.record(0)
        lines = "\r\n".join([*head, "Content-Length: 0", "", ""])
        handler.wfile.write(f"HTTP/1.1 {lines}".encode("latin-1"))

    return answer


@pytest.mark.parametrize("status", [404, 403, 418, 503, 206])
def test_what_a_server_says_is_escaped(server, status):
    """No control character of a server reaches the terminal."""
    head = [f"{status} {RED}"]
    if status == 206:
        head.append(f"Content-Range: {RED}")
    server.answer = said(head)
    with pytest.raises(OSError, match=r"x1b\[31mred") as caught:
        npzkit.open(server.url())
    assert str(caught.value).isprintable()


def test_other_texts_of_a_server_are_escaped(server):
    """The same holds for encodings, and for versions in npzkit's own errors."""
    head = ["206 OK", f"Content-Encoding: {RED}", "Content-Range: bytes 0-9/10"]
    server.answer = said(head)
    with pytest.raises(OSError, match=r"x1b\[31mred") as caught:
        npzkit.open(server.url())
    assert str(caught.value).isprintable()
    server.answer = good
    with npzkit.open(server.url()) as npz:
        server.etag = f'"{RED}{"x" * 5_000}"'
        del server.requests[:]
        server.answer = lambda handler, server: (
            handler.headers.replace_header("If-Match", server.etag),
            good(handler, server),
        )
        with pytest.raises(StaleArchiveError, match=r"x1b\[31mred") as stale:
            npz["w3"]
    assert str(stale.value).isprintable()
    assert len(str(stale.value)) < 1_000


def test_what_a_proxy_says_is_escaped(server, monkeypatch):
    """A proxy may refuse a tunnel with any text."""

    def answer(self):
        said([f"407 {RED}"])(self, server)

    monkeypatch.setattr("range_server.Handler.do_CONNECT", answer, raising=False)
    monkeypatch.setenv("https_proxy", f"http://{server.address}")
    monkeypatch.setenv("no_proxy", "localhost")
    with pytest.raises(OSError, match=r"x1b\[31mred") as caught:
        npzkit.open("https://data.example/a.npz")
    assert str(caught.value).isprintable()
