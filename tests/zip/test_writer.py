"""Chunks and seek indexes that are written: others find them, or skip them."""

from __future__ import annotations

import io
import itertools
import shutil
import string
import struct
import subprocess
import zipfile
import zlib

import npzkit
import numpy as np
import pytest
from npzkit.codecs.coding import DEFLATED, STORED, Coding
from npzkit.files.any_sink import open_any_sink
from npzkit.files.sink import Sink
from npzkit.files.source import BufferSource
from npzkit.files.threads import Pipeline
from npzkit.limits import Limits
from npzkit.zip.array_index import ChunkLists
from npzkit.zip.directory import read_directory
from npzkit.zip.writer import ZipWriter
from npzkit.zip.written_header import SmallMembers

from tables import each_row

NOISE = np.random.default_rng(0).integers(0, 9, 1_000_000, dtype="u1")
KEYS = ["a", "layer/1/w", "größe", "层/größe"]
WIDE = np.dtype([(f"a_long_name_of_a_field_{i}", "u1") for i in range(200)])


def chunks_of(data, name):
    """The list of a member's chunks, or None."""
    source = BufferSource(data)
    directory = read_directory(source, limits=Limits())
    return ChunkLists(source, directory).find(directory.entries[name])


@pytest.fixture(params=["path", "stream"])
def seekable_archive(request, tmp_path):
    """Deflated arrays of many chunks, added and created, and one that has no index."""
    path = tmp_path / "a.npz"
    target = path if request.param == "path" else io.BytesIO()
    arrays = {"tiny": np.arange(3)}
    with npzkit.NpzWriter(
        target, compression="deflated", chunk_size=8192, threads=2, metadata={"step": 7}
    ) as w:
        w["tiny"] = arrays["tiny"]
        for i, key in enumerate(KEYS):
            arrays[key] = NOISE[: 100_000 + i].reshape(-1, 1)
            w.add(key, arrays[key], attrs={"unit": "m"})
            for rows in (None, len(arrays[key])):
                made = f"{key}_{rows}"
                arrays[made] = arrays[key][::-1]
                with w.create(made, (rows, 1), "u1", attrs={"unit": "m"}) as dst:
                    dst.append(arrays[made][:5])
                    dst.append(arrays[made][5:])
        arrays["last"] = NOISE
        w["last"] = NOISE
    if target is not path:
        path.write_bytes(target.getvalue())
    return path, arrays


def test_members_stored_and_deflated_by_turns(tmp_path):
    """What is stored is put behind what is still being deflated, in the order they came."""
    path = tmp_path / "a.npz"
    sink = open_any_sink(path)
    writer = ZipWriter(sink)
    members = {
        f"{letter}.npy": np.tile(NOISE, count)
        for letter, count in zip("abcd", (2, 3, 3, 1), strict=True)
    }
    with Pipeline(2) as pipeline:
        for coding, (name, data) in zip(
            itertools.cycle([Coding(DEFLATED), Coding()]), members.items()
        ):
            writer.write_member(name, [data], len(data), pipeline, coding=coding)
        pipeline.drain()
    writer.commit()
    sink.close()
    with zipfile.ZipFile(path) as archive:
        assert archive.namelist() == list(members)
        offsets = [info.header_offset for info in archive.infolist()]
        assert offsets == sorted(offsets)
        assert all(archive.read(name) == data.tobytes() for name, data in members.items())


@pytest.mark.slow
def test_indexes_are_skipped(seekable_archive):
    """np.load and zipfile see the arrays alone."""
    path, arrays = seekable_archive
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        assert archive.namelist() == [key + ".npy" for key in arrays]
    with np.load(path) as theirs, npzkit.open(path) as ours:
        assert theirs.files == ours.files == list(arrays)
        for key, array in arrays.items():
            assert np.array_equal(theirs[key], array)
            assert np.array_equal(ours[key], array)
            assert ours.info(key).seekable == (key != "tiny")


@pytest.mark.slow
@pytest.mark.parametrize("command", [["unzip", "-t"], ["7z", "t"]], ids=" ".join)
def test_zip_programs_skip_indexes(command, seekable_archive):
    """unzip and 7-Zip find nothing wrong with bytes that no entry names."""
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed")
    found = subprocess.run(
        [*command, str(seekable_archive[0])],
        capture_output=True, text=True, errors="replace", timeout=60,
    )  # fmt: skip
    assert found.returncode == 0, found.stdout + found.stderr
    assert "warning" not in (found.stdout + found.stderr).lower()


