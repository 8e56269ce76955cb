"""What is known of an archive without reading its data."""

from __future__ import annotations

import io
import zipfile

import npzkit
import numpy as np
import pytest
from counting import sizes_read
from deep import extent


def test_info_reads_headers_only(path, arrays):
    """info tells shape, dtype, order, sizes and place."""
    with npzkit.open(path) as npz:
        method = zipfile.ZipFile(path).infolist()[0].compress_type
        for key, array in arrays.items():
            array = np.asanyarray(array)
            info = npz.info(key)
            member = npz.zip.getinfo(key + ".npy")
            assert (info.key, info.member) == (key, key + ".npy")
            assert (info.shape, info.dtype, info.nbytes) == (array.shape, array.dtype, array.nbytes)
            assert info.fortran_order == (array.flags.f_contiguous and not array.flags.c_contiguous)
            assert (info.compressed_size, info.crc32) == (member.compress_size, member.CRC)
            assert info.method == {0: "stored", 8: "deflated"}[method]
            assert info.aligned == (method == 0)
            assert info.seekable == (method == 0 or member.file_size > 1 << 18)
            if method == 0:
                assert path.read_bytes()[info.data_offset :][: array.nbytes] == array.tobytes("A")


def test_repr_and_summary(path, arrays):
    """repr is numpy's; summary lists every member with shape, dtype, size and method."""
    with npzkit.open(str(path)) as npz:
        assert (
            repr(npz)
            == f"NpzFile {str(path)!r} with keys: weights, fortran, strided, big_endian, empty..."
        )
        lines = npz.summary().splitlines()
        assert len(lines) == len(arrays) + 3
        assert "(200, 300)" in lines[2]
        assert "float64" in lines[2]
        assert "468.8 KiB" in lines[2]
    with npzkit.open(path.read_bytes()) as npz:
        assert repr(npz).startswith("NpzFile 'object' with keys: ")


def test_metadata(path, tmp_path):
    """Metadata is a read-only mapping; another program's comment is none."""
    with npzkit.open(path) as npz:
        assert dict(npz.metadata) == {"npzkit.tree": ["flat"], "step": 7}
        with pytest.raises(TypeError):
            npz.metadata["step"] = 8
    for comment in (b"", b"hello", b"{broken", b"[1, 2]", b"{" * 60_000, b'{"a": ' + b"[" * 60_000):
        stream = io.BytesIO()
        with zipfile.ZipFile(stream, "w") as archive:
            archive.comment = comment
        assert dict(npzkit.open(stream).metadata) == {}


def test_info_reads_no_data(tmp_path, monkeypatch):
    """Describing many megabytes reads a few kilobytes; so does opening them."""
    path = tmp_path / "a.npz"
    array = np.random.default_rng(0).integers(0, 9, extent(2_500_000, 12_000_000))
    npzkit.save(path, {"stored": array})
    with npzkit.NpzWriter(tmp_path / "b.npz") as w:
        w.add("deflated", array[:1_000_000], compression="deflated")
    read = sizes_read(monkeypatch)
    for name, key in (("a.npz", "stored"), ("b.npz", "deflated")):
        with npzkit.open(tmp_path / name) as npz:
            assert npz.info(key).shape
        assert sum(read) < 300_000
        read.clear()
