"""What is shown as .npy and CSV files."""

from __future__ import annotations

import contextlib
import csv
import io

import npzkit
import numpy as np
import pytest
from npzkit.errors import NpyFormatError

pytest.importorskip("bokeh", reason="the page needs Bokeh")

from npzkit.viewer import exports
from npzkit.viewer.archives import field_dtype, open_archives, source_of
from npzkit.viewer.exports import Slice
from npzkit.viewer.shown import Shown, settled


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch):
    monkeypatch.setattr(exports, "_PIECE_SIZE", 100)


def slice_of(x, **shown):
    stream = io.BytesIO()
    npzkit.save(stream, {"x": x})
    archives = open_archives(contextlib.ExitStack(), [stream])
    found = Shown(key="x", **shown)
    found = settled(found, *field_dtype(archives[0].info("x"), found.field))
    return Slice.of(source_of(archives, found, lambda: None), found)


def saved(found):
    data = b"".join(found.npy())
    assert len(data) == found.npy_size()
    return np.load(io.BytesIO(data))


X = np.arange(4 * 5 * 6.0).reshape(4, 5, 6)


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        ({"at": (2,)}, X[2]),
        ({"down": 2, "across": 0, "at": (0, 3), "rows": (1, 4), "columns": (2, 4)},
         X[2:4, 3, 1:4].T),
        ({"view": "line", "across": 1, "at": (1, 0, 5), "columns": (1, 4)}, X[1, 1:4, 5]),
        ({"view": "histogram"}, X),
    ],
)  # fmt: skip
def test_the_npy_file_has_the_slice(shown, expected):
    """All values in sight are saved, turned as they are shown."""
    found = slice_of(X, **shown)
    assert np.array_equal(saved(found), expected)
    assert found.shape == expected.shape


@pytest.mark.parametrize(
    "x", [np.arange(12, dtype=">i2").reshape(3, 4), np.array(3.5), np.zeros((0, 3)),
          np.array(["a", "Ω"]), np.arange(10, dtype="u1").repeat(12).reshape(10, 4, 3),
          np.zeros(3, [("é", "f4"), ("b", "U3")]), np.zeros(3, [("温", "f4")])],
    ids=repr,
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:Stored array in format 3.0")
def test_every_dtype_comes_back(x):
    """The file of a complete array is that array, pictures and records included."""
    found = saved(slice_of(x))
    assert found.dtype == x.dtype
    assert np.array_equal(found, x)


def rows_of(found):
    return list(csv.reader(io.StringIO(b"".join(found.csv()).decode())))


def test_csv_has_every_digit():
    """Each number is written so that reading it gives the same number."""
    x = np.array([[0.1, 1 / 3], [np.nan, -np.inf]], "f4")
    assert rows_of(slice_of(x)) == [["0.1", "0.33333334"], ["nan", "-inf"]]
    assert rows_of(slice_of(np.array([2**63 - 1, 5]))) == [["9223372036854775807"], ["5"]]


def test_csv_of_records_names_their_fields():
    """The first line has the names, and text with commas and quotes comes back."""
    x = np.array([(1, 'a,"b"'), (2, "c\nd")], [("id", "i4"), ("na,me", "U9")])
    assert rows_of(slice_of(x)) == [["id", "na,me"], ["1", 'a,"b"'], ["2", "c\nd"]]


def test_csv_of_text_dates_and_bytes():
    """Values that are not numbers are written as text."""
    assert rows_of(slice_of(np.array(["a", "b"]))) == [["a"], ["b"]]
    assert rows_of(slice_of(np.array(["2020-01-02"], "M8[D]"), view="table")) == [["2020-01-02"]]
    assert rows_of(slice_of(np.array([b"a\xff"]))) == [["a\\xff"]]


def test_csv_shortens_nothing():
    """Long bytes are complete."""
    assert rows_of(slice_of(np.array([b"a" * 200] * 3))) == [["a" * 200]] * 3


def test_csv_of_text_that_is_not_unicode():
    """Forged text ends in npzkit's own error."""
    x = np.array([0x110000, 0x41], "u4").view("U1")
    with pytest.raises(NpyFormatError, match="Unicode"):
        rows_of(slice_of(x))
