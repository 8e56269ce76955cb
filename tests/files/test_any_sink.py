"""Where an archive may go: not under the name of a file of another format."""

from __future__ import annotations

import io
import re
from pathlib import Path

import npzkit
import numpy as np
import pytest
from npzkit.errors import UnsupportedError

from tables import each_row


@each_row("name", ["x.npy", "x.H5", "x.hdf5", "x.safetensors", "x.pt", "x.zarr", "x.mat"])  # fmt: skip
@each_row(
    "write",
    [
        lambda path: npzkit.save(path, {"a": np.ones(3)}),
        lambda path: npzkit.save(path, {"a": np.ones(300_000)}),
        npzkit.NpzWriter,
        lambda path: npzkit.NpzWriter(path, "x"),
        lambda path: npzkit.NpzWriter(path, "a"),
        lambda path: npzkit.pack(path, [("a", io.BytesIO())]),
    ],
)
def test_the_name_of_another_format_is_refused(tmp_path, name, write):
    """A zip archive would be taken for what its name says; the error says what to do instead."""
    with pytest.raises(UnsupportedError, match=r"Name it \.npz"):
        write(str(tmp_path / name))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.remedy("then writes that format.")
@pytest.mark.parametrize("suffix", [".h5", ".safetensors", ".zarr", ".mat"])
def test_what_the_refusal_of_a_name_says_works(here, suffix):
    """The archive is named .npz, and converted."""
    with pytest.raises(UnsupportedError) as caught:
        npzkit.save(f"x{suffix}", {"a": np.ones(3)})
    pytest.importorskip({".h5": "h5py", ".mat": "scipy"}.get(suffix, suffix[1:]))
    npzkit.save("x.npz", {"a": np.ones(3)})
    (call,) = re.findall(r"npzkit\.convert\(.*\)", caught.value.remedy)
    exec(call, {"npzkit": npzkit, "path": f"x{suffix}"})
    assert Path(f"x{suffix}").exists()


@pytest.mark.parametrize(
    ("suffix", "read"),
    [
        pytest.param(".npy", np.load, marks=pytest.mark.remedy("numpy.save writes a .npy, of one")),
        pytest.param(
            ".pt", npzkit.load_tree,
            marks=pytest.mark.remedy("npzkit.load_tree reads it as torch.load would."),
        ),
    ],
)  # fmt: skip
def test_what_is_named_npz_is_read(here, suffix, read):
    """The archive is named .npz, and read so; a .npy of one array is NumPy's."""
    with pytest.raises(UnsupportedError):
        npzkit.save(f"x{suffix}", {"a": np.ones(3)})
    npzkit.save("x.npz", {"a": np.ones(3)})
    assert read("x.npz")["a"].tolist() == [1, 1, 1]
    np.save("x.npy", np.ones(3))
    assert npzkit.load("x.npy").tolist() == [1, 1, 1]
