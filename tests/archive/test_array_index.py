"""The array index: what lists an archive reads nothing else, and nothing wrong is read by it."""

from __future__ import annotations

import io
import shutil
import subprocess
import tracemalloc
import zipfile
import zlib

import npzkit
import numpy as np
import pytest
from commits import with_footer
from memory_store import InStore, MemoryStore
from npzkit.errors import AmbiguousArchiveWarning, ChecksumError, LimitExceededError, ZipFormatError
from npzkit.files.source import open_source
from npzkit.limits import Limits
from npzkit.zip.array_index import find_array_index
from npzkit.zip.directory import read_directory
from npzkit.zip.index_notes import INDEX_NAME, Notes
from npzkit.zip.member_layout import format_hidden

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
    """Return the index that is in an archive, and where it lies."""
    source = open_source(bytes(data))
    directory = read_directory(source, limits=Limits())
    return find_array_index(source, directory), directory


def without_index(data):
    """Return an archive whose index is not believed, and otherwise the same."""
    data = bytearray(data)
    _, directory = index_of(data)
    data[directory.directory_offset - 1] ^= 1
    return bytes(data)


def infos_of(data):
    with npzkit.open(bytes(data)) as npz:
        return [npz.info(key) for key in npz]


def check_same_infos(path):
    """The index says what the members' own headers say."""
    data = path.read_bytes()
    assert index_of(data)[0] is not None
    assert index_of(without_index(data))[0] is None
    assert infos_of(data) == infos_of(without_index(data))


def test_it_says_what_the_headers_say(written):
    """Shape, dtype, offsets, seekability and attributes are the same with it and without."""
    check_same_infos(written)


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
    offset = index_of(data)[0].offset
    data[4:offset] = bytes(offset - 4)
    with npzkit.open(bytes(data)) as npz:
        assert [npz.info(key) for key in npz] == expected
        assert npz.summary() == table
        assert npz.lazy("large").shape == (200_000,)
        with pytest.raises(ZipFormatError):
            npz.lazy("large")[5]
        with pytest.raises(ZipFormatError):
            npz["large"]


def test_any_flipped_bit_switches_it_off(written):
    """Damage within the index is noticed, and the members' own headers are read instead."""
    data = bytearray(written.read_bytes())
    expected = infos_of(data)
    index, directory = index_of(data)
    for place in range(index.offset, directory.directory_offset):
        data[place] ^= 1 << place % 8
        assert index_of(data)[0] is None
        if place % 16 == 0:
            assert infos_of(data) == expected
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
    data = written.read_bytes()
    index, directory = index_of(data)
    other = io.BytesIO()
    npzkit.save(other, {f"k{i}": np.eye(2) for i in range(len(ARRAYS))})
    theirs, their_directory = index_of(other.getvalue())
    foreign = other.getvalue()[theirs.offset : their_directory.directory_offset]
    mixed = bytearray(data[: index.offset] + foreign + data[directory.directory_offset :])
    end = mixed.rfind(b"PK\5\6")
    mixed[end + 16 : end + 20] = (index.offset + len(foreign)).to_bytes(4, "little")
    assert index_of(mixed)[0] is None
    assert [info.shape for info in infos_of(mixed)] == [a.shape for a in ARRAYS.values()]


def test_the_index_of_a_repeated_name(tmp_path):
    """If two members have the same name, their own headers are read, also by an append."""
    path = tmp_path / "a.npz"
    npzkit.save(path, {"a": np.arange(3), "b": np.eye(2)})
    data = path.read_bytes().replace(b"b.npy", b"a.npy")
    begin = data.index(b"PK\1\2")
    raw = bytearray(data[begin : data.index(b"PK\5\6")])
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
    """Return an archive whose index fits its directory and tells lies."""
    index, directory = index_of(data)
    source = open_source(bytes(data))
    raw = source.read_at(directory.directory_offset, directory.size)
    places = [at for at in range(len(raw)) if raw.startswith(b"PK\1\2", at)]
    records = [raw[a:b] for a, b in zip(places, [*places[1:], len(raw)], strict=True)]
    heads = [index.heads[number] for number in index.numbers]
    rows = zip(heads, index.extra_sizes.tolist(), index.has_seek_index.tolist(), strict=True)
    notes = Notes()
    for name, note in zip(directory.entries, rows, strict=True):
        notes.enter(name, *change(note))
    listed = dict(zip(directory.entries, records, strict=True))
    forged = notes.format(listed, raw, index.offset, directory.footer.intent_offset, b"")
    assert len(forged) == directory.directory_offset - index.offset
    return data[: index.offset] + forged + data[directory.directory_offset :]


SWAPS = {
    "dtype": (b"'<f8'", b"'<i8'"),
    "shape": (b"(3, 4)", b"(4, 3)"),
    "order": (b"False, 'shape': (3, 4), ", b"True,  'shape': (3, 4), "),
}


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
    index, directory = index_of(data)
    start = index.offset + 30 + len(INDEX_NAME)
    body = data[start : directory.directory_offset]
    row = len(body) - 20 - 4 - 6 * len(ARRAYS)
    body[row] = len(index.heads) + over
    data[index.offset : directory.directory_offset] = format_hidden(
        INDEX_NAME.encode(), bytes(body)
    )
    assert index_of(data)[0] is None
    written.write_bytes(data)
    with npzkit.NpzWriter(written, "a") as w:
        w["more"] = np.arange(3)
    assert index_of(written.read_bytes())[0].numbers[0] == 0
    check_same_infos(written)


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
    _, directory = index_of(data)
    damaged = tmp_path / "damaged.npz"
    damaged.write_bytes(data[: directory.directory_offset])
    output = tmp_path / "repaired.npz"
    npzkit.repair(damaged, output)
    with npzkit.open(output) as npz:
        assert set(npz) == set(ARRAYS)
        assert np.array_equal(npz["large"], ARRAYS["large"])


def test_other_programs_do_not_notice(written, tmp_path):
    """Neither np.load, zipfile, sozipfile, unzip, 7z nor jar shows a member of the index's name."""
    sozipfile = pytest.importorskip("sozipfile.sozipfile")
    names = [key + ".npy" for key in ARRAYS]
    assert np.load(written).files == list(ARRAYS)
    for module in (zipfile, sozipfile):
        with module.ZipFile(written) as archive:
            assert archive.namelist() == names
            assert archive.testzip() is None
    for command in (["unzip", "-l"], ["7z", "l"], ["jar", "tf"]):
        if shutil.which(command[0]) is not None:
            found = subprocess.run(
                [*command, str(written)], capture_output=True, text=True, timeout=60, check=True
            )
            assert "npzkit.index" not in found.stdout
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
    monkeypatch.setattr("npzkit.reading.indexed_headers._VERY_MANY_COUNT", 5000)
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
