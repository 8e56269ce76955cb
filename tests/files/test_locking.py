"""Readers keep the data that they opened during writes, and locks keep writers apart."""

from __future__ import annotations

import contextlib
import errno
import functools
import io
import itertools
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import warnings
import zipfile
from pathlib import Path

import npzkit
import npzkit.files.append
import npzkit.files.locking
import npzkit.files.new_file
import numpy as np
import pytest
from commits import unfinished
from deep import amount, by_turns
from npzkit.errors import ArchiveLockedError, StaleArchiveError, TornArchiveWarning, quoted
from npzkit.files import disk
from npzkit.files.source import FileSource
from systems import replaces_open_files

NOISE = np.random.default_rng(0).integers(0, 9, 45_000)
"""Large enough to be written at once, and to have several chunks if deflated."""
ARRAYS = {"stored": NOISE, "deflated": NOISE + 1, "small": np.arange(5), "last": np.eye(3)}
posix = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")


def by_npzkit(path):
    with npzkit.NpzWriter(path, metadata={"step": 1}) as w:
        for key, array in ARRAYS.items():
            compression = "deflated" if key == "deflated" else "stored"
            w.add(key, array, compression=compression, attrs={"unit": "m"})


MAKERS = {
    "npzkit": by_npzkit,
    "np.savez": lambda path: np.savez(path, **ARRAYS),
    "np.savez_compressed": lambda path: np.savez_compressed(path, **ARRAYS),
}


@functools.cache
def made_by(maker):
    """An archive as bytes."""
    stream = io.BytesIO()
    MAKERS[maker](stream)
    return stream.getvalue()


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "a.npz"
    path.write_bytes(made_by("npzkit"))
    return path


# -- readers -------------------------------------------------------------------


def by_writer(edit, *, mode="a", auto_repack=False, gives_up=False):
    """Return the stages of an edit: begun, done, committed, appended to, closed."""

    def stages(path):
        w = npzkit.NpzWriter(path, mode, auto_repack=auto_repack)
        yield
        edit(w)
        yield
        if not gives_up:
            w.commit()
            yield
        w["behind"] = NOISE
        yield
        w.abort() if gives_up else w.close()
        yield

    return stages


def replace_all(w):
    for key in ARRAYS:
        w.add(key, ARRAYS[key] + 7, overwrite=True, compression="deflated")


def remove_all(w):
    for key in ARRAYS:
        del w[key]


def rename_all(w):
    for key in ARRAYS:
        w.rename(key, f"new {key}")
        w.attrs(f"new {key}")["unit"] = "s"


def add(w):
    w["new"] = NOISE
    w.add("more", NOISE, compression="deflated")


def in_one(work):
    def stages(path):
        yield
        work(path)
        yield

    return stages


OPERATIONS = {
    "append": by_writer(add),
    "append, aborted": by_writer(add, gives_up=True),
    "replace": by_writer(replace_all),
    "replace, repacked": by_writer(replace_all, auto_repack=True),
    "delete": by_writer(remove_all, auto_repack=True),
    "delete, aborted": by_writer(remove_all, gives_up=True),
    "rename": by_writer(rename_all),
    "mode w": by_writer(add, mode="w"),
    "repack": in_one(lambda path: npzkit.repack(path, compression="deflated")),
    "save": in_one(lambda path: npzkit.save(path, {"stored": np.zeros(3)})),
    "save nothing": in_one(lambda path: npzkit.save(path, {})),
}
REPLACING = {"replace, repacked", "delete", "mode w", "repack", "save", "save nothing"}
"""Operations after which another file is at the path."""


class Reader:
    """Every kind of reader, opened once and used repeatedly."""

    def __init__(self, npz):
        self.npz = npz
        self.lazy = {key: npz.lazy(key) for key in ARRAYS}
        self.untouched = {key: npz.lazy(key) for key in ARRAYS}
        plain = [key for key in ARRAYS if npz.info(key).method == "stored"]
        self.maps = {key: npz.memmap(key) for key in plain}
        self.changed = {key: npz.memmap(key, "c") for key in plain}
        for array in self.changed.values():
            array[0] = 3
        self.zip = npz.zip
        self.stream = npz.stream("deflated")
        self.data = self.stream.read(1000)
        # One that was never asked anything before.
        self.late = npzkit.open(npz._archive.source.path)

    def check(self):
        npz = self.npz
        assert npz.files == list(ARRAYS)
        loaded = npz.load_all()
        for key, array in ARRAYS.items():
            for found in (npz[key], loaded[key], self.lazy[key].read(), getattr(npz.f, key)):
                assert np.array_equal(found, array)
            assert np.array_equal(self.lazy[key][1:4], array[1:4])
            assert np.array_equal(npz.lazy(key)[-2:], array[-2:])
            assert npz.info(key).shape == array.shape
        for key, array in self.maps.items():
            assert np.array_equal(array, ARRAYS[key])
            assert np.array_equal(npz.memmap(key), ARRAYS[key])
            assert np.array_equal(self.changed[key][1:], ARRAYS[key][1:])
            assert np.all(self.changed[key][0] == 3)
        assert self.zip.testzip() is None
        assert self.zip.namelist() == [f"{key}.npy" for key in ARRAYS]
        self.data += self.stream.read(1000)

    def finish(self):
        with self.npz, self.late as late:
            self.check()
            for key, array in ARRAYS.items():
                assert np.array_equal(self.untouched[key][2:], array[2:])
                assert np.array_equal(late.lazy(key)[1:], array[1:])
            assert np.array_equal(late.load_all()["deflated"], ARRAYS["deflated"])
            self.data += self.stream.read()
            assert self.data[-NOISE.nbytes :] == ARRAYS["deflated"].tobytes()
        for key, array in self.maps.items():
            assert np.array_equal(array, ARRAYS[key])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("operation", "maker"),
    [
        pytest.param(*both, marks=[replaces_open_files] if both[0] in REPLACING else [])
        for both in by_turns(OPERATIONS, MAKERS)
    ],
)
def test_readers_keep_what_they_opened(tmp_path, operation, maker):
    """Archives, lazy arrays, maps, zip and streams return the old data at every stage of a change."""
    path = tmp_path / "a.npz"
    path.write_bytes(made_by(maker))
    reader = Reader(npzkit.open(path))
    for _ in OPERATIONS[operation](path):
        reader.check()
    reader.finish()


