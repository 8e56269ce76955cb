"""The page on the bytes of archives is complete: programs that know nothing else agree with npzkit.

`support/plain_reader.py` and `support/plain_writer.py` were written from the page alone. They
read whatever npzkit reads, refuse what it refuses, and append the same bytes.
"""

from __future__ import annotations

import datetime
import io
import json
import math
import re
import struct
import subprocess
import sys
import types
import warnings
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import npzkit
import numpy as np
import plain_reader
import plain_writer
import pytest
from deep import extent
from npzkit import checkpoint
from npzkit.codecs import coding
from npzkit.datasets import index_format
from npzkit.errors import AmbiguousArchiveError, NpzkitError, TornArchiveWarning, UnsupportedError
from npzkit.files import append_room
from npzkit.zip import chunk_list, commit, npzkit_record, written_header
from npzkit.zip.array_index import ChunkLists, find_array_index

from tables import each_row

GUIDE = Path(npzkit.__file__).parent / "guide"
PAGE = "\n".join(
    (GUIDE / f"{name}.md").read_text(encoding="utf-8")
    for name in ("format", "format-commits", "format-trees", "format-example")
)
"""The pages of the format, as one text."""
ATTRS = {"unit": "m", "text": "1", "list": [1, None], "ü": "é", "nan": math.nan}
METADATA = {"step": 7, "name": "é\U0001f600", "loss": [math.inf, -math.inf, 0.5]}


def saved(*commits: dict[str, Any], metadata: Any = None, **options: Any) -> bytes:
    """Return an archive of several commits; an array of None is deleted."""
    stream = io.BytesIO()
    for number, arrays in enumerate(commits):
        with npzkit.NpzWriter(stream, "a" if number else "w", **options) as w:
            for key, array in arrays.items():
                if array is None:
                    del w[key]
                else:
                    w.add(key, array, attrs=ATTRS if key == "b" else None, overwrite=key in w)
            if metadata is not None and number == len(commits) - 1:
                w.metadata.update(metadata)
    return stream.getvalue()


SMALL = saved({"a": np.arange(3, dtype="i1")})
COMMITS = saved(
    {"a": np.arange(3, dtype="i1"), "gone": np.zeros(2)},
    {"b": np.ones((2, 3), "<f4", order="F"), "gone": None},
    {"a": np.array([(1, 2.5)], [("x", "<i4"), ("y", ">f8")]), "ö/é": np.array("text")},
    metadata=METADATA,
)
ADDED = {"b.npy": (SMALL[64:195], b"")}, b'{"n":1}'
SEALED = plain_writer.append(SMALL, *ADDED)
"""The states of an append without a far copy, and of the same one with it."""
IN_ROOM = plain_writer.append_in_room(SMALL, *ADDED, room=300)


def with_large_metadata(size: int = 140_000) -> bytes:
    return saved({"a": np.arange(3)}, {}, {"b": np.ones(2)}, metadata={"long": "x" * size})


def deflated() -> bytes:
    return saved({"a": np.arange(200_000)}, {"b": np.zeros(9)}, compression="deflated")


def zstandard():
    return saved({"a": np.arange(200_000)}, {"b": np.zeros(9)}, compression="zstd")


def many() -> bytes:
    return saved({f"k{number}": np.full(number % 7, number) for number in range(300)})


def changed_attributes() -> bytes:
    stream = io.BytesIO(COMMITS)
    with npzkit.NpzWriter(stream, "a") as w:
        w.attrs("b")["unit"] = "km"
    return stream.getvalue()


def zip64() -> bytes:
    """Return an archive whose directory ends like a zip64 locator, so that one is needed."""
    stream = io.BytesIO()
    for key in "ab":
        with npzkit.NpzWriter(stream, "a") as w:
            w.add(key, np.arange(3), attrs={"text": "PK\6\7" + "x" * 16})
    assert stream.getvalue().count(b"PK\6\6") == 2
    return stream.getvalue()


