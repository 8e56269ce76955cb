"""Lazy arrays: what NumPy gives for the whole array, from the bytes that it needs."""

from __future__ import annotations

import bz2
import contextlib
import copy
import gc
import io
import itertools
import lzma
import math
import multiprocessing
import os
import pickle
import select
import struct
import threading
import tracemalloc
import warnings
from functools import partial

import ml_dtypes
import npzkit
import numpy as np
import pytest
from children import all_forked, forked, read_rest
from forge import Member, archive, chunked, deflate, header, npy, with_chunks
from hypothesis import given
from hypothesis import strategies as st
from npzkit.errors import (
    ChecksumError,
    ClosedArchiveError,
    MemberNotFoundError,
    NpyFormatError,
    NpzkitError,
    StaleArchiveError,
    UnsupportedError,
    ZipFormatError,
    quoted,
)
from npzkit.files.source import BufferSource
from npzkit.files.threads import run
from npzkit.reading import byte_ranges as spans
from npzkit.reading import load_all as bulk
from npzkit.reading import member as reader
from npzkit.zip import chunks
from strategies import any_arrays, indices

from tables import each_row

HAS_FORK = hasattr(os, "fork")
LZMA = b"\x09\x04\x05\x00\x5d\x00\x00\x01\x00"
MODEL = {"id": lzma.FILTER_LZMA1, "dict_size": 1 << 16}
KINDS = ["stored", "indexed", "deflated", "bzip2", "lzma"]


def packed(kind: str, array, chunk_size: int = 128) -> bytes:
    """Return an archive of one array ``a``, packed in one of the ways there are."""
    with warnings.catch_warnings():
        # Of the NPY version that a field's name takes.
        warnings.simplefilter("ignore", UserWarning)
        data = npy(array)
    if kind == "indexed" and len(data) > chunk_size:
        return with_chunks("a.npy", data, chunk_size)
    method, raw = {
        "stored": lambda: (0, data),
        "indexed": lambda: (8, deflate(data)),
        "deflated": lambda: (8, deflate(data)),
        "bzip2": lambda: (12, bz2.compress(data)),
        "lzma": lambda: (14, LZMA + lzma.compress(data, lzma.FORMAT_RAW, filters=[MODEL])),
    }[kind]()
    return archive(Member("a.npy", data, method=method, raw=raw))


def lazily(data):
    return npzkit.open(data).lazy("a")


def check_same(found, expected):
    assert type(found) is type(expected)
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    # Of one dimension, since NumPy 2.0's tobytes takes no more than 32.
    assert found.ravel().tobytes() == expected.ravel().tobytes()


@pytest.fixture(autouse=True)
def _small_sizes(monkeypatch):
    """Seek points, gaps and threads for arrays of kilobytes."""
    monkeypatch.setattr(chunks, "SPACING", 512)
    monkeypatch.setattr(chunks, "_STREAM_STEP", 256)
    monkeypatch.setattr(chunks, "STORED_GRANULARITY", 16)
    monkeypatch.setattr(chunks.StreamedChunks, "granularity", 512)
    monkeypatch.setattr(reader, "CHUNKED_SIZE", 0)
    monkeypatch.setattr(bulk, "CHUNKED_SIZE", 0)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@given(st.data(), any_arrays())
