"""Details of an archive and its members, without reading arrays."""

from __future__ import annotations

import io
import zipfile

import npzkit
import numpy as np
import pytest
from forge import npy
from npzkit.errors import NotMappableError, format_dtype

from tables import each_row


@pytest.mark.usefixtures("either_walk")
def test_an_archive_tells_where_its_parts_lie(tmp_path):
    """Sizes and offsets are correct, removed arrays are dead space, and bytes after the end are torn."""
    path = tmp_path / "a.npz"
    npzkit.save(path, {"x": np.zeros(10_000), "y": np.zeros(5000)}, metadata={"step": 1})
    with npzkit.open(path) as npz:
        whole = npz.archive_info()
    assert (whole.path, whole.size, whole.member_count) == (str(path), path.stat().st_size, 2)
    assert (whole.start_offset, whole.end_offset) == (0, whole.size)
    assert (whole.dead_size, whole.torn_size, whole.comment) == (0, 0, b'{"step":1}')
    assert path.read_bytes()[whole.directory_offset :].startswith(b"PK\x01\x02")
    with npzkit.NpzWriter(path, mode="a") as w:
        del w["y"]
    with open(path, "ab") as file:
        file.write(b"torn")
    with pytest.warns(npzkit.errors.TornArchiveWarning), npzkit.open(path) as npz:
        cut = npz.archive_info()
    assert cut.member_count == 1
    assert 40_000 < cut.dead_size < 41_000
    assert cut.torn_size == 4


@pytest.mark.usefixtures("either_walk")
def test_an_archive_tells_how_much_its_members_take(tmp_path):
    """The sizes of all members are added up, compressed and uncompressed."""
    path = tmp_path / "a.npz"
    npzkit.save(path, {"x": np.zeros(10_000), "y": np.ones(5000)}, compression="deflated")
    with npzkit.open(path) as npz:
        whole, entries = npz.archive_info(), npz.zip.infolist()
    assert whole.compressed_size == sum(entry.compress_size for entry in entries)
    assert whole.uncompressed_size == sum(entry.file_size for entry in entries) > 120_000


def test_the_totals_of_many_members_need_no_entries(tmp_path, monkeypatch):
    """A million members are added up in columns: no record is made of each."""
    path = tmp_path / "a.npz"
    npzkit.save(path, {str(number): np.zeros(2) for number in range(100)})
    monkeypatch.setattr("npzkit.zip.entry_columns.Columns.entry", None)
    with npzkit.open(path) as npz:
        assert npz.archive_info().uncompressed_size == 100 * (128 + 16)


@pytest.mark.usefixtures("either_walk")
def test_an_archive_behind_other_data(tmp_path):
    """The start of the archive is reported, and bytes before it are not dead space."""
    path = tmp_path / "a.npz"
    npzkit.save(path, {"x": np.arange(3)})
    path.write_bytes(b"front" + path.read_bytes())
    with open(path, "rb") as file:
        file.seek(5)
        info = npzkit.open(file).archive_info()
    assert (info.start_offset, info.dead_size) == (5, 0)


def test_why_a_member_cannot_be_mapped(tmp_path, fixtures):
    """info gives the same reason as memmap."""
    path = tmp_path / "a.npz"
    npzkit.save(path, {"x": np.arange(3)}, compression="deflated")
    for file, key, reason in (
        (path, "x", "it is deflated"),
        (fixtures / "numpy_object.npz", "objects", "it contains Python objects"),
        (fixtures / "zipfile_names.npz", "readme.txt", "it is not an array"),
        (fixtures / "7zip_lzma.npz", "x", "it is lzma"),
    ):
        with npzkit.open(file) as npz:
            assert npz.info(key).why_not_mappable == reason
            with pytest.raises(NotMappableError, match=reason):
                npz.memmap(key)
    with npzkit.open(fixtures / "numpy_savez.npz") as npz:
        assert npz.info("x").why_not_mappable is None


def test_a_long_dtype_is_cut_to_forty_characters():
    """A table shows 40 characters of a dtype at most, and all of one that has as many."""
    for count in range(1, 60):
        dtype = np.dtype([("x" * count, "u1")])
        text = str(dtype)
        shown = format_dtype(dtype)
        assert shown == text or (len(shown) == 40 and len(text) > 40 and shown.endswith("..."))


CHUNK, HEADER = 1 << 18, 128
SLOW, BETTER = "everything before a part is read first", "; npzkit.repack adds a seek index"
ARRAYS = {
    "stored": (100_000, zipfile.ZIP_STORED, True, "alignment", "cheap to read"),
    "empty": (0, zipfile.ZIP_STORED, True, None, "cheap to read"),
    "small": (40_000, zipfile.ZIP_DEFLATED, True, None, "cheap to read"),
    "one chunk": (CHUNK - HEADER, zipfile.ZIP_DEFLATED, True, None, "cheap to read"),
    "two chunks": (CHUNK + 1, zipfile.ZIP_DEFLATED, False, "a seek index", SLOW + BETTER),
    "large": (1 << 20, zipfile.ZIP_DEFLATED, False, "a seek index", SLOW + BETTER),
    "small bzip2": (40_000, zipfile.ZIP_BZIP2, True, None, "cheap to read"),
    "large bzip2": (1 << 20, zipfile.ZIP_BZIP2, False, None, SLOW),
    "large LZMA": (1 << 20, zipfile.ZIP_LZMA, False, None, SLOW),
}
"""Bytes and method; whether parts are cheap, what `repack` adds, and both in words."""


@pytest.mark.slow
@each_row("name", ARRAYS)
def test_cheap_parts_and_what_repack_adds(name):
    """`repack` adds what is said, and then nothing more; other methods are left as they are."""
    size, method, is_cheap, added, text = ARRAYS[name]
    old, new = io.BytesIO(), io.BytesIO()
    with zipfile.ZipFile(old, "w", method) as archive:
        archive.writestr(f"{name}.npy", npy(np.arange(size, dtype="u1")))
    npzkit.repack(old, new)
    with npzkit.open(old) as npz:
        before = npz.info(name)
    with npzkit.open(new) as npz:
        after = npz.info(name)
    assert (before.has_cheap_parts, before.repack_adds, before.parts_text()) == (
        is_cheap, added, text
    )  # fmt: skip
    assert after.repack_adds is None
    assert (after.seekable, after.aligned) == (
        before.seekable or added == "a seek index",
        method == zipfile.ZIP_STORED,
    )
    assert after.has_cheap_parts == (is_cheap or added == "a seek index")


def test_parts_of_what_is_no_plain_array(tmp_path):
    """Python objects and other members have no parts; sharded arrays are taken to have cheap ones."""
    stream = io.BytesIO()
    np.savez_compressed(stream, o=np.array([{}] * 300_000))
    with zipfile.ZipFile(stream, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("page.html", b"<p>" * 200_000)
    with npzkit.open(stream) as npz:
        for info in map(npz.info, npz):
            assert (info.has_cheap_parts, info.repack_adds, info.parts_text()) == (
                None, None, "not read"
            )  # fmt: skip
    with npzkit.ShardedWriter(tmp_path / "many", attempt="a1", compression="deflated") as writer:
        writer.add("x", np.zeros(500_000))
    writer.commit()
    with npzkit.open(tmp_path / "many") as npz:
        info = npz.info("x")
    assert (info.seekable, info.has_cheap_parts, info.repack_adds) == (False, True, None)
