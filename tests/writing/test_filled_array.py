"""Arrays filled piece by piece: in any order, by any process, or by appending rows."""

from __future__ import annotations

import errno
import io
import multiprocessing
import os
import pickle
import shutil
import signal
import subprocess
import sys
import threading
import zipfile

import npzkit
import numpy as np
import pytest
from children import forked, read_rest
from deep import extent
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import basic_indices
from npzkit.errors import (
    ClosedArchiveError,
    LimitExceededError,
    PickleRefusedError,
    UnsafeNameError,
    UnsupportedError,
)
from npzkit.files.path_sink import PathSink

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")


def loaded(path, key):
    """The array as numpy reads it, once zipfile has compared all CRCs."""
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
    with np.load(path) as theirs, npzkit.open(path) as ours:
        assert np.array_equal(theirs[key], ours[key])
        return theirs[key]


def files(path):
    with npzkit.open(path) as npz:
        return npz.files


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


@pytest.mark.parametrize("compression", ["stored", "deflated"])
def test_rows_are_appended_without_knowing_their_number(tmp_path, compression):
    """With None as the first dimension, the shape is what was appended."""
    path = tmp_path / "a.npz"
    rows = np.random.default_rng(0).integers(0, 9, (50_000, 7))
    with npzkit.NpzWriter(path, compression=compression) as w:
        w["before"] = np.arange(3)
        with w.create("log", (None, 7), "i8", attrs={"unit": "s"}) as dst:
            for start in (0, 1, 2, 20_000):
                stop = {0: 1, 1: 2, 2: 20_000, 20_000: 50_000}[start]
                dst.append(rows[start:stop] if start != 1 else rows[1])
                assert dst.shape == (stop, 7)
        w["after"] = np.arange(4)
    assert np.array_equal(loaded(path, "log"), rows)
    with npzkit.open(path) as npz:
        assert npz.files == ["before", "log", "after"]
        info = npz.info("log")
        assert info.attrs == {"unit": "s"}
        assert info.seekable
        assert info.aligned == (compression == "stored")
        assert np.array_equal(npz.lazy("log")[40_000:40_010], rows[40_000:40_010])


def test_no_rows_at_all(tmp_path):
    """An array that was never appended to is empty, and its archive is sound."""
    path = tmp_path / "a.npz"
    with npzkit.NpzWriter(path) as w:
        for compression in ("stored", "deflated"):
            w.create(compression, (None, 3), "f4", compression=compression).close()
        w.create("line", None, "f4").close()
    assert loaded(path, "stored").shape == loaded(path, "deflated").shape == (0, 3)
    assert loaded(path, "line").shape == (0,)


def test_a_known_number_of_rows_must_come(tmp_path):
    """Too many rows are refused, too few discard the archive; the old file stays."""
    path = tmp_path / "a.npz"
    npzkit.save(path, {"old": np.arange(3)})
    with npzkit.NpzWriter(path) as w, w.create("x", (4, 2), "i4", compression="deflated") as dst:
        dst.append(np.ones((3, 2)))
        with pytest.raises(ValueError, match="4 rows: 3 were appended, 2 more"):
            dst.append(np.ones((2, 2)))
        dst.append([5, 6])
    assert loaded(path, "x").tolist() == [[1, 1]] * 3 + [[5, 6]]
    with (
        pytest.raises(ValueError, match="created with 4 rows and has 1"),
        npzkit.NpzWriter(path) as w,
        w.create("y", 4, "i4", compression="deflated") as dst,
    ):
        dst.append([1])
    assert files(path) == ["x"]
    assert os.listdir(tmp_path) == ["a.npz"]


def test_appending_to_a_stored_array_of_known_shape(tmp_path):
    """A stored array takes rows one behind the other as well."""
    path = tmp_path / "a.npz"
    with npzkit.NpzWriter(path) as w, w.create("x", (5, 2), "i4") as dst:
        dst.append([1, 2])
        dst.append([[3, 4], [5, 6]])
        with pytest.raises(ValueError, match="do not fit"):
            dst.append(np.zeros((3, 2)))
        with pytest.raises(ValueError, match=r"shape \(3,\) cannot be appended"):
            dst.append([1, 2, 3])
    assert loaded(path, "x").tolist() == [[1, 2], [3, 4], [5, 6], [0, 0], [0, 0]]


