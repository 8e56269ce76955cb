"""Parts of a sharded archive, compared with what the index says of them."""

from __future__ import annotations

import npzkit
import numpy as np
import pytest
from deep import by_turns
from npzkit.errors import ChecksumError, IndexFormatError, UnsafeNameError, UnsupportedError
from sharded import index_of, write_index

WHOLE = np.arange(24, dtype="f4").reshape(4, 6)
ARRAYS = {
    "w": WHOLE,
    "u": np.arange(5),
    "v": np.arange(5) + 10,
    "x": np.arange(5) + 20,
    "empty": np.zeros((0, 3)),
    "none": np.zeros((0, 5), "f4"),
}


@pytest.fixture
def folder(tmp_path):
    """A folder of two shards: four tiles of one shape, and arrays that are alike."""
    write(tmp_path)
    return tmp_path


def write(folder, attempt="a"):
    with npzkit.ShardedWriter(folder, attempt=attempt) as w:
        for column in (0, 3):
            w.add("w", WHOLE[:2, column : column + 3], (0, column), WHOLE.shape)
        for key in ("u", "v", "empty", "none"):
            w.add(key, ARRAYS[key])
    with npzkit.ShardedWriter(folder, attempt=attempt) as w:
        for column in (0, 3):
            w.add("w", WHOLE[2:, column : column + 3], (2, column), WHOLE.shape)
        w.add("x", ARRAYS["x"])
    npzkit.ShardedWriter(folder, attempt=attempt).commit()


def part_of(index, key, shard, stored_key=None):
    """Return the number of a part in the index."""
    arrays, parts = index["arrays"], index["parts"]
    number = arrays["key"].index(key)
    first = sum(arrays["parts"][:number])
    for part in range(first, first + arrays["parts"][number]):
        name = parts["key"][part] or key
        if parts["shard"][part] == shard and name == (stored_key or key):
            return part
    raise AssertionError(key)


def exchange(column, one, other):
    column[one], column[other] = column[other], column[one]


def exchange_offsets(index):
    boxes = index["boxes"]
    boxes[:2], boxes[4:6] = boxes[4:6], boxes[:2]


def exchange_shards(index):
    exchange(index["parts"]["shard"], part_of(index, "w", 0), part_of(index, "w", 1))


def exchange_keys(index):
    parts = index["parts"]
    one, other = part_of(index, "w", 0), part_of(index, "w", 0, "w@0,3")
    parts["key"][one], parts["key"][other] = "w@0,3", "w"


def exchange_parts(index):
    parts = index["parts"]
    for name in ("shard", "size", "crc32", "method"):
        exchange(parts[name], part_of(index, "w", 0), part_of(index, "w", 1))


def exchange_names(index):
    keys = index["arrays"]["key"]
    exchange(keys, keys.index("u"), keys.index("v"))


def exchange_crcs(index):
    exchange(index["parts"]["crc32"], part_of(index, "u", 0), part_of(index, "v", 0))


def exchange_empty_shapes(index):
    keys, shapes = index["arrays"]["key"], index["shapes"]
    ends = np.cumsum(index["arrays"]["ndim"]).tolist()
    exchange(shapes, ends[keys.index("empty")] - 1, ends[keys.index("none")] - 1)


def exchange_empty_dtypes(index):
    keys = index["arrays"]["key"]
    exchange(index["arrays"]["dtype"], keys.index("empty"), keys.index("none"))


OTHER_DATA = [
    ("w", exchange_shards), ("w", exchange_keys), ("u", exchange_names), ("u", exchange_crcs)
]  # fmt: skip
"""Each change by which an array of the index would get the data of another part."""
OTHER_PLACE = [
    ("w", exchange_offsets), ("w", exchange_parts),
    ("empty", exchange_empty_shapes), ("empty", exchange_empty_dtypes),
]  # fmt: skip
"""Each change after which the index is of one piece, and no other than its shards say."""
READS = {
    "key": lambda npz, key: npz[key],
    "unverified": lambda npz, key: npz.read(key, verify=False),
    "load_all": lambda npz, key: npz.load_all(),
    "lazy": lambda npz, key: npz.lazy(key)[...],
    "slice": lambda npz, key: npz.lazy(key)[:1],
    "stream": lambda npz, key: npz.stream(key).read(),
    "tree": lambda npz, key: npzkit.load_tree(npz, only=[key]),
    "out": lambda npz, key: npz.read(key, np.empty(npz.lazy(key).shape, npz.lazy(key).dtype)),
}


