"""Parts that tile an array, and parts that do not."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from npzkit.datasets.tiling import fault_of, find_untiled


def untiled(shape, parts):
    boxes = np.array(parts, np.int64).reshape(len(parts), 2, len(shape))
    bounds = np.array([shape], np.int64)
    return find_untiled(bounds, np.array([len(parts)]), boxes[:, 0], boxes[:, 1]) == [0]


def cuts(draw, offset, shape, depth):
    """Cut a box in two, and each piece again."""
    axis = draw(st.integers(0, len(shape) - 1))
    if not depth or shape[axis] < 2:
        return [(offset, shape)]
    at = draw(st.integers(1, shape[axis] - 1))
    first, second, behind = list(shape), list(shape), list(offset)
    first[axis], second[axis], behind[axis] = at, shape[axis] - at, offset[axis] + at
    return [*cuts(draw, offset, first, depth - 1), *cuts(draw, behind, second, depth - 1)]


@st.composite
def tilings(draw):
    shape = draw(st.lists(st.integers(1, 9), min_size=1, max_size=4))
    parts = cuts(draw, [0] * len(shape), shape, draw(st.integers(0, 4)))
    return shape, draw(st.permutations(parts))


@given(tilings())
def test_cuts_of_an_array_tile_it(tiling):
    """Whatever cuts an array in pieces, they tile it, in any order."""
    shape, parts = tiling
    assert not untiled(shape, parts)


@given(tilings(), st.data())
def test_changed_parts_are_found_as_by_counting(tiling, data):
    """One number of a tiling is changed: the answer is that of counting each item's parts."""
    shape, parts = tiling
    boxes = np.array(parts).reshape(len(parts), 2, len(shape))
    where = tuple(data.draw(st.integers(0, length - 1)) for length in boxes.shape)
    boxes[where] += data.draw(st.integers(-2, 3))
    counts = np.zeros(shape, int)
    is_inside = True
    for offset, size in boxes.tolist():
        ends = [start + length for start, length in zip(offset, size, strict=True)]
        is_inside &= min(offset) >= 0 and min(size) > 0 and all(np.less_equal(ends, shape))
        if is_inside:
            counts[tuple(map(slice, offset, ends))] += 1
    assert untiled(shape, boxes) == (not is_inside or bool((counts != 1).any()))


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([((0, 0), (2, 4)), ((2, 0), (1, 4))], "array leave gaps: found 'parts of 12 items"),
        ([((0, 0), (3, 4)), ((2, 0), (2, 4))], "array overlap: found 'parts of 20 items"),
        ([((0, 0), (4, 4)), ((0, 0), (4, 4))], "array overlap: found 'parts of 32 items"),
        ([((0, 0), (5, 4))], "reaches out of its array"),
        ([((0, 2**62), (4, 2**62))], "reaches out of its array"),
        ([((0, 0), (0, 4))], "or is empty"),
        # As many items as the array has.
        ([((0, 0), (2, 2)), ((2, 2), (2, 2)), ((0, 0), (2, 4))], "array overlap, and leave gaps"),
    ],
)
def test_the_fault_is_named(parts, message):
    """The error says whether there is a gap or an overlap."""
    boxes = np.array(parts, np.int64)
    assert untiled((4, 4), parts)
    assert message in str(fault_of((4, 4), boxes[:, 0], boxes[:, 1]))


def test_many_parts_are_checked_in_time_that_grows_with_their_number():
    """A board of 10,000 squares is checked, with and without one that is moved."""
    places = np.stack(np.meshgrid(np.arange(100), np.arange(100)), -1).reshape(-1, 1, 2) * 3
    boxes = np.concatenate([places, np.full_like(places, 3)], axis=1)
    assert not untiled((300, 300), boxes)
    boxes[5000, 0, 1] += 1
    assert untiled((300, 300), boxes)


def test_arrays_are_checked_together():
    """Of three arrays, the one whose parts do not tile it is named by its number."""
    bounds, counts = np.array([[4], [4], [2]]), np.array([2, 2, 1])
    offsets, shapes = np.array([[0], [2], [0], [1], [0]]), np.array([[2], [2], [2], [2], [2]])
    assert find_untiled(bounds, counts, offsets, shapes) == [1]
