"""Compression methods: bounded, exact about their end, and replaceable."""

from __future__ import annotations

import bz2
import io
import subprocess
import sys
import zlib

import npzkit
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from npzkit import codecs, decompressors
from npzkit.errors import NpzkitError, UnsupportedError

FIXTURES = {
    "deflated": "infozip_deflated.npz", "deflate64": "7zip_deflate64.npz", "bzip2": "7zip_bzip2.npz",
    "lzma": "7zip_lzma.npz", "zstandard": "zipfile_zstandard.npz",
}  # fmt: skip


@given(st.lists(st.binary(max_size=200), max_size=5))
def test_checksums_combine(parts):
    """The CRC of a whole is combined from its parts', by isal and by the fallback."""
    for combine in (codecs.crc32_combine, codecs._crc32_combine):
        crc = 0
        for part in parts:
            crc = combine(crc, codecs.crc32(part), len(part))
        assert crc == zlib.crc32(b"".join(parts))


def test_the_fallback_combines_long_parts():
    """The fallback is right beyond its block of zeros."""
    data = bytes(range(256)) * 1000
    assert codecs._crc32_combine(zlib.crc32(b"x"), zlib.crc32(data), len(data)) == zlib.crc32(
        b"x" + data
    )


@given(st.binary(max_size=3000), st.integers(1, 500), st.integers(1, 500))
def test_output_is_bounded(data, step, most):
    """However it is fed, a decoder returns no more than asked for, and all in the end."""
    encoders = {
        codecs.DEFLATED: lambda: (
            zlib.compress(data, 6, wbits=-15) if sys.version_info >= (3, 11) else None
        ),
        codecs.BZIP2: lambda: bz2.compress(data),
    }
    for method, encode in encoders.items():
        raw = encode()
        decoder = decompressors.decompressor(method, len(raw), len(data))
        out, position = b"", 0
        while not decoder.eof:
            piece = b""
            if decoder.needs_input:
                piece, position = raw[position : position + step], position + step
            found = decoder.decompress(piece, most)
            assert len(found) <= most
            out += found
        assert out == data
        assert decoder.unused_size == 0


