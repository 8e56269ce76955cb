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
import npzkit.reading.map_flush
import numpy as np
import pytest
from commits import parts_of
from crash import recorded, replay
from deep import amount
from npzkit.datasets.skeleton import skeleton_of
from npzkit.errors import ChecksumError, NpyFormatError, NpzkitError, ZipFormatError
from npzkit.zip.commit import FOOTER_SIZE
from range_server import RangeServer

from tables import each_row

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


@pytest.mark.slow
@each_row("make", WAYS)
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


def list_of(npz, key):
    """Return the list of the chunks of an array."""
    archive = npz._archive.one_file()
    return archive.reader.lists.find(archive.entry(key))


def damaged(tmp_path, make=saved):
    """Return an archive in which a chunk of `large` has other values, and that chunk."""
    path = tmp_path / "a.npz"
    make(path)
    data = bytearray(path.read_bytes())
    with npzkit.open(bytes(data)) as npz:
        place = npz.info("large").data_offset + list_of(npz, "large").offsets[4]
    data[place + 1000] ^= 1
    path.write_bytes(data)
    return path, place


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


@pytest.mark.slow
@each_row("read", READS)
@each_row("place", [20, 1000, -4])
def test_whole_reads_name_the_chunk(read, place, tmp_path):
    """An error of any read has the key, the chunk, its offset, and what else was to be done."""
    path = tmp_path / "a.npz"
    saved(path)
    data = bytearray(path.read_bytes())
    with npzkit.open(bytes(data)) as npz:
        entry, start = npz._archive.entry("large"), npz.info("large").data_offset
        listed = list_of(npz, "large")
    number = 4 if place == 1000 else 0 if place == 20 else len(listed.crc32s) - 1
    begin = start + listed.offsets[number]
    data[begin + place if place > 0 else start + entry.compressed_size + place] ^= 4
    with npzkit.open(bytes(data)) as npz, pytest.raises(ChecksumError) as caught:
        READS[read](npz)
    error = caught.value
    assert (error.key, error.chunk, error.offset) == ("large", number + 1, begin)
    assert f"chunk {number + 1} of 10 is damaged" in str(error)
    if place == 1000 and read != "lazy":
        assert error.remedy.startswith("Download it, create it again or restore a backup")


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
    assert row.what.endswith("; damaged chunk 5 of 10, in rows 261 to 327 (included)")
    assert row.remedy == "npzkit.repair(path, output, keep_partial='mask') saves the other values."
    (lost,) = npzkit.repair(path, tmp_path / "b.npz").lost
    assert (f"{lost.what}.", lost.where) == (f"{row.what}; {row.remedy}", row.where)
    with npzkit.open(path) as npz:
        assert np.array_equal(npz.lazy("large")[:261], LARGE[:261])
        assert np.array_equal(npz.lazy("large")[328:], LARGE[328:])
    data = bytearray(path.read_bytes())
    with npzkit.open(path) as npz:
        start = npz.info("large").data_offset
    for place in range(3, 10):
        data[start + place * (CHUNK + 30) - 5000] ^= 1
    (row,) = [row for row in npzkit.verify(bytes(data)).rows if row.severity == "error"]
    assert row.what.endswith(
        "; damaged chunks 3, 4, 5, 6, 7 and 2 more of 10, in rows 130 to 589 (included)"
    )
    data[start + 20] ^= 0xFF
    _, row = [row for row in npzkit.verify(bytes(data)).rows if row.severity == "error"]
    # The array index knows the header.
    rows = "in rows 0 to 65 (included), 130 to 589 (included)"
    assert row.what.endswith(f"; damaged chunks 1, 3, 4, 5, 6 and 3 more of 10, {rows}")


@pytest.mark.parametrize(("chunk", "rows"), [(1, "row 0"), (2, "rows 0 and 1")])
def test_verify_names_one_row_or_two(tmp_path, chunk, rows):
    """So that nobody takes them for a slice."""
    array = np.random.default_rng(0).random((10, 1024))
    npzkit.save(tmp_path / "a.npz", {"x": array}, chunk_size=4096, compression="deflated")
    data = bytearray((tmp_path / "a.npz").read_bytes())
    with npzkit.open(bytes(data)) as npz:
        data[npz.info("x").data_offset + chunk * 3850 + 1000] ^= 1
    (row,) = [row for row in npzkit.verify(bytes(data)).rows if row.severity == "error"]
    assert row.what.endswith(f"; damaged chunk {chunk + 1} of 21, in {rows}")


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
    (shard,) = [path for path in (tmp_path / "a").iterdir() if path.name != "index.npz"]
    data = bytearray(shard.read_bytes())
    with npzkit.open(bytes(data)) as npz:
        key = next(key for key in npz if "large" in key)
        data[npz.info(key).data_offset + 20_000] ^= 1
    shard.write_bytes(data)
    with npzkit.open(tmp_path / "a") as npz:
        with pytest.raises(ChecksumError):
            npz.lazy("large")[3:300, 5]
        assert npz.lazy("large", verify=False)[3:300, 5].shape == (297,)