def test_threads_read_while_another_appends(path):
    """Readers in threads return the same data while a writer commits repeatedly."""
    errors, stop = [], threading.Event()

    def read(npz):
        lazy = npz.lazy("deflated")
        try:
            while not stop.is_set():
                assert np.array_equal(lazy[5:9], ARRAYS["deflated"][5:9])
                assert np.array_equal(npz["stored"], NOISE)
                with npzkit.open(path) as now:
                    assert now.files[: len(ARRAYS)] == list(ARRAYS)
                    assert np.array_equal(now[now.files[-1]], ARRAYS.get(now.files[-1], NOISE))
        except BaseException as error:
            errors.append(error)

    with npzkit.open(path) as npz:
        threads = [threading.Thread(target=read, args=(npz,)) for _ in range(2)]
        for thread in threads:
            thread.start()
        with npzkit.NpzWriter(path, "a") as w:
            for number in range(20):
                w[f"new{number}"] = NOISE
                w.commit()
        stop.set()
        for thread in threads:
            thread.join()
    assert not errors


def test_a_file_rewritten_in_place_is_stale(path):
    """If another program rewrites the file in place, readers notice it, unlike an append."""
    with npzkit.open(path) as npz:
        lazy = npz.lazy("stored")
        assert lazy[0] == NOISE[0]
        # Opened by "wb", as np.savez does, the file stays the same one.
        np.savez(path, **{**ARRAYS, "stored": NOISE + 1})
        with pytest.raises(StaleArchiveError):
            lazy[0]
        with pytest.raises(StaleArchiveError):
            npz.lazy("small")[:]


@pytest.mark.parametrize(
    "change", ["append", pytest.param("replace", marks=replaces_open_files), "abort"]
)
def test_pickles_find_another_file(path, change):
    """Readers that open the path again must find the same file, not one that was appended to."""
    with npzkit.open(path) as npz:
        lazy = npz.lazy("stored")
        before = pickle.dumps(npz), pickle.dumps(lazy)
        if change == "append":
            with npzkit.NpzWriter(path, "a") as w:
                w["new"] = np.arange(3)
        elif change == "replace":
            npzkit.save(path, ARRAYS)
        else:
            w = npzkit.NpzWriter(path, "a")
            w["new"] = NOISE
            w.abort()
        assert lazy[3] == NOISE[3]
        for data in (*before, pickle.dumps(npz), pickle.dumps(lazy)):
            found = pickle.loads(data)
            with pytest.raises(StaleArchiveError, match="changed since the archive was pickled"):
                len(found)


# -- opening while a writer is at work -------------------------------------------