def test_other_arrays_are_written_meanwhile(tmp_path):
    """While a stored array is filled others can be added; keys stay in order of creation."""
    path = tmp_path / "a.npz"
    with npzkit.NpzWriter(path) as w:
        big, other = w.create("big", 1000, "f8"), w.create("other", (2, 3), "i1")
        w["x"] = np.arange(5)
        other[:] = 3
        big[:] = 2
        big.close()
    assert files(path) == ["big", "other", "x"]
    assert loaded(path, "big").sum() == 2000
    assert loaded(path, "other").sum() == 18


def test_nothing_is_written_behind_an_array_that_grows(tmp_path):
    """The writer says which array has to be closed first; closing the writer closes it."""
    with npzkit.NpzWriter(tmp_path / "a.npz") as w:
        dst = w.create("log", (None,), "f8")
        dst.append([1.0])
        for write in (
            lambda: w.add("x", np.ones(3)),
            lambda: w.create("y", 3, "f8"),
            lambda: w.create("z", None, "f8"),
        ):
            with pytest.raises(ValueError, match="'log' is still growing"):
                write()
        dst.append([2.0])
    assert loaded(tmp_path / "a.npz", "log").tolist() == [1, 2]
    with pytest.raises(ClosedArchiveError):
        dst.append([3.0])


def test_an_exception_discards_the_archive(tmp_path):
    """Half an array never replaces the old file, and the writer says what became of it."""
    path = tmp_path / "a.npz"
    npzkit.save(path, {"old": np.arange(3)})
    for shape in (5, None):
        w = npzkit.NpzWriter(path)
        with pytest.raises(KeyError), w.create("x", shape, "f8") as dst:
            dst.append([1.0])
            raise KeyError
        with pytest.raises(ClosedArchiveError):
            w["y"] = 1
        with pytest.raises(ClosedArchiveError):
            dst.append([1.0])
        with pytest.raises(ClosedArchiveError, match="given up"):
            w.close()
    assert files(path) == ["old"]
    assert os.listdir(tmp_path) == ["a.npz"]


@pytest.mark.filterwarnings("ignore:Stored array in format 2.0")
@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("x", (2, None), "f8"), TypeError),
        (("x", (-1,), "f8"), ValueError),
        (("x", (2, -1), "f8"), ValueError),
        (("x", (2.0,), "f8"), TypeError),
        (("x", (), "f8", "deflated"), ValueError),
        (("x", (3, 4), "f8", "deflated", True), ValueError),
        (("x", (None, 4), "f8", None, True), ValueError),
        (
            ("x", None, [(f"field{number}", "f8") for number in range(4000)], "deflated"),
            LimitExceededError,
        ),
        (("x", 3, "O"), PickleRefusedError),
        (("a.npy", 3, "f8"), UnsafeNameError),
        (("taken", 3, "f8"), UnsafeNameError),
        (("x", 3, "no dtype"), TypeError),
        (("x", 3, [("a", "O")]), PickleRefusedError),
    ],
)
def test_what_cannot_be_created_changes_nothing(tmp_path, arguments, error):
    """A bad key, shape or dtype is refused before a byte is written."""
    path = tmp_path / "a.npz"
    with npzkit.NpzWriter(path) as w:
        w["taken"] = np.arange(2)
        with pytest.raises(error):
            compression, fortran_order = (*arguments, None, False)[3:5]
            w.create(*arguments[:3], compression=compression, fortran_order=fortran_order)
        w["more"] = np.arange(2)
    assert files(path) == ["taken", "more"]


def test_a_stream_that_cannot_seek_takes_arrays_of_known_size():
    """Where nothing can be patched, arrays that need it are refused with the remedy."""
    written = []

    class Stream:
        def write(self, data):
            written.append(bytes(data))
            return len(data)

    with npzkit.NpzWriter(Stream()) as w:
        for shape in (5, None):
            with pytest.raises(UnsupportedError, match="can be read and changed") as caught:
                w.create("x", shape, "f8")
            assert caught.value.remedy
        with w.create("y", 3, "f8", compression="deflated") as dst:
            dst.append([1, 2, 3])
    assert np.load(io.BytesIO(b"".join(written)))["y"].tolist() == [1, 2, 3]


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


def fill(dst, worker):
    dst[worker * 10 : (worker + 1) * 10] = worker
    dst[worker * 10, ::2] = -worker
    dst.close()


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
    assert loaded(tmp_path / "a.npz", "x")[2:5, 0].tolist() == [5, 10, 10]


