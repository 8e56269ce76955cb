"""Hypothesis strategies: arrays of any kind that needs no pickle."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

DTYPES = hnp.scalar_dtypes() | hnp.array_dtypes(allow_subarrays=True)
STEPS = [slice(None), slice(None, None, -1), slice(None, None, 2)]


@st.composite
def any_arrays(draw):
    """Any dtype, shape, order, byte order and strides."""
    dtype = draw(DTYPES)
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5))
    array = draw(hnp.arrays(dtype, shape))
    if draw(st.booleans()):
        array = array.copy("F")
    if array.ndim and draw(st.booleans()):
        array = array[tuple(draw(st.sampled_from(STEPS)) for _ in range(array.ndim))]
    if draw(st.booleans()):
        array = array.T
    return array
