"""Where npzkit is deliberately unlike numpy: each row of the guide's table, side by side."""

from __future__ import annotations

import io
import os
import re
from pathlib import Path

import npzkit
import numpy as np
import pytest
from children import all_forked, read_rest
from counting import CountingBytes
from forge import Member, archive, header, npy
from npzkit.errors import ChecksumError, NpyFormatError, UnsupportedError

X = np.arange(1000.0)


def test_mmap_mode_is_honoured(tmp_path):
    """numpy reads where it was asked to map; npzkit maps, and r+ changes the file."""
    np.savez(tmp_path / "a.npz", x=X)
    with np.load(tmp_path / "a.npz", mmap_mode="r") as theirs:
        assert not isinstance(theirs["x"], np.memmap)
    with npzkit.load(tmp_path / "a.npz", mmap_mode="r") as ours:
        assert isinstance(ours["x"], np.memmap)
    for module, changed in ((np, X[0]), (npzkit, 7)):
        with module.load(tmp_path / "a.npz", mmap_mode="r+") as npz:
            npz["x"][0] = 7
        assert np.load(tmp_path / "a.npz")["x"][0] == changed


def test_bytes_behind_an_array_are_an_error():
    """numpy skips the CRC where bytes follow the array; npzkit refuses them."""
    wrong = {"crc": 1}
    data = archive(Member("x.npy", npy(X) + b"!" * 10_000, central=wrong, local=wrong))
    assert np.array_equal(np.load(io.BytesIO(data))["x"], X)
    with pytest.raises(NpyFormatError, match="follow"):
        npzkit.open(data)["x"]


def test_a_bad_npy_member_is_an_error():
    """numpy returns the bytes of a .npy member that is no array; npzkit says so."""
    data = archive(Member("x.npy", b"not an array"))
    assert np.load(io.BytesIO(data))["x"] == b"not an array"
    with pytest.raises(NpyFormatError):
        npzkit.open(data)["x"]


def test_masks_are_never_lost(tmp_path):
    """numpy drops the mask of a masked array; npzkit refuses the array."""
    masked = np.ma.masked_array([1, 2], [True, False])
    stream = io.BytesIO()
    np.savez(stream, x=masked)
    stream.seek(0)
    assert not np.ma.isMaskedArray(np.load(stream)["x"])
    for save in (npzkit.savez, npzkit.savez_compressed):
        with pytest.raises(UnsupportedError, match="mask"):
            save(tmp_path / "a", x=masked)


def test_what_has_labels_is_refused(tmp_path):
    """numpy saves a table without its columns; npzkit says how to save them."""
    table = type("DataFrame", (), {"__array__": lambda *_, **options: X})
    table.__module__ = "pandas.core.frame"
    np.savez(tmp_path / "a.npz", x=table())
    assert np.array_equal(np.load(tmp_path / "a.npz")["x"], X)
    with pytest.raises(UnsupportedError, match="to_records"):
        npzkit.savez(tmp_path / "a.npz", x=table())


def test_any_name_is_a_key(tmp_path):
    """numpy cannot save under 'file'; npzkit's mapping takes it."""
    with pytest.raises(TypeError):
        np.savez(tmp_path / "a", file=X)
    npzkit.save(tmp_path / "a.npz", {"file": X, "arr_0": X, "allow_pickle": X})
    with np.load(tmp_path / "a.npz") as theirs:
        assert theirs.files == ["file", "arr_0", "allow_pickle"]


