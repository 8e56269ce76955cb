"""The server of a page: who is answered, and what a page contains."""

from __future__ import annotations

import base64
import contextlib
import http.client
import os
import re
import socket
import sys
import threading
import time
import urllib.parse
import urllib.request

import npzkit
import numpy as np
import pytest

pytest.importorskip("bokeh", reason="the page needs Bokeh")

from npzkit.display.key_tree import KeyTree
from npzkit.viewer.guard import Guard
from remedies import brought_by

NASTY = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>$$x$$"


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    found = tmp_path_factory.mktemp("archives") / f"{NASTY.replace('/', '')[:40]}.npz"
    x = np.arange(12.0).reshape(3, 4)
    with npzkit.NpzWriter(found, metadata={NASTY: NASTY}, allow_pickle=True) as w:
        w.add("x", x, attrs={NASTY: NASTY})
        w.add(NASTY, x)
        w.add("pickled", np.array([{"a": 1}], object))
    return found


@pytest.fixture(scope="module")
def viewer(path):
    with npzkit.view(path) as found:
        yield found


def parts_of(viewer):
    url = urllib.parse.urlsplit(viewer.url)
    return url.hostname, url.port, url.path


def get(viewer, path=None, host=None, method="GET", **headers):
    """Return the answer to a request, whose Host is as given."""
    name, port, usual = parts_of(viewer)
    connection = http.client.HTTPConnection(name, port, timeout=20)
    with contextlib.closing(connection):
        connection.putrequest(method, usual if path is None else path, skip_host=True)
        if host != "":
            connection.putheader("Host", host or f"{name}:{port}")
        for header, value in headers.items():
            connection.putheader(header.replace("_", "-"), value)
        connection.endheaders()
        answer = connection.getresponse()
        answer.text = answer.read()
        return answer


def websocket(viewer, path=None, **headers):
    """Return the status of the answer to a request for a websocket."""
    key = base64.b64encode(os.urandom(16)).decode()
    usual = {
        "Upgrade": "websocket", "Connection": "Upgrade", "Sec_WebSocket_Key": key,
        "Sec_WebSocket_Version": "13", "Sec_WebSocket_Protocol": "bokeh, token",
    }  # fmt: skip
    name, port, place = parts_of(viewer)
    connection = http.client.HTTPConnection(name, port, timeout=20)
    with contextlib.closing(connection):
        connection.putrequest("GET", f"{place}ws" if path is None else path)
        for header, value in (usual | headers).items():
            connection.putheader(header.replace("_", "-"), value)
        connection.endheaders()
        return connection.getresponse().status


# -- who is answered ----------------------------------------------------------------


def test_the_page_has_its_headers(viewer):
    """Who has the address gets a page that runs its own scripts only, and is not kept."""
    answer = get(viewer)
    assert answer.status == 200
    policy = answer.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "'unsafe-inline'" not in policy.partition("script-src")[2].partition(";")[0]
    assert answer.headers["Referrer-Policy"] == "no-referrer"
    assert answer.headers["Cache-Control"] == "no-store"


@pytest.mark.parametrize("asked", ["{}", "static/{}"])
def test_errors_are_plain_text(viewer, asked, caplog):
    """What an error says of a key is no page: nothing in it runs, and the token is not logged."""
    _, _, place = parts_of(viewer)
    answer = get(viewer, place + asked.format(urllib.parse.quote(f"no {NASTY}")))
    assert answer.status in (400, 403, 404)
    assert answer.headers["Content-Type"].startswith("text/plain")
    assert answer.headers["Content-Security-Policy"] == "default-src 'none'; sandbox"
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert place.strip("/") not in caplog.text


def open_strangers(stack, viewer, count):
    """Open connections whose requests are never finished."""
    name, port, place = parts_of(viewer)
    for _ in range(count):
        opened = stack.enter_context(socket.create_connection((name, port), timeout=20))
        # It may be closed already.
        with contextlib.suppress(ConnectionError):
            opened.sendall(f"GET {place} HTTP/1.1\r\nHost: {name}:{port}\r\n".encode())


