"""HTTP connections that are kept open, and used again.

Owns which connections an archive uses, and those that nobody uses just now:
archives that are open at the same time share these, so that hundreds of shards
need no more sockets than one. A connection itself is
`npzkit.files.http_connection`'s.
"""

from __future__ import annotations

import collections
import contextlib
import http.client
import os
import time
import weakref
from collections.abc import Mapping
from ssl import SSLContext
from urllib.parse import SplitResult

from npzkit.files.http_connection import Connection, Exchange, Origin, Route, origin_of, proxy_of

_IDLE_COUNT = 64
"""Most connections of a route that are kept unused. One archive uses ten at a time."""
_IDLE_SECONDS = 50.0
"""How long they are kept. Many servers close them after a minute, and some routers forget
them without a word, so that a request would wait for an answer that never comes."""


class _Pool:
    """The connections of one route that nobody uses, until the last archive there is closed."""

    def __init__(self, route: Route) -> None:
        self.route = route
        self.users: set[object] = set()
        self._idle: collections.deque[Connection] = collections.deque()
        # In a cycle, and when Python ends, sockets may be collected before their owner.
        weakref.finalize(self, _close_all, self._idle)

    def take(self) -> Connection | None:
        """Return the connection that was used last, or None."""
        oldest = time.monotonic() - _IDLE_SECONDS
        with contextlib.suppress(IndexError):
            while True:
                connection = self._idle.pop()
                if connection.idle_since >= oldest and connection.is_quiet:
                    return connection
                connection.close()
        return None

    def keep(self, connection: Connection) -> None:
        """Keep a connection whose last answer was read. If there are many, the oldest is closed."""
        connection.idle_since = time.monotonic()
        self._idle.append(connection)
        if len(self._idle) > _IDLE_COUNT:
            # Another thread may have taken some.
            with contextlib.suppress(IndexError):
                self._idle.popleft().close()
        self._close_unused()

    def leave(self, user: object) -> None:
        """Close all if this was the last user. May be called twice."""
        self.users.discard(user)
        self._close_unused()

    def close_idle(self) -> None:
        _close_all(self._idle)

    def _close_unused(self) -> None:
        if not self.users:
            self.close_idle()


def _close_all(connections: collections.deque[Connection]) -> None:
    """Close connections, of which another thread may take some."""
    with contextlib.suppress(IndexError):
        while True:
            connections.pop().close()


_pools: weakref.WeakValueDictionary[tuple[int, Route], _Pool] = weakref.WeakValueDictionary()
"""By process too: a forked child must not use connections of its parent."""


def _join(route: Route, user: object) -> _Pool:
    key = os.getpid(), route
    pool = _pools.get(key) or _pools.setdefault(key, _Pool(route))
    pool.users.add(user)
    return pool


def _leave(joined: dict[Origin, _Pool], user: object) -> None:
    for pool in list(joined.values()):
        pool.leave(user)


class Connections:
    """The connections of one archive.

    Parameters
    ----------
    timeout : float
        Seconds that the server may be silent.
    context : ssl.SSLContext, optional
    """

    def __init__(self, timeout: float, context: SSLContext | None = None) -> None:
        self._timeout, self._context = timeout, context
        self._process = os.getpid()
        self._busy: set[Connection] = set()
        self._pools: dict[Origin, _Pool] = {}
        self._user = object()
        self._is_closed = False
        # If it is collected instead of closed.
        weakref.finalize(self, _leave, self._pools, self._user)

    def send(self, method: str, url: SplitResult, headers: Mapping[str, str]) -> Exchange:
        """Send a request, and read the head of the answer.

        Raises
        ------
        OSError, http.client.HTTPException
            As `http.client`. Nothing is sent twice, except on a connection that
            the server closed while it was idle.
        """
        pool = self._pool_of(url)
        while True:
            connection = pool.take()
            is_used = connection is not None
            if connection is None:
                connection = Connection(pool.route)
            self._busy.add(connection)
            try:
                response = self._ask(connection, method, url, headers)
            except (ConnectionError, http.client.RemoteDisconnected):
                self._forsake(connection)
                if not is_used or connection.is_aborted:
                    raise
            except BaseException as error:
                self._forsake(connection)
                if is_used and isinstance(error, TimeoutError):
                    # A router may have forgotten the others as well.
                    pool.close_idle()
                raise
            else:
                return Exchange(response, connection)

    def _pool_of(self, url: SplitResult) -> _Pool:
        if self._process != os.getpid():
            # Requests of a forked child's parent are not its own.
            self._busy.clear()
            self._pools.clear()
            self._process = os.getpid()
        origin = origin_of(url)
        pool = self._pools.get(origin)
        if pool is None:
            route = Route(origin, proxy_of(*origin[:2]), self._timeout, self._context)
            pool = self._pools[origin] = _join(route, self._user)
            if self._is_closed:
                # A request that is under way was redirected.
                pool.leave(self._user)
        return pool

    def _ask(
        self, connection: Connection, method: str, url: SplitResult, headers: Mapping[str, str]
    ) -> http.client.HTTPResponse:
        target = url._replace(scheme="", netloc="", fragment="").geturl() or "/"
        if connection.is_proxied:
            target = f"http://{url.hostname}:{connection.route.origin[2]}{target}"
            headers = {**headers, **connection.proxy_headers}
        if connection.sock is None:
            connection.connect()
        connection.allow(self._timeout)
        connection.request(method, target, headers=dict(headers))
        return connection.getresponse()

    def give_back(self, exchange: Exchange) -> None:
        """Keep a connection whose answer was read; close any other."""
        connection, response = exchange.connection, exchange.response
        is_read = response.isclosed() or response.length == 0
        pool = self._pools.get(connection.route.origin)
        if not is_read or response.will_close or connection.is_aborted or pool is None:
            self.drop(exchange)
            return
        response.close()
        self._busy.discard(connection)
        pool.keep(connection)

    def drop(self, exchange: Exchange) -> None:
        """Close a connection whose answer nobody reads any more."""
        exchange.response.close()
        self._forsake(exchange.connection)

    def _forsake(self, connection: Connection) -> None:
        self._busy.discard(connection)
        connection.close()

    def abort(self) -> None:
        """Make reads of other threads fail at once."""
        # A forked child has the sockets of its parent, which go on.
        if self._process == os.getpid():
            for connection in list(self._busy):
                connection.abort()

    def close(self) -> None:
        """Use no connection any more, once answers under way are read. May be called twice."""
        self._is_closed = True
        _leave(self._pools, self._user)
