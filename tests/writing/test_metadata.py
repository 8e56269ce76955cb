"""The metadata of an archive that is appended to."""

from __future__ import annotations

import forge
import npzkit
import numpy as np
import pytest
from archives import NOISE, by_save, check_accepted, listing


@pytest.fixture
def path(tmp_path):
    """Three arrays: x, y and z."""
    return by_save(tmp_path / "a.npz")


def test_metadata_is_kept_and_merged(path):
    """What is given is added to what is there, and may be changed or removed until close."""
    with npzkit.NpzWriter(path, "a", metadata={"loss": 0.5}) as w:
        assert w.metadata == {"step": 1, "loss": 0.5}
        w.metadata["step"] = 2
    with npzkit.open(path) as npz:
        assert npz.metadata == {"step": 2, "loss": 0.5}
    with npzkit.NpzWriter(path, "a") as w:
        w["new"] = np.arange(3)
    with npzkit.NpzWriter(path, "a") as w:
        assert w.metadata == {"step": 2, "loss": 0.5}
        w.metadata.clear()
    with npzkit.open(path) as npz:
        assert npz.metadata == {}
        assert npz.files == ["x", "y", "z", "new"]


def test_bad_metadata_loses_nothing(path):
    """A commit refuses metadata that cannot be written, and goes through without it."""
    with npzkit.NpzWriter(path, "a") as w:
        w["new"] = NOISE
        w.metadata["bad"] = np.arange(3)
        with pytest.raises(TypeError):
            w.commit()
        del w.metadata["bad"]
        kept, w.metadata = w.metadata, ["bad"]
        with pytest.raises(TypeError, match="must be a mapping, not list"):
            w.commit()
        w.metadata = kept
        w.commit()
    check_accepted(path, new=NOISE)
    before = path.read_bytes()
    w = npzkit.NpzWriter(path, "a")
    w["lost"] = NOISE
    w.metadata[3] = 4
    with pytest.raises(TypeError):
        w.close()
    assert path.read_bytes() == before


@pytest.mark.parametrize("comment", [b"not JSON", b'{"broken": ', b"\xff\x00", b'{ "spaced" : 1 }'])
def test_a_foreign_comment_is_kept(tmp_path, comment):
    """Another program's comment stays, byte for byte, until metadata takes its place."""
    path = tmp_path / "a.npz"
    path.write_bytes(forge.archive(forge.Member("x.npy", forge.npy(np.ones(3))), comment=comment))
    with npzkit.NpzWriter(path, "a", auto_repack=False) as w:
        w["new"] = np.arange(3)
        w.commit()
        w.rename("new", "newer")
    assert listing(path)[0] == comment
    with npzkit.NpzWriter(path, "a") as w:
        del w["x"]
    assert listing(path)[0] == comment
    with npzkit.NpzWriter(path, "a") as w:
        w.metadata["step"] = 1
    with npzkit.open(path) as npz:
        assert npz.metadata["step"] == 1
