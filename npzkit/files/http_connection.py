"""HTTP/1.1 connections: kept open, used again, bounded in time.

Owns the sockets of one archive. Knows no status but what it reads, no ranges
and no retries. Uses Python's own `http.client`: with 20 ms of latency it is as
fast as the clients written in Rust, it works in forked children, and it needs
no thread of its own.
"""

from __future__ import annotations

import base64
import collections
import contextlib
import http.client
import io
import os
import socket
import ssl
import time
import weakref
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import SplitResult, unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

from npzkit.files.progress import Advance

__all__ = ["Connections", "Exchange", "basic_auth"]

_STEP_SIZE = 1 << 17
"""Bytes that are received between two reports of them."""
_SLOWEST = 1 << 15
"""Bytes per second that a body must have, beside the time limit of its first byte."""


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


class _Connection(http.client.HTTPConnection):
    """A connection to one origin, through a proxy or not, whose reads have a deadline."""

    def __init__(
        self,
        origin: tuple[str, str, int],
        timeout: float,
        context: ssl.SSLContext | None,
        proxy: SplitResult | None,
    ) -> None:
        self.origin = origin
        self.timed: _Timed | None = None
        self._socket: socket.socket | None = None
        self.is_aborted = False
        scheme, host, port = origin
        self.is_proxied = proxy is not None and scheme == "http"
        super().__init__(host, port, timeout=timeout)
        self._seconds, self._context = timeout, context
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
                found.settimeout(self._seconds)
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
            # A TLS socket must not say goodbye first.
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)

    def connect(self) -> None:
        self._create_connection = self._reach
        try:
            super().connect()
        finally:
            # Otherwise the connection would refer to itself.
            del self._create_connection
        scheme, host, _ = self.origin
        if scheme == "https":
            context = self._context or ssl.create_default_context()
            wrapped = context.wrap_socket(
                self.sock, server_hostname=host, do_handshake_on_connect=False
            )
            self.sock = self._socket = wrapped
            wrapped.do_handshake()
        timed: Any = _Timed(self.sock, self._seconds)
        self.sock = self.timed = timed

    def allow(self, seconds: float) -> None:
        """Let reads take so long from now on."""
        if self.timed is not None:
            self.timed.deadline = time.monotonic() + seconds


def _proxy_of(scheme: str, host: str) -> SplitResult | None:
    """Return the proxy that the environment names for an origin."""
    url = getproxies().get(scheme)
    if not url or proxy_bypass(host):
        return None
    return urlsplit(url if "://" in url else f"http://{url}")


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
    connection : _Connection
    """

    response: http.client.HTTPResponse
    connection: _Connection

    def read_body(self, view: memoryview, received: Advance | None = None) -> int:
        """Fill `view` with the body; return how many bytes there were.

        `received` is called with them as they come.
        """
        self.connection.allow(self.connection._seconds + len(view) / _SLOWEST)
        done, step = 0, len(view) if received is None else _STEP_SIZE
        while done < len(view):
            count = self.response.readinto(view[done : done + step])
            if not count:
                break
            done += count
            if received is not None:
                received(count)
        return done


class Connections:
    """The connections of one archive.

    Parameters
    ----------
    timeout : float
        Seconds that the server may be silent.
    context : ssl.SSLContext, optional
    """

    def __init__(self, timeout: float, context: ssl.SSLContext | None = None) -> None:
        self._timeout, self._context = timeout, context
        # Asked for once: it takes as long as a connection.
        self._proxies: dict[tuple[str, str, int], SplitResult | None] = {}
        self._forget()

    def _forget(self) -> None:
        """Begin without connections. A forked child must not use those of its parent."""
        self._process = os.getpid()
        self._idle: collections.deque[_Connection] = collections.deque()
        # In a cycle, and when Python ends, sockets may be collected before their owner.
        weakref.finalize(self, self._close_all, self._idle)
        self._busy: set[_Connection] = set()
        self._is_closed = False

    def send(self, method: str, url: SplitResult, headers: Mapping[str, str]) -> Exchange:
        """Send a request, and read the head of the answer.

        Raises
        ------
        OSError, http.client.HTTPException
            As `http.client`. Nothing is sent twice, except on a connection that
            the server closed while it was idle.
        """
        while True:
            connection, is_used = self._take(url)
            try:
                response = self._ask(connection, method, url, headers)
            except (ConnectionError, http.client.RemoteDisconnected):
                self._forsake(connection)
                if not is_used or connection.is_aborted:
                    raise
            except BaseException:
                self._forsake(connection)
                raise
            else:
                return Exchange(response, connection)

    def _ask(
        self, connection: _Connection, method: str, url: SplitResult, headers: Mapping[str, str]
    ) -> http.client.HTTPResponse:
        target = url._replace(scheme="", netloc="", fragment="").geturl() or "/"
        if connection.is_proxied:
            target = f"http://{url.hostname}:{connection.origin[2]}{target}"
            headers = {**headers, **connection.proxy_headers}
        if connection.sock is None:
            connection.connect()
        connection.allow(self._timeout)
        connection.request(method, target, headers=dict(headers))
        return connection.getresponse()

    def _take(self, url: SplitResult) -> tuple[_Connection, bool]:
        """Return a connection, and whether it was used before."""
        if self._process != os.getpid():
            self._forget()
        origin = origin_of(url)
        for _ in range(len(self._idle)):
            try:
                connection = self._idle.pop()
            except IndexError:
                break
            if connection.origin == origin:
                self._busy.add(connection)
                return connection, True
            self._idle.appendleft(connection)
        if origin not in self._proxies:
            self._proxies[origin] = _proxy_of(*origin[:2])
        connection = _Connection(origin, self._timeout, self._context, self._proxies[origin])
        self._busy.add(connection)
        return connection, False

    def give_back(self, exchange: Exchange) -> None:
        """Keep a connection whose answer was read; close any other."""
        connection, response = exchange.connection, exchange.response
        is_read = response.isclosed() or response.length == 0
        if not is_read or response.will_close or self._was_closed():
            self.drop(exchange)
            return
        response.close()
        self._busy.discard(connection)
        self._idle.append(connection)
        if self._was_closed():
            self.close()

    def _was_closed(self) -> bool:
        # By another thread, perhaps just now.
        return self._is_closed

    def drop(self, exchange: Exchange) -> None:
        """Close a connection whose answer nobody reads any more."""
        exchange.response.close()
        self._forsake(exchange.connection)

    def _forsake(self, connection: _Connection) -> None:
        self._busy.discard(connection)
        connection.close()

    def abort(self) -> None:
        """Make reads of other threads fail at once."""
        for connection in list(self._busy):
            connection.abort()

    def close(self) -> None:
        """Close idle connections now, and others when their answers are read."""
        self._is_closed = True
        self._close_all(self._idle)

    @staticmethod
    def _close_all(connections: collections.deque[_Connection]) -> None:
        """Close connections, of which another thread may take some."""
        while connections:
            try:
                connections.pop().close()
            except IndexError:
                return


def origin_of(url: SplitResult) -> tuple[str, str, int]:
    """Return scheme, host and port of a URL."""
    port = url.port or (443 if url.scheme == "https" else 80)
    return url.scheme, url.hostname or "", port