WRITER = """
import os, sys, time
import npzkit, numpy as np
path, mode = sys.argv[1:3]
w = npzkit.NpzWriter(path, mode)
w["kept"] = np.arange(3)
w.commit()
w["lost"] = np.ones(1_000_000)
{more}
print("ready", flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def writer(path, mode="a", more=""):
    """Run a writer in another process that commits once and then writes more."""
    words = [sys.executable, "-c", WRITER.format(more=more), path, mode]
    pipe = subprocess.PIPE
    with subprocess.Popen(words, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["w", "a"])
def test_opening_while_a_writer_is_at_work(path, mode):
    """Committed data is read without a warning while the writer lives, and with one after it was killed."""
    with writer(path, mode) as process:
        size = path.stat().st_size
        for _ in range(3):
            with npzkit.open(path) as npz, open(path, "rb") as file, npzkit.open(file) as other:
                assert npz.files == other.files
                assert npz.files[-1] == "kept"
                assert npz["kept"].tolist() == [0, 1, 2]
                assert ("stored" in npz) == (mode == "a")
            npzkit.open(path, strict=True).close()
        process.kill()
        process.wait()
    assert path.stat().st_size == size
    with pytest.raises(npzkit.errors.ZipFormatError, match="torn"):
        npzkit.open(path, strict=True)
    with pytest.warns(TornArchiveWarning), npzkit.open(path) as npz:
        assert npz.files[-1] == "kept"
        with pytest.warns(TornArchiveWarning):
            w = npzkit.NpzWriter(path, "a")
        # While this one is at work, nobody knows whose the torn end is.
        npzkit.open(path).close()
        w["new"] = np.arange(3)
        w.close()
    with npzkit.open(path, strict=True) as npz:
        assert npz.files[-2:] == ["kept", "new"]


def test_opening_while_this_process_writes(path):
    """The same is true for a writer in this process, in any thread."""
    w = npzkit.NpzWriter(path, "a")
    w["new"] = NOISE
    assert path.stat().st_size > NOISE.nbytes * 2
    found = []
    thread = threading.Thread(target=lambda: found.append(npzkit.open(path).files))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        thread.start()
        thread.join()
    with npzkit.open(path) as npz:
        assert npz.files == list(ARRAYS) == found[0]
    w.close()


# -- a second writer -----------------------------------------------------------------

SECOND = {
    "a": lambda path, **options: npzkit.NpzWriter(path, "a", **options).close(),
    "w": lambda path, **options: npzkit.NpzWriter(path, "w", **options).abort(),
    "repack": lambda path, **options: npzkit.repack(path, **options),
    "repack to": lambda path, **options: npzkit.repack(
        _other(path), path, overwrite=True, **options
    ),
    "save": lambda path, **options: npzkit.save(path, {"x": np.arange(3)}, **options),
    "add": lambda path, **options: npzkit.add(path, _other(path), overwrite=True, **options),
}


def _other(path):
    other = path.with_name("other.npz")
    if not other.exists():
        npzkit.save(other, {"x": np.arange(3)})
    return other


@pytest.mark.slow
@pytest.mark.remedy("Wait until it is closed, or pass lock_timeout=seconds to wait longer.")
@pytest.mark.parametrize("mode", ["a", "w"])
@pytest.mark.parametrize("second", SECOND)
def test_a_second_writer_is_refused_at_once(path, second, mode):
    """While one writer has the file open, every other way to write fails and names the path."""
    before = path.read_bytes()
    w = npzkit.NpzWriter(path, mode)
    start = time.monotonic()
    with pytest.raises(ArchiveLockedError, match="another writer") as caught:
        SECOND[second](path)
    assert time.monotonic() - start < 5
    assert isinstance(caught.value, BlockingIOError)
    same = pickle.loads(pickle.dumps(caught.value))
    assert (same.errno, same.filename) == (errno.EAGAIN, same.path) == (errno.EAGAIN, str(path))
    assert quoted(path) in str(caught.value)
    errors = []

    def write():
        try:
            SECOND[second](path)
        except ArchiveLockedError as error:
            errors.append(error)

    thread = threading.Thread(target=write)
    thread.start()
    thread.join()
    assert len(errors) == 1
    assert path.read_bytes() == before
    w["new"] = np.arange(3)
    w.commit()
    # On Windows, the lock ends with a rename, and is taken again with the next change.
    if mode == "a" or disk.RENAMES_OPEN_FILES:
        with pytest.raises(ArchiveLockedError):
            SECOND[second](path)
    w.close()
    SECOND[second](path)
    assert sorted(set(os.listdir(path.parent)) - {"other.npz"}) == ["a.npz"]


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["a", "w"])
def test_another_process_is_kept_out(path, mode):
    """A writer in another process locks the file until it ends, even by SIGKILL."""
    with writer(path, mode) as process:
        for second in SECOND.values():
            with pytest.raises(ArchiveLockedError):
                second(path)
            with pytest.raises(ArchiveLockedError, match=r"0\.05 seconds"):
                second(path, lock_timeout=0.05)
        process.kill()
        process.wait()
        with pytest.warns(TornArchiveWarning):
            SECOND["a"](path)


@pytest.mark.parametrize("second", SECOND)
def test_a_second_writer_waits(path, second):
    """With lock_timeout, a writer waits that long, and continues as soon as the first one ends."""
    w = npzkit.NpzWriter(path, "a")
    w["new"] = np.arange(3)
    start = time.monotonic()
    with pytest.raises(ArchiveLockedError, match=r"0\.1 seconds"):
        SECOND[second](path, lock_timeout=0.1)
    assert 0.1 <= time.monotonic() - start < 5
    timer = threading.Timer(0.1, w.close)
    timer.start()
    start = time.monotonic()
    SECOND[second](path, lock_timeout=60)
    assert 0.05 < time.monotonic() - start < 30
    timer.join()
    with npzkit.open(path, strict=True) as npz:
        assert npz.files


def test_who_waited_finds_what_was_written(path):
    """A writer that waited appends to what the writer before it wrote, even if that file is new."""
    # On Windows, the lock ends before a new file takes the old one's place.
    for mode in ("a", "w") if disk.RENAMES_OPEN_FILES else ("a",):
        w = npzkit.NpzWriter(path, mode)
        w[f"by {mode}"] = np.arange(3)
        timer = threading.Timer(0.1, w.close)
        timer.start()
        with npzkit.NpzWriter(path, "a", lock_timeout=60) as later:
            assert f"by {mode}" in later
            later[f"behind {mode}"] = np.arange(3)
        timer.join()
        with npzkit.open(path) as npz:
            assert npz.files[-2:] == [f"by {mode}", f"behind {mode}"]
            assert mode == "a" or len(npz.files) == 2


@pytest.mark.slow
@pytest.mark.parametrize("savez", [npzkit.savez, npzkit.savez_compressed])
def test_writers_of_numpys_functions_wait_for_each_other(path, savez):
    """As with NumPy's, several threads save to one path at once, and one of them is the last."""
    errors = []

    def write(number):
        try:
            savez(path, x=np.full(10, number))
        except Exception as error:
            errors.append(error)

    with npzkit.NpzWriter(path, "a"):
        threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        time.sleep(0.2)
        assert all(thread.is_alive() for thread in threads)
    for thread in threads:
        thread.join()
    assert not errors
    with npzkit.open(path) as npz:
        assert len(set(npz["x"])) == 1