def with_list(data, key, change):
    """Return an archive in which the list of an array's chunks is another one of the same size."""
    name = f"{key}.npy".encode()
    (part,) = [part for part in parts_of(data) if part.what == "chunks" and part.name == name]
    forged = change(data[part.start : part.stop])
    assert len(forged) == part.stop - part.start
    return data[: part.start] + forged + data[part.stop :]


def with_crc32s(data, change):
    """Return an archive in which the CRC-32s of chunks are changed, and the list's own is right."""

    def changed(listed):
        count = len(listed) // 8
        words = struct.unpack(f"<{2 * count}L", listed[:-4])
        new = struct.pack(f"<{2 * count}L", *change(words[:count]), *words[count:])
        return new + struct.pack("<L", zlib.crc32(new))

    return with_list(data, "large", changed)


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [
        lambda crc32s: [0] * len(crc32s),
        lambda crc32s: (*crc32s[1:], crc32s[0]),
        lambda crc32s: (crc32s[0] ^ 1, *crc32s[1:]),
        lambda crc32s: (crc32s[1], crc32s[0], *crc32s[2:]),
    ],
    ids=["zeros", "moved", "another one", "swapped"],
)
def test_what_does_not_combine_is_not_believed(tmp_path, change):
    """CRC-32s that are not, together, that of the member say nothing: its data is read in one piece."""
    path = tmp_path / "a.npz"
    saved(path)
    data = with_crc32s(path.read_bytes(), change)
    with npzkit.open(data) as npz:
        assert list_of(npz, "large") is None
        assert np.array_equal(npz.lazy("large")[100:500], LARGE[100:500])
        assert np.array_equal(npz["large"], LARGE)
    (row,) = npzkit.verify(data).rows
    assert (row.severity, row.key) == ("warning", "large")


@pytest.mark.parametrize("make", [saved, saved_with_zstd])
def test_sizes_that_do_not_fit_are_not_believed(make, tmp_path):
    """A list whose chunks have other sizes together than the member, or none, is not used."""
    path = tmp_path / "a.npz"
    make(path)
    for moved in (1, -1):
        for compensated in (False, True):

            def changed(listed, moved=moved, compensated=compensated):
                words = list(struct.unpack(f"<{len(listed) // 4 - 1}L", listed[:-4]))
                words[-1] += moved
                if compensated:
                    words[-2] = words[-2] + words[-1] - moved
                    words[-1] = 0
                new = struct.pack(f"<{len(words)}L", *words)
                return new + struct.pack("<L", zlib.crc32(new))

            data = with_list(path.read_bytes(), "large", changed)
            with npzkit.open(data) as npz:
                assert list_of(npz, "large") is None
                assert np.array_equal(npz.lazy("large")[100:500], LARGE[100:500])


@pytest.mark.slow
def test_any_wrong_bit_of_a_list(tmp_path):
    """A damaged list says nothing of its array, and others are as they were."""
    path = tmp_path / "a.npz"
    for make in (saved, stored):
        make(path)
        data = bytearray(path.read_bytes())
        for part in [part for part in parts_of(bytes(data)) if part.what == "chunks"]:
            for place in range(part.start, part.stop):
                data[place] ^= 1 << place % 8
                with npzkit.open(bytes(data)) as npz:
                    for key in ("large", "scaled"):
                        is_damaged = part.name == f"{key}.npy".encode()
                        assert (list_of(npz, key) is None) == is_damaged
                data[place] ^= 1 << place % 8


def test_other_programs_read_what_has_crc32s(tmp_path):
    """NumPy reads the arrays of each way to write them."""
    path = tmp_path / "a.npz"
    saved(path)
    with np.load(path) as npz:
        assert all(np.array_equal(npz[key], array) for key, array in ARRAYS.items())


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
        entry = npz._archive.one_file().entry(key)
        start = npz.info(key).data_offset + npz.info(key).nbytes - entry.uncompressed_size
        listed = list_of(npz, key)
    data = path.read_bytes()[start : start + entry.compressed_size]
    return list(listed.crc32s), [
        zlib.crc32(data[at : at + 65_536]) for at in range(0, len(data), 65_536)
    ]


@pytest.mark.slow
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
    assert not any(part.what == "chunks" for part in parts_of(path.read_bytes()))
    with npzkit.open(path) as npz:
        assert npz.info("x").checked_parts == (size == 262_016)


@pytest.mark.filterwarnings("ignore:the header of this array")
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


