"""Text tables: what npzkit.pack reads, and npzkit.extract writes."""

from __future__ import annotations

import os

import npzkit
import numpy as np
import pytest
from npzkit.errors import ConversionError


def read(path, key):
    with npzkit.open(path) as npz:
        return npz[key]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1,2\n3,4\n", np.array([[1, 2], [3, 4]])),
        ("1\n2\n", np.array([1, 2])),
        ("1.5,2\n,nan\n", np.array([[1.5, 2], [np.nan, np.nan]])),
        ("18446744073709551615\n1\n", np.array([2**64 - 1, 1], "u8")),
        ("100000000000000000000\n", np.array([1e20])),
        ("(1+2j)\n-3\n", np.array([1 + 2j, -3])),
        ("True\nfalse\n", np.array([True, False])),
        ("a,b\nc,de\n", np.array([["a", "b"], ["c", "de"]])),
        ("# made by hand\n\n 1, 2\n", np.array([[1, 2]])),
        ("\ufeff1,2\r\n", np.array([[1, 2]])),
        (
            'id,"the name",w\n1,"a, ""b""",\n-2,"#c",0.5\n',
            np.array(
                [(1, 'a, "b"', np.nan), (-2, "#c", 0.5)],
                [("id", "i8"), ("the name", "U6"), ("w", "f8")],
            ),
        ),
        ("1,a\n2,b\n", np.array([(1, "a"), (2, "b")], [("f0", "i8"), ("f1", "U1")])),
    ],
)
def test_tables(here, text, expected):
    """Columns get the narrowest dtype that holds them; a header makes them fields."""
    (here / "t.csv").write_bytes(text.encode())
    npzkit.pack("a.npz", "t.csv")
    found = read("a.npz", "t")
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
    assert repr(found) == repr(expected)


def test_tables_of_other_delimiters(here):
    """Tabs, white space, and whatever `delimiter` says; `header` says what the first row is."""
    (here / "a.tsv").write_text("x\ty z\n1\t2\n")
    (here / "b.txt").write_text("1   2\n 3 4\n")
    npzkit.pack("1.npz", ["a.tsv", "b.txt"])
    with npzkit.open("1.npz") as npz:
        assert npz["a"].dtype.names == ("x", "y z")
        assert npz["b"].tolist() == [[1, 2], [3, 4]]
    (here / "c.csv").write_text("1;2\n")
    npzkit.pack("2.npz", "c.csv", delimiter=";")
    assert read("2.npz", "c").tolist() == [[1, 2]]
    (here / "d.csv").write_text("a,b\nc,d\n")
    npzkit.pack("3.npz", "d.csv", header=True)
    assert read("3.npz", "d").dtype.names == ("a", "b")


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"", "no rows"),
        (b"# only\n", "no rows"),
        (b"1,2\n3\n", "line 2 has 1 columns"),
        (b"a,a\n1,2\n", "two columns are called 'a'"),
        (b'"a\n', "unexpected end"),
        (b"\xff\xfe\n", "UTF-8"),
        (b"a\x1b[2J,a\x1b[2J\n1,2\n", "two columns"),
    ],
)
def test_tables_that_are_none(here, content, what):
    """What is no table is an error in a line, which the file's text does not control."""
    (here / "t.csv").write_bytes(content)
    with pytest.raises(ConversionError) as caught:
        npzkit.pack("a.npz", "t.csv")
    assert caught.value.path == "t.csv"
    assert what in str(caught.value)
    assert "\x1b" not in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1
    assert os.listdir() == ["t.csv"]


TABLES = {
    "f8": np.random.default_rng(0).random((7, 3)),
    "f4": np.array([0.1, 1e-30, np.nan, np.inf], "f4"),
    "big_endian": np.array([0.1, 2], ">f8"),
    "i8": np.array([-(2**63), 2**63 - 1]),
    "u8": np.array([0, 2**64 - 1], "u8"),
    "bool": np.array([[True], [False]]),
    "complex": np.array([1 + 2j, complex(0, -np.inf)]),
    "text": np.array(['a,"b"', "ü", "x\ny"]),
    "scalar": np.array(3.5),
    "record": np.array([(1, 0.1, "a")], [("i", "i8"), ("x", "f8"), ("s", "U1")]),
}


@pytest.mark.parametrize("key", TABLES)
def test_tables_come_back(here, key):
    """An array written as a table is read back with the same values."""
    array = TABLES[key]
    npzkit.save("a.npz", {"x": array})
    npzkit.extract("a.npz", format="csv")
    npzkit.pack("b.npz", "x.csv")
    found = read("b.npz", "x")
    expected = array.reshape(-1) if array.ndim != 2 or array.shape[1] == 1 else array
    np.testing.assert_array_equal(found.astype(array.dtype), expected)


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
    """More dimensions, and fields that are arrays, are refused before anything is written."""
    npzkit.save("a.npz", {"good": [1], "x": array})
    with pytest.raises(ConversionError, match="is not a table") as caught:
        npzkit.extract("a.npz", "out", format="csv", skip=True)
    assert caught.value.key == "x"
    assert 'format="npy"' in caught.value.remedy
    assert not os.path.exists("out")


@pytest.mark.parametrize("array", [np.zeros((2**40, 0)), np.ndarray(2**24, "S0")])
def test_rows_that_are_only_claimed_are_no_table(here, array):
    """A table is not written for as long as a shape without bytes says."""
    npzkit.save("a.npz", {"x": array})
    with pytest.raises(ConversionError, match="is not a table"):
        npzkit.extract("a.npz", format="csv")
    assert os.listdir(here) == ["a.npz"]
