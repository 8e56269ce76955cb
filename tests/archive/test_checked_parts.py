"""Parts of arrays: each chunk of which a part is read has a CRC-32, which is compared."""

from __future__ import annotations

import io
import os
import pickle
import random
import struct
import zlib

import forge
import npzkit
import npzkit.reading.maps
import numpy as np
import pytest
from crash import recorded, replay
from deep import amount
from npzkit.archive.skeleton import skeleton_of
from npzkit.errors import ChecksumError, NpyFormatError, NpzkitError, ZipFormatError
from npzkit.zip.footer import FOOTER_SIZE
from npzkit.zip.sozip import SeekIndex, checks_index, find_index, format_index
from range_server import RangeServer

RANDOM = np.random.default_rng(0)
# Incompressible bytes are stored within deflate, so that a flipped bit decodes to other values.
LARGE = RANDOM.integers(0, 256, (600, 500)).astype("u1")
SMALL = RANDOM.integers(0, 256, 5000).astype("u1")
ARRAYS = {"large": LARGE, "small": SMALL, "scaled": np.sin(np.arange(90_000) / 100)}
TALL = RANDOM.random((40_000, 7)).astype("f4")
"""17.1 chunks of a stored array."""
CHUNK = 1 << 15


def in_rows(path, **options):
    """Rows are appended, and the header is replaced when their number is known."""
    with npzkit.NpzWriter(path, **options) as writer:
        for key, array in ARRAYS.items():
            with writer.create(key, (None, *array.shape[1:]), array.dtype) as rows:
                for start in range(0, len(array), 77):
                    rows.append(array[start : start + 77])


def created(path):
    in_rows(path, compression="deflated", chunk_size=CHUNK)


def appended(path):
    npzkit.save(path, {"first": SMALL})
    with npzkit.NpzWriter(path, "a", compression="deflated", chunk_size=CHUNK) as writer:
        for key, array in ARRAYS.items():
            writer[key] = array


def repacked(path):
    np.savez_compressed(path, **ARRAYS)
    npzkit.repack(path, chunk_size=CHUNK)


def copied(path):
    saved(path)
    npzkit.repack(path)


def saved(path):
    npzkit.save(path, ARRAYS, compression="deflated", chunk_size=CHUNK)


def saved_with_zstd(path):
    npzkit.save(path, ARRAYS, compression="zstd", chunk_size=CHUNK)


def rows_with_zstd(path):
    with npzkit.NpzWriter(path, compression="zstd", chunk_size=CHUNK) as writer:
        for key, array in ARRAYS.items():
            with writer.create(key, (None, *array.shape[1:]), array.dtype) as rows:
                for start in range(0, len(array), 77):
                    rows.append(array[start : start + 77])


def shards(path):
    with npzkit.ShardedWriter(path, compression="deflated", chunk_size=CHUNK) as writer:
        for key, array in ARRAYS.items():
            writer[key] = array
        writer.commit()


def stored(path):
    npzkit.save(path, ARRAYS)


def stored_in_rows(path):
    in_rows(path)


def stored_in_any_order(path):
    with npzkit.NpzWriter(path) as writer:
        for key, array in ARRAYS.items():
            with writer.create(key, array.shape, array.dtype) as filled:
                filled[100:] = array[100:]
                filled[:100] = array[:100]


def stored_and_appended(path):
    npzkit.save(path, {"first": SMALL})
    with npzkit.NpzWriter(path, "a") as writer:
        for key, array in ARRAYS.items():
            writer.add(key, array, attrs={"unit": "m"})


def stored_and_renamed(path):
    npzkit.save(path, {f"old {key}": array for key, array in ARRAYS.items()})
    with npzkit.NpzWriter(path, "a") as writer:
        for key in ARRAYS:
            writer.rename(f"old {key}", key)


def numpys(path):
    np.savez(path, **ARRAYS)
    npzkit.repack(path)


def to_a_stream(path):
    class Stream(io.RawIOBase):
        """A pipe: nothing that was written can be changed."""

        data = b""

        def write(self, data):
            self.data += bytes(data)
            return len(data)

        def writable(self):
            return True

    stream = Stream()
    npzkit.save(stream, ARRAYS)
    path.write_bytes(stream.data)


