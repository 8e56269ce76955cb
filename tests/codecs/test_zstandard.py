"""Zstandard: one frame in chunks, which other programs read; and the frames of other programs."""

from __future__ import annotations

import importlib
import io
import os
import random
import sys
import time
import zlib

import npzkit
import numpy as np
import pytest
from forge import Member, archive
from npzkit.codecs import coding, decompressors
from npzkit.codecs.decompressors import decode_chunk, decode_start, decompressor
from npzkit.codecs.zstandard import ZstandardEncoder
from npzkit.errors import ChecksumError, LimitExceededError, UnsupportedError, ZipFormatError

from tables import each_row

IS_NEW = sys.version_info >= (3, 14)
zstd = pytest.importorskip("compression.zstd" if IS_NEW else "backports.zstd")
zipfile = importlib.import_module("zipfile" if IS_NEW else "backports.zstd.zipfile")

DATA = np.random.default_rng(0).integers(0, 1000, 300_000).astype("<i4").tobytes()


def skippable(size, kind=0):
    return (0x184D2A50 + kind).to_bytes(4, "little") + size.to_bytes(4, "little") + bytes(size)


def without_size(data):
    """Return a frame that does not say how many bytes it has."""
    encoder = zstd.ZstdCompressor()
    return encoder.compress(data) + encoder.flush()


def opened(raw, data=DATA, **options):
    size = {"usize": len(data), "crc": zlib.crc32(data)}
    return npzkit.open(
        archive(Member("x", b"", method=93, raw=raw, central=size, local=size)), **options
    )


