"""Encoders: independent chunks, sizes near zlib's, and choices that depend on the bytes alone."""

from __future__ import annotations

import functools
import subprocess
import sys
import threading
import zlib

import numpy as np
import pytest
from deep import extent
from hypothesis import given, settings
from hypothesis import strategies as st
from kinds import KINDS, make_kind
from npzkit.codecs import checksum, encoders
from npzkit.codecs.encoders import (
    Encoder,
    choose_encoder,
    deflate_chunk,
    encoder_for_level,
    encoder_for_small,
)

from tables import each_row

CHUNK_SIZE = 256 << 10
ALL = (*encoders._candidates(), *(encoder_for_level(level) for level in range(10)))
MISSING = [("isal",), ("zlib-ng",), ("isal", "zlib-ng"), ("libdeflate",)]


def chunks_of(data, size=CHUNK_SIZE):
    view = memoryview(data).cast("B")
    return [view[start : start + size] for start in range(0, len(view), size)]


def deflate(encoder, chunks):
    return [
        deflate_chunk(encoder, chunk, final=index == len(chunks) - 1)
        for index, chunk in enumerate(chunks)
    ]


def inflate(data):
    """Inflate a complete stream with zlib, and check that nothing is left over or missing."""
    decoder = zlib.decompressobj(-15)
    found = decoder.decompress(data)
    assert decoder.eof
    assert not decoder.unused_data
    return found


def reference_size(data):
    return size_by_zlib(bytes(data))


@functools.cache
def size_by_zlib(data):
    encoder = zlib.compressobj(6, zlib.DEFLATED, -15)
    return len(encoder.compress(data)) + len(encoder.flush())


@pytest.fixture
def without(monkeypatch):
    """Hide libraries, as if they were not installed."""

    def forget():
        encoders.library.cache_clear()
        encoders._candidates.cache_clear()

    def take_away(*names):
        for name in names:
            monkeypatch.setitem(sys.modules, checksum._MODULES[name], None)
        forget()

    yield take_away
    monkeypatch.undo()
    forget()


@settings(deadline=None)
@given(
    st.lists(st.binary(max_size=300) | st.sampled_from([b"ab" * 5000, bytes(70_000)]), min_size=1),
    st.sampled_from(ALL),
)
def test_chunks_make_one_stream(chunks, encoder):
    """zlib inflates the joined chunks, for any chunks and any encoder."""
    assert inflate(b"".join(deflate(encoder, chunks))) == b"".join(chunks)


@pytest.mark.slow
@each_row("encoder", dict.fromkeys(ALL))
def test_chunks_stand_alone(encoder):
    """A chunk ends with the two marks, byte for byte, and is inflated without the others."""
    data = make_kind("int32 to 5000", 300_000).tobytes() + make_kind("noise", 100_000).tobytes()
    chunks = chunks_of(data, 150_000)
    *inner, last = deflate(encoder, chunks)
    for chunk, compressed in zip(chunks, inner, strict=False):
        assert compressed.endswith(b"\x00\x00\xff\xff\x00\x00\x00\xff\xff")
        assert zlib.decompressobj(-15).decompress(compressed) == chunk
        assert inflate(compressed + b"\x03\x00") == chunk
    assert inflate(last) == chunks[-1]
    assert deflate(encoder, chunks) == [*inner, last]


@each_row("final", [False, True])
@each_row("encoder", dict.fromkeys(ALL))
def test_an_empty_chunk(encoder, final):
    """An empty chunk is valid."""
    compressed = deflate_chunk(encoder, b"", final=final)
    assert inflate(compressed if final else compressed + b"\x03\x00") == b""


@pytest.mark.slow
def test_any_contiguous_buffer_is_taken():
    """A view of a numeric array is deflated as its bytes."""
    array = np.arange(1 << 16)
    for encoder in ALL:
        assert inflate(deflate_chunk(encoder, memoryview(array), final=True)) == array.tobytes()
    assert choose_encoder(memoryview(array)) == choose_encoder(array.tobytes())
    assert choose_encoder(memoryview(np.zeros(0))) == encoder_for_level(6)


