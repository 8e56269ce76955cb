"""The table of `npzkit.archive.writer_state`: each call, in each state of a writer."""

from __future__ import annotations

import contextlib
import io
import os
import threading

import npzkit
import npzkit.archive.writer_state
import numpy as np
import pytest
from npzkit.errors import ClosedArchiveError

ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in npzkit.archive.writer_state.__doc__.splitlines()
    if line.startswith("| ")
]
CALLS = {
    "add": lambda w: w.add("new", np.arange(3)),
    "append": lambda w: w.append("old", [5]),
    "create": lambda w: w.create("new", 3, "f8").close(),
    "rename": lambda w: w.rename("old", "new"),
    "del": lambda w: w.__delitem__("old"),
    "commit": lambda w: w.commit(),
    "close": lambda w: w.close(),
    "abort": lambda w: w.abort(),
}
CELLS = [
    (row[0], call, cell)
    for row in ROWS[1:]
    for heading, cell in zip(ROWS[0][1:], row[1:], strict=True)
    for call in heading.split(", ")
]
ERRORS = {"refused": ClosedArchiveError, "ValueError": ValueError, "RuntimeError": RuntimeError}


class Calling(io.BytesIO):
    """A file object that calls a function when the large array is written to it."""

    call = None

    def write(self, data):
        call, self.call = self.call, None
        if call is not None:
            call()
        return super().write(data)


def some_writer(path):
    """Return a writer to an archive with the array `old`, and something that is not committed."""
    npzkit.save(path, {"old": np.arange(5)})
    w = npzkit.NpzWriter(path, "a", auto_repack=False)
    w["more"] = np.arange(2)
    return w


def state_of(path):
    """Return the arrays that a reader finds."""
    with npzkit.open(path) as npz:
        return npz.files


def check(call, w, path, cell):
    """Make a call, and compare what happens with a cell of the table."""
    if cell in ERRORS:
        with pytest.raises(ERRORS[cell]):
            CALLS[call](w)
        return
    before = state_of(path)
    CALLS[call](w)
    is_committed = cell == "commits" or (cell, call) == ("done", "commit")
    # An array that grows was begun later.
    assert state_of(path)[:2] == (["old", "more"] if is_committed else before)
    if cell in ("commits", "discards"):
        with pytest.raises(ClosedArchiveError, match="closed"):
            w["other"] = np.arange(3)


def test_the_table_has_all_calls_and_states():
    """Seven calls in seven states."""
    assert len(CELLS) == len(CALLS) * 7


def cells(*states):
    return pytest.mark.parametrize(
        ("state", "call", "cell"), [row for row in CELLS if row[0] in states]
    )


@pytest.mark.slow
@cells("open", "an array grows", "closed", "given up")
def test_a_cell_of_the_table(state, call, cell, tmp_path, monkeypatch):
    """What a call does in a state is what the table says."""
    path = tmp_path / "a.npz"
    w = some_writer(path)
    if state == "an array grows":
        w.create("grows", (None, 2), "f8").append([1.0, 2.0])
    elif state == "closed":
        w.close()
    elif state == "given up":
        with monkeypatch.context() as patch:
            patch.setattr(npzkit.files.disk.File, "patch", fail)
            with pytest.raises(OSError, match="no room"):
                w["large"] = np.zeros(100_000)
    check(call, w, path, cell)
    w.abort()


def fail(*_):
    raise OSError("no room")


def writing_to(call):
    """Return a writer whose file object makes a call while a large array is written."""
    stream = Calling()
    npzkit.save(stream, {"old": np.arange(5)})
    w = npzkit.NpzWriter(stream)
    w["old"] = np.arange(5)
    stream.call = lambda: call(w)
    return w


@cells("this thread writes")
def test_a_call_during_another_call(state, call, cell):
    """A file object, or a signal handler, that calls the writer while it writes is refused."""
    found = []

    def during(w):
        with pytest.raises(ERRORS[cell]):
            CALLS[call](w)
        found.append(cell)

    w = writing_to(during)
    w["large"] = np.zeros(100_000)
    w.abort()
    assert found == ["RuntimeError"]


@cells("another thread writes")
def test_a_call_while_a_thread_writes(state, call, cell):
    """A call waits until the other thread has written."""
    assert cell == "waits"
    order = []

    def waiting(w):
        with contextlib.suppress(npzkit.errors.NpzkitError, ValueError):
            CALLS[call](w)
        order.append("call")

    def during(w):
        thread = threading.Thread(target=waiting, args=(w,))
        threads.append(thread)
        thread.start()
        thread.join(0.05)
        order.append("write")

    threads = []
    w = writing_to(during)
    w["large"] = np.zeros(100_000)
    threads[0].join()
    w.abort()
    assert order == ["write", "call"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@cells("in a forked child")
def test_a_call_in_a_forked_child(state, call, cell, tmp_path):
    """A forked child may drop its copy of a writer, and nothing else."""
    path = tmp_path / "a.npz"
    w = some_writer(path)
    child = os.fork()
    if not child:
        with contextlib.suppress(BaseException):
            check(call, w, path, cell)
            os._exit(0)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    w.close()
    assert state_of(path) == ["old", "more"]
