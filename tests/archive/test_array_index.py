"""The array index: what lists an archive reads nothing else, and nothing wrong is read by it."""

from __future__ import annotations

import io
import shutil
import struct
import subprocess
import tracemalloc
import zipfile
import zlib

import npzkit
import numpy as np
import pytest
from commits import find_footer, with_footer
from deep import by_turns
from memory_store import InStore, MemoryStore
from npzkit.errors import AmbiguousArchiveWarning, ChecksumError, LimitExceededError, ZipFormatError
from npzkit.files.source import open_source
from npzkit.limits import Limits
from npzkit.zip.array_index import ChunkLists, find_array_index, has_damaged_index
from npzkit.zip.directory import read_directory

from tables import each_row

ARRAYS = {
    "layer.0.weight": np.arange(12.0).reshape(3, 4),
    "layer.0.bias": np.zeros(3),
    "layer.1.weight": np.ones((3, 4)),
    "fortran": np.asfortranarray(np.arange(6, dtype="i2").reshape(2, 3)),
    "records": np.zeros(2, [("a", "i4"), ("b", "S3")]),
    "large": np.arange(200_000),
    "empty": np.zeros((0, 5), "f4"),
}


@pytest.fixture(params=["stored", "deflated"])
def written(request, tmp_path):
    path = tmp_path / "a.npz"
    with npzkit.NpzWriter(path, compression=request.param, metadata={"step": 1}) as w:
        for key, array in ARRAYS.items():
            w.add(key, array, attrs={"unit": "m"} if key == "large" else None)
    return path


def index_of(data):
    """Return the index that is in an archive, and its directory."""
    source = open_source(bytes(data))
    directory = read_directory(source, limits=Limits())
    return find_array_index(source, directory), directory


def places_of(data):
    """Return where the record begins, the index in it, and the directory behind it."""
    _, footer = find_footer(bytes(data))
    end = footer.directory_offset
    return end - footer.record_size, end - footer.index_distance, end


def list_of(data, key):
    """Return the list of the chunks of an array, if it is believed."""
    source = open_source(bytes(data))
    directory = read_directory(source, limits=Limits())
    return ChunkLists(source, directory).find(directory.entries[f"{key}.npy"])


def without_index(data):
    """Return an archive whose index is not believed, and otherwise the same."""
    data = bytearray(data)
    data[places_of(data)[-1] - 1] ^= 1
    return bytes(data)


def infos_of(data):
    with npzkit.open(bytes(data)) as npz:
        return [npz.info(key) for key in npz]


def from_headers(infos):
    """Return what the members' own headers say: nothing of their chunks."""
    return [info._replace(seekable=False, checked_parts=False) for info in infos]


def check_same_infos(path):
    """The index says what the members' own headers say, and where the lists of chunks are."""
    data = path.read_bytes()
    index, infos = index_of(data)[0], infos_of(data)
    assert index_of(without_index(data))[0] is None
    assert from_headers(infos) == from_headers(infos_of(without_index(data)))
    for info in infos:
        is_listed = index.is_listed(info.member)
        assert (list_of(data, info.key) is not None) == is_listed
        assert not is_listed or (info.seekable and info.checked_parts)


def test_it_says_what_the_headers_say(written):
    """Shape, dtype, offsets, seekability and attributes are the same with it and without."""
    check_same_infos(written)


@pytest.mark.filterwarnings("ignore:the header of this array")
def test_a_header_that_is_too_long_is_not_kept(tmp_path):
    """An array with an NPY header above 64 KiB is described by its own header."""
    path = tmp_path / "a.npz"
    arrays = {f"k{number}": np.arange(number + 1) for number in range(8)}
    arrays["long"] = np.zeros(2, [(f"field{number:05}", "<f8") for number in range(4000)])
    with pytest.warns(UserWarning, match="format 2"):
        npzkit.save(path, arrays)
    assert index_of(path.read_bytes())[0].numbers.tolist() == [*range(1, 9), 0]
    with npzkit.open(path, limits=npzkit.Limits(header_size=1 << 20)) as npz:
        assert npz.info("long").dtype == arrays["long"].dtype