def of_numpy() -> bytes:
    stream = io.BytesIO()
    np.savez(stream, a=np.arange(3), b=np.eye(2))
    return stream.getvalue()


def streamed() -> bytes:
    """Return an archive of another program, with data descriptors, to which npzkit appended."""
    stream = io.BytesIO()
    pipe: Any = types.SimpleNamespace(write=stream.write, flush=stream.flush)
    with zipfile.ZipFile(pipe, "w", zipfile.ZIP_DEFLATED) as z:
        for name, array in {"a.npy": np.arange(300), "ö.npy": np.eye(2)}.items():
            z.writestr(name, npy(array))
    with npzkit.NpzWriter(stream, "a") as w:
        w.add("b", np.ones(2))
    return stream.getvalue()


# -- what programs see -----------------------------------------------------------------


def shown(values: Any) -> Any:
    """Return values so that NaN equals itself."""
    return repr(values)


def by_npzkit(data: bytes) -> Any:
    """Return what npzkit reads, or the kind of error."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            npz = npzkit.open(io.BytesIO(data))
        except AmbiguousArchiveError:
            return "ambiguous"
        except UnsupportedError:
            return "newer"
        except NpzkitError:
            return "refused"
    is_odd = any(issubclass(warning.category, TornArchiveWarning) for warning in caught)
    found = {}
    with npz:
        for name in npz.files:
            try:
                array = npz[name]
                order = "F" if npz.info(name).fortran_order else "C"
                attrs = dict(npz.info(name).attrs)
                found[name] = array.shape, array.tobytes(order), shown(attrs)
            except NpzkitError:
                found[name] = "refused"
        try:
            metadata = shown(dict(npz.metadata))
        except NpzkitError:
            metadata = "refused"
    return is_odd, found, metadata


def by_page(data: bytes) -> Any:
    """Return what the reader of the page reads, or the kind of error."""
    try:
        archive = plain_reader.Archive(data)
    except plain_reader.AmbiguousError:
        return "ambiguous"
    except plain_reader.NewerError:
        return "newer"
    except plain_reader.RefusedError:
        return "refused"
    found: dict[str, Any] = {}
    for name in archive.entries:
        key = name.removesuffix(".npy")
        try:
            array = archive.array(name)
            found[key] = array.shape, array.data, shown(array.attrs)
        except plain_reader.RefusedError:
            found[key] = "refused"
    try:
        metadata = shown(archive.metadata())
    except plain_reader.RefusedError:
        metadata = "refused"
    return archive.is_odd, found, metadata


@pytest.mark.slow
@each_row(
    "make",
    [lambda: SMALL, lambda: COMMITS, with_large_metadata, lambda: with_large_metadata(5000),
     deflated, zstandard, many, changed_attributes, zip64, of_numpy, lambda: saved({}),
     streamed, lambda: saved({}, metadata={"a": 1}), lambda: saved({}, metadata={"a": "x" * 70_000})],
)  # fmt: skip
def test_the_reader_of_the_page_reads_what_npzkit_reads(make):
    """Arrays, attributes and metadata are the same, of archives of every kind."""
    data = make()
    found = by_page(data)
    assert found == by_npzkit(data)
    assert found[0] is False
    assert "refused" not in found[1].values()


def changes() -> Iterator[bytes]:
    """Yield archives that end early, or have a damaged byte or sector, or something behind."""
    marked = SEALED[2]
    seal = marked.rindex(b"PK\5\6")
    for data in (COMMITS, marked, zip64(), streamed()):
        for size in range(0, len(data), extent(11, 1) if data is marked else extent(37, 7)):
            yield data[:size]
        for place in range(0, len(data), extent(29, 3) if data is COMMITS else extent(17, 1)):
            for mask in (0xFF, 0x01) if data is marked else (0x21,):
                yield flipped(data, place, mask)
        yield from without_sectors(data)
    for data in (*SEALED[:2], *IN_ROOM[:5], plain_writer.append_in_room(COMMITS, *ADDED)[1]):
        begin = data.index(b"PK\5\6")
        for size in range(begin, len(data), extent(29, 3)):
            yield data[:size]
            yield data[:size] + bytes(len(data) - size)
        for place in range(begin, len(data), extent(23, 3)):
            yield flipped(data, place, 0x11)
        yield from without_sectors(data)
        yield data + b"x"
    # A far copy that is not that of the commit before it, or of none.
    begun = IN_ROOM[0][: -len(plain_writer.far_copy(SMALL, 0))]
    for copied in (COMMITS, IN_ROOM[4]):
        yield begun + plain_writer.far_copy(copied, len(begun))
    for data in (SMALL, COMMITS, marked, *IN_ROOM[:5]):
        yield data + plain_writer.far_copy(SMALL, len(data))
        yield data + plain_writer.far_copy(marked, len(data))
    for size in range(5):
        yield marked[:seal] + marked[seal : seal + size] + bytes(4 - size) + marked[seal + 4 :]
    comment = SMALL[-22:] + b"xyz"
    yield SMALL[:-2] + struct.pack("<H", len(comment)) + comment
    # The comment ends within an unfinished append.
    for data in (SEALED[0], IN_ROOM[0]):
        yield SMALL[:-2] + b"\4\0" + data[len(SMALL) :]
    # Others find an append by its zip64 records, whose offsets are wrong by a byte.
    joined = zip64()
    mark = joined.index(b".npzkit", joined.index(b"PK\5\6")) + 31
    yield joined[:mark] + bytes(8) + joined[mark + 9 :]
    yield joined[: mark - 1] + bytes(9) + joined[mark + 9 :]
    tails = [b"x", bytes(9), SMALL, b"x" + SMALL, COMMITS, bytes(300) + b"PK\5\6" + bytes(30)]
    tails += [bytes(size) + SMALL for size in (40, 150, 2000)]
    for tail in tails:
        for data in (SMALL, COMMITS):
            yield data + tail


def flipped(data: bytes, place: int, mask: int) -> bytes:
    return data[:place] + bytes([data[place] ^ mask]) + data[place + 1 :]


def without_sectors(data: bytes) -> Iterator[bytes]:
    """Yield a file without one of its sectors, and without some that follow each other."""
    for begin in range(0, len(data), 512):
        for size in {512, 1024, 4096}:
            yield (data[:begin] + bytes(size) + data[begin + size :])[: len(data)]


@pytest.mark.slow
def test_the_reader_of_the_page_refuses_what_npzkit_refuses():
    """Of each damaged, truncated or unfinished archive, both read the same, or refuse the same."""
    kinds = set()
    for number, data in enumerate(changes()):
        found = by_page(data)
        expected = by_npzkit(data)
        assert found == expected, number
        kinds.add(found if isinstance(found, str) else found[0])
    assert kinds == {"ambiguous", "refused", True, False}


def test_higher_versions_are_refused_by_both():
    """A footer, and an intent that matters, of version 2 are not read as version 1."""
    footer = SMALL.index(b"NPZX") - 64
    fields = SMALL[footer : footer + 58] + struct.pack("<H", 2)
    newer = SMALL[:footer] + fields + struct.pack("<L", zlib.crc32(fields)) + SMALL[footer + 64 :]
    assert by_page(newer) == by_npzkit(newer) == "newer"
    for begun in (SEALED[0], IN_ROOM[1]):
        place = begun.index(b".npzkit", len(SMALL)) + 11
        follows = struct.pack("<L", 2) + begun[place + 4 : place + 16]
        follows += struct.pack("<L", zlib.crc32(follows))
        newer = begun[:place] + follows + begun[place + 20 :]
        assert by_page(newer) == by_npzkit(newer) == "newer"
    said = IN_ROOM[0].index(b"NPZF") - 28
    fields = IN_ROOM[0][said : said + 22] + struct.pack("<H", 2)
    newer = IN_ROOM[0][:said] + fields + struct.pack("<L", zlib.crc32(fields))
    newer += IN_ROOM[0][said + 28 :]
    assert by_page(newer) == by_npzkit(newer) == "newer"


# -- appending -------------------------------------------------------------------------


def blocks_of(unit: str) -> bytes:
    """Return the block of an array's one attribute."""
    payload = b"KeyValuePairs\1" + b"\4\0unit\1\0" + unit.encode()
    return struct.pack("<HH", 0x564B, len(payload)) + payload