@pytest.mark.slow
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
    sizes, real = [], npzkit.reading.map_flush.chunk_crc32s
    monkeypatch.setattr(
        npzkit.reading.map_flush, "chunk_crc32s",
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
        assert sizes == [TALL.nbytes + 128]
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
                # The list has the old ones, and is not believed.
                assert np.array_equal(npz.lazy("x")[5:30_000], changed[5:30_000])
        if count == 2:
            (row,) = npzkit.verify(path).rows
            assert (row.severity, "npzkit.repack renews it" in row.what) == ("warning", True)
        npzkit.repair(path)
        if count == 1:
            found, expected = sums(path)
            assert found == expected
        assert npzkit.verify(path).ok == (count > 0)


def test_checks_that_were_changed_are_not_believed(tmp_path):
    """CRC-32s of chunks that are not, together, the array's say nothing, whoever wrote them."""
    path = tmp_path / "a.npz"
    npzkit.save(path, {"x": TALL})
    changed = with_list(path.read_bytes(), "x", lambda listed: listed[:-4] + b"\7\0\0\0")
    path.write_bytes(changed)
    with npzkit.open(path) as npz:
        assert np.array_equal(npz.lazy("x")[39_000:], TALL[39_000:])
        assert np.array_equal(npz["x"], TALL)
    assert "the list of its chunks does not match it" in str(npzkit.verify(path))
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
def test_verify_misses_a_list(make, tmp_path):
    """If nothing is left of a list that the array index knows of, verify warns, for its array."""
    path = tmp_path / "a.npz"
    make(path)
    data = with_list(path.read_bytes(), "large", lambda listed: bytes(len(listed)))
    (row,) = npzkit.verify(data).rows
    assert (row.severity, row.key) == ("warning", "large")
    assert "the list of its chunks does not match it" in row.what


@pytest.mark.slow
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
@pytest.mark.parametrize("piece_size", [70, 65_000])
def test_files_that_are_alike_but_for_data_and_checks(tmp_path, piece_size, monkeypatch):
    """Files of one kind are recognised, though the CRC-32s of their chunks differ, and damage is not."""
    monkeypatch.setattr("npzkit.zip.npzkit_record.PIECE_SIZE", piece_size)
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


def test_repack_adds_a_list_that_is_not_believed(tmp_path):
    """An array in chunks whose list is damaged gets another one."""
    path = tmp_path / "a.npz"
    saved(path)
    path.write_bytes(with_list(path.read_bytes(), "large", lambda listed: bytes(len(listed))))
    npzkit.repack(path, tmp_path / "b.npz", chunk_size=CHUNK)
    data = bytearray((tmp_path / "b.npz").read_bytes())
    with npzkit.open(bytes(data)) as npz:
        info = npz.info("large")
        assert (info.method, info.checked_parts) == ("deflated", True)
    data[info.data_offset + 100_000] ^= 1
    with npzkit.open(bytes(data)) as npz, pytest.raises(ChecksumError, match="chunk 4 of 10"):
        npz.lazy("large")[1:]


# -- lists of more than a piece -------------------------------------------------

COUNT = 9000
"""Chunks of an array whose list has 72,000 bytes."""


@pytest.fixture(scope="module")
def many_chunks(tmp_path_factory):
    """An archive in which one list of chunks is in two pieces, and its array."""
    path = tmp_path_factory.mktemp("many") / "a.npz"
    array = np.arange(COUNT, dtype="u4").repeat(1024)
    with npzkit.NpzWriter(path, compression="deflated", chunk_size=4096) as writer:
        writer["first"] = LARGE
        writer["x"] = array
        writer["last"] = LARGE
    return path, array


def span_of(npz, key):
    """Return where the list of an array's chunks begins and ends."""
    return npz._archive.reader.lists.span(npz._archive.entry(key))


@pytest.mark.slow
def test_a_list_of_several_pieces(many_chunks, tmp_path):
    """Each of its chunks is checked and read alone, also after an append, a copy and a rename."""
    path, array = tmp_path / "a.npz", many_chunks[1]
    path.write_bytes(many_chunks[0].read_bytes())
    with npzkit.open(path) as npz:
        begin, end = span_of(npz, "x")
        assert end - begin == 8 * len(list_of(npz, "x").crc32s) + 4 + 57 > 65_000
        assert npz.archive_info().dead_size == 0
    assert path.read_bytes()[begin + 65_000 :].startswith(forge.piece(b"")[:30])
    for edit in (
        lambda: appended_to(path, lambda w: w.add("more", SMALL)),
        lambda: appended_to(path, lambda w: w.rename("x", "y")),
        lambda: npzkit.repack(path),
    ):
        edit()
        with npzkit.open(path) as npz:
            key = "y" if "y" in npz else "x"
            assert list_of(npz, key) is not None
            assert list_of(npz, "last") is not None
            for place in (0, 5_000_000, len(array) - 10):
                part = slice(place, place + 3000)
                assert np.array_equal(npz.lazy(key)[part], array[part])
        assert npzkit.verify(path).ok
    assert not npzkit.verify(path).rows


def appended_to(path, edit):
    with npzkit.NpzWriter(path, "a", auto_repack=False) as writer:
        edit(writer)


def test_chunks_that_are_listed_in_several_pieces(many_chunks):
    """A damaged chunk is found, whichever piece has its CRC-32 and its size."""
    path, array = many_chunks
    data = bytearray(path.read_bytes())
    with npzkit.open(bytes(data)) as npz:
        start, offsets = npz.info("x").data_offset, list_of(npz, "x").offsets
    for number in (300, 4000, 8100, 8999):
        data[start + offsets[number] + 8] ^= 1
        with npzkit.open(bytes(data)) as npz:
            with pytest.raises(ChecksumError, match=f"chunk {number + 1} of {len(offsets) - 1} "):
                npz.lazy("x")[number * 1024]
            other = (number + 10) * 1024 % len(array)
            assert np.array_equal(npz.lazy("x")[other : other + 9], array[other : other + 9])
        data[start + offsets[number] + 8] ^= 1


@pytest.mark.slow
def test_damage_of_a_list_of_several_pieces(many_chunks):
    """A wrong byte in any of its pieces, and it is not believed; in a head, verify says it."""
    path, array = many_chunks
    data = bytearray(path.read_bytes())
    with npzkit.open(bytes(data)) as npz:
        begin, end = span_of(npz, "x")
    for place in (begin, begin + 64_999, begin + 65_057, end - 1):
        data[place] ^= 1
        with npzkit.open(bytes(data)) as npz:
            assert list_of(npz, "x") is None
            assert list_of(npz, "last") is not None
            assert np.array_equal(npz["x"], array)
        data[place] ^= 1
    for place in (begin - 57, begin + 65_000, begin + 65_056):
        data[place] ^= 1
        with npzkit.open(bytes(data)) as npz:
            assert list_of(npz, "x") is not None
        assert [row.severity for row in npzkit.verify(bytes(data)).rows] == ["error"]
        data[place] ^= 1


def test_a_list_of_several_pieces_in_a_store(many_chunks):
    """Of a distant archive, the whole list is fetched with the headers."""
    path, array = many_chunks
    with RangeServer().running() as server, npzkit.open(server.put(path.read_bytes())) as npz:
        server.forget()
        assert np.array_equal(npz.lazy("x")[5_000_000:5_000_100], array[5_000_000:5_000_100])
        assert server.count <= 3


@pytest.fixture
def _small_pieces(monkeypatch):
    """Pieces that hold a footer, and little more: most lists and indexes are in several."""
    monkeypatch.setattr("npzkit.zip.npzkit_record.PIECE_SIZE", 70)


@pytest.mark.slow
@pytest.mark.usefixtures("_small_pieces")
@each_row("make", WAYS)
def test_records_of_many_pieces(make, tmp_path):
    """By whichever way an archive is written, its record is read as if it were in one piece."""
    path = tmp_path / "a.npz"
    make(path)
    with npzkit.open(path) as npz:
        for key, array in ARRAYS.items():
            assert npz.info(key).checked_parts
            assert np.array_equal(npz.lazy(key)[7:90], array[7:90])
    assert npzkit.verify(path).ok
    with npzkit.NpzWriter(path, "a", metadata={"text": "x" * 9000}) as writer:
        writer["more"] = TALL
    with npzkit.open(path) as npz:
        assert npz.metadata == {"text": "x" * 9000}
        assert list_of(npz, "more") is not None
        assert list_of(npz, "scaled") is not None
    npzkit.repack(path)
    with npzkit.open(path) as npz:
        assert npz.archive_info().dead_size == 0
        assert [key for key, _ in npzkit.iter_arrays(io.BytesIO(path.read_bytes()))] == npz.files
    assert not npzkit.verify(path).rows


@pytest.mark.usefixtures("_small_pieces")
def test_a_flush_renews_a_list_of_several_pieces(tmp_path):
    """What a map changes is checked afterwards, and the heads of pieces stay as they are."""
    path = tmp_path / "a.npz"
    npzkit.save(path, {"x": TALL, "y": SMALL})
    with npzkit.open(path) as npz:
        begin, end = span_of(npz, "x")
        assert end - begin > 70
        mapped = npz.memmap("x", "r+")
        mapped[::100] = 7
        mapped.flush()
        assert (npz.lazy("x")[100] == 7).all()
    found, expected = sums(path)
    assert found == expected
    assert not npzkit.verify(path).rows