def test_listing_reads_no_member(written):
    """info, summary and lazy answer though all that comes before the index is lost."""
    data = bytearray(written.read_bytes())
    expected = infos_of(data)
    with npzkit.open(bytes(data)) as npz:
        table = npz.summary()
    offset = places_of(data)[0]
    data[4:offset] = bytes(offset - 4)
    with npzkit.open(bytes(data)) as npz:
        assert [npz.info(key) for key in npz] == expected
        assert npz.summary() == table
        assert npz.lazy("large").shape == (200_000,)
        with pytest.raises(ZipFormatError):
            npz.lazy("large")[5]
        with pytest.raises(ZipFormatError):
            npz["large"]


@pytest.mark.slow
def test_any_flipped_bit_of_the_record(written):
    """Damage of the index switches it off, damage of a list that list; the arrays are right."""
    data = bytearray(written.read_bytes())
    expected = infos_of(data)
    begin, index_begin, end = places_of(data)
    list_begin, list_end = index_of(data)[0].place("large.npy")[0], index_begin
    for place in range(begin, end):
        data[place] ^= 1 << place % 8
        source = open_source(bytes(data))
        index, directory = index_of(data)
        is_listed = list_begin <= place < list_end
        assert (index is None) == (place >= index_begin)
        assert (list_of(data, "large") is None) == (place >= list_begin)
        assert has_damaged_index(source, directory) == (not is_listed)
        if place % 16 == 0:
            assert from_headers(infos_of(data)) == from_headers(expected)
            with npzkit.open(bytes(data)) as npz:
                assert np.array_equal(npz.lazy("large")[7:9], ARRAYS["large"][7:9])
            severities = {row.severity for row in npzkit.verify(bytes(data)).rows}
            assert severities - {"note"} == {"warning" if is_listed else "error"}
        data[place] ^= 1 << place % 8


def test_edits_of_other_programs_switch_it_off(written):
    """zipfile writes another directory, which the index does not fit."""
    with zipfile.ZipFile(written, "a") as archive, archive.open("other.npy", "w") as file:
        np.lib.format.write_array(file, np.eye(3))
    assert index_of(written.read_bytes())[0] is None
    with npzkit.open(written) as npz:
        assert npz.info("other").shape == (3, 3)
        assert npz.info("large").shape == (200_000,)


def test_the_index_of_another_archive(written):
    """An index in front of a directory that is not its own is not believed."""
    data, other = written.read_bytes(), io.BytesIO()
    npzkit.save(other, {f"k{i}": np.eye(2) for i in range(len(ARRAYS))})
    begin, _, end = places_of(data)
    their_begin, _, their_end = places_of(other.getvalue())
    foreign = other.getvalue()[their_begin:their_end]
    mixed = bytearray(data[:begin] + foreign + data[end:])
    at = mixed.rfind(b"PK\5\6")
    mixed[at + 16 : at + 20] = (begin + len(foreign)).to_bytes(4, "little")
    assert index_of(mixed)[0] is None
    assert [info.shape for info in infos_of(mixed)] == [a.shape for a in ARRAYS.values()]


def test_the_index_of_a_repeated_name(tmp_path):
    """If two members have the same name, their own headers are read, also by an append."""
    path = tmp_path / "a.npz"
    npzkit.save(path, {"a": np.arange(3), "b": np.eye(2)})
    data = path.read_bytes().replace(b"b.npy", b"a.npy")
    raw = bytearray(data[places_of(data)[-1] : data.index(b"PK\5\6")])
    for place in (0, raw.rindex(b"PK\1\2")):
        raw[place + 16 : place + 20] = bytes(4)
    path.write_bytes(with_footer(data, directory_crc32=zlib.crc32(raw)))
    with pytest.warns(AmbiguousArchiveWarning), npzkit.open(path) as npz:
        assert npz.summary().count("float64") == 1
        assert npz.info("a").shape == (2, 2)
    with pytest.warns(AmbiguousArchiveWarning), npzkit.NpzWriter(path, "a") as w:
        w["c"] = np.ones(1)
    assert [info.shape for info in infos_of(path.read_bytes())] == [(2, 2), (1,)]


