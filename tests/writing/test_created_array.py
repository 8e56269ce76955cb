"""What filled and growing arrays share: appended rows, casts, sealing and giving up."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import npzkit
import numpy as np
import pytest
from archives import files, loaded
from deep import extent
from npzkit.errors import ClosedArchiveError, NotAnArrayError, UnsupportedError
from peak import PEAK, needs_peak

from tables import each_row


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


MEASURE = f"""{PEAK}
import sys
import numpy as np
import npzkit
path, kind, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
part = np.random.default_rng(0).random((1000, 128))
before = peak()
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
print((peak() - before) >> 10)
"""


@needs_peak
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["stored", "deflated"])
def test_memory_stays_small(tmp_path, kind):
    """70 MiB, or 250, are created within 60 MiB of memory, a column of them included."""
    count = extent(72_000, 256_000)
    command = [sys.executable, "-c", MEASURE, tmp_path / "a.npz", kind, str(count)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert int(done.stdout) < 60


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


@pytest.mark.remedy(" can represent, or choose another dtype.")
@each_row(("values", "dtype"), [([np.nan], "f4"), (["a"], "U1"), (np.nan, "f4")])
def test_values_that_a_dtype_lacks(tmp_path, values, dtype):
    """The error names the dtype, not the lengths of a list; with another dtype they are written."""
    for given in ("i4", dtype):
        with npzkit.NpzWriter(tmp_path / "a.npz") as w, w.create("x", 1, given) as dst:
            if given == "i4":
                with pytest.raises(NotAnArrayError, match="values that int32 can represent"):
                    dst[0:1] = values
                with pytest.raises(NotAnArrayError, match="Items of different lengths"):
                    dst[0:1] = [[1], [1, 2]]
                dst[0:1] = 1
            else:
                dst[0:1] = values
    with npzkit.open(tmp_path / "a.npz") as npz:
        assert npz["x"].tolist() == [pytest.approx(np.ravel(values)[0], nan_ok=True)]


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


@pytest.mark.slow
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