def test_a_failed_save_leaves_the_old_file(tmp_path):
    """numpy leaves a valid archive with keys missing; npzkit leaves the old one."""

    class Bad:
        def __reduce__(self):
            raise RuntimeError("cannot be pickled")

    arrays = {"a": X, "b": np.array([Bad()], dtype=object), "c": X}
    path = tmp_path / "a.npz"
    for module in (np, npzkit):
        module.savez(path, old=X)
        with pytest.raises(RuntimeError):
            module.savez(path, **arrays)
        with np.load(path) as npz:
            assert npz.files == (["a", "b"] if module is np else ["old"])


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_forked_workers_read_right(tmp_path):
    """Forked workers share numpy's file offset; npzkit's reads have none."""
    np.savez(tmp_path / "a.npz", x=X)
    with npzkit.open(tmp_path / "a.npz") as npz:

        def work(pipe):
            os.write(pipe, b"%d" % all(np.array_equal(npz["x"], X) for _ in range(200)))

        with all_forked([work] * 4) as pipes:
            assert [read_rest(pipe) for pipe in pipes] == [b"1"] * 4


def test_bfloat16_comes_back():
    """numpy returns two-byte voids for bfloat16; npzkit restores the dtype."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    stream = io.BytesIO()
    npzkit.save(stream, {"x": np.ones(3, ml_dtypes.bfloat16)})
    assert np.load(io.BytesIO(stream.getvalue()))["x"].dtype == "V2"
    assert npzkit.open(stream)["x"].dtype == ml_dtypes.bfloat16


def test_shape_and_dtype_without_loading():
    """numpy must load an array to tell its shape; npzkit reads its header."""
    wrong = {"crc": 1}
    npz = npzkit.open(archive(Member("x.npy", npy(X), central=wrong, local=wrong)))
    assert npz.info("x").shape == (1000,)
    assert "(1000,)" in npz.summary()
    with pytest.raises(ChecksumError):
        npz["x"]


def test_levels_and_methods_per_array(tmp_path):
    """numpy has one level for a whole archive; npzkit one for each array."""
    with npzkit.NpzWriter(tmp_path / "a.npz", compression="deflated") as w:
        w.add("fast", np.tile(X, 50), level=1)
        w.add("small", np.tile(X, 50), level=9)
        w.add("mapped", X, compression="stored")
    with npzkit.open(tmp_path / "a.npz") as npz:
        assert npz.info("small").compressed_size < npz.info("fast").compressed_size
        assert npz.info("mapped").method == "stored"


@pytest.mark.parametrize(
    "text",
    ["{'descr': ['<f8'], 'fortran_order': False, 'shape': ()}", "{'descr': '<f8', 'fortran_order': False, 'shape': (-1,)}",
     "{'descr': [('a',)], 'fortran_order': False, 'shape': ()}", "(" * 9000, "{'descr': '<f8', [1]: 2}",
     "{'descr': '<f8', 'fortran_order': False, 'shape': (99999999999999999999,)}"],
)  # fmt: skip
def test_hostile_headers_give_one_error(text):
    """Where numpy raises whatever comes along, npzkit raises NpyFormatError."""
    data = archive(Member("x.npy", header(text) + bytes(8)))
    with pytest.raises(NpyFormatError):
        npzkit.open(data)["x"]


def test_stored_data_is_aligned_for_maps(tmp_path):
    """numpy's arrays lie at any offset; npzkit's at multiples of 64."""
    for module, aligned in ((np, False), (npzkit, True)):
        module.savez(tmp_path / "a.npz", xy=X, z=X)
        with npzkit.open(tmp_path / "a.npz") as npz:
            assert all(npz.info(key).aligned for key in npz) == aligned


@pytest.mark.slow
@pytest.mark.parametrize("compression", ["stored", "deflated"])
def test_a_part_costs_a_part(compression):
    """numpy reads a whole array for its hundredth; npzkit's lazy array reads about that much."""
    weights = np.random.default_rng(0).standard_normal(4_000_000).astype("f4")
    stream = io.BytesIO()
    npzkit.save(stream, {"x": weights}, compression=compression)
    for load, share in (
        (lambda f: np.load(f)["x"][50_000:90_000], 0.9),
        (lambda f: npzkit.open(f).lazy("x")[50_000:90_000], 0.0),
    ):
        counting = CountingBytes(stream.getvalue())
        assert np.array_equal(load(counting), weights[50_000:90_000])
        whole = len(stream.getvalue())
        assert share * whole <= counting.count
        if not share:
            assert counting.count < 0.06 * whole