def lying(data, change):
    """Return an archive whose index fits its footer and tells lies.

    `change` gets the head of a row, the size of the extra field, and the place of a list.
    """
    _, begin, end = places_of(data)
    index, footer = index_of(data)[0], find_footer(data)[1]
    numbers, rows, places = {b"": 0}, b"", b""
    for name, number, extra_size in zip(
        index.rows, index.numbers.tolist(), index.extra_sizes.tolist(), strict=True
    ):
        head, size, place = change((index.heads[number], extra_size, index.place(name)))
        number = numbers.setdefault(head, len(numbers))
        rows += struct.pack("<LH", number | bool(place) << 31, size)
        places += struct.pack("<QL", *place) if place else b""
    heads = b"".join(struct.pack("<H", len(head)) + head for head in numbers if head)
    forged = rows + places + heads
    assert len(forged) == footer.index_size == end - 68 - begin
    data = data[:begin] + forged + data[end - 68 :]
    return with_footer(data, index_crc32=zlib.crc32(forged))


SWAPS = {
    "dtype": (b"'<f8'", b"'<i8'"),
    "shape": (b"(3, 4)", b"(4, 3)"),
    "order": (b"False, 'shape': (3, 4), ", b"True,  'shape': (3, 4), "),
}


@pytest.mark.slow
@pytest.mark.remedy("npzkit.repack(path) writes the index again.")
@pytest.mark.parametrize("kind", SWAPS)
def test_no_data_is_read_by_a_lie(kind, written, tmp_path):
    """An index that lies is found out by whoever reads; a map goes by the array's own header."""
    old, new = SWAPS[kind]
    data = lying(written.read_bytes(), lambda note: (note[0].replace(old, new), *note[1:]))
    path = tmp_path / "lying.npz"
    path.write_bytes(data)
    key = "layer.0.weight"
    with npzkit.open(path) as npz:
        npz.info(key)
        for read in (npz.stream, lambda key: npz.lazy(key)[0]):
            with pytest.raises(ZipFormatError, match="array index"):
                read(key)
        if npz.info(key).method == "stored":
            assert np.array_equal(npz.memmap(key), ARRAYS[key])
        for read in (npz.read, lambda key: npz.load_all([key])[key]):
            if kind == "order":
                assert np.array_equal(read(key), ARRAYS[key])
            else:
                with pytest.raises(ZipFormatError, match="array index"):
                    read(key)
    assert not npzkit.verify(path).ok
    npzkit.repack(path)
    assert npzkit.verify(path).ok
    with npzkit.open(path) as npz:
        assert (npz.info(key).shape, npz.info(key).dtype) == ((3, 4), np.dtype("f8"))
        assert np.array_equal(npz.lazy(key)[:], ARRAYS[key])


def test_a_damaged_header_is_not_blamed_on_out(tmp_path):
    """An array for `out` fits what is listed: if the member says otherwise, the member is wrong."""
    path = tmp_path / "a.npz"
    npzkit.save(path, {"x": np.arange(3, dtype="<i4")})
    path.write_bytes(path.read_bytes().replace(b"<i4", b">i4", 1))
    with npzkit.open(path) as npz:
        out = np.empty(npz.lazy("x").shape, npz.lazy("x").dtype)
        with pytest.raises(ChecksumError):
            npz.read("x", out)
        with pytest.raises(ZipFormatError, match="disagree"):
            npz.read("x", out, verify=False)


def test_a_lie_about_what_is_no_array(tmp_path):
    """Bytes that an index calls an array are not returned as what they are."""
    path = tmp_path / "a.npz"
    npzkit.save(path, {f"k{i}": np.arange(9) for i in range(5)})
    data = path.read_bytes()
    with npzkit.open(path) as npz:
        start = npz.info("k2").data_offset - 128
    data = data[:start] + b"x" + data[start + 1 :]
    with npzkit.open(data) as npz:
        npz.info("k2")
        for read in (
            npz.stream,
            lambda key: npz.lazy(key)[0],
            lambda key: npz.read(key, verify=False),
        ):
            with pytest.raises(npzkit.NpzkitError):
                read("k2")


def test_a_lie_about_sizes_is_not_believed(written):
    """A header that asks for other bytes than the member has is read from the member."""
    data = lying(
        written.read_bytes(), lambda note: (note[0].replace(b"(200000,)", b"(900000,)"), *note[1:])
    )
    with npzkit.open(data) as npz:
        assert npz.info("large").shape == (200_000,)