@pytest.mark.slow
@pytest.mark.remedy("Write the archive again.")
@pytest.mark.parametrize(("exchange", "read"), by_turns(OTHER_DATA, READS))
def test_an_index_whose_values_were_exchanged_is_refused(folder, exchange, read):
    """Each way to read compares the CRC-32 of a part with that of its shard."""
    key, change = exchange
    index = index_of(folder)
    change(index)
    write_index(folder, index)
    refused = pytest.raises(IndexFormatError, match=r"not what the index says|has no array")
    with npzkit.open(folder) as npz, refused:
        READS[read](npz, key)
    write(folder, "again")
    with npzkit.open(folder) as npz:
        READS[read](npz, key)


@pytest.mark.slow
@pytest.mark.parametrize(("key", "change"), OTHER_DATA + OTHER_PLACE)
def test_an_index_whose_values_were_exchanged_fails_verify(folder, key, change):
    """Both a check of all arrays and one of the array find it."""
    index = index_of(folder)
    change(index)
    write_index(folder, index)
    with npzkit.open(folder) as npz:
        assert not npz.verify().ok
        assert npz.verify([key]).ok is False


def test_what_the_index_says_is_right(folder):
    """The index as it was written is read by each way, again and again."""
    with npzkit.open(folder) as npz:
        for _ in range(2):
            for key, array in ARRAYS.items():
                found = npz[key]
                assert (found.shape, found.dtype) == (array.shape, array.dtype)
                for read in READS.values():
                    read(npz, key)
                np.testing.assert_array_equal(found, array)
        assert npz.verify().ok


def test_maps_compare_their_part(folder):
    """A map of an array is of the part that has its CRC-32."""
    index = index_of(folder)
    exchange_crcs(index)
    write_index(folder, index)
    with npzkit.open(folder) as npz, pytest.raises(IndexFormatError, match="not what the index"):
        npz.memmap("u")


@pytest.mark.parametrize("change", ["one more", "one less", "no shard", "one twice"])
def test_arrays_without_items_are_in_a_shard(folder, change):
    """The index says for each array without items, and for no other, which shard has it."""
    index = index_of(folder)
    for name, column in index["parts"].items():
        if change == "one more":
            column.append(column[-1])
        elif change == "one less":
            column.pop()
        elif change == "no shard" and name == "shard":
            column[-1] = 9
        elif change == "one twice" and name == "key":
            column[-1] = "empty"
    write_index(folder, index)
    with pytest.raises(IndexFormatError, match=r"wrong length|out of range|for two parts"):
        npzkit.open(folder)


def test_empty_arrays_may_have_parts(tmp_path):
    """An array without items that was written in parts is found, and compared too."""
    with npzkit.ShardedWriter(tmp_path) as w:
        for row in (0, 2):
            w.add("e", np.zeros((2, 0)), (row, 0), (4, 0))
        w.commit()
    with npzkit.open(tmp_path) as npz:
        assert npz["e"].shape == (4, 0)
        assert npz.lazy("e")[1:].shape == (3, 0)
        with pytest.raises(UnsupportedError, match="several parts"):
            npz.memmap("e")
        assert npz.verify().ok


def test_fields_of_an_array_without_items_are_compared(tmp_path):
    """One field of an empty array is read only if its shard has the array that the index means."""
    with npzkit.ShardedWriter(tmp_path, attempt="a") as w:
        w.add("one", np.zeros(0, [("a", "f4"), ("b", "i4")]))
        w.add("two", np.zeros(0, [("a", "f8"), ("b", "i4")]))
    npzkit.ShardedWriter(tmp_path, attempt="a").commit()
    with npzkit.open(tmp_path) as npz:
        assert npz.lazy("one")["a"].dtype == "f4"
    index = index_of(tmp_path)
    exchange(index["parts"]["crc32"], 0, 1)
    write_index(tmp_path, index)
    with npzkit.open(tmp_path) as npz, pytest.raises(IndexFormatError, match="not what the index"):
        npz.lazy("one")["a"]


def test_findings_are_in_the_order_of_the_arrays(folder):
    """A report lists the findings by array, not by shard."""
    with npzkit.open(folder) as npz:
        order = list(npz)
        parts = [npz.parts("w")[0], npz.parts("w")[-1], npz.parts("v")[0], npz.parts("x")[0]]
    for part in parts:
        with npzkit.open(folder / part.shard) as shard:
            offset = shard.info(part.key).data_offset
        with (folder / part.shard).open("r+b") as file:
            file.seek(offset)
            file.write(b"XXXX")
    with npzkit.open(folder) as npz:
        found = [row.key for row in npz.verify().rows]
    assert set(found) == {"w", "v", "x"}
    assert found == sorted(found, key=order.index)


