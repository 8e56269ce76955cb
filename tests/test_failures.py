"""Calls of the system that fail while an archive is written: it stays as at its last commit."""

from __future__ import annotations

import collections
import contextlib
import errno
import functools
import gc
import io
import itertools
import os
import random
import signal
import sys
import tempfile
import threading
import time
import warnings
from pathlib import Path

import npzkit
import npzkit.files.disk
import numpy as np
import pytest
from children import forked, read_rest
from deep import DEEP, amount, by_turns, extent
from faults import SYNCS, FaultyOS, descriptor_count
from npzkit.errors import ArchiveLockedError, ClosedArchiveError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

NOISE = np.random.default_rng(0)
SMALL = np.arange(50)
MIDDLE = NOISE.integers(0, 500, 30_000)
LARGE = NOISE.random(extent(40_000, 300_000))
"""Written into room that was reserved, while threads take its CRC."""
needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
ERRORS = [errno.ENOSPC, errno.EIO, errno.EINTR]
INTERRUPT_COUNT = amount(4, 40)


@pytest.fixture(autouse=True)
def _large_sizes(monkeypatch):
    """Have `LARGE` taken for a large array, which it is by itself with NPZKIT_DEEP=1 alone."""
    if not DEEP:
        monkeypatch.setattr("npzkit.files.disk._RESERVE_SIZE", LARGE.nbytes // 2)
        monkeypatch.setattr("npzkit.zip.writer._PARALLEL_SIZE", LARGE.nbytes // 2)


class Run:
    """One attempt at an operation: the writer it used, and how many commits came back."""

    def __init__(self, path, durable, repacks=True):
        self.path, self.durable, self.repacks = path, durable, repacks
        self.writer = None
        self.creates = False
        self.commits = 0
        self.snapshots = []

    def open(self, mode, **options):
        self.writer = npzkit.NpzWriter(
            self.path, mode, durable=self.durable, auto_repack=self.repacks, threads=2, **options
        )
        return self.writer

    def done(self):
        """Note that a commit came back."""
        self.commits += 1
        self.snapshots.append(self.path.read_bytes())

    def commit(self):
        self.writer.commit()
        self.done()

    def close(self):
        self.writer.close()
        self.done()


def append(run):
    with run.open("a") as w:
        w["a"], w["b"] = SMALL, LARGE
        w.add("c", MIDDLE, compression="deflated")
        run.commit()
        w["d"] = MIDDLE
        run.close()


def replace(run):
    with run.open("a") as w:
        w.add("middle", MIDDLE + 1, overwrite=True, attrs={"unit": "m"})
        w.add("small", SMALL + 1, overwrite=True)
        run.close()


def delete(run):
    with run.open("a") as w:
        del w["large"]
        run.close()


def rename(run):
    with run.open("a") as w:
        w.rename("large", "larger")
        run.commit()
        w.rename("small", "smaller")
        run.close()


def edit(run):
    with run.open("a") as w:
        w.metadata["step"] = 2
        run.commit()
        w.attrs("small")["unit"] = "m"
        run.close()


def create(run):
    with run.open("a") as w:
        run.creates = True
        filled = w.create("filled", (400, 500), "f8")
        run.creates = False
        with filled as dst:
            dst[:] = 1
        with w.create("grown", (None, 5), "i4", compression="deflated") as dst:
            dst.append(np.ones((1000, 5)))
        run.close()


def write(run):
    with run.open("w", compression="deflated") as w:
        w["a"], w["b"] = SMALL, MIDDLE
        run.commit()
        w.add("c", LARGE, compression="stored")
        run.commit()
        w["d"] = SMALL
        run.close()


def save(run):
    npzkit.save(run.path, {"a": SMALL, "b": LARGE, "c": MIDDLE}, durable=run.durable)
    run.done()


def repack(run):
    npzkit.repack(run.path, compression="deflated", durable=run.durable, threads=2)
    run.done()


def make(run):
    os.unlink(run.path)
    with run.open("x") as w:
        w["a"] = SMALL
        run.close()


OPERATIONS = [append, replace, delete, rename, edit, create, write, save, repack, make]


@functools.cache
def prepared():
    stream = io.BytesIO()
    with npzkit.NpzWriter(stream, metadata={"step": 1}, threads=1) as w:
        w["first"], w["large"], w["middle"], w["small"] = SMALL[::-1], LARGE, MIDDLE, SMALL
    return stream.getvalue()


def prepare(path):
    """Make the archive that the operations find."""
    path.write_bytes(prepared())
    return prepared()


def files_in(folder):
    return sorted(os.listdir(folder))


def check_free(path):
    """No writer has the path, and no descriptor is in the way."""
    npzkit.NpzWriter(path, "a").abort()


@functools.cache
def references(operation):
    """Return the file's bytes before the operation and after each of its commits.

    Also the bytes before the repacking that `close` does by itself.
    """
    found = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "a.npz")
        before = prepare(path)
        for repacks in (True, False):
            path.write_bytes(before)
            run = Run(path, durable=False, repacks=repacks)
            operation(run)
            found.append([before, *run.snapshots])
    return found


def attempt(operation, path, faulty, monkeypatch, durable):
    """Run an operation with calls that fail; return the run, the error, and what was warned of."""
    run = Run(path, durable)
    caught = None
    with monkeypatch.context() as patched, warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        patched.setattr("npzkit.files.disk.os", faulty)
        # What an earlier failure left is not deleted amid the calls: an error there reaches nobody.
        gc.disable()
        try:
            operation(run)
        except (OSError, KeyboardInterrupt) as error:
            caught = error
        finally:
            gc.enable()
    return run, caught, warned


def with_errors():
    """Yield each operation, durable or not, with each error; by default with one of them, by turns."""
    errors = itertools.cycle(ERRORS)
    for operation, durable in by_turns(OPERATIONS, [False, True]):
        for number in ERRORS if DEEP else [next(errors)]:
            name = f"{errno.errorcode[number]}-{operation.__name__}-{durable}"
            yield pytest.param(operation, number, durable, id=name)


@pytest.mark.slow
@pytest.mark.parametrize(("operation", "number", "durable"), list(with_errors()))
def test_any_call_that_fails_leaves_the_last_commit(
    operation, number, durable, tmp_path, monkeypatch
):
    """Whichever call fails, the file is byte for byte as at a commit, which the error names."""
    path = tmp_path / "a.npz"
    before = prepare(path)
    repacked, unrepacked = references(operation)
    for count in itertools.count(1):
        path.write_bytes(before)
        descriptors = descriptor_count()
        faulty = FaultyOS(count, number)
        run, caught, warned = attempt(operation, path, faulty, monkeypatch, durable)
        after = path.read_bytes() if path.exists() else None
        told = f"call {count}, {faulty.failed}, then {faulty.later}: {caught!r}"
        # While the error is held, with its traceback and the frames in that.
        assert descriptor_count() <= descriptors, told
        if not faulty.was_hit:
            assert caught is None
            assert after == repacked[-1]
            break
        if faulty.failed in SYNCS:
            assert not {*SYNCS} & {*faulty.later}, told
        # A name that cannot be removed stays; nothing else does.
        left = [name for name in files_in(tmp_path) if name != "a.npz"]
        assert not left or (faulty.failed == "unlink" and operation is make), told
        for name in left:
            os.unlink(tmp_path / name)
        if caught is None:
            # Hard links have a stand-in; a repacking that nobody asked for only warns.
            assert faulty.failed in ("link", "unlink") or len(warned) == 1, told
            assert after == repacked[-1] or (warned and after == unrepacked[-1]), told
            assert all(issubclass(entry.category, RuntimeWarning) for entry in warned)
        else:
            assert not warned, told
            check_error(run, caught, after, faulty, repacked, unrepacked, told)
        if path.exists():
            check_free(path)


def notes_of(error):
    return " ".join(getattr(error, "__notes__", []))


def check_error(run, caught, after, faulty, repacked, unrepacked, told):
    """Compare what an error says with what it left."""
    # That of a rename names the file that the user knows.
    assert faulty.error in (caught, caught.__cause__), told
    assert type(caught) is type(OSError(faulty.error_number, "")), told
    notes = notes_of(caught)
    is_in_place = "in its place" in notes
    if is_in_place:
        # All was written: waiting for the folder failed, or letting go of the file.
        assert faulty.failed in ("open", "fsync", "close"), told
        assert after == unrepacked[run.commits + 1] or after == repacked[run.commits + 1], told
    elif run.path.exists():
        assert after == repacked[run.commits], told
    if faulty.number == 1:
        # The file could not even be opened.
        assert faulty.failed == "open", told
        return
    if run.creates and faulty.failed == "posix_fallocate":
        # Nothing is lost: the writer would have gone on without the array.
        return
    assert "npzkit: " in notes, told
    assert is_in_place or "discarded" in notes, told
    if run.writer is None:
        return
    for use in (
        lambda: run.writer.add("again", SMALL),
        run.writer.commit,
        run.writer.close,
        lambda: run.writer.attrs("small"),
    ):
        with pytest.raises(ClosedArchiveError) as refused:
            use()
        assert os.strerror(faulty.error_number) in str(refused.value), told
    assert run.writer.abort() is None


@pytest.mark.slow
@pytest.mark.parametrize(("operation", "durable"), by_turns(OPERATIONS, [False, True]))
def test_short_writes_are_continued(operation, durable, tmp_path, monkeypatch):
    """Whichever write takes only a part and says so, the file comes out the same."""
    path = tmp_path / "a.npz"
    before = prepare(path)
    repacked, _ = references(operation)
    for count in itertools.count(1):
        path.write_bytes(before)
        faulty = FaultyOS(count, counted=["pwrite", "write"])
        _, caught, warned = attempt(operation, path, faulty, monkeypatch, durable)
        assert (caught, warned) == (None, [])
        assert path.read_bytes() == repacked[-1]
        assert files_in(tmp_path) == ["a.npz"]
        if not faulty.was_hit:
            break


@pytest.mark.parametrize("mode", ["w", "a"])
def test_a_system_that_writes_nothing_and_says_so(mode, tmp_path, monkeypatch):
    """A write of no bytes is an error, and not tried for ever."""
    path = tmp_path / "a.npz"
    before = prepare(path)
    calls = []

    def write_nothing(*args):
        calls.append(args)
        assert len(calls) < 9
        return 0

    for name in ("pwrite", "write"):
        monkeypatch.setattr(os, name, write_nothing, raising=False)
    with pytest.raises(OSError, match="accepts no more"), npzkit.NpzWriter(path, mode) as w:
        w["a"] = LARGE
    monkeypatch.undo()
    assert (path.read_bytes(), files_in(tmp_path)) == (before, ["a.npz"])


@pytest.mark.slow
@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_disk_that_stays_full(operation, tmp_path, monkeypatch):
    """Where no write succeeds any more from some moment on, the last commit is there."""
    path = tmp_path / "a.npz"
    before = prepare(path)
    repacked, unrepacked = references(operation)
    writes = ["pwrite", "posix_fallocate", "write"]
    for count in itertools.count(1):
        path.write_bytes(before)
        faulty = FaultyOS(count, errno.ENOSPC, writes, (*writes, "link"))
        run, caught, warned = attempt(operation, path, faulty, monkeypatch, durable=True)
        assert files_in(tmp_path) == (["a.npz"] if path.exists() else [])
        if not faulty.was_hit:
            break
        if warned:
            assert caught is None
            assert path.read_bytes() == unrepacked[-1]
        else:
            assert caught.errno == errno.ENOSPC
            assert operation is make or path.read_bytes() == repacked[run.commits]
        check_free(path)


@pytest.mark.slow
@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_torn_tail_is_there_first(operation, tmp_path, monkeypatch):
    """Where an append was cut short before, whatever fails leaves the commit before that."""
    path = tmp_path / "a.npz"
    before = prepare(path)
    repacked, _ = references(operation)
    torn = before + before[:5000]
    for count in itertools.count(1):
        path.write_bytes(torn)
        faulty = FaultyOS(count, errno.EIO)
        run, caught, warned = attempt(operation, path, faulty, monkeypatch, durable=True)
        assert {*SYNCS}.isdisjoint(faulty.later) or faulty.failed not in SYNCS
        if not faulty.was_hit:
            assert path.read_bytes() == repacked[-1]
            break
        if caught is not None and path.exists() and "in its place" not in notes_of(caught):
            expected = [repacked[run.commits]] if run.commits else [before, torn]
            assert path.read_bytes() in expected, (count, faulty.failed, faulty.later)
        elif caught is None and not any(entry.category is RuntimeWarning for entry in warned):
            assert path.read_bytes() == repacked[-1]
        for left in files_in(tmp_path):
            os.unlink(tmp_path / left)


def contents(path):
    """Read all there is, without a word about a torn end."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", npzkit.errors.TornArchiveWarning)
        with npzkit.open(path) as npz:
            arrays = {key: array.tobytes() for key, array in npz.load_all().items()}
            return arrays, {key: npz.info(key).attrs for key in npz}, npz.metadata


@pytest.mark.slow
@pytest.mark.parametrize("operation", [append, replace, delete, rename, edit, create, write])
def test_what_cannot_be_cut_off_counts_for_nothing(operation, tmp_path, monkeypatch):
    """Where cutting back fails as well, readers find the last commit, and the error says so."""
    path = tmp_path / "a.npz"
    before = prepare(path)
    repacked, _ = references(operation)
    expected = []
    for data in repacked:
        path.write_bytes(data)
        expected.append(contents(path))
    torn_count = 0
    for count in itertools.count(1):
        path.write_bytes(before)
        faulty = FaultyOS(count, errno.EIO, failing=("ftruncate",))
        descriptors = descriptor_count()
        run, caught, _ = attempt(operation, path, faulty, monkeypatch, durable=True)
        if not faulty.was_hit:
            break
        assert descriptor_count() <= descriptors
        assert [name for name in files_in(tmp_path) if name != "a.npz"] == []
        if caught is None or "in its place" in notes_of(caught):
            continue
        assert contents(path) == expected[run.commits], (count, faulty.failed, faulty.later)
        left = path.stat().st_size - len(repacked[run.commits])
        told = "its bytes are still in the file" in notes_of(caught)
        assert told == ("ftruncate" in faulty.later)
        if left:
            assert told
            torn_count += 1
            with pytest.warns(npzkit.errors.TornArchiveWarning, match=f"{left} bytes"):
                npzkit.open(path).close()
            with pytest.warns(npzkit.errors.TornArchiveWarning), npzkit.NpzWriter(path, "a") as w:
                w["next"] = SMALL
            npzkit.open(path, strict=True).close()
            arrays, attrs, metadata = contents(path)
            assert arrays.pop("next") == SMALL.tobytes()
            assert attrs.pop("next") == {}
            assert (arrays, attrs, metadata) == expected[run.commits]
    assert torn_count


def test_a_disk_that_is_gone(tmp_path, monkeypatch):
    """Where a seal can be neither synced, cut off nor undone, the error does not deny it."""
    path = tmp_path / "a.npz"
    before = prepare(path)
    failing = ("pwrite", "ftruncate", "fdatasync", "fsync")
    # The third sync is the one after the commit.
    for count in (1, 2, 3):
        path.write_bytes(before)
        faulty = FaultyOS(count, errno.EIO, SYNCS, failing)
        _, caught, _ = attempt(replace, path, faulty, monkeypatch, durable=True)
        notes = notes_of(caught)
        is_sealed = contents(path)[1]["middle"] != {}
        assert is_sealed == (count == 3)
        assert ("not known" in notes) == is_sealed
        assert ("readers skip them" in notes) != is_sealed
        path.write_bytes(path.read_bytes()[: None if is_sealed else len(before)])
        check_free(path)


def test_room_that_was_taken_and_not_used(tmp_path, monkeypatch):
    """Room that was found only in part for an array leaves no trace in what is written then."""
    path = tmp_path / "a.npz"

    def take_half(descriptor, offset, size):
        os.ftruncate(descriptor, offset + size // 2)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    for mode in ("w", "a"):
        with npzkit.NpzWriter(path, mode) as w:
            with monkeypatch.context() as patched:
                patched.setattr(os, "posix_fallocate", take_half, raising=False)
                with pytest.raises(OSError, match="No space"):
                    w.create("huge", (1000, 1000), "f8")
            w[mode] = SMALL
        with npzkit.open(path, strict=True) as npz, np.load(path) as theirs:
            assert np.array_equal(npz[mode], theirs[mode])
        assert path.stat().st_size < 10_000


@pytest.mark.skipif(os.name == "nt", reason="Windows replaces no file that is open")
@pytest.mark.parametrize("reopened", [False, True])
def test_a_file_that_others_put_there(reopened, tmp_path):
    """Whoever replaces the file without asking keeps it: nothing is written into it."""
    path = tmp_path / "a.npz"
    npzkit.save(path, {"mine": SMALL})
    np.savez(tmp_path / "theirs.npz", theirs=LARGE)
    theirs = (tmp_path / "theirs.npz").read_bytes()
    descriptors = descriptor_count()
    w = npzkit.NpzWriter(path, "a" if reopened else "w")
    w["a"] = SMALL
    w.commit()
    os.replace(tmp_path / "theirs.npz", path)
    with pytest.raises(npzkit.errors.StaleArchiveError, match="replaced") as caught, w:
        w["b"] = MIDDLE
        w.commit()
    # While the error is held, and with it the frames that opened the file.
    assert descriptor_count() <= descriptors, caught
    assert path.read_bytes() == theirs
    with pytest.raises(ClosedArchiveError, match="replaced"):
        w["c"] = SMALL


def said_in_a_child(work):
    """Run `work` in a forked child; return what it returns, as text, or its traceback."""
    with forked(lambda pipe: os.write(pipe, str(work()).encode())) as (_, pipe):
        return read_rest(pipe).decode()


ROOMS = [0, 700, 300_000, 2_000_000]
LIMITED = [
    (operation, room)
    for number, operation in enumerate([append, replace, rename, create, write, save, repack])
    for room in ROOMS
    if DEEP or room == ROOMS[1 + number % 2]
]
"""Kinds of work, and the bytes that the system still takes: by default one number for each."""


@pytest.mark.slow
@needs_fork
@pytest.mark.parametrize(("operation", "room"), LIMITED)
def test_a_limit_on_the_size_of_files(operation, room, tmp_path):
    """Where the system itself takes no more bytes, the last commit stays and EFBIG is raised."""
    resource = pytest.importorskip("resource")
    path = tmp_path / "a.npz"
    before = prepare(path)
    repacked, _ = references(operation)
    path.write_bytes(before)
    # A new file begins at nothing.
    limit = room + (0 if operation in (write, save, repack) else len(before))

    def work():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        # Compiled modules would be cut off, and fail whoever imports them next.
        sys.dont_write_bytecode = True
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        run = Run(path, durable=False)
        descriptors = descriptor_count()
        try:
            operation(run)
        except OSError as error:
            assert descriptor_count() <= descriptors
            return f"{run.commits} {error.errno} {notes_of(error)}"
        return "done"

    said = said_in_a_child(work)
    assert "Traceback" not in said, said
    assert files_in(tmp_path) == ["a.npz"]
    if said == "done":
        assert path.read_bytes() == repacked[-1]
    else:
        commits, number, *_ = said.split()
        assert int(number) == errno.EFBIG
        assert path.read_bytes() == repacked[int(commits)]
        assert "discarded" in said or operation is create
    assert said != "done" or room > 700
    check_free(path)


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("mode", ["w", "x", "a"])
def test_an_exception_in_the_block(mode, error, tmp_path):
    """An exception in the block comes out as it is; the archive is as at its last commit."""
    path = tmp_path / "a.npz"
    before = prepare(path)
    if mode == "x":
        os.unlink(path)
    for commits in (0, 1):
        raised = error()
        descriptors = descriptor_count()
        with pytest.raises(error) as caught, npzkit.NpzWriter(path, mode) as w:
            if commits:
                w["kept"] = LARGE
                w.commit()
                before = path.read_bytes()
            w["dropped"] = LARGE
            w.metadata["dropped"] = True
            raise raised
        assert caught.value is raised
        assert descriptor_count() <= descriptors
        assert files_in(tmp_path) == (["a.npz"] if commits or mode != "x" else [])
        if path.exists():
            assert path.read_bytes() == before
            check_free(path)


def test_an_exception_where_nothing_can_be_cut_off(tmp_path, monkeypatch):
    """An exception in the block comes out as it is, and says what is left in the file."""
    path = tmp_path / "a.npz"
    before = prepare(path)

    def refuse(*args):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with pytest.raises(ZeroDivisionError) as caught, npzkit.NpzWriter(path, "a") as w:
        w["a"] = LARGE
        monkeypatch.setattr(os, "ftruncate", refuse)
        raise ZeroDivisionError
    assert "its bytes are still in the file" in notes_of(caught.value)
    assert path.read_bytes().startswith(before)
    with pytest.warns(npzkit.errors.TornArchiveWarning):
        check_free(path)


@pytest.mark.slow
@pytest.mark.parametrize("operation", OPERATIONS)
def test_an_interrupt_within_any_call(operation, tmp_path, monkeypatch):
    """SIGINT in any call of the system leaves the last commit or the one it came in, no more."""
    path = tmp_path / "a.npz"
    before = prepare(path)
    repacked, unrepacked = references(operation)
    for count in itertools.count(1):
        path.write_bytes(before)
        descriptors = descriptor_count()
        faulty = FaultyOS(count, interrupts=True)
        run, caught, warned = attempt(operation, path, faulty, monkeypatch, durable=True)
        assert warned == []
        if not faulty.was_hit:
            break
        for descriptor in faulty.lost:
            os.close(descriptor)
        assert descriptor_count() <= descriptors, (count, faulty.failed, faulty.later)
        assert type(caught) is KeyboardInterrupt
        del caught
        if path.exists():
            after = slice(run.commits, run.commits + 2)
            assert path.read_bytes() in repacked[after] + unrepacked[after], (
                count,
                faulty.failed,
                faulty.later,
            )
            check_free(path)
        else:
            assert operation is make
        assert set(files_in(tmp_path)) <= {"a.npz"}, (count, faulty.failed)


def test_an_interrupt_before_the_writer_is_there(tmp_path, monkeypatch):
    """SIGINT while a writer is made leaves no file beside the one that is there."""

    def interrupt(*args, **options):
        raise KeyboardInterrupt

    path = tmp_path / "a.npz"
    before = prepare(path)
    descriptors = descriptor_count()
    monkeypatch.setattr("npzkit.writing.open_for_append.ZipWriter", interrupt)
    for mode in ("w", "a"):
        with pytest.raises(KeyboardInterrupt):
            npzkit.NpzWriter(path, mode)
    monkeypatch.undo()
    check_free(path)
    assert (path.read_bytes(), files_in(tmp_path)) == (before, ["a.npz"])
    assert descriptor_count() <= descriptors


def write_until_interrupted(path, mode, seed, pipe):
    """Write and commit until SIGINT comes; tell each commit's number."""
    draw = random.Random(seed)

    def tell(number):
        os.write(pipe, b"%d\n" % number)

    signal.signal(signal.SIGINT, signal.default_int_handler)
    descriptors = descriptor_count()
    try:
        with npzkit.NpzWriter(path, mode, threads=2, durable=draw.random() < 0.2) as w:
            number = w.metadata.get("step", 0)
            tell(number)
            # Python drops an interrupt that comes in a destructor, or in the collector's callback.
            while number < 300:
                array = LARGE[: draw.choice([10, 10_000, 300_000])] + number
                compression = draw.choice(["stored", "deflated"])
                w.add(draw.choice("abc"), array, compression=compression, overwrite=True)
                if draw.random() < 0.3:
                    w["renamed"] = SMALL
                    w.rename("renamed", "other")
                    del w["other"]
                if draw.random() < 0.5:
                    number += 1
                    w.metadata["step"] = number
                    tell(number)
                    w.commit()
                    tell(number)
    except KeyboardInterrupt:
        pass
    assert descriptor_count() <= descriptors
    # What a program that goes on would leave is seen before this one ends.
    left = [name for name in files_in(os.path.dirname(path)) if name.endswith(".tmp")]
    assert not left, left


@pytest.mark.slow
@needs_fork
@pytest.mark.parametrize("mode", ["w", "x", "a"])
def test_an_interrupt_at_any_moment(mode, tmp_path):
    """SIGINT at any moment in the block leaves the last commit, no other file and no lock."""
    path = tmp_path / "a.npz"
    draw = random.Random(mode)
    interrupted = 0
    for seed in range(INTERRUPT_COUNT):
        if mode != "a" and path.exists():
            path.unlink()
        if mode == "w":
            npzkit.save(path, {"old": SMALL}, metadata={"step": 0})
        work = functools.partial(write_until_interrupted, path, mode, seed)
        with forked(work) as (child, pipe):
            told = os.read(pipe, 100)
            # Every second one is at work by then, however slow the machine.
            while seed % 2 and told.count(b"\n") < 2 and (more := os.read(pipe, 100)):
                told += more
            time.sleep(draw.uniform(0, 0.05))
            os.kill(child, signal.SIGINT)
            told += read_rest(pipe)
        assert b"Traceback" not in told, told.decode()
        assert set(files_in(tmp_path)) <= {"a.npz"}
        # Each number is told before its commit and after it.
        numbers = [int(number) for number in told.split()]
        finished = numbers[-1] - (len(numbers) > 1 and numbers.count(numbers[-1]) == 1)
        if path.exists():
            with npzkit.open(path, strict=True) as npz:
                npz.load_all()
                assert finished <= npz.metadata["step"] <= numbers[-1]
            check_free(path)
        else:
            assert mode != "w"
            assert finished == 0
        interrupted += numbers[-1] > numbers[0]
    assert interrupted > INTERRUPT_COUNT / 4


class LikeWindows(FaultyOS):
    """`os` where no file that is open here can be replaced, renamed or removed."""

    def _call(self, name, real, *args, **options):
        if name in ("replace", "unlink", "link"):
            for path in args:
                assert not is_open(path), f"{name} of {path}, which is open"
        return super()._call(name, real, *args, **options)


def is_open(path):
    """Whether this process has the file at a path open, where that can be told."""
    if not os.path.isdir("/proc/self/fd") or not os.path.exists(path):
        return False
    with contextlib.suppress(FileNotFoundError):
        for descriptor in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):
                if os.path.samestat(os.stat(path), os.fstat(int(descriptor))):
                    return True
    return False