def test_where_the_data_lies_is_a_hint(written):
    """A wrong size of an extra field moves an offset that is told, not what is read."""
    data = lying(written.read_bytes(), lambda note: (note[0], note[1] ^ 4, note[2]))
    with npzkit.open(data) as npz:
        npz.info("large")
        assert np.array_equal(npz["large"], ARRAYS["large"])
        assert np.array_equal(npz.lazy("large")[7:9], ARRAYS["large"][7:9])
    assert not npzkit.verify(data).ok


@pytest.mark.slow
@pytest.mark.parametrize("change", [4, 8192, 60_000])
def test_a_wrong_hint_in_a_store(written, change):
    """Rows are fetched where the index says, and again where the array's own header says."""
    data = lying(written.read_bytes(), lambda note: (note[0], note[1] ^ change, note[2]))
    store = MemoryStore(data)
    with npzkit.open(InStore(store)) as npz:
        lazy = npz.lazy("large")
        for _ in range(2):
            assert np.array_equal(lazy[7:9], ARRAYS["large"][7:9])
            assert np.array_equal(npz["large"], ARRAYS["large"])


@pytest.mark.parametrize("kind", SWAPS)
def test_no_data_of_a_store_is_read_by_a_lie(kind, written):
    """Rows are compared with the array's own header before they are returned."""
    old, new = SWAPS[kind]
    data = lying(written.read_bytes(), lambda note: (note[0].replace(old, new), *note[1:]))
    with npzkit.open(InStore(MemoryStore(data))) as npz:
        lazy = npz.lazy("layer.0.weight")
        for _ in range(2):
            with pytest.raises(ZipFormatError, match="array index"):
                lazy[0]


def test_it_follows_every_edit(written):
    """Appends, overwrites, removals, renames, attributes and created arrays are in the next one."""
    with npzkit.NpzWriter(written, "a", auto_repack=False) as w:
        w["new"] = np.arange(5, dtype="u1")
        w.add("large", np.eye(4), overwrite=True)
        del w["fortran"]
        w.rename("records", "renamed")
        w.attrs("empty")["unit"] = "s"
        with w.create("filled", (3, 2), "i4") as dst:
            dst[:] = 7
        with w.create("grown", (None, 2), "f4", compression="deflated") as dst:
            for _ in range(3):
                dst.append(np.ones((50_000, 2), "f4"))
    check_same_infos(written)
    with npzkit.open(written) as npz:
        assert npz.info("grown").shape == (150_000, 2)
        assert npz.info("grown").seekable
    npzkit.repack(written)
    check_same_infos(written)
    with npzkit.open(written) as npz:
        assert npz.archive_info().dead_size == 0


@pytest.mark.slow
def test_headers_that_no_array_has_any_more_are_dropped(written):
    """However often an array gets another shape, the index has the headers of the last ones."""
    for size in range(1, 30):
        with npzkit.NpzWriter(written, "a", auto_repack=False) as w:
            w.add("empty", np.zeros(size), overwrite=True)
    data = written.read_bytes()
    fresh = io.BytesIO()
    with npzkit.open(data) as npz:
        npzkit.save(fresh, npz.load_all())
    index, same = index_of(data)[0], index_of(fresh.getvalue())[0]
    assert (index.heads, index.numbers.tolist()) == (same.heads, same.numbers.tolist())
    check_same_infos(written)


