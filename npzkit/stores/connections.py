"""HTTP connections: urllib3's, which archives share, whose answers end in time.

Owns what urllib3 does not do: one time limit (`npzkit.stores.time_limits`) for all that a
request waits for, requests that can be given up, heads that end, no secrets in logs, and
connections that are closed with the last archive that uses them. Knows no ranges, and no
status.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import http.client
import io
import math
import operator
import os
import socket
import ssl
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import CancelledError, Future
from contextvars import ContextVar
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

import urllib3
from urllib3.exceptions import HTTPError

from npzkit.errors import UnsupportedError
from npzkit.files.progress import Advance
from npzkit.stores.hidden_secrets import keep_quiet
from npzkit.stores.retries import TransientError
from npzkit.stores.time_limits import Calls, TimeLimit, current_limit, started

Origin = tuple[str, str, int]
"""Scheme, host and port."""

_IDLE_COUNT = 64
"""Most connections to an origin that are kept unused. One archive uses ten at a time."""
_IDLE_SECONDS = 50.0
"""How long they are kept. Many servers close them after a minute, and some routers forget
them without a word, so that a request would wait for an answer that never comes."""
_RECEIVED_SIZE = 1 << 16
"""Bytes that are received before they are counted."""
_MOST_LINES = 128
"""Lines of an answer's head, together with those of the answers that announce it."""
_AUTHORITIES = "SSL_CERT_FILE", "SSL_CERT_DIR"
"""Variables of the environment that say which authorities OpenSSL trusts."""
_UNKNOWN_AUTHORITIES = (18, 19, 20, 21)
"""What OpenSSL calls a certificate, or a chain of them, that nobody known has signed."""
_SOCKS = ("socks4", "socks4a", "socks5", "socks5h")


# -- answers ------------------------------------------------------------------

_awaited: ContextVar[list[Any] | None] = ContextVar("sockets of a request", default=None)
"""The sockets on which the thread of a request waits for the head of an answer."""


class _Limited(io.RawIOBase):
    """The bytes of a connection, each of which is waited for until the time of the request ends.

    The time limit of a socket alone begins again with each byte.
    """

    def __init__(self, raw: Any, sock: Any, limit: TimeLimit) -> None:
        self._raw, self._sock, self._limit = raw, sock, limit

    def readable(self) -> bool:
        return True

    def readinto(self, view: Any) -> int | None:
        left = self._limit.check()
        self._sock.settimeout(None if left == math.inf else left)
        try:
            count: int | None = self._raw.readinto(view)
        except TimeoutError:
            # In the same words, whichever of the two was first.
            raise self._limit.expired() from None
        return count

    def close(self) -> None:
        self._raw.close()
        super().close()


class _Counted(io.BufferedReader):
    """The bytes of an answer, with not too many lines in its head."""

    lines_left: float = _MOST_LINES

    def readline(self, size: int | None = -1, /) -> bytes:
        self.lines_left -= 1
        if self.lines_left < 0:
            raise http.client.HTTPException("the answer has too many lines")
        return super().readline(size)


class _Response(http.client.HTTPResponse):
    """An answer, without those that only say that it will come (RFC 9110, 15.2)."""

    def __init__(self, sock: Any, *args: Any, **options: Any) -> None:
        super().__init__(sock, *args, **options)
        sockets = _awaited.get()
        if sockets is not None:
            sockets.append(sock)
        counted: Any = _Counted(_Limited(self.fp.detach(), sock, current_limit()))
        self.fp = counted

    def begin(self) -> None:
        super().begin()
        while self.status in range(102, 200):
            # Otherwise, `begin` would take its work as done.
            self.headers = None  # type: ignore[assignment]
            super().begin()
        if self.headers.get_payload():
            # A line that is no field ends the head for `email`, also before the field that
            # says where the body ends.
            raise http.client.HTTPException("the head of the answer is not valid")
        counted: Any = self.fp
        counted.lines_left = math.inf


class _Kept:
    """What connections of urllib3 have here."""

    response_class = _Response
    sock: Any
    _used = 0.0

    def getresponse(self) -> Any:
        self._used = time.monotonic()
        return super().getresponse()  # type: ignore[misc]

    @property
    def is_connected(self) -> bool:
        """Whether it can be used again: nothing came since the last answer, not even its end."""
        if time.monotonic() - self._used >= _IDLE_SECONDS:
            return False
        # What TLS has decrypted is not on the socket any more.
        pending = getattr(self.sock, "pending", None)
        is_quiet: bool = super().is_connected  # type: ignore[misc]
        return is_quiet and not (pending and pending())


@functools.cache
def _kept(kind: type) -> type:
    """Return a class of urllib3's connections with what they have here."""
    return kind if issubclass(kind, _Kept) else type(kind.__name__, (_Kept, kind), {})


# -- routes -------------------------------------------------------------------


