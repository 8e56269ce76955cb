"""Statistics of pieces: put together they are those of the whole."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from npzkit.display.piecewise import PieceStatistics, as_numbers, measure

NUMBERS = st.sampled_from(
    ["f4", "f8", ">f8", "f2", "i8", "u8", "u1", "i1", "?", "c16", "M8[s]"]
).flatmap(
    lambda dtype: st.tuples(
        st.just(np.dtype(dtype)),
        st.lists(
            st.floats(width=16) | st.sampled_from([0.0, 1e-45, -1e-45, 3e38])
            if dtype.strip(">") in ("f4", "f8")
            else st.floats(width=16) | st.just(0.0)
            if dtype == "f2"
            else st.integers(-(2**63), 2**63 - 1) | st.integers(-30, 30)
            if dtype in ("i8", "M8[s]")
            else st.integers(0, 100),
            min_size=1,
            max_size=30,
        ),
    )
)


@given(NUMBERS, st.integers(1, 7))
def test_statistics_of_pieces(found, size):
    """However the numbers are cut up, and whatever they are, all is as NumPy has it."""
    dtype, values = found
    array = np.array(values).astype(dtype)
    found = PieceStatistics()
    for start in range(0, len(array), size):
        found.merge(measure(array[start : start + size], dtype))
    numbers = as_numbers(array, dtype)
    is_missing = np.isnat(array) if dtype.kind == "M" else np.isnan(numbers)
    numbers = numbers[~is_missing]
    finite = numbers[np.isfinite(numbers)]
    assert (found.nan_count, found.inf_count) == (is_missing.sum(), np.isinf(numbers).sum())
    if len(numbers):
        assert (found.least, found.most) == (numbers.min(), numbers.max())
    assert (found.bins is not None) == (found.finite_count > 0) == (len(finite) > 0)
    if not len(finite):
        return
    doubles = finite.astype("f8")
    scale = np.abs(doubles).max()
    assert found.mean == pytest.approx(doubles.mean(), rel=1e-9, abs=1e-9 * scale)
    assert found.deviation == pytest.approx(doubles.std(), rel=1e-6, abs=1e-6 * scale)
    exactly = found.bins
    width = Fraction(2) ** exactly.exponent
    places = [Fraction(number) // width - exactly.first for number in finite.tolist()]
    assert exactly.counts == np.bincount(places, minlength=len(exactly.counts)).tolist()
    assert exactly.counts[0]
    assert exactly.counts[-1]
    assert len(exactly.counts) <= 20


def test_deviations_are_sound():
    """A large mean does not drown a small deviation, however many pieces there are."""
    array = 1e9 + np.random.default_rng(0).standard_normal(1 << 19)
    found = PieceStatistics()
    for piece in np.split(array, 64):
        found.merge(measure(piece, array.dtype))
    assert found.deviation == pytest.approx(array.std(), rel=1e-9)
    assert measure(array, array.dtype).deviation == pytest.approx(array.std(), rel=1e-9)