@pytest.mark.parametrize("over", [0, 90])
def test_an_append_to_an_index_with_a_wrong_number(written, over):
    """A number without a header switches the index off, and never becomes that of a new header."""
    data = bytearray(written.read_bytes())
    index, (_, begin, end) = index_of(data)[0], places_of(data)
    data[begin] = len(index.heads) + over
    data = with_footer(bytes(data), index_crc32=zlib.crc32(data[begin : end - 68]))
    assert index_of(data)[0] is None
    written.write_bytes(data)
    with npzkit.NpzWriter(written, "a") as w:
        w["more"] = np.arange(3)
    assert index_of(written.read_bytes())[0].numbers[0] == 0
    check_same_infos(written)


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 5, 7])
def test_an_index_of_another_size(size, written):
    """If its heads do not fill it exactly, or its rows do not fit, it is switched off."""
    data = written.read_bytes()
    _, begin, end = places_of(data)
    for cut in (end - 68 - size, begin + size, begin + 6 * len(ARRAYS) + 12 - 1):
        changed = {"index_size": cut - begin, "index_crc32": zlib.crc32(data[begin:cut])}
        forged = with_footer(data, **changed)
        assert index_of(forged)[0] is None
        assert not npzkit.verify(forged).ok
        with npzkit.open(forged) as npz:
            assert np.array_equal(npz.lazy("large")[7:9], ARRAYS["large"][7:9])


def test_an_append_to_a_foreign_archive(tmp_path):
    """What another program wrote is read from its headers, what npzkit added from the index."""
    path = tmp_path / "a.npz"
    np.savez(path, **ARRAYS)
    assert index_of(path.read_bytes())[0] is None
    npzkit.save(tmp_path / "b.npz", {"x": np.eye(2)})
    with npzkit.NpzWriter(path, "a") as w:
        w["new"] = np.eye(2)
    check_same_infos(path)
    npzkit.repack(path)
    check_same_infos(path)


def test_a_flush_of_a_map_keeps_it(tmp_path):
    """The CRC-32 that a flush rewrites is no part of what the index is compared with."""
    path = tmp_path / "a.npz"
    npzkit.save(path, ARRAYS)
    with npzkit.open(path) as npz:
        assert npz.info("large").shape == (200_000,)
        before = npz.info("large").crc32
        mapped = npz.memmap("large", "r+")
        mapped[0] = 5
        mapped.flush()
        assert npz.info("large").crc32 != before
        assert npz["large"][0] == 5
    check_same_infos(path)


def test_every_archive_with_a_member_has_it(tmp_path):
    """One member is enough for an index; an archive without any begins with its directory."""
    path = tmp_path / "a.npz"
    for count in (0, 1, 3, 4):
        npzkit.save(path, {f"k{i}": np.zeros(i) for i in range(count)})
        assert (index_of(path.read_bytes())[0] is not None) == (count > 0)


def test_a_stream_carries_it(written):
    """A file object that can only be written to gets the same bytes."""

    class Pipe(io.RawIOBase):
        data = b""

        def writable(self):
            return True

        def write(self, data):
            self.data += bytes(data)
            return len(data)

    pipe = Pipe()
    with npzkit.NpzWriter(pipe) as w:
        for key, array in ARRAYS.items():
            w[key] = array
    plain = io.BytesIO()
    npzkit.save(plain, ARRAYS)
    assert pipe.data == plain.getvalue()
    assert index_of(pipe.data)[0] is not None


def test_repair_does_not_take_it_for_a_member(written, tmp_path):
    """Rebuilt from local headers, an archive has the keys that it had."""
    data = written.read_bytes()
    damaged = tmp_path / "damaged.npz"
    damaged.write_bytes(data[: places_of(data)[-1]])
    output = tmp_path / "repaired.npz"
    npzkit.repair(damaged, output)
    with npzkit.open(output) as npz:
        assert set(npz) == set(ARRAYS)
        assert np.array_equal(npz["large"], ARRAYS["large"])


@pytest.mark.slow
def test_other_programs_do_not_notice(written, tmp_path):
    """Neither np.load, zipfile, unzip, 7z nor jar shows a member of the record's name."""
    assert np.load(written).files == list(ARRAYS)
    with zipfile.ZipFile(written) as archive:
        assert archive.namelist() == [key + ".npy" for key in ARRAYS]
        assert archive.testzip() is None
    for command in (["unzip", "-l"], ["7z", "l"], ["jar", "tf"]):
        if shutil.which(command[0]) is not None:
            found = subprocess.run(
                [*command, str(written)], capture_output=True, text=True, timeout=60, check=True
            )
            assert "npzkit" not in found.stdout
            assert "large.npy" in found.stdout


