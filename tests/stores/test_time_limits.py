"""Calls in threads of their own: their results, how long they may take, threads that die."""

from __future__ import annotations

import sys
import time
from types import SimpleNamespace

import pytest
from npzkit.stores import time_limits
from npzkit.stores.time_limits import (
    Calls,
    TimeLimit,
    extend,
    limited,
    patiently,
    started,
    timeout_in,
)


def fail(error):
    raise error


def test_a_thread_that_dies_at_once(monkeypatch):
    """If memory ends as a thread begins, whoever waits for its call gets MemoryError."""
    real = time_limits._thread.start_new_thread
    monkeypatch.setattr(time_limits._thread, "start_new_thread", lambda work, args: real(int, ()))
    with pytest.raises(MemoryError):
        Calls().wait(started(lambda: 5))
    try:
        raise KeyboardInterrupt
    except KeyboardInterrupt:
        assert isinstance(sys.exc_info()[1], KeyboardInterrupt)
        with pytest.raises(MemoryError):
            patiently(lambda: 5)


@pytest.mark.parametrize("seconds", [None, 60])
def test_results_and_errors(seconds):
    """A call that ends gives its result, or its own error, also if that is a TimeoutError."""
    with limited(seconds):
        assert Calls().wait(started(lambda: 5)) == 5
    for error in (KeyError(1), TimeoutError("the socket's")):
        with pytest.raises(type(error), match=str(error)):
            Calls().wait(started(lambda error=error: fail(error)))


def test_a_call_that_takes_longer_than_it_may():
    """After its time, the wait ends with TimeoutError, whatever becomes of the call."""
    gate = time_limits._thread.allocate_lock()
    with gate, limited(0.3), pytest.raises(TimeoutError):
        Calls().wait(started(gate.acquire))


def test_what_a_limit_allows(monkeypatch):
    """Seconds, and the time for the bytes; no pause is longer than the seconds."""
    now = SimpleNamespace(monotonic=lambda: now.time, time=100.0)
    monkeypatch.setattr(time_limits, "time", now)
    monkeypatch.setattr(time_limits, "SLOWEST", 10)
    limit = TimeLimit(5.0)
    assert limit.left() == 5
    now.time += 4
    limit.extend(100)
    assert limit.left() == 11
    now.time += 12
    with pytest.raises(TimeoutError, match="no complete answer after 16 seconds"):
        limit.check()
    assert TimeLimit(None).left() == float("inf")


def test_blocks_share_one_limit():
    """That of the outermost block counts, in threads that it began too."""
    with limited(0.1), limited(60.0), pytest.raises(TimeoutError):
        Calls().wait(started(lambda: Calls().wait(started(lambda: time.sleep(0.5)))))
    # There is none outside.
    extend(5)


def test_the_option():
    """None, 0 and very long times are no limit."""
    assert timeout_in({}) == time_limits.TIMEOUT
    assert timeout_in({"timeout": 2}) == 2
    for given in (0, None, 1e12):
        assert timeout_in({"timeout": given}) is None
    with pytest.raises(ValueError, match="timeout"):
        timeout_in({"timeout": -1})
