"""Files that other programs change while they are written."""

from __future__ import annotations

import errno
import os

import npzkit
import numpy as np
import pytest
from npzkit.files import disk


class WithoutPositions:
    """An `os` that reads and writes only at a file's position, as that of Windows does."""

    def __getattr__(self, name):
        if name in ("pread", "preadv", "pwrite"):
            raise AttributeError(name)
        return getattr(os, name)


@pytest.mark.parametrize("has_positions", [True, False])
@pytest.mark.parametrize("left", [0, 3000])
def test_a_file_that_is_truncated_while_it_is_written(tmp_path, monkeypatch, has_positions, left):
    """The array cannot be completed, the writer says why, and the older archive stays."""
    if not has_positions:
        monkeypatch.setattr(disk, "os", WithoutPositions())
    path = tmp_path / "a.npz"
    npzkit.save(path, {"x": np.arange(3)})
    with (
        pytest.raises(OSError, match="truncated while it was written") as found,
        npzkit.NpzWriter(path) as writer,
        writer.create("x", (1000,), "f8") as array,
    ):
        array[:] = 1
        (temporary,) = set(tmp_path.iterdir()) - {path}
        os.truncate(temporary, left)
    assert found.value.errno == errno.EIO
    assert list(tmp_path.iterdir()) == [path]
    with npzkit.open(path) as npz:
        assert npz["x"].tolist() == [0, 1, 2]