@pytest.mark.parametrize(
    ("timeout", "error"),
    [(-1, ValueError), (float("nan"), ValueError), ("1", TypeError), (True, TypeError), ([], TypeError)],
)  # fmt: skip
def test_bad_timeouts(path, timeout, error):
    """A lock_timeout that is not a valid number is refused before anything changes."""
    before = path.read_bytes()
    for second in SECOND.values():
        with pytest.raises(error, match="lock_timeout"):
            second(path, lock_timeout=timeout)
    with pytest.raises(error, match="lock_timeout"):
        npzkit.NpzWriter(path.with_name("new.npz"), "x", lock_timeout=timeout)
    assert path.read_bytes() == before
    assert set(os.listdir(path.parent)) <= {"a.npz", "other.npz"}


@pytest.mark.parametrize("ending", ["close", "abort", "error", "failed open", "dropped"])
def test_locks_are_let_go(path, ending):
    """However a writer ends, the next one can lock the file at once."""
    if ending == "failed open":
        with pytest.raises(TypeError):
            npzkit.NpzWriter(path, "a", metadata=3)
        with pytest.raises(npzkit.errors.ZipFormatError):
            other = path.with_name("b.npz")
            other.write_bytes(b"no archive")
            npzkit.NpzWriter(other, "a")
        npzkit.NpzWriter(other).abort()
    elif ending == "error":
        with pytest.raises(KeyError), npzkit.NpzWriter(path, "a") as w:
            raise KeyError
    else:
        w = npzkit.NpzWriter(path, "a")
        del w["stored"]
        if ending == "dropped":
            with pytest.warns(ResourceWarning):
                del w
        else:
            getattr(w, ending)()
    with npzkit.NpzWriter(path, "a") as w:
        w["next"] = np.arange(3)


@pytest.mark.slow
@posix
@pytest.mark.parametrize("mode", ["a", "w"])
def test_children_of_a_dead_writer_hold_no_lock(path, mode):
    """A child process of a killed writer does not keep its lock."""
    more = (
        "import subprocess\n"
        "begun, begin = os.pipe()\n"
        "child = os.fork()\n"
        "if not child:\n"
        "    os.write(begin, b'!')\n"
        "    sys.stdin.read()\n"
        "    os._exit(0)\n"
        "os.read(begun, 1)\n"
        "started = subprocess.Popen([sys.executable, '-c', 'import sys; sys.stdin.read()'], close_fds=False)\n"
        "other = open(sys.argv[1] + '.children', 'w')\n"
        "other.write(f'{child} {started.pid}'); other.close()"
    )
    with writer(path, mode, more) as process:
        children = [int(word) for word in Path(f"{path}.children").read_text().split()]
        with pytest.raises(ArchiveLockedError):
            npzkit.NpzWriter(path, "a")
        process.send_signal(signal.SIGKILL)
        process.wait()
        for child in children:
            os.kill(child, 0)
        with pytest.warns(TornArchiveWarning):
            w = npzkit.NpzWriter(path, "a")
        with w:
            assert w.files[-1] == "kept"
            w["next"] = np.arange(3)
        # End of file: they end by themselves.
        process.stdin.close()
    with npzkit.open(path, strict=True) as npz:
        assert npz.files[-1] == "next"


@posix
def test_a_forked_child_does_not_let_its_parents_lock_go(path):
    """If a forked child ends or drops the writer, the parent keeps its lock."""
    w = npzkit.NpzWriter(path, "a")
    child = os.fork()
    if not child:
        try:
            w.abort()
        finally:
            os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    with pytest.raises(ArchiveLockedError):
        npzkit.NpzWriter(path, "a")
    w["new"] = np.arange(3)
    w.close()
    with npzkit.open(path) as npz:
        assert npz.files[-1] == "new"


