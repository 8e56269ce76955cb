"""A writer that fails, is forgotten, or is used by threads, forks and signal handlers."""

from __future__ import annotations

import contextlib
import errno
import gc
import io
import os
import signal
import sys
import threading
import weakref

import npzkit
import numpy as np
import pytest
from archives import NOISE, by_save, check_accepted, files_in
from npzkit.errors import ClosedArchiveError
from systems import WRITE


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_an_exception_leaves_the_old_file(error, tmp_path):
    """Leaving the with block by an exception discards the new file, whole."""
    path = tmp_path / "a.npz"
    for old in (None, b"whatever was here"):
        if old is not None:
            path.write_bytes(old)
        with pytest.raises(error), npzkit.NpzWriter(path) as w:
            w["a"] = np.zeros(1_000_000)
            raise error
        assert files_in(tmp_path) == ([] if old is None else ["a.npz"])
        assert old is None or path.read_bytes() == old
    with pytest.raises(ClosedArchiveError):
        w["b"] = np.zeros(3)
    w.close()
    w.abort()


def test_an_aborted_stream_is_no_archive():
    """What an aborted writer left in a file object is refused by readers."""
    stream = io.BytesIO()
    with pytest.raises(RuntimeError), npzkit.NpzWriter(stream) as w:
        w["a"] = np.zeros(1000)
        raise RuntimeError
    with pytest.raises(npzkit.errors.ZipFormatError):
        npzkit.open(stream)


def test_a_forgotten_writer(tmp_path):
    """A writer that is dropped open warns and discards."""
    w = npzkit.NpzWriter(tmp_path / "a.npz")
    w["a"] = np.zeros(3)
    with pytest.warns(ResourceWarning, match="never closed"):
        del w
        gc.collect()
    assert files_in(tmp_path) == []


