"""Servers that misbehave: the right data or the documented error, in bounded time, never other data."""

from __future__ import annotations

import gzip
import time
import urllib.request

import npzkit
import numpy as np
import pytest
from archives import packed
from npzkit.errors import StaleArchiveError, UnsupportedError, ZipFormatError
from npzkit.stores import retries
from npzkit.stores.remote_source import TAIL_SIZE
from range_server import RangeServer, good

ARRAYS = {f"w{i}": np.random.default_rng(i).random(4096) for i in range(8)}
RIGHT = ARRAYS["w3"]


DATA = packed(ARRAYS)
OTHER = packed({key: array + 1 for key, array in ARRAYS.items()})


@pytest.fixture
def server():
    with RangeServer().running() as server:
        server.url_of_data = server.put(DATA)
        yield server


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(retries, "FIRST_DELAY", 0.001)


def fails_first(count, fault):
    """Answer the first requests with a fault, and others well."""
    left = [count]

    def answer(handler, server):
        left[0] -= 1
        (fault if left[0] >= 0 else good)(handler, server)

    return answer


def status(code, **headers):
    def answer(handler, server):
        handler.reply(code, b"<html>secret detail</html>", **headers)

    return answer


def broken(size, *, is_reset):
    """Send the head of a good answer and a part of its body."""

    def answer(handler, server):
        write = handler.wfile.write

        def write_part(data):
            is_body = not data.startswith(b"HTTP/")
            write(data[:size] if is_body else data)
            if is_body:
                handler.wfile.write = write
                if is_reset:
                    handler.reset()
                handler.close_connection = True

        handler.wfile.write = write_part
        try:
            good(handler, server)
        finally:
            handler.wfile.write = write

    return answer


def garbage(handler, server):
    handler.record(0)
    handler.wfile.write(b"\0\1\2 no http\r\n\r\n")
    handler.close_connection = True


PASSING = {
    "503": status(503),
    "500": status(500),
    "429 with Retry-After": status(429, Retry_After="0"),
    "reset at once": lambda handler, server: handler.reset(),
    "reset in the body": broken(100, is_reset=True),
    "short body": broken(100, is_reset=False),
    "no HTTP": garbage,
}


@pytest.mark.slow
@pytest.mark.parametrize("fault", PASSING)
def test_what_passes_is_tried_again(server, fault):
    """Two failures in a row of any kind do no harm, when opening and when reading."""
    server.answer = fails_first(2, PASSING[fault])
    with npzkit.open(server.url_of_data) as npz:
        server.answer = fails_first(2, PASSING[fault])
        np.testing.assert_array_equal(npz["w3"], RIGHT)
        server.answer = fails_first(3, PASSING[fault])
        found = npz.load_all()
    assert all(np.array_equal(found[key], ARRAYS[key]) for key in ARRAYS)


@pytest.mark.slow
@pytest.mark.parametrize("fault", PASSING)
def test_what_lasts_is_an_error_that_says_what_was_tried(server, fault):
    """The error names URL, range and attempts, and ends after four of them."""
    with npzkit.open(server.url_of_data) as npz:
        server.answer = PASSING[fault]
        server.forget()
        message = rf"{server.url_of_data}, bytes \d+ to \d+: failed after 4 attempts: "
        with pytest.raises(OSError, match=message) as caught:
            npz["w3"]
        assert "secret" not in str(caught.value)
        assert server.count in (0, 4)
        # It passes at last.
        server.answer = good
        np.testing.assert_array_equal(npz["w3"], RIGHT)
    server.answer = PASSING[fault]
    with pytest.raises(OSError, match="failed after 4 attempts"):
        npzkit.open(server.url_of_data)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (404, FileNotFoundError),
        (410, FileNotFoundError),
        (401, PermissionError),
        (403, PermissionError),
        (400, OSError),
        (418, OSError),
        (501, OSError),
    ],
)
def test_refusals_are_errors_at_once(server, code, kind):
    """What will not pass is not tried again."""
    server.answer = status(code)
    with pytest.raises(kind, match=f"{code}") as caught:
        npzkit.open(server.url_of_data)
    # Some servers refuse only ranges from the end: these are asked again, in another way.
    assert server.count == (2 if code in (400, 501) else 1)
    assert server.url_of_data in str(caught.value)
    assert "secret" not in str(caught.value)


