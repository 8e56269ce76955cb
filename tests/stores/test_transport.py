"""What lies between npzkit and a web server: framing, proxies, names of servers, time."""

from __future__ import annotations

import base64
import contextlib
import importlib.metadata
import re
import signal
import socket
import socketserver
import ssl
import sys
import threading
import time
from types import SimpleNamespace

import npzkit
import numpy as np
import pytest
from archives import packed
from npzkit.errors import NpzkitError, UnsupportedError
from npzkit.stores import retries
from range_server import RangeServer, good, serving, with_tls

ARRAYS = {f"w{i}": np.random.default_rng(i).random(16_384) for i in range(4)}
DATA = packed(ARRAYS)
RIGHT = ARRAYS["w1"][5:9]
SECRET = base64.b64encode(b"me:PASSWORD")


@pytest.fixture
def server():
    with RangeServer().running() as server:
        server.put(DATA)
        yield server


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(retries, "FIRST_DELAY", 0.001)
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


# -- framing ------------------------------------------------------------------


def framed(body, *fields):
    """Answer a range with these fields; `body` makes the bytes that follow."""

    def answer(handler, server):
        first, last = handler.headers["Range"].removeprefix("bytes=").split("-")
        begin, end = int(first), int(last) + 1
        named = f"Content-Range: bytes {begin}-{end - 1}/{len(DATA)}"
        lines = ["HTTP/1.1 206 OK", named, f"ETag: {server.etag}", *fields, "", ""]
        handler.record(end - begin)
        handler.wfile.write("\r\n".join(lines).encode() + body(DATA[begin:end]))
        handler.close_connection = True

    return answer


def chunks(data, size=None, end=b"\r\n"):
    """Bytes in two chunks; size line and end of the first one can be wrong."""
    line = b"5" if size is None else size
    rest = data[5:]
    return (
        line + b"\r\n" + data[:5] + end
        + f"{len(rest):x}\r\n".encode() + rest + b"\r\n0\r\n\r\n"
    )  # fmt: skip


CHUNKED = "Transfer-Encoding: chunked"
BAD_FRAMES = {
    "another coding": framed(chunks, "Transfer-Encoding: gzip, chunked"),
    "an empty coding": framed(chunks, "Transfer-Encoding: chunked,"),
    "two codings": framed(chunks, CHUNKED, CHUNKED),
    "a folded coding": framed(chunks, "Transfer-Encoding:\r\n\tchunked"),
    "a line that is no field": framed(chunks, "no field", CHUNKED),
    "a space in a name": framed(chunks, "Transfer-Encoding : chunked"),
    **{
        f"a chunk of {size.decode()}": framed(lambda data, size=size: chunks(data, size), CHUNKED)
        for size in (b"-5", b"-1", b"+5", b"0x5", b"0_5", b" 5", b"05 5", b"", b"5\n")
    },
    "framing in a chunk of -5": framed(
        lambda data: b"-5\r\n5\r\n" + data[:-8] + b"\r\n5\r\n" + data[-5:] + b"\r\n0\r\n\r\n",
        CHUNKED,
    ),
    "no end of a chunk": framed(lambda data: chunks(data, end=b""), CHUNKED),
    "another end of a chunk": framed(lambda data: chunks(data, end=b"\n\n"), CHUNKED),
    "a chunk that is too long": framed(lambda data: chunks(data, b"6"), CHUNKED),
    "more chunks": framed(lambda data: chunks(data + b"?"), CHUNKED),
    "fewer chunks": framed(lambda data: chunks(data[:-1]), CHUNKED),
    "no last chunk": framed(lambda data: chunks(data)[:-5], CHUNKED),
}


@pytest.mark.slow
@pytest.mark.parametrize("fault", BAD_FRAMES)
def test_framing_is_never_data(server, fault):
    """What is between the chunks gets into no array: a part of it has CRC-32s too."""
    with npzkit.open(server.url()) as npz:
        lazy = npz.lazy("w1")
        np.testing.assert_array_equal(lazy[5:9], RIGHT)
        server.answer = BAD_FRAMES[fault]
        try:
            found = lazy[5:9]
        except (OSError, NpzkitError):
            pass
        else:
            np.testing.assert_array_equal(found, RIGHT)


@pytest.mark.parametrize("fault", ["another coding", "a chunk of -5", "more chunks"])
def test_bad_framing_is_an_error(server, fault):
    """The error says that it is the server's."""
    with npzkit.open(server.url()) as npz:
        server.answer = BAD_FRAMES[fault]
        with pytest.raises(OSError, match=r"server sent|not valid HTTP") as caught:
            npz.lazy("w1")[5:9]
        assert server.url() in str(caught.value)