@pytest.mark.slow
@posix
def test_readers_keep_no_writer_out(path):
    """Readers that check for a writer never make a new writer fail."""
    with open(path, "ab") as file:
        file.write(b"torn")
    script = (
        "import sys, warnings, npzkit\n"
        "warnings.simplefilter('ignore')\n"
        "print('ready', flush=True)\n"
        "for _ in range(int(sys.argv[2])): npzkit.open(sys.argv[1]).close()"
    )
    words = [sys.executable, "-c", script, path, str(amount(25, 300))]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        process.stdout.readline()
        while process.poll() is None:
            with pytest.warns(TornArchiveWarning):
                npzkit.NpzWriter(path, "a").close()
    assert process.returncode == 0


# -- a path that leads elsewhere -------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "committed"),
    # Before its first commit, a new archive replaces whatever is there.
    [("a", False), ("a", True), ("w", True)],
)
@pytest.mark.parametrize("change", ["replaced", "removed"])
@pytest.mark.remedy("Open the file that is at the path now, and write the others again.")
@replaces_open_files
def test_a_path_that_changed_under_a_writer(path, change, mode, committed):
    """If the path has another file or none, a commit raises an error and changes nothing there."""
    w = npzkit.NpzWriter(path, mode)
    if committed:
        w["kept"] = np.arange(3)
        w.commit()
    old = npzkit.open(path)
    before = b""
    if change == "removed":
        path.unlink()
    else:
        other = path.with_name("other.npz")
        # Larger, so that a place behind the old archive lies within it.
        np.savez(other, z=np.zeros(1_000_000))
        before = other.read_bytes()
        os.replace(other, path)
    with pytest.raises(StaleArchiveError, match="moved, removed or replaced") as caught:
        w["new"] = NOISE
        w.commit()
    assert caught.value.path == str(path)
    with pytest.raises(npzkit.errors.ClosedArchiveError):
        w.close()
    if change == "removed":
        assert not path.exists()
    else:
        assert path.read_bytes() == before
    with old:
        assert old.files[-1] == ("kept" if committed else "last")
        assert old.load_all()
    with npzkit.NpzWriter(path, "a") as w:
        w["new"] = NOISE
    with npzkit.open(path) as npz:
        assert npz.files == (["new"] if change == "removed" else ["z", "new"])
        assert np.array_equal(npz["new"], NOISE)
    assert os.listdir(path.parent) == ["a.npz"]


@pytest.mark.skipif(os.name == "nt", reason="Windows replaces no file that is open")
@pytest.mark.parametrize(
    "moment",
    [
        pytest.param("lock_path", marks=pytest.mark.remedy("Try again.")),
        pytest.param("File", marks=pytest.mark.remedy("Open the file that is at the path now")),
    ],
)
def test_a_path_that_changes_while_it_is_opened(path, moment, monkeypatch):
    """A file that replaces the locked one before it is opened is not written to without a lock."""
    other = path.with_name("other.npz")
    np.savez(other, theirs=NOISE)
    before = other.read_bytes()
    real = getattr(npzkit.files.append, moment)

    def replaced_then(*args, **options):
        result = real(*args, **options)
        os.replace(other, path)
        return result

    with monkeypatch.context() as patched:
        patched.setattr(npzkit.files.append, moment, replaced_then)
        with pytest.raises(StaleArchiveError, match="replaced") as caught:
            npzkit.NpzWriter(path, "a")
    assert caught.value.path == str(path)
    assert path.read_bytes() == before
    with npzkit.NpzWriter(path, "a") as w:
        assert w.files == ["theirs"]


@pytest.mark.parametrize("size", [3, 300_000], ids=["shorter", "longer"])
@pytest.mark.parametrize("when", ["before", "between"])
@pytest.mark.parametrize("mode", ["a", "w"])
def test_a_file_rewritten_under_a_writer(path, mode, when, size):
    """Changes that another program makes without a lock are neither cut off nor mixed with ours."""
    w = npzkit.NpzWriter(path, mode)
    w["kept"] = np.arange(3)
    w.commit()
    if when == "between":
        w["large"] = NOISE
    # Opened by "wb", the file stays the same one.
    np.savez(path, theirs=np.arange(size))
    before = path.read_bytes()
    with pytest.raises(StaleArchiveError, match="another program") as caught:
        w["new"] = NOISE
        w.commit()
    assert caught.value.path == str(path)
    with pytest.raises(npzkit.errors.ClosedArchiveError):
        w.close()
    after = path.read_bytes()
    if when == "before":
        assert after == before
    else:
        # This one was writing already; nothing was cut off.
        assert len(after) >= len(before)
    with npzkit.NpzWriter(path, "w") as w:
        w["next"] = np.arange(3)


