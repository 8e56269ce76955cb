"""One HTTP/1.1 connection, whose reads are bounded in time, and an exchange on it.

Owns a socket: how it connects, through which proxy, and which certificates are
trusted. Knows no status but what it reads, no ranges and no retries. Uses
Python's own `http.client`: with 20 ms of latency it is as fast as the clients
written in Rust, it works in forked children, and it needs no thread of its own.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import http.client
import io
import os
import socket
import ssl
import time
from typing import Any, NamedTuple
from urllib.parse import SplitResult, unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

from npzkit.errors import UnsupportedError
from npzkit.files.progress import Advance

Origin = tuple[str, str, int]
"""Scheme, host and port."""

_STEP_SIZE = 1 << 17
"""Bytes that are received between two reports of them."""
_AUTHORITIES = "SSL_CERT_FILE", "SSL_CERT_DIR"
"""Variables of the environment that say which authorities OpenSSL trusts."""
_MOST_INTERIM = 64
"""Answers before the one that was asked for."""
_SLOWEST = 1 << 15
"""Bytes per second that a body must have, beside the time limit of its first byte."""


class Route(NamedTuple):
    """Where a connection leads.

    Attributes
    ----------
    origin : Origin
    proxy : urllib.parse.SplitResult or None
    timeout : float
        Seconds that the server may be silent.
    context : ssl.SSLContext or None
        Used instead of the usual one.
    """

    origin: Origin
    proxy: SplitResult | None
    timeout: float
    context: ssl.SSLContext | None


class _Raw(io.RawIOBase):
    """The bytes of a socket, until a deadline."""

    def __init__(self, timed: _Timed) -> None:
        self._timed = timed
        timed.reader_count += 1

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        return self._timed.recv_into(buffer)

    def close(self) -> None:
        if not self.closed:
            super().close()
            self._timed.reader_count -= 1
            self._timed.close_unused()


class _Timed:
    """A socket whose reads end at a deadline, however slowly its bytes drip.

    `http.client` uses these methods of a socket, and no others. It closes the
    socket before it reads an answer after which the server ends the connection.
    """

    def __init__(self, sock: Any, timeout: float) -> None:
        self._sock, self._timeout = sock, timeout
        self._is_closed = False
        self.reader_count = 0
        self.deadline = 0.0

    def recv_into(self, buffer: Any) -> int:
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("the answer takes too long")
        self._sock.settimeout(min(left, self._timeout))
        return int(self._sock.recv_into(buffer))

    def sendall(self, data: Any) -> None:
        self._sock.settimeout(self._timeout)
        self._sock.sendall(data)

    def makefile(self, mode: str) -> io.BufferedReader:
        return io.BufferedReader(_Raw(self))

    def close(self) -> None:
        self._is_closed = True
        self.close_unused()

    def close_unused(self) -> None:
        """Close the socket if it was closed here, and nobody reads its last answer."""
        if self._is_closed and self.reader_count <= 0:
            self._sock.close()


class _Response(http.client.HTTPResponse):
    """An answer, without those that only say that it will come (RFC 9110, 15.2)."""

    def _read_status(self) -> tuple[str, int, str]:
        # `http.client` skips those with 100 only, and any number of them.
        for _ in range(_MOST_INTERIM):
            found: tuple[str, int, str] = super()._read_status()  # type: ignore[misc]
            if not 100 <= found[1] < 200 or found[1] == http.HTTPStatus.SWITCHING_PROTOCOLS:
                return found
            http.client.parse_headers(self.fp)
        raise http.client.HTTPException("the answer does not come")


class Connection(http.client.HTTPConnection):
    """A connection to one origin, through a proxy or not, whose reads have a deadline."""

    response_class = _Response

    def __init__(self, route: Route) -> None:
        self.route = route
        self.timed: _Timed | None = None
        self._socket: socket.socket | None = None
        self.is_aborted = False
        self.idle_since = 0.0
        (scheme, host, port), proxy, timeout, _ = route
        self.is_proxied = proxy is not None and scheme == "http"
        super().__init__(host, port, timeout=timeout)
        self.proxy_headers: dict[str, str] = {}
        if proxy is not None and proxy.hostname:
            self.proxy_headers = basic_auth(proxy.username, proxy.password, "Proxy-Authorization")
            if scheme == "https":
                self.set_tunnel(host, port, self.proxy_headers)
            self.host, self.port = proxy.hostname, proxy.port or 80

    def _reach(self, address: tuple[str, int], *rest: Any) -> socket.socket:
        """Connect as `socket.create_connection` does, with a socket that `abort` knows."""
        failure: OSError = OSError("the name of the server has no address")
        for family, kind, protocol, _, place in socket.getaddrinfo(
            *address, type=socket.SOCK_STREAM
        ):
            found = self._socket = socket.socket(family, kind, protocol)
            try:
                found.settimeout(self.route.timeout)
                if self.is_aborted:
                    raise ConnectionAbortedError("the connection was given up")
                found.connect(place)
            except OSError as error:
                found.close()
                failure = error
            except BaseException:
                found.close()
                raise
            else:
                return found
        raise failure

    def abort(self) -> None:
        """Make a thread fail at once that connects, or waits for an answer."""
        self.is_aborted = True
        if self._socket is not None:
            # The socket below TLS. `SSLSocket.shutdown` ends the encryption as well, and the
            # thread would go on to read what is encrypted, and take it for data.
            with contextlib.suppress(OSError):
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def connect(self) -> None:
        self._create_connection = self._reach
        try:
            super().connect()
        finally:
            # Otherwise the connection would refer to itself.
            del self._create_connection
        scheme, host, _ = self.route.origin
        if scheme == "https":
            context = self.route.context or _usual_context(*map(os.environ.get, _AUTHORITIES))
            wrapped = context.wrap_socket(
                self.sock, server_hostname=host, do_handshake_on_connect=False
            )
            self.sock = self._socket = wrapped
            wrapped.do_handshake()
        timed: Any = _Timed(self.sock, self.route.timeout)
        self.sock = self.timed = timed

    @property
    def is_quiet(self) -> bool:
        """Whether nothing came since the last answer: neither its end nor what nobody asked for."""
        found = self._socket
        if found is None or self.sock is None or (hasattr(found, "pending") and found.pending()):
            return False
        try:
            found.settimeout(0)
            # A look at the bytes below TLS, which stay where they are.
            socket.socket.recv(found, 1, socket.MSG_PEEK)
        except BlockingIOError:
            return True
        except OSError:
            pass
        return False

    def allow(self, seconds: float) -> None:
        """Let reads take so long from now on."""
        if self.timed is not None:
            self.timed.deadline = time.monotonic() + seconds


@functools.lru_cache(4)
def _usual_context(*_: str | None) -> ssl.SSLContext:
    """Return the context that trusts the system's authorities, or those that are named.

    It is made once: to read all certificates takes longer than a request.
    """
    return ssl.create_default_context()


def proxy_of(scheme: str, host: str) -> SplitResult | None:
    """Return the proxy that the environment names for an origin."""
    url = getproxies().get(scheme)
    if not url or proxy_bypass(host):
        return None
    return split_url(
        url if "://" in url else f"http://{url}", f"the proxy in the variable {scheme}_proxy"
    )


def split_url(url: str, what: str) -> SplitResult:
    """Return the parts of a URL whose host and port are valid.

    Raises
    ------
    UnsupportedError
        They are not. The message names the URL by `what`, and shows nothing of it.
    """
    try:
        parts = urlsplit(url)
        if parts.port != 0 and (parts.hostname or "").encode("idna"):
            return parts
    except ValueError:
        # Its message may have a piece of the password.
        pass
    raise UnsupportedError(
        f"{what} has no valid host and port",
        remedy="In a user or a password, write / as %2F, ? as %3F, # as %23 and @ as %40.",
    )


def basic_auth(
    user: str | None, password: str | None, name: str = "Authorization"
) -> dict[str, str]:
    """Return the header of a user and a password, as they stand in a URL; none without a user."""
    if user is None:
        return {}
    token = f"{unquote(user)}:{unquote(password or '')}".encode()
    return {name: f"Basic {base64.b64encode(token).decode()}"}


class Exchange(NamedTuple):
    """An answer whose body is not read yet.

    Attributes
    ----------
    response : http.client.HTTPResponse
    connection : Connection
    """

    response: http.client.HTTPResponse
    connection: Connection

    def read_body(self, view: memoryview, received: Advance | None = None) -> int:
        """Fill `view` with the body; return how many bytes there were.

        `received` is called with them as they come.
        """
        self.connection.allow(self.connection.route.timeout + len(view) / _SLOWEST)
        done, step = 0, len(view) if received is None else _STEP_SIZE
        while done < len(view):
            count = self.response.readinto(view[done : done + step])
            if not count:
                break
            done += count
            if received is not None:
                received(count)
        return done


def origin_of(url: SplitResult) -> Origin:
    """Return scheme, host and port of a URL."""
    port = url.port or (443 if url.scheme == "https" else 80)
    return url.scheme, url.hostname or "", port