@pytest.mark.slow
@each_row("level", [None, -7, 5])
@each_row("count", [0, 1, 1000, 40_000])
def test_the_bytes_are_those_of_one_thread_and_others_read_them(level, count):
    """Any number of threads writes one frame per array, which zipfile reads as npzkit does."""
    array = np.frombuffer(DATA, "<i4")[: count * 5].reshape(count, 5)
    streams = [io.BytesIO() for _ in range(3)]
    for threads, stream in enumerate(streams, 1):
        with npzkit.NpzWriter(
            stream, compression="zstd", level=level, chunk_size=1 << 17, threads=threads
        ) as w:
            w["one"] = array
            with w.create("grown", (None, 5), "<i4", attrs={"unit": "m"}) as dst:
                for start in range(0, count, 9_000):
                    dst.append(array[start : start + 9_000])
    assert len({stream.getvalue() for stream in streams}) == 1
    with npzkit.open(streams[0]) as npz:
        assert npz.verify().ok
        for key in ("one", "grown"):
            assert npz.info(key).method == "zstd"
            assert npz.info(key).seekable == (array.nbytes > 1 << 17)
            assert np.array_equal(npz[key], array)
            assert np.array_equal(
                npz.lazy(key)[count // 3 : count // 2], array[count // 3 : count // 2]
            )
    with zipfile.ZipFile(streams[0]) as z:
        for found in z.infolist():
            assert (found.compress_type, found.extract_version) == (93, 63)
            data = z.read(found)
            assert np.array_equal(np.load(io.BytesIO(data)), array)
            start = z.fp.seek(found.header_offset + 26)
            name, extra = (int.from_bytes(z.fp.read(2), "little") for _ in range(2))
            z.fp.seek(start + 4 + name + extra)
            frame = zstd.ZstdDecompressor()
            assert frame.decompress(z.fp.read(found.compress_size)) == data
            assert frame.eof
            assert not frame.unused_data


def test_each_chunk_is_decoded_on_its_own():
    """A chunk needs nothing of those before it, not even the offsets of their last matches."""
    encoder = ZstandardEncoder(3, 1 << 16)
    # A chunk that begins with matches of offset 1, 4 and 8, with which every frame begins.
    pieces = [DATA[:65536], bytes(65536), b"abcd" * 16384, DATA[:300]]
    chunks = encoder.chunks(pieces, {}, first=True, final=True)
    assert chunks[1:] == encoder.chunks(pieces[1:], {}, first=False, final=True)
    assert zstd.decompress(encoder.lead(0) + b"".join(chunks)) == b"".join(pieces)
    for number, (piece, chunk) in enumerate(zip(pieces, chunks, strict=True)):
        final = number == 3
        assert decode_chunk(93, chunk, len(piece), final=final) == piece
        for size in (len(piece) - 1, len(piece) + 1):
            with pytest.raises(ZipFormatError):
                decode_chunk(93, chunk, size, final=final)


@pytest.mark.skipif(not os.path.exists("/proc/self/task"), reason="counts threads as Linux does")
def test_no_thread_of_the_library_outlives_a_call():
    """The compressors, each with a thread, are gone when an append returns: a fork is safe then."""
    with (
        npzkit.NpzWriter(io.BytesIO(), compression="zstd", chunk_size=1 << 16, threads=2) as w,
        w.create("x", (None,), "<i4") as dst,
    ):
        before = len(os.listdir("/proc/self/task"))
        dst.append(np.frombuffer(DATA, "<i4"))
        # The system takes a moment to end a thread.
        deadline = time.monotonic() + 2
        while (left := len(os.listdir("/proc/self/task"))) > before:
            assert time.monotonic() < deadline, f"{left} threads instead of {before}"
            time.sleep(0.001)


@pytest.mark.remedy("Use compression='deflated', or another build of Python.")
def test_a_library_without_threads_is_refused(monkeypatch, tmp_path):
    """Chunks cannot be written then; the error says what to do, and no file is left."""
    path, arrays = tmp_path / "a.npz", {"x": np.frombuffer(DATA, "<i4")}
    with monkeypatch.context() as patched:
        patched.setattr(zstd.CompressionParameter, "bounds", lambda parameter: (0, 0))
        with pytest.raises(UnsupportedError, match=r"without threads.*'deflated'"):
            npzkit.save(path, arrays, compression="zstd")
        assert not list(tmp_path.iterdir())
        npzkit.save(path, arrays, compression="deflated")
        assert npzkit.load_tree(path)["x"].tobytes() == DATA
    npzkit.save(path, arrays, compression="zstd")
    assert npzkit.load_tree(path)["x"].tobytes() == DATA


def test_without_the_c_function_chunks_are_decoded(monkeypatch):
    """The library's Python functions read what its C function reads."""
    monkeypatch.setattr(decompressors, "decompress_into", lambda frames, memory: None)
    test_each_chunk_is_decoded_on_its_own()


def test_the_header_of_an_array_is_in_the_first_bytes():
    """An NPY header is found in 512 bytes, and a damaged chunk is named by its slice."""
    array = np.frombuffer(DATA, "<i4")
    stream = io.BytesIO()
    npzkit.save(stream, {"x": array}, compression="zstd")
    data = bytearray(stream.getvalue())
    with npzkit.open(bytes(data)) as npz:
        info = npz.info("x")
    start = bytes(data[info.data_offset :][:512])
    assert decode_start(93, start, 512).startswith(b"\x93NUMPY")
    data[info.data_offset + info.compressed_size - 5_000] ^= 1
    with npzkit.open(bytes(data)) as npz:
        assert np.array_equal(npz.lazy("x")[:60_000], array[:60_000])
        with pytest.raises(ChecksumError, match="chunk 5 of 5"):
            npz.lazy("x")[-1]
        with pytest.raises((ChecksumError, ZipFormatError)):
            npz["x"]
        assert not npz.verify().ok


def test_a_copy_keeps_the_chunks_and_repack_adds_them(tmp_path):
    """A rename copies the index; repack makes one for arrays of other programs, with a level too."""
    array = np.frombuffer(DATA, "<i4")
    npzkit.save(tmp_path / "a.npz", {"x": array}, compression=93, level=-3)
    with npzkit.NpzWriter(tmp_path / "a.npz", "a") as w:
        w.rename("x", "y")
    with zipfile.ZipFile(tmp_path / "b.npz", "w", 93) as z, npzkit.open(tmp_path / "a.npz") as npz:
        z.writestr("y.npy", npz.stream("y").read())
        assert npz.info("y").seekable
    with npzkit.open(tmp_path / "b.npz") as npz:
        assert npz.info("y").repack_adds == "a seek index"
        assert np.array_equal(npz.lazy("y")[250_000:], array[250_000:])
    for options in ({}, {"compression": "zstd", "level": 5}):
        npzkit.repack(tmp_path / "b.npz", tmp_path / "c.npz", overwrite=True, **options)
        with npzkit.open(tmp_path / "c.npz") as npz:
            assert (npz.info("y").method, npz.info("y").seekable) == ("zstd", True)
            assert np.array_equal(npz["y"], array)


@each_row("seed", range(12))
def test_frames_of_others(seed):
    """Several frames, with and without sizes, and skippable ones anywhere are read as one stream."""
    rng = random.Random(seed)
    parts, data = [skippable(9, 3)] * (seed % 2), b""
    for _ in range(rng.randint(1, 5)):
        piece = rng.choice([b"", b"abc", DATA[:2_000], DATA[:300_000]])
        data += piece
        parts.append(rng.choice([zstd.compress, without_size])(piece))
        parts.append(rng.choice([b"", skippable(0), skippable(70_000)]))
    raw = b"".join(parts)
    assert opened(raw, data)["x"] == data
    # As in a stream of a member whose size follows it: in pieces, with other bytes behind.
    decoder, fed, out = decompressor(93, 0, 0), io.BytesIO(raw + b"PK\7\b" + bytes(12)), b""
    while not decoder.eof:
        given = fed.read(rng.choice([1, 3, 5_000])) if decoder.needs_input else b""
        out += decoder.decompress(given, rng.choice([100, 1 << 18]))
    fed.seek(-decoder.unused_size, 1)
    assert (out, fed.read(4)) == (data, b"PK\7\b")


@pytest.mark.slow
@pytest.mark.remedy("Extract it with the program that made it, and save it again.")
def test_what_cannot_be_read_is_refused_by_its_name():
    """Dictionaries and large windows are refused, and streams that are cut or go on are damaged."""
    dictionary = zstd.train_dict([DATA[n : n + 400] for n in range(0, 90_000, 300)], 1000)
    with pytest.raises(UnsupportedError, match=f"dictionary {dictionary.dict_id}"):
        opened(zstd.compress(DATA, zstd_dict=dictionary))["x"]
    again = zstd.decompress(zstd.compress(DATA, zstd_dict=dictionary), zstd_dict=dictionary)
    assert opened(zstd.compress(again))["x"] == DATA
    frame = bytearray(without_size(DATA))
    frame[5] = 18 << 3
    with pytest.raises(LimitExceededError, match=r"256\.0 MiB"):
        opened(bytes(frame))["x"]
    sized = b"\x28\xb5\x2f\xfd\xe0" + (1 << 28).to_bytes(8, "little") + frame[6:]
    with pytest.raises(LimitExceededError, match="window"):
        opened(sized)["x"]
    whole = zstd.compress(DATA)
    for raw in (
        whole[:-1], whole + b"\0", whole + whole[:3], whole + skippable(9)[:-1], b"\0" + whole,
        whole + zstd.compress(b"x"), skippable(9),
    ):  # fmt: skip
        with pytest.raises(ZipFormatError):
            opened(raw)["x"]


def test_levels_and_names():
    """A level must be one of its method; an array of another method has its own default."""
    assert [coding.method_number(name) for name in ("zstd", 93)] == [93, 93]
    stream = io.BytesIO()
    for compression, level in (("zstd", 20), ("zstd", -8), ("zstd", True), ("deflated", -1)):
        with pytest.raises(ValueError, match="level must be an integer from"):
            npzkit.save(stream, {}, compression=compression, level=level)
    writer = coding.check_coding("zstd", 19, coding.CHUNK_SIZE, True)
    assert coding.coding_for(writer, "deflated", None, None, None).level is None
    assert coding.coding_for(writer, "zstd", None, 1 << 14, None).level == 19


@pytest.mark.skipif(IS_NEW, reason="Python has Zstandard itself")
@pytest.mark.remedy('Install it: python -m pip install "npzkit[zstd]".')
def test_without_the_library_writing_names_the_extra(hide_library, tmp_path, monkeypatch):
    """Nothing is written if the package is missing, and the error says what to install."""
    hide_library("backports.zstd")
    with pytest.raises(UnsupportedError, match=r'pip install "npzkit\[zstd\]"'):
        npzkit.save(tmp_path / "a.npz", {"x": np.zeros(3)}, compression="zstd")
    assert not list(tmp_path.iterdir())
    monkeypatch.undo()
    npzkit.save(tmp_path / "a.npz", {"x": np.zeros(3)}, compression="zstd")
    assert npzkit.load_tree(tmp_path / "a.npz")["x"].tolist() == [0, 0, 0]


def test_too_little_memory_is_no_damage(monkeypatch):
    """What the library says where it gets no memory is MemoryError, and nothing is called damaged."""
    stream = io.BytesIO()
    npzkit.save(stream, {"x": np.arange(50_000)}, compression="zstd", chunk_size=1 << 14)

    class Full:
        def __getattr__(self, name):
            return getattr(zstd, name)

        def ZstdDecompressor(self):
            raise zstd.ZstdError("Unable to create ZSTD_DCtx instance.")

        def ZstdCompressor(self, options):
            raise zstd.ZstdError("Unable to compress: Allocation error : not enough memory")

    for module in ("decompressors", "zstandard"):
        monkeypatch.setattr(f"npzkit.codecs.{module}.zstandard_library", Full)
    monkeypatch.setattr(decompressors, "decompress_into", lambda frame, memory: None)
    npz = npzkit.open(stream)
    for read in (lambda: npz["x"], lambda: npz.lazy("x")[5:9], npz.load_all, npz.verify):
        with pytest.raises(MemoryError):
            read()
    with pytest.raises(MemoryError):
        npzkit.save(io.BytesIO(), {"x": np.arange(9)}, compression="zstd")