@pytest.mark.slow
@each_row("kind", KINDS)
def test_the_choice_keeps_to_the_size_of_zlib(kind):
    """A few MiB of each kind take at most 1.03 of the size of zlib level 6."""
    data = memoryview(make_kind(kind, extent(1 << 20, 4 << 20))).cast("B")
    encoder = choose_encoder(data)
    size = sum(map(len, deflate(encoder, chunks_of(data))))
    assert size <= 1.03 * reference_size(data), encoder


def test_sparse_data_get_a_fast_encoder():
    """The tables of codes in a sample are not taken for a larger size of all."""
    pytest.importorskip("isal", reason="isal is not installed")
    data = memoryview(make_kind("sparse", 1 << 20)).cast("B")
    for start in range(0, 1 << 16, 1 << 12):
        assert choose_encoder(data[start : start + 1_000_000]).strategy == zlib.Z_RLE


@pytest.mark.slow
@pytest.mark.parametrize("missing", MISSING, ids=str)
@pytest.mark.parametrize("kind", ["labels", "running sums", "smooth float64", "sparse"])
def test_the_choice_does_without_libraries(kind, missing, without):
    """If a library is missing, others replace it, and sizes stay about the same."""
    without(*missing)
    data = memoryview(make_kind(kind, extent(1 << 20, 2 << 20))).cast("B")
    encoder = choose_encoder(data)
    assert encoder.library not in missing
    streams = deflate(encoder, chunks_of(data))
    assert inflate(b"".join(streams)) == data
    assert sum(map(len, streams)) <= 1.03 * reference_size(data)


@pytest.mark.parametrize("missing", MISSING, ids=str)
def test_levels_do_without_libraries(missing, without):
    """Every level has an encoder that is installed."""
    without(*missing)
    for level in range(10):
        encoder = encoder_for_level(level)
        assert encoder.library not in missing
        assert encoder.level == level
    assert all(encoder.library not in missing for encoder in encoders._candidates())