def test_requests_that_are_never_finished_keep_nobody_waiting(path, monkeypatch):
    """Strangers' connections make room for newer ones, and never those of a page."""
    monkeypatch.setattr("npzkit.viewer.server._STRANGER_COUNT", 3)
    monkeypatch.setattr("npzkit.viewer.server._WAIT_SECONDS", 3600)
    with npzkit.view(path) as viewer, contextlib.ExitStack() as stack:
        name, port, place = parts_of(viewer)
        page = http.client.HTTPConnection(name, port, timeout=60)
        stack.callback(page.close)
        for _ in range(3):
            open_strangers(stack, viewer, 9)
            page.request("GET", place)
            answer = page.getresponse()
            assert (answer.status, bool(answer.read())) == (200, True)
            assert get(viewer).status == 200


def test_connections_are_bounded(viewer, monkeypatch):
    """Not even with the address can anybody take all file descriptors of the process."""
    monkeypatch.setattr("npzkit.viewer.server._CONNECTION_COUNT", 3)
    name, port, place = parts_of(viewer)
    with contextlib.ExitStack() as stack:
        for _ in range(3):
            page = http.client.HTTPConnection(name, port, timeout=20)
            stack.callback(page.close)
            page.request("GET", f"{place}nothing")
            page.getresponse().read()
        assert (
            stack.enter_context(socket.create_connection((name, port), timeout=20)).recv(1) == b""
        )
    end = time.monotonic() + 20
    while True:
        # The server has to see first that the others were closed.
        with contextlib.suppress(ConnectionError):
            assert get(viewer).status == 200
            break
        assert time.monotonic() < end
        time.sleep(0.01)


def test_libraries_that_replace_bokehs_handlers_do_not_matter(path, monkeypatch):
    """Panel puts its own handlers in the place of Bokeh's when it is imported: pages stay npzkit's."""
    import bokeh.server.tornado
    import bokeh.server.urls

    replaced = []
    for pattern, handler, *rest in bokeh.server.urls.per_app_patterns:
        replaced.append((pattern, type(f"Other{handler.__name__}", (handler,), {}), *rest))
    for module in (bokeh.server.urls, bokeh.server.tornado):
        monkeypatch.setattr(module, "per_app_patterns", replaced)
    with npzkit.view(path) as viewer:
        answer = get(viewer)
        assert answer.status == 200
        assert "nonce-" in answer.headers["Content-Security-Policy"]
        assert get(viewer, f"{parts_of(viewer)[2]}metadata").status == 403


def test_pages_are_bounded(path, monkeypatch):
    """Pages that are loaded again and again do not take all memory: more are refused."""
    monkeypatch.setattr("npzkit.viewer.server._PAGE_COUNT", 2)
    with npzkit.view(path) as viewer:
        answers = [get(viewer) for _ in range(4)]
        assert [answer.status for answer in answers] == [200, 200, 503, 503]
        assert b"Close some" in answers[-1].text
        assert answers[-1].headers["Content-Type"].startswith("text/plain")


def test_the_page_needs_no_other_server(viewer):
    """Every script and every style of the page comes from the package."""
    text = get(viewer).text.decode()
    _, _port, place = parts_of(viewer)
    sources = [part.split('"')[0] for part in text.split('src="')[1:]]
    assert sources
    for source in sources:
        assert not urllib.parse.urlsplit(source).netloc
        full = source if source.startswith("/") else place + source
        assert get(viewer, full).status == 200


@pytest.mark.parametrize(
    "asked", ["/", "", "/x/", "/{token}x/", "/{other}/", "/static/js/bokeh.min.js", "/favicon.ico",
             "/{other}/static/js/bokeh.min.js", "/{other}/ws",
             "/../{token}/", "//{token}/", "/%2e/{token}/"],
)  # fmt: skip
def test_nothing_is_answered_without_the_token(viewer, asked):
    """A missing or wrong token is refused, for the page and its scripts."""
    token = parts_of(viewer)[2].strip("/")
    other = ("A" if token[0] != "A" else "B") + token[1:]
    answer = get(viewer, asked.format(token=token, other=other) or "/")
    assert answer.status == 403
    assert token.encode() not in answer.text


