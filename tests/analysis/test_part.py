"""Parts of arrays, in pieces: what NumPy gives for the same index."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from npzkit.analysis.statistics import ArrayPart


@given(st.data())
def test_parts_are_numpys(data):
    """Any part, in pieces, is what NumPy gives for the same index."""
    shape = data.draw(st.lists(st.integers(0, 5), max_size=3).map(tuple))
    array = np.arange(int(np.prod(shape))).reshape(shape)
    bound = st.none() | st.integers(-7, 7)
    step = st.none() | st.integers(-3, 3).filter(bool)
    items = [
        data.draw(
            st.builds(slice, bound, bound, step) | (st.integers(-n, n - 1) if n else st.nothing())
        )
        for n in shape[: data.draw(st.integers(0, len(shape)))]
    ]
    if data.draw(st.booleans()):
        items.append(...)
    part = ArrayPart(array, tuple(items), fortran_order=data.draw(st.booleans()))
    expected = array[tuple(items)]
    assert part.shape == expected.shape
    assert np.array_equal(part.read(), expected)
    pieces = [np.ravel(piece) for piece in part.pieces()]
    assert sorted(np.concatenate([*pieces, []]).tolist()) == sorted(expected.ravel().tolist())


def test_pieces_of_an_endless_array_come_one_by_one():
    """How many pieces there will be costs no memory: a shape may only be claimed."""
    endless = np.broadcast_to(np.int8(0), (1 << 50,))
    part = ArrayPart(endless, (slice(None, None, 2),))
    assert len(next(part.pieces())) == 1 << 20
