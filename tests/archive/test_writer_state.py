"""A writer that fails, is forgotten, or is left by an exception."""

from __future__ import annotations

import contextlib
import errno
import gc
import io
import os
import weakref

import npzkit
import numpy as np
import pytest
from archives import NOISE, by_save, check_accepted, files_in
from npzkit.errors import ClosedArchiveError


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

    def __call__(self, descriptor, data, offset):
        self.left -= 1
        if self.left == 0:
            self.real(descriptor, data[: len(data) // 2], offset)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return self.real(descriptor, data, offset)


def test_a_writer_that_failed_stays_failed(tmp_path, monkeypatch):
    """After a write failed, nothing can be added or committed, even where the error was caught."""
    path = tmp_path / "a.npz"
    npzkit.save(path, {"old": np.arange(3)})
    before = path.read_bytes()
    w = npzkit.NpzWriter(path)
    w["a"] = np.arange(10)
    with monkeypatch.context() as patched:
        Failing(patched, "pwrite", after=2)
        with pytest.raises(OSError, match="No space"):
            w["big"] = np.zeros(10**6)
    with pytest.raises(ClosedArchiveError, match="discarded"):
        w["c"] = np.arange(3)
    with pytest.raises(ClosedArchiveError, match="discarded"):
        w.close()
    w.abort()
    assert path.read_bytes() == before
    assert files_in(tmp_path) == ["a.npz"]


def test_a_file_that_takes_no_more():
    """A non-blocking file that is full raises BlockingIOError; nothing is lost silently."""
    readable, writable = os.pipe()
    os.set_blocking(writable, False)
    with (
        open(readable, "rb"),
        open(writable, "wb", buffering=0) as pipe,
        pytest.raises(BlockingIOError),
    ):
        npzkit.save(pipe, {"a": np.zeros(1_000_000)})

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


@pytest.mark.parametrize("call", ["replace", "pwrite"])
def test_a_close_that_failed_stays_failed(call, tmp_path, monkeypatch):
    """After close failed it fails again, rather than look as if the file were there."""
    path = tmp_path / "a.npz"

    def refuse(*args):
        raise PermissionError(errno.EPERM, "not here")

    w = npzkit.NpzWriter(path)
    w["a"] = np.arange(3)
    with monkeypatch.context() as patched:
        patched.setattr(os, call, refuse)
        with pytest.raises(PermissionError):
            w.close()
    for again in (w.close, lambda: w.add("b", np.arange(3))):
        with pytest.raises(ClosedArchiveError, match=r"could not be completed.*not here"):
            again()
    w.abort()
    w = npzkit.NpzWriter(path, metadata={"a": 1})
    w.metadata["b"] = object()
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
        patched.setattr(os, "pwrite", refuse)
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
