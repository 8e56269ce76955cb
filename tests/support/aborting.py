"""A request that a server never answers, and that is given up."""

from __future__ import annotations

import threading
import time
from urllib.parse import urlsplit

from npzkit.stores.connections import Connections
from npzkit.stores.retries import TransientError

__all__ = ["check_given_up"]

BOUND = 2.0


def check_given_up(url: str) -> None:
    """Send a request in a thread, give it up, and check that the thread ends at once."""
    connections, failures = Connections(url), []

    def ask() -> None:
        try:
            connections.send(urlsplit(url), {}, [].append)
        except TransientError as error:
            failures.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    time.sleep(0.05)
    connections.abort()
    begin = time.monotonic()
    thread.join(20)
    assert time.monotonic() - begin < BOUND
    assert failures
