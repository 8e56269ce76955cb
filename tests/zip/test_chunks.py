"""Any stretch of a member's bytes: what is read for it, and what a lying index does."""

from __future__ import annotations

import bz2
import itertools
import lzma
import os
import random
import threading
import zlib

import npzkit
import numpy as np
import pytest
from deep import amount
from forge import Member, archive, chunked, deflate, with_chunks
from hypothesis import given
from hypothesis import strategies as st
from npzkit.codecs import decompressors
from npzkit.codecs.decompressors import inflate_chunk
from npzkit.errors import ChecksumError, ZipFormatError
from npzkit.files.source import BufferSource
from npzkit.zip import chunks, member_stream
from npzkit.zip.array_index import ChunkLists
from npzkit.zip.chunks import open_chunks
from npzkit.zip.directory import read_directory
from npzkit.zip.local_header import data_offset

from tables import each_row

CHUNK_SIZE = 4096
DATA = np.random.default_rng(0).integers(0, 50, 100_000).astype("u1").tobytes()
MODEL = {"id": lzma.FILTER_LZMA1, "dict_size": 1 << 16}
LZMA = b"\x09\x04\x05\x00\x5d\x00\x00\x01\x00"


class Counting(BufferSource):
    """Bytes in memory that count what is read of them."""

    count = 0

    def readinto_at(self, offset, view):
        self.count += len(view)
        super().readinto_at(offset, view)


def packed(kind: str, data: bytes = DATA) -> bytes:
    if kind == "indexed":
        return with_chunks("d/a", data, CHUNK_SIZE)
    method, raw = {
        "stored": lambda: (0, data),
        "deflated": lambda: (8, deflate(data)),
        "bzip2": lambda: (12, bz2.compress(data)),
        "lzma": lambda: (14, LZMA + lzma.compress(data, lzma.FORMAT_RAW, filters=[MODEL])),
    }[kind]()
    return archive(Member("a", data, method=method, raw=raw))


def opened(data: bytes):
    """Return access to the first member, and the source it reads."""
    source = Counting(data)
    directory = read_directory(source, starts=[0], strict=True, limits=npzkit.Limits())
    (entry,) = directory.entries.values()
    listed = ChunkLists(source, directory).find(entry)
    access = open_chunks(source, entry, data_offset(source, entry), listed)
    source.count = 0
    return access, source


def read(access, offset, size, threads=1):
    buffer = bytearray(size)
    access.readinto(offset, memoryview(buffer), threads)
    return bytes(buffer)


KINDS = ["stored", "indexed", "deflated", "bzip2", "lzma"]
ARCHIVES = {kind: packed(kind) for kind in KINDS}


@pytest.fixture(autouse=True)
def _close_points(monkeypatch):
    """Seek points every few kilobytes instead of megabytes; and a chunk is as small."""
    monkeypatch.setattr("npzkit.zip.chunk_list.CHUNK_SIZE", 1 << 13)
    monkeypatch.setattr(chunks, "SPACING", 1 << 13)
    monkeypatch.setattr(chunks.StreamedChunks, "granularity", 1 << 13)
    monkeypatch.setattr(chunks, "_STREAM_STEP", 1 << 10)
    monkeypatch.setattr(member_stream, "_COPYABLE_INPUT_SIZE", 1 << 11)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_any_stretch(kind):
    """Whatever was read before, a stretch is the member's bytes; by one thread and by four."""
    access, _ = opened(ARCHIVES[kind])
    assert access.size == len(DATA)
    rng = random.Random(0)
    for _ in range(150):
        begin, end = sorted((rng.randint(0, len(DATA)), rng.randint(0, len(DATA))))
        if rng.random() < 0.5:
            end = min(begin + rng.randint(0, 3 * CHUNK_SIZE), end)
        assert read(access, begin, end - begin, rng.choice([1, 4])) == DATA[begin:end]


@each_row("offset", [-1, 0, 1])
@each_row("size", [CHUNK_SIZE - 1, CHUNK_SIZE, CHUNK_SIZE + 1, 3 * CHUNK_SIZE])
def test_ends_at_the_chunks_bounds(offset, size):
    """Stretches that begin or end right at a chunk's bound are whole."""
    access, _ = opened(ARCHIVES["indexed"])
    for begin in (2 * CHUNK_SIZE + offset, len(DATA) - size, max(offset, 0)):
        assert read(access, begin, size, 2) == DATA[begin : begin + size]
    assert read(access, len(DATA), 0) == b""