WAYS = [
    saved, saved_with_zstd, rows_with_zstd, created, appended, repacked, copied, stored, stored_in_rows, stored_in_any_order,
    stored_and_appended, stored_and_renamed, numpys, to_a_stream,
]  # fmt: skip


@pytest.mark.parametrize("make", WAYS)
def test_no_part_is_wrong(make, tmp_path):
    """Whatever byte of the data is flipped, a part is what was saved, or an error that names it."""
    path = tmp_path / "a.npz"
    make(path)
    sound, rng = path.read_bytes(), random.Random(0)
    outcomes = set()
    for number in range(amount(36, 2000)):
        key = ("large", "scaled", "small")[number % 3]
        with npzkit.open(sound) as npz:
            entry = npz._archive.entry(key)
            assert npz.info(key).checked_parts
        data = bytearray(sound)
        data[rng.randrange(entry.header_offset + 80, entry.end_offset)] ^= 1 << rng.randrange(8)
        array = ARRAYS[key]
        begin, end = sorted((rng.randrange(len(array)), rng.randrange(len(array))))
        try:
            with npzkit.open(bytes(data)) as npz:
                found = npz.lazy(key)[begin:end]
        except NpzkitError as error:
            outcomes.add(type(error) if error.key == key else error.key)
        else:
            assert np.array_equal(found, array[begin:end])
            outcomes.add(None)
    assert (
        {None, ChecksumError} <= outcomes <= {None, ChecksumError, ZipFormatError, NpyFormatError}
    )


def damaged(tmp_path, make=saved):
    """Return an archive in which a chunk of `large` has other values, and that chunk."""
    path = tmp_path / "a.npz"
    make(path)
    data = bytearray(path.read_bytes())
    with npzkit.open(bytes(data)) as npz:
        entry, start = npz._archive.entry("large"), npz.info("large").data_offset
        index = find_index(npz._archive.source, entry, start)
    place = start + index.offsets[4] + 1000
    data[place] ^= 1
    path.write_bytes(data)
    return path, start + index.offsets[4]


def test_the_error_says_which_chunk(tmp_path):
    """Key, number and place of the damaged chunk; all other chunks can be read."""
    path, place = damaged(tmp_path)
    with npzkit.open(path) as npz:
        lazy = npz.lazy("large")
        with pytest.raises(ChecksumError, match="chunk 5 of 10 is damaged") as caught:
            lazy[1:]
        assert (caught.value.key, caught.value.offset, caught.value.is_damage) == (
            "large",
            place,
            True,
        )
        assert np.array_equal(lazy[:200], LARGE[:200])
        assert np.array_equal(lazy[400:], LARGE[400:])


READS = {
    "npz[key]": lambda npz: npz["large"],
    "load_all": lambda npz: npz.load_all(),
    "load_all of one": lambda npz: npz.load_all(["large"]),
    "out": lambda npz: npz.read("large", out=np.zeros_like(LARGE)),
    "threads": lambda npz: npz.read("large", threads=1),
    "fill": lambda npz: npz.load_all(out={"large": np.zeros_like(LARGE)}),
    "stream": lambda npz: npz.stream("large").read(),
    "lazy": lambda npz: npz.lazy("large")[:],
}


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("place", [20, 1000, -4], ids=["header", "data", "end"])
def test_whole_reads_name_the_chunk(read, place, tmp_path):
    """An error of any read has the key, the chunk, its offset, and what else was to be done."""
    path = tmp_path / "a.npz"
    saved(path)
    data = bytearray(path.read_bytes())
    with npzkit.open(bytes(data)) as npz:
        entry, start = npz._archive.entry("large"), npz.info("large").data_offset
        index = find_index(npz._archive.source, entry, start)
    number = 4 if place == 1000 else 0 if place == 20 else len(index.crc32s) - 1
    begin = start + index.offsets[number]
    data[begin + place if place > 0 else start + entry.compressed_size + place] ^= 4
    with npzkit.open(bytes(data)) as npz, pytest.raises(ChecksumError) as caught:
        READS[read](npz)
    error = caught.value
    assert (error.key, error.chunk, error.offset) == ("large", number + 1, begin)
    assert f"chunk {number + 1} of 10 is damaged" in str(error)
    if place == 1000 and read != "lazy":
        assert error.remedy.startswith("Download it or create it again")


