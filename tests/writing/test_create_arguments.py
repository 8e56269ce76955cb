"""What can be created, and what is refused before a byte is written."""

from __future__ import annotations

import io

import npzkit
import numpy as np
import pytest
from archives import files, loaded
from npzkit.errors import LimitExceededError, PickleRefusedError, UnsafeNameError, UnsupportedError

from tables import each_row


@pytest.mark.filterwarnings("ignore:Stored array in format 2.0")
@each_row(
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
@pytest.mark.filterwarnings("ignore:the header of this array")
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


@pytest.mark.remedy("Write the archive to a path.")
def test_a_stream_that_cannot_seek_takes_arrays_of_known_size(tmp_path):
    """Where nothing can be patched, arrays that need it are refused with the remedy."""
    written = []

    class Stream:
        def write(self, data):
            written.append(bytes(data))
            return len(data)

    with npzkit.NpzWriter(Stream()) as w:
        for shape, reason in (((), "must have rows"), (None, "number of rows must be known")):
            with pytest.raises(UnsupportedError, match=reason) as caught:
                w.create("x", shape, "f8")
            assert caught.value.remedy
        with w.create("y", 3, "f8", compression="deflated") as dst:
            dst.append([1, 2, 3])
    assert np.load(io.BytesIO(b"".join(written)))["y"].tolist() == [1, 2, 3]
    with npzkit.NpzWriter(tmp_path / "a.npz") as w:
        for key, shape in (("number", ()), ("rows", None)):
            with w.create(key, shape, "f8") as dst:
                dst.append([5]) if shape is None else dst.__setitem__((), 5)
    with np.load(tmp_path / "a.npz") as npz:
        assert (npz["number"].tolist(), npz["rows"].tolist()) == (5, [5])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Stored array in format 2.0")
@pytest.mark.remedy("Give the number of rows, or compression='stored'.")
@pytest.mark.filterwarnings("ignore:the header of this array")
def test_a_long_header_and_an_unknown_number_of_rows(tmp_path):
    """The header is written again at the end, which a compressed one cannot be if it is long."""
    dtype = [(f"field{number}", "f8") for number in range(4000)]
    rows = np.ones(2, dtype)
    with npzkit.NpzWriter(tmp_path / "a.npz") as w:
        with pytest.raises(LimitExceededError, match="too long to be completed later"):
            w.create("x", None, dtype, compression="deflated")
        with w.create("x", 2, dtype, compression="deflated") as dst:
            dst.append(rows)
        with w.create("y", None, dtype, compression="stored") as dst:
            dst.append(rows)
    with npzkit.open(tmp_path / "a.npz", limits=npzkit.Limits(header_size=None)) as npz:
        assert [npz[key].tobytes() == rows.tobytes() for key in "xy"] == [True, True]


def test_attributes_that_are_too_long_are_refused(tmp_path):
    """What `add` refuses, `create` refuses, before anything is written."""
    with npzkit.NpzWriter(tmp_path / "a.npz") as w:
        with pytest.raises(LimitExceededError):
            w.create("x", 3, "f8", attrs={"a": "x" * 70_000})
        with pytest.raises(ValueError, match="is reserved"):
            w.create("x", 3, "f8", attrs={"npzkit.dtype": "x"})
        w["x"] = 1


def test_an_item_that_is_an_array_adds_its_dimensions(tmp_path):
    """A dtype with a shape is taken as np.zeros takes it."""
    with npzkit.NpzWriter(tmp_path / "a.npz") as w:
        with w.create("a", (2,), ("i4", (3,))) as dst:
            dst[:] = [[1, 2, 3], [4, 5, 6]]
        with w.create("b", None, ("i4", (3,))) as dst:
            dst.append([1, 2, 3])
    assert loaded(tmp_path / "a.npz", "a").tolist() == [[1, 2, 3], [4, 5, 6]]
    assert loaded(tmp_path / "a.npz", "b").tolist() == [[1, 2, 3]]


@each_row("compression", ["stored", "deflated"])
@each_row("shape", [(1 << 62,), (1 << 70,), (None, 1 << 62), (1 << 64, 0)])
def test_a_shape_that_is_too_big_changes_nothing(tmp_path, shape, compression):
    """It is refused before a byte is written, and the writer stays usable."""
    with npzkit.NpzWriter(tmp_path / "a.npz") as w:
        with pytest.raises(ValueError, match="too big"):
            w.create("a", shape, "f8", compression=compression)
        w["b"] = np.arange(3)
    assert files(tmp_path / "a.npz") == ["b"]