@pytest.mark.parametrize("method", FIXTURES)
def test_damaged_streams_give_one_error(method, fixtures):
    """Each byte of a member's stream flipped: an NpzkitError or the right array, in any method."""
    if method == "zstandard":
        pytest.importorskip("backports.zstd" if sys.version_info < (3, 14) else "compression.zstd")
    good = bytearray((fixtures / FIXTURES[method]).read_bytes())
    with npzkit.open(bytes(good)) as npz:
        expected, info = npz["y"], npz.info("y")
    assert info.method == method
    step = max(info.compressed_size // 150, 1)
    for position in range(info.data_offset, info.data_offset + info.compressed_size, step):
        changed = bytearray(good)
        changed[position] ^= 0x55
        try:
            found = npzkit.open(bytes(changed))["y"]
        except NpzkitError:
            continue
        assert np.array_equal(found, expected)


@pytest.mark.parametrize("method", FIXTURES)
def test_left_over_bytes_are_found(method, fixtures):
    """A compressed stream followed by more bytes in its member is an error in any method."""
    if method == "zstandard":
        pytest.importorskip("backports.zstd" if sys.version_info < (3, 14) else "compression.zstd")
    from forge import Member, archive

    data = (fixtures / FIXTURES[method]).read_bytes()
    with npzkit.open(data) as npz:
        info, member = npz.info("y"), npz.zip.getinfo("y.npy")
        raw = data[info.data_offset : info.data_offset + info.compressed_size]
        content = npz.stream("y").read()
    forged = {"method": member.compress_type, "flags": member.flag_bits & 2}
    for surplus in (b"", b"!", b"!" * 100, b"!" * 100_000):
        made = Member(
            "y.npy",
            content,
            method=member.compress_type,
            raw=raw + surplus,
            central=forged,
            local=forged,
        )
        npz = npzkit.open(archive(made))
        if surplus:
            with pytest.raises(NpzkitError):
                npz["y"]
        else:
            assert npz["y"].shape == (20, 15)


@pytest.mark.parametrize(
    ("missing", "method"), [("zipfile_deflate64", "deflate64"), ("backports.zstd", "zstandard")]
)
def test_a_missing_library_is_named(missing, method, fixtures, monkeypatch):
    """A member whose decoder is not installed says what to install."""
    if method == "zstandard" and sys.version_info >= (3, 14):
        pytest.skip("Python has Zstandard itself from 3.14 on")
    decompressors._import_deflate64.cache_clear()
    decompressors._import_zstandard.cache_clear()
    real = decompressors.importlib.util.find_spec
    monkeypatch.setattr(
        decompressors.importlib.util,
        "find_spec",
        lambda name: None if name == missing else real(name),
    )
    for name in [name for name in sys.modules if name.startswith("backports.zstd")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, missing, None)
    with npzkit.open(fixtures / FIXTURES[method]) as npz:
        with pytest.raises(UnsupportedError, match="pip install"):
            npz["x"]
        assert sorted(npz.files) == ["scalar", "x", "y"]


def test_deflate64_leaves_zipfile_alone(fixtures):
    """Reading Deflate64 patches nothing in the standard library."""
    import zipfile

    before = zipfile.ZipExtFile.__init__
    with npzkit.open(fixtures / FIXTURES["deflate64"]) as npz:
        assert npz["x"].shape == (4, 3)
    assert zipfile.ZipExtFile.__init__ is before
    assert "zipfile_deflate64" not in sys.modules


def test_zlib_stands_in_for_missing_libraries():
    """Without isal and zlib-ng everything is read and written by zlib."""
    code = (
        "import sys\n"
        "for name in ('isal', 'isal.isal_zlib', 'zlib_ng', 'zlib_ng.zlib_ng'): sys.modules[name] = None\n"
        "import io, npzkit, numpy as np\n"
        "stream = io.BytesIO(); arrays = {'a': np.arange(100_000), 'b': np.eye(3)}\n"
        "for compression in ('stored', 'deflated'):\n"
        "    npzkit.save(stream, arrays, compression=compression)\n"
        "    npz = npzkit.open(stream)\n"
        "    assert all((array == npz[key]).all() for key, array in arrays.items())\n"
        "    assert all((array == arrays[key]).all() for key, array in npz.load_all(threads=2).items())\n"
        "    stream = io.BytesIO()\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_bomb_streams_in_bounded_memory():
    """A gigabyte of zeros in a megabyte streams without being held."""
    import tracemalloc

    raw, encoder = [], zlib.compressobj(9, zlib.DEFLATED, -15)
    crc, zeros = 0, bytes(1 << 24)
    for _ in range(16):
        raw.append(encoder.compress(zeros))
        crc = zlib.crc32(zeros, crc)
    raw.append(encoder.flush())
    from forge import Member, archive

    sizes = {"usize": 16 << 24, "crc": crc}
    data = archive(Member("zeros", b"", method=8, raw=b"".join(raw), central=sizes, local=sizes))
    npz = npzkit.open(data)
    tracemalloc.start()
    stream, size = npz.stream("zeros"), 0
    while piece := stream.read(1 << 20):
        size += len(piece)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert size == 16 << 24
    assert peak < 16 << 20


def test_names_and_numbers():
    """Methods are named; only what can be written is taken for writing."""
    assert [codecs.method_name(n) for n in (0, 8, 9, 97)] == [
        "stored",
        "deflated",
        "deflate64",
        "method 97",
    ]
    assert [codecs.method_number(c) for c in ("stored", "deflated", 0, 8)] == [0, 8, 0, 8]
    with pytest.raises(UnsupportedError):
        decompressors.decompressor(97, 0, 0)
    stream = io.BytesIO()
    with pytest.raises(ValueError, match="compression"):
        npzkit.save(stream, {}, compression="bzip2")