@pytest.mark.remedy("Its changes are kept: open the archive again, and repeat yours.")
@pytest.mark.parametrize("mode", ["a", "w"])
def test_arrays_rewritten_under_a_writer(path, mode):
    """Changed values in the same places are noticed, even if the last bytes of the file are the same."""
    ours, theirs = ({"first": np.full(99, n), "same": np.arange(3)} for n in (1, 2))
    other = path.with_name("other.npz")
    npzkit.save(other, theirs)
    npzkit.save(path, ours)
    w = npzkit.NpzWriter(path, mode)
    if mode == "w":
        w["first"], w["same"] = ours.values()
        w.commit()
    before = other.read_bytes()
    # The file stays the same one.
    path.write_bytes(before)
    with pytest.raises(StaleArchiveError, match="another program"), w:
        w["new"] = np.arange(3)
    assert path.read_bytes() == before
    with npzkit.NpzWriter(path, "a") as w:
        w["new"] = np.arange(3)
    with npzkit.open(path) as npz:
        assert npz.files == ["first", "same", "new"]
        assert npz["first"][0] == 2
        assert npz["new"].tolist() == [0, 1, 2]


@replaces_open_files
def test_a_path_that_changed_where_nothing_is_written(path):
    """A writer without changes since its last commit raises no error."""
    w = npzkit.NpzWriter(path, "a")
    path.unlink()
    w.close()
    assert not path.exists()


# -- maps that are written through --------------------------------------------------------


def is_sound(path):
    with zipfile.ZipFile(path) as archive:
        return archive.testzip() is None


@pytest.mark.parametrize("when", ["mapped before", "mapped after"])
@pytest.mark.parametrize("edit", ["append", "attributes", "replace another"])
def test_a_writable_map_is_flushed_after_an_append(path, edit, when):
    """The CRC is written to the current directory, and every reader accepts it."""
    with npzkit.open(path) as npz:
        mapped = npz.memmap("stored", "r+") if when == "mapped before" else None
        with npzkit.NpzWriter(path, "a", auto_repack=False) as w:
            w["new"] = np.arange(3)
            if edit == "attributes":
                w.attrs("stored")["note"] = "longer than before"
            elif edit == "replace another":
                w.add("small", np.ones(3), overwrite=True)
        if mapped is None:
            mapped = npz.memmap("stored", "r+")
        mapped[7] = 77
        mapped.flush()
        assert is_sound(path)
        # Whoever wrote it goes on reading by the directory of before.
        assert "new" not in npz
        assert npz["stored"][7] == npz.load_all()["stored"][7] == npz.lazy("stored")[7] == 77
        assert np.array_equal(npz["small"], ARRAYS["small"])
        assert npz.zip.testzip() is None
        mapped[8] = 88
        del mapped
    assert is_sound(path)
    with npzkit.open(path, strict=True) as npz:
        assert npz["stored"][7:9].tolist() == [77, 88]
        assert npz["new"].tolist() == [0, 1, 2]


@pytest.mark.parametrize("edit", ["removed", "replaced", "by its like", "renamed"])
def test_a_writable_map_of_what_was_removed(path, edit):
    """A map of an array that was removed from the directory raises an error that its changes are lost."""
    with npzkit.open(path) as npz:
        mapped = npz.memmap("stored", "r+")
        with npzkit.NpzWriter(path, "a", auto_repack=False) as w:
            if edit == "removed":
                del w["stored"]
            elif edit == "renamed":
                w.rename("stored", "other")
            else:
                array = NOISE if edit == "by its like" else np.arange(3)
                w.add("stored", array, overwrite=True, attrs={"unit": "m"})
        mapped[7] = 77
        with pytest.raises(StaleArchiveError, match="no longer where it was mapped"):
            mapped.flush()
        assert is_sound(path)
        mapped._mmap.track(lambda *changed: None, 0, 0)


@replaces_open_files
def test_a_flush_between_two_attempts_of_an_append(path):
    """A failed and a successful append may end at the same byte."""
    whole = path.with_name("b.npz")
    whole.write_bytes(path.read_bytes())
    with npzkit.NpzWriter(whole, "a") as w:
        w["new"] = np.arange(3)
    data = unfinished(whole.read_bytes())
    path.write_bytes(data)
    with pytest.warns(TornArchiveWarning):
        npz = npzkit.open(path)
    with npz:
        mapped = npz.memmap("stored", "r+")
        mapped[7] = 77
        mapped.flush()
        with pytest.warns(TornArchiveWarning), npzkit.NpzWriter(path, "a") as w:
            w["new"] = np.arange(3)
        assert path.stat().st_size == len(data)
        mapped[8] = 88
        mapped.flush()
        assert is_sound(path)


@posix
def test_a_reader_that_looks_does_not_turn_a_writer_away(path, monkeypatch):
    """A writer waits for a reader's short lock even without a timeout."""
    import fcntl

    with path.open("rb") as reader:
        fcntl.flock(reader, fcntl.LOCK_SH)
        waited = []

        def sleep(seconds):
            waited.append(seconds)
            fcntl.flock(reader, fcntl.LOCK_UN)

        monkeypatch.setattr(npzkit.files.locking.time, "sleep", sleep)
        with npzkit.NpzWriter(path, "a") as w:
            w["new"] = np.arange(3)
    assert len(waited) == 1


