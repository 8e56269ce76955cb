"""Small arrays that are written together: the archive is as if each was written alone."""

from __future__ import annotations

import io

import npzkit
import numpy as np
import pytest
from npzkit.writing import array_members
from npzkit.zip import written_header

KEYS = ["a", "größe", "层/größe", "x" * 300, "model/dense_1/kernel:0", "['p']['\N{GRINNING FACE}']"]
ARRAYS = {
    f"{key}{number}": np.arange(number * 5.0)[: number * 3]
    for number in range(1, 40)
    for key in KEYS
}


def saved(compression):
    stream = io.BytesIO()
    npzkit.save(stream, ARRAYS, compression=compression)
    return stream.getvalue()


@pytest.mark.slow
@pytest.mark.parametrize("compression", ["stored", "deflated", "zstd"])
def test_bytes_do_not_depend_on_the_way_of_writing(compression, monkeypatch):
    """Arrays written together, in runs of any size, or one by one make the same archive."""
    together = saved(compression)
    with monkeypatch.context() as patch:
        patch.setattr(array_members, "_RUN_SIZE", 1000)
        assert saved(compression) == together
    with monkeypatch.context() as patch:
        patch.setattr(written_header, "_COLUMN_COUNT", 1)
        assert saved(compression) == together
        patch.setattr(array_members, "_RUN_SIZE", 1)
        assert saved(compression) == together
    monkeypatch.setattr(array_members, "_SMALL_SIZE", 0)
    assert saved(compression) == together
    with npzkit.open(io.BytesIO(together)) as npz:
        assert npz.files == list(ARRAYS)
        assert all(np.array_equal(npz[key], ARRAYS[key]) for key in ARRAYS)


def test_keys_of_all_languages_are_written_together(monkeypatch):
    """An array is written with its neighbours, whatever letters its key has."""
    monkeypatch.setattr(array_members, "_prepared", None)
    assert saved("stored")
