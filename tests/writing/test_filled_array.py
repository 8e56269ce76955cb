"""Arrays filled in any order, by any process."""

from __future__ import annotations

import contextlib
import errno
import io
import multiprocessing
import os
import pickle
import shutil
import subprocess
import sys
import threading

import npzkit
import numpy as np
import pytest
from archives import files, loaded
from children import forked, read_rest
from deep import amount
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import basic_indices
from npzkit.errors import ClosedArchiveError, UnsupportedError
from npzkit.files.disk import RENAMES_OPEN_FILES
from npzkit.files.new_file import new_file
from npzkit.files.path_sink import PathSink
from systems import replaces_open_files

from tables import each_row

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")


@pytest.mark.parametrize("fortran_order", [False, True])
def test_parts_come_in_any_order(tmp_path, fortran_order):
    """Rows, columns, steps, lists and masks are written as numpy assigns them; the rest is 0."""
    path = tmp_path / "a.npz"
    expected = np.zeros((40, 30), "f4")
    mask = np.arange(40) % 7 == 0
    parts = [
        (slice(30, 40), 1.5),
        (slice(0, 10), np.arange(300).reshape(10, 30)),
        ((slice(None), 3), np.arange(40)),
        (12, np.arange(30)),
        (-1, 8),
        ((slice(5, 30, 4), slice(None, None, -2)), 9),
        ([1, 3, 1], [[1], [2], [3]]),
        (mask, -1),
        ((20, 20), 6.25),
        ((Ellipsis, 29), 7),
        (slice(15, 15), np.empty((0, 30))),
    ]
    with (
        npzkit.NpzWriter(path) as w,
        w.create("big", expected.shape, "f4", fortran_order=fortran_order) as dst,
    ):
        for index, value in parts:
            dst[index] = value
            expected[index] = value
    found = loaded(path, "big")
    assert np.array_equal(found, expected)
    assert found.flags.f_contiguous == fortran_order


@given(data=st.data())
def test_an_assignment_is_numpys(tmp_path_factory, data):
    """Any basic index writes what the same assignment to an array in memory does."""
    shape = tuple(data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=3)))
    expected = np.zeros(shape, "i8")
    path = tmp_path_factory.mktemp("created") / "a.npz"
    with npzkit.NpzWriter(path) as w, w.create("x", shape, "i8") as dst:
        for number in range(1, 4):
            index = data.draw(basic_indices(shape))
            value = np.full(expected[index].shape, number)
            expected[index] = value
            dst[index] = value
    assert np.array_equal(loaded(path, "x"), expected)


def test_large_assignments_are_cut_into_blocks(tmp_path, monkeypatch):
    """A value or a column longer than a block arrives whole."""
    monkeypatch.setattr("npzkit.writing.created_array.BLOCK_SIZE", 1000)
    expected = np.zeros((100, 20))
    with npzkit.NpzWriter(tmp_path / "a.npz") as w, w.create("x", (100, 20), "f8") as dst:
        for index, value in [
            (slice(0, 90), np.arange(1800.0).reshape(20, 90).T),
            ((slice(2, 80), slice(3, 5)), np.arange(156).reshape(78, 2)),
            ((slice(90, 1, -3), 7), np.arange(30)),
            ((slice(None, None, -1), 8), np.arange(100)),
            (slice(None, None, -1), np.arange(2000.0).reshape(100, 20)),
            (slice(30, 20), 5),
            (slice(50, 60), np.arange(20, dtype="i2")),
        ]:
            dst[index] = value
            expected[index] = value
    assert np.array_equal(loaded(tmp_path / "a.npz", "x"), expected)


