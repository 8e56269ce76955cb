"""Arrays that are checked in one step, and written in another."""

from __future__ import annotations

import threading

import npzkit
import numpy as np
import pytest
from npzkit.errors import ClosedArchiveError, NotAnArrayError, PickleRefusedError


def test_it_is_written_by_another_thread_as_save_writes_it(tmp_path):
    """The file is, byte by byte, that of `save`, also of an array that is not contiguous."""
    arrays = {"x": np.arange(12.0).reshape(3, 4)[:, ::2], "y/z": np.ones(70_000)}
    options = {"compression": "deflated", "level": 6}
    prepared = npzkit.PreparedArchive(arrays, **options)
    path, saved = tmp_path / "a.npz", tmp_path / "b.npz"
    thread = threading.Thread(target=prepared.write, args=(path,), kwargs={"metadata": {"a": 1}})
    thread.start()
    thread.join()
    with npzkit.NpzWriter(saved, metadata={"a": 1}, **options) as writer:
        for key, array in arrays.items():
            writer.add(key, array)
    assert path.read_bytes() == saved.read_bytes()


@pytest.mark.parametrize("wrong", [object(), [[1], [2, 3]]])
def test_what_cannot_be_saved_is_refused_before_it_is_written(wrong):
    """The error comes from the first step, which is given no file."""
    with pytest.raises((PickleRefusedError, NotAnArrayError)):
        npzkit.PreparedArchive({"x": np.arange(3), "y": wrong})


def test_it_is_written_once(tmp_path):
    """A second file would lack the data of arrays that were copied piece by piece."""
    path = tmp_path / "a.npz"
    prepared = npzkit.PreparedArchive({"x": np.arange(6)[::2]})
    prepared.write(path)
    with pytest.raises(ClosedArchiveError, match="Prepare them again"):
        prepared.write(tmp_path / "b.npz")
    assert [file.name for file in tmp_path.iterdir()] == ["a.npz"]
    with npzkit.open(path) as npz:
        assert npz["x"].tolist() == [0, 2, 4]
