"""Images: values of a plane, as many as are shown."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from npzkit.display.images import image_overview
from npzkit.reading.indexing import ReadHabits
from virtual_array import VirtualArray


@pytest.mark.parametrize("order", ["C", "F"])
def test_any_two_axes_in_any_order(order):
    """What lies down and across is as chosen, transposed as well."""
    array = np.asarray(np.arange(120).reshape(4, 5, 6), order=order)
    for down, across in itertools.permutations(range(3), 2):
        items = [slice(None) if axis in (down, across) else 2 for axis in range(3)]
        expected = array[tuple(items)]
        found = image_overview(array, items, down=down, across=across)
        assert found.values.tolist() == (expected if down < across else expected.T).tolist()
        assert (found.rows.step, found.columns.step) == (1, 1)


@pytest.mark.parametrize("piece_size", [1, 100, 1 << 21])
def test_every_so_many_values_are_shown(monkeypatch, piece_size):
    """Steps and windows choose values of the array, however they are read in pieces."""
    monkeypatch.setattr("npzkit.display.images.PIECE_SIZE", piece_size)
    array = np.arange(1000).reshape(25, 40)
    found = image_overview(array, rows=(3, 24), columns=(5, None), height=10, width=7)
    assert found.values.tolist() == array[3:24:3, 5::5].tolist()
    assert (found.rows, found.columns) == (range(3, 24, 3), range(5, 40, 5))
    assert array[np.ix_(found.rows, found.columns)].tolist() == found.values.tolist()


@pytest.mark.parametrize("piece_size", [1, 100, 1 << 21])
@pytest.mark.parametrize("order", "CF")
def test_the_largest_of_each_block_is_shown(monkeypatch, piece_size, order):
    """Each value is the one of the largest magnitude of its block; NaN is larger than any."""
    monkeypatch.setattr("npzkit.display.images.PIECE_SIZE", piece_size)
    array = np.random.default_rng(0).normal(size=(25, 40))
    array[3:6, 5:11] = np.nan
    options = {"rows": (3, 24), "columns": (5, None), "height": 10, "width": 7}
    found = image_overview(np.asarray(array, order=order), **options, largest=True)
    assert found.is_largest
    for i, row in enumerate(found.rows):
        for j, column in enumerate(found.columns):
            block = array[row : min(row + 3, 24), column : column + found.columns.step]
            # argmax takes the first NaN, if there is one.
            expected = block.flat[np.abs(block).argmax()]
            np.testing.assert_equal(found.values[i, j], expected)
    too_large = image_overview(array, **options, largest=True, budget=1)
    assert not too_large.is_largest


def test_colours_are_kept_behind():
    """The axis of colours is the last of the picture, wherever it is in the array."""
    array = np.arange(2 * 3 * 40 * 30).reshape(2, 3, 40, 30)
    items = [1, slice(None), slice(None), slice(None)]
    found = image_overview(array, items, down=3, across=2, height=10, width=10)
    assert found.values.shape == (10, 10, 3)
    assert found.values.tolist() == array[1, :, ::4, ::3].transpose(2, 1, 0).tolist()


@pytest.mark.parametrize("shape", [(10**6, 10**6), (100, 10**8), (10**8, 100)])
@pytest.mark.parametrize("is_transposed", [False, True])
def test_a_huge_plane_stays_within_the_budget(shape, is_transposed):
    """Steps become longer, until what is read fits the budget."""
    source = VirtualArray(shape, "i8")
    down, across = (1, 0) if is_transposed else (0, 1)
    found = image_overview(source, down=down, across=across, budget=1 << 22)
    assert source.read_size <= 1 << 22
    assert min(found.values.shape) >= 10
    assert max(found.values.shape) <= 1000
    places = [part.astype("i8") for part in np.ix_(found.rows, found.columns)]
    expected = places[down] * shape[1] + places[across]
    assert (found.values == expected).all()


def test_empty_planes():
    """A plane without values has an image without values."""
    for shape in ((0, 3), (3, 0), (0, 0)):
        assert image_overview(np.zeros(shape, "f4")).values.shape == shape
    assert image_overview(np.zeros((0, 5, 3)), [slice(None)] * 3).values.shape == (0, 5, 3)


@pytest.mark.parametrize(("items", "options"), [
    ([slice(None)] * 4, {}), ([slice(None)] * 2, {}), ([slice(None)] * 2 + [0, 0], {"across": 0}),
])  # fmt: skip
def test_items_that_are_no_plane(items, options):
    """Two axes, at most one of colours, and integers, are what makes an image."""
    with pytest.raises(ValueError, match="two axes"):
        image_overview(np.zeros((2, 2, 2, 2)), items, **options)


def test_reading_is_cancelled(monkeypatch):
    """`proceed` is called before each piece."""
    monkeypatch.setattr("npzkit.display.images.PIECE_SIZE", 800)
    source = VirtualArray((100, 100))

    def proceed():
        if source.read_count == 5:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        image_overview(source, proceed=proceed)
    assert source.read_size == 5 * 800


def test_rows_are_read_apart_where_that_is_less():
    """From a server, short gaps are read too, but not if that is beyond the budget."""
    source = VirtualArray((2000, 2000))
    source._read_habits = ReadHabits(gap_size=1 << 20, at_once=2)
    found = image_overview(source, height=200, width=200, budget=1 << 22)
    assert found.values.shape == (100, 200)
    assert source.read_count == 100
    assert found.values.tolist() == [
        [row * 2000 + column for column in found.columns] for row in found.rows
    ]
