"""Parts of arrays, in pieces: what NumPy gives for the same index."""

from __future__ import annotations

import io
import sys

import npzkit
import numpy as np
import pytest
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
    endless = np.broadcast_to(np.int8(0), (sys.maxsize,))
    part = ArrayPart(endless, (slice(None, None, 2),))
    assert len(next(part.pieces())) == 1 << 20


@pytest.mark.slow
@pytest.mark.parametrize("order", ["C", "F"])
def test_a_part_is_approached_with_progress(order, monkeypatch):
    """What lies before a part is counted where all of it is decompressed, and nowhere else."""
    monkeypatch.setattr("npzkit.display.blocks.BLOCK_SIZE", 1 << 16)
    array = np.asarray(np.arange(90_000.0).reshape(300, 300), order=order)
    stream = io.BytesIO()
    np.savez_compressed(stream, in_order=array)
    with npzkit.NpzWriter(stream, "a") as writer:
        writer.add("seekable", array, compression="deflated")
    told = []
    with npzkit.open(stream) as npz:
        for key in ("in_order", "seekable"):
            part = ArrayPart(npz.lazy(key), (-1, -2))
            part._approach(lambda done, total, key=key: told.append((key, done, total)))
            assert part.read() == array[-1, -2]
    last = (90_000 - (2 if order == "C" else 301)) * 8
    assert {(key, total) for key, _, total in told} == {("in_order", last)}
    assert len({done for _, done, _ in told}) > 3
    assert max(done for _, done, _ in told) > last - (1 << 17)