def test_sound_chunks_of_a_damaged_member_are_not_blamed(tmp_path):
    """An error that is not about a chunk, or of an array without CRC-32s of chunks, names none."""
    path = tmp_path / "a.npz"
    np.savez_compressed(path, large=LARGE)
    data = bytearray(path.read_bytes())
    data[1000] ^= 1
    with npzkit.open(bytes(data)) as npz, pytest.raises((ChecksumError, ZipFormatError)) as caught:
        npz["large"]
    assert getattr(caught.value, "chunk", None) is None
    saved(path)
    data = bytearray(path.read_bytes())
    data[18] ^= 1
    with npzkit.open(bytes(data)) as npz, pytest.raises(ZipFormatError, match="local header"):
        npz["large"]


def test_verify_names_chunks_and_rows(tmp_path):
    """verify says which chunks are damaged, and which rows are; and so of many, in short."""
    path, _ = damaged(tmp_path)
    (row,) = [row for row in npzkit.verify(path).rows if row.severity == "error"]
    # A chunk of 32 KiB has 65.5 rows, of which the first begins after the header of 128 bytes.
    advice = "; npzkit.repair(path, output, partial=True) saves the other values"
    assert row.what.endswith(f"; damaged chunk 5 of 10, in rows 261 to 327{advice}")
    (lost,) = npzkit.repair(path, tmp_path / "b.npz").lost
    assert (lost.what, lost.where) == (row.what, row.where)
    with npzkit.open(path) as npz:
        assert np.array_equal(npz.lazy("large")[:261], LARGE[:261])
        assert np.array_equal(npz.lazy("large")[328:], LARGE[328:])
    data = bytearray(path.read_bytes())
    with npzkit.open(path) as npz:
        start = npz.info("large").data_offset
    for place in range(3, 10):
        data[start + place * (CHUNK + 30) - 5000] ^= 1
    (row,) = [row for row in npzkit.verify(bytes(data)).rows if row.severity == "error"]
    rows = "in rows 130 to 589; npzkit.repair"
    assert f"; damaged chunks 3, 4, 5, 6, 7 and 2 more of 10, {rows}" in row.what
    data[start + 20] ^= 0xFF
    _, row = [row for row in npzkit.verify(bytes(data)).rows if row.severity == "error"]
    # The array index knows the header.
    rows = "in rows 0 to 65, 130 to 589; npzkit.repair"
    assert f"; damaged chunks 1, 3, 4, 5, 6 and 3 more of 10, {rows}" in row.what


def test_it_can_be_switched_off(tmp_path):
    """With verify=False a part is what the bytes say, also of a copy that was pickled."""
    path, _ = damaged(tmp_path)
    with npzkit.open(path) as npz:
        lazy = npz.lazy("large", verify=False)
        for each in (lazy, pickle.loads(pickle.dumps(lazy))):
            assert 1 <= np.count_nonzero(each[:] != LARGE) < CHUNK
        with pytest.raises(ChecksumError):
            npz.lazy("large")[:]


def test_parts_of_shards_are_checked(tmp_path):
    """A part of an array in shards is compared, too, unless that is switched off."""
    shards(tmp_path / "a")
    (shard,) = [path for path in (tmp_path / "a").iterdir() if path.suffix == ".npz"]
    data = bytearray(shard.read_bytes())
    with npzkit.open(bytes(data)) as npz:
        key = next(key for key in npz if "large" in key)
        data[npz.info(key).data_offset + 20_000] ^= 1
    shard.write_bytes(data)
    with npzkit.open(tmp_path / "a") as npz:
        with pytest.raises(ChecksumError):
            npz.lazy("large")[3:300, 5]
        assert npz.lazy("large", verify=False)[3:300, 5].shape == (297,)


def with_crc32s(data, change):
    """Return an archive in which the CRC-32s of an index are changed, and its own CRC-32 is right."""
    with npzkit.open(data) as npz:
        entry, start = npz._archive.entry("large"), npz.info("large").data_offset
        index = find_index(npz._archive.source, entry, start)
    old, new = format_index(index), format_index(index._replace(crc32s=change(index.crc32s)))
    place = data.index(old)
    header = data.rindex(b"PK\3\4", 0, place)
    fields = struct.pack("<L", zlib.crc32(new)) + 2 * struct.pack("<L", len(new))
    patched = data[: header + 14] + fields + data[header + 26 : place] + new
    return patched + bytes(len(old) - len(new)) + data[place + len(old) :]