def test_chunks_with_extensions_and_trailers(server):
    """They are valid, and the connection is used again."""

    def body(data):
        return (
            f'{len(data):X} ; name="value"\r\n'.encode() + data
            + b"\r\n000 ;last\r\nETag: other\r\nX: y\r\n\r\n"
        )  # fmt: skip

    def answer(handler, server):
        framed(body, CHUNKED)(handler, server)
        handler.close_connection = False
        ports.add(handler.client_address)

    ports = set()
    with npzkit.open(server.url()) as npz:
        lazy = npz.lazy("w1")
        # Its headers have been fetched after this.
        np.testing.assert_array_equal(lazy[5:9], RIGHT)
        server.answer = answer
        for _ in range(3):
            np.testing.assert_array_equal(lazy[5:9], RIGHT)
        assert len(ports) == 1


def test_a_head_that_does_not_end(server):
    """Fields, or answers before the answer, that come for ever are an error."""

    def answer(handler, server):
        handler.record(0)
        with contextlib.suppress(OSError):
            while True:
                handler.wfile.write(b"HTTP/1.1 100 Continue\r\n\r\n" * 100)

    server.answer = answer
    with pytest.raises(OSError, match="not valid HTTP"):
        npzkit.open(server.url())


# -- proxies ------------------------------------------------------------------


class Proxy(socketserver.ThreadingTCPServer):
    """A proxy that forwards to a server, and remembers heads of requests.

    Parameters
    ----------
    target : RangeServer
        Where all requests go.
    context : ssl.SSLContext, optional
        Of a proxy with TLS.
    """

    daemon_threads = True

    def __init__(self, target, context=None):
        super().__init__(("127.0.0.1", 0), _Forwarding)
        self.target, self.context = target, context
        self.heads = []
        self.address = f"127.0.0.1:{self.server_address[1]}"

    def handle_error(self, *args):
        pass


class _Forwarding(socketserver.BaseRequestHandler):
    def handle(self):
        if self.server.context is None:
            self._forward(self.request)
        else:
            with with_tls(self.server.context, self.request) as client:
                self._forward(client)

    def _forward(self, client):
        head = b""
        while b"\r\n\r\n" not in head:
            piece = client.recv(1)
            if not piece:
                return
            head += piece
        self.server.heads.append(head)
        host, port = self.server.target.address.split(":")
        with socket.create_connection((host, int(port))) as other:
            if head.startswith(b"CONNECT"):
                client.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            else:
                other.sendall(head)
            threading.Thread(target=_copy, args=(other, client), daemon=True).start()
            _copy(client, other)


def _copy(source, target):
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)


@pytest.fixture
def tls(fixtures, monkeypatch):
    """The context of a server whose certificate is trusted."""
    monkeypatch.setenv("SSL_CERT_FILE", str(fixtures / "tls" / "authority.pem"))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(fixtures / "tls" / "server.pem")
    return context


@pytest.mark.parametrize("name", ["127.0.0.1:{}", "other, 127.0.0.1:{}", "127.0.0.1", "*"])
def test_servers_without_the_proxy(server, monkeypatch, name):
    """NO_PROXY may name a port, and then a request does not go to the proxy."""
    proxy = Proxy(server)
    with serving(proxy):
        monkeypatch.setenv("http_proxy", f"http://{proxy.address}")
        monkeypatch.setenv("no_proxy", name.format(server.address.partition(":")[2]))
        with npzkit.open(server.url().replace("//", "//me:PASSWORD@")) as npz:
            np.testing.assert_array_equal(npz["w1"], ARRAYS["w1"])
        assert proxy.heads == []
        monkeypatch.setenv("no_proxy", "127.0.0.1:1, other")
        server.put(DATA, server.url())
        npzkit.open(server.url()).close()
        assert len(proxy.heads) == 1


@pytest.mark.parametrize("is_secure", [False, True], ids=["http", "https"])
def test_a_proxy_with_tls(tls, monkeypatch, is_secure):
    """Its password is told to it by TLS only, and the archive is read through it."""
    with RangeServer(tls if is_secure else None).running() as server:
        url = server.put(DATA)
        proxy = Proxy(server, tls)
        with serving(proxy):
            monkeypatch.setenv(f"{server.scheme}_proxy", f"https://me:PASSWORD@{proxy.address}")
            # A proxy is told the whole URL, and forwards it here.
            server.put(DATA, url)
            with npzkit.open(url) as npz:
                np.testing.assert_array_equal(npz["w1"], ARRAYS["w1"])
            assert proxy.heads
            assert all(SECRET in head for head in proxy.heads)


