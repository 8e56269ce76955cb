"""Lines: each pixel has the least and largest value of what it stands for."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from npzkit.display.lines import line_overview
from virtual_array import VirtualArray


@given(st.lists(st.floats(width=16), max_size=60), st.integers(1, 20), st.data())
def test_pixels_of_any_line(values, width, data):
    """In any window, pixels tile it, and have the extremes that NumPy finds there."""
    array = np.array(values, "f2")
    start = data.draw(st.integers(0, len(array)))
    stop = data.draw(st.integers(start, len(array)))
    found = line_overview(array, start=start, stop=stop, width=width)
    assert (found.edges[0], found.edges[-1], found.sampled) == (start, stop, 1.0)
    assert len(found.low) == len(found.high) == len(found.edges) - 1 == min(width, stop - start)
    for low, high, begin, end in zip(
        found.low, found.high, found.edges[:-1], found.edges[1:], strict=True
    ):
        pixel = array[begin:end]
        seen = pixel[~np.isnan(pixel)]
        assert len(pixel)
        assert (low, high) == (seen.min(), seen.max()) if len(seen) else np.isnan([low, high]).all()
    window = array[start:stop]
    assert found.nan_count == np.isnan(window).sum()
    assert found.inf_count == np.isinf(window).sum()
    assert found.has_values == (stop - start <= width)


@pytest.mark.parametrize("order", ["C", "F"])
def test_any_axis_is_drawn(order):
    """The slice among the items says which axis it is, in both orders of storage."""
    array = np.asarray(np.arange(120).reshape(4, 5, 6), order=order)
    for axis in range(3):
        items = [1, 2, 3]
        items[axis] = slice(None)
        found = line_overview(array, items)
        assert found.low.tolist() == found.high.tolist() == array[tuple(items)].tolist()


def test_pieces_of_one_pixel_are_put_together(monkeypatch):
    """A pixel that is read in several pieces, and pieces of several pixels, lose no value."""
    monkeypatch.setattr("npzkit.display.lines.PIECE_SIZE", 8 * 37)
    array = np.random.default_rng(0).standard_normal(1000)
    for width in (3, 70, 999):
        found = line_overview(array, width=width)
        parts = np.split(array, found.edges[1:-1])
        assert found.low.tolist() == [part.min() for part in parts]
        assert found.high.tolist() == [part.max() for part in parts]


@pytest.mark.parametrize(("shape", "items"), [
    ((10**10,), [slice(None)]), ((3, 10**10), [1, slice(None)]), ((10**9, 20), [slice(None), 3]),
])  # fmt: skip
def test_a_line_of_gigabytes_is_sampled(shape, items):
    """Of a huge line some values of each pixel are read, within the budget, and this is said."""
    source = VirtualArray(shape)
    found = line_overview(source, items, width=200, budget=1 << 22)
    assert 0 < found.sampled < 0.01
    assert source.read_size <= 1 << 22
    assert 100 <= len(found.low) <= 200
    values = np.array(shape)[1:].prod() if items[0] == slice(None) else 1
    offset = 3 if len(shape) == 2 and items[0] == slice(None) else 0
    base = 10**10 if items[0] == 1 else 0
    assert (found.low >= found.edges[:-1] * values + offset + base).all()
    assert (found.high < found.edges[1:] * values + base).all()


def test_a_window_of_a_huge_line_is_exact():
    """After zooming in far enough, all values are read, and no others."""
    source = VirtualArray((10**10,))
    found = line_overview(source, start=5_000_000_000, stop=5_000_000_100, width=1000)
    assert found.has_values
    assert found.low.tolist() == list(range(5_000_000_000, 5_000_000_100))
    assert source.read_size == 800


def test_complex_numbers_and_dates():
    """Complex numbers have four parts to draw, and NaT counts as NaN."""
    found = line_overview(np.array([3 + 4j, 1j]), part="phase")
    assert found.low.tolist() == [np.angle(3 + 4j), np.pi / 2]
    found = line_overview(np.array(["1970-01-02", "NaT"], "M8[D]"))
    assert (found.low[0], found.nan_count) == (1, 1)


def test_reading_is_cancelled_between_pieces(monkeypatch):
    """`proceed` is called before each piece, and its exception ends the reading."""
    monkeypatch.setattr("npzkit.display.lines.PIECE_SIZE", 800)
    source = VirtualArray((1000,))
    calls = []

    def proceed():
        calls.append(source.read_count)
        if len(calls) == 4:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        line_overview(source, proceed=proceed)
    assert calls == [0, 1, 2, 3]


@pytest.mark.parametrize("items", [[0, 0], [slice(None)] * 2, [slice(None)]])
def test_items_that_are_no_line(items):
    """One slice, and an integer for each other axis, are what makes a line."""
    with pytest.raises(ValueError, match=r"slice"):
        line_overview(np.zeros((3, 3)), items)