@posix
def test_a_file_that_may_only_be_read_has_one_writer(path, monkeypatch):
    """A read-only file is locked while it is repaired to another one."""
    real = os.open

    def refuse(name, flags, **options):
        if os.fspath(name) == str(path) and flags & os.O_RDWR:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), name)
        return real(name, flags, **options)

    def write(done, size):
        with pytest.raises(ArchiveLockedError):
            npzkit.NpzWriter(path)

    monkeypatch.setattr(os, "open", refuse)
    npzkit.repair(path, path.with_name("other.npz"), progress=write, overwrite=True)


@posix
def test_a_lock_ends_with_its_object(path):
    """An unused lock is released, and its file closed."""
    lock = npzkit.files.locking.lock_path(str(path), 0.0)
    descriptor = lock.fileno()
    del lock
    with pytest.raises(OSError, match="descriptor"):
        os.fstat(descriptor)


@posix
def test_where_the_system_has_no_locks_nobody_has_one(path, monkeypatch):
    """Archives on a share without locks are written and read; other errors are raised."""

    def failing(code):
        def flock(*_):
            raise OSError(code, os.strerror(code))

        return flock

    monkeypatch.setattr("npzkit.files.system_locks.fcntl.flock", failing(errno.ENOLCK))
    with npzkit.NpzWriter(path, "a") as w:
        w["new"] = np.arange(3)
    with path.open("rb") as file:
        assert not npzkit.files.locking.is_locked(file.fileno())
    monkeypatch.setattr("npzkit.files.system_locks.fcntl.flock", failing(errno.EIO))
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        npzkit.NpzWriter(path, "a")


@pytest.mark.slow
@pytest.mark.skipif(
    os.name == "nt", reason="changes within one tick of Windows' clock for files look like none"
)
def test_a_reader_beside_writers_that_are_killed_and_begin_again(tmp_path, monkeypatch):
    """What changes between two reads of an opening is read again, and never taken for damage."""
    path = tmp_path / "a.npz"
    npzkit.save(path, {"x": np.arange(40)}, metadata={"step": 1})
    old = path.read_bytes()
    states = []
    for number in range(3):
        path.write_bytes(old)
        for step in range(number + 1):
            with npzkit.NpzWriter(path, "a", auto_repack=False) as w:
                w.add(f"y{step}", np.arange(30 + 20 * number), compression="deflated")
                w.add("x", np.arange(7 * step), overwrite=True)
        states.append(path.read_bytes())
    sizes = None, states[0].rfind(b"PK\5\6") - 30, len(old) + 90
    for torn in (unfinished(states[0], size) for size in sizes):
        for first, gap in itertools.product(range(1, 16), range(1, 8)):
            path.write_bytes(torn)
            changes = {first: states[0], first + gap: states[2]}
            with monkeypatch.context() as patched, warnings.catch_warnings():
                patched.setattr(FileSource, "read_at", changing_file(path, len(old), changes))
                warnings.simplefilter("ignore", TornArchiveWarning)
                npzkit.open(path).close()


def changing_file(path, kept_size, changes):
    """Return `FileSource.read_at`, with a writer that drops what was torn before some calls."""
    real, count = FileSource.read_at, itertools.count(1)

    def read_at(source, offset, size):
        new = changes.get(next(count))
        if new is not None:
            with open(path, "r+b") as file:
                file.truncate(kept_size)
                file.write(new)
        return real(source, offset, size)

    return read_at


# -- processes that are being started meanwhile ------------------------------------------------


@contextlib.contextmanager
def inherited_locks():
    """Keep what a process that was forked in C, and has not run its program yet, has open."""
    copies = [os.dup(lock.fileno()) for lock in npzkit.files.locking._held if not lock.closed]
    try:
        yield
    finally:
        for copy in copies:
            os.close(copy)


@pytest.mark.parametrize("ending", ["close", "abort", "drop"])
@pytest.mark.parametrize("mode", ["w", "a"])
@posix
def test_a_process_that_is_being_started_keeps_no_lock(path, mode, ending):
    """A lock is free as soon as its writer ends, whoever else has its file open by inheritance."""
    w = npzkit.NpzWriter(path, mode)
    w["new"] = NOISE
    w.commit()
    with inherited_locks():
        with pytest.raises(ArchiveLockedError):
            npzkit.NpzWriter(path, "a")
        if ending == "drop":
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ResourceWarning)
                del w
        else:
            getattr(w, ending)()
        npzkit.NpzWriter(path, "a").close()
        npzkit.save(path, {"x": NOISE})
        npzkit.save(path, {"x": np.arange(3)})


