"""How a request is tried again: how often, after which pauses, until when, and on which failures.

Owns the one rule for all stores. urllib3's `Retry` is not used: it knows neither the requests of
other libraries, nor bodies that break off after `urlopen` returned.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TypeVar

from npzkit.errors import printable, shown_url

ATTEMPTS = 4
"""Times that a request is made before it fails: three more after the first."""
MOST_SECONDS = 150.0
"""After so many since the first attempt, no other one begins."""
FIRST_DELAY = 0.1
"""Seconds before the second attempt. Each delay is three times the one before."""
_LONGEST_DELAY = 20.0
_NAP = 0.1
"""Seconds after which a thread that waits looks whether it is still wanted."""

T = TypeVar("T")


class TransientError(Exception):
    """A request failed in a way that may pass: it is made again.

    Parameters
    ----------
    reason : str
        Without secrets.
    delay : float, optional
        Seconds that the server asks to wait.
    """

    def __init__(self, reason: str, delay: float = 0.0) -> None:
        super().__init__(reason)
        self.delay = delay


def tried(request: Callable[[], T], what: str, is_wanted: Callable[[], bool] = lambda: True) -> T:
    """Make a request, and make it again after a failure that may pass, while `is_wanted`.

    `what` is the request, for messages: URL and range. OSError says that all attempts failed.
    """
    delay = FIRST_DELAY
    end = time.monotonic() + MOST_SECONDS
    reason = "nobody waits for it any more"
    for attempt in range(1, ATTEMPTS + 1):
        if not is_wanted():
            raise OSError(f"{what}: given up: {printable(shown_url(reason))}")
        try:
            return request()
        except (TransientError, TimeoutError, ConnectionError) as error:
            reason, asked = str(error) or type(error).__name__, getattr(error, "delay", 0.0)
        if time.monotonic() > end:
            break
        if attempt < ATTEMPTS:
            # Jitter, so that many clients do not come back at the same moment.
            pause = delay * random.uniform(0.5, 1.5)  # noqa: S311 - not for secrets
            _sleep(min(max(pause, asked), _LONGEST_DELAY), is_wanted)
            delay *= 3
    reason = printable(shown_url(reason))
    raise OSError(f"{what}: failed after {attempt} attempt{'s' * (attempt > 1)}: {reason}")


def _sleep(seconds: float, is_wanted: Callable[[], bool]) -> None:
    end = time.monotonic() + seconds
    while is_wanted() and (left := end - time.monotonic()) > 0:
        time.sleep(min(left, _NAP))