def test_any_index_of_any_array(kind, data, array):
    """For any array, saved in any way, any index gives what NumPy gives: shape, dtype, values."""
    lazy = lazily(packed(kind, array))
    saved = np.asanyarray(array)
    assert (lazy.shape, lazy.ndim, lazy.size) == (saved.shape, saved.ndim, saved.size)
    assert lazy.nbytes == saved.nbytes
    whole = npzkit.open(packed(kind, array))["a"]
    assert lazy.dtype == whole.dtype
    for _ in range(4):
        index = data.draw(indices(array.shape))
        found = lazy[index]
        check_same(found, whole[index])
        if isinstance(found, np.ndarray):
            assert found.flags.writeable


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@given(st.data(), any_arrays())
def test_chunks_cover_the_array_once(kind, data, array):
    """iter_chunks visits every item once, iteration gives the rows, read and asarray the whole."""
    lazy = lazily(packed(kind, array))
    whole = npzkit.open(packed(kind, array))["a"]
    seen = np.zeros(array.shape, int)
    for chunk in lazy.iter_chunks():
        assert len(chunk) == array.ndim
        assert all(
            part.stop - part.start <= size for part, size in zip(chunk, lazy.chunks, strict=True)
        )
        check_same(lazy[chunk], whole[chunk])
        seen[chunk] += 1
    assert np.all(seen == 1)
    check_same(lazy.read(), whole)
    check_same(np.asarray(lazy), whole)
    if array.ndim:
        assert len(lazy) == len(array)
        rows = list(lazy)
        assert len(rows) == len(array)
        for found, expected in zip(rows, whole, strict=True):
            check_same(found, expected)
    else:
        with pytest.raises(TypeError, match="0-d"):
            iter(lazy)
        with pytest.raises(TypeError, match="unsized"):
            len(lazy)


RECORD = np.zeros((40, 3), [("id", "<i4"), ("pos", "<f8", (2,)), ("tag", "S3"), ("", "V3")])
RECORD["id"] = np.arange(120).reshape(40, 3)
RECORD["pos"] = np.random.default_rng(0).random((40, 3, 2))


@each_row("kind", KINDS)
@each_row("order", ["C", "F"])
def test_fields(kind, order):
    """A field's name, or some names, give what NumPy gives; an unknown one NumPy's error."""
    array = RECORD.copy(order)
    lazy = lazily(packed(kind, array, chunk_size=256))
    for names in ("id", "pos", "tag", ["id"], ["tag", "id"]):
        found = lazy[names]
        assert found.dtype == array[names].dtype
        assert found.shape == array[names].shape
        assert np.array_equal(found, array[names])
    assert lazy[5, 1]["id"] == 16
    with pytest.raises(ValueError, match="no field of name nope"):
        lazy["nope"]
    with pytest.raises(IndexError, match="only integers"):
        lazily(packed(kind, np.zeros(3)))["id"]


def test_fields_in_bounded_memory(tmp_path):
    """A field of a large structured array is read with no more of the others than a chunk."""
    array = np.zeros(200_000, [("id", "<i4"), ("rest", "V100")])
    array["id"] = np.arange(200_000)
    np.savez(tmp_path / "a.npz", a=array)
    with npzkit.open(tmp_path / "a.npz") as npz:
        lazy = npz.lazy("a")
        tracemalloc.start()
        found = lazy["id"]
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert np.array_equal(found, array["id"])
    assert peak < found.nbytes + (4 << 20)


class Counting(BufferSource):
    """Bytes in memory that count what is read of them."""

    count = 0

    def readinto_at(self, offset, view):
        self.count += len(view)
        super().readinto_at(offset, view)


def counted(data):
    """Return a lazy array and the source that counts its reads."""
    npz = npzkit.open(data)
    source = npz._archive.source = npz._archive.reader.source = Counting(data)
    lazy = npz.lazy("a")
    source.count = 0
    return lazy, source


NOISE = np.random.default_rng(0).random((1000, 250))


@pytest.mark.slow
def test_an_open_archive_keeps_few_chunks(monkeypatch):
    """Rows of many compressed arrays by turns decode each chunk once, and all together keep what is allowed."""
    stream, count = io.BytesIO(), 24
    arrays = {str(i): np.full((8, 1 << 13), i, "i8") for i in range(count)}
    npzkit.save(stream, arrays, compression="deflated")
    decoded, real = [], chunks.decode_chunk

    def decode(*args, **options):
        decoded.append(args)
        return real(*args, **options)

    monkeypatch.setattr(chunks, "decode_chunk", decode)
    with npzkit.open(stream) as npz:
        lazies = [npz.lazy(key) for key in npz]
        for row in (0, 1, 0):
            assert all((lazy[row] == i).all() for i, lazy in enumerate(lazies))
        once = len(decoded)
        assert once <= 2 * count
        monkeypatch.setattr("npzkit.zip.kept_chunks._KEPT_SIZE", 1 << 20)
        tracemalloc.start()
        for lazy in lazies:
            assert lazy[7].size == 1 << 13
        kept = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        assert kept < 1 << 21
        assert lazies[-1][6].size == 1 << 13
        assert len(decoded) <= once + 2 * count


