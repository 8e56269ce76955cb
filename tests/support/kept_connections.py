"""Connections to a test's server that are kept while nobody uses them."""

from __future__ import annotations

import time
from typing import Any

from npzkit.files import connection_pool
from npzkit.files.http_connection import Connection
from range_server import Handler, RangeServer, good

__all__ = ["and_reset", "idle", "wait_until_told"]


def idle(server: RangeServer) -> list[Connection]:
    """Return the connections to a server that nobody uses just now."""
    pools: list[Any] = list(connection_pool._pools.values())
    return [one for pool in pools for one in pool._idle if server.address.endswith(f":{one.port}")]


def wait_until_told(connection: Connection) -> None:
    """Wait until something has come that nobody asked for, or the end."""
    end = time.monotonic() + 5
    while connection.is_quiet and time.monotonic() < end:
        time.sleep(0.01)


def and_reset(handler: Handler, server: RangeServer) -> None:
    """Answer, and end the connection as if the network broke."""
    good(handler, server)
    handler.reset()
