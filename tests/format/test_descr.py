"""Dtypes to literals and back."""

from __future__ import annotations

import contextlib
import io

import npzkit
import numpy as np
import pytest
from hypothesis import given
from hypothesis.extra import numpy as hnp
from npzkit.errors import NpyFormatError
from npzkit.format import descr_to_dtype, drop_metadata, dtype_to_descr

from tables import each_row

DTYPES = hnp.scalar_dtypes() | hnp.nested_dtypes()

PADDED = np.dtype(
    {"names": ["a", "b"], "formats": ["i1", "f8"], "offsets": [3, 16], "itemsize": 32}
)
TITLED = np.dtype({"names": ["a"], "formats": ["i4"], "titles": ["A title"]})
EXAMPLES = [
    np.dtype("f8"), np.dtype(">u2"), np.dtype("S0"), np.dtype("U7"), np.dtype("V5"), np.dtype("M8[25s]"),
    np.dtype("m8"), np.dtype("?"), np.dtype("O"), np.dtype([]), PADDED, TITLED,
    np.dtype([("x", PADDED, (2, 3)), ("y", [("z", TITLED)])]), np.dtype([("größe", "f4")]),
    np.dtype({"names": [], "formats": [], "itemsize": 8}),
    np.dtype([((0, "a"), "i2"), (((1, "x"), "b"), "i2"), ((True, "c"), "i2")]),
]  # fmt: skip


@each_row("dtype", EXAMPLES)
def test_examples_survive(dtype):
    """Padding, titles, subarrays and empty structures are restored."""
    assert descr_to_dtype(dtype_to_descr(dtype)) == dtype


@given(DTYPES)
def test_any_dtype_survives_as_in_numpy(dtype):
    """The descr is NumPy's, and gives the same dtype as in NumPy."""
    if dtype.subdtype is not None:
        dtype = np.dtype([("f", dtype)])
    descr = dtype_to_descr(dtype)
    assert descr == np.lib.format.dtype_to_descr(dtype)
    assert descr_to_dtype(descr) == np.lib.format.descr_to_dtype(descr)


@each_row("name", ["float64", "int32", "bool", "datetime64[ns]", "complex128", "f8", "?", "|?"])
def test_plain_names_are_accepted(name):
    """A descr may be the plain name of a dtype."""
    assert descr_to_dtype(name) == np.dtype(name)


@pytest.mark.parametrize("descr", ["a5", "|a5", "<a3", "a"])
def test_the_old_name_of_bytes(descr):
    """NumPy's old name for S is read without its warning."""
    assert descr_to_dtype(descr) == np.dtype(descr.replace("a", "S"))
    assert descr_to_dtype([("f", descr)]) == np.dtype([("f", descr.replace("a", "S"))])


@each_row(
    "descr",
    [
        1, None, {}, b"<f8", "", "nonsense", "<f3", "i4,f8", "(2,)i4", "<f8 ", "<f8;", "f8" * 99,
        ("<f8",), ("<f8", -1), ("<f8", True), ("<f8", (1, "2")), ("<f8", "<i8"), ("<f8", (2**62, 9)),
        ("<f8", (2,), 1),
        [("a",)], [("a", "<f8", 1, 2)], ["a"], [["a", "<f8"]], [(1, "<f8")], [("a", "<f8"), ("a", "<f8")],
        [(("t", "u", "v"), "<f8")], [(([1], "a"), "<f8")], [((1, 2), "<f8")], [("a", "<f8", (-1,))], [("a", [])] * 2,
        "T", [("a", "T")], "<a", "|a", "<V99999999999", "<U4611686018427387904", "<M8[parsec]", "<m8[1/0s]",
    ],
)  # fmt: skip
def test_bad_descriptions_give_one_error(descr):
    """Every exception that NumPy raises for a bad description becomes NpyFormatError."""
    with pytest.raises(NpyFormatError):
        descr_to_dtype(descr)


def test_a_description_without_an_end():
    """A description that is nested too deeply is an error that can be printed."""
    descr = "<f8"
    for _ in range(5000):
        descr = [("a", descr)]
    with pytest.raises(NpyFormatError) as caught:
        descr_to_dtype(descr)
    assert "nested too deeply" in str(caught.value)


def test_elements_of_two_gigabytes():
    """Elements whose size overflows a C int are refused, or have the size that is claimed."""
    with contextlib.suppress(NpyFormatError):
        assert descr_to_dtype("<U536870912").itemsize == 1 << 31


def test_metadata_is_dropped_with_a_warning():
    """Metadata at any depth is dropped with a warning."""
    inner = np.dtype("i4", metadata={"unit": "m"})
    dtype = np.dtype([("a", [("b", inner, (2,))])])
    with pytest.warns(UserWarning, match="metadata"):
        descr = dtype_to_descr(dtype)
    assert drop_metadata(descr_to_dtype(descr)) is not None
    assert drop_metadata(dtype)["a"]["b"].subdtype[0].metadata is None


@pytest.mark.filterwarnings("ignore:.*metadata")
@pytest.mark.remedy("Save the array again with npzkit or a newer NumPy: they leave it out.")
def test_the_metadata_of_a_dtype_are_named():
    """An old NumPy wrote those of h5py's dtypes; the error does not blame this one's age."""
    with pytest.raises(NpyFormatError, match="such as h5py's") as caught:
        descr_to_dtype([("s", ("|S5", {"h5py_encoding": "ascii"}))])
    assert "Save the array again" in caught.value.remedy
    dtype = np.dtype([("s", np.dtype("S5", metadata={"h5py_encoding": "ascii"}))])
    is_newer = "ascii" not in repr(np.lib.format.dtype_to_descr(dtype))
    for save in (npzkit.savez, np.savez) if is_newer else (npzkit.savez,):
        stream = io.BytesIO()
        save(stream, x=np.array([(b"a",)], dtype))
        assert npzkit.open(stream)["x"]["s"].tolist() == [b"a"]