def test_missing_libraries_are_missed_at_import_too():
    """In a process without isal and zlib-ng, zlib deflates everything."""
    code = (
        "import sys\n"
        "for name in ('isal', 'isal.isal_zlib', 'zlib_ng', 'zlib_ng.zlib_ng'): sys.modules[name] = None\n"
        "import zlib\n"
        "from npzkit.codecs.encoders import choose_encoder, deflate_chunk, encoder_for_level\n"
        "data = b'deflate ' * 50_000\n"
        "for encoder in (choose_encoder(data), encoder_for_level(3)):\n"
        "    assert encoder.library == 'zlib'\n"
        "    assert zlib.decompress(deflate_chunk(encoder, data, final=True), wbits=-15) == data\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_what_cannot_be_compressed_is_stored():
    """Noise takes its own size and a few bytes, even if zlib would save nothing."""
    data = make_kind("noise", 1 << 20)
    assert choose_encoder(memoryview(data)) == encoders.STORED_BLOCKS
    size = sum(map(len, deflate(encoders.STORED_BLOCKS, chunks_of(data))))
    assert len(data) < size <= len(data) * 1.001


@pytest.mark.slow
def test_the_choice_sees_every_part():
    """Noise or zeros at the start do not hide what follows."""
    noise, labels = make_kind("noise", 1 << 20), make_kind("labels", 1 << 20)
    for parts in ([noise, labels], [labels, noise], [np.zeros(1 << 20, "u1"), labels]):
        data = np.concatenate(parts)
        encoder = choose_encoder(memoryview(data))
        size = sum(map(len, deflate(encoder, chunks_of(data))))
        assert size <= 1.03 * reference_size(data)


@pytest.mark.slow
def test_the_choice_is_the_bytes_alone():
    """The choice is the same again, for a copy, and on several threads at once."""
    sections = [memoryview(make_kind(kind, 1 << 20)).cast("B") for kind in KINDS]
    expected = [choose_encoder(section) for section in sections]
    found = {}

    def choose(number):
        found[number] = [choose_encoder(bytes(section)) for section in sections]

    threads = [threading.Thread(target=choose, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert list(found.values()) == [expected] * 3


@pytest.mark.slow
@pytest.mark.parametrize("level", [1, 2])
def test_bytes_do_not_depend_on_where_the_compressor_lies(level):
    """The same chunk gives the same bytes for every address of the compressor.

    One chunk in 8192 did not: ISA-L takes its third byte's hash from a register that holds
    the address.
    """
    pytest.importorskip("isal", reason="isal is not installed")
    encoder = Encoder("isal", level)
    numbers = np.random.default_rng(0).integers(0, 9, (300, 600), dtype="u1")
    chunks = [row.tobytes() for row in numbers]
    first = [deflate_chunk(encoder, chunk, final=True) for chunk in chunks]
    neighbours = []
    for _ in range(extent(130, 1000)):
        neighbours.append(encoders._compressor(encoder))
        for chunk, expected in zip(chunks, first, strict=True):
            assert deflate_chunk(encoder, chunk, final=True) == expected


@pytest.mark.parametrize("size", [0, 1, (64 << 10) - 1, 64 << 10, (96 << 10) + 1, 1 << 20])
def test_the_choice_takes_any_size(size):
    """An encoder is chosen for data of any size, and little data is not sampled."""
    data = bytes(size)
    encoder = choose_encoder(data)
    assert inflate(deflate_chunk(encoder, data, final=True)) == data
    if size < 64 << 10:
        assert encoder == encoder_for_level(6)


def test_levels_are_honoured():
    """Level 0 stores, 1 uses isal, 2 to 9 zlib-ng, and higher levels make less."""
    pytest.importorskip("isal", reason="isal is not installed")
    pytest.importorskip("zlib_ng", reason="zlib-ng is not installed")
    data = make_kind("counts", CHUNK_SIZE).tobytes()
    sizes = [len(deflate_chunk(encoder_for_level(level), data, final=True)) for level in range(10)]
    assert len(data) < sizes[0] < len(data) + 100
    assert sizes[0] > sizes[1] > sizes[6] > sizes[9]
    assert encoder_for_level(1) == Encoder("isal", 1)
    assert encoder_for_level(1, 4096) == Encoder("zlib-ng", 1)
    assert encoder_for_small(1) == Encoder("zlib-ng", 1)
    assert encoder_for_level(9) == Encoder("zlib-ng", 9)


@each_row("kind", KINDS)
def test_the_fast_level_is_about_as_small_as_zlibs(kind):
    """Level 1 makes at most a fifth more than level 1 of zlib, of any kind of data."""
    data = memoryview(make_kind(kind, CHUNK_SIZE)).cast("B")
    size = len(deflate_chunk(encoder_for_level(1), data, final=True))
    assert size <= 1.2 * len(deflate_chunk(Encoder("zlib", 1), data, final=True))


def test_encoders_print():
    """An encoder has a readable name."""


@pytest.mark.parametrize("missing", [(), ("libdeflate",), ("libdeflate", "zlib-ng")])
def test_small_members_need_no_choice(missing, monkeypatch):
    """Data too short to sample becomes one complete stream, not larger than zlib's, with any library."""
    real = encoders.library
    monkeypatch.setattr(encoders, "library", lambda name: None if name in missing else real(name))
    for data in (b"", b"x", np.arange(500).tobytes(), np.sin(np.arange(2000.0)).tobytes()):
        stream = deflate_chunk(encoders.encoder_for_small(None), data, final=True)
        decoder = zlib.decompressobj(-15)
        assert decoder.decompress(stream) == data
        assert decoder.eof
        reference = zlib.compressobj(6, zlib.DEFLATED, -15)
        size = len(reference.compress(data) + reference.flush())
        assert len(stream) <= size * (1.03 if "libdeflate" not in missing else 1.1) + 8
    assert encoders.encoder_for_small(0) == encoders.encoder_for_level(0)
