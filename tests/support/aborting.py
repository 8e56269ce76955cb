"""A request that a server never answers, and that is given up."""

from __future__ import annotations

import threading
import time
from urllib.parse import urlsplit

from npzkit.stores.connections import Connections
from npzkit.stores.retries import TransientError

__all__ = ["check_given_up"]

BOUND = 2.0


def check_given_up(url: str, begun: threading.Event | None = None) -> None:
    """Send a request in a thread, give it up, and check that the thread ends at once.

    It is given up when it has `begun`, by default after a while.
    """
    connections, failures = Connections(url), []

    def ask() -> None:
        try:
            connections.send(urlsplit(url), {}, [].append)
        except TransientError as error:
            failures.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    if begun is None:
        time.sleep(0.05)
    else:
        assert begun.wait(20)
    connections.abort()
    begin = time.monotonic()
    thread.join(20)
    assert time.monotonic() - begin < BOUND
    assert failures