@pytest.mark.parametrize("size", [1, 3, 100])
def test_bytes_in_front_of_it(written, size):
    """In an archive behind other data it is found all the same."""
    data = written.read_bytes()
    stream = io.BytesIO(b"x" * size + data)
    stream.seek(size)
    with npzkit.open(stream) as npz:
        assert npz.info("large").shape == (200_000,)
        assert np.array_equal(npz.lazy("large")[:3], ARRAYS["large"][:3])
        offsets = [npz.info(key).data_offset - size for key in npz]
    assert offsets == [info.data_offset for info in infos_of(data)]


def test_the_index_lists_no_array_that_is_larger_than_the_limit(written):
    """Its shape is refused as it is for archives without an index, although no data is read."""
    with npzkit.open(written, limits=Limits(member_size=1000)) as npz:
        for call in (npz.info, npz.lazy, npz.read):
            with pytest.raises(LimitExceededError, match="too large"):
                call("large")


def test_few_of_very_many_are_described_one_by_one(monkeypatch):
    """Whoever asks for a few of very many arrays keeps nothing of the others in memory."""
    monkeypatch.setattr("npzkit.reading.known_arrays._VERY_MANY_COUNT", 5000)
    stream = io.BytesIO()
    npzkit.save(stream, {f"k{number}": np.array(number) for number in range(5000)})
    with npzkit.open(stream) as npz:
        npz.info("k0")
        tracemalloc.start()
        try:
            assert [npz.info(key).shape for key in npz.files[1:100]] == [()] * 99
            assert tracemalloc.get_traced_memory()[0] < 100_000
            assert [npz.info(key).shape for key in npz.files[:200]] == [()] * 200
            assert tracemalloc.get_traced_memory()[0] > 500_000
        finally:
            tracemalloc.stop()


# -- an index of several pieces, and lists that lead elsewhere ---------------------


@pytest.fixture
def two_pieces(tmp_path):
    """An archive whose index has more bytes than a piece, by the long headers of its arrays."""
    path = tmp_path / "long.npz"
    arrays = {
        key: np.zeros(2, [(f"{key}{number:05}", "<f8") for number in range(500)])
        for key in "abcdefgh"
    }
    npzkit.save(path, {**arrays, "large": ARRAYS["large"]})
    return path


@pytest.mark.slow
def test_an_index_of_several_pieces(two_pieces):
    """It says what the headers say, after an append too, and nothing between its pieces is dead."""
    data = two_pieces.read_bytes()
    begin, index_begin, end = places_of(data)
    heads, place = [], begin
    while place < end:
        heads.append(place)
        place += 57 + int.from_bytes(data[place + 55 : place + 57], "little")
    assert place == end
    assert len([head for head in heads if index_begin < head < end]) >= 1
    check_same_infos(two_pieces)
    with npzkit.NpzWriter(two_pieces, "a") as w:
        w["more"] = np.arange(3)
    check_same_infos(two_pieces)
    npzkit.repack(two_pieces)
    with npzkit.open(two_pieces) as npz:
        assert npz.archive_info().dead_size == 0
        assert npz["c"].dtype.names[-1] == "c00499"
    assert npzkit.verify(two_pieces).rows == ()
    check_same_infos(two_pieces)


@pytest.mark.slow
def test_a_wrong_bit_in_any_piece_of_an_index(two_pieces):
    """One in an index switches it off; one in the head of a piece is what verify tells."""
    data = bytearray(two_pieces.read_bytes())
    begin, index_begin, _ = places_of(data)
    size = find_footer(bytes(data))[1].index_size
    for place in (index_begin, index_begin + 64_999, index_begin + 65_057, index_begin + size + 56):
        data[place] ^= 1
        assert index_of(data)[0] is None
        data[place] ^= 1
    for place in (begin, index_begin + 65_000, index_begin + 65_056):
        data[place] ^= 1
        assert index_of(data)[0] is not None
        assert [row.severity for row in npzkit.verify(bytes(data)).rows] == ["error"]
        data[place] ^= 1


