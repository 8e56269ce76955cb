"""Histograms: exact if they are small, and of blocks all over the array if not."""

from __future__ import annotations

import npzkit
import numpy as np
import pytest
from npzkit.display.histograms import histogram_overview
from virtual_array import VirtualArray


@pytest.mark.parametrize("order", ["C", "F"])
def test_a_small_array_is_measured_exactly(order):
    """The statistics are those of `npzkit.statistics`, of the part that was chosen."""
    array = np.random.default_rng(0).standard_normal((7, 50, 60)).astype("f4")
    array[2, 3, 4], array[2, 5, 6] = np.nan, np.inf
    array = np.asarray(array, order=order)
    found = histogram_overview(array, [2, slice(1, 50)])
    part = array[2, 1:50]
    told = found.statistics
    assert found.sampled == 1.0
    assert (told.count, told.nan_count, told.inf_count) == (part.size, 1, 1)
    finite = part[np.isfinite(part)].astype("f8")
    assert told.mean == pytest.approx(finite.mean())
    assert told.std == pytest.approx(finite.std())
    assert told.min == finite.min()
    assert told.max == np.inf
    assert told.histogram.counts.sum() == len(finite)


@pytest.mark.parametrize("shape", [(10**10,), (10**5, 10**5), (2, 10**9, 3), (1000, 1000, 1000)])
def test_a_huge_array_is_sampled_all_over(shape):
    """Blocks are read from beginning to end, within the budget, and the fraction is told."""
    source = VirtualArray(shape)
    found = histogram_overview(source, budget=1 << 22)
    told = found.statistics
    assert source.read_size <= 1 << 22
    assert source.read_count >= 20
    assert told.count == source.read_size // 8
    assert found.sampled == pytest.approx(told.count / source.size)
    assert told.mean == pytest.approx(source.size / 2, rel=0.05)
    assert told.min < source.size * 0.05
    assert told.max > source.size * 0.95


def test_a_period_of_the_array_is_not_met():
    """Blocks are not at equal distances, at which an array might always be the same."""
    array = np.zeros((64, 1 << 17), "u1")
    array[:, 1 << 16 :] = 1
    found = histogram_overview(array, budget=1 << 20)
    assert found.sampled == 0.125
    assert 0 < found.statistics.mean < 1


def test_what_is_sampled_of_an_archive(tmp_path):
    """A lazy array is taken as one in memory."""
    npzkit.save(tmp_path / "a.npz", {"a": np.arange(300_000.0)}, compression="deflated")
    with npzkit.open(tmp_path / "a.npz") as npz:
        assert 0 < histogram_overview(npz.lazy("a"), budget=1 << 19).sampled < 0.25
        assert histogram_overview(npz.lazy("a")).statistics.max == 299_999


@pytest.mark.parametrize("dtype", ["?", "u1", "f2", ">i8", "c8", "M8[s]", "m8[D]"])
def test_every_kind_of_numbers(dtype):
    """Bools, dates and complex numbers have a histogram."""
    found = histogram_overview(np.arange(2).astype(dtype)).statistics
    assert found.count == 2
    assert found.histogram.counts.sum() == 2


def test_no_values_and_no_numbers():
    """An empty array has no histogram, a single value has one, and text is an error."""
    assert histogram_overview(np.zeros((0, 3))).statistics.histogram is None
    assert histogram_overview(np.array(3.0)).statistics.mean == 3.0
    with pytest.raises(TypeError, match="not numbers"):
        histogram_overview(np.array(["a"]))


def test_the_deviation_of_the_largest_number():
    """One number has the deviation 0, even if its square is infinite."""
    found = histogram_overview(np.full(3, 1.7e308)[:1]).statistics
    assert (found.mean, found.std) == (1.7e308, 0.0)