@pytest.mark.remedy("Write the archive to a path.")
def test_a_file_object_takes_whole_rows(tmp_path):
    """In memory or in a caller's file rows come in any order; a column needs a path."""
    for file in (io.BytesIO(), open(tmp_path / "a.npz", "w+b")):
        with npzkit.NpzWriter(file) as w, w.create("x", (4, 2), "i4") as dst:
            dst[2:] = 7
            dst[0:1] = [[1, 2]]
            with pytest.raises(UnsupportedError, match="whole rows"):
                dst[:, 1] = 3
            with pytest.raises(UnsupportedError, match="whole rows"):
                dst.memmap()
            with pytest.raises(TypeError, match="other processes"):
                pickle.dumps(dst)
        file.seek(0)
        assert npzkit.open(file)["x"].tolist() == [[1, 2], [0, 0], [7, 7], [7, 7]]
        file.close()
    path = tmp_path / "b.npz"
    with npzkit.NpzWriter(path) as w, w.create("x", (4, 2), "i4") as dst:
        dst[:, 1] = 3
        dst.memmap()[0, 0] = 4
        assert pickle.loads(pickle.dumps(dst))[0].tolist() == [4, 3]
    assert loaded(path, "x").tolist() == [[4, 3], [0, 3], [0, 3], [0, 3]]


def fill(dst, worker):
    dst[worker * 10 : (worker + 1) * 10] = worker
    dst[worker * 10, ::2] = -worker
    dst.close()


@pytest.mark.slow
def test_processes_fill_one_array(tmp_path):
    """Workers that were handed the array write to it; the creator seals it for all."""
    path = tmp_path / "a.npz"
    expected = np.repeat(np.arange(4.0), 10)[:, None] * np.ones((1, 3))
    expected[::10, ::2] = -np.arange(4)[:, None]
    with npzkit.NpzWriter(path) as w, w.create("x", (40, 3), "f8") as dst:
        for worker, method in enumerate(("spawn", *(["fork"] * 3 if os.name == "posix" else []))):
            child = multiprocessing.get_context(method).Process(target=fill, args=(dst, worker))
            child.start()
            child.join()
            assert child.exitcode == 0
        for worker in range(4 if os.name != "posix" else 0):
            fill(pickle.loads(pickle.dumps(dst)), worker)
    assert np.array_equal(loaded(path, "x"), expected)


def test_a_writable_map_of_what_is_created(tmp_path):
    """memmap() is the array itself, for code that wants one."""
    with npzkit.NpzWriter(tmp_path / "a.npz") as w, w.create("x", (40, 3), "f8") as dst:
        mapped = dst.memmap()
        mapped += 5
        np.multiply(mapped[3:5], 2, out=mapped[3:5])
        del mapped
    assert loaded(tmp_path / "a.npz", "x")[2:5, 0].tolist() == [5, 10, 10]


def test_a_value_may_be_a_part_of_the_arrays_own_map(tmp_path, monkeypatch):
    """What is read from the map is what was there before the assignment."""
    monkeypatch.setattr("npzkit.writing.created_array.BLOCK_SIZE", 64)
    expected = np.arange(300).reshape(100, 3)
    with npzkit.NpzWriter(tmp_path / "a.npz") as w, w.create("a", (100, 3), "i8") as dst:
        mapped = dst.memmap()
        mapped[:] = expected
        dst[:] = mapped[::-1]
        dst[1:] = mapped[:-1]
        dst[:, :2] = mapped[::-1, :2]
        del mapped
    expected[:] = expected[::-1].copy()
    expected[1:] = expected[:-1].copy()
    expected[:, :2] = expected[::-1, :2].copy()
    assert np.array_equal(loaded(tmp_path / "a.npz", "a"), expected)


def test_leading_dimensions_of_one_are_dropped(tmp_path):
    """A value may have more dimensions than its place, as in numpy."""
    with npzkit.NpzWriter(tmp_path / "a.npz") as w, w.create("a", (2, 3), "i4") as dst:
        dst[:] = np.arange(6).reshape(1, 1, 2, 3)
    assert loaded(tmp_path / "a.npz", "a").tolist() == [[0, 1, 2], [3, 4, 5]]


def test_a_file_object_is_filled_while_arrays_are_added():
    """Threads that fill one array and add others do not write at each other's places."""
    stream = io.BytesIO()
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with npzkit.NpzWriter(stream) as w:
            dst = w.create("x", (2000, 100), "i4")

            def fill():
                for row in range(2000):
                    dst[row : row + 1] = row

            filling = threading.Thread(target=fill)
            filling.start()
            for number in range(200):
                w.add(f"a{number}", np.full(50, number))
            filling.join()
    finally:
        sys.setswitchinterval(interval)
    arrays = npzkit.open(stream).load_all()
    assert (arrays.pop("x") == np.arange(2000)[:, None]).all()
    assert all((array == number).all() for number, array in enumerate(arrays.values()))


