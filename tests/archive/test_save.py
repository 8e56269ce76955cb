"""What a small save costs: as few of npzkit's functions as possible stand above the system."""

from __future__ import annotations

import io
import os
from traceback import extract_stack

import npzkit
import numpy as np
import pytest
from call_depth import count_calls
from npzkit.archive.save import PreparedArchive
from npzkit.errors import ClosedArchiveError

ROOT = os.path.dirname(npzkit.__file__)
MOST = 9
"""Functions of npzkit's from the user's call to the one of the system that writes the data."""


def test_a_small_array_passes_few_functions(tmp_path):
    """From `save` to the call of the system there are nine functions at most."""
    path, arrays = tmp_path / "a.npz", {"x": np.arange(10.0)}
    npzkit.save(path, arrays)
    calls = count_calls(lambda: npzkit.save(path, arrays))
    assert 0 < calls.depth <= MOST, calls.path


def test_a_small_array_passes_few_functions_to_a_file_object():
    """So there are to the ``write`` of a file object."""
    found = []

    class Written(io.RawIOBase):
        def writable(self):
            return True

        def write(self, data):
            found.append(sum(frame.filename.startswith(ROOT) for frame in extract_stack()))
            return len(data)

    npzkit.save(Written(), {"x": np.arange(10.0)})
    assert 0 < max(found) <= MOST


def test_threads_change_no_byte(tmp_path):
    """A large array is complete after a small one that follows it, and the index of both is the same."""
    arrays = {"large": np.zeros(3 << 20, np.uint8), "small": np.zeros(1 << 20, np.uint8)}
    paths = [tmp_path / f"{threads}.npz" for threads in (1, 2)]
    for threads, path in enumerate(paths, 1):
        npzkit.save(path, arrays, threads=threads)
    assert paths[0].read_bytes() == paths[1].read_bytes()


@pytest.mark.remedy("Prepare them again.")
def test_arrays_are_prepared_for_one_archive():
    """What was written has let go of its arrays: another archive takes another preparation."""
    arrays = {"x": np.arange(3)}
    prepared = PreparedArchive(arrays)
    prepared.write(io.BytesIO())
    with pytest.raises(ClosedArchiveError, match="were written"):
        prepared.write(io.BytesIO())
    stream = io.BytesIO()
    PreparedArchive(arrays).write(stream)
    assert npzkit.open(stream)["x"].tolist() == [0, 1, 2]


def test_attributes_are_saved_by_key(tmp_path):
    """Attributes come with plain arrays, those of nested data, and those that are split."""
    path = tmp_path / "a.npz"
    masked = np.ma.array([1.0, 2.0], mask=[True, False])
    arrays = {"t": np.arange(3), "n": np.arange(2), "layer": {"w": np.eye(2)}, "m": masked}
    attrs = {"t": {"unit": "K"}, "layer/w": {"rank": 2}, "m": {"sensor": "b"}}
    npzkit.save(path, arrays, attrs=attrs, masked="split")
    with npzkit.open(path) as npz:
        found = {key: dict(npz.info(key).attrs) for key in npz}
        np.testing.assert_array_equal(npz.join("m"), masked)
    assert found.items() >= {**attrs, "n": {}, "m.mask": {}}.items()
    assert npzkit.verify(path)


@pytest.mark.parametrize(
    ("attrs", "error"),
    [
        ({"unit": "K"}, "there is no array 'unit'; attributes are given by key"),
        ({"t": {"npzkit.dtype": "int4"}}, "reserved"),
    ],
)
def test_attributes_that_belong_to_no_array(tmp_path, attrs, error):
    """Attributes without a key, or of another, are refused before the old file is touched."""
    path = tmp_path / "a.npz"
    npzkit.save(path, {"old": np.arange(3)})
    with pytest.raises(ValueError, match=error):
        npzkit.save(path, {"t": np.arange(3)}, attrs=attrs)
    with npzkit.open(path) as npz:
        assert list(npz) == ["old"]