@pytest.mark.remedy(
    "the file, and open the copy: npzkit.open(urllib.request.urlopen(url).read()) does both."
)
def test_a_server_without_ranges(server, tmp_path):
    """It is an error that says so, after little was received; a copy or a stream is read."""
    large = packed({"a": np.zeros(1 << 20)})
    url = server.put(large)

    def whole(handler, server):
        del handler.headers["Range"]
        good(handler, server)

    server.answer = whole
    for data in (large, DATA):
        server.put(data)
        server.forget()
        with pytest.raises(UnsupportedError, match=r"ranges of bytes.*Download"):
            npzkit.open(url)
        assert server.count == 2
    server.answer = good
    npz = npzkit.open(url)
    server.answer = whole
    with pytest.raises(UnsupportedError, match="ranges of bytes"):
        npz["w3"]
    urllib.request.urlretrieve(url, tmp_path / "copy.npz")
    with npzkit.open(tmp_path / "copy.npz") as npz:
        np.testing.assert_array_equal(npz["w3"], RIGHT)
    with urllib.request.urlopen(url) as response:
        np.testing.assert_array_equal(dict(npzkit.iter_arrays(response))["w3"], RIGHT)
    with npzkit.open(urllib.request.urlopen(url).read()) as npz:
        np.testing.assert_array_equal(npz["w3"], RIGHT)


def test_a_server_without_ranges_from_the_end(server):
    """The size is asked for first: two requests."""

    def from_the_front(handler, server):
        if handler.headers["Range"].startswith("bytes=-"):
            del handler.headers["Range"]
        good(handler, server)

    server.answer = from_the_front
    with npzkit.open(server.url_of_data) as npz:
        assert server.count == 2
        np.testing.assert_array_equal(npz["w3"], RIGHT)


@pytest.mark.parametrize(
    "page", [b"<!DOCTYPE html><html>Log in</html>", b" <html>" + b"x" * 200_000, b"", b"\x93NUMPY"]
)
def test_a_page_instead_of_the_archive(server, page):
    """A login page with status 200 is no archive, and the error says what it is."""
    server.answer = lambda handler, server: handler.reply(200, page, Content_Type="text/html")
    with pytest.raises(ZipFormatError, match=r"HTML|empty|\.npy file"):
        npzkit.open(server.url_of_data)


@pytest.mark.parametrize(
    "text", ["", "bytes 0-9/10", "bytes 7-3/100", "bytes 0-65599/*", "octets 0-1/2", "bytes -1-5/9"]
)
def test_another_range_than_was_asked_for(server, text):
    """Bytes of another place are never used."""

    def answer(handler, server):
        good(handler, server, Content_Range=text)

    with npzkit.open(server.url_of_data) as npz:
        server.answer = answer
        with pytest.raises((OSError, StaleArchiveError)):
            npz["w3"]
    with pytest.raises((OSError, StaleArchiveError)):
        npzkit.open(server.url_of_data)


def test_more_bytes_than_were_asked_for(server):
    """A body that is longer than its range is refused."""

    def longer(handler, server):
        first, last = handler.headers["Range"].removeprefix("bytes=").split("-")
        begin = int(first) if first else len(DATA) - int(last)
        end = int(last) + 1 if first else len(DATA)
        named = f"bytes {begin}-{end - 1}/{len(DATA)}"
        handler.reply(206, DATA[begin : end + 1] + b"?", Content_Range=named, ETag=server.etag)

    with npzkit.open(server.url_of_data) as npz:
        server.answer = longer
        with pytest.raises(OSError, match="instead of"):
            npz["w3"]


def test_compressed_transfer_is_refused(server):
    """Bytes that a proxy compressed are not those of the range."""

    def compressed(handler, server):
        begin = len(DATA) - TAIL_SIZE
        named = f"bytes {begin}-{len(DATA) - 1}/{len(DATA)}"
        body = gzip.compress(DATA[begin:])
        handler.reply(206, body, Content_Range=named, Content_Encoding="gzip")

    server.answer = compressed
    with pytest.raises(OSError, match="gzip"):
        npzkit.open(server.url_of_data)