@pytest.mark.slow
@pytest.mark.parametrize(
    ("index", "share"),
    [(np.s_[300:310], 0.01), (np.s_[::100], 0.01), (np.s_[[7, 500, 7]], 0.002), (np.s_[5, 5], 1e-5), (np.s_[:, 7], 0.004), (np.s_[::-50, :10], 0.001)],
)  # fmt: skip
def test_only_what_is_needed_is_read(index, share):
    """Of a stored array the bytes that the index needs are read, and of its axes no others."""
    for array, at in ((NOISE, index), (np.asfortranarray(NOISE), index)):
        lazy, source = counted(packed("stored", array))
        check_same(lazy[at], array[at])
        assert source.count == array[at].nbytes or (
            at == np.s_[[7, 500, 7]] and source.count <= array[at].nbytes
        )
        assert source.count <= 1.01 * share * array.nbytes


@pytest.mark.slow
def test_a_slice_reads_its_chunks():
    """1 % of a member in chunks reads less than 3 % of its bytes, in both orders."""
    for array, index in ((NOISE, np.s_[200:210]), (np.asfortranarray(NOISE), np.s_[:, 100:102])):
        data = packed("indexed", array, chunk_size=8192)
        lazy, source = counted(data)
        check_same(lazy[index], array[index])
        assert 0 < source.count < 0.03 * len(data)


def test_gaps_are_read_along(monkeypatch):
    """Rows that lie close together are read in one call."""
    monkeypatch.setattr(chunks, "STORED_GRANULARITY", 1 << 14)
    calls = []
    monkeypatch.setattr(
        Counting,
        "readinto_at",
        lambda self, offset, view: (
            calls.append(offset),
            BufferSource.readinto_at(self, offset, view),
        ),
    )
    lazy, _ = counted(packed("stored", NOISE))
    calls.clear()
    check_same(lazy[100:200, 3], NOISE[100:200, 3])
    assert len(calls) == 1
    check_same(lazy[[1, 2, 900]], NOISE[[1, 2, 900]])
    assert len(calls) == 3


def test_wide_gaps_are_read_in_spans(monkeypatch):
    """Where all of it would be too much at once, spans of a bounded size are read."""
    monkeypatch.setattr(chunks, "STORED_GRANULARITY", 1 << 14)
    monkeypatch.setattr(spans, "_SPAN_SIZE", 20_000)
    sizes = []
    monkeypatch.setattr(
        Counting,
        "readinto_at",
        lambda self, offset, view: (
            sizes.append(len(view)),
            BufferSource.readinto_at(self, offset, view),
        ),
    )
    for index in (np.s_[100:200, 3], np.s_[np.arange(100, 200) ** 2 % 200, 3]):
        lazy, _ = counted(packed("stored", NOISE))
        sizes.clear()
        check_same(lazy[index], NOISE[index])
        assert 2 <= len(sizes) <= 25
        assert max(sizes) <= 20_000


@pytest.mark.slow
def test_chunk_shapes():
    """chunks are rows of one compressed chunk or of 1 MiB; columns, in Fortran order."""
    assert lazily(packed("indexed", NOISE, chunk_size=8192)).chunks == (4, 250)
    assert lazily(packed("indexed", np.asfortranarray(NOISE), chunk_size=16_384)).chunks == (
        1000,
        2,
    )
    assert lazily(packed("stored", NOISE)).chunks == (524, 250)
    assert lazily(packed("stored", np.zeros((3, 1 << 20), "u2"))).chunks == (1, 1 << 19)
    assert lazily(packed("stored", np.zeros((0, 5)))).chunks == (1, 5)
    assert lazily(packed("stored", np.float64(1))).chunks == ()


# -- what an archive may be -------------------------------------------------


