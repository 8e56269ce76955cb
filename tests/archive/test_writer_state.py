"""A writer that fails, is forgotten, or is inherited by a forked child."""

from __future__ import annotations

import npzkit
import npzkit.archive.written
import npzkit.maintenance.repack
import numpy as np
import pytest
from archives import NOISE, by_save, check_accepted
from npzkit.errors import ClosedArchiveError


@pytest.fixture
def path(tmp_path):
    """Three arrays: x, y and z."""
    return by_save(tmp_path / "a.npz")


def test_an_exception_takes_back_what_was_not_committed(path):
    """The file ends where it did at the last commit, which may be one of the same block."""
    before = path.read_bytes()
    with pytest.raises(KeyError), npzkit.NpzWriter(path, "a") as w:
        w["new"] = NOISE
        w.rename("x", "renamed")
        raise KeyError
    assert path.read_bytes() == before
    with pytest.raises(KeyError), npzkit.NpzWriter(path, "a") as w:
        w["one"] = NOISE
        w.commit()
        middle = path.read_bytes()
        w["two"] = NOISE
        w.create("three", 100_000, "f8")
        raise KeyError
    assert path.read_bytes() == middle
    check_accepted(path, one=NOISE, x=np.arange(4))
    with pytest.raises(ClosedArchiveError):
        w["four"] = NOISE


def test_a_forgotten_writer_leaves_the_last_commit(path):
    """A writer that is dropped without close warns, and takes back what it did not commit."""
    w = npzkit.NpzWriter(path, "a")
    w["one"] = NOISE
    w.commit()
    middle = path.read_bytes()
    w["two"] = NOISE
    with pytest.warns(ResourceWarning, match="never closed"):
        del w
    assert path.read_bytes() == middle
