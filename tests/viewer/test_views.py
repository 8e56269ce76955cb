"""Which views an array has, and that every choice is made to fit it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from npzkit.viewer.shown import Shown, drawn_axes, items_of, settled, views_of, window_of

small = st.none() | st.integers(0, 9)
windows = st.none() | st.tuples(st.integers(0, 9), st.integers(0, 9))
dtypes = st.sampled_from(["f4", "u1", "?", "c8", "U3", "M8[s]", "i8,f4"])


@given(
    st.lists(st.integers(0, 5), max_size=5).map(tuple), dtypes,
    st.builds(Shown, at=st.lists(st.integers(0, 9), max_size=6).map(tuple), down=small,
              across=small, rows=windows, columns=windows,
              view=st.sampled_from([None, "image", "line", "table", "picture", "histogram", "x"])),
)  # fmt: skip
def test_every_link_fits_every_array(shape, dtype, shown):
    """Whatever a link says, the axes are different ones of the array, and windows are in it."""
    dtype = np.dtype(dtype)
    found = settled(shown, shape, dtype)
    assert found.view in views_of(shape, dtype)
    drawn = drawn_axes(found)
    assert len(set(drawn)) == len(drawn)
    assert set(drawn) <= set(range(len(shape)))
    if 0 not in shape:
        values = np.empty(shape, dtype)[tuple(items_of(found, len(shape)))]
        if found.view not in {"histogram"}:
            assert values.ndim == len(drawn) + (found.view == "picture")
    for axis, window in ((found.down, found.rows), (found.across, found.columns)):
        if axis is not None and shape[axis]:
            start, stop = window_of(window, shape[axis])
            assert 0 <= start < stop <= shape[axis]
    assert settled(found, shape, dtype) == found


@pytest.mark.parametrize(
    ("shape", "dtype", "first"),
    [((9,), "f8", "line"), ((9, 9), "f8", "image"), ((4, 9, 9), "i2", "image"),
     ((9, 9, 3), "u1", "picture"), ((5, 9, 9, 4), "u1", "picture"), ((9, 9, 3), "i8", "image"),
     ((9, 1), "f4", "line"), ((), "f8", "table"), ((3,), "U2", "table"), ((2, 0), "f4", "table"),
     ((3,), "M8[D]", "line"), ((4, 4), "?", "image"), ((4,), "i4,f4", "table")],
)  # fmt: skip
def test_the_usual_view_follows_shape_and_dtype(shape, dtype, first):
    """Lines, images, pictures and tables are chosen as a user would."""
    assert settled(Shown(key="x"), shape, np.dtype(dtype)).view == first


def test_long_planes_are_stretched():
    """Values are squares, unless one axis is much longer than the other."""
    assert settled(Shown(key="x"), (100, 200), np.dtype("f4")).aspect == "equal"
    assert settled(Shown(key="x"), (10, 2000), np.dtype("f4")).aspect == "fill"