@pytest.mark.parametrize(
    "change",
    [
        lambda crc32s: (),
        lambda crc32s: crc32s[:-1],
        lambda crc32s: (crc32s[0] ^ 1, *crc32s[1:]),
        lambda crc32s: (crc32s[1], crc32s[0], *crc32s[2:]),
    ],
    ids=["none, as by other programs", "too few", "another one", "swapped"],
)
def test_what_does_not_combine_is_not_believed(tmp_path, change):
    """CRC-32s that are not, together, that of the member say nothing: parts are read unchecked."""
    path = tmp_path / "a.npz"
    saved(path)
    data = with_crc32s(path.read_bytes(), change)
    with npzkit.open(data) as npz:
        assert np.array_equal(npz.lazy("large")[100:500], LARGE[100:500])
        assert np.array_equal(npz["large"], LARGE)
        assert npz.info("large").seekable


def test_other_programs_read_what_has_crc32s(tmp_path):
    """NumPy reads the arrays; the index without CRC-32s, as other programs have it, is as long as they say."""
    path = tmp_path / "a.npz"
    saved(path)
    with np.load(path) as npz:
        assert all(np.array_equal(npz[key], array) for key, array in ARRAYS.items())
    index = SeekIndex(4, (0, 2, 9), 7, (1, 2))
    data = format_index(index)
    assert struct.unpack_from("<LL", data) == (1, 8)
    assert data[32:] == struct.pack("<LLQ", 1, 2, 2)
    assert index.has_checks(0) is False


def test_a_stream_that_cannot_be_inflated_is_an_error(tmp_path):
    """A damaged chunk is not read again in another way, which might find other values."""
    path = tmp_path / "a.npz"
    npzkit.save(path, {"x": ARRAYS["scaled"]}, compression="deflated", chunk_size=CHUNK)
    data = bytearray(path.read_bytes())
    with npzkit.open(bytes(data)) as npz:
        start = npz.info("x").data_offset
    data[start + 300 : start + 340] = bytes(40)
    with npzkit.open(bytes(data)) as npz:
        with pytest.raises(ChecksumError, match="chunk 1 of"):
            npz.lazy("x")[5:10]
        assert np.array_equal(npz.lazy("x")[80_000:], ARRAYS["scaled"][80_000:])
        with pytest.raises((ChecksumError, ZipFormatError)):
            npz["x"]


def test_a_small_stream_of_many_flushes_is_sound():
    """A small deflated member whose stream is much longer than its data is read in parts as well."""
    data, packer = io.BytesIO(), zlib.compressobj(9, zlib.DEFLATED, -15)
    npzkit.format.write_array(data, SMALL)
    raw = b"".join(
        packer.compress(bytes([byte])) + packer.flush(zlib.Z_SYNC_FLUSH) for byte in data.getvalue()
    )
    archive = forge.archive(
        forge.Member("a.npy", data.getvalue(), method=8, raw=raw + packer.flush())
    )
    with npzkit.open(archive) as npz:
        assert np.array_equal(npz.lazy("a")[3:50], SMALL[3:50])
        assert np.array_equal(npz["a"], SMALL)


def test_file_objects_too():
    """What was saved to a file object has CRC-32s of its chunks as well."""
    stream = io.BytesIO()
    npzkit.save(stream, {"x": LARGE}, compression="deflated", chunk_size=CHUNK)
    data = bytearray(stream.getvalue())
    data[200_000] ^= 8
    with npzkit.open(bytes(data)) as npz, pytest.raises(ChecksumError):
        npz.lazy("x")[:]


# -- stored arrays --------------------------------------------------------------