class LocksWithout:
    """`fcntl`, without some of what it has."""

    def __init__(self, *missing):
        self._missing = missing

    def __getattr__(self, name):
        if name in self._missing:
            raise AttributeError(name)
        return getattr(fcntl, name)


def take_away(name, monkeypatch):
    """Take from this system what another one lacks; return whether writers are still locked out."""
    if name == "renames":
        monkeypatch.setattr("npzkit.files.disk.RENAMES_OPEN_FILES", False)
        monkeypatch.setattr("npzkit.files.disk.os", LikeWindows())
    elif name == "locks":
        monkeypatch.setattr("npzkit.files.system_locks.fcntl", LocksWithout("flock"))
        return False
    elif name == "nothing":
        for call in MISSING_CALLS:
            take_away(call, monkeypatch)
    else:
        for call in name.split():
            monkeypatch.delattr(os, call, raising=False)
    return True


MISSING_CALLS = ["posix_fallocate", "pwrite", "preadv", "preadv pread", "fdatasync", "link", "chown"]  # fmt: skip
MISSING = [*MISSING_CALLS, "locks", "renames", "nothing"]


@pytest.mark.slow
@pytest.mark.skipif(fcntl is None, reason="Windows has none of this to begin with")
@pytest.mark.parametrize(("missing", "durable"), by_turns(MISSING, [False, True]))
def test_systems_that_lack_something(missing, durable, tmp_path, monkeypatch):
    """Without calls that some systems lack, the same bytes are written, and by one writer."""
    path = tmp_path / "a.npz"
    before = prepare(path)
    expected = [references(operation)[0][-1] for operation in OPERATIONS]
    is_locked = take_away(missing, monkeypatch)
    descriptors = descriptor_count()
    for operation, data in zip(OPERATIONS, expected, strict=True):
        path.write_bytes(before)
        operation(Run(path, durable))
        assert path.read_bytes() == data, operation
        assert files_in(tmp_path) == ["a.npz"]
        assert descriptor_count() <= descriptors
    for mode in ("w", "a"):
        with npzkit.NpzWriter(path, mode, durable=durable) as w:
            w[mode] = SMALL
            if mode == "w":
                w.commit()
                w["more"] = MIDDLE
            if is_locked:
                check_refused(path)
        check_free(path)
    # What is given up leaves nothing behind either.
    data = path.read_bytes()
    for mode in ("w", "a"):
        with contextlib.suppress(ZeroDivisionError), npzkit.NpzWriter(path, mode) as w:
            w["b"] = LARGE
            raise ZeroDivisionError
        assert (path.read_bytes(), files_in(tmp_path)) == (data, ["a.npz"])
    assert descriptor_count() <= descriptors