def split_url(url: str, what: str) -> SplitResult:
    """Return the parts of a URL with a valid host and port; an error names it by `what` alone."""
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


@functools.lru_cache(64)
def origin_of(url: SplitResult) -> Origin:
    """Return scheme, host (an IPv6 address in brackets) and port of a URL."""
    host = (url.hostname or "").encode("idna").decode()
    port = url.port or (443 if url.scheme == "https" else 80)
    return url.scheme, f"[{host}]" if ":" in host else host, port


def basic_auth(
    user: str | None, password: str | None, name: str = "Authorization"
) -> dict[str, str]:
    """Return the header of a user and a password, as they stand in a URL; none without a user."""
    if user is None:
        return {}
    token = f"{unquote(user)}:{unquote(password or '')}".encode()
    return {name: f"Basic {base64.b64encode(token).decode()}"}


def _proxy_of(origin: Origin) -> SplitResult | None:
    """Return the proxy that the environment names for an origin."""
    scheme, host, port = origin
    url = getproxies().get(scheme)
    if not url or proxy_bypass(host.strip("[]")) or proxy_bypass(f"{host}:{port}"):
        return None
    what = f"the proxy in the variable {scheme}_proxy"
    proxy = split_url(url if "://" in url else f"http://{url}", what)
    if proxy.scheme not in ("http", "https", *_SOCKS):
        raise UnsupportedError(
            f"{what} has an unknown scheme",
            found=proxy.scheme,
            expected=", ".join(("http", "https", *_SOCKS)),
        )
    return proxy


def _manager(proxy: SplitResult | None, options: dict[str, Any]) -> urllib3.PoolManager:
    """Return what makes pools of connections, through a proxy or not."""
    if proxy is None:
        return urllib3.PoolManager(**options)
    url = proxy._replace(netloc=proxy.netloc.rpartition("@")[2], path="", query="", fragment="")
    if proxy.scheme not in _SOCKS:
        headers = basic_auth(proxy.username, proxy.password, "Proxy-Authorization")
        context = _usual_context(*map(os.environ.get, _AUTHORITIES))
        return urllib3.ProxyManager(
            url.geturl(), proxy_headers=headers, proxy_ssl_context=context, **options
        )
    try:
        import socks  # noqa: F401 - without it, urllib3 warns as well
        from urllib3.contrib.socks import SOCKSProxyManager
    except ImportError:
        raise UnsupportedError(
            f"the proxy scheme {proxy.scheme} needs a package that is not installed (PySocks)",
            remedy='Install it: python -m pip install "urllib3[socks]"',
        ) from None
    user, password = (text and unquote(text) for text in (proxy.username, proxy.password))
    return SOCKSProxyManager(url.geturl(), user, password, **options)


@functools.lru_cache(4)
def _usual_context(*_: str | None) -> ssl.SSLContext:
    """Return the context that trusts the system's authorities, or those that are named.

    It is made once: to read all certificates takes longer than a request.
    """
    return ssl.create_default_context()


_pools: weakref.WeakValueDictionary[Any, urllib3.HTTPConnectionPool]
_pools = weakref.WeakValueDictionary()
"""What archives share, until the last one of them is closed. By process too: a forked child
must not use connections of its parent."""


def _pool_of(origin: Origin, context: ssl.SSLContext | None) -> urllib3.HTTPConnectionPool:
    """Return the pool of connections to an origin, with its proxy and these options."""
    scheme, host, port = origin
    options: dict[str, Any] = {"maxsize": _IDLE_COUNT}
    if scheme == "https":
        used = context or _usual_context(*map(os.environ.get, _AUTHORITIES))
        # A context that compares no names is the caller's choice.
        options |= {"ssl_context": used, "assert_hostname": None if used.check_hostname else False}
    proxy = _proxy_of(origin)
    key = os.getpid(), origin, proxy, options.get("ssl_context")
    found = _pools.get(key)
    if found is None or found.pool is None:
        found = _manager(proxy, options).connection_from_host(host, port, scheme)
        found.ConnectionCls = _kept(found.ConnectionCls)
        _pools[key] = found
    return found


# -- requests -----------------------------------------------------------------

keep_quiet()