def npy(array: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


APPENDS = [(0, 1, 0), (1, 0, 30), (15, 1, 0), (402, 2, 0), (402, 0, 600), (500, 0, 90), (515, 0, 300),
           (2600, 1, 90), (2300, 1, 400), (2500, 0, 600), (1200, 0, 5000), (9, 1, 130_000)]  # fmt: skip
"""Items of the first array, how many are appended, and characters of metadata."""


def by_numpy(data: bytes) -> list[str]:
    with np.load(io.BytesIO(data)) as npz:
        return sorted(npz.files)


@pytest.mark.parametrize("data", [SMALL, COMMITS, SEALED[2]])
def test_the_far_copy_of_the_page_is_that_of_npzkit(data):
    """Wherever it goes, its bytes are the same."""
    end = plain_reader.Archive(data).end
    directory, last = data[end.offset : end.records_offset], data[end.records_offset :]
    for place in (len(data) + 85, 1 << 20):
        parts = commit.format_far(place, directory, end.count, len(data), last)
        copy, record_place = b"".join(parts), sum(map(len, parts[:-1]))
        assert plain_writer.far_copy(data, place) == copy
        assert copy[record_place:].startswith(b"PK\5\6")


@pytest.mark.slow
@each_row(("size", "count", "length"), APPENDS)
def test_the_appender_of_the_page_writes_the_bytes_of_npzkit(size, count, length):
    """Appends by the page are npzkit's to the byte, and each state is read as one or the other.

    NumPy opens all of them, and finds the same arrays.
    """
    data = saved({"a": np.zeros(size, "i1")})
    for number in range(2):
        # The second one replaces what the first one appended.
        added = {f"{key}": np.full(3, number) for key in range(count)}
        metadata = {"n": number, "x": "x" * length} if length else {}
        stream = io.BytesIO(data)
        with npzkit.NpzWriter(stream, "a") as w:
            for key, array in added.items():
                w.add(key, array, attrs={"unit": "m"}, overwrite=key in w)
            w.metadata.update(metadata)
        members = {f"{key}.npy": (npy(array), blocks_of("m")) for key, array in added.items()}
        comment = json.dumps(metadata, separators=(",", ":")).encode() if metadata else b""
        sealed = plain_writer.append(data, members, comment)
        in_room = plain_writer.append_in_room(data, members, comment, room=size)
        assert sealed[2] == in_room[5] == stream.getvalue()
        before, after = by_npzkit(data), by_npzkit(sealed[2])
        is_small = len(sealed[2]) - data.rindex(b"PK\5\6") <= plain_reader.TAIL_SIZE
        for state in (sealed[0], *in_room[:3]):
            assert by_npzkit(state) == by_page(state) == (True, *before[1:])
            if state is not sealed[0] or is_small:
                assert by_numpy(state) == sorted(before[1])
        for state in (*sealed[1:], *in_room[3:]):
            assert by_npzkit(state) == by_page(state) == after
            assert by_numpy(state) == sorted(after[1])
        data = sealed[2]


def test_the_appends_cross_sectors():
    """Zeros were written before an intent, and before an end for both sizes of sectors."""
    data = [saved({"a": np.zeros(size, "i1")}) for size, _, _ in APPENDS]
    assert any(0 < -len(each) % 512 < commit.INTENT_SIZE for each in data)
    rooms = set()
    for each, (_, count, length) in zip(data, APPENDS, strict=True):
        members = {f"{key}.npy": (npy(np.full(3, 0)), blocks_of("m")) for key in range(count)}
        comment = b'{"n":0,"x":"%b"}' % (b"x" * length) if length else b""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(plain_writer, "room_before_end", lambda *places: 0)
            least = plain_writer.append(each, members, comment)[2]
        more = len(plain_writer.append(each, members, comment)[2]) - len(least)
        rooms.add((more > 0) + (more > 512))
    assert rooms == {0, 1, 2}


# -- metadata, nested data, folders -----------------------------------------------------


DAY = datetime.date(2026, 1, 31)
TREES = [
    {
        "a": {"w": np.ones(2), "n": 1.5},
        "l": [np.zeros(1), (None, "x", 2j)],
        3: np.ones(1),
        "3x": {},
    },
    {"a/b": np.ones(1), "a": {"c": np.zeros(2), "n": math.nan}},
    [np.ones(1), {"x": [np.zeros(2)]}],
    {"1": np.ones(1), 2: np.zeros(1), "t": [(), {}], "e": {"f": {}}},
    {
        "set": {2, 1, (1j, frozenset({None}))},
        "dates": [
            DAY,
            datetime.datetime(2026, 1, 2, 3, 4),
            datetime.time(5),
            DAY - datetime.date(1, 1, 1),
        ],
    },
]


def in_order(node: Any) -> str:
    """Return a tree as text, the items of its mappings sorted."""
    if isinstance(node, dict):
        return f"{{{sorted((repr(name), in_order(item)) for name, item in node.items())}}}"
    if isinstance(node, (list, tuple)):
        return f"{type(node).__name__}{[in_order(item) for item in node]}"
    return repr(node)


@pytest.mark.parametrize("tree", TREES)
def test_the_reader_of_the_page_restores_nested_data(tree):
    """The note about nested data is used as the page says, to the same lists and dicts."""
    stream = io.BytesIO()
    npzkit.save(stream, tree)
    archive = plain_reader.Archive(stream.getvalue())
    arrays = {}
    for name in archive.entries:
        array = archive.array(name)
        data = np.frombuffer(array.data, array.descr).reshape(array.shape)
        arrays[name.removesuffix(".npy")] = data
    found = plain_reader.restore(arrays, archive.metadata()["npzkit.tree"])
    expected = npzkit.load_tree(io.BytesIO(stream.getvalue()))
    assert in_order(found) == in_order(expected)


def test_the_reader_of_the_page_reads_a_sharded_archive(tmp_path):
    """The index has its checksum, and those of the shards' directories."""
    with npzkit.ShardedWriter(tmp_path / "s", shard_size=1 << 14) as w:
        for begin in range(0, 10_000, 2500):
            w.add("a", np.arange(begin, begin + 2500), (begin,), (10_000,))
        w.add("b", np.ones((2, 3), order="F"))
        w.add("c", np.ones((0, 4)))
        w.commit()

    def archive_in(name):
        return plain_reader.Archive((tmp_path / "s" / name).read_bytes())

    index = plain_reader.read_index(archive_in("index.npz"))
    archives = [archive_in(name) for name in index["names"]]
    assert index["shards"] == [
        [len(archive.data) for archive in archives],
        [plain_reader.directory_crc32(archive) for archive in archives],
    ]
    (dtypes, are_fortran, ndims, counts), shapes = index["arrays"], index["shapes"]
    assert (index["keys"], index["attrs"], index["metadata"]) == (["a", "b", "c"], [""] * 3, {})
    assert [index["dtypes"][number] for number in dtypes] == ["<i8", "<f8", "<f8"]
    assert (are_fortran, ndims, shapes) == ([0, 1, 0], [1, 2, 2], [10_000, 2, 3, 0, 4])
    assert counts[0] > 1 and counts[1:] == [1, 0]
    found, stored = np.zeros(10_000, "<i8"), np.transpose(index["parts"]).tolist()
    for part, (shard, size, crc32, method) in enumerate(stored):
        name = (index["stored keys"][part] or "abc"[max(0, part - counts[0] + 1)]) + ".npy"
        entry, array = archives[shard].entries[name], archives[shard].array(name)
        assert (entry.crc32, entry.method, size) == (crc32, method, entry.compressed_size)
        if part < counts[0]:
            begin, length = index["boxes"][2 * part :][:2]
            assert length == array.shape[0]
            assert array.attrs["npzkit.part"] == {"key": "a", "offset": [begin], "shape": [10_000]}
            found[begin : begin + length] = np.frombuffer(array.data, array.descr)
    assert len(stored) == counts[0] + 2
    assert np.array_equal(found, np.arange(10_000))


def test_the_reader_of_the_page_reads_a_checkpoint(tmp_path):
    """The metadata of a step fit the checksums of its archive, or their own without arrays."""
    trees = [{"w": np.ones(3), "n": [1, np.zeros(2)]}, {"n": [1, None]}]
    with checkpoint.CheckpointStore(tmp_path) as store:
        for step, tree in enumerate(trees, 100):
            store.save(step, tree, metrics={"loss": 0.5})
    for step in (100, 101):
        data = (tmp_path / f"step_{step:08}.npz").read_bytes()
        found = plain_reader.read_step(plain_reader.Archive(data))
        assert found.pop("npzkit.tree")
        assert found == {"step": step, "metrics": {"loss": 0.5}, "metadata": {}}
    with pytest.raises(plain_reader.RefusedError):
        plain_reader.read_step(plain_reader.Archive(data.replace(b"0.5", b"0.4")))


@pytest.mark.parametrize(("options", "count"), [
    ({"compression": "stored"}, 25), ({"compression": "deflated"}, 7), ({"compression": "zstd"}, 7),
    ({"compression": "deflated", "chunk_size": 4096}, 391),
])  # fmt: skip
def test_the_reader_of_the_page_reads_chunks(options, count):
    """Each chunk that the record lists is decoded on its own, also after an append."""
    data = saved({"a": np.arange(200_000)}, {"b": np.zeros(9)}, **options)
    archive = plain_reader.Archive(data)
    found = list(archive.chunks("a.npy"))
    assert len(found) == count
    assert b"".join(found) == archive.member("a.npy")
    assert archive.list_of("b.npy") is None


def listed_by_npzkit(data: bytes) -> Any:
    """Return what npzkit believes of the record: heads, and lists of chunks."""
    with npzkit.open(io.BytesIO(data)) as npz:
        source, directory = npz._archive.source, npz._archive.directory
        index, lists = find_array_index(source, directory), ChunkLists(source, directory)
        if index is None:
            return None
        heads = map(index.heads.__getitem__, index.numbers.tolist())
        found = [lists.find(entry) for entry in directory.entries.values()]
        listed = [each and (list(each.offsets) or each.size, list(each.crc32s)) for each in found]
        return list(zip(heads, index.extra_sizes.tolist(), listed, strict=True))


def listed_by_page(data: bytes) -> Any:
    """Return what the reader of the page believes of the record."""
    archive, found = plain_reader.Archive(data), []
    rows = archive.rows()
    for name, row in () if rows is None else rows.items():
        listed = archive.list_of(name)
        if listed is not None:
            end = listed[-1].offset + listed[-1].compressed_size
            is_stored = archive.entries[name].method == 0
            offsets = end if is_stored else [*(each.offset for each in listed), end]
            listed = offsets, [each.crc32 for each in listed]
        found.append((row.head, row.extra_size, listed))
    return None if rows is None else found


@pytest.mark.slow
def test_both_believe_the_same_of_a_damaged_record():
    """Of a record with a wrong byte, and of one whose index is another, both use the same parts."""
    data = saved(
        {"a": np.arange(2000), "c": np.zeros(1200)}, {"b": np.arange(5000)},
        compression="deflated", chunk_size=4096,
    )  # fmt: skip
    begin = data.index(b"PK\1\2")
    end = data.rindex(b"NPZX") + 4
    assert len([each for each in listed_by_page(data) if each[-1] is not None]) == 3
    kinds = set()
    places = [*range(begin, data.index(b"PK\5\6")), *range(data.rindex(b".npzkit") - 46, end)]
    for place in places[:: extent(2, 1)]:
        changed = data[:place] + bytes([data[place] ^ 0x21]) + data[place + 1 :]
        found = listed_by_page(changed)
        assert found == listed_by_npzkit(changed), place
        kinds.add(found and tuple(each[-1] is None for each in found))
    # No index; a list that is not believed; everything.
    assert {None, (True, False, False), (False, False, True), (False,) * 3} <= kinds
    footer = plain_reader.parse_footer(data, end)
    start = end - footer.index_distance
    for place in range(footer.index_size):
        index = bytearray(data[start : start + footer.index_size])
        index[place] ^= 1 << place % 8
        if place % 3 == 0:
            del index[place + 1 :]
        forged = bytearray(data[end - commit.FOOTER_SIZE : end - 8])
        struct.pack_into("<2L", forged, 32, len(index), zlib.crc32(index))
        forged += struct.pack("<L4s", zlib.crc32(forged), b"NPZX")
        changed = data[:start] + index.ljust(footer.index_size, b"\0") + forged + data[end:]
        assert listed_by_page(changed) == listed_by_npzkit(changed), place


# -- the page itself -------------------------------------------------------------------


def rows_below(heading: str) -> list[tuple[int, int | None, str]]:
    """Return offset, size and field of each row in the first table below a heading."""
    table = PAGE[PAGE.index(heading) :]
    found = re.search(
        r"^\| offset \| size \| field.*\n\|[-:| ]+\n((?:\|.*\n)+)", table, re.MULTILINE
    )
    cells = [[cell.strip() for cell in row.split("|")[1:]] for row in found[1].splitlines()]
    return [(int(cell[0]), int(cell[1]) if cell[1] else None, cell[2]) for cell in cells]


def fields_below(heading: str) -> dict[str, int]:
    """Return where each field begins in the first list of fields below a heading; "" is its size."""
    listed = PAGE[PAGE.index(heading) :].split("```\n")[1]
    place, places = 0, {}
    for line in listed.splitlines():
        kind, name = line.split()[:2]
        places[name] = place
        place += int(kind.removeprefix("uint")) // 8 if kind.startswith("uint") else int(kind)
    return {**places, "": place}


def test_the_table_of_a_piece_has_no_gaps():
    """A field begins where the one before it ends, up to the data."""
    place = 0
    for offset, length, _ in rows_below("## The record"):
        assert offset == place
        place += length or 0
    assert place == npzkit_record.HEAD_SIZE


def test_the_lists_have_the_fields_of_the_code():
    """Names, places and values in the lists of footer, intent and far copy are the code's."""
    footer, intent, far = map(fields_below, ("## Footer", "## Intent", "## Far copy"))
    assert footer[""] == commit.FOOTER_SIZE
    assert tuple(footer)[:-5] == commit.Footer._fields
    assert tuple(footer)[-5:] == ("0", "version", "crc32", commit.FOOTER_MAGIC.decode(), "")
    assert npzkit_record.HEAD_SIZE + intent[""] == commit.INTENT_SIZE
    assert npzkit_record.HEAD_SIZE + intent["mark"] == commit.MARK_OFFSET
    assert npzkit_record.HEAD_SIZE + far[""] == commit._FAR_SIZE
    assert tuple(far)[:-5] == commit.Far._fields
    assert tuple(far)[-5:] == ("0", "version", "crc32", commit._FAR_MAGIC.decode(), "")
    for fields in (footer, far):
        assert f"of the {fields['crc32']} bytes before" in PAGE
    assert f"`{commit.FAR_COMMENT.decode()}`" in PAGE
    assert f"{append_room.FOUND_SIZE:,} bytes" in PAGE


def test_the_numbers_are_those_of_the_code():
    """Sizes, identifiers and versions are the code's."""
    assert "sectors of 512 bytes, and then of 4,096" in PAGE
    assert commit._SECTOR_SIZES == (512, 4096)
    for number in (npzkit_record.PIECE_SIZE, commit.COMMENT_SIZE, chunk_list.CHUNK_SIZE_LIMITS[1]):
        assert f"{number:,}" in PAGE
    assert f"0x{npzkit_record._BLOCK_ID:04X}" in PAGE
    assert f"0x{written_header.EXTERNAL_ATTRIBUTES:08X}" in PAGE
    assert (coding.CHUNK_SIZE, coding.CHECKED_SIZE) == (256 << 10, 64 << 10)
    assert (written_header.ALIGNMENT, chunk_list._LEAST_CHUNK_SIZE) == (64, 1024)
    versions = dict(
        re.findall(r"^\| (\S.*?) \| (\d+) \| ", PAGE.split("## Versions")[1], re.MULTILINE)
    )
    assert versions == {
        "footer, far copy": str(commit._VERSION),
        "intent": str(commit._VERSION),
        "`npzkit.shards`": str(index_format.VERSION),
        "`npzkit.checkpoint`": str(checkpoint.step_metadata._VERSION),
    }


def test_reserved_names_are_on_the_page():
    """Every name that begins with "npzkit." and is written to archives is in the table."""
    sources = "".join(
        path.read_text(encoding="utf-8")
        for path in Path(npzkit.__file__).parent.glob("*/*.py")
        if path.parent.name not in {"viewer", "conversion"}
    )
    names = set(re.findall(r'^_?[A-Z]\w* = "(npzkit\.\w+)"$', sources, re.MULTILINE))
    assert len(names) >= 7
    missing = {name for name in names if f"`{name}`" not in PAGE}
    assert missing == set()


def dumped(text: str, start: int = 0) -> bytes:
    """Return the bytes of an annotated dump: hexadecimal, text in quotes, or a byte many times."""
    found = bytearray()
    for line in text.splitlines():
        if not line.strip() or line.startswith("--"):
            continue
        place, content = re.match(r"(\d+) +(.+?)(?:   |$)", line).groups()
        assert int(place) == start + len(found), line
        if content.startswith('"'):
            found += content[1:-1].encode()
            continue
        number, _, repeated = content.rpartition(" x ")
        found += bytes.fromhex(repeated) * int(number or 1)
    return bytes(found)


def test_the_worked_example_is_the_real_one(tmp_path, monkeypatch):
    """The page's code writes the archive whose bytes the page shows, and prints what it says."""
    monkeypatch.chdir(tmp_path)
    printed: list[str] = []
    code = re.findall(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    namespace = {"print": lambda *values: printed.append(" ".join(map(str, values)))}
    for block in code:
        exec(compile(block, "format.md", "exec"), namespace)
    assert re.findall(r"^\s*print\(.*\)\s+# (.*)$", "\n".join(code), re.MULTILINE) == printed
    dumps = re.findall(r"^```\n(-- .*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    data = (tmp_path / "two.npz").read_bytes()
    assert dumped(dumps[0]) == data
    assert dumped(dumps[1], 4096) == plain_writer.far_copy(data[:529], 4096)


def test_the_plain_programs_know_nothing_of_npzkit():
    """The reader and the writer of the page import nothing but Python's own modules."""
    support = Path(plain_reader.__file__).parent
    code = "import plain_writer, sys; print('npzkit' in sys.modules, 'numpy' in sys.modules)"
    found = subprocess.run(
        [sys.executable, "-c", code], cwd=support, capture_output=True, text=True, check=True
    )
    assert found.stdout.split() == ["False", "False"]