@pytest.mark.slow
@posix
def test_saves_while_threads_start_processes(path):
    """No save fails because another thread starts processes at the same time."""
    stop = threading.Event()

    def start():
        while not stop.is_set():
            subprocess.run(["true"], check=True)

    threads = [threading.Thread(target=start) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for number in range(amount(100, 5000)):
            npzkit.save(path, {"x": np.arange(number)})
            with npzkit.NpzWriter(path, "a") as w:
                w["y"] = NOISE
    finally:
        stop.set()
        for thread in threads:
            thread.join()


@pytest.mark.skipif(npzkit.files.system_locks.fcntl is None, reason="a lock is not shared here")
def test_a_reader_that_is_stopped_as_it_asks(path):
    """A reader that asks for writers delays one, however long the machine keeps it from going on."""
    import fcntl

    with open(path, "rb") as asking:
        fcntl.flock(asking, fcntl.LOCK_SH)
        timer = threading.Timer(0.3, fcntl.flock, (asking, fcntl.LOCK_UN))
        timer.start()
        with npzkit.NpzWriter(path, "a") as w:
            w["new"] = np.arange(3)
        timer.join()


# -- programs that take no lock ------------------------------------------------------------


@pytest.mark.parametrize("moment", ["before", "after small", "after large", "created"])
@pytest.mark.parametrize("ending", ["commit", "abort"])
def test_what_others_append_stays(path, moment, ending):
    """Bytes that another program appends to the file during an append are not written over or cut."""
    w = npzkit.NpzWriter(path, "a")
    if moment == "after small":
        w["new"] = np.arange(3)
    elif moment == "after large":
        w["new"] = NOISE
    elif moment == "created":
        dst = w.create("new", (1000, 1000), "f8")
        dst[:] = 1
    with open(path, "ab") as file:
        file.write(b"theirs" * 100)
    size = path.stat().st_size
    if ending == "abort":
        w.abort()
    else:
        with pytest.raises(StaleArchiveError, match="another program"):
            w["more"] = NOISE
    assert path.stat().st_size == size
    assert path.read_bytes().endswith(b"theirs" * 100)


def test_what_others_append_to_a_file_object_stays():
    """The same in a file object, as far as nothing was written to it before."""
    file = io.BytesIO(made_by("npzkit"))
    w = npzkit.NpzWriter(file, "a")
    file.seek(0, os.SEEK_END)
    file.write(b"theirs")
    with pytest.raises(StaleArchiveError, match="another program"):
        w["new"] = np.arange(3)
    assert file.getvalue() == made_by("npzkit") + b"theirs"


@pytest.mark.skipif(os.name == "nt", reason="Windows replaces no file that is open")
@pytest.mark.parametrize("moment", ["before the repack", "amid the repack"])
def test_close_repacks_its_own_file_only(path, moment, monkeypatch):
    """A file that was moved to the path meanwhile, and its writer's commits, stay as they are."""
    other = path.with_name("other.npz")
    npzkit.save(other, {"theirs": np.arange(9)})
    theirs = npzkit.NpzWriter(other, "a")
    place = {
        "before the repack": (npzkit.files.append.AppendedFile, "hand_over"),
        "amid the repack": (npzkit.files.new_file.NewFile, "_put_in_place"),
    }[moment]
    real = getattr(*place)

    def moved_then(sink):
        if other.exists():
            os.replace(other, path)
        return real(sink)

    w = npzkit.NpzWriter(path, "a")
    for key in ("stored", "deflated", "small"):
        del w[key]
    monkeypatch.setattr(*place, moved_then)
    with pytest.warns(RuntimeWarning, match="could not be removed"):
        w.close()
    theirs["more"] = np.arange(5)
    theirs._archive.sink.file.target = str(path)
    theirs.close()
    with npzkit.open(path, strict=True) as npz:
        assert npz.files == ["theirs", "more"]
    assert os.listdir(path.parent) == ["a.npz"]


@pytest.mark.skipif(os.name == "nt", reason="Windows replaces no file that is open")
@pytest.mark.parametrize("work", ["repack", "close"])
def test_a_rewrite_keeps_what_others_wrote_meanwhile(path, work, monkeypatch):
    """If another program appends to a file while it is rewritten, its bytes are not lost."""
    real = npzkit.files.new_file.NewFile._put_in_place

    def appended_then(sink):
        with zipfile.ZipFile(path, "a") as archive:
            archive.writestr("theirs.txt", b"kept")
        return real(sink)

    w = npzkit.NpzWriter(path, "a") if work == "close" else None
    monkeypatch.setattr(npzkit.files.new_file.NewFile, "_put_in_place", appended_then)
    if w is None:
        with pytest.raises(StaleArchiveError, match="another program"):
            npzkit.repack(path)
    else:
        for key in ("stored", "deflated", "small"):
            del w[key]
        with pytest.warns(RuntimeWarning, match="could not be removed"):
            w.close()
    with zipfile.ZipFile(path) as archive:
        assert archive.read("theirs.txt") == b"kept"
    assert os.listdir(path.parent) == ["a.npz"]


@pytest.mark.parametrize("way", ["save", "writer"])
def test_a_save_replaces_nothing_that_is_locked_now(path, way):
    """A file that appeared at the path during a save, and has a writer, is not replaced."""
    path.unlink()
    w = npzkit.NpzWriter(path)
    w["x"] = NOISE
    npzkit.save(path, {"theirs": np.arange(3)})
    with npzkit.NpzWriter(path, "a") as other:
        other["more"] = np.arange(3)
        with pytest.raises(ArchiveLockedError):
            w.close()
    with npzkit.open(path) as npz:
        assert npz.files == ["theirs", "more"]
    assert os.listdir(path.parent) == ["a.npz"]