def test_dtypes_numpy_cannot_name_are_created(tmp_path):
    """bfloat16 comes back as bfloat16 from an array that was filled or appended."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    path = tmp_path / "a.npz"
    with npzkit.NpzWriter(path) as w:
        for compression in ("stored", "deflated"):
            with w.create(compression, 3, ml_dtypes.bfloat16, compression=compression) as dst:
                dst.append(np.array([1, 2, 3], ml_dtypes.bfloat16))
    with npzkit.open(path) as npz:
        assert npz["stored"].dtype == npz["deflated"].dtype == ml_dtypes.bfloat16
        assert (
            npz["stored"].astype(int).tolist() == npz["deflated"].astype(int).tolist() == [1, 2, 3]
        )


MEASURE = """
import resource, sys
import numpy as np
import npzkit
path, kind, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
part = np.random.default_rng(0).random((1000, 128))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
with npzkit.NpzWriter(path) as w:
    if kind == "stored":
        with w.create("x", (count, 128), "f8") as dst:
            for start in range(0, count, 1000):
                dst[start : start + 1000] = part
            dst[:, 5] = 3
    else:
        with w.create("x", (None, 128), "f8", compression="deflated", level=1) as dst:
            for _ in range(0, count, 1000):
                dst.append(part)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss counts kilobytes on Linux alone")