def test_damaged_rows_are_those_of_a_part(tmp_path):
    """A finding names the shard and the part in which rows are damaged, and reads the chunk."""
    values = np.random.default_rng(0).random((60, 100))
    with npzkit.ShardedWriter(tmp_path, compression="deflated", chunk_size=4096) as writer:
        for start in (0, 30):
            writer.add("x", values[start : start + 30], (start, 0), (60, 100))
        writer.commit()
    with npzkit.open(tmp_path) as npz:
        part = npz.parts("x")[1]
    data = bytearray((tmp_path / part.shard).read_bytes())
    with npzkit.open(bytes(data)) as shard:
        data[shard.info(part.key).data_offset + 15_000] ^= 1
    (tmp_path / part.shard).write_bytes(data)
    with npzkit.open(tmp_path) as npz:
        (row,) = npz.verify().rows
        with pytest.raises(ChecksumError, match="chunk 4 of 6 is damaged") as caught:
            npz["x"]
    assert (row.key, row.where) == ("x", caught.value.offset)
    assert f"shard {part.shard!r}, part at (30, 0): " in row.what
    assert row.what.endswith("; damaged chunk 4 of 6, in rows 15 to 20 (included) of the part")


@pytest.mark.parametrize("change", [str.capitalize, str])
def test_names_of_shards_differ_on_every_system(folder, change):
    """An index is refused if two of its shards are one file, on some systems or on all."""
    index = index_of(folder)
    names = index["shards"]["name"]
    names[0], names[1] = "part.npz", change("part.npz")
    write_index(folder, index)
    with pytest.raises(UnsafeNameError, match="two shards have the same name"):
        npzkit.open(folder)


def test_parts_say_where_they_are(folder):
    """Each part has the name of a shard in the folder, and of an array in it."""
    with npzkit.open(folder) as npz:
        parts = npz.parts("w")
    assert len(parts) == 4
    for part in parts:
        with npzkit.open(folder / part.shard) as shard:
            assert np.array_equal(
                shard[part.key],
                WHOLE[tuple(map(slice, part.offset, np.add(part.offset, part.shape)))],
            )


@pytest.mark.parametrize("kind", ["shards", "files", "deflated files"])
def test_what_is_read_without_checks(tmp_path, kind):
    """Parts and complete arrays of shards and files are checked, unless verify=False says otherwise."""
    rows = np.random.default_rng(0).integers(0, 9, (2, 2000))
    for number in range(2):
        if kind == "shards":
            with npzkit.ShardedWriter(tmp_path, attempt="a") as w:
                w.add("x", rows[number : number + 1], (number, 0), rows.shape)
        else:
            save = np.savez if kind == "files" else np.savez_compressed
            save(tmp_path / f"{number}.npz", x=rows[number])
    if kind == "shards":
        npzkit.ShardedWriter(tmp_path, attempt="a").commit()
    path = min(tmp_path.glob("shard-*.npz" if kind == "shards" else "*.npz"))
    data, is_same = path.read_bytes(), kind == "deflated files"
    if is_same:
        # The CRC-32 in both headers: only a check finds that.
        with npzkit.open(path) as npz:
            crc = npz.info("x").crc32.to_bytes(4, "little")
        assert data.count(crc) == 2
        data = data.replace(crc, bytes([crc[0] ^ 1]) + crc[1:])
    else:
        place = next(data.index(row.tobytes()) for row in rows if row.tobytes() in data)
        data = data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]
    path.write_bytes(data)

    def check(found, expected):
        assert found.shape == expected.shape
        assert (found != expected).sum() == (0 if is_same else 1)

    opened = npzkit.open(tmp_path) if kind == "shards" else npzkit.open_many(
        sorted(tmp_path.glob("*.npz")), axis=None
    )  # fmt: skip
    with opened as many:
        checked, unchecked = many.lazy("x"), many.lazy("x", verify=False)
        for index in (..., slice(None), (slice(None), slice(0, 5))):
            if index is not Ellipsis and is_same and index != slice(None):
                # np.savez_compressed has no CRC-32s of parts.
                continue
            with pytest.raises(ChecksumError):
                checked[index]
            check(unchecked[index], rows[index])
        out = np.zeros_like(rows)
        with pytest.raises(ChecksumError):
            checked.read(out=out)
        assert not out.any()
        check(unchecked.read(out=out), rows)
        check(unchecked.read(), rows)