def chunked(handler, server):
    """A good answer in chunks, without Content-Length."""
    first, last = handler.headers["Range"].removeprefix("bytes=").split("-")
    begin = int(first) if first else max(len(DATA) - int(last), 0)
    end = int(last) + 1 if first else len(DATA)
    handler.record(end - begin)
    handler.send_response(206)
    handler.send_header("Content-Range", f"bytes {begin}-{end - 1}/{len(DATA)}")
    handler.send_header("Transfer-Encoding", "chunked")
    handler.end_headers()
    for start in range(begin, end, 10_000):
        part = DATA[start : min(start + 10_000, end)]
        handler.wfile.write(f"{len(part):x}\r\n".encode() + part + b"\r\n")
    handler.wfile.write(b"0\r\n\r\n")


def test_chunked_answers(server):
    """An answer without a length is read as it is."""
    server.answer = chunked
    with npzkit.open(server.url_of_data) as npz:
        np.testing.assert_array_equal(npz["w3"], RIGHT)
        assert npz.verify().ok


# -- versions ---------------------------------------------------------------


@pytest.mark.remedy("Open it again.")
@pytest.mark.parametrize("etag", ['"one"', 'W/"one"', ""])
def test_a_replaced_object_is_stale(server, etag):
    """Whether the server has strong ETags, weak ones or only times, versions never mix."""
    server.etag = etag
    with npzkit.open(server.url_of_data) as npz:
        lazy = npz.lazy("w1")
        np.testing.assert_array_equal(lazy[:3], ARRAYS["w1"][:3])
        np.testing.assert_array_equal(npz["w3"], RIGHT)
        server.put(OTHER)
        server.etag = etag.replace("one", "two")
        server.modified = "Sun, 22 Nov 2026 10:00:01 GMT"
        for read in (
            lambda: npz["w4"], npz.load_all, lambda: lazy[5:9], npz.verify,
            lambda: npz.stream("w5"),
        ):  # fmt: skip
            with pytest.raises(StaleArchiveError, match="replaced"):
                read()
    with npzkit.open(server.url_of_data) as npz:
        np.testing.assert_array_equal(npz["w3"], RIGHT + 1)


def test_a_version_is_asked_for_with_each_request(server):
    """A strong ETag is a condition; a weak one cannot be, and is compared."""
    with npzkit.open(server.url_of_data) as npz:
        npz["w3"]
        assert server.requests[-1].headers["if-match"] == '"one"'
    server.etag = 'W/"one"'
    with npzkit.open(server.url_of_data) as npz:
        npz["w3"]
        assert "if-match" not in server.requests[-1].headers
        assert "if-unmodified-since" in server.requests[-1].headers


def test_replaced_while_many_requests_are_under_way(server, monkeypatch):
    """A mixture of two versions is never returned."""
    from npzkit.files import request_sizes

    monkeypatch.setattr(request_sizes, "_LEAST_SIZE", 40_000)
    with npzkit.open(server.url_of_data) as npz:
        server.forget()

        def answer(handler, server):
            if server.count == 3:
                server.put(OTHER)
                server.etag = '"two"'
            good(handler, server)

        server.answer = answer
        with pytest.raises(StaleArchiveError):
            npz.load_all()


def test_an_etag_that_changes_with_each_answer(server):
    """A server whose ETags mean nothing is an error, not an endless loop."""

    def answer(handler, server):
        good(handler, server, ETag=f'"{time.monotonic_ns()}"')

    server.answer = answer
    with npzkit.open(server.url_of_data) as npz, pytest.raises(StaleArchiveError):
        npz["w3"]


def test_another_size_is_stale(server):
    """Without ETag and time, the size in each answer is compared."""
    server.etag = server.modified = ""
    with npzkit.open(server.url_of_data) as npz:
        server.put(DATA + b"x")
        with pytest.raises(StaleArchiveError):
            npz["w3"]
        server.put(DATA[:9000])
        with pytest.raises(StaleArchiveError):
            npz["w3"]


# -- redirects --------------------------------------------------------------


def redirected(target, code=302):
    def answer(handler, server):
        if handler.path.startswith("/old"):
            handler.reply(code, Location=target)
        else:
            good(handler, server)

    return answer


