"""Archives that are closed while other threads use them: right bytes or an error, no others."""

from __future__ import annotations

import contextlib
import errno
import gzip
import io
import itertools
import os
import subprocess
import sys
import threading
import time
import types
import zipfile

import npzkit
import npzkit.reading.maps
import numpy as np
import pytest
from deep import by_turns
from npzkit.errors import ClosedArchiveError

from tables import each_row

OURS = {
    "small": np.arange(10),
    "large": np.arange(200_000),
    "packed": np.arange(200_000) // 100,
}
THEIRS = {key: array + 1 for key, array in OURS.items()}


def written(arrays):
    stream = io.BytesIO()
    with npzkit.NpzWriter(stream) as w:
        for key, array in arrays.items():
            compression = "deflated" if key == "packed" else "stored"
            w.add(key, array, compression=compression, chunk_size=1 << 14)
    return stream.getvalue()


@pytest.fixture(scope="module")
def contents():
    """The bytes of two archives."""
    return written(OURS), written(THEIRS)


@pytest.fixture
def paths(contents, tmp_path):
    """An archive, and another one whose arrays lie in the same places."""
    ours, theirs = tmp_path / "ours.npz", tmp_path / "theirs.npz"
    ours.write_bytes(contents[0])
    theirs.write_bytes(contents[1])
    return ours, theirs


class Closing:
    """Replaces a call of the system: first the archive is closed, and others are opened.

    The system gives a number that is free to the next file that is opened.
    """

    def __init__(self, real, close, other):
        self.real, self.close, self.other = real, close, other
        self.wait = -1
        self.opened = []

    def __call__(self, descriptor, *args, **options):
        self.wait -= 1
        if self.wait == 0:
            self.close()
            self.opened += [open(self.other, "rb") for _ in range(3)]
        return self.real(descriptor, *args, **options)

    def let_go(self):
        for file in self.opened:
            file.close()


def streamed(npz, key):
    with npz.stream(key) as stream:
        return np.lib.format.read_array(stream)


def filled(npz, key):
    out = np.empty_like(OURS[key])
    return npz.read(key, out)


def of_zip(npz, key):
    with npz.zip.open(f"{key}.npy") as stream:
        return np.lib.format.read_array(stream)


def checked(npz, key):
    report = npz.verify([key], threads=2)
    assert report.ok, report
    return OURS[key]


WAYS = {
    "read": lambda npz, key: npz[key],
    "unverified": lambda npz, key: npz.read(key, verify=False),
    "out": filled,
    "load_all": lambda npz, key: npz.load_all([key], threads=2)[key],
    "lazy": lambda npz, key: npz.lazy(key)[:],
    "stream": streamed,
    "zip": of_zip,
    "verify": checked,
    "memmap": lambda npz, key: OURS[key] if key == "packed" else np.array(npz.memmap(key)),
}
CALLS = [name for name in ("preadv", "pread", "read") if hasattr(os, name)]
"""By which bytes are read, and by the last one if the others are missing."""


@contextlib.contextmanager
def opened_by(kind, path):
    """Open an archive in one way; yield it, and what closes it."""
    if kind == "path":
        with npzkit.open(path) as npz:
            yield npz, npz.close
        return
    with open(path, "rb") as file:
        npz = npzkit.NpzFile(file, own_fid=kind == "own_fid")
        yield npz, npz.close if kind == "own_fid" else file.close
        npz.close()


KINDS = ["path", "own_fid", "caller's"]


@pytest.mark.slow
@each_row(("way", "kind"), by_turns(WAYS, KINDS))
def test_closed_at_the_worst_instant(way, kind, paths, monkeypatch):
    """An archive that is closed as a read begins gives its own bytes or ClosedArchiveError."""
    ours, theirs = paths
    right = closed = 0
    for name, key in itertools.product([*CALLS, "mmap"], OURS):
        for wait in (1, 2, 3):
            with opened_by(kind, ours) as (npz, close), monkeypatch.context() as patched:
                if name == "mmap":
                    real = npzkit.reading.maps.mmap
                    closing = Closing(real.mmap, close, theirs)
                    names = {**vars(real), "mmap": closing}
                    patched.setattr("npzkit.reading.maps.mmap", types.SimpleNamespace(**names))
                else:
                    closing = Closing(getattr(os, name), close, theirs)
                    patched.setattr(os, name, closing)
                    for other in CALLS[:-1] if name == "read" else ():
                        patched.delattr(os, other)
                closing.wait = wait
                try:
                    found = WAYS[way](npz, key)
                except ClosedArchiveError:
                    closed += 1
                else:
                    assert np.array_equal(found, OURS[key]), (name, key, wait)
                    right += bool(closing.opened)
                finally:
                    closing.let_go()
    # A caller's file is closed by the caller: the read that is under way cannot be saved.
    assert closed + right
    assert kind == "caller's" or way in ("stream", "zip", "verify") or right