def test_only_the_chunks_that_are_touched_are_read():
    """A stretch within one chunk reads that chunk; its neighbour in it reads nothing."""
    access, source = opened(ARCHIVES["indexed"])
    offsets = [0, *chunked(DATA, CHUNK_SIZE)[1]]
    assert read(access, 5 * CHUNK_SIZE + 10, 20) == DATA[5 * CHUNK_SIZE + 10 :][:20]
    assert source.count == offsets[6] - offsets[5]
    read(access, 5 * CHUNK_SIZE + 1000, 2000)
    assert source.count == offsets[6] - offsets[5]


def test_seek_points_spare_what_lies_before():
    """A member that was inflated once is read from the nearest point on, in a fraction of its bytes."""
    access, source = opened(ARCHIVES["deflated"])
    assert read(access, len(DATA) - 10, 10) == DATA[-10:]
    assert source.count >= len(deflate(DATA))
    points = len(access._points)
    assert len(DATA) // (1 << 14) <= points <= len(DATA) // (1 << 13)
    source.count = 0
    assert read(access, 50_000, 10) == DATA[50_000:50_010]
    assert source.count <= len(deflate(DATA)) / 4
    assert len(access._points) == points


def test_reading_on_does_not_start_over():
    """Stretches read one after another inflate every byte once, and keep few streams."""
    for kind in ("deflated", "bzip2", "lzma"):
        access, source = opened(ARCHIVES[kind])
        for start in range(0, len(DATA), 999):
            read(access, start, min(999, len(DATA) - start))
        assert source.count <= len(ARCHIVES[kind])
    access, _ = opened(ARCHIVES["deflated"])
    for start in range(0, len(DATA), 777):
        read(access, len(DATA) - start - 1, 1)
    assert len(access._idle) <= 4