def test_filling_never_flushes_what_others_write(tmp_path):
    """A row that is filled in the middle of another thread's write does not disturb it."""

    class Interrupted(bytearray):
        def __iadd__(self, data):
            self.extend(data)
            sink.patch(96, b"1234")
            return self

    sink = PathSink(new_file(str(tmp_path / "a")))
    sink.skip(100)
    sink._buffer = Interrupted()
    sink.write(b"abc")
    sink.commit(b"last")
    sink.close()
    assert (tmp_path / "a").read_bytes() == bytes(96) + b"1234" + b"abclast"


@pytest.mark.remedy("Write the rows in order. A stored array of known shape can be filled")
def test_a_created_array_is_read_back(tmp_path):
    """A stored one gives parts of itself; one that is appended to says that it does not."""
    with npzkit.NpzWriter(tmp_path / "a.npz") as w:
        with w.create("x", (4, 2), "i4") as dst:
            dst[1] = [5, 6]
            dst[1] += 1
            assert dst[1].tolist() == [6, 7]
            assert dst[1, 1] == 7
            assert np.asarray(dst, "f8").tolist() == [[0, 0], [6, 7], [0, 0], [0, 0]]
            assert len(dst) == 4
            with pytest.raises(ValueError, match="memmap"):
                np.asarray(dst, copy=False)
        with w.create("log", (None,), "i4") as dst:
            dst.append([1, 2])
            assert len(dst) == 2
            with pytest.raises(TypeError, match="cannot be read"):
                np.asarray(dst)
            with pytest.raises(UnsupportedError, match="written in order"):
                dst[0] = 3
            dst.append([3])
    assert loaded(tmp_path / "a.npz", "log").tolist() == [1, 2, 3]
    assert loaded(tmp_path / "a.npz", "x").tolist() == [[0, 0], [6, 7], [0, 0], [0, 0]]


def test_no_room_loses_nothing(tmp_path, monkeypatch):
    """Where the system cannot give the room, the error comes first and the writer goes on."""

    def full(*args):
        raise OSError(28, "No space left on device")

    with npzkit.NpzWriter(tmp_path / "a.npz") as w:
        w["before"] = np.arange(3)
        with monkeypatch.context() as patched, pytest.raises(OSError, match="No space"):
            patched.setattr(os, "posix_fallocate", full, raising=False)
            w.create("huge", 10_000_000, "f8")
        w["after"] = np.arange(3)
    assert files(tmp_path / "a.npz") == ["before", "after"]


@pytest.mark.slow
@each_row("size", range(0, 4096, 64))
def test_empty_arrays_are_filled_wherever_they_lie(tmp_path, size):
    """An array of no items takes assignments and maps, also at the end of a page and the file."""
    path = tmp_path / "a.npz"
    with npzkit.NpzWriter(path) as w:
        w["first"] = np.zeros(size, "u1")
        for key, is_fortran in (("c", False), ("f", True)):
            with w.create(key, (0, 3), "S3", fortran_order=is_fortran) as dst:
                dst[...] = np.zeros((0, 3), "S3")
                dst[:, 1:] = b"x"
                assert dst.memmap().shape == dst[...].shape == (0, 3)
    with npzkit.open(path) as npz:
        assert npz["c"].shape == npz["f"].shape == (0, 3)


def fill_by_map(kind, dst):
    """Fill a created array through a map of the file."""
    if kind == "map":
        dst.memmap()[...] = 1
    else:
        for column in range(dst.shape[1]):
            dst[:, column] = 1


def full(*args):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@each_row("mode", ["w", "a"])
@each_row("order", ["C", "F"])
@each_row("rows", [1, 250])
@each_row("lacking", [False, True])
def test_a_full_disk_is_noticed_before_a_map_is_made(
    tmp_path, monkeypatch, lacking, rows, order, mode
):
    """Where a small array has no room, creating it raises, and the archive is as it was committed."""
    path = tmp_path / "a.npz"
    npzkit.save(path, {"before": np.arange(3)})
    before = path.read_bytes()
    with monkeypatch.context() as patched:
        if lacking:
            patched.delattr(os, "posix_fallocate", raising=False)
            patched.setattr("npzkit.files.disk.File.patch", full)
        else:
            patched.setattr(os, "posix_fallocate", full, raising=False)
        with pytest.raises(OSError, match="No space"), npzkit.NpzWriter(path, mode) as w:
            w.create("x", (rows, 500), "f4", fortran_order=order == "F")
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["a.npz"]


