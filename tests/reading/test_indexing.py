"""Index expressions: what is read of each axis, and what NumPy makes of it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from npzkit.reading.indexing import select
from strategies import indices

from tables import each_row


def taken(array, index):
    """What NumPy gives for the block that a selection asks for."""
    selection = select(index, array.shape)
    block = array
    for axis, positions in enumerate(selection.positions):
        block = block.take(np.asarray(positions, np.intp), axis)
    assert block.shape == selection.shape
    return block[selection.index]


@given(st.data(), hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=6))
def test_the_block_gives_what_the_array_gives(data, shape):
    """Any index applied to the block of needed positions gives NumPy's result."""
    array = np.arange(np.prod(shape, dtype=int)).reshape(shape)
    index = data.draw(indices(shape))
    found, expected = taken(array, index), array[index]
    assert type(found) is type(expected)
    assert found.shape == expected.shape
    assert np.array_equal(found, expected)


@given(st.data(), hnp.array_shapes(min_dims=1, max_dims=3, min_side=1, max_side=6))
def test_positions_ascend_and_none_is_idle(data, shape):
    """Positions are within the axis, ascending, each once, and each of them is used."""
    index = data.draw(indices(shape))
    selection = select(index, shape)
    for positions, size in zip(selection.positions, shape, strict=True):
        places = np.asarray(positions)
        assert np.all(np.diff(places) > 0)
        assert all(0 <= place < size for place in places)
    block = np.arange(np.prod(selection.shape, dtype=int)).reshape(selection.shape)
    if not any(isinstance(part, np.ndarray) and part.dtype == bool for part in selection.index):
        used = np.unique(block[selection.index])
        if used.size:
            assert used.size == block.size


WRONG = [
    5, -6, 10**30, (0, 7), (0, 0, 0), 1.5, "x", b"x", (..., ...), [5], [[0, -6]], [1.5], {}, object,
    slice(None, None, 0), slice(1.5), np.array([True, False]), np.array([[True] * 7] * 5), ([True] * 4,),
    (0, [6]), ["x"], np.array("x"), np.float64(1), (None, 5), (slice(None), 6), (True, 0, 0, 0),
]  # fmt: skip


@each_row("index", WRONG)
def test_what_numpy_refuses_is_refused_in_its_words(index):
    """The exception and its message are NumPy's for an array of that shape."""
    with pytest.raises(Exception) as theirs:
        np.zeros((5, 6))[index]
    with pytest.raises(type(theirs.value)) as ours:
        select(index, (5, 6))
    assert str(ours.value) == str(theirs.value)


@pytest.mark.parametrize("index", [([0], [1]), ([0], 1, [True]), (np.zeros(5, bool), [2])])
def test_several_arrays_are_refused_with_a_remedy(index):
    """Two arrays of indices are an IndexError that says what to write instead."""
    with pytest.raises(IndexError, match="one array or list"):
        select(index, (5, 6, 7))


def test_neighbours_are_a_range():
    """An array of neighbours is read in one go, and a mask of a few rows asks for these."""
    assert select([4, 2, 3, 3], (9,)).positions == (range(2, 5),)
    mask = np.zeros((100, 3), bool)
    mask[[7, 90], 1] = True
    rows, columns = select(mask, (100, 3)).positions
    assert rows.tolist() == [7, 90]
    assert columns == range(3)


def test_numbers_of_any_kind():
    """NumPy's integers, arrays of one number and whatever has __index__ are integers."""

    class Two:
        def __index__(self):
            return 2

    for number in (2, np.int8(2), np.uint64(2), np.array(2), Two(), -3, np.int16(-3)):
        assert select(number, (5,)).positions == (range(2, 3),), number


def test_huge_axes_cost_nothing():
    """Slices of an axis of 10**15 items are worked out without making its positions."""
    selection = select((slice(5, None, 10**9), None), (10**15,))
    assert selection.positions == (range(5, 10**15, 10**9),)
    assert select([10**15 - 1, -(10**15)], (10**15,)).positions[0].tolist() == [0, 10**15 - 1]


@pytest.mark.parametrize("number", [1 << 32, -(1 << 32), 2**64 - 1])
def test_large_numbers_in_arrays_do_not_wrap(number):
    """They are out of bounds, also where an index of NumPy has 32 bits."""
    with pytest.raises(IndexError, match=f"index {number} is out of bounds for axis 1 with size 5"):
        select((0, [number]), (3, 5))


@pytest.mark.parametrize("index", [[0], np.array([True]), (slice(None), [1, 2]), (..., [0], None)])
def test_arrays_of_indices_cost_nothing(index):
    """What they choose is not made, however large it would be."""
    assert select(index, (1, 1 << 50)).shape[0] == 1


@pytest.mark.parametrize("index", [True, False, np.True_, np.False_, (True, 1), (False, slice(1))])
def test_a_truth_value_is_an_axis_of_its_own(index):
    """True and False alone add an axis with all or with nothing, as in NumPy."""
    array = np.arange(6).reshape(2, 3)
    found, expected = taken(array, index), array[index]
    assert found.shape == expected.shape
    assert np.array_equal(found, expected)
