"""Arrays that grow by rows."""

from __future__ import annotations

import os

import npzkit
import numpy as np
import pytest
from archives import files, loaded
from npzkit.errors import ClosedArchiveError


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


@pytest.mark.remedy("Write all data in its with block, or add it again with overwrite=True.")
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
    with npzkit.NpzWriter(tmp_path / "a.npz", "a") as w:
        w.add("log", [1.0, 2.0, 3.0], overwrite=True)
        with w.create("all", (None,), "f8") as dst:
            dst.append([1.0, 2.0])
            dst.append([3.0])
    for key in ("log", "all"):
        assert loaded(tmp_path / "a.npz", key).tolist() == [1, 2, 3]
