"""The difference of two arrays that are compared."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
from npzkit.reading.indexing import ReadHabits
from npzkit.viewer.sources import DifferenceSource

from tables import each_row


class Source(SimpleNamespace):
    """An array in memory as a source."""

    def __getitem__(self, index):
        return self.array[index]


def source_of(array):
    return Source(
        array=array,
        shape=array.shape,
        dtype=array.dtype,
        chunks=array.shape,
        _read_habits=ReadHabits(),
    )


def difference(first, second):
    return DifferenceSource(source_of(np.array(first)), source_of(np.array(second)))[...].tolist()


@each_row("order", "<>")
@each_row("kind", ["i8", "u8", "M8[ns]", "m8[s]"])
def test_large_integers_differ_exactly(order, kind):
    """Integers, dates and durations that float64 cannot tell apart differ by what they differ."""
    large = 2**63 - 9
    first, second = (
        np.array(values).astype(order + kind) for values in ([5, large], [7, large - 1])
    )
    assert difference(first, second) == [-2, 1]


def test_signed_and_unsigned_integers_differ_exactly():
    """The largest number of one dtype minus the least one of another is not cut."""
    assert difference(np.array([2**64 - 1], "u8"), np.array([-(2**63)])) == [2.0**64 + 2.0**63]
    assert difference(np.array([True, False]), np.array([1, 2], "u1")) == [0, -2]


def test_what_is_missing_has_no_difference():
    """NaT and NaN are no numbers."""
    dates = np.array(["NaT", "2020-01-02"], "M8[D]"), np.array(["2020-01-01"] * 2, "M8[D]")
    assert np.isnan(difference(*dates)).tolist() == [True, False]
    assert difference(np.array([1.5, np.nan]), np.array([1, 1]))[0] == 0.5


def test_long_doubles_keep_their_digits():
    """Long doubles are not cut to float64 before they are subtracted."""
    one, step = np.ones(1, np.longdouble), np.finfo(np.longdouble).eps
    assert difference(one + step, one) == [float(step)]
    assert difference(np.array([4 + 4j], "c8"), np.array([1], "c8")) == [5]