class Failing:
    """Replaces a call of the system by one that fails the n-th time, halfway through."""

    def __init__(self, monkeypatch, name, after):
        self.real, self.left = getattr(os, name), after
        monkeypatch.setattr(os, name, self)

    def __call__(self, descriptor, data, *offset):
        # A file is open for as long as a frame of an error holds what owns it.
        descriptor = descriptor.fileno()
        self.left -= 1
        if self.left == 0:
            self.real(descriptor, data[: len(data) // 2], *offset)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return self.real(descriptor, data, *offset)


def test_a_writer_that_failed_stays_failed(tmp_path, monkeypatch):
    """After a write failed, nothing can be added or committed, even where the error was caught."""
    path = tmp_path / "a.npz"
    npzkit.save(path, {"old": np.arange(3)})
    before = path.read_bytes()
    w = npzkit.NpzWriter(path)
    w["a"] = np.arange(10)
    with monkeypatch.context() as patched:
        Failing(patched, WRITE, after=2)
        with pytest.raises(OSError, match="No space"):
            w["big"] = np.zeros(10**6)
    with pytest.raises(ClosedArchiveError, match="discarded"):
        w["c"] = np.arange(3)
    with pytest.raises(ClosedArchiveError, match="discarded"):
        w.close()
    w.abort()
    assert path.read_bytes() == before
    assert files_in(tmp_path) == ["a.npz"]


@pytest.mark.skipif(os.name == "nt", reason="wine says that a full pipe is an invalid argument")
def test_a_pipe_that_is_full():
    """A non-blocking file that is full raises BlockingIOError; nothing is lost silently."""
    readable, writable = os.pipe()
    os.set_blocking(writable, False)
    with (
        open(readable, "rb"),
        open(writable, "wb", buffering=0) as pipe,
        pytest.raises(BlockingIOError),
    ):
        npzkit.save(pipe, {"a": np.zeros(1_000_000)})


def test_a_file_that_takes_no_more():
    """A file object that takes no bytes and says so is not asked for ever."""

    class Full(io.RawIOBase):
        def writable(self):
            return True

        def write(self, data):
            if len(written) > 9:
                raise AssertionError("it was told that nothing is taken")
            written.append(data)
            return 0

    written = []
    with pytest.raises(OSError, match="accepts no more"):
        npzkit.save(Full(), {"a": np.zeros(3)})


@pytest.mark.parametrize("call", ["replace", WRITE])
def test_a_close_that_failed_stays_failed(call, tmp_path, monkeypatch):
    """After close failed it fails again, rather than look as if the file were there."""
    path = tmp_path / "a.npz"

    def refuse(*args):
        raise OSError(errno.EIO, "not here")

    w = npzkit.NpzWriter(path)
    w["a"] = np.arange(3)
    with monkeypatch.context() as patched:
        patched.setattr(os, call, refuse)
        with pytest.raises(OSError, match="not here"):
            w.close()
    for again in (w.close, lambda: w.add("b", np.arange(3))):
        with pytest.raises(ClosedArchiveError, match=r"could not be completed.*not here"):
            again()
    w.abort()
    w = npzkit.NpzWriter(path, metadata={"a": 1})
    w.metadata["b"] = values = []
    values.append(object())
    for error in (TypeError, ClosedArchiveError, ClosedArchiveError):
        with pytest.raises(error):
            w.close()
    assert files_in(tmp_path) == []


def test_a_failed_writer_lets_go_of_the_array(tmp_path, monkeypatch):
    """The array that could not be written is not kept by the writer that failed."""

    class Tracked(np.ndarray):
        pass

    def refuse(*args):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    w = npzkit.NpzWriter(tmp_path / "a.npz")
    array = np.zeros(1_000_000).view(Tracked)
    reference = weakref.ref(array)
    with monkeypatch.context() as patched:
        patched.setattr(os, WRITE, refuse)
        with contextlib.suppress(OSError):
            w["a"] = array
    del array
    gc.collect()
    assert reference() is None
    with pytest.raises(ClosedArchiveError, match="No space left"):
        w.close()


@pytest.fixture
def path(tmp_path):
    """Three arrays: x, y and z."""
    return by_save(tmp_path / "a.npz")


def test_an_exception_takes_back_what_was_not_committed(path):
    """The file ends where it did at the last commit, which may be one of the same block."""
    before = path.read_bytes()
    with pytest.raises(KeyError), npzkit.NpzWriter(path, "a") as w:
        w["new"] = NOISE
        w.rename("x", "renamed")
        raise KeyError
    assert path.read_bytes() == before
    with pytest.raises(KeyError), npzkit.NpzWriter(path, "a") as w:
        w["one"] = NOISE
        w.commit()
        middle = path.read_bytes()
        w["two"] = NOISE
        w.create("three", 100_000, "f8")
        raise KeyError
    assert path.read_bytes() == middle
    check_accepted(path, one=NOISE, x=np.arange(4))
    with pytest.raises(ClosedArchiveError):
        w["four"] = NOISE


def test_a_forgotten_writer_leaves_the_last_commit(path):
    """A writer that is dropped without close warns, and takes back what it did not commit."""
    w = npzkit.NpzWriter(path, "a")
    w["one"] = NOISE
    w.commit()
    middle = path.read_bytes()
    w["two"] = NOISE
    with pytest.warns(ResourceWarning, match="never closed"):
        del w
    assert path.read_bytes() == middle


@pytest.mark.slow
def test_threads_share_a_writer(tmp_path):
    """Arrays added by many threads at once all arrive, whole."""
    from concurrent.futures import ThreadPoolExecutor

    for compression in ("stored", "deflated"):
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


@pytest.mark.remedy("Write in that process, or to another file.")
def test_a_forked_child_writes_elsewhere(tmp_path, monkeypatch):
    """A child that writes has a file of its own; its parent goes on with the other."""
    with npzkit.NpzWriter(tmp_path / "a.npz") as writer:
        writer["a"] = np.arange(3)
        with monkeypatch.context() as child:
            child.setattr(os, "getpid", lambda: -1)
            with pytest.raises(ClosedArchiveError, match="forked child"):
                writer["b"] = np.arange(4)
            npzkit.save(tmp_path / "b.npz", {"b": np.arange(4)})
        writer["b"] = np.arange(5)
    for name, size in (("a.npz", 5), ("b.npz", 4)):
        with npzkit.open(tmp_path / name) as npz:
            assert npz["b"].tolist() == list(range(size))


@pytest.mark.remedy('Open another one: NpzWriter(path, mode="a") adds to the archive.')
def test_a_closed_writer_is_opened_again(tmp_path):
    """What it wrote stays, and another writer adds to it."""
    path = tmp_path / "a.npz"
    with npzkit.NpzWriter(path) as writer:
        writer["a"] = np.arange(3)
    with pytest.raises(ClosedArchiveError, match="the writer is closed"):
        writer["b"] = np.arange(4)
    with npzkit.NpzWriter(path, mode="a") as writer:
        writer["b"] = np.arange(4)
    check_accepted(path, a=np.arange(3), b=np.arange(4))


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
