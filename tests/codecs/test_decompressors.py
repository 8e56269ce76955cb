"""Compression methods: limited output, exact ends, and fallbacks for missing libraries."""

from __future__ import annotations

import bz2
import importlib
import importlib.util
import io
import subprocess
import sys
import zlib

import npzkit
import numpy as np
import pytest
from deep import extent
from forge import Member, archive
from hypothesis import given
from hypothesis import strategies as st
from npzkit.codecs import checksum, decompressors
from npzkit.codecs import coding as codecs
from npzkit.errors import NpzkitError, UnsupportedError

FIXTURES = {
    "deflated": "infozip_deflated.npz", "deflate64": "7zip_deflate64.npz", "bzip2": "7zip_bzip2.npz",
    "lzma": "7zip_lzma.npz", "zstd": "zipfile_zstandard.npz",
}  # fmt: skip
DECODERS = [
    "deflated", "deflate64 by zipfile_deflate64", "deflate64 by inflate64", "bzip2", "lzma", "zstd",
]  # fmt: skip


@pytest.fixture(params=DECODERS)
def method(request, deflate64_by):
    """A compression method; Deflate64 appears once per library."""
    name, _, library = request.param.partition(" by ")
    if library:
        deflate64_by(library)
    if name == "zstd":
        pytest.importorskip("backports.zstd" if sys.version_info < (3, 14) else "compression.zstd")
    return name


def stream_of(method, fixtures):
    """Return a member's compressed bytes, its content, and its unusual header fields."""
    data = (fixtures / FIXTURES[method]).read_bytes()
    with npzkit.open(data) as npz:
        info, member = npz.info("y"), npz.zip.getinfo("y.npy")
        raw = data[info.data_offset : info.data_offset + info.compressed_size]
        content = npz.stream("y").read()
    return raw, content, {"method": member.compress_type, "flags": member.flag_bits & 2}


def test_functions_of_libdeflate_that_cannot_be_called(monkeypatch):
    """A missing package, a module that is no library and a missing function give None."""
    assert checksum.exported_functions("deflate._deflate", "no_such_function") is None
    for module in (None, importlib.import_module("json")):
        monkeypatch.setitem(sys.modules, "deflate._deflate", module)
        assert (
            checksum.exported_functions("deflate._deflate", "libdeflate_free_decompressor") is None
        )


@given(st.lists(st.binary(max_size=200), max_size=5))
def test_checksums_combine(parts):
    """The CRC of the whole is combined from those of its parts, by isal and by the fallback."""
    for combine in (checksum.crc32_combine, checksum._crc32_combine):
        crc = 0
        for part in parts:
            crc = combine(crc, checksum.crc32(part), len(part))
        assert crc == zlib.crc32(b"".join(parts))


def test_the_fallback_combines_long_parts():
    """The fallback is correct for sizes beyond its block of zeros."""
    data = bytes(range(256)) * 1000
    assert checksum._crc32_combine(zlib.crc32(b"x"), zlib.crc32(data), len(data)) == zlib.crc32(
        b"x" + data
    )


@given(st.binary(max_size=3000), st.integers(1, 500), st.integers(1, 500))
def test_output_is_bounded(data, step, most):
    """For any input sizes, a decoder returns no more than asked for, and everything in the end."""
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


def test_damaged_streams_give_one_error(method, fixtures):
    """With any byte of a stream flipped, reading gives NpzkitError or the right array, in any method."""
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


