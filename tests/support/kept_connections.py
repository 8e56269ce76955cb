"""Connections to a test's server that are kept while nobody uses them."""

from __future__ import annotations

import select
import socket
from typing import Any

from npzkit.stores import connections
from range_server import Handler, RangeServer, good

__all__ = ["and_reset", "idle", "pools_of", "wait_until_told"]


def pools_of(server: RangeServer) -> list[Any]:
    """Return urllib3's pools of connections to a server."""
    pools: list[Any] = list(connections._pools.values())
    return [pool for pool in pools if server.address.endswith(f":{pool.port}")]


def idle(server: RangeServer) -> list[socket.socket]:
    """Return the sockets of connections to a server that nobody uses just now."""
    found = [one for pool in pools_of(server) for one in pool.pool.queue]
    return [one.sock for one in found if one is not None and one.sock is not None]


def wait_until_told(sock: socket.socket) -> None:
    """Wait until something has come that nobody asked for, or the end."""
    assert select.select([sock], [], [], 5)[0]


def and_reset(handler: Handler, server: RangeServer) -> None:
    """Answer, and end the connection as if the network broke."""
    good(handler, server)
    handler.reset()