@pytest.mark.parametrize("scheme", ["https", "socks5", "socks4a"])
def test_a_password_is_never_sent_in_clear_text(server, monkeypatch, scheme):
    """A proxy is spoken to as its scheme says, or not at all."""
    seen = []

    class Listening(socketserver.BaseRequestHandler):
        def handle(self):
            self.request.settimeout(0.5)
            with contextlib.suppress(OSError):
                seen.append(self.request.recv(1 << 16))

    with serving(listener := socketserver.ThreadingTCPServer(("127.0.0.1", 0), Listening)):
        address = f"127.0.0.1:{listener.server_address[1]}"
        monkeypatch.setenv("http_proxy", f"{scheme}://me:PASSWORD@{address}")
        with pytest.raises((OSError, NpzkitError)) as caught:
            npzkit.open("http://data.example/a.npz", storage_options={"timeout": 1})
        assert "PASSWORD" not in str(caught.value)
    assert not any(b"HTTP" in data or SECRET in data or b"PASSWORD" in data for data in seen)


def test_socks_without_its_package(server, monkeypatch):
    """The error says what to install."""
    monkeypatch.setitem(sys.modules, "socks", None)
    monkeypatch.setenv("http_proxy", "socks5h://127.0.0.1:1")
    with pytest.raises(UnsupportedError, match=r'pip install "urllib3\[socks\]"'):
        npzkit.open(server.url())


def test_a_proxy_of_an_unknown_scheme(server, monkeypatch):
    """It is not taken for one of HTTP."""
    monkeypatch.setenv("http_proxy", "gopher://me:PASSWORD@127.0.0.1:1")
    with pytest.raises(UnsupportedError, match="http_proxy has an unknown scheme") as caught:
        npzkit.open(server.url())
    assert "PASSWORD" not in str(caught.value)


@pytest.mark.remedy('Install it: python -m pip install "urllib3[socks]"')
def test_a_proxy_of_socks(server, monkeypatch):
    """With PySocks, which an extra of urllib3 brings, archives are read through it."""
    pytest.importorskip("socks", reason="PySocks is not installed")
    brought = [one for one in importlib.metadata.requires("urllib3") if "socks" in one.split()[-1]]
    assert [re.split(r"\W", one)[0].lower() for one in brought] == ["pysocks"]
    asked = []

    class Socks(socketserver.BaseRequestHandler):
        def handle(self):
            client = self.request
            version, count = client.recv(2)
            assert (version, 2 in client.recv(count)) == (5, True)
            client.sendall(b"\5\2")
            _, size = client.recv(2)
            user = client.recv(size)
            password = client.recv(client.recv(1)[0])
            client.sendall(b"\1\0")
            assert client.recv(4) == b"\5\1\0\3"
            asked.append((user, password, client.recv(client.recv(1)[0])))
            client.recv(2)
            client.sendall(b"\5\0\0\1" + bytes(6))
            host, port = server.address.split(":")
            with socket.create_connection((host, int(port))) as other:
                threading.Thread(target=_copy, args=(other, client), daemon=True).start()
                _copy(client, other)

    with serving(proxy := socketserver.ThreadingTCPServer(("127.0.0.1", 0), Socks)):
        proxy.daemon_threads = True
        address = f"127.0.0.1:{proxy.server_address[1]}"
        monkeypatch.setenv("http_proxy", f"socks5h://me:PASS%20WORD@{address}")
        with monkeypatch.context() as patched:
            patched.setitem(sys.modules, "socks", None)
            with pytest.raises(UnsupportedError, match="PySocks"):
                npzkit.open("http://data.example/a.npz")
        with npzkit.open("http://data.example/a.npz") as npz:
            np.testing.assert_array_equal(npz["w1"], ARRAYS["w1"])
        assert asked[0] == (b"me", b"PASS WORD", b"data.example")


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_an_ipv6_address_behind_a_proxy(server, monkeypatch, scheme):
    """It keeps its brackets, without which its port is a part of it."""
    proxy = Proxy(server)
    with serving(proxy):
        monkeypatch.setenv(f"{scheme}_proxy", f"http://{proxy.address}")
        options = {"timeout": 1}
        with contextlib.suppress(OSError):
            npzkit.open(f"{scheme}://[2001:db8::1]:8080/a.npz", storage_options=options).close()
        expected = {
            "http": b"GET http://[2001:db8::1]:8080/a.npz HTTP/1.1\r\n",
            "https": b"CONNECT [2001:db8::1]:8080 HTTP/1.",
        }
        assert proxy.heads[0].startswith(expected[scheme])
        assert b"Host: [2001:db8::1]:8080\r\n" in proxy.heads[0] or scheme == "https"


