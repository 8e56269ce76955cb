"""Values as numbers: what stands for them, and the range that is shown."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from npzkit.display.numbers import as_colours, as_drawn, value_range


@pytest.mark.parametrize(("dtype", "drawn"), [
    ("?", "f8"), ("u1", "f8"), (">i4", "f8"), ("f2", "f4"), (">f4", "f4"), ("f8", "f8"), ("g", "f8"),
])  # fmt: skip
def test_numbers_keep_their_value_and_shape(dtype, drawn):
    """Real numbers become float32 or float64, in the machine's byte order."""
    values = np.array([[0, 1], [1, 0]]).astype(dtype)
    found = as_drawn(values)
    assert found.dtype == drawn
    assert found.tolist() == [[0, 1], [1, 0]]


def test_the_parts_of_complex_numbers():
    """Magnitude, phase, real and imaginary part are four arrays."""
    values = np.array([3 + 4j, -1])
    found = {
        part: as_drawn(values, part).tolist() for part in ("magnitude", "phase", "real", "imag")
    }
    assert found == {
        "magnitude": [5, 1], "phase": np.angle(values).tolist(), "real": [3, -1], "imag": [4, 0],
    }  # fmt: skip


def test_numbers_of_ml_dtypes():
    """bfloat16 is drawn as other floats are."""
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")
    assert as_drawn(np.array([1.5], ml_dtypes.bfloat16)).tolist() == [1.5]


def test_text_is_no_number():
    """Text, records and objects cannot be drawn."""
    for values in (["a"], np.zeros(2, "i4,i4"), np.zeros(1, "V4"), np.array([None])):
        with pytest.raises(TypeError, match="not numbers"):
            as_drawn(values)


@given(arrays.arrays("f8", st.integers(0, 30), elements=st.floats()))
def test_a_range_is_always_a_scale(values):
    """Whatever the values, the range is finite and its first end is below the second."""
    low, high = value_range(values)
    assert np.isfinite([low, high]).all()
    assert low < high


def test_a_range_leaves_out_what_is_rare():
    """One odd value among thousands does not decide on the colours of all others."""
    values = np.linspace(0, 1, 10_000)
    values[7] = 1e30
    low, high = value_range(values)
    assert (low, high) == pytest.approx((0.01, 0.99), abs=1e-3)
    assert value_range([0] * 1000 + [1]) == (0, 1)


def test_colours():
    """Bytes are colours as they are; others are cut to what a picture can show."""
    picture = np.arange(12, dtype="u1").reshape(1, 4, 3)
    assert as_colours(picture) is picture
    assert as_colours(np.array([[[-1, 300, 7]]])).tolist() == [[[0, 255, 7]]]
    assert as_colours(np.array([[[np.nan, np.inf, 0.2]]], "f4")).tolist() == [[[0, 255, 51]]]
    assert as_colours(np.array([[[True, False, True]]])).tolist() == [[[255, 0, 255]]]


def test_the_range_of_the_largest_number_is_finite():
    """Around the largest float64 there is no room for a margin on both sides."""
    largest = np.finfo("f8").max
    for values in ([largest], [-largest, -largest]):
        low, high = value_range(values)
        assert np.isfinite([low, high]).all()
        assert low < high


@pytest.mark.skipif(np.finfo("g").max == np.finfo("f8").max, reason="longdouble is float64 here")
def test_long_doubles_beyond_float64_are_not_infinite():
    """Only infinities are drawn, and counted, as such."""
    values = np.array(["1e400", "-1e400", "inf", "nan", "1.5"], "g")
    largest = np.finfo("f8").max
    expected = [largest, -largest, np.inf, np.nan, 1.5]
    assert np.array_equal(as_drawn(values), expected, equal_nan=True)
