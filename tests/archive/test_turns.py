"""Threads, forked children and signal handlers that use one writer."""

from __future__ import annotations

import io
import os
import signal
import sys
import threading

import npzkit
import numpy as np
import pytest
from archives import files_in
from npzkit.errors import ClosedArchiveError

COMPRESSIONS = ["stored", "deflated"]


def test_threads_share_a_writer(tmp_path):
    """Arrays added by many threads at once all arrive, whole."""
    from concurrent.futures import ThreadPoolExecutor

    for compression in COMPRESSIONS:
        path = tmp_path / "a.npz"
        with (
            npzkit.NpzWriter(path, compression=compression) as w,
            ThreadPoolExecutor(8) as executor,
        ):
            list(executor.map(lambda i: w.add(str(i), np.full(10_000, i)), range(60)))
        with npzkit.open(path) as npz:
            assert {key: array[0] for key, array in npz.load_all().items()} == {
                str(i): i for i in range(60)
            }


def in_a_child(work):
    """Run `work` in a forked child, as a program that ends by itself, and return its exit code."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            signal.alarm(20)  # a child that hangs is killed
            work()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def use_as_a_child(writer):
    """Do with an inherited writer what a child may do by mistake."""
    with pytest.raises(ClosedArchiveError, match="forked child"):
        writer["b"] = np.arange(4)
    with pytest.raises(ClosedArchiveError, match="forked child"):
        writer.close()
    with pytest.raises(ClosedArchiveError, match="forked child"), writer:
        pass
    with pytest.raises(SystemExit), writer:
        sys.exit()
    writer.abort()
    with pytest.raises(ClosedArchiveError):
        writer["b"] = np.arange(4)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.parametrize("kind", ["path", "file"])
def test_a_forked_child_leaves_the_parents_file(tmp_path, kind):
    """A child neither completes, extends nor removes what its parent writes."""
    path = tmp_path / "a.npz"
    with open(path, "wb", buffering=0) as file:
        w = npzkit.NpzWriter(file if kind == "file" else path)
        w["a"] = np.arange(3)
        assert in_a_child(lambda: use_as_a_child(w)) == 0
        w["c"] = np.arange(5)
        w.close()
        w.close()
    with npzkit.open(path, strict=True) as npz:
        assert {key: array.tolist() for key, array in npz.load_all().items()} == {
            "a": [0, 1, 2],
            "c": [0, 1, 2, 3, 4],
        }
    assert files_in(tmp_path) == ["a.npz"]


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_child_forked_while_a_thread_writes():
    """A child that inherits a writer whose lock is held gets an error and does not wait."""
    writing, done = threading.Event(), threading.Event()

    class Slow(io.RawIOBase):
        def write(self, data):
            writing.set()
            done.wait(30)
            return len(data)

    w = npzkit.NpzWriter(Slow())
    thread = threading.Thread(target=w.add, args=("a", np.arange(3)))
    thread.start()
    writing.wait(30)
    assert in_a_child(lambda: use_as_a_child(w)) == 0
    done.set()
    thread.join()
    w.close()


@pytest.mark.skipif(not hasattr(signal, "SIGUSR1"), reason="this system has no such signal")
def test_a_signal_handler_that_uses_the_writer():
    """A handler that runs inside a call of the writer gets an error; the archive is unharmed."""
    said = []

    def handle(*args):
        for call in (lambda: w.add("b", np.arange(3)), w.close, w.abort):
            with pytest.raises((RuntimeError, ClosedArchiveError)) as caught:
                call()
            said.append(str(caught.value))

    class Interrupted(io.BytesIO):
        def write(self, data):
            signal.raise_signal(signal.SIGUSR1)
            return super().write(data)

    stream = Interrupted()
    w = npzkit.NpzWriter(stream)
    before = signal.signal(signal.SIGUSR1, handle)
    try:
        w["a"] = np.arange(3)
        w.close()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert all("while it was writing" in text for text in said[:3])
    assert len(said) > 3
    assert np.load(io.BytesIO(stream.getvalue()))["a"].tolist() == [0, 1, 2]