@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
def test_redirects_are_followed_and_remembered(server, code):
    """An array takes one request behind a redirect too."""
    server.answer = redirected("/a.npz?signature=secret", code)
    with npzkit.open(server.url("/old")) as npz:
        assert server.count == 2
        np.testing.assert_array_equal(npz["w3"], RIGHT)
        assert server.count == 3
        assert "secret" not in repr(npz)


def test_a_redirect_that_expired_is_asked_for_again(server):
    """Signed addresses are valid for minutes, an archive may be open for days."""
    valid = ["1"]

    def answer(handler, server):
        if handler.path == "/old":
            handler.reply(302, Location=f"/a.npz?valid={valid[0]}")
        elif handler.path.endswith(f"={valid[0]}"):
            good(handler, server)
        else:
            handler.reply(403)

    server.answer = answer
    with npzkit.open(server.url("/old")) as npz:
        valid[0] = "2"
        np.testing.assert_array_equal(npz["w3"], RIGHT)


@pytest.mark.parametrize(
    "target", ["/old", "", "ftp://host/a.npz", "file:///etc/passwd", "http://"]
)
def test_redirects_that_lead_nowhere(server, target):
    """Circles and other schemes end with an error."""
    server.answer = redirected(target)
    with pytest.raises(OSError, match="redirect"):
        npzkit.open(server.url("/old"))
    assert server.count <= 6


def test_credentials_stay_with_their_host(server):
    """A redirect to another host gets neither password nor headers."""
    with RangeServer().running() as other:
        url = other.put(DATA)
        server.answer = redirected(url)
        options = {"headers": {"X-Token": "secret"}}
        given = server.url("/old").replace("//", "//me:secret@")
        with npzkit.open(given, storage_options=options) as npz:
            npz["w3"]
        assert server.requests[0].headers["authorization"] == "Basic bWU6c2VjcmV0"
        assert server.requests[0].headers["x-token"] == "secret"
        assert other.count == 2
        for request in other.requests:
            assert not {"authorization", "x-token"} & request.headers.keys()


# -- time -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"anon": True}, "anon"),
        ({"client_kwargs": {"trust_env": True}}, "trust_env"),
    ],
)
def test_unknown_options_are_refused(server, options, message):
    """An option that would be ignored is an error that lists those that are known."""
    with pytest.raises(UnsupportedError, match=f"found '{message}', expected 'headers"):
        npzkit.open(server.url_of_data, storage_options=options)
    assert server.count == 0


@pytest.mark.remedy("If it was read from a file, use value.strip().")
def test_a_header_that_ends_with_a_line_break(server, tmp_path):
    """A value from a file may have one, which the error says how to remove, without the value."""
    (tmp_path / "token").write_text("Bearer secret\n")
    value = (tmp_path / "token").read_text()
    with pytest.raises(UnsupportedError, match="Authorization has a line break") as caught:
        npzkit.open(server.url_of_data, storage_options={"headers": {"Authorization": value}})
    assert "secret" not in str(caught.value)
    assert server.count == 0
    options = {"headers": {"Authorization": value.strip()}}
    with npzkit.open(server.url_of_data, storage_options=options) as npz:
        np.testing.assert_array_equal(npz["w3"], RIGHT)
    assert server.requests[0].headers["authorization"] == "Bearer secret"


def test_options_for_http(server):
    """Headers and passwords are given as for fsspec."""
    options = {"client_kwargs": {"auth": ("me", "pass word"), "headers": {"A": "1"}}}
    with npzkit.open(server.url_of_data, storage_options=options):
        headers = server.requests[0].headers
    assert headers["authorization"] == "Basic bWU6cGFzcyB3b3Jk"
    assert headers["a"] == "1"


def test_a_proxy_of_the_environment(server, monkeypatch):
    """Requests go to the proxy, with the whole URL."""
    seen = []

    def answer(handler, server):
        seen.append(handler.path)
        handler.path = "/a.npz"
        good(handler, server)

    server.answer = answer
    monkeypatch.setenv("http_proxy", f"http://me:secret@{server.address}")
    monkeypatch.setenv("no_proxy", "localhost")
    with npzkit.open("http://data.example/x/a.npz?b=1") as npz:
        np.testing.assert_array_equal(npz["w3"], RIGHT)
    assert seen[0] == "http://data.example:80/x/a.npz?b=1"
    assert server.requests[0].headers["proxy-authorization"].startswith("Basic ")
