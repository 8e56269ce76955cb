"""The link that holds what is shown, which views an array has, and how every choice fits it."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from npzkit.viewer.shown import (
    Shown,
    drawn_axes,
    format_link,
    items_of,
    parse_link,
    settled,
    shown_of,
    views_of,
    window_of,
)

from tables import each_row

positions = st.integers(0, 10**17)
windows = st.none() | st.tuples(positions, positions)
texts = st.none() | st.text()
words = st.sampled_from(["image", "line", "1-99", "phase"])
SHOWN = st.builds(
    Shown, archive=positions, key=texts, field=texts, view=st.none() | words,
    at=st.lists(positions, max_size=5).map(tuple), down=st.none() | positions,
    across=st.none() | positions, rows=windows, columns=windows, part=words, palette=words,
    scale=words, aspect=st.none() | words, other_archive=positions, other_key=texts,
)  # fmt: skip


@given(SHOWN)
def test_a_link_holds_all_that_is_shown(shown):
    """What is shown comes back from its link, whatever characters a key has."""
    assert parse_link(format_link(shown)) == shown
    assert parse_link(f"http://127.0.0.1:5000/token/?{format_link(shown)}") == shown


def test_a_link_of_what_is_usual_is_empty():
    """A link names what was chosen, and no more."""
    assert format_link(Shown()) == ""
    assert format_link(Shown(key="w")) == "key=w"


@each_row(
    "link",
    ["at=1,x", "at=-1", "rows=5", "rows=1:2:3", "archive=1e9", "down=99999999999999999999",
     "view=<script>", "palette=a b", "key=" + "x" * 200_000],
)  # fmt: skip
def test_a_damaged_link_is_an_error(link):
    """What is no position, window or word is an error that names it."""
    with pytest.raises(ValueError, match="link"):
        parse_link(link)


def test_names_that_are_not_known_are_left_out():
    """A link of a newer npzkit still shows the array."""
    assert asdict(shown_of({"key": "w", "later": "x"})) == asdict(Shown(key="w"))


# -- how it fits an array -------------------------------------------------------

small = st.none() | st.integers(0, 9)
near_windows = st.none() | st.tuples(st.integers(0, 9), st.integers(0, 9))
dtypes = st.sampled_from(["f4", "u1", "?", "c8", "U3", "M8[s]", "i8,f4"])


@given(
    st.lists(st.integers(0, 5), max_size=5).map(tuple), dtypes,
    st.builds(Shown, at=st.lists(st.integers(0, 9), max_size=6).map(tuple), down=small,
              across=small, rows=near_windows, columns=near_windows,
              view=st.sampled_from([None, "image", "line", "table", "picture", "histogram", "x"])),
)  # fmt: skip
def test_every_link_fits_every_array(shape, dtype, shown):
    """Whatever a link says, the axes are different ones of the array, and near_windows are in it."""
    dtype = np.dtype(dtype)
    found = settled(shown, shape, dtype)
    assert found.view in views_of(shape, dtype)
    drawn = drawn_axes(found)
    assert len(set(drawn)) == len(drawn)
    assert set(drawn) <= set(range(len(shape)))
    if 0 not in shape:
        values = np.empty(shape, dtype)[tuple(items_of(found, len(shape)))]
        assert values.ndim == len(drawn) + (found.view == "picture")
    for axis, window in ((found.down, found.rows), (found.across, found.columns)):
        if axis is not None and shape[axis]:
            start, stop = window_of(window, shape[axis])
            assert 0 <= start < stop <= shape[axis]
    assert settled(found, shape, dtype) == found


@each_row(
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


@pytest.mark.parametrize(
    ("shape", "view"),
    [((1000, 4), "table"), ((1000, 1), "line"), ((20, 16), "table"), ((16, 16), "image"),
     ((1000, 17), "image")],
)  # fmt: skip
def test_many_rows_of_few_numbers_are_a_table(shape, view):
    """A table of measurements is shown as one, and a plane as an image."""
    assert views_of(shape, np.dtype("f8"))[0] == view