def check_refused(path):
    """No other writer gets at a file that has one."""
    for mode in ("w", "a"):
        with pytest.raises(ArchiveLockedError):
            npzkit.NpzWriter(path, mode)
    with pytest.raises(ArchiveLockedError):
        npzkit.repack(path)


@pytest.mark.slow
@needs_fork
@pytest.mark.skipif(fcntl is None, reason="Windows locks in another way")
@pytest.mark.parametrize("missing", ["renames", "nothing"])
def test_other_processes_are_locked_out(missing, tmp_path, monkeypatch):
    """A writer in another process is refused too, until this one is done."""
    path = tmp_path / "a.npz"
    prepare(path)
    assert take_away(missing, monkeypatch)
    with npzkit.NpzWriter(path, "a") as w:
        w["a"] = SMALL
        assert said_in_a_child(lambda: check_refused(path)) == "None"
    assert said_in_a_child(lambda: check_free(path)) == "None"


# -- frames that a debugger holds --------------------------------------------------------


def test_frames_that_are_held_while_small_arrays_are_written(tmp_path, monkeypatch):
    """A debugger that holds a frame of each write, and its views, makes no save or append fail."""
    path = tmp_path / "a.npz"
    held, real = [], npzkit.files.disk.File.patch

    def patch(self, offset, data):
        held.append((sys._getframe(), memoryview(data)))
        return real(self, offset, data)

    monkeypatch.setattr(npzkit.files.disk.File, "patch", patch)
    npzkit.save(path, {"first": SMALL})
    with npzkit.NpzWriter(path, "a", compression="deflated", chunk_size=4096) as w:
        for number in range(3):
            w[f"small{number}"] = SMALL
            w[f"middle{number}"] = MIDDLE
            w.commit()
    monkeypatch.undo()
    assert len(held) > 4
    with npzkit.open(path, strict=True) as npz:
        assert len(npz.load_all()) == 7


@pytest.mark.slow
def test_a_thread_that_holds_all_frames(tmp_path):
    """A profiler that looks at every thread's frames, as dask's does, makes no save fail."""
    path = tmp_path / "a.npz"
    is_over = threading.Event()

    def look():
        held = collections.deque(maxlen=1000)
        while not is_over.is_set():
            frames = list(sys._current_frames().values())
            # Their variables are what a debugger shows.
            held.append([(frame, frame.f_locals) for frame in frames])

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    thread = threading.Thread(target=look)
    thread.start()
    try:
        for _ in range(60):
            npzkit.save(path, {"a": SMALL, "b": MIDDLE}, threads=1)
            with npzkit.NpzWriter(path, "a", threads=1) as w:
                w["c"] = SMALL
    finally:
        is_over.set()
        thread.join()
        sys.setswitchinterval(before)
    with npzkit.open(path, strict=True) as npz:
        assert npz.files == ["a", "b", "c"]