def test_left_over_bytes_are_found(method, fixtures):
    """A compressed stream followed by other bytes in its member is an error in any method."""
    raw, content, forged = stream_of(method, fixtures)
    for surplus in (b"", b"!", b"!" * 100, b"!" * 100_000):
        made = Member(
            "y.npy",
            content,
            method=forged["method"],
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


def test_streams_cut_anywhere_are_refused(method, fixtures):
    """A truncated compressed stream gives NpzkitError in any method."""
    raw, content, forged = stream_of(method, fixtures)
    # LZMA, which need not mark its end, keeps nothing in its last five bytes.
    spare = 5 if method == "lzma" else 0
    for size in (0, 1, 5, 20, len(raw) // 2, *range(len(raw) - spare - 17, len(raw) - spare)):
        made = Member(
            "y.npy",
            content,
            method=forged["method"],
            raw=raw[:size],
            central=forged,
            local=forged,
        )
        with pytest.raises(NpzkitError):
            npzkit.open(archive(made))["y"]


@pytest.mark.parametrize("most", [1, 7, 1 << 20])
def test_every_decoder_keeps_its_bounds(method, most, fixtures):
    """No decoder returns more than asked for, or ends before everything was returned."""
    raw, content, forged = stream_of(method, fixtures)
    decoder = decompressors.decompressor(forged["method"], len(raw), len(content))
    out, fed = b"", 0
    while len(out) < len(content):
        assert not decoder.eof
        piece = raw[fed : fed + 100] if decoder.needs_input else b""
        fed += len(piece)
        found = decoder.decompress(piece, most)
        assert len(found) <= most
        out += found
    assert out == content
    if not decoder.eof:
        assert not decoder.decompress(raw[fed:], 1)
    assert decoder.eof or not decoder.ends
    assert decoder.unused_size == 0


def test_streams_of_noise_give_one_error(method, fixtures):
    """Random bytes instead of a compressed stream give NpzkitError in any method."""
    raw, content, forged = stream_of(method, fixtures)
    for seed in range(40):
        noise = raw[: seed % 3 * 9] + np.random.default_rng(seed).bytes(200)
        made = Member(
            "y.npy", content, method=forged["method"], raw=noise, central=forged, local=forged
        )
        with pytest.raises(NpzkitError):
            npzkit.open(archive(made))["y"]


@pytest.mark.parametrize(
    ("missing", "method", "named"),
    [
        (["zipfile_deflate64", "inflate64"], "deflate64", ["inflate64", "npzkit\\[deflate64]"]),
        (["backports.zstd"], "zstd", ["npzkit\\[zstd]"]),
    ],
)
def test_a_missing_library_is_named(missing, method, named, fixtures, hide_library):
    """If a decoder is not installed, every way to read the member says what to install."""
    if method == "zstd" and sys.version_info >= (3, 14):
        pytest.skip("Python has Zstandard itself from 3.14 on")
    for name in missing:
        hide_library(name)
    with npzkit.open(fixtures / FIXTURES[method]) as npz:
        for name in named:
            with pytest.raises(UnsupportedError, match=f"pip install.*{name}"):
                npz["x"]
        assert sorted(npz.files) == ["scalar", "x", "y"]


def test_deflate64_is_decoded_by_zipfile_deflate64_where_installed():
    """The decoder of the extra deflate64 is preferred to inflate64."""
    pytest.importorskip("inflate64")
    decoder, _ = decompressors._import_deflate64()
    is_here = importlib.util.find_spec("zipfile_deflate64") is not None
    assert decoder.__name__ == ("Deflate64" if is_here else "Inflater")


def test_a_broken_zipfile_deflate64_is_passed_over(tmp_path, monkeypatch, hide_library, fixtures):
    """Deflate64 is read by inflate64 if zipfile-deflate64 was built for another Python."""
    pytest.importorskip("inflate64")
    folder = tmp_path / "zipfile_deflate64"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "deflate64.py").write_text("raise ImportError('undefined symbol')")
    hide_library("zipfile_deflate64")
    monkeypatch.delitem(sys.modules, "zipfile_deflate64")
    monkeypatch.syspath_prepend(tmp_path)
    with npzkit.open(fixtures / FIXTURES["deflate64"]) as npz:
        assert npz["x"].shape == (4, 3)


def test_deflate64_leaves_zipfile_alone(fixtures):
    """Reading Deflate64 does not patch the standard library."""
    import zipfile

    before = zipfile.ZipExtFile.__init__
    with npzkit.open(fixtures / FIXTURES["deflate64"]) as npz:
        assert npz["x"].shape == (4, 3)
    assert zipfile.ZipExtFile.__init__ is before
    assert "zipfile_deflate64" not in sys.modules


def test_zlib_stands_in_for_missing_libraries():
    """Without isal and zlib-ng, zlib reads and writes everything."""
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
    """A member of zeros that is compressed to a thousandth is streamed in little memory."""
    import tracemalloc

    count = extent(4, 64)

    raw, encoder = [], zlib.compressobj(9, zlib.DEFLATED, -15)
    crc, zeros = 0, bytes(1 << 24)
    for _ in range(count):
        raw.append(encoder.compress(zeros))
        crc = zlib.crc32(zeros, crc)
    raw.append(encoder.flush())
    sizes = {"usize": count << 24, "crc": crc}
    data = archive(Member("zeros", b"", method=8, raw=b"".join(raw), central=sizes, local=sizes))
    npz = npzkit.open(data)
    tracemalloc.start()
    stream, found = npz.stream("zeros"), 0
    while piece := stream.read(1 << 20):
        found += len(piece)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found == count << 24
    assert peak < 16 << 20


def test_names_and_numbers():
    """Methods have names, and only those that npzkit can write are accepted for writing."""
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
