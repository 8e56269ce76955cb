"""repair restores a damaged directory: exactly, if the members' own headers are sound."""

from __future__ import annotations

import io
import warnings
import zipfile

import npzkit
import numpy as np
import pytest
from commits import SLOT_SIZE, last_slot, unfinished
from damage import folder_in_memory
from deep import extent
from npzkit.errors import TornArchiveWarning, ZipFormatError


@pytest.fixture
def tmp_path(tmp_path):
    """A folder in memory: each state is synced."""
    with folder_in_memory(tmp_path) as place:
        yield place


try:
    from ml_dtypes import bfloat16
except ImportError:
    bfloat16 = np.float16
ARRAYS = {
    "a": np.arange(6.0),
    "sub/bö": np.arange(3, dtype=">i4"),
    "half": np.arange(5).astype(bfloat16),
    "table": np.zeros(3, [("id", "<i4"), ("x", "<f8")]),
}
META = {"step": 7, "note": "x" * 30}


def saved(arrays=ARRAYS, *, commits=1, metadata=META):
    """Return an archive whose arrays have attributes, written in several commits."""
    stream = io.BytesIO()
    keys = list(arrays)
    for number in range(commits):
        with npzkit.NpzWriter(stream, "a" if number else "w", metadata=metadata) as w:
            for key in keys[number::commits]:
                w.add(key, arrays[key], attrs={"unit": f"kelvin of {key}"})
    return stream.getvalue()


def contents(file):
    """Return all that an archive says: keys, dtypes, attributes, values, and its metadata."""
    with npzkit.open(file, strict=True) as npz:
        found = {
            key: (str(array.dtype), array.tolist(), dict(npz.info(key).attrs))
            for key, array in npz.load_all().items()
        }
        return list(found.items()), dict(npz.metadata)


def directory_of(data):
    """Return the bytes of the last directory."""
    with npzkit.open(data) as npz:
        return npz._archive.directory.data


def check_restored(path, damaged, expected, *, uncertain=()):
    """Repair to a copy and in place: nothing may differ from the sound archive."""
    output = path.parent / "copy.npz"
    path.write_bytes(damaged)
    for report in (npzkit.repair(path, output, overwrite=True), npzkit.repair(path)):
        assert not report.lost
        assert report.uncertain == uncertain
    assert contents(output) == expected
    assert contents(path) == expected


@pytest.mark.slow
@pytest.mark.parametrize("change", ["flip", "zero"])
@pytest.mark.parametrize("commits", [1, 2])
def test_any_byte_of_a_directory(tmp_path, commits, change):
    """A flipped bit, or a zero, in any byte of the directory costs no key, unit or dtype.

    An array whose two CRC-32s disagree is uncertain.
    """
    data = saved(commits=commits)
    directory, expected = directory_of(data), contents(data)
    begin = data.rindex(directory)
    key_at = {begin + directory.index(key.encode()) - 46: key for key, _ in expected[0]}
    for place in range(begin, begin + len(directory), extent(23, 1)):
        damaged = bytearray(data)
        damaged[place] = damaged[place] ^ 1 << place % 8 if change == "flip" else 0
        is_other = damaged[place] != data[place]
        keys = (key_at[at] for at in range(place - 19, place - 15) if at in key_at and is_other)
        check_restored(tmp_path / "a.npz", bytes(damaged), expected, uncertain=tuple(keys))
        assert directory_of(tmp_path / "a.npz") == directory


MANY = {f"layer{number}/w": np.arange(number % 5 + 1.0) for number in range(200)}


