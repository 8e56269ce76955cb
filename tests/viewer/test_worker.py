"""Work beside a page: newer requests cancel older ones."""

from __future__ import annotations

import queue
import threading

import pytest
from npzkit.viewer.worker import Worker


@pytest.fixture
def calls():
    return queue.SimpleQueue()


@pytest.fixture
def background(calls):
    found = Worker(calls.put)
    yield found
    found.close()


def test_a_result_is_taken_by_the_pages_thread(background, calls):
    """The function that takes a result is called by whoever the page hands calls to."""
    taken = []
    background.start(lambda work: threading.current_thread(), taken.append, taken.append)
    calls.get(timeout=10)()
    assert taken[0] is not threading.current_thread()


def test_a_newer_request_cancels_an_older_one(background, calls):
    """Work that was begun ends at its next step, and its result is not taken."""
    first, release, over = (threading.Event() for _ in range(3))
    ended, taken = [], []

    def slow(work):
        first.set()
        release.wait(10)
        try:
            work.proceed()
            ended.append("ran on")
        finally:
            over.set()

    background.start(slow, taken.append, taken.append)
    assert first.wait(10)
    background.start(lambda work: "newer", taken.append, taken.append)
    calls.get(timeout=10)()
    release.set()
    assert over.wait(10)
    assert (taken, ended) == (["newer"], [])
    assert calls.empty()


def test_a_result_that_is_late_is_dropped(background, calls):
    """A result that was handed over, but not taken yet, is dropped by a newer request."""
    taken = []
    background.start(lambda work: 1, taken.append, taken.append)
    late = calls.get(timeout=10)
    background.start(lambda work: 2, taken.append, taken.append)
    late()
    calls.get(timeout=10)()
    assert taken == [2]


def test_an_error_is_handed_over(background, calls):
    """An exception in the thread is given to the page, which shows it."""
    failed = []
    background.start(lambda work: 1 / 0, None, failed.append)
    calls.get(timeout=10)()
    assert isinstance(failed[0], ZeroDivisionError)
