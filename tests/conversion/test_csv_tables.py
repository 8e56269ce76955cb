"""Text tables that npzkit.extract writes."""

from __future__ import annotations

import csv
import os
from pathlib import Path

import npzkit
import numpy as np
import pytest
from npzkit.errors import ConversionError

from tables import each_row

TABLES = {
    "f8": np.random.default_rng(0).random((7, 3)),
    "f4": np.array([0.1, 1e-30, np.nan, np.inf], "f4"),
    "big_endian": np.array([0.1, 2], ">f8"),
    "i8": np.array([-(2**63), 2**63 - 1]),
    "u8": np.array([0, 2**64 - 1], "u8"),
    "bool": np.array([[True], [False]]),
    "complex": np.array([1 + 2j, complex(0, -np.inf)]),
    "text": np.array(['a,"b"', "ü", "x\ny", ""]),
    "scalar": np.array(3.5),
    "record": np.array([(1, 0.1, "a")], [("i", "i8"), ("x", "f8"), ("s", "U1")]),
}


@each_row("key", TABLES)
def test_tables_come_back(here, key):
    """The values of a table that was written, read by the csv module, are those of the array."""
    array = TABLES[key]
    npzkit.save("a.npz", {"x": array})
    npzkit.extract("a.npz", format="csv")
    with open("x.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file))
    fields = array.dtype.names
    assert rows[:1] == [list(fields)] if fields else True
    expected = array.reshape(-1) if array.ndim < 2 else array
    dtypes = [array.dtype[name] for name in fields] if fields else [array.dtype] * len(rows[0])
    found = [tuple(map(_value, row, dtypes)) for row in rows[bool(fields) :]]
    if fields:
        np.testing.assert_array_equal(np.array(found, array.dtype), expected)
    else:
        np.testing.assert_array_equal(
            np.array(found, array.dtype).reshape(expected.shape), expected
        )


def _value(text, dtype):
    return (
        {"b": text == "True", "U": text}.get(dtype.kind) if dtype.kind in "bU" else dtype.type(text)
    )


@pytest.mark.remedy('Write it with format="npy".')
@pytest.mark.parametrize(
    "array",
    [
        np.zeros((2, 2, 2)),
        np.zeros(2, [("a", "f8", 2)]),
        np.zeros(2, "V3"),
        np.zeros((2, 2), "i4,i4"),
    ],
)
def test_arrays_that_are_no_tables(here, array):
    """More dimensions, and fields that are arrays, are refused before anything is written.

    They become .npy files.
    """
    npzkit.save("a.npz", {"good": [1], "x": array})
    with pytest.raises(ConversionError, match="is not a table") as caught:
        npzkit.extract("a.npz", "out", format="csv")
    assert caught.value.key == "x"
    assert 'format="npy"' in caught.value.remedy
    assert not os.path.exists("out")
    assert list(npzkit.extract("a.npz", "out", format="csv", skip=True).files) == ["good"]
    npzkit.extract("a.npz", "out", ["x"], format="npy")
    found = np.load("out/x.npy")
    assert (found.shape, found.dtype, found.tobytes()) == (
        array.shape, array.dtype, array.tobytes()
    )  # fmt: skip


@pytest.mark.parametrize("array", [np.zeros((2**40, 0)), np.ndarray(2**24, "S0")])
def test_rows_that_are_only_claimed_are_no_table(here, array):
    """A table is not written for as long as a shape without bytes says."""
    npzkit.save("a.npz", {"x": array})
    with pytest.raises(ConversionError, match="is not a table"):
        npzkit.extract("a.npz", format="csv")
    assert os.listdir(here) == ["a.npz"]


def test_masked_values_are_empty_cells(here):
    """Values that the mask hides are in no table, in arrays with and without fields."""
    records = np.ma.array(
        [(1, 2.0), (3, 4.0)], dtype=[("a", "i4"), ("b", "f8")], mask=[(0, 1), (1, 0)]
    )
    arrays = {
        "v": np.ma.array([1.0, 99.0], mask=[0, 1]),
        "r": records,
        "s": np.ma.masked_equal(5, 5),
    }
    npzkit.save("m.npz", arrays, masked="split")
    npzkit.extract("m.npz", ".", list(arrays), format="csv")
    found = {key: Path(f"{key}.csv").read_text() for key in arrays}
    assert found == {"v": '1.0\n""\n', "r": 'a,b\n1,""\n"",4.0\n', "s": '""\n'}


def test_a_field_that_is_no_column_is_named(here):
    """The error says which field is an array."""
    npzkit.save("n.npz", {"t": np.zeros(3, [("n", "i4"), ("xyz", "3f4")])})
    with pytest.raises(ConversionError, match="field 'xyz' is an array"):
        npzkit.extract("n.npz", ".", format="csv")