def sums(path, key="x"):
    """Return the CRC-32s of chunks that an archive has of a stored array, and of its own bytes."""
    with npzkit.open(path) as npz:
        archive = npz._archive.one_file()
        entry = archive.entry(key)
        start = npz.info(key).data_offset + npz.info(key).nbytes - entry.uncompressed_size
        index = find_index(archive.source, entry, start)
    data = path.read_bytes()[start : start + entry.compressed_size]
    return list(index.crc32s), [
        zlib.crc32(data[at : at + 65_536]) for at in range(0, len(data), 65_536)
    ]


@pytest.mark.parametrize("size", [262_016, 262_017, 327_552, 2_000_000, 2_200_000, 17_000_000])
def test_stored_arrays_of_every_size_have_checks(tmp_path, size):
    """From 256 KiB on with the NPY header, by whichever way they are written; smaller ones have none."""
    path, array = tmp_path / "a.npz", np.arange(size, dtype="u4").astype("u1")
    npzkit.save(path, {"x": array, "y": SMALL})
    with npzkit.open(path) as npz:
        assert npz.info("x").checked_parts
        assert np.array_equal(npz.lazy("x")[size - 70_000 :], array[size - 70_000 :])
    assert npzkit.verify(path).ok
    if size > 262_016:
        found, expected = sums(path)
        assert found == expected
    with np.load(path) as npz:
        assert np.array_equal(npz["x"], array)
    npzkit.save(path, {"x": array}, seekable=False)
    assert path.read_bytes().count(b"x.npy") == 2
    with npzkit.open(path) as npz:
        assert npz.info("x").checked_parts == (size == 262_016)


def test_a_header_of_several_chunks(tmp_path):
    """The header that replaces the first one, when the rows are counted, is in the checks too."""
    path, names = tmp_path / "a.npz", [f"{number:0>150}" for number in range(1000)]
    rows = np.zeros(200, [(name, "u1") for name in names])
    with (
        npzkit.NpzWriter(path) as writer,
        pytest.warns(UserWarning, match="format 2"),
        writer.create("x", (None,), rows.dtype) as created,
    ):
        created.append(rows)
    with npzkit.open(path, limits=npzkit.Limits(header_size=1 << 20)) as npz:
        assert npz.info("x").data_offset > 2 * 65_536
        assert npz.info("x").checked_parts


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("scale", [1, 20])
def test_any_part_of_a_stored_array(tmp_path, scale, threads, monkeypatch):
    """Parts of all sizes, that begin and end anywhere, are right; and errors if a chunk is damaged."""
    monkeypatch.setattr("npzkit.archive.lazyarray.thread_count", lambda count: threads)
    path, array = tmp_path / "a.npz", np.tile(TALL, (scale, 1))
    npzkit.save(path, {"x": array})
    with npzkit.open(path) as npz:
        place = npz.info("x").data_offset + 655_360 * scale
    with path.open("r+b") as file:
        file.seek(place)
        byte = file.read(1)[0]
        file.seek(place)
        file.write(bytes([byte ^ 1]))
    # The chunk begins before the array does, by the header of 128 bytes.
    first = (655_360 * scale) // 28 - 128 // 28
    rng = random.Random(scale)
    with npzkit.open(path) as npz:
        lazy = npz.lazy("x")
        for _ in range(40):
            begin = rng.randrange(len(array))
            end = begin + rng.choice([1, 5, 3000, len(array)])
            if end < first - 2341 or begin > first + 2341:
                assert np.array_equal(lazy[begin:end], array[begin:end])
            elif begin <= first - 2341 and end >= first + 2341:
                with pytest.raises(ChecksumError, match="is damaged"):
                    lazy[begin:end]


def test_a_flush_renews_the_checks(tmp_path):
    """What a map changes is checked afterwards, by all of it or by a range of it."""
    path = tmp_path / "a.npz"
    npzkit.save(path, {"x": TALL, "y": SMALL})
    for ranged in (False, True):
        with npzkit.open(path) as npz:
            mapped = npz.memmap("x", "r+")
            mapped[20_000] = 1 + ranged
            with pytest.raises(ChecksumError, match=r"npz\.flush\(\)"):
                npz.lazy("x")[20_000]
            if ranged:
                page = 20_000 * 28 // 4096 * 4096
                mapped.base.flush(page, 8192)
            else:
                mapped.flush()
            assert npz.lazy("x")[20_000, 0] == 1 + ranged
            found, expected = sums(path)
            assert found == expected
        assert npzkit.verify(path).ok