@pytest.mark.parametrize("kind", ["stored", "deflated"])
def test_memory_stays_small(tmp_path, kind):
    """120 MiB, or 250, are created within 60 MiB of memory, a column of them included."""
    count = extent(125_000, 256_000)
    command = [sys.executable, "-c", MEASURE, tmp_path / "a.npz", kind, str(count)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert int(done.stdout) < 60


def test_attributes_that_are_too_long_are_refused(tmp_path):
    """What `add` refuses, `create` refuses, before anything is written."""
    with npzkit.NpzWriter(tmp_path / "a.npz") as w:
        with pytest.raises(LimitExceededError):
            w.create("x", 3, "f8", attrs={"a": "x" * 70_000})
        with pytest.raises(ValueError, match="is reserved"):
            w.create("x", 3, "f8", attrs={"npzkit.dtype": "x"})
        w["x"] = 1


def test_threads_append_to_one_array(tmp_path):
    """No thread's rows take the place of another's, and the shape counts them all."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with npzkit.NpzWriter(tmp_path / "a.npz") as w:
            for key, shape in (("known", (400, 2)), ("unknown", (None, 2))):
                with w.create(key, shape, "i8") as dst:

                    def work(start, dst=dst):
                        for row in range(start, start + 100):
                            dst.append([row, row])

                    threads = [threading.Thread(target=work, args=(100 * n,)) for n in range(4)]
                    for thread in threads:
                        thread.start()
                    for thread in threads:
                        thread.join()
    finally:
        sys.setswitchinterval(interval)
    for key in ("known", "unknown"):
        assert sorted(loaded(tmp_path / "a.npz", key)[:, 1].tolist()) == list(range(400))


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
    expected[:] = expected[::-1].copy()
    expected[1:] = expected[:-1].copy()
    expected[:, :2] = expected[::-1, :2].copy()
    assert np.array_equal(loaded(tmp_path / "a.npz", "a"), expected)


@pytest.mark.parametrize("dtype", ["S0", "U0", "V0"])
def test_items_of_no_bytes_leave_their_neighbour_alone(tmp_path, dtype):
    """Whatever is assigned to them or appended, nothing is written."""
    with npzkit.NpzWriter(tmp_path / "a.npz") as w:
        dst = w.create("a", (4000,), dtype)
        w["b"] = np.arange(3)
        dst[:] = b"abc"
        dst.close()
        with w.create("c", (None,), dtype) as dst:
            dst.append([b"abc"] * 3)
    assert loaded(tmp_path / "a.npz", "b").tolist() == [0, 1, 2]
    with npzkit.open(tmp_path / "a.npz") as npz:
        assert npz["a"].shape == (4000,)
        assert npz["c"].shape == (3,)


def test_an_item_that_is_an_array_adds_its_dimensions(tmp_path):
    """A dtype with a shape is taken as np.zeros takes it."""
    with npzkit.NpzWriter(tmp_path / "a.npz") as w:
        with w.create("a", (2,), ("i4", (3,))) as dst:
            dst[:] = [[1, 2, 3], [4, 5, 6]]
        with w.create("b", None, ("i4", (3,))) as dst:
            dst.append([1, 2, 3])
    assert loaded(tmp_path / "a.npz", "a").tolist() == [[1, 2, 3], [4, 5, 6]]
    assert loaded(tmp_path / "a.npz", "b").tolist() == [[1, 2, 3]]


def test_leading_dimensions_of_one_are_dropped(tmp_path):
    """A value may have more dimensions than its place, as in numpy."""
    with npzkit.NpzWriter(tmp_path / "a.npz") as w, w.create("a", (2, 3), "i4") as dst:
        dst[:] = np.arange(6).reshape(1, 1, 2, 3)
    assert loaded(tmp_path / "a.npz", "a").tolist() == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize("compression", ["stored", "deflated"])
@pytest.mark.parametrize("shape", [(1 << 62,), (1 << 70,), (None, 1 << 62), (1 << 64, 0)])
def test_a_shape_that_is_too_big_changes_nothing(tmp_path, shape, compression):
    """It is refused before a byte is written, and the writer stays usable."""
    with npzkit.NpzWriter(tmp_path / "a.npz") as w:
        with pytest.raises(ValueError, match="too big"):
            w.create("a", shape, "f8", compression=compression)
        w["b"] = np.arange(3)
    assert files(tmp_path / "a.npz") == ["b"]


@pytest.mark.parametrize("compression", ["stored", "deflated"])
def test_no_mask_is_lost_in_rows(tmp_path, compression):
    """A masked array is refused, as by add."""
    masked = np.ma.array([1.0, 2.0], mask=[0, 1])
    with (
        npzkit.NpzWriter(tmp_path / "a.npz", compression=compression) as w,
        w.create("x", (None,), "f8") as dst,
        pytest.raises(UnsupportedError),
    ):
        dst.append(masked)


@pytest.mark.parametrize("compression", ["stored", "deflated"])
def test_dtypes_without_bytes_and_of_several_values(tmp_path, compression):
    """S0 writes nothing, and a subarray's dimensions become the array's."""
    path = tmp_path / "a.npz"
    with npzkit.NpzWriter(path, compression=compression) as w:
        with w.create("empty", 3, "S0") as dst:
            dst.append(["", "", ""])
        with w.create("pairs", 3, ("f4", (2,))) as dst:
            dst.append(np.ones((3, 2)))
    assert loaded(path, "empty").shape == (3,)
    assert loaded(path, "pairs").tolist() == [[1.0, 1.0]] * 3


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


def test_plain_values_are_taken_as_numpy_takes_them(tmp_path):
    """Numbers that do not fit are refused, and tuples fill the fields of a structure."""
    with npzkit.NpzWriter(tmp_path / "a.npz") as w:
        with w.create("small", 4, "u1") as dst:
            with pytest.raises(OverflowError):
                dst[0:2] = 300
            dst[0:2] = 200
        with w.create("records", 2, "i4,f8") as dst:
            dst[0:2] = (1, 2.5)
    assert loaded(tmp_path / "a.npz", "small").tolist() == [200, 200, 0, 0]
    assert loaded(tmp_path / "a.npz", "records").tolist() == [(1, 2.5)] * 2


def test_filling_never_flushes_what_others_write(tmp_path):
    """A row that is filled in the middle of another thread's write does not disturb it."""

    class Interrupted(bytearray):
        def __iadd__(self, data):
            self.extend(data)
            sink.patch(96, b"1234")
            return self

    sink = PathSink(str(tmp_path / "a"), exclusive=False, durable=False)
    sink.skip(100)
    sink._buffer = Interrupted()
    sink.write(b"abc")
    sink.commit(b"last")
    sink.close()
    assert (tmp_path / "a").read_bytes() == bytes(96) + b"1234" + b"abclast"


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_child_forked_while_rows_are_written(tmp_path, monkeypatch):
    """A child that appends to its parent's array, or fails, gets an error and does not wait."""
    writing, done = threading.Event(), threading.Event()
    pwrite = os.pwrite

    def slow(*args):
        writing.set()
        done.wait(30)
        return pwrite(*args)

    w = npzkit.NpzWriter(tmp_path / "a.npz")
    dst = w.create("x", (None,), "f8")
    monkeypatch.setattr(os, "pwrite", slow)
    thread = threading.Thread(target=dst.append, args=(np.ones(500_000),))
    thread.start()
    writing.wait(30)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            signal.alarm(20)  # a child that hangs is killed
            with pytest.raises(ClosedArchiveError, match="forked child"):
                dst.append([1.0])
            with pytest.raises(KeyError), dst:
                raise KeyError
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    done.set()
    thread.join()
    w.close()
    with npzkit.open(tmp_path / "a.npz") as npz:
        assert npz["x"].sum() == 500_000


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
            with pytest.raises(TypeError, match=r"dst\.append"):
                dst[0] = 3


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


@pytest.mark.parametrize("size", range(0, 4096, 64))
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


@pytest.mark.parametrize("mode", ["w", "a"])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("rows", [1, 250])
@pytest.mark.parametrize("lacking", [False, True])
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
