"""Hypothesis strategies: arrays of any kind that needs no pickle."""

from __future__ import annotations

import numpy as np
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


@st.composite
def indices(draw, shape):
    """Any index expression that reads from a file: basic parts, and one array at most."""
    parts = []
    axis = 0
    array_at = draw(st.none() | st.integers(0, len(shape)))
    while axis < len(shape) and draw(st.integers(0, 9)):
        size = shape[axis]
        if axis == array_at:
            part, axis_count = draw(array_parts(shape[axis:]))
            parts.append(part)
            axis += axis_count
            continue
        if size and draw(st.booleans()):
            parts.append(draw(st.integers(-size, size - 1) | st.just(np.int16(size - 1))))
        else:
            parts.append(draw(st.slices(size) | steps(size)))
        axis += 1
    for _ in range(draw(st.integers(0, 1))):
        parts.insert(draw(st.integers(0, len(parts))), None)
    if draw(st.booleans()) and axis >= len(shape):
        parts.insert(draw(st.integers(0, len(parts))), ...)
    if len(parts) == 1 and draw(st.booleans()):
        return parts[0]
    return tuple(parts)


@st.composite
def steps(draw, size):
    """Slices of any step, their ends anywhere."""
    ends = st.none() | st.integers(-size - 2, size + 2)
    step = draw(st.none() | st.sampled_from([1, 2, 3, 7, -1, -2, -5]))
    return slice(draw(ends), draw(ends), step)


@st.composite
def array_parts(draw, shape):
    """An array or list of indices, or a mask of one or two axes; and how many axes it takes."""
    kind = draw(st.sampled_from(["integers", "list", "mask", "mask of two"]))
    size = shape[0]
    if kind == "mask of two" and len(shape) > 1:
        return draw(hnp.arrays(bool, shape[:2])), 2
    if kind.startswith("mask"):
        return draw(hnp.arrays(bool, shape[:1])), 1
    if not size:
        return [], 1
    place = st.integers(-size, size - 1)
    if kind == "list":
        return draw(st.lists(place, max_size=6)), 1
    array_shape = draw(hnp.array_shapes(min_dims=1, max_dims=2, max_side=4))
    dtype = draw(st.sampled_from(["i8", "i2"]))
    return draw(hnp.arrays(dtype, array_shape, elements=place)), 1
