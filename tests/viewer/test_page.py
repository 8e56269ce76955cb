"""What a page does when something is chosen, without a browser."""

from __future__ import annotations

import asyncio
import contextlib
import io
import queue
import threading
import time

import npzkit
import numpy as np
import pytest

pytest.importorskip("bokeh", reason="the page needs Bokeh")

from bokeh.document import Document
from bokeh.events import ButtonClick
from npzkit.viewer.archives import open_archives
from npzkit.viewer.page import Page
from npzkit.viewer.shown import Shown
from npzkit.viewer.sources import ArraySource

PIECE_COUNT = 10


class Looking:
    """A page, and a user who waits for what it says."""

    def __init__(self, page: Page, document: Document, calls: queue.SimpleQueue) -> None:
        self.page, self.document, self.calls = page, document, calls

    def widget(self, name: str):
        return self.document.get_model_by_name(name)

    def click(self, name: str) -> None:
        self.widget(name)._trigger_event(ButtonClick(self.widget(name)))

    def until(self, text: str) -> None:
        """Do what threads hand over, until the page says a text."""
        while text not in self.widget("status").text:
            self.calls.get(timeout=10)()


@pytest.fixture
def looking(monkeypatch):
    """A page with the histogram of an array that is searched in several pieces."""
    calls, stream = queue.SimpleQueue(), io.BytesIO()
    npzkit.save(stream, {"x": np.arange(1000.0 * PIECE_COUNT)})
    monkeypatch.setattr("npzkit.display.sampling.PIECE_SIZE", 8000)
    monkeypatch.setattr(Page, "_hand_over", lambda page, call: calls.put(call))

    async def make(archives, document):
        return Page(document, archives, Shown(key="x", view="histogram"))

    with contextlib.ExitStack() as stack:
        document = Document()
        page = asyncio.run(make(open_archives(stack, [stream]), document))
        stack.callback(page.close)
        found = Looking(page, document, calls)
        while found.widget("status").text or not found.widget("controls").visible:
            calls.get(timeout=10)()
        yield found


@pytest.fixture
def pieces(looking, monkeypatch):
    """Each release lets one piece of the array be read; the list has those that were."""
    allowed, read, real = threading.Semaphore(0), [], ArraySource.__getitem__

    def getitem(source, index):
        assert allowed.acquire(timeout=10)
        read.append(index)
        return real(source, index)

    monkeypatch.setattr(ArraySource, "__getitem__", getitem)
    allowed.read = read
    return allowed


def test_a_search_says_how_far_it_is(looking, pieces):
    """The share that was searched is shown, and then what was found; there is nothing to cancel then."""
    assert not looking.widget("cancel").visible
    looking.click("find-maximum")
    for share in (0, 10, 20):
        looking.until(f"Searching all values: {share}%")
        assert looking.widget("cancel").visible
        pieces.release()
    # One more is the value that was found, the others are its figure.
    pieces.release(100)
    looking.until("Maximum: 9999.0 at (9999)")
    assert not looking.widget("cancel").visible


def test_a_search_can_be_cancelled(looking, pieces):
    """Cancelled, nothing more is read than the piece that is under way, and nothing is found."""
    looking.click("find-maximum")
    pieces.release()
    looking.until("Searching all values: 10%")
    looking.click("cancel")
    assert looking.widget("status").text == "The search was cancelled."
    assert not looking.widget("cancel").visible
    pieces.release(100)
    time.sleep(0.2)
    while not looking.calls.empty():
        looking.calls.get()()
    assert len(pieces.read) <= 2
    assert looking.widget("status").text == "The search was cancelled."
