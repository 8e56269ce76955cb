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
from forge import Member, archive, npy
from hypothesis import given
from hypothesis import strategies as st
from npzkit.codecs import checksum, decompressors
from npzkit.codecs import coding as codecs
from npzkit.errors import NpzkitError, UnsupportedError
from remedies import brought_by
from systems import need_decoder_of

from tables import each_row

IS_NEW = sys.version_info >= (3, 14)
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


@pytest.mark.slow
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
        pytest.param(
            ["zipfile_deflate64", "inflate64"], "deflate64", ["inflate64", 'deflate64]"'],
            marks=pytest.mark.remedy("Install one of them: python -m pip install inflate64; "),
        ),
        pytest.param(
            ["backports.zstd"], "zstd", ['zstd]"'],
            marks=pytest.mark.skipif(IS_NEW, reason="Python has Zstandard itself"),
        ),
    ],
)  # fmt: skip
def test_a_missing_library_is_named(missing, method, named, fixtures, hide_library, monkeypatch):
    """If a decoder is not installed, reading says what to install; any of it reads the member."""
    for name in missing:
        hide_library(name)
    with npzkit.open(fixtures / FIXTURES[method]) as npz:
        with pytest.raises(UnsupportedError, match="pip install") as caught:
            npz["x"]
        assert all(name in caught.value.remedy for name in named)
        assert sorted(npz.files) == ["scalar", "x", "y"]
    monkeypatch.undo()
    if not any(map(importlib.util.find_spec, missing)):
        pytest.skip("none of them is installed")
    with npzkit.open(fixtures / FIXTURES[method]) as npz:
        assert npz["x"].shape == (4, 3)


def test_the_extras_that_remedies_name():
    """Each brings the package that is missing."""
    assert brought_by("deflate64") == {"zipfile-deflate64"}
    assert brought_by("zstd") == {"backports-zstd"}


@pytest.mark.remedy("Download the file again, or read the other members one by one.")
def test_a_damaged_stream(tmp_path):
    """The other members are read one by one; the sound file in its place is read as a whole."""
    path, data = tmp_path / "a.npz", npy(np.arange(6.0))
    other = Member("y.npy", data, method=8)
    path.write_bytes(archive(Member("x.npy", data, method=8, raw=b"\xff" * 50), other))
    with npzkit.open(path) as npz:
        with pytest.raises(NpzkitError, match="the deflate stream is damaged"):
            npz.load_all()
        assert npz["y"].tolist() == [0, 1, 2, 3, 4, 5]
    path.write_bytes(archive(Member("x.npy", data, method=8), other))
    with npzkit.open(path) as npz:
        assert npz.load_all()["x"].tolist() == [0, 1, 2, 3, 4, 5]


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
    need_decoder_of("deflate64")
    import zipfile

    before = zipfile.ZipExtFile.__init__
    with npzkit.open(fixtures / FIXTURES["deflate64"]) as npz:
        assert npz["x"].shape == (4, 3)
    assert zipfile.ZipExtFile.__init__ is before
    assert "zipfile_deflate64" not in sys.modules


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.parametrize(
    ("version", "is_taken"),
    [("0.11.1", False), ("1.7.1", False), ("1.8.0", False), ("1.9.0", True), ("1.10.2", True),
     ("2.0", True)],
)  # fmt: skip
def test_an_isal_that_drops_bytes_does_not_inflate(monkeypatch, version, is_taken):
    """Versions before 1.9 compute checksums, and zlib inflates."""
    isal = pytest.importorskip("isal", reason="isal is not installed")
    monkeypatch.setattr(isal, "__version__", version)
    checksum.inflater.cache_clear()
    try:
        assert checksum.inflater() is (checksum.library("isal") if is_taken else zlib)
        assert checksum.isal_or_zlib() is checksum.library("isal")
    finally:
        checksum.inflater.cache_clear()


@pytest.mark.slow
@each_row("size", [0, 1, 3, 100, 5000])
@each_row("behind", [1, 2, 7, 8, 9, 100])
def test_bytes_behind_a_stream_are_never_lost(size, behind):
    """All bytes that follow a deflate stream are left over, wherever pieces begin and end."""
    content = np.random.default_rng(size).integers(0, 9, size, "u1").tobytes()
    raw = zlib.compress(content, 6, wbits=-15)
    surplus = bytes(range(1, behind + 1))
    data = raw + surplus
    for step in [*range(1, 40), len(raw) - 1, len(raw), len(raw) + 1, len(data)]:
        if not step:
            continue
        stream = checksum.inflater().decompressobj(-15)
        found, position = b"", 0
        while not stream.eof:
            found += stream.decompress(data[position : position + step])
            position += step
        assert found == content
        assert stream.unused_data + data[position:] == surplus
        decoder = decompressors.decompressor(codecs.DEFLATED, len(data), size)
        found, position = b"", 0
        while not decoder.eof:
            piece = data[position : position + step] if decoder.needs_input else b""
            position += len(piece)
            found += decoder.decompress(piece, 1 << 20)
        assert found == content
        assert decoder.unused_size + len(data) - position == behind