def test_choices_per_array():
    """Chunk size, seek index and level are each array's own, where they are given."""
    stream = io.BytesIO()
    with npzkit.NpzWriter(stream, compression="deflated", level=1, chunk_size=65536) as w:
        w["writers"] = NOISE
        w.add("finer", NOISE, chunk_size=4096)
        w.add("plain", NOISE, seekable=False)
        w.add("smaller", NOISE, level=3)
        w.add("blocks", NOISE, level=0)
        w.add("one chunk", NOISE, chunk_size=1 << 20)
        w.add("stored", NOISE, compression="stored")
    data = stream.getvalue()
    npz = npzkit.open(stream)
    size = {key: npz.info(key).compressed_size for key in npz}
    assert size["smaller"] < size["writers"] == size["plain"] < size["blocks"]
    assert size["one chunk"] < size["writers"] < size["finer"]
    assert size["blocks"] > NOISE.nbytes
    assert {key for key in npz if npz.info(key).seekable} == {
        "writers", "finer", "smaller", "blocks", "stored"
    }  # fmt: skip
    assert chunks_of(data, "writers.npy").chunk_size == 65536
    assert chunks_of(data, "finer.npy").chunk_size == 4096
    assert all(np.array_equal(npz[key], NOISE) for key in npz)


@pytest.mark.slow
@pytest.mark.parametrize("created", [False, True])
@pytest.mark.parametrize("chunk_size", [4096, 5000, 1 << 16])
def test_chunks_stand_alone(chunk_size, created):
    """At each offset of the index a decoder begins anew and finds exactly that chunk."""
    stream = io.BytesIO()
    with npzkit.NpzWriter(stream, compression="deflated", chunk_size=chunk_size) as w:
        if created:
            with w.create("a", (None,), "u1") as dst:
                dst.append(NOISE[:200_000])
                dst.append(NOISE[200_000:])
        else:
            w["a"] = NOISE
    data = stream.getvalue()
    with zipfile.ZipFile(stream) as archive:
        info = archive.getinfo("a.npy")
        payload = archive.read(info)
    name_size, extra_size = struct.unpack_from("<HH", data, info.header_offset + 26)
    start = info.header_offset + 30 + name_size + extra_size
    raw = data[start : start + info.compress_size]
    index = chunks_of(data, "a.npy")
    offsets = index.offsets
    assert len(offsets) == -(-len(payload) // chunk_size) + 1
    for number, (begin, end) in enumerate(itertools.pairwise(offsets)):
        decoder = zlib.decompressobj(-15)
        expected = payload[number * chunk_size :][:chunk_size]
        assert decoder.decompress(raw[begin:end]) == expected
        assert decoder.eof == (end == len(raw))
        assert decoder.eof or raw[:end].endswith(b"\0\0\xff\xff\0\0\0\xff\xff")


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("size", [100, 3 << 20])
def test_methods_take_turns_in_one_pipeline(tmp_path, threads, size):
    """A stored member begins where the deflated one before it ended, though threads are at it still."""
    path = tmp_path / "a.zip"
    sink = open_any_sink(path)
    writer = ZipWriter(sink)
    data = bytes(NOISE) * 4
    with Pipeline(threads) as pipeline:
        for number, method in enumerate([DEFLATED, STORED, STORED, DEFLATED, DEFLATED, STORED]):
            writer.write_member(
                str(number), [data[:size]], size, pipeline, coding=Coding(method, chunk_size=4096)
            )
    writer.commit()
    sink.close()
    with zipfile.ZipFile(path) as archive:
        assert archive.namelist() == list("012345")
        assert all(archive.read(name) == data[:size] for name in archive.namelist())


@each_row("count", [1, 2, 3, 64])
@each_row("more", [-1, 0, 1])
def test_one_chunk_has_no_index(count, more):
    """A member has an index from the first byte behind its first chunk on."""
    stream = io.BytesIO()
    array = NOISE[: count * 4096 - 128 + more]
    npzkit.save(stream, {"a": array}, compression="deflated", chunk_size=4096)
    index = chunks_of(stream.getvalue(), "a.npy")
    if count == 1 and more <= 0:
        assert index is None
    else:
        assert len(index.offsets) - 1 == count + (more > 0)
    npz = npzkit.open(stream)
    assert npz.info("a").seekable == (index is not None)
    assert np.array_equal(npz.lazy("a")[-5:], array[-5:])


@each_row(
    ("option", "value"),
    [
        *(("chunk_size", value) for value in (0, -1, 4095, (1 << 26) + 1, True, 8192.0, "8192")),
        *(("level", value) for value in (-1, 10, 1.5)),
    ],
)
def test_bad_choices(option, value, tmp_path):
    """A chunk size or level that is none is a ValueError, at once, and nothing is written."""
    options = {"compression": "deflated", option: value}
    with pytest.raises(ValueError, match=option):
        npzkit.save(tmp_path / "a.npz", {"a": NOISE}, **options)
    assert not list(tmp_path.iterdir())
    stream = io.BytesIO()
    with npzkit.NpzWriter(stream) as w:
        with pytest.raises(ValueError, match=option):
            w.add("a", NOISE, **options)
        with pytest.raises(ValueError, match=option):
            w.create("a", (None,), "u1", **options)
        w["a"] = NOISE
    assert npzkit.open(stream).files == ["a"]


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 7, 500])
@pytest.mark.parametrize("chunk_size", [4096, 8192])
def test_headers_larger_than_a_chunk(chunk_size, count):
    """An array that grows keeps its header whole: one that fills a chunk leaves no index."""
    array = NOISE[: count * WIDE.itemsize].view(WIDE)
    stream = io.BytesIO()
    with npzkit.NpzWriter(stream, compression="deflated", chunk_size=chunk_size) as w:
        with w.create("a", (None,), WIDE) as dst:
            dst.append(array[:3])
            dst.append(array[3:])
        w["b"] = array
    npz = npzkit.open(stream)
    assert np.array_equal(npz["a"], array)
    assert np.array_equal(npz.lazy("a")[-1:], array[-1:])
    assert npz.info("a").seekable == (chunk_size == 8192 and count > 1)
    assert (chunks_of(stream.getvalue(), "a.npy") is not None) == npz.info("a").seekable


