"""Arrays that are loaded together and share memory."""

from __future__ import annotations

import io

import npzkit
import numpy as np
import pytest
from npzkit.errors import ChecksumError
from npzkit.reading.load_all import SHARED_SIZE, memory_for

KIB = 1 << 10


def archive(arrays):
    stream = io.BytesIO()
    npzkit.save(stream, arrays)
    return stream


def owner_of(array):
    while array.base is not None:
        array = array.base
    return array


def test_neighbours_share_memory_and_nothing_else():
    """Arrays of some hundred kilobytes lie in one piece of memory, none over another."""
    arrays = {f"a{i}": np.full(100 * KIB + i, i, np.uint8) for i in range(8)}
    arrays["fortran"] = np.asfortranarray(np.arange(90_000.0).reshape(300, 300))
    arrays["void"] = np.zeros(200 * KIB, "V3")
    with npzkit.open(archive(arrays)) as npz:
        loaded = npz.load_all()
    for key, array in loaded.items():
        assert np.array_equal(array, arrays[key])
        assert array.dtype == arrays[key].dtype
        assert array.flags.fnc == arrays[key].flags.fnc
        array[...] = array[(0,) * array.ndim]
    assert all((loaded[f"a{i}"] == i).all() for i in range(8))
    assert len({id(owner_of(array)) for array in loaded.values()}) == 1


def test_one_array_keeps_little_memory():
    """However many arrays are loaded, one of them keeps only its neighbours' memory."""
    sizes = [1 << 20] * 64
    memories = list(memory_for(sizes))
    assert [len(memory) for memory in memories] == sizes
    assert max(len(owner_of(memory)) for memory in memories) < SHARED_SIZE + (16 << 20)
    assert len({id(owner_of(memory)) for memory in memories}) == 4


def test_a_piece_begins_with_a_large_page():
    """A piece begins at a multiple of 2 MiB; one that is smaller is only as large as its arrays."""
    for first in list(memory_for([1 << 20] * 64))[::16]:
        assert first.__array_interface__["data"][0] % (2 << 20) == 0
    (small,) = memory_for([1 << 20])
    assert len(owner_of(small)) == 1 << 20


def test_large_arrays_have_memory_of_their_own():
    """An array of 16 MiB or more shares nothing."""
    small, large, other = memory_for([1 << 20, 1 << 24, 1 << 20])
    assert large is None
    assert owner_of(small) is owner_of(other)
    assert not np.shares_memory(small, other)


def test_damage_is_reported_for_the_array_that_has_it():
    """A flipped bit in one of several arrays raises the error of that array."""
    data = bytearray(
        archive({f"a{i}": np.full(100 * KIB, i, np.uint8) for i in range(3)}).getvalue()
    )
    data[data.index(bytes([1]) * 1000) + 500] ^= 1
    with npzkit.open(bytes(data)) as npz, pytest.raises(ChecksumError) as caught:
        npz.load_all()
    assert caught.value.key == "a1"