@pytest.mark.slow
def test_a_second_part_does_not_start_over():
    """numpy inflates from the start at each access; npzkit from a point it kept."""
    noise = np.random.default_rng(0).standard_normal(2_500_000).astype("f4")
    stream = io.BytesIO()
    np.savez_compressed(stream, x=noise)
    counting = CountingBytes(stream.getvalue())
    with npzkit.open(counting) as npz:
        first = npz.lazy("x")[2_400_000:2_400_010]
        counting.count = 0
        second = npz.lazy("x")[2_100_000:2_100_010]
    assert np.array_equal(first, noise[2_400_000:2_400_010])
    assert np.array_equal(second, noise[2_100_000:2_100_010])
    assert counting.count < len(stream.getvalue()) / 3


def test_arrays_larger_than_memory(tmp_path):
    """numpy saves what is in memory; npzkit takes an array piece by piece."""
    with npzkit.NpzWriter(tmp_path / "a.npz") as w, w.create("x", (300, 1000), "f8") as dst:
        for start in range(200, -1, -100):
            dst[start : start + 100] = np.arange(start, start + 100)[:, None]
    with np.load(tmp_path / "a.npz") as theirs:
        assert np.array_equal(theirs["x"][:, 5], np.arange(300))


def test_an_archive_is_added_to(tmp_path):
    """np.savez's archive is added to and changed where it lies, and np.load reads it."""
    path = tmp_path / "a.npz"
    np.savez(path, x=X, y=X + 1)
    before = path.read_bytes()
    with npzkit.NpzWriter(path, "a", auto_repack=False) as w:
        w["z"] = X + 2
        del w["x"]
    assert path.read_bytes().startswith(before)
    with np.load(path) as npz:
        assert {key: npz[key].tolist() for key in npz} == {
            "y": (X + 1).tolist(),
            "z": (X + 2).tolist(),
        }


ROWS = {
    "ignores `mmap_mode` for an archive": test_mmap_mode_is_honoured,
    "reads a complete array for a part of it": test_a_part_costs_a_part,
    "decompresses from the start for each part": test_a_second_part_does_not_start_over,
    "needs an array in memory to save it": test_arrays_larger_than_memory,
    "does not check an array with other bytes behind it": test_bytes_behind_an_array_are_an_error,
    "returns bytes for a `.npy` member that is not an array": test_a_bad_npy_member_is_an_error,
    "drops the mask of a masked array silently": test_masks_are_never_lost,
    "drops columns of a pandas DataFrame, a unit, coordinates": test_what_has_labels_is_refused,
    "cannot save arrays under some keys (`file`, `allow_pickle`, `arr_0`)": test_any_name_is_a_key,
    "leaves an archive without some arrays after a failed save": test_a_failed_save_leaves_the_old_file,
    "reads wrong data in forked workers": test_forked_workers_read_right,
    "returns bfloat16 as void": test_bfloat16_comes_back,
    "shows shape and dtype only after loading": test_shape_and_dtype_without_loading,
    "cannot add to an archive or change it": test_an_archive_is_added_to,
    "has one compression level for all arrays": test_levels_and_methods_per_array,
    "raises many kinds of exceptions for bad headers": test_hostile_headers_give_one_error,
    "writes data at any offset": test_stored_data_is_aligned_for_maps,
}
"""The test of each row of the guide's table, by what NumPy does."""


def test_each_row_has_a_test():
    """The table has the rows of these tests, in this order, and no test is without a row."""
    page = Path(npzkit.__file__).with_name("guide") / "numpy.md"
    section = page.read_text(encoding="utf-8").split("## Differences")[1].split("\n## ")[0]
    _, *rows = re.findall(r"^\| (.*?) \|", section, re.MULTILINE)
    assert rows == list(ROWS)
    tests = {name for name in globals() if name.startswith("test_")}
    assert tests == {"test_each_row_has_a_test", *(test.__name__ for test in ROWS.values())}