@pytest.mark.slow
@pytest.mark.parametrize("size", [512, 4096])
@pytest.mark.parametrize("commits", [1, 3])
def test_any_sector_of_a_directory(tmp_path, commits, size):
    """Zeros in the place of a sector, over several entries, cost nothing; nor does a cut end."""
    data = saved(MANY, commits=commits, metadata=None)
    directory, expected = directory_of(data), contents(data)
    begin = data.rindex(directory)
    end = begin + len(directory)
    stride = size * extent(29 if size == 512 else 7, 1)
    for start in range(begin // size * size, end, stride):
        first, last = max(start, begin), min(start + size, end)
        damaged = data[:first] + bytes(last - first) + data[last:]
        check_restored(tmp_path / "a.npz", damaged, expected)
        keys = tuple(key for key, _ in expected[0])
        check_restored(tmp_path / "a.npz", data[:first], expected, uncertain=keys)


@pytest.mark.slow
def test_several_damaged_entries_side_by_side(tmp_path):
    """Entries without signatures are told by the offsets that they still have, among removed ones."""
    path = tmp_path / "a.npz"
    npzkit.save(path, MANY)
    with npzkit.NpzWriter(path, "a", auto_repack=False) as w:
        for key in list(MANY)[50:60]:
            del w[key]
    data = path.read_bytes()
    expected, begin = contents(data), data.rindex(directory_of(data))
    damaged = bytearray(data)
    for key in list(MANY)[100:105]:
        damaged[data.index(key.encode(), begin) - 46] ^= 1
    check_restored(path, bytes(damaged), expected)


@pytest.mark.slow
def test_removed_arrays_do_not_come_back(tmp_path):
    """Arrays that an earlier commit removed or replaced are not taken for entries that are zeros."""
    path = tmp_path / "a.npz"
    path.write_bytes(saved(MANY, metadata=None))
    keys = list(MANY)
    with npzkit.NpzWriter(path, "a", auto_repack=False) as w:
        for key in keys[10:40]:
            del w[key]
        for key in keys[50:60]:
            w.add(key, -MANY[key], attrs={"unit": "m"}, overwrite=True)
        w.attrs(keys[100])["unit"] = "cm"
    with npzkit.NpzWriter(path, "a", auto_repack=False) as w:
        w["new"] = np.arange(3)
    data = path.read_bytes()
    directory, expected = directory_of(data), contents(data)
    begin = data.rindex(directory)
    for start in range(begin, begin + len(directory), 512 * extent(11, 1)):
        size = min(512, begin + len(directory) - start)
        check_restored(path, data[:start] + bytes(size) + data[start + size :], expected)


def test_entries_of_other_programs_are_restored(tmp_path):
    """Times and attributes of files that zipfile wrote are those of before, whatever is flipped."""
    path = tmp_path / "a.npz"
    np.savez(path, x=np.arange(3), y=np.arange(4))
    with zipfile.ZipFile(path, "a") as written:
        written.writestr(zipfile.ZipInfo("notes.txt", (2024, 5, 6, 7, 8, 10)), "text")
    with npzkit.NpzWriter(path, "a") as w:
        w["z"] = np.arange(5)
    data = path.read_bytes()
    directory = directory_of(data)
    begin = data.rindex(directory)
    for place in range(0, len(directory), extent(17, 1)):
        path.write_bytes(
            data[: begin + place] + bytes([directory[place] ^ 1]) + data[begin + place + 1 :]
        )
        report = npzkit.repair(path)
        assert set(report.kept) == {"x", "y", "z", "notes.txt"}
        with npzkit.open(path, strict=True) as npz:
            assert npz["z"].tolist() == [0, 1, 2, 3, 4]
        assert directory_of(path) == directory


def test_flips_in_several_entries(tmp_path):
    """Dates and versions, which no member repeats, are restored in several entries at once."""
    path = tmp_path / "a.npz"
    path.write_bytes(saved(commits=2))
    with npzkit.NpzWriter(path, "a") as w:
        w.attrs("half")["unit"] = "cm"
    data = path.read_bytes()
    directory, expected = directory_of(data), contents(data)
    begin = data.rindex(directory)
    starts = [begin + directory.index(key.encode()) - 46 for key, _ in expected[0]]
    for place in (4, 12, 36, 38, 41):
        damaged = bytearray(data)
        for start in starts:
            damaged[start + place] ^= 1
        check_restored(path, bytes(damaged), expected)
        assert directory_of(path) == directory


def test_flushed_arrays_keep_their_crc_32s(tmp_path):
    """The directory before has those of before a flush, and the checksum leaves them out."""
    path = tmp_path / "a.npz"
    path.write_bytes(saved(commits=2))
    with npzkit.open(path, mmap_mode="r+") as npz:
        mapped = npz["a"]
        mapped[:] = 9
        mapped.flush()
        del mapped
    data = path.read_bytes()
    directory, expected = directory_of(data), contents(data)
    begin = data.rindex(directory)
    for place in (4, 12, 36, 41):
        for start in (begin, begin + directory.rindex(b"PK\1\2")):
            damaged = bytearray(data)
            damaged[start + place] ^= 1
            check_restored(path, bytes(damaged), expected)
            assert directory_of(path) == directory


def test_a_member_that_another_program_added_is_kept(tmp_path):
    """An older index does not prove an older state: zipfile wrote over its directory."""
    path, output = tmp_path / "a.npz", tmp_path / "b.npz"
    npzkit.save(path, {"a": np.arange(3), "b": np.arange(4)})
    with zipfile.ZipFile(path, "a") as written, written.open("c.npy", "w") as member:
        np.save(member, np.arange(5))
    path.write_bytes(path.read_bytes()[:-30])
    for report in (npzkit.repair(path, output, overwrite=True), npzkit.repair(path)):
        assert report.kept == report.uncertain == ("a", "b", "c")
        with npzkit.open(report.output, strict=True) as npz:
            assert {key: len(npz[key]) for key in npz} == {"a": 3, "b": 4, "c": 5}


# -- attributes and metadata -----------------------------------------------------------------


@pytest.mark.slow
def test_a_certain_directory_outweighs_a_local_header(tmp_path):
    """A bit that flipped in the attributes, name or size of a local header is undone in a copy."""
    path, output = tmp_path / "a.npz", tmp_path / "b.npz"
    data = saved()
    expected = contents(data)
    with npzkit.open(data) as npz:
        begins = [npz._archive.entries[f"{key}.npy"].header_offset for key in npz]
    for begin in begins:
        for place in range(begin, data.index(b"\x93NUMPY", begin), extent(11, 1)):
            damaged = bytearray(data)
            damaged[place] ^= 1 << place % 8
            path.write_bytes(damaged)
            report = npzkit.repair(path, output, overwrite=True)
            assert contents(output) == expected, (place, report)


@pytest.mark.parametrize("commits", [1, 2])
def test_any_size_of_a_comment(tmp_path, commits):
    """Metadata is the one that fits its checksum, whatever its end record says of its size."""
    data = saved(commits=commits)
    expected = contents(data)
    place = data.rindex(b"PK\5\6") + 20
    for size in (0, 5, 200, 60_000):
        check_restored(
            tmp_path / "a.npz",
            data[:place] + size.to_bytes(2, "little") + data[place + 2 :],
            expected,
        )


@pytest.mark.remedy("npzkit.repair(path, output) saves the arrays without it.")
@pytest.mark.parametrize("metadata", [META, {"note": "x" * 70_000}], ids=["short", "long"])
def test_damaged_metadata_is_reported_as_lost(tmp_path, metadata):
    """A bit that flipped in the metadata costs the metadata, no array, and is reported."""
    data = saved(metadata=metadata)
    arrays, _ = contents(data)
    place = data.rindex(b"xxx")
    damaged = data[:place] + b"y" + data[place + 1 :]
    path, output = tmp_path / "a.npz", tmp_path / "b.npz"
    path.write_bytes(damaged)
    with npzkit.open(path) as npz, pytest.raises(ZipFormatError, match="metadata is damaged"):
        npz.metadata
    for report in (npzkit.repair(path, output, overwrite=True), npzkit.repair(path)):
        assert [lost.key for lost in report.lost] == ["npzkit.metadata"]
        assert list(report.kept) == list(ARRAYS)
    assert contents(path) == (arrays, {})
    assert contents(output) == (arrays, {"npzkit.lost": ["npzkit.metadata"]})
    assert not npzkit.repair(path).lost


@pytest.mark.parametrize("metadata", [META, {"note": "x" * 70_000}], ids=["short", "long"])
def test_metadata_of_the_commit_before_is_the_same(tmp_path, metadata):
    """Damaged metadata is restored if an older end record has the same, or the index its place."""
    data = saved(commits=2, metadata=metadata)
    place = data.rindex(b"PK\5\6") + 30
    damaged = bytearray(data)
    damaged[place] ^= 1
    check_restored(tmp_path / "a.npz", bytes(damaged), contents(data))


# -- what the last commit lacks -----------------------------------------------------------------


def unmarked(data):
    """Return an archive whose last append is complete but for its mark."""
    slot = last_slot(data)
    return data[:slot] + bytes(SLOT_SIZE) + data[slot + SLOT_SIZE :]


def test_the_last_commit_is_completed(tmp_path):
    """A missing mark is written in its place, and nothing else changes."""
    data = saved(commits=2)
    path = tmp_path / "a.npz"
    path.write_bytes(unmarked(data))
    assert path.read_bytes() != data
    found = npzkit.verify(path)
    assert found.ok
    (row,) = [row for row in found.rows if "commit" in row.what]
    assert row.severity == "note"
    report = npzkit.repair(path)
    assert report.is_completed
    assert "the last commit was completed" in str(report)
    assert path.read_bytes() == data
    assert not npzkit.repair(path).is_completed
    assert not [row for row in npzkit.verify(path).rows if "last commit" in row.what]


def test_what_follows_a_commit_without_a_mark_is_cut_off(tmp_path):
    """An unfinished append behind a commit that lacks its mark is cut off, and the commit stays."""
    path = tmp_path / "a.npz"
    data = saved(commits=2)
    path.write_bytes(data)
    with npzkit.NpzWriter(path, "a") as w:
        w["new"] = np.arange(3)
    tail = unfinished(path.read_bytes(), path.stat().st_size - 60)[len(data) :]
    path.write_bytes(unmarked(data) + tail)
    with pytest.warns(TornArchiveWarning), npzkit.open(path) as npz:
        assert list(npz) == ["a", "half", "sub/bö", "table"]
    report = npzkit.repair(path)
    assert (report.is_completed, report.cut_size) == (True, len(tail))
    assert path.read_bytes() == data


def test_a_damaged_index_is_reported(tmp_path):
    """verify reports any byte that flipped in the array index, though its arrays are still sound."""
    data = saved(commits=2)
    path = tmp_path / "a.npz"
    begin = data.rindex(b".npzkit") - 46
    end = data.rindex(directory_of(data))
    for place in range(begin, end, extent(17, 1)):
        damaged = bytearray(data)
        damaged[place] ^= 1 << place % 8
        path.write_bytes(damaged)
        try:
            found = npzkit.verify(path)
        except npzkit.NpzkitError:
            raise AssertionError(place) from None
        assert not found.ok, place
    assert not [row for row in npzkit.verify(data).rows if "index" in row.what]


@pytest.mark.slow
def test_an_older_state_is_never_left_of_a_complete_commit(tmp_path):
    """If all that follows the mark of a complete append is lost, repair keeps what is sound of it."""
    data = saved(commits=2)
    path, output = tmp_path / "a.npz", tmp_path / "b.npz"
    with npzkit.open(data) as npz:
        begin = npz.info("sub/bö").data_offset + npz.info("sub/bö").compressed_size
    for size in range(begin, len(data), extent(97, 11)):
        path.write_bytes(data[:size])
        with pytest.raises(ZipFormatError, match="repair"), warnings.catch_warnings():
            npzkit.open(path)
        npzkit.repair(path, output, overwrite=True)
        npzkit.repair(path)
        for repaired in (path, output):
            with npzkit.open(repaired) as npz:
                assert npz["sub/bö"].tolist() == [0, 1, 2]