def test_a_proxy_whose_answer_does_not_end(monkeypatch):
    """An answer to CONNECT that comes byte by byte has a limit of time as any other."""
    over = threading.Event()

    class Dripping(socketserver.BaseRequestHandler):
        def handle(self):
            self.request.recv(1 << 16)
            with contextlib.suppress(OSError):
                self.request.sendall(b"HTTP/1.1 200 OK\r\nX: ")
                while not over.wait(0.05):
                    self.request.sendall(b"x")

    monkeypatch.setattr(retries, "ATTEMPTS", 2)
    with serving(proxy := socketserver.ThreadingTCPServer(("127.0.0.1", 0), Dripping)):
        proxy.daemon_threads = True
        monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{proxy.server_address[1]}")
        begin = time.monotonic()
        # The whole test would end after 30 seconds otherwise.
        timer = threading.Timer(15, over.set)
        timer.start()
        with pytest.raises(OSError, match="failed after 2 attempts"):
            npzkit.open("https://data.example/a.npz", storage_options={"timeout": 0.3})
        assert time.monotonic() - begin < 10
        over.set()
        timer.cancel()


# -- names of servers ---------------------------------------------------------


def silent_look_up(seconds):
    """A look-up of a name as the system's: it returns late, and a signal does not end it."""

    def find(*args, **options):
        interrupt = None
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            try:
                time.sleep(0.02)
            except KeyboardInterrupt as error:
                interrupt = error
        if interrupt is not None:
            raise interrupt
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    return find


@pytest.mark.usefixtures("interrupts")
@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="no signals to threads")
def test_an_interrupt_while_a_name_server_is_silent(monkeypatch):
    """Ctrl-C does not wait for it."""
    monkeypatch.setattr(socket, "getaddrinfo", silent_look_up(6))
    main = threading.main_thread().ident
    timer = threading.Timer(0.2, lambda: signal.pthread_kill(main, signal.SIGINT))
    timer.start()
    begin = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        npzkit.open("http://data.example/a.npz")
    assert time.monotonic() - begin < 1.2


def test_a_name_server_that_is_silent(monkeypatch):
    """The time limit counts from the look-up on."""
    monkeypatch.setattr(socket, "getaddrinfo", silent_look_up(6))
    begin = time.monotonic()
    with pytest.raises(OSError, match="failed after 4 attempts"):
        npzkit.open("http://data.example/a.npz", storage_options={"timeout": 0.2})
    assert time.monotonic() - begin < 4


@pytest.mark.slow
@pytest.mark.parametrize("timeout", [0, None, float("inf"), 1e12, SimpleNamespace(total=None)])
def test_no_time_limit(server, timeout):
    """None and 0 are no limit, as for aiohttp, whose `ClientTimeout` is taken too."""
    server.delay = 0.3
    for options in ({"timeout": timeout}, {"client_kwargs": {"timeout": timeout}}):
        with npzkit.open(server.url(), storage_options=options) as npz:
            np.testing.assert_array_equal(npz["w1"], ARRAYS["w1"])


@pytest.mark.parametrize(
    ("timeout", "error"),
    [(-1, ValueError), (float("nan"), ValueError), (True, TypeError), ((3, 30), TypeError)],
)
def test_a_time_limit_that_is_none(server, timeout, error):
    """The error names the option, and no request is made."""
    with pytest.raises(error, match=r"^timeout must be "):
        npzkit.open(server.url(), storage_options={"timeout": timeout})
    assert server.count == 0


# -- TLS ----------------------------------------------------------------------


def test_a_context_that_compares_no_names(tls, fixtures, monkeypatch):
    """What a caller's context does not check is not checked."""
    find = socket.getaddrinfo
    monkeypatch.setattr(
        socket, "getaddrinfo", lambda host, *args, **options: find("127.0.0.1", *args, **options)
    )
    context = ssl.create_default_context(cafile=fixtures / "tls" / "authority.pem")
    context.check_hostname = False
    with RangeServer(tls).running() as server:
        url = server.put(DATA).replace("127.0.0.1", "other.example")
        with npzkit.open(url, storage_options={"ssl": context}) as npz:
            np.testing.assert_array_equal(npz["w1"], ARRAYS["w1"])
        assert server.answer is good
