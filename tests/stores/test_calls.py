"""Calls in threads of their own: their results, and threads that end without one."""

from __future__ import annotations

import sys

import pytest
from npzkit.stores import time_limits
from npzkit.stores.time_limits import Calls, limited, patiently, started


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