@pytest.mark.parametrize("lacking", [False, True])
@pytest.mark.parametrize("shape", [(3,), (60, 500), (700, 500)])
def test_a_created_array_has_its_room_at_once(tmp_path, monkeypatch, shape, lacking):
    """Nothing of an array is a hole in the file when it can be mapped, whatever the system lacks."""
    path = tmp_path / "a.npz"
    if lacking:
        monkeypatch.delattr(os, "posix_fallocate", raising=False)
    with npzkit.NpzWriter(path) as w:
        w["before"] = np.arange(5)
        with w.create("x", shape, "f8") as dst:
            found = os.stat(next(tmp_path.glob("*.tmp")))
            if not hasattr(found, "st_blocks"):
                pytest.skip("this system does not say what room a file has")
            assert found.st_blocks * 512 >= np.prod(shape) * 8
            dst.memmap()[...] = 7
        w["after"] = np.arange(5)
    assert (loaded(path, "x") == 7).all()
    assert files(path) == ["before", "x", "after"]


@pytest.fixture
def full_disk(tmp_path):
    """A folder on a file system of its own, with an archive and 60,000 bytes of room."""
    folder = tmp_path / "small"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", folder]
    if not hasattr(os, "geteuid") or os.geteuid() or not shutil.which("mount"):
        pytest.skip("only root mounts a file system")
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("no file system can be mounted here")
    try:
        npzkit.save(folder / "a.npz", {"before": np.arange(3)})
        found = os.statvfs(folder)
        (folder / "fill").write_bytes(bytes(found.f_bavail * found.f_frsize - 60_000))
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


@pytest.mark.slow
@needs_fork
@pytest.mark.parametrize("kind", ["columns", "map", "fortran"])
@pytest.mark.parametrize("mode", ["w", "a"])
def test_a_disk_that_is_really_full(full_disk, mode, kind):
    """On a full file system a map that would kill the process is not made."""
    path = full_disk / "a.npz"

    def work(pipe):
        error = None
        try:
            with (
                npzkit.NpzWriter(path, mode) as w,
                w.create("x", (100, 500), "f4", fortran_order=kind == "fortran") as dst,
            ):
                fill_by_map(kind, dst)
        except OSError as caught:
            error = caught.errno
        os.write(pipe, f"errno {error}".encode())

    with forked(work) as (_, pipe):
        assert read_rest(pipe).decode() == f"errno {errno.ENOSPC}"
    assert files(path) == ["before"]
    assert sorted(os.listdir(full_disk)) == ["a.npz", "fill"]


def test_an_empty_tuple_is_all(tmp_path):
    """dst[()] is the complete array, as in NumPy, also of one without dimensions."""
    path = tmp_path / "a.npz"
    with npzkit.NpzWriter(path) as w:
        with w.create("x", (3,), "i8") as dst:
            dst[()] = [1, 2, 3]
        with w.create("scalar", (), "i8") as dst:
            dst[()] = 5
    with npzkit.open(path) as npz:
        assert npz["x"].tolist() == [1, 2, 3]
        assert npz["scalar"] == 5


def test_lists_of_indices_are_assigned_at_once(tmp_path, monkeypatch):
    """Two lists around a slice move its axis, so that rows of the value are not rows of the array."""
    monkeypatch.setattr("npzkit.writing.created_array.BLOCK_SIZE", 1000)
    expected = np.zeros((90, 3, 2, 3))
    index = slice(0, 90), [0, 2], slice(None), [1, 2]
    value = np.arange(360.0).reshape(2, 90, 2)
    with npzkit.NpzWriter(tmp_path / "a.npz") as w, w.create("x", expected.shape, "f8") as dst:
        dst[index] = value
    expected[index] = value
    assert np.array_equal(loaded(tmp_path / "a.npz", "x"), expected)


# -- processes and threads beside the one that creates -------------------------------------

LARGE = np.arange(200_000.0)
"""Written to the file at once, not gathered."""


