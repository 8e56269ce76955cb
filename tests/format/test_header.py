"""Headers: one table of bytes for parsing and formatting, and every way they can be wrong."""

from __future__ import annotations

import io

import numpy as np
import pytest
from forge import header as forged
from hypothesis import given
from hypothesis import strategies as st
from npzkit import format as npy
from npzkit.errors import LimitExceededError, NpyFormatError, NpzkitError
from npzkit.format.header import format_header, header_size, parse_header

from tables import each_row

TABLE = [
    ("<f8", False, (3, 4), (1, 0), 128),
    ("|b1", True, (2,), (2, 0), 128),
    (">c16", False, (), (1, 0), 128),
    ([("x", "<i4"), ("y", "<f8", (2,))], False, (5,), (1, 0), 128),
    ([("größe", "<f8")], False, (0,), (3, 0), 128),
]


@pytest.mark.parametrize(("descr", "order", "shape", "version", "size"), TABLE)
def test_records_go_both_ways(descr, order, shape, version, size):
    """A header is formatted as NumPy's bytes, which are parsed to the same values."""
    fields = {"descr": descr, "fortran_order": order, "shape": shape}
    data = format_header(fields, version)
    array = np.zeros(shape, np.lib.format.descr_to_dtype(descr), "F" if order else "C")
    expected = io.BytesIO()
    np.lib.format.write_array(expected, array, version)
    if not order:  # numpy calls a 1-d array C-ordered
        assert expected.getvalue().startswith(data)
    assert len(data) == header_size(data[:12]) == size
    found = parse_header(data)
    assert (found.version, found.shape, found.fortran_order) == (version, shape, order)
    assert npy.dtype_to_descr(found.dtype) == descr
    assert found.data_offset == size


@given(st.binary(max_size=40), st.sampled_from([(1, 0), (2, 0), (3, 0)]))
def test_any_bytes_give_one_error(body, version):
    """Random bytes after a valid magic string raise NpzkitError and nothing else."""
    stream = io.BytesIO(b"\x93NUMPY" + bytes(version) + body)
    with pytest.raises(NpzkitError):
        npy.read_array(stream)


@given(st.data())
def test_a_flipped_or_cut_header_gives_one_error_or_an_array(data):
    """One changed byte or a truncated end gives NpzkitError or a valid array."""
    good = forged("{'descr': '<f8', 'fortran_order': False, 'shape': (2, 1), }") + bytes(16)
    position = data.draw(st.integers(0, len(good) - 1))
    changed = bytearray(good)
    changed[position] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):
        changed = changed[:position]
    try:
        array = npy.read_array(io.BytesIO(bytes(changed)))
    except NpzkitError:
        return
    assert array.nbytes <= 16 or array.itemsize == 0


def shape_header(shape: str) -> bytes:
    return forged(f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}, }}")


@each_row(
    "shape",
    ["(True,)", "(1.0,)", "(-1,)", "3", "[3]", "(9223372036854775808,)", "('3',)", "(1,) * 65",
     "(" + "1, " * 65 + ")", "(4294967296, 4294967296)", "(9223372036854775807, 0)"],
)  # fmt: skip
def test_bad_shapes(shape):
    """An impossible shape raises NpyFormatError."""
    with pytest.raises(NpyFormatError):
        npy.read_array(io.BytesIO(shape_header(shape)))


@pytest.mark.parametrize("order", ["1", "'True'", "0", "()"])
def test_bad_order(order):
    """fortran_order must be True or False, and nothing similar."""
    text = f"{{'descr': '<f8', 'fortran_order': {order}, 'shape': (), }}"
    with pytest.raises(NpyFormatError, match="fortran_order"):
        npy.read_array(io.BytesIO(forged(text)))


@pytest.mark.parametrize("descr", ["|V0", "|S0", "<U0"])
def test_items_without_bytes_are_limited(descr):
    """A shape cannot claim huge numbers of items without bytes."""
    text = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': (1000000000000000,), }}"
    with pytest.raises(LimitExceededError):
        npy.read_array(io.BytesIO(forged(text)))


def test_a_long_header_is_refused_by_its_length_field():
    """If the length exceeds the limit, nothing after it is read."""
    stream = io.BytesIO(b"\x93NUMPY\x02\x00" + (2**31).to_bytes(4, "little"))
    with pytest.raises(LimitExceededError, match="Header info length"):
        npy.read_array(stream)
    assert stream.tell() == 12


@pytest.mark.parametrize(("version", "raw"), [((3, 0), b"\xff\xfe"), ((3, 0), b"\xc3")])
def test_a_header_in_another_encoding(version, raw):
    """Bytes that are not UTF-8 in version 3.0 raise NpyFormatError."""
    data = forged("{'descr': '<f8', 'x': '@@', }", version).replace(b"@@", raw.ljust(2, b"@"))
    with pytest.raises(NpyFormatError):
        npy.read_array(io.BytesIO(data))


def test_python2_integers_warn_in_version_1_and_fail_in_version_3():
    """The 3L of Python 2 is read with a warning, but not in version 3.0."""
    text = "{'descr': '<f8', 'fortran_order': False, 'shape': (2L,), }"
    with pytest.warns(UserWarning, match="Python 2"):
        assert npy.read_array(io.BytesIO(forged(text) + bytes(16))).shape == (2,)
    with pytest.raises(NpyFormatError):
        npy.read_array(io.BytesIO(forged(text, (3, 0)) + bytes(16)))


def test_renaming_fields_does_not_reach_the_cache():
    """Assigning the field names of a dtype does not change later arrays with the same header."""
    data = format_header({"descr": [("x", "<i4")], "fortran_order": False, "shape": (1,)}) + bytes(
        4
    )
    first = npy.read_array(io.BytesIO(data))
    first.dtype.names = ("renamed",)
    assert npy.read_array(io.BytesIO(data)).dtype.names == ("x",)
    shape, order, dtype = npy.read_array_header_1_0(io.BytesIO(data[8:]))
    assert (shape, order, dtype.names) == ((1,), False, ("x",))


@pytest.mark.filterwarnings("ignore:the header of this array")
def test_the_oldest_version_is_chosen_with_numpys_warnings():
    """Version 2.0 is used for long headers and 3.0 for names outside latin-1, each with a warning."""
    long = {"descr": [("x" * 70_000, "<f8")], "fortran_order": False, "shape": ()}
    with pytest.warns(UserWarning, match=r"format 2\.0"):
        assert format_header(long)[6:8] == b"\x02\x00"
    with pytest.warns(UserWarning, match=r"format 3\.0"):
        assert format_header({**long, "descr": [("漢", "<f8")]})[6:8] == b"\x03\x00"
    with pytest.raises(NpyFormatError):
        format_header(long, (1, 0))
    with pytest.raises(NpyFormatError):
        format_header({**long, "descr": [("漢", "<f8")]}, (1, 0))


@pytest.mark.filterwarnings("ignore:the header of this array")
def test_a_header_just_below_64_kib_stays_in_version_1():
    """The version changes at the same byte as in NumPy."""
    for size in range(65_400, 65_500):
        fields = {"descr": [("x" * size, "<f8")], "fortran_order": False, "shape": ()}
        expected = io.BytesIO()
        try:
            np.lib.format.write_array_header_1_0(expected, fields)
        except ValueError:
            with pytest.raises(NpyFormatError):
                format_header(fields, (1, 0))
        else:
            assert format_header(fields) == expected.getvalue()