def check_closed(number):
    """Check that a descriptor is closed."""
    with pytest.raises(OSError) as caught:
        os.fstat(number)
    assert caught.value.errno == errno.EBADF


def test_a_read_under_way_ends_first(paths, monkeypatch):
    """One that began before the archive was closed ends as if it were not; the file is then closed."""
    path, _ = paths
    begun, go = threading.Event(), threading.Event()
    numbers, found = [], []
    real = getattr(os, CALLS[0])

    def wait(descriptor, *args):
        numbers.append(int(descriptor.__index__()))
        begun.set()
        go.wait(10)
        return real(descriptor, *args)

    npz = npzkit.open(path)
    lazy = npz.lazy("large")
    assert lazy[-1] == len(lazy) - 1
    with monkeypatch.context() as patched:
        patched.setattr(os, real.__name__, wait)
        thread = threading.Thread(target=lambda: found.append(lazy[7:9]))
        thread.start()
        begun.wait(10)
        npz.close()
        os.fstat(numbers[0])
        with pytest.raises(ClosedArchiveError):
            lazy[0]
        go.set()
        thread.join()
    assert found[0].tolist() == [7, 8]
    check_closed(numbers[0])


def test_threads_that_read_while_numbers_are_given_again(paths):
    """Threads that read while archives are closed and opened get right bytes or the error."""
    ours, theirs = paths
    lazies, wrong, counts = [], [], {"right": 0, "closed": 0}
    begin = time.monotonic()

    def is_done():
        seconds = time.monotonic() - begin
        return seconds > 30 or (seconds > 0.15 and counts["right"] > 0)

    def read():
        while not (is_done() or wrong):
            lazy, expected = lazies[-1]
            try:
                for start in range(0, 199_000, 10_000):
                    if not np.array_equal(lazy[start : start + 5], expected[start : start + 5]):
                        wrong.append("other bytes")
                    counts["right"] += 1
            except ClosedArchiveError:
                counts["closed"] += 1
            except BaseException as error:
                wrong.append(repr(error))

    npz = npzkit.open(ours)
    lazies.append((npz.lazy("large"), OURS["large"]))
    threads = [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    for path, arrays in itertools.cycle(((theirs, THEIRS), (ours, OURS))):
        npz.close()
        npz = npzkit.open(path)
        lazies[:] = [(npz.lazy("large"), arrays["large"])]
        # On a busy machine the threads may find each archive closed before they read.
        time.sleep(counts["right"] == 0 and 0.01)
        if is_done():
            break
    for thread in threads:
        thread.join()
    npz.close()
    assert not wrong
    assert counts["right"]


SOURCES = {
    "path": lambda path: npzkit.open(path),
    "file object": lambda path: npzkit.open(open(path, "rb")),
    "own_fid": lambda path: npzkit.NpzFile(open(path, "rb"), own_fid=True),
    "bytes": lambda path: npzkit.open(path.read_bytes()),
    "BytesIO": lambda path: npzkit.open(io.BytesIO(path.read_bytes())),
    "BytesIO of its own": lambda path: npzkit.NpzFile(io.BytesIO(path.read_bytes()), own_fid=True),
    "zipfile": lambda path: npzkit.open(zipfile.ZipFile(path)),
}


@pytest.mark.parametrize("kind", SOURCES)
def test_what_an_archive_gave_is_closed_with_it(kind, paths):
    """Lazy arrays and streams of any archive raise ClosedArchiveError once it is closed."""
    npz = SOURCES[kind](paths[0])
    file = getattr(npz._archive.source.handle, "fp", npz._archive.source.handle)
    lazies = [npz.lazy(key) for key in OURS]
    streams = [npz.stream(key) for key in OURS]
    npz.close()
    for lazy in lazies:
        with pytest.raises(ClosedArchiveError):
            lazy[0]
    for stream in streams:
        with pytest.raises(ClosedArchiveError):
            stream.read()
    if file is not None:
        file.close()


def test_a_closed_archive_has_no_file_open(paths):
    """Its file is closed at once, while the error of a read and a map are held."""
    with npzkit.open(paths[0]) as npz:
        number = npz._archive.source.file.fileno()
        mapped = npz.memmap("large")
        with pytest.raises(KeyError) as caught:
            npz["absent"]
        with pytest.raises(ValueError, match="shape"):
            npz.read("large", np.empty(3))
    check_closed(number)
    assert caught.value.__traceback__ is not None
    assert np.array_equal(mapped, OURS["large"])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("closes", ["parent", "child"])
def test_an_archive_that_a_fork_closes(closes, paths):
    """A parent that closes an archive leaves its forked child the file, and a child its parent."""
    npz = npzkit.open(paths[0])
    lazy = npz.lazy("large")
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        with contextlib.suppress(BaseException):
            os.read(reading, 1)
            assert lazy[:3].tolist() == [0, 1, 2]
            npz.close()
            os._exit(0)
        os._exit(1)
    if closes == "parent":
        npz.close()
    os.write(writing, b"x")
    assert os.waitpid(child, 0)[1] == 0
    os.close(reading)
    os.close(writing)
    if closes == "child":
        assert lazy[3:5].tolist() == [3, 4]
        npz.close()


# -- writers -------------------------------------------------------------------------------


@pytest.mark.skipif(not hasattr(os, "pwrite"), reason="without this call a write takes two")
@pytest.mark.parametrize("end", ["abort", "close"])
def test_a_writer_that_ends_as_bytes_are_written(end, tmp_path, monkeypatch):
    """A writer is not closed while an array is filled: its bytes never go to another file."""
    other = tmp_path / "other"
    before = bytes(1 << 20)
    other.write_bytes(before)
    w = npzkit.NpzWriter(tmp_path / "a.npz")
    dst = w.create("a", (1000, 10), "i8")
    opened, real = [], os.pwrite
    thread = threading.Thread(target=getattr(w, end))

    def ending(descriptor, data, offset):
        monkeypatch.setattr(os, "pwrite", real)
        thread.start()
        with pytest.raises(RuntimeError, match="called while it was writing"):
            getattr(w, end)()
        opened.extend(open(other, "r+b") for _ in range(5))
        return real(descriptor, data, offset)

    monkeypatch.setattr(os, "pwrite", ending)
    dst[0:100] = np.ones((100, 10))
    thread.join()
    for file in opened:
        file.close()
    assert len(opened) == 5
    assert other.read_bytes() == before
    if end == "close":
        with npzkit.open(tmp_path / "a.npz") as npz:
            assert npz["a"].sum() == 1000
    with pytest.raises(ClosedArchiveError):
        dst[0:100] = np.ones((100, 10))


class Ending:
    """Rows that end their writer when they are looked at."""

    def __init__(self, end):
        self.end = end

    def __array__(self, dtype=None, copy=None):
        self.end()
        return np.ones((100, 10))


@pytest.mark.parametrize("kind", ["path", "appended", "file object"])
@pytest.mark.parametrize("end", ["abort", "close"])
def test_a_writer_that_ended_before_bytes_are_written(end, kind, tmp_path):
    """Rows that come too late are a ClosedArchiveError, and what is at the path stays as it is."""
    path = tmp_path / "a.npz"
    npzkit.save(path, {"old": np.zeros(100_000)})
    contents = []

    def ending():
        getattr(w, end)()
        contents.append(path.read_bytes())

    with path.open("r+b") if kind == "file object" else contextlib.nullcontext(path) as file:
        w = npzkit.NpzWriter(file, "w" if kind == "path" else "a")
        dst = w.create("a", (1000, 10), "i8")
        with pytest.raises(ClosedArchiveError):
            dst[0:100] = Ending(ending)
    assert [path.read_bytes()] == contents
    assert os.listdir(tmp_path) == ["a.npz"]


def test_arrays_that_are_added_while_a_writer_is_closed(tmp_path):
    """Each array that was added is in the archive; later ones are a ClosedArchiveError."""
    path = tmp_path / "a.npz"
    w = npzkit.NpzWriter(path)
    added, errors, ready = [], [], threading.Event()

    def add():
        try:
            for number in itertools.count():
                w[str(number)] = np.full(10, number)
                added.append(number)
                ready.set()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=add)
    thread.start()
    ready.wait(10)
    w.close()
    thread.join()
    assert isinstance(errors[0], ClosedArchiveError)
    with npzkit.open(path, strict=True) as npz:
        assert npz.files == [str(number) for number in added]
        assert all((npz[str(number)] == number).all() for number in added)


def test_an_owned_file_object_of_any_kind_is_closed(tmp_path):
    """With own_fid=True, a file that is read by seeking is closed with the archive."""
    path = tmp_path / "a.npz.gz"
    with gzip.open(path, "wb") as file:
        npzkit.save(file, {"x": np.arange(3)})
    for own in (True, False):
        with gzip.open(path) as file:
            with npzkit.NpzFile(file, own_fid=own) as npz:
                assert npz["x"].tolist() == [0, 1, 2]
            assert file.closed == own


LEFT_OPEN = """
import sys, threading
import npzkit, numpy as np
npzkit.save("a.npz", {"x": np.zeros(3)})
writer = npzkit.NpzWriter("b.npz")
writer["x"] = np.zeros(3)
mapped = npzkit.open("a.npz", mmap_mode="r+")["x"]
mapped[0] = 1
sys.kept = list(sys.modules.values())
threading.kept = writer, mapped, npzkit.open("a.npz")
"""


@pytest.mark.slow
def test_what_is_open_when_modules_are_cleared(tmp_path):
    """Destructors that Python calls after it cleared npzkit's modules print no error."""
    command = [sys.executable, "-c", LEFT_OPEN]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, timeout=60, check=True)
    assert ended.stderr == b""