def test_a_flush_of_a_range_reads_its_chunks(tmp_path, monkeypatch):
    """It costs what the range has; without the checks in the file, all of the array."""
    path = tmp_path / "a.npz"
    npzkit.save(path, {"x": TALL})
    sizes, real = [], npzkit.reading.maps.chunk_crc32s
    monkeypatch.setattr(
        npzkit.reading.maps, "chunk_crc32s",
        lambda data, size: sizes.append(len(data)) or real(data, size),
    )  # fmt: skip
    with npzkit.open(path) as npz:
        mapped = npz.memmap("x", "r+")
        mapped[20_000] = 5
        mapped.base.flush(20_000 * 28 // 4096 * 4096, 8192)
        assert sizes == [65_536]
        mapped.base.flush()
        assert sizes == [65_536, TALL.nbytes + 128]
    assert npzkit.verify(path).ok
    del mapped
    npzkit.save(path, {"x": TALL}, seekable=False)
    sizes.clear()
    with npzkit.open(path) as npz:
        mapped = npz.memmap("x", "r+")
        mapped[20_000] = 5
        mapped.base.flush(20_000 * 28 // 4096 * 4096, 8192)
        assert sizes == [65_536, TALL.nbytes + 128]
    assert npzkit.verify(path).ok


def test_a_kill_within_a_flush_of_a_large_map(tmp_path):
    """At no moment is a part wrong or refused once the data is listed; verify says what is left."""
    path = tmp_path / "a.npz"
    npzkit.save(path, {"x": TALL})
    changed = TALL.copy()
    changed[20_000] = 1
    with npzkit.open(path) as npz:
        mapped = npz.memmap("x", "r+")
        mapped[20_000] = 1
        with recorded(tmp_path) as recorder:
            mapped.flush()
        del mapped
    before = recorder.contents[recorder.names[str(path)]]
    calls = [call for call in recorder.calls if call.kind == "write"]
    assert len(calls) == 3
    for count in range(len(calls) + 1):
        path.write_bytes(replay(before, calls[:count]))
        with npzkit.open(path) as npz:
            if count < 2:
                with pytest.raises(ChecksumError):
                    npz.lazy("x")[20_000]
            else:
                # The CRC-32s in the index are the old ones, and are not believed.
                assert np.array_equal(npz.lazy("x")[5:30_000], changed[5:30_000])
        if count == 2:
            (row,) = npzkit.verify(path).rows
            assert (row.severity, "npzkit.repack renews them" in row.what) == ("warning", True)
        npzkit.repair(path)
        if count == 1:
            found, expected = sums(path)
            assert found == expected
        assert npzkit.verify(path).ok == (count > 0)


def test_checks_that_were_changed_are_not_believed(tmp_path):
    """CRC-32s of chunks that are not, together, the array's say nothing, whoever wrote them."""
    path = tmp_path / "a.npz"
    npzkit.save(path, {"x": TALL})
    found, _ = sums(path)
    data = path.read_bytes()
    old = format_index(checks_index(found, TALL.nbytes + 128))
    new = format_index(checks_index([*found[:-1], 7], TALL.nbytes + 128))
    place = data.index(old)
    header = data.rindex(b"PK\3\4", 0, place)
    path.write_bytes(
        data[: header + 14] + struct.pack("<L", zlib.crc32(new)) + data[header + 18 : place] + new
        + data[place + len(old) :]
    )  # fmt: skip
    with npzkit.open(path) as npz:
        assert np.array_equal(npz.lazy("x")[39_000:], TALL[39_000:])
        assert np.array_equal(npz["x"], TALL)
    assert "do not match it" in str(npzkit.verify(path))
    npzkit.repack(path)
    assert not npzkit.verify(path).rows


def test_an_archive_that_is_opened_without_checks(tmp_path):
    """With verify=False, what is read is what the bytes say, unless a call asks for the check."""
    path = tmp_path / "a.npz"
    npzkit.save(path, {"x": TALL})
    with npzkit.open(path) as npz:
        place = npz.info("x").data_offset
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    with npzkit.open(bytes(data), verify=False) as npz:
        for found in (npz["x"], npz.read("x"), npz.load_all()["x"], npz.lazy("x")[:5]):
            assert found[0, 0] != TALL[0, 0]
        assert npz.lazy("x").read()[0, 0] != TALL[0, 0]
        for read in (npz.read, npz.lazy):
            with pytest.raises(ChecksumError):
                read("x", verify=True)[:5]
        with pytest.raises(ChecksumError):
            npz.load_all(verify=True)
    path.write_bytes(data)
    with npzkit.open(path, verify=False) as npz, pickle.loads(pickle.dumps(npz)) as copy:
        assert copy["x"][0, 0] != TALL[0, 0]


@pytest.mark.parametrize("make", [saved, stored])
def test_verify_misses_an_index(make, tmp_path):
    """If nothing is left of an index that the array index knows of, verify warns, for its array."""
    path = tmp_path / "a.npz"
    make(path)
    data = path.read_bytes()
    place = data.index(b".large.npy.sozip.idx")
    *_, row = npzkit.verify(data[: place - 30] + bytes(50) + data[place + 20 :]).rows
    assert (row.severity, row.key) == ("warning", "large")
    assert "its seek index does not match it" in row.what


@pytest.mark.parametrize("make", [saved, stored])
@pytest.mark.parametrize("reach", ["checks", "array index"])
def test_data_that_is_damaged_together_with_its_checks(make, reach, tmp_path):
    """Damage may take the end of an array, and what says which CRC-32s it had: it is an error."""
    path = tmp_path / "a.npz"
    make(path)
    data = bytearray(path.read_bytes())
    key = "large" if reach == "checks" else "scaled"
    with npzkit.open(bytes(data)) as npz:
        info, entry = npz.info(key), npz._archive.entry(key)
        end = npz._archive.directory.directory_offset - FOOTER_SIZE
    begin = info.data_offset - (128 if info.method == "stored" else 0) + entry.compressed_size - 9
    end = begin + 60 if reach == "checks" else end
    data[begin:end] = bytes(end - begin)
    with RangeServer().running() as server:
        url = server.put(bytes(data))
        for file in (bytes(data), url):
            with npzkit.open(file) as npz, pytest.raises((ChecksumError, ZipFormatError)):
                npz.lazy(key)[-5:]
    with npzkit.open(bytes(data), verify=False) as npz:
        assert np.array_equal(npz.lazy(key)[:5], ARRAYS[key][:5])


@pytest.mark.skipif(not hasattr(os, "preadv"), reason="only preadv reads files of one kind so")
def test_files_that_are_alike_but_for_data_and_checks(tmp_path):
    """Files of one kind are recognised, though the CRC-32s of their chunks differ, and damage is not."""
    paths = [tmp_path / f"{number}.npz" for number in range(3)]
    for number, path in enumerate(paths):
        npzkit.save(path, {"x": TALL + number, "y": SMALL})
    with npzkit.open(paths[0]) as npz:
        skeleton = skeleton_of(npz._archive.one_file(), {key: npz.info(key) for key in npz})
        place = npz.info("x").data_offset
    with paths[1].open("rb") as file:
        assert skeleton.match(file.fileno()) is not None
        found = skeleton.read(file.fileno(), ["x"], {})
        assert np.array_equal(found["x"], TALL + 1)
    data = bytearray(paths[2].read_bytes())
    data[place] ^= 1
    paths[2].write_bytes(data)
    with paths[2].open("rb") as file:
        assert skeleton.read(file.fileno(), ["x"], {}) is None


def test_repack_adds_the_checks_of_other_programs_chunks(tmp_path):
    """A seek index without CRC-32s, as SOZip's writers make it, gets those of its chunks."""
    path = tmp_path / "a.npz"
    saved(path)
    path.write_bytes(with_crc32s(path.read_bytes(), lambda crc32s: ()))
    npzkit.repack(path, tmp_path / "b.npz")
    data = bytearray((tmp_path / "b.npz").read_bytes())
    with npzkit.open(bytes(data)) as npz:
        info = npz.info("large")
        assert (info.method, info.checked_parts) == ("deflated", True)
    data[info.data_offset + 100_000] ^= 1
    with npzkit.open(bytes(data)) as npz, pytest.raises(ChecksumError, match="chunk 4 of 10"):
        npz.lazy("large")[1:]