def begun(path, **options):
    """Return a writer with a committed array, and an array that is being created."""
    w = npzkit.NpzWriter(path, auto_repack=False, **options)
    w["first"] = np.arange(3)
    dst = w.create("table", (1000, 10), "f8")
    return w, dst


def late_worker(dst, change, early=True):
    """Return what a forked worker meets that writes after `change` is called, and before."""

    def work(pipe):
        if early:
            dst[900:] = 9
        os.write(pipe, b"written")
        assert os.read(begin, 1) == b"!"
        for part, value in ((slice(0, 500), 7), ((slice(None), 3), 8)):
            try:
                dst[part] = value
            except ClosedArchiveError as error:
                os.write(pipe, b" late" if "sealed or discarded" in str(error) else b" other")
            else:
                os.write(pipe, b" written")

    begin, end = os.pipe()
    with forked(work) as (_, pipe):
        assert os.read(pipe, 7) == b"written"
        change()
        os.write(end, b"!")
        said = read_rest(pipe).decode()
    os.close(begin)
    os.close(end)
    return said.split()


@pytest.mark.slow
@needs_fork
@each_row("mode", ["w", "a"])
@each_row("ending", ["commit", "more", "close"])
@each_row("early", [False, True])
def test_a_forked_worker_cuts_nothing_off(tmp_path, mode, ending, early):
    """Whatever the parent commits meanwhile, a worker changes the bytes of its array alone."""
    path = tmp_path / "a.npz"
    npzkit.save(path, {"old": np.arange(4)})
    w, dst = begun(path, mode=mode)
    w.commit()

    def change():
        w["second"] = LARGE
        w["small"] = np.arange(5)
        if ending == "close":
            w.close()
            return
        w.commit()
        if ending == "more":
            w["third"] = LARGE + 1

    said = late_worker(dst, change, early)
    assert said == (["late"] * 2 if ending == "close" else ["written"] * 2)
    if ending != "close":
        w.close()
    assert npzkit.verify(path).ok
    with npzkit.open(path, strict=True) as npz:
        assert np.array_equal(npz["second"], LARGE)
        assert npz["small"].tolist() == list(range(5))
        assert npz["first"].tolist() == [0, 1, 2]
        assert ("old" in npz) == (mode == "a")
        assert ("third" in npz) == (ending == "more")
        expected = np.zeros((1000, 10))
        expected[900:] = 9 if early else 0
        if ending != "close":
            expected[:500], expected[:, 3] = 7, 8
        assert np.array_equal(npz["table"], expected)


@pytest.mark.slow
@needs_fork
@each_row("mode", ["w", "a"])
@each_row("ending", ["abort", "again", "another", "sealed"])
def test_a_late_worker_writes_nothing(tmp_path, mode, ending):
    """If the array was sealed or discarded, a worker gets an error, whatever lies in its place."""
    path = tmp_path / "a.npz"
    npzkit.save(path, {"old": np.arange(4)})
    w, dst = begun(path, mode=mode)
    others = []

    def change():
        if ending == "sealed":
            dst.close()
            return
        with pytest.raises(ZeroDivisionError), dst:
            raise ZeroDivisionError
        if ending != "abort":
            others.extend(
                begun(path, mode=mode) if ending == "again" else [npzkit.NpzWriter(path, "a")]
            )
            others[0]["x"] = LARGE

    assert late_worker(dst, change) == ["late", "late"]
    with others[0] if others else w if ending == "sealed" else contextlib.nullcontext():
        pass
    assert npzkit.verify(path).ok
    with npzkit.open(path, strict=True) as npz:
        if others:
            assert np.array_equal(npz["x"], LARGE)
        if "table" in npz:
            assert npz["table"].sum() == (9 * 1000 if ending == "sealed" else 0)


