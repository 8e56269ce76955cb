"""Arrays of `create` that are written part by part where nothing can be read back."""

from __future__ import annotations

import io

import npzkit
import numpy as np
import pytest
from npzkit.errors import UnsupportedError

from tables import each_row

WHOLE = np.arange(60, dtype="f4").reshape(10, 3, 2)


class Stream:
    """A stream that can only be written."""

    def __init__(self):
        self.data = io.BytesIO()

    def write(self, data):
        return self.data.write(data)


PLACES = {
    "stream": Stream,
    "url": lambda: "memory://parts-in-order/a.npz",
    "file": io.BytesIO,
}
IN_ORDER = [
    ("stream", {}), ("url", {}), ("stream", {"compression": "deflated"}),
    ("url", {"compression": "deflated"}), ("file", {"compression": "deflated"}),
]  # fmt: skip
"""A stored array in a file is filled in any order."""


def read(place):
    """Return the arrays that were written to a place, as np.load reads them."""
    if isinstance(place, str):
        with npzkit.open(place) as npz:
            return npz.load_all()
    stream = place.data if isinstance(place, Stream) else place
    stream.seek(0)
    with np.load(stream) as npz:
        return dict(npz)


@pytest.mark.parametrize(("kind", "options"), IN_ORDER)
def test_parts_in_order_are_as_appended(kind, options):
    """`dst[i:j] = rows`, from 0 on and without gaps, writes what append writes."""
    place = PLACES[kind]()
    with npzkit.NpzWriter(place) as w:
        with w.create("x", WHOLE.shape, "f4", **options) as dst:
            dst[:4] = WHOLE[:4]
            dst[4:4] = WHOLE[:0]
            dst[4:6, ...] = WHOLE[4:6].tolist()
            dst.append(WHOLE[6:8])
            dst[np.int64(8)] = WHOLE[8]
            dst[9:, :, :] = WHOLE[9][None, None]
        w["after"] = WHOLE
        with w.create("ones", (3, 2), "i2", **options) as dst:
            dst[...] = 1
    arrays = read(place)
    np.testing.assert_array_equal(arrays["x"], WHOLE)
    np.testing.assert_array_equal(arrays["after"], WHOLE)
    np.testing.assert_array_equal(arrays["ones"], np.ones((3, 2), "i2"))


def test_the_file_is_the_same_as_by_append():
    """The bytes do not depend on whether rows are assigned or appended."""
    streams = [Stream(), Stream()]
    for stream, assigns in zip(streams, (True, False), strict=True):
        with npzkit.NpzWriter(stream) as w, w.create("x", WHOLE.shape, "f4") as dst:
            for start in range(0, 10, 5):
                if assigns:
                    dst[start : start + 5] = WHOLE[start : start + 5]
                else:
                    dst.append(WHOLE[start : start + 5])
    assert streams[0].data.getvalue() == streams[1].data.getvalue()


@pytest.mark.parametrize("kind", ["url", "file"])
def test_rows_of_an_unknown_number_are_assigned_too(kind):
    """An array of unknown length grows by the next rows, whether or not their end is given."""
    place = PLACES[kind]()
    with npzkit.NpzWriter(place) as w, w.create("x", (None, 3, 2), "f4") as dst:
        dst[0:4] = WHOLE[:4]
        dst[4:] = WHOLE[4:9]
        dst[9] = WHOLE[9]
        assert dst.shape == (10, 3, 2)
    np.testing.assert_array_equal(read(place)["x"], WHOLE)


WRONG = [
    slice(2, 4), slice(5, 8), slice(None), slice(4, 9, 2), slice(7, 3, -1), (slice(4, 6), 0), 5, -1,
    True, [4, 5], (Ellipsis, 0), np.arange(10) > 3, "name", (),
]  # fmt: skip


@pytest.mark.slow
@each_row("index", WRONG)
@each_row(("kind", "options"), IN_ORDER)
def test_a_part_out_of_order_is_refused_and_nothing_written(kind, options, index):
    """Another part than the next rows is an error that says what to do; the next rows can come."""
    place = PLACES[kind]()
    with npzkit.NpzWriter(place) as w, w.create("x", WHOLE.shape, "f4", **options) as dst:
        dst[:4] = WHOLE[:4]
        with pytest.raises(UnsupportedError, match="written in order") as caught:
            dst[index] = 1
        assert "rows from 4 on" in str(caught.value)
        assert "to a path" in caught.value.remedy
        dst[4:] = WHOLE[4:]
    np.testing.assert_array_equal(read(place)["x"], WHOLE)


def test_values_that_do_not_fit_are_refused_and_nothing_written():
    """Rows of another shape, or too many, raise ValueError; the next rows can come."""
    stream = Stream()
    with npzkit.NpzWriter(stream) as w, w.create("x", WHOLE.shape, "f4") as dst:
        for index, value in ((slice(0, 4), WHOLE[:3]), (slice(0, 12), np.zeros((12, 3, 2)))):
            with pytest.raises(ValueError, match="broadcast"):
                dst[index] = value
        dst[:] = WHOLE
    np.testing.assert_array_equal(read(stream)["x"], WHOLE)


def test_missing_rows_are_an_error():
    """An array whose rows were not all written is not sealed, because nothing stands for zeros."""
    stream = Stream()
    with (
        pytest.raises(ValueError, match="10 rows and has 4"),
        npzkit.NpzWriter(stream) as w,
        w.create("x", WHOLE.shape, "f4") as dst,
    ):
        dst[:4] = WHOLE[:4]


@pytest.mark.parametrize("options", [{"shape": ()}, {"shape": (2, 3), "fortran_order": True}])
def test_arrays_that_have_no_rows_to_follow_each_other_are_refused(options):
    """In a stream, arrays in Fortran order or without dimensions are refused by `create`."""
    with npzkit.NpzWriter(Stream()) as w, pytest.raises(UnsupportedError, match="to a path"):
        w.create("x", dtype="f4", **options)


def test_what_was_written_cannot_be_read_back():
    """Reading a part, or a map of the array, is refused with the remedy."""
    with npzkit.NpzWriter(Stream()) as w, w.create("x", (2, 3), "f4") as dst:
        dst[:] = 1
        for use in (lambda: dst[0], dst.memmap):
            with pytest.raises(UnsupportedError, match="to a path"):
                use()
