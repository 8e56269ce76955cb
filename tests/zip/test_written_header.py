"""Headers around 4 GiB: a lower limit stands for it, so that the arrays are small."""

from __future__ import annotations

import importlib
import struct
import sys

import npzkit
import numpy as np
import pytest
from deep import DEEP, by_turns
from npzkit.zip import written_header

from tables import each_row

LIMIT = 5 << 19
"""What stands for 4 GiB. Arrays that are smaller than 2 MiB are not written one by one."""
HEAD = 128
"""Bytes of the NPY header of each array."""
NOISE = np.random.default_rng(0).integers(0, 256, LIMIT + 2, "u1")


def zipfile_for(method):
    """Return a module that reads members of a method, or skip."""
    if method != "zstd" or sys.version_info >= (3, 14):
        return importlib.import_module("zipfile")
    return pytest.importorskip("backports.zstd.zipfile")


def write(path, way, array, **options):
    """Write an array, and one that begins after it."""
    if way == "save":
        npzkit.save(path, {"large": array, "after": np.arange(9)}, **options)
        return
    if way == "append":
        npzkit.save(path, {"before": np.arange(5)})
    with npzkit.NpzWriter(path, "a" if way == "append" else "w", **options) as w:
        if way in ("add", "append"):
            w["large"] = array
        else:
            count = len(array) if way == "create" else None
            with w.create("large", (count,), "u1") as dst:
                for start in range(0, len(array), 1_000_000):
                    dst.append(array[start : start + 1_000_000])
        w["after"] = np.arange(9)
        if way == "append":
            w.rename("large", "moved")
            w.commit()
            w.rename("moved", "large")


def check(path, array, zipfile):
    """Read both arrays by npzkit and by zipfile; zip64 is used if a size needs it."""
    with npzkit.open(path, strict=True) as npz:
        assert npz.verify().ok
        assert np.array_equal(npz["large"], array)
        assert np.array_equal(npz.lazy("large")[-9:], array[-9:])
        assert np.array_equal(npz["after"], np.arange(9))
    with zipfile.ZipFile(path) as theirs:
        assert theirs.testzip() is None
        info = theirs.getinfo("large.npy")
        assert theirs.read(info)[HEAD:] == array.tobytes()
        with theirs.open("after.npy") as file:
            assert np.array_equal(np.lib.format.read_array(file), np.arange(9))
    with path.open("rb") as file:
        file.seek(info.header_offset)
        fields = struct.unpack("<4s5H3L2H", file.read(30))
    is_large = max(info.file_size, info.compress_size) >= LIMIT
    sizes = (0xFFFFFFFF,) * 2 if is_large else (info.compress_size, info.file_size)
    assert fields[7:9] == sizes
    assert fields[1] == max(63 if info.compress_type == 93 else 20, 45 * is_large)
    return is_large


@pytest.mark.slow
@each_row("method", ["stored", "deflated", "zstd"])
@each_row("way", ["save", "add", "create", "grow", "append"])
def test_sizes_around_4_gib(method, way, tmp_path, monkeypatch):
    """However an array is written and copied, headers have zip64 only if its sizes need it.

    Noise gets larger when it is compressed, so it may need zip64 although its size does not.
    """
    zipfile = zipfile_for(method)
    monkeypatch.setattr(written_header, "LARGE", LIMIT)
    path, copy, again = tmp_path / "a.npz", tmp_path / "copy.npz", tmp_path / "again.npz"
    large = set()
    sizes = (LIMIT * 8 // 9, LIMIT - 1, LIMIT, LIMIT + 1, LIMIT - 20)
    for size, values in by_turns(sizes, [NOISE, np.zeros_like(NOISE)]):
        array = values[: size - HEAD]
        write(path, way, array, compression=method, level=None if method == "stored" else 1)
        if check(path, array, zipfile):
            large.add(size)
        npzkit.repack(path, copy, overwrite=True)
        check(copy, array, zipfile)
        npzkit.repack(path, again, compression=method, chunk_size=1 << 16, overwrite=True)
        check(again, array, zipfile)
    near = [LIMIT - 20, LIMIT - 1] if DEEP else [LIMIT - 20]
    assert large == {*near * (method != "stored"), LIMIT, LIMIT + 1}