def test_a_failed_stream_is_not_used_again():
    """A damaged place raises each time, and what lies before it is read all the same."""
    for kind in ("deflated", "bzip2", "lzma"):
        raw = bytearray(ARCHIVES[kind])
        raw[len(raw) // 2 : len(raw) // 2 + 40] = bytes(40)
        access, _ = opened(bytes(raw))
        for _ in range(3):
            with pytest.raises(ZipFormatError):
                read(access, 0, len(DATA))
        if kind != "bzip2":
            assert read(access, 100, 1000) == DATA[100:1100]


@each_row("kind", ["deflated", "bzip2", "lzma"])
@each_row("size", [0, 10, 1000])
def test_a_stream_that_ends_early(kind, size):
    """A member that holds less than it claims is an error where that is read."""
    raw = ARCHIVES[kind]
    member = read_directory(
        BufferSource(raw), starts=[0], strict=True, limits=npzkit.Limits()
    ).entries["a"]
    start = data_offset(BufferSource(raw), member)
    cut = raw[start : start + member.compressed_size - size - 20]
    access, _ = opened(archive(Member("a", DATA, method=member.method, raw=cut)))
    with pytest.raises(ZipFormatError):
        read(access, 0, len(DATA))


@pytest.mark.parametrize("shift", [-40, -3, 1, 2, 9, 100])
def test_a_list_whose_sizes_are_shifted(shift):
    """Where no chunk begins, none is decoded: a part is an error, never other bytes."""
    offsets = [0, *chunked(DATA, CHUNK_SIZE)[1], len(chunked(DATA, CHUNK_SIZE)[0])]
    sizes = [end - begin for begin, end in itertools.pairwise(offsets)]
    sizes[0] += shift
    sizes[-1] -= shift
    access, _ = opened(with_chunks("a", DATA, CHUNK_SIZE, sizes=sizes))
    assert access.chunk_size == CHUNK_SIZE
    for begin in (70_000, 5000, 99_000):
        with pytest.raises(ChecksumError):
            read(access, begin, 1000)


def test_a_list_that_does_not_fit_is_not_used():
    """Fewer chunks than there are, or of another size, and the member is read in one piece."""
    whole, _ = chunked(DATA, CHUNK_SIZE)
    for forged in (
        {"sizes": [100, len(whole) - 100]},
        {"claimed": CHUNK_SIZE * 2},
        {"crc32s": [0] * 25},
    ):
        access, _ = opened(with_chunks("a", DATA, CHUNK_SIZE, **forged))
        assert read(access, 3 * CHUNK_SIZE, CHUNK_SIZE, 2) == DATA[3 * CHUNK_SIZE : 4 * CHUNK_SIZE]
        assert access.granularity == chunks.SPACING


def test_a_damaged_member_in_chunks():
    """Where the stream is damaged, the chunk is named; the others are read."""
    raw = bytearray(chunked(DATA, CHUNK_SIZE)[0])
    raw[len(raw) // 2 : len(raw) // 2 + 40] = b"\xff" * 40
    access, _ = opened(with_chunks("a", DATA, CHUNK_SIZE, raw=bytes(raw)))
    assert read(access, 0, 100) == DATA[:100]
    with pytest.raises(ChecksumError, match="chunk 13 of 25"):
        read(access, 0, len(DATA))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_threads_share_one(kind):
    """Eight threads read different stretches through one access."""
    access, _ = opened(ARCHIVES[kind])
    wrong = []

    def work(seed):
        rng = random.Random(seed)
        for _ in range(amount(15, 40)):
            begin = rng.randrange(len(DATA) - 3000)
            size = rng.randrange(3000)
            try:
                if read(access, begin, size, 2) != DATA[begin : begin + size]:
                    wrong.append(begin)
            except Exception as error:
                wrong.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    if kind == "deflated":
        places = [point.tell() for point in access._points]
        assert places == sorted(set(places))


PIECE = os.urandom(3000) + bytes(1096)


@pytest.fixture(params=["libdeflate", "without"])
def _library(request, monkeypatch):
    if request.param == "without":
        monkeypatch.setattr(decompressors, "library", lambda name: None)


def piece(*, final: bool, data: bytes = PIECE) -> bytes:
    stream = zlib.compressobj(6, zlib.DEFLATED, -15)
    end = stream.compress(data) + stream.flush(zlib.Z_FINISH if final else zlib.Z_SYNC_FLUSH)
    return end if final else end + b"\0\0\0\xff\xff"


@pytest.mark.usefixtures("_library")
@pytest.mark.parametrize("final", [True, False])
def test_a_chunk_has_exactly_its_size(final):
    """A chunk inflates to its size; one byte more or less, or a cut, is an error."""
    data = piece(final=final)
    for given_data in (data, memoryview(data), bytearray(data)):
        assert bytes(inflate_chunk(given_data, len(PIECE), final=final)) == PIECE
    for size in (len(PIECE) - 1, len(PIECE) + 1, 0, 1):
        with pytest.raises(ZipFormatError):
            inflate_chunk(data, size, final=final)
    for cut in (data[: len(data) // 2], b"", b"\xff" * 100):
        with pytest.raises(ZipFormatError):
            inflate_chunk(cut, len(PIECE), final=final)


@pytest.mark.usefixtures("_library")
@given(st.binary(max_size=200), st.integers(0, 300_000), st.booleans())
def test_any_bytes_are_a_chunk_or_an_error(data, size, final):
    """Arbitrary bytes never give another size than was asked for, nor another exception."""
    try:
        assert len(inflate_chunk(data, size, final=final)) == size
    except ZipFormatError:
        pass


def test_a_claim_beyond_deflate_takes_no_memory():
    """A chunk of a few bytes that claims 64 MiB is refused before room is made."""
    with pytest.raises(ZipFormatError, match="a chunk"):
        inflate_chunk(b"\x03\x00" * 10, 1 << 26, final=True)


def test_a_stream_serves_one_read_at_a_time():
    """A read that begins during another one has a stream of its own."""

    class Interrupting(Counting):
        during = None

        def read_at(self, offset, size):
            during, self.during = self.during, None
            if during is not None:
                during()
            return super().read_at(offset, size)

    source = Interrupting(ARCHIVES["deflated"])
    (entry,) = read_directory(
        source, starts=[0], strict=True, limits=npzkit.Limits()
    ).entries.values()
    access = open_chunks(source, entry, data_offset(source, entry))
    assert read(access, 0, 10) == DATA[:10]
    inner = []
    source.during = lambda: inner.append(read(access, 95_000, 1000))
    assert read(access, 10, 90_000) == DATA[10:90_010]
    assert inner == [DATA[95_000:96_000]]