@pytest.mark.parametrize("rest", ["metadata", "autoload.js?bokeh-autoload-element=x", "nothing"])
def test_what_the_page_does_not_use_is_refused(viewer, rest):
    """Of Bokeh's server, only the page, its scripts and its websocket are there."""
    assert get(viewer, parts_of(viewer)[2] + rest).status == 403


@pytest.mark.parametrize(
    "host", ["", "example.org", "example.org:{port}", "127.0.0.1", "127.0.0.1:1", "127.0.0.1.:{port}",
             "127.0.0.1:{port}@example.org", "[::2]:{port}", "10.0.0.1:{port}", "x\\127.0.0.1:{port}"],
)  # fmt: skip
def test_another_host_is_refused(viewer, host):
    """A name that was made to point to this machine is refused: DNS rebinding."""
    answer = get(viewer, host=host.format(port=parts_of(viewer)[1]))
    assert answer.status in {400, 403}


def test_other_names_of_this_machine_are_answered(viewer):
    """localhost is this machine as well."""
    assert get(viewer, host=f"localhost:{parts_of(viewer)[1]}").status == 200


@pytest.mark.parametrize("origin", ["http://example.org", "null", "https://127.0.0.1:{port}", "http://127.0.0.1:1"])  # fmt: skip
def test_a_foreign_origin_is_refused(viewer, origin):
    """A page of another server can neither load anything nor open the websocket."""
    origin = origin.format(port=parts_of(viewer)[1])
    assert get(viewer, Origin=origin).status == 403
    assert websocket(viewer, Origin=origin) == 403


def test_the_websocket_needs_the_token(viewer):
    """A websocket is opened with the token, and with a page's own session only."""
    name, port, _ = parts_of(viewer)
    own = f"http://{name}:{port}"
    with opened_page(viewer) as receive:
        assert b"ACK" in receive()
    assert websocket(viewer, "/ws", Origin=own) == 403
    assert websocket(viewer, "/wrong/ws", Origin=own) == 403


def test_methods_other_than_get_are_refused(viewer):
    """Nothing can be sent to the server but on the websocket."""
    for method in ("POST", "PUT", "DELETE", "OPTIONS"):
        assert get(viewer, method=method).status in {403, 405}


@pytest.mark.parametrize(
    ("given", "is_own"),
    [("[::1]:80", True), ("LOCALHOST", True), ("127.0.0.1", True), ("192.168.1.5:80", False),
     ("example.org", False), ("[fe80::1]:80", False), ("0.0.0.0:80", False)],
)  # fmt: skip
def test_hosts_that_are_this_machine(given, is_own):
    """The server answers to the names of this machine, which nobody can redirect."""
    guard = Guard(80)
    assert (guard.refusal(f"/{guard.token}/", given, None) is None) == is_own


def test_tokens_are_long_and_differ(path):
    """No two pages have the same address, and it cannot be guessed."""
    tokens = {Guard(80).token for _ in range(20)}
    assert len(tokens) == 20
    assert min(map(len, tokens)) >= 32


# -- what is sent -------------------------------------------------------------------------


def test_titles_are_escaped(viewer):
    """The name of a file is the page's title, and is text there."""
    text = get(viewer).text.decode()
    assert "<img" not in text
    assert "&lt;img" in text


# -- how it starts and ends -------------------------------------------------------------------


def test_the_address_comes_before_the_tree(path, monkeypatch):
    """The tree of a million keys takes seconds: it is made with the first page."""
    made = []

    class Tree(KeyTree):
        def __init__(self, keys):
            made.append(len(keys))
            super().__init__(keys)

    monkeypatch.setattr("npzkit.viewer.archives.KeyTree", Tree)
    with npzkit.view(path) as viewer:
        assert (viewer.url[:7], made) == ("http://", [])
        assert get(viewer).status == 200
        assert made == [3]