class Connections:
    """The connections of one archive. Shared by threads, and by forked processes.

    Parameters
    ----------
    name : str
        Of the archive, for messages.
    context : ssl.SSLContext, optional
        Used instead of the usual one.

    Notes
    -----
    All of a request counts for the time limit of the block in which it is made: the look-up of
    the server's name, the head of the answer and its body.
    """

    def __init__(self, name: str, context: ssl.SSLContext | None = None) -> None:
        self._name, self._context = name, context
        self._is_closed = False
        self._reset()

    def _reset(self) -> None:
        """Begin without connections. Those of a forked child's parent are not its own."""
        self._process = os.getpid()
        self._calls = Calls()
        self._pools: dict[Origin, urllib3.HTTPConnectionPool] = {}
        self._bodies: set[Any] = set()

    def send(
        self, url: SplitResult, headers: Mapping[str, str], keep: Callable[[Any], object]
    ) -> Any:
        """Send a request, and return the answer (`urllib3.HTTPResponse`) when its head came.

        `keep` is called with it before that, so that the caller can close it after an
        interrupt too.
        """
        if self._process != os.getpid():
            self._reset()
        with self._explained():
            # In a thread: a look-up of a name can be neither interrupted nor limited.
            sockets: list[Any] = []
            ask = functools.partial(self._ask, url, headers, keep, sockets)
            future = started(ask, operator.methodcaller("close"))
            future.add_done_callback(functools.partial(_end_waits, sockets))
            return self._calls.wait(future)

    def _ask(
        self,
        url: SplitResult,
        headers: Mapping[str, str],
        keep: Callable[[Any], object],
        sockets: list[Any],
    ) -> Any:
        _awaited.set(sockets)
        scheme, host, port = origin = origin_of(url)
        pool = self._pools.get(origin)
        if pool is None or pool.pool is None:
            pool = _pool_of(origin, self._context)
            if not self._is_closed:
                # Otherwise, a request that is under way was redirected.
                self._pools[origin] = pool
        target = (url.path or "/") + (f"?{url.query}" if url.query else "")
        if pool.proxy is not None and scheme == "http":
            target = f"http://{host}:{port}{target}"
        left = current_limit().check()
        response = pool.urlopen(
            "GET", target, headers=dict(headers), retries=False, redirect=False,
            timeout=None if left == math.inf else left,
            assert_same_host=False, preload_content=False, decode_content=False,
            enforce_content_length=False,
        )  # fmt: skip
        keep(response)
        return response

    def read_body(self, response: Any, view: memoryview, received: Advance | None = None) -> int:
        """Fill `view` with the next bytes of a body; return how many there were.

        `received` is called with their numbers as they come.
        """
        limit = current_limit()
        done = 0
        self._bodies.add(response)
        try:
            with self._explained():
                while done < len(view):
                    piece = response.read1(min(_RECEIVED_SIZE, len(view) - done))
                    if response not in self._bodies:
                        # Encrypted bytes may have been taken for data.
                        raise CancelledError
                    if not piece:
                        break
                    if len(piece) > len(view) - done:
                        # `http.client` takes a chunk of -5 bytes for all that follows.
                        raise http.client.HTTPException("the chunks of the answer are not valid")
                    view[done : done + len(piece)] = piece
                    done += len(piece)
                    limit.extend(len(piece))
                    if received is not None:
                        received(len(piece))
        finally:
            self._bodies.discard(response)
        return done

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        """Raise the errors of a request without what a server, or a library, says of it."""
        try:
            yield
        except CancelledError:
            raise TransientError("the request was given up") from None
        except (OSError, HTTPError, http.client.HTTPException) as raised:
            error = _root_of(raised)
            if isinstance(error, ssl.SSLCertVerificationError):
                # Tried again, it fails again.
                raise OSError(f"{self._name}: {_untrusted(error)}") from None
            if isinstance(error, TimeoutError):
                # A router may have forgotten other connections as well.
                for pool in list(self._pools.values()):
                    pool.close()
            raise TransientError(_reason(error)) from None

    def abort(self) -> None:
        """Make requests of other threads fail at once."""
        # A forked child has the sockets of its parent, which go on.
        if self._process == os.getpid():
            self._calls.give_up()
            for response in list(self._bodies):
                self._bodies.discard(response)
                with contextlib.suppress(OSError, ValueError, RuntimeError):
                    response.shutdown()

    def close(self) -> None:
        """Use no connection any more, once answers under way are read. May be called twice."""
        self._is_closed = True
        self._pools.clear()


def _end_waits(sockets: list[Any], future: Future[Any]) -> None:
    """End the thread of a request that was given up."""
    if future.cancelled():
        for sock in sockets:
            with contextlib.suppress(OSError, ValueError, AttributeError):
                sock.shutdown(socket.SHUT_RDWR)


def _root_of(error: BaseException) -> BaseException:
    """Return the error of the system, or of `http.client`, that one of urllib3 is about."""
    while isinstance(error, HTTPError):
        below = error.__cause__ or next((a for a in error.args if isinstance(a, Exception)), None)
        if below is None:
            break
        error = below
    return error


def _reason(error: BaseException) -> str:
    """Return what went wrong, without what the server sent."""
    if isinstance(error, OSError):
        return str(error.strerror or error) or type(error).__name__
    return f"the answer is not valid HTTP ({type(error).__name__})"


def _untrusted(error: ssl.SSLCertVerificationError) -> str:
    """Return why a server's certificate is refused."""
    text = f"the server's certificate is refused: {error.verify_message}"
    if error.verify_code in _UNKNOWN_AUTHORITIES:
        text += ". If you trust its authority, set SSL_CERT_FILE to a file with its certificate"
    return text