@pytest.mark.filterwarnings("ignore:Stored array in format 2.0")
@pytest.mark.filterwarnings("ignore:the header of this array")
def test_headers_larger_than_a_block():
    """A header that no stored block of deflate can hold is refused, and the writer goes on."""
    dtype = np.dtype([(f"a_long_name_of_a_field_{i}", "u1") for i in range(3000)])
    stream = io.BytesIO()
    with npzkit.NpzWriter(stream, compression="deflated") as w:
        with pytest.raises(npzkit.errors.LimitExceededError, match="header"):
            w.create("a", (None,), dtype)
        w["b"] = np.arange(3)
    assert npzkit.open(stream).files == ["b"]


class Counting(Sink):
    """A sink that keeps what comes, and believes that 4 GiB came before."""

    can_patch = True

    def __init__(self, position):
        self.start = self.position = position
        self.data = bytearray()

    def write(self, data):
        self.data += data
        self.position += len(data)

    def patch(self, offset, data):
        self.data[offset - self.start :][: len(data)] = data

    def readinto_at(self, offset, view):
        raise NotImplementedError

    def commit(self, last, before=b"", mark=None):
        self.write(before + last)

    def abort(self):
        pass

    def close(self):
        pass


@pytest.mark.parametrize("count", [3, 40])
def test_small_members_behind_4_gib(count):
    """Small arrays whose place needs 64 bits are listed with zip64, as any other."""
    sink = Counting((1 << 32) - 200)
    writer = ZipWriter(sink)
    names = [f"{letter}.npy" for letter in string.ascii_letters[:count]]
    pieces = [bytes(60)] * count, [bytes(40)] * count
    members = SmallMembers(names, pieces, [100] * count, [0] * count, [b""] * count, [None] * count)
    writer.write_small(members, 0)
    writer.commit()
    offsets = []
    position = sink.data.index(b"NPZX") + 4
    for _ in names:
        extra_size = int.from_bytes(sink.data[position + 30 : position + 32], "little")
        offset = int.from_bytes(sink.data[position + 42 : position + 46], "little")
        if offset == 0xFFFFFFFF:
            assert extra_size == 12
            offset = int.from_bytes(sink.data[position + 55 : position + 63], "little")
        offsets.append(offset)
        position += 46 + 5 + extra_size
    assert offsets[0] < 1 << 32 < offsets[2]
    for name, offset in zip(names, offsets, strict=True):
        local = sink.data[offset - sink.start :]
        assert local[:4] == b"PK\x03\x04"
        assert local[30:35] == name.encode()
