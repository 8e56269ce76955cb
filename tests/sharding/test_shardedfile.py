"""Reading sharded archives."""

from __future__ import annotations

import pickle

import npzkit
import numpy as np
import pytest


@pytest.fixture
def whole():
    return np.arange(7 * 6, dtype="f4").reshape(7, 6)


@pytest.fixture
def folder(tmp_path, whole):
    """An archive of two writers: one array in four parts, and others in one."""
    path = tmp_path / "run"
    for number, rows in enumerate((slice(0, 3), slice(3, 7))):
        with npzkit.ShardedWriter(path, attempt="a1") as w:
            for columns in (slice(0, 4), slice(4, 6)):
                offset = (rows.start, columns.start)
                w.add("w", whole[rows, columns], offset, whole.shape, attrs={"unit": "m"})
            w.add(f"layer/{number}", np.full(number + 2, number))
    npzkit.ShardedWriter(path, attempt="a1", metadata={"step": 7}).commit()
    return path


def test_arrays_of_several_writers_are_one_archive(folder, whole):
    """Each array comes back complete, with attributes and metadata."""
    with npzkit.open(folder) as npz:
        assert sorted(npz) == ["layer/0", "layer/1", "w"]
        np.testing.assert_array_equal(npz["w"], whole)
        np.testing.assert_array_equal(npz["layer/1"], [1, 1, 1])
        info = npz.info("w")
        assert (info.shape, info.dtype, len(npz.parts("w"))) == ((7, 6), np.dtype("f4"), 4)
        assert dict(info.attrs) == {"unit": "m"}
        assert npz.metadata["step"] == 7


def test_load_all_reads_every_array(folder, whole):
    """`load_all` returns new, writable arrays in the archive's order."""
    with npzkit.open(folder) as npz:
        arrays = npz.load_all()
        assert list(arrays) == npz.files
        np.testing.assert_array_equal(arrays["w"], whole)
        arrays["w"][0] = 0


INDICES = [
    (), 0, -1, slice(None), slice(2, 5), slice(None, None, -2), (slice(None), 3),
    (slice(1, 6, 2), slice(5, 0, -2)), [6, 0, 3, 3], (slice(None), [5, 1]), Ellipsis, (2, 4),
    slice(5, 2), (None, 1), (slice(6, 7), slice(5, 6)), np.array([True, False] * 3 + [True]),
]  # fmt: skip


@pytest.mark.parametrize("index", INDICES, ids=repr)
def test_lazy_indexing_is_as_of_the_array(folder, whole, index):
    """`lazy(key)[index]` equals indexing the complete array, for all kinds of indices."""
    with npzkit.open(folder) as npz:
        found = npz.lazy("w")[index]
        expected = whole[index]
        np.testing.assert_array_equal(found, expected)
        assert np.shape(found) == np.shape(expected)


def test_shards_are_plain_archives(folder):
    """np.load opens each shard."""
    for path in folder.glob("*.npz"):
        assert "w" in np.load(path).files


def test_it_pickles(folder, whole):
    """A pickled archive opens again, and its lazy arrays too."""
    with npzkit.open(folder) as npz:
        again, lazy = pickle.loads(pickle.dumps((npz, npz.lazy("w"))))
        np.testing.assert_array_equal(again["w"], whole)
        np.testing.assert_array_equal(lazy[2:4], whole[2:4])