def test_closing_ends_the_server(path):
    """After close, nobody listens, and the archive that was opened is closed."""
    before = threading.active_count()
    viewer = npzkit.view(path)
    name, port, _ = parts_of(viewer)
    assert get(viewer).status == 200
    viewer.close()
    viewer.close()
    with pytest.raises(OSError), socket.create_connection((name, port), timeout=5):
        pass
    assert threading.active_count() <= before + 1
    assert "closed" in repr(viewer)
    assert "<iframe" not in viewer._repr_html_()


def test_an_open_archive_stays_open(path):
    """A given NpzFile is used as it is."""
    with npzkit.open(path) as npz:
        with npzkit.view(npz) as viewer:
            assert get(viewer).status == 200
        assert npz["x"].shape == (3, 4)


def test_a_port_in_use_is_an_error(viewer, path):
    """Two pages cannot have the same port."""
    with pytest.raises(OSError):
        npzkit.view(path, port=parts_of(viewer)[1])


def test_a_notebook_shows_the_page(viewer):
    """The cell has a frame with the page, and below it the table that a saved notebook keeps."""
    frame, table = viewer._repr_html_().split("</iframe>")
    assert f'<iframe src="{viewer.url}"' in frame
    assert "(3, 4)</td>" in table


def test_a_damaged_link_is_an_error(path):
    """A link that cannot be read is refused before anything is served."""
    with pytest.raises(ValueError, match="link"):
        npzkit.view(path, link="at=x")


@contextlib.contextmanager
def opened_page(viewer):
    """Load the page and open its websocket as a browser does; yield what receives a message."""
    token = re.search(rb'"token":"([^"]+)"', get(viewer).text)[1].decode()
    name, port, place = parts_of(viewer)
    with socket.create_connection((name, port), timeout=20) as connection:
        key = base64.b64encode(os.urandom(16)).decode()
        lines = [
            f"GET {place}ws HTTP/1.1", f"Host: {name}:{port}", f"Origin: http://{name}:{port}",
            "Upgrade: websocket", "Connection: Upgrade", f"Sec-WebSocket-Key: {key}",
            "Sec-WebSocket-Version: 13", f"Sec-WebSocket-Protocol: bokeh, {token}", "", "",
        ]  # fmt: skip
        connection.sendall("\r\n".join(lines).encode())
        answer = b""
        while b"\r\n\r\n" not in answer:
            answer += connection.recv(1)
        assert answer.startswith(b"HTTP/1.1 101")
        yield lambda: connection.recv(4096)


def test_a_port_in_use_is_named(viewer, path):
    """The error names the address that another program has."""
    name, port, _ = parts_of(viewer)
    with pytest.raises(OSError, match=f"{name}:{port}"):
        npzkit.view(path, port=port)


@pytest.mark.remedy("Open another one with npzkit.view.")
def test_a_closed_page_is_not_shown(path, monkeypatch):
    """`show` says so, and `wait` returns; another page is shown."""
    viewer = npzkit.view(path)
    viewer.close()
    with pytest.raises(npzkit.errors.ClosedArchiveError, match=r"npzkit\.view"):
        viewer.show()
    viewer.wait()
    shown = []
    monkeypatch.setattr("webbrowser.open", lambda url: shown.append(url) or True)
    with npzkit.view(path) as viewer:
        assert viewer.show()
        assert shown == [viewer.url]
        assert get(viewer).status == 200


@pytest.mark.remedy('Install it: python -m pip install "npzkit[view]"')
def test_bokeh_is_installed_by_an_extra(path, monkeypatch):
    """Without Bokeh the error names the extra that brings it; with it there is a page."""
    with monkeypatch.context() as patched:
        patched.setitem(sys.modules, "npzkit.viewer.page", None)
        with pytest.raises(npzkit.errors.UnsupportedError, match="the page needs Bokeh"):
            npzkit.view(path)
    assert brought_by("view") == {"bokeh"}
    with npzkit.view(path) as viewer:
        assert get(viewer).status == 200
