"""Requests that are made again: how often, after which pauses, and until when."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest
from npzkit.stores import retries
from npzkit.stores.retries import TransientError, tried


def failing(*errors):
    """Return a request that fails in these ways, one after the other, and then succeeds."""
    left = list(errors)

    def request():
        if left:
            raise left.pop(0)
        return "answer"

    return request


@pytest.fixture
def clock(monkeypatch):
    """A clock that only sleep moves."""
    clock = SimpleNamespace(now=100.0, naps=[])

    def sleep(seconds):
        clock.naps.append(seconds)
        clock.now += seconds

    clock.monotonic, clock.sleep = lambda: clock.now, sleep
    monkeypatch.setattr(retries, "time", clock)
    return clock


@pytest.mark.parametrize("share", [0.5, 1.5])
def test_pauses_grow(clock, monkeypatch, share):
    """Each is three times the one before, and up to a half shorter or longer by chance."""
    asked = []
    monkeypatch.setattr(
        retries, "random", SimpleNamespace(uniform=lambda *span: asked.append(span) or share)
    )
    request = failing(TransientError("a"), TimeoutError(), ConnectionResetError())
    assert tried(request, "it") == "answer"
    assert clock.now - 100 == pytest.approx(share * (0.1 + 0.3 + 0.9))
    assert asked == [(0.5, 1.5)] * 3
    assert max(clock.naps) <= 0.1


def test_no_pause_after_the_last_attempt(clock):
    """The fourth failure is reported at once, with what it says or what it is."""
    with pytest.raises(OSError, match=r"^it: failed after 4 attempts: ConnectionResetError$"):
        tried(failing(*[TransientError("a")] * 3, ConnectionResetError()), "it")
    assert clock.now - 100 <= 1.5 * 1.3


@pytest.mark.parametrize(("asked", "waited"), [(7.0, 7.0), (1000.0, 20.0)])
def test_a_server_may_ask_for_a_longer_pause(clock, asked, waited):
    """It gets it, up to 20 seconds."""
    assert tried(failing(TransientError("busy", asked)), "it") == "answer"
    assert clock.now - 100 == pytest.approx(waited)


def test_nobody_waits_any_more(clock):
    """No request is made then, and a pause ends soon."""
    with pytest.raises(OSError, match=r"^it: given up: nobody waits for it any more$"):
        tried(failing(AssertionError()), "it", lambda: False)
    wanted = itertools.chain([True] * 5, itertools.repeat(False))
    with pytest.raises(OSError, match=r"^it: given up: busy$"):
        tried(failing(TransientError("busy", 10.0), AssertionError()), "it", lambda: next(wanted))
    assert clock.now - 100 == pytest.approx(0.4)


def test_what_does_not_pass_is_not_tried_again(clock):
    """Only failures that may pass are."""
    with pytest.raises(FileNotFoundError):
        tried(failing(FileNotFoundError("gone")), "it")
    assert not clock.naps


def test_attempts_end_after_some_time(monkeypatch):
    """No attempt begins after the time for all of them."""
    monkeypatch.setattr(retries, "MOST_SECONDS", 0.0)

    def fail():
        raise TimeoutError("slow")

    with pytest.raises(OSError, match="a request: failed after 1 attempt: slow"):
        tried(fail, "a request")