@pytest.mark.remedy("Let that process wait until all others have written their parts.")
@pytest.mark.parametrize(
    "ending", ["abort", pytest.param("sealed", marks=replaces_open_files), "again"]
)
def test_a_worker_that_was_handed_the_array_comes_late(tmp_path, ending):
    """A handle that another process gets by pickle is proven as well, before and after a commit."""
    path = tmp_path / "a.npz"
    npzkit.save(path, {"old": np.arange(4)})
    w, dst = begun(path, mode="w" if ending == "sealed" else "a")
    early = pickle.dumps(dst)
    worker = pickle.loads(early)
    worker[:10] = 1
    if ending == "sealed":
        w.commit()
        # The file has its name now, and the old handle finds it.
        pickle.loads(early)[10:20] = 2
        unused = pickle.loads(pickle.dumps(dst))
        dst.close()
    else:
        unused = pickle.loads(pickle.dumps(dst))
        w.abort()
    if ending == "again":
        w = npzkit.NpzWriter(path, "a")
        again = w.create("table", (1000, 10), "f8")
        w["more"] = LARGE
    before = path.read_bytes()
    for late in (worker, unused, pickle.loads(early)):
        for part in (slice(0, 5), (slice(None), 2)):
            with pytest.raises(ClosedArchiveError, match="sealed or discarded"):
                late[part] = 5
        with pytest.raises(ClosedArchiveError):
            late.memmap()
    assert path.read_bytes() == before
    if ending == "again":
        again[:] = 1
    w.close()
    if ending != "abort":
        assert loaded(path, "table").sum() == (100 + 200 if ending == "sealed" else 10_000)


def test_a_worker_of_an_array_that_a_commit_left_out(tmp_path):
    """If the array is discarded within a committed archive, nothing that counts is in its room."""
    path = tmp_path / "a.npz"
    w, dst = begun(path)
    w["second"] = LARGE
    w.commit()
    worker = pickle.loads(pickle.dumps(dst))
    w.abort()
    worker[:] = 5
    with npzkit.NpzWriter(path, "a", auto_repack=False) as w:
        worker[:] = 6
        w["table"] = np.arange(3)
    worker[:] = 7
    assert npzkit.verify(path).ok
    with npzkit.open(path, strict=True) as npz:
        assert np.array_equal(npz["second"], LARGE)
        assert npz["table"].tolist() == [0, 1, 2]


@pytest.mark.slow
@needs_fork
@pytest.mark.parametrize("kind", ["file", "bytes"])
def test_a_child_fills_no_array_in_a_file_object(tmp_path, kind):
    """A file object's position is its parent's too: a child's write is refused, and so is the rest."""
    path = tmp_path / "a.npz"
    with open(path, "w+b") if kind == "file" else io.BytesIO() as file:
        w = npzkit.NpzWriter(file)
        dst = w.create("table", (1000, 10), "f8")
        w["second"] = LARGE
        w.commit()

        def work(pipe):
            try:
                dst[0:1000] = 7
            except UnsupportedError as error:
                os.write(pipe, b"a path" if "to a path" in str(error) else b"?")
            w.abort()

        with forked(work) as (_, pipe):
            w["third"] = LARGE + 1
            assert read_rest(pipe) == b"a path"
        dst[:] = 1
        w.close()
        with npzkit.open(file, strict=True) as npz:
            assert npz.verify().ok
            assert np.array_equal(npz["third"], LARGE + 1)
            assert npz["table"].sum() == 10_000


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["path", "bytes"])
def test_a_thread_fills_while_another_commits(tmp_path, kind):
    """Arrays that are committed while a thread fills another one keep their values."""
    file = tmp_path / "a.npz" if kind == "path" else io.BytesIO()
    stop, errors = threading.Event(), []

    def fill_all():
        try:
            while not stop.is_set():
                for row in range(0, 1000, 50):
                    dst[row : row + 50] = row
                # This maps the file, which Windows does not complete meanwhile.
                if kind == "path" and RENAMES_OPEN_FILES:
                    dst[:, 2] = 5
        except BaseException as error:
            errors.append(error)

    with npzkit.NpzWriter(file) as w:
        dst = w.create("table", (1000, 10), "f8")
        thread = threading.Thread(target=fill_all)
        thread.start()
        try:
            for number in range(amount(30, 1000)):
                w[f"n{number}"] = LARGE[: 20_000 * (number % 3)] + number
                w.commit()
        finally:
            stop.set()
            thread.join()
    assert not errors
    with npzkit.open(file, strict=True) as npz:
        assert npz.verify().ok
        for number in range(amount(30, 1000)):
            assert np.array_equal(npz[f"n{number}"], LARGE[: 20_000 * (number % 3)] + number)