def test_attributes_and_extension_dtypes(tmp_path):
    """bfloat16 comes back as itself, and attributes are at hand."""
    array = np.arange(1000).astype(ml_dtypes.bfloat16).reshape(10, 100)
    for compression in ("stored", "deflated"):
        with npzkit.NpzWriter(tmp_path / "a.npz", compression=compression) as w:
            w.add("a", array, attrs={"unit": "K"})
        with npzkit.open(tmp_path / "a.npz") as npz:
            lazy = npz.lazy("a")
            assert dict(lazy.attrs) == {"unit": "K"}
            assert lazy.dtype == ml_dtypes.bfloat16
            check_same(lazy[3, ::7], array[3, ::7])
            assert repr(lazy) == "LazyArray('a', shape=(10, 100), dtype=bfloat16)"


@pytest.mark.remedy(
    "Read it completely: npz.read(key), with allow_pickle=True.", "Read it with npz.stream(key)."
)
def test_what_has_no_parts(fixtures):
    """Objects, other members and missing keys are refused by lazy itself, with path and key."""
    for name, key, error in (
        ("numpy_object.npz", "objects", UnsupportedError),
        ("zipfile_names.npz", "readme.txt", NpyFormatError),
        ("zipfile_names.npz", "nope", MemberNotFoundError),
    ):
        with npzkit.open(fixtures / name, allow_pickle=True) as npz:
            with pytest.raises(error) as caught:
                npz.lazy(key)
            assert quoted(fixtures / name) in str(caught.value)
            assert key in str(caught.value)
    with npzkit.open(fixtures / "numpy_object.npz", allow_pickle=True) as npz:
        assert npz.read("objects").dtype == object
    with npzkit.open(fixtures / "zipfile_names.npz") as npz, npz.stream("readme.txt") as stream:
        assert len(stream.read()) == 6


def test_every_fixture_lazily(fixtures):
    """What other programs made is read in parts as it is as a whole."""
    for path in fixtures.glob("*.npz"):
        with npzkit.open(path) as npz:
            for key in npz:
                info = None if "encrypted" in path.name else npz.info(key)
                if info is None or info.shape is None or info.dtype.hasobject:
                    continue
                whole = npz[key]
                check_same(npz.lazy(key)[...], whole)
                if info.shape:
                    check_same(npz.lazy(key)[::-2], whole[::-2])


def test_sozipfiles_archive(fixtures):
    """An archive of the package sozipfile is read alike: its big array as any deflated one."""
    with npzkit.open(fixtures / "sozipfile.npz") as npz:
        info = npz.info("big")
        assert not info.seekable
        assert npz.files == ["big", "small"]
        assert npz.lazy("big").chunks == (8192, 8)
        expected = (np.arange(65_536) ** 2 % 1009).astype("<i4").reshape(8192, 8)
        check_same(npz["big"], expected)
        check_same(npz.lazy("big")[5000:5010], expected[5000:5010])
        assert not npz.info("small").seekable


@pytest.mark.slow
def test_seekable():
    """Stored arrays and those with an index can be read in parts; info says so."""
    for kind, expected in (
        ("stored", True),
        ("indexed", True),
        ("deflated", False),
        ("bzip2", False),
    ):
        assert npzkit.open(packed(kind, NOISE, 8192)).info("a").seekable is expected
    assert not npzkit.open(with_chunks("a.txt", bytes(9000), 4096)).info("a.txt").seekable


def test_closed_and_changed(tmp_path):
    """After close, and once the file changed, a lazy array says so with path and key."""
    path = tmp_path / "a.npz"
    path.write_bytes(packed("indexed", NOISE, 8192))
    with npzkit.open(path) as npz:
        lazy = npz.lazy("a")
        lazy[5]
        assert npz._archive.reader._chunks
    assert not npz._archive.reader._chunks
    with pytest.raises(ClosedArchiveError):
        lazy[5]
    with npzkit.open(path) as npz:
        lazy = npz.lazy("a")
        path.write_bytes(packed("indexed", NOISE + 1, 8192) + b"x")
        for use in (lambda: lazy[5], lazy.read, lambda: npz.lazy("a")[3]):
            with pytest.raises((StaleArchiveError, NpzkitError)):
                use()
        with pytest.raises(StaleArchiveError, match=r"a\.npz.*'a'"):
            lazy[5]