@pytest.mark.slow
@pytest.mark.parametrize("size", [0xFFFF, 0xFFFC, 65_001, 0])
def test_a_piece_of_another_size(size, written):
    """Whatever size the head of a piece has, verify says that it is damaged."""
    data = bytearray(written.read_bytes())
    begin = places_of(data)[0]
    data[begin + 55 : begin + 57] = size.to_bytes(2, "little")
    data[begin + 30 : begin + 32] = ((size + 4) & 0xFFFF).to_bytes(2, "little")
    rows = npzkit.verify(bytes(data)).rows
    assert [row.severity for row in rows if row.severity != "note"] == ["error"]
    with npzkit.open(bytes(data)) as npz:
        assert np.array_equal(npz["large"], ARRAYS["large"])


PLACES = {
    "the beginning": lambda place, chunk_size, end: (0, chunk_size),
    "data of a member": lambda place, chunk_size, end: (900, chunk_size),
    "a byte later": lambda place, chunk_size, end: (place + 1, chunk_size),
    "the directory": lambda place, chunk_size, end: (end, chunk_size),
    "over the directory's beginning": lambda place, chunk_size, end: (end - 4, chunk_size),
    "behind the file": lambda place, chunk_size, end: (1 << 40, chunk_size),
    "nowhere": lambda place, chunk_size, end: ((1 << 64) - 1, chunk_size),
    "no chunks": lambda place, chunk_size, end: (place, 0),
    "chunks of a byte": lambda place, chunk_size, end: (place, 1),
    "chunks of all sizes": lambda place, chunk_size, end: (place, (1 << 32) - 1),
    "other chunks": lambda place, chunk_size, end: (place, chunk_size // 2),
    "larger chunks": lambda place, chunk_size, end: (place, chunk_size * 2),
}


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "is_distant"), by_turns(PLACES, [False, True]))
def test_no_list_is_believed_that_is_elsewhere(kind, is_distant, written):
    """Wherever an index says that the list of an array's chunks is, what is read is right."""
    end = places_of(written.read_bytes())[-1]
    data = lying(
        written.read_bytes(),
        lambda note: (*note[:2], note[2] and PLACES[kind](*note[2], end)),
    )
    assert index_of(data)[0] is not None
    assert list_of(data, "large") is None
    with npzkit.open(InStore(MemoryStore(data)) if is_distant else data) as npz:
        assert npz.info("large").shape == (200_000,)
        assert np.array_equal(npz.lazy("large")[7:9], ARRAYS["large"][7:9])
        assert np.array_equal(npz.lazy("large")[-5:], ARRAYS["large"][-5:])
        assert np.array_equal(npz["large"], ARRAYS["large"])
        assert np.array_equal(npz.load_all()["large"], ARRAYS["large"])
        npz.archive_info()
    written.write_bytes(data)
    assert [row.key for row in npzkit.verify(written).rows if row.severity == "warning"] == [
        "large"
    ]
    with npzkit.NpzWriter(written, "a", auto_repack=False) as w:
        w["more"] = np.arange(3)
        w.rename("large", "renamed")
    with npzkit.open(written) as npz:
        assert np.array_equal(npz.lazy("renamed")[7:9], ARRAYS["large"][7:9])
    npzkit.repack(written)
    assert npzkit.verify(written).rows == ()


@pytest.mark.slow
@each_row("kind", PLACES)
def test_a_flush_writes_no_list_elsewhere(kind, tmp_path):
    """A map of an array whose list is said to be elsewhere changes the array alone."""
    path = tmp_path / "a.npz"
    npzkit.save(path, ARRAYS)
    sound, end = path.read_bytes(), places_of(path.read_bytes())[-1]
    data = lying(sound, lambda note: (*note[:2], note[2] and PLACES[kind](*note[2], end)))
    path.write_bytes(data)
    with npzkit.open(path) as npz:
        begin = npz.info("large").data_offset
        mapped = npz.memmap("large", "r+")
        mapped[5] = 7
        try:
            mapped.flush()
        except BaseException:
            # It is flushed once more when it is dropped.
            with path.open("r+b") as file:
                file.write(sound)
            raise
        del mapped
        crc = zlib.crc32(path.read_bytes()[begin - 128 : begin + 1_600_000])
        assert npz.info("large").crc32 == crc
    assert path.stat().st_size == len(data)
    with npzkit.open(path) as npz:
        for key in set(ARRAYS) - {"large"}:
            assert np.array_equal(npz[key], ARRAYS[key])
        assert npz["large"][5] == 7
    assert npzkit.verify(path).ok