def test_damage_is_said_with_path_and_key(tmp_path):
    """A damaged stream is an error where it is read, whole reads compare the CRC."""
    raw = bytearray(packed("deflated", NOISE))
    raw[len(raw) // 2 : len(raw) // 2 + 50] = bytes(50)
    path = tmp_path / "a.npz"
    path.write_bytes(raw)
    with npzkit.open(path) as npz:
        lazy = npz.lazy("a")
        check_same(lazy[3:5], NOISE[3:5])
        with pytest.raises(ZipFormatError, match=r"a\.npz.*'a'"):
            lazy[:]
    stored = bytearray(packed("stored", NOISE))
    stored[5000] ^= 1
    lazy = lazily(bytes(stored))
    lazy[1:]
    for read in (lazy.read, lambda: lazy[:], lambda: lazy[..., None]):
        with pytest.raises(ChecksumError):
            read()


def claiming(method, descr, size):
    """A lazy array of one axis, whose data a method without a bound only claims."""
    start = header(f"{{'descr': {descr}, 'fortran_order': False, 'shape': ({size},)}}")
    raw = bz2.compress(start)
    if method == 14:
        raw = LZMA + lzma.compress(start, lzma.FORMAT_RAW, filters=[MODEL])
    extra = struct.pack("<HHQ", 1, 8, size + len(start))
    large = {"usize": 0xFFFFFFFF}
    data = archive(
        Member("a.npy", start, method=method, raw=raw, extra=extra, local=large, central=large)
    )
    return lazily(data)


@pytest.mark.parametrize("method", [12, 14])
def test_claims_take_no_memory(method):
    """An array of 64 GiB, or of an exbibyte, that is only claimed fails by its stream's end."""
    lazy = claiming(method, "'|u1'", 1 << 36)
    fields = claiming(method, "[('a', '|u1')]", 1 << 60)
    tracemalloc.start()
    for index in (np.s_[:], np.s_[::2], np.s_[-5:], 1 << 35):
        with pytest.raises(ZipFormatError):
            lazy[index]
    for names in ("a", ["a"]):
        with pytest.raises(ZipFormatError) as caught:
            fields[names]
        assert caught.value.key == "a"
    chunks = fields.iter_chunks()
    assert next(chunks)[0].start == 0 < next(chunks)[0].start
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100 << 20


# -- whole reads by chunks --------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_whole_reads_by_chunks(threads):
    """Members with an index load as any other: alone, together, into memory that is there."""
    for array in (NOISE, np.asfortranarray(NOISE), RECORD, np.arange(700, dtype=">i2")):
        npz = npzkit.open(packed("indexed", array, 5000))
        expected = npzkit.open(packed("stored", array))["a"]
        for found in (
            npz["a"],
            npz.load_all(threads=threads)["a"],
            npz.read("a", threads=threads),
            npz.read("a", out=np.zeros_like(expected), threads=threads),
            npz.read("a", out=np.zeros((*array.shape, 2), array.dtype)[..., 0]),
            npz.read("a", verify=False),
        ):
            assert np.array_equal(found, expected)
            assert found.dtype == expected.dtype


def test_a_sound_index_is_used(monkeypatch):
    """The compressed bytes are read once, and one member's chunks are many tasks."""
    monkeypatch.setattr(chunks, "_TASK_SIZES", (1 << 12, 1 << 13))
    counts = []

    def counting(tasks, threads, **first):
        counts.append(len(tasks))
        return run(tasks, threads, **first)

    monkeypatch.setattr(reader, "run", counting)
    data = packed("indexed", NOISE, 4096)
    _, source = counted(data)
    npz = npzkit.open(data)
    npz._archive.source = npz._archive.reader.source = source
    for load in (lambda: npz["a"], lambda: npz.load_all(threads=2)["a"]):
        source.count = 0
        assert np.array_equal(load(), NOISE)
        assert source.count < 1.05 * len(data)
    assert counts == [pytest.approx(NOISE.nbytes / 8192, abs=2)] * 2


def lies():
    """Lists of chunks that do not fit the stream: the bytes of each, and maybe their CRC-32s."""
    data = npy(NOISE[:50])
    raw, offsets = chunked(data, 4096)
    places = [0, *offsets, len(raw)]
    for shift in (-40, -3, 1, 2, 100):
        yield "shifted", [0, *(offset + shift for offset in offsets), len(raw)]
    yield "one shifted", [*places[:5], places[5] + 5, *places[6:]]
    yield "one missing", [*places[:4], *places[5:]]
    yield "tiny", [*range(len(offsets) + 1), len(raw)]


@each_row("places", [places for _, places in lies()])
def test_a_lying_list_never_gives_wrong_data(places):
    """Whatever a list says, reads give the member's data, or say which chunk is damaged."""
    sizes = [end - begin for begin, end in itertools.pairwise(places)]
    npz, outcomes = npzkit.open(with_chunks("a.npy", npy(NOISE[:50]), 4096, sizes=sizes)), set()
    for load in (
        lambda: npz["a"],
        lambda: npz.load_all(threads=2)["a"],
        lambda: npz.lazy("a")[:],
    ):
        try:
            found = load()
        except ChecksumError as error:
            outcomes.add((error.key, error.is_damage))
        else:
            assert np.array_equal(found, NOISE[:50])
    assert outcomes <= {("a", True)}


def test_a_list_with_other_crc32s_is_not_believed():
    """CRC-32s that do not combine to the member's are not used: its data is read in one piece."""
    npz = npzkit.open(with_chunks("a.npy", npy(NOISE[:50]), 4096, crc32s=[7] * 13))
    for found in (
        npz["a"],
        npz.load_all(threads=2)["a"],
        npz.read("a", verify=False),
        npz.lazy("a")[:],
    ):
        assert np.array_equal(found, NOISE[:50])


def test_chunks_in_the_wrong_order():
    """Chunks of the right size in the wrong places: each of them is found, and said."""
    payload = npy(NOISE[:50])
    swapped = payload[:4096] + payload[8192:12288] + payload[4096:8192] + payload[12288:]
    raw, offsets = chunked(swapped, 4096)
    sizes = [end - begin for begin, end in itertools.pairwise([0, *offsets, len(raw)])]
    npz = npzkit.open(with_chunks("a.npy", payload, 4096, raw=raw, sizes=sizes))
    for use in (npz.read, lambda key: npz.load_all(), lambda key: npz.lazy(key).read()):
        with pytest.raises(ChecksumError, match="'a'"):
            use("a")


def test_many_members_of_all_kinds(tmp_path, monkeypatch):
    """load_all shares chunks of some members and the whole of others out to threads."""
    members = []
    arrays = {f"a{i}": NOISE[i : i + 40] for i in range(6)}
    for i, (key, array) in enumerate(arrays.items()):
        members.append(Member(key + ".npy", npy(array), method=8 if i % 2 else 0))
    npz = npzkit.open(archive(*members))
    for threads in (1, 3):
        found = npz.load_all(threads=threads)
        assert list(found) == list(arrays)
        assert all(np.array_equal(found[key], arrays[key]) for key in arrays)


@pytest.mark.slow
def test_loading_takes_little_more_than_the_array(tmp_path):
    """A deflated array is loaded within 1.05 of its size, with an index and without."""
    # Each value 16 times: what takes a moment to deflate takes as much memory.
    array = np.random.default_rng(0).integers(0, 9, 1 << 19).astype("f4").repeat(16)
    for data in (
        with_chunks("a.npy", npy(array), 1 << 18),
        archive(Member("a.npy", npy(array), method=8)),
    ):
        path = tmp_path / "a.npz"
        path.write_bytes(data)
        with npzkit.open(path) as npz:
            npz.info("a")
            for load in (lambda npz=npz: npz.load_all(threads=2)["a"], lambda npz=npz: npz["a"]):
                tracemalloc.start()
                found = load()
                peak = tracemalloc.get_traced_memory()[1]
                tracemalloc.stop()
                assert np.array_equal(found, array)
                # 32 MB here: 1.05 of 128 MB is 6.7 MB more.
                assert peak < array.nbytes + (6 << 20)
                del found


# -- threads, processes, pickles -------------------------------------------


@pytest.fixture(params=["stored", "indexed", "deflated"])
def path(request, tmp_path):
    path = tmp_path / "a.npz"
    path.write_bytes(packed(request.param, NOISE, 8192))
    return path


@pytest.mark.slow
def test_threads_share_one(path):
    """Threads index one lazy array at once."""
    wrong = []

    def work(seed):
        rng = np.random.default_rng(seed)
        for row in rng.integers(0, 990, 25).tolist():
            if not np.array_equal(lazy[row : row + 10], NOISE[row : row + 10]):
                wrong.append(row)

    with npzkit.open(path) as npz:
        lazy = npz.lazy("a")
        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not wrong


def says_rows_are_right(lazy, start, pipe):
    os.write(pipe, b"%d" % np.array_equal(lazy[start : start + 10], NOISE[start : start + 10]))


@pytest.mark.slow
@pytest.mark.skipif(not HAS_FORK, reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_forked_children_read_right(path):
    """Children forked amid other threads' reads use the array they found."""
    with npzkit.open(path) as npz:
        lazy = npz.lazy("a")
        lazy[-1]
        stop = threading.Event()

        def busy():
            while not stop.is_set():
                lazy[np.random.default_rng().integers(0, 1000)]

        threads = [threading.Thread(target=busy) for _ in range(2)]
        for thread in threads:
            thread.start()
        works = [partial(says_rows_are_right, lazy, 100 * i) for i in range(4)]
        try:
            with all_forked(works) as pipes:
                assert [read_rest(pipe) for pipe in pipes] == [b"1"] * 4
        finally:
            stop.set()
            for thread in threads:
                thread.join()


@pytest.mark.slow
@pytest.mark.skipif(not HAS_FORK, reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_lock_that_is_held_at_the_fork(path):
    """A child forked while another thread reads does not wait for that thread."""
    with npzkit.open(path) as npz, contextlib.ExitStack() as stack:
        lazy = npz.lazy("a")
        lazy[-1]
        access = lazy._member_chunks()
        lock = getattr(access, "_lock", None) or getattr(
            getattr(access, "_chunks", None), "_lock", None
        )
        with contextlib.nullcontext() if lock is None else lock:
            work = partial(says_rows_are_right, lazy, 100)
            _, pipe = stack.enter_context(forked(work))
        assert select.select([pipe], [], [], 20)[0], "the child waits"
        assert read_rest(pipe) == b"1"


@pytest.mark.slow
def test_it_pickles_and_closes_itself(path):
    """A copy by pickle has its own archive, closed without a warning when it is dropped."""
    with npzkit.open(path) as npz:
        lazy = npz.lazy("a")
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            other = pickle.loads(pickle.dumps(lazy))
            assert np.array_equal(copy.copy(lazy)[7], NOISE[7])
            gc.collect()
    assert np.array_equal(other[3:7], NOISE[3:7])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        del other
        gc.collect()
    assert not caught


@pytest.mark.slow
def test_a_pickle_of_a_changed_file(path):
    """Each use of a lazy array of a file that changed since is an error."""
    with npzkit.open(path) as npz:
        data = pickle.dumps(npz.lazy("a"))
    os.utime(path, ns=(0, 0))
    for use in (len, np.asarray, lambda lazy: lazy[0], lambda lazy: lazy.shape):
        with pytest.raises(StaleArchiveError):
            use(pickle.loads(data))
    with pytest.raises(TypeError, match="path"):
        pickle.dumps(lazily(packed("stored", NOISE)))


@pytest.mark.slow
def test_as_an_array_of_another_dtype(path):
    """np.asarray converts, and refuses to do without a copy."""
    with npzkit.open(path) as npz:
        lazy = npz.lazy("a")
        check_same(np.asarray(lazy, "f4"), NOISE.astype("f4"))
        with pytest.raises(ValueError, match="copy"):
            np.array(lazy, copy=False)
        out = np.empty_like(NOISE)
        assert lazy.read(out=out) is out
        assert np.array_equal(out, NOISE)
        assert math.isclose(np.sum(lazy), NOISE.sum())


@pytest.mark.slow
def test_dask(path):
    """dask computes on a lazy array, chunk by chunk, on threads and in processes."""
    array = pytest.importorskip("dask.array", reason="dask is not installed")
    with npzkit.open(path) as npz:
        lazy = npz.lazy("a")
        chunked_array = array.from_array(lazy, chunks=lazy.chunks)
        assert np.array_equal((chunked_array + 1).compute(scheduler="threads"), NOISE + 1)
        assert np.allclose(
            chunked_array[::3].sum().compute(scheduler="synchronous"), NOISE[::3].sum()
        )
        again = array.from_array(pickle.loads(pickle.dumps(lazy)), chunks=lazy.chunks)
        assert again.name == chunked_array.name
        del again
        gc.collect()


@pytest.mark.parametrize("compression", ["stored", "deflated"])
def test_dask_chooses_its_chunks(compression):
    """Without chunks= dask takes chunks of its own size, multiples of the cheap ones."""
    array = pytest.importorskip("dask.array", reason="dask is not installed")
    config = pytest.importorskip("dask.config")
    values = np.arange(1 << 20).reshape(1024, 1024)
    stream = io.BytesIO()
    npzkit.save(stream, {"a": values}, compression=compression)
    with npzkit.open(stream) as npz, config.set({"array.chunk-size": "2MiB"}):
        lazy = npz.lazy("a")
        chunked = array.from_array(lazy)
        assert 1 << 20 <= math.prod(chunked.chunksize) * 8 <= 1 << 21
        assert [a % b for a, b in zip(chunked.chunksize, lazy.chunks, strict=True)] == [0, 0]
        assert np.array_equal(chunked.sum(axis=0).compute(), values.sum(axis=0))


class Rows:
    """A data set of rows, as torch takes it."""

    def __init__(self, lazy):
        self.lazy = lazy

    def __len__(self):
        return 40

    def __getitem__(self, i):
        return self.lazy[i].sum()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_torch_workers(path, method):
    """DataLoader's workers read rows of a lazy array, forked or spawned."""
    data = pytest.importorskip("torch.utils.data", reason="torch is not installed")
    if method not in multiprocessing.get_all_start_methods():
        pytest.skip(f"this system has no {method}")
    with npzkit.open(path) as npz:
        loader = data.DataLoader(
            Rows(npz.lazy("a")), batch_size=8, num_workers=2, multiprocessing_context=method,
            timeout=120,
        )  # fmt: skip
        found = np.concatenate([batch.numpy() for batch in loader])
    assert np.allclose(found, NOISE[:40].sum(axis=1))


def test_nothing_of_a_giant_empty_array_has_no_chunks():
    """An empty array is no chunk, of whatever shape it is."""
    stream = io.BytesIO()
    npzkit.save(stream, {"x": np.empty((1 << 62, 0), "u1")})
    assert list(npzkit.open(stream).lazy("x").iter_chunks()) == []


@pytest.mark.parametrize("compression", ["stored", "deflated"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_as_many_dimensions_as_numpy_has(compression, order):
    """Parts of an array of 64 dimensions are read too, lengths of 1 among them or not."""
    array = np.arange(24).reshape([2, *[1] * 30, 3, *[1] * 31, 4], order=order)
    stream = io.BytesIO()
    npzkit.save(stream, {"x": array}, compression=compression)
    with npzkit.open(stream) as npz:
        lazy = npz.lazy("x")
        for index in (..., 1, (..., slice(None, None, -2)), (0, [0, 0, 0])):
            check_same(lazy[index], array[index])


@pytest.mark.remedy("Read it as numbers: npz.read(key).view('u4').")
def test_text_that_is_no_unicode():
    """An item that no str can hold is an error that says how to read it."""
    stream = io.BytesIO()
    npzkit.save(stream, {"x": np.array([0x110000, 97], "u4").view("U1")})
    lazy = npzkit.open(stream).lazy("x")
    assert lazy[1] == "a"
    with pytest.raises(NpyFormatError, match=r"not valid Unicode.*key 'x'"):
        lazy[0]
    assert npzkit.open(stream).read("x").view("u4").tolist() == [0x110000, 97]
