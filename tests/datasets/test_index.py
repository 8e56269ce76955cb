"""The index of a sharded archive, from strangers."""

from __future__ import annotations

import tracemalloc

import npzkit
import numpy as np
import pytest
from npzkit.datasets import index_format
from npzkit.datasets.index import ArrayRow, PartRow
from npzkit.datasets.index_format import format_index, parse_index
from npzkit.datasets.paths import find_archives
from npzkit.datasets.shard_names import ShardRecord
from npzkit.datasets.shardedfile import ShardedFile
from npzkit.errors import (
    ChecksumError,
    FormatError,
    IndexFormatError,
    LimitExceededError,
    NpzkitError,
    UnsafeNameError,
    UnsupportedError,
)
from sharded import TABLES, WHOLE, index_of, write_index, write_run
from systems import needs_symlinks


def set_in(index, path, value):
    *outer, last = path
    for name in outer:
        index = index[name]
    index[last] = value


@pytest.fixture
def index(folder):
    return index_of(folder)


OWN = ["metadata", "npzkit.shards"]
BAD = [
    # The metadata.
    (OWN, "other", "not the index of a sharded archive"),
    ([*OWN, "version"], 2, "a version that this npzkit does not know"),
    ([*OWN, "version"], True, "a version that this npzkit does not know"),
    ([*OWN, "attempt"], "../x", "attempt must be"),
    ([*OWN, "attempt"], 7, "attempt must be"),
    # Columns.
    (["shards", "size", 0], 2**63, "out of range"),
    (["shards", "crc32", 0], 2**32, "out of range"),
    (["arrays", "key", 0], "layer/0", "a key occurs twice"),
    (["arrays", "key", 0], "../w", "has a '.' or '..' part"),
    (["arrays", "key", 0], "a\0b", "wrong length"),
    (["arrays", "dtype", 0], 2, "out of range"),
    (["arrays", "fortran", 0], 2, "out of range"),
    (["arrays", "ndim", 0], 65, "out of range"),
    (["arrays", "ndim", 0], 1, "wrong length"),
    (["arrays", "parts", 0], 3, "wrong length"),
    (["arrays", "parts", 0], 2**62, "wrong length"),
    (["parts", "shard", 0], 2, "out of range"),
    (["parts", "crc32", 0], 2**32, "out of range"),
    (["parts", "method", 0], 2**16, "out of range"),
    (["parts", "key", 0], "/etc", "absolute path"),
    (["boxes"], [], "wrong length"),
    (["dtypes", 0], np.dtype([("x", "O")]), "pickle"),
    # Shapes.
    (["shapes", 0], 2**62, "too large"),
    (["shapes", 0], 8, "leave gaps"),
    (["shapes", 0], 0, "has no parts"),
    (["shapes", 2], 4000, "fewer bytes in its shard"),
    (["boxes", 0], 1, "gap|overlap|reaches out"),
    (["boxes", 0], 2**63 - 1, "reaches out"),
    (["boxes", 2], 4, "overlap|reaches out"),
    (["boxes", 2], 0, "is empty"),
    (["parts", "size", 0], 2**40, "larger than its file"),
    (["parts", "size", 0], 10, "fewer bytes in its shard"),
    (["parts", "shard"], [0, 0, 0, 0, 0, 0], "taken for two parts"),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("path", "value", "message"), BAD, ids=str)
def test_a_wrong_value_is_refused(folder, index, path, value, message):
    """Each wrong value is an error that says what is wrong, before a shard is opened."""
    if path[0] == "dtypes":
        with npzkit.NpzWriter(folder / "index.npz", "a", allow_pickle=True) as w:
            w.add("dtypes/0", np.zeros(0, value), overwrite=True)
    else:
        set_in(index, path, value)
        write_index(folder, index)
    with pytest.raises(NpzkitError, match=message) as caught:
        npzkit.open(folder)
    assert str(folder) in str(caught.value)
    assert caught.value.is_damage or type(caught.value) is UnsupportedError


@pytest.mark.slow
@pytest.mark.parametrize("name", [*TABLES, "shapes", "boxes", "strings", "dtypes/0"])
@pytest.mark.parametrize("change", ["missing", "signed", "axes", "longer", "bytes"])
def test_an_array_of_another_form_is_refused(folder, name, change):
    """An index lacks no array, and has none of another dtype, shape or length, or besides."""
    with npzkit.NpzFile(folder / "index.npz") as npz:
        arrays, metadata = npz.load_all(), npz.metadata
    array = arrays[name]
    arrays[name] = {
        "signed": array.astype("i8"), "axes": array[None],
        "longer": np.concatenate([array, array], axis=-1), "bytes": array.astype("S3"),
    }.get(change)  # fmt: skip
    if name == "dtypes/0" or change == "missing":
        arrays["besides"] = arrays.pop(name)
    arrays = {key: array for key, array in arrays.items() if array is not None}
    with npzkit.NpzWriter(folder / "index.npz", metadata=metadata) as w:
        for key, array in arrays.items():
            w[key] = array
    with pytest.raises(IndexFormatError, match=r"another form|wrong length|out of range"):
        npzkit.open(folder)


def test_more_than_an_index_has_is_refused(folder, index):
    """Neither an array of another name nor a string without an end is passed over."""
    path = folder / "index.npz"
    for name, value in (("besides", [1]), ("strings", b"no end"), ("dtypes/2", [1])):
        write_index(folder, index)
        with npzkit.NpzWriter(path, "a") as w:
            if name == "strings":
                with npzkit.NpzFile(path) as npz:
                    value = np.append(npz[name], np.frombuffer(value, np.uint8))
            w.add(name, np.array(value, np.uint8), overwrite=True)
        with pytest.raises(IndexFormatError, match=r"another form|wrong length"):
            npzkit.open(folder)


def test_the_error_names_the_array(folder, index):
    """Parts that do not tile their array are an error with its key."""
    index["shapes"][0] = 8
    write_index(folder, index)
    with pytest.raises(IndexFormatError, match="leave gaps") as caught:
        npzkit.open(folder)
    assert caught.value.key == "w"


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "/etc/a.npz", "../a.npz", "a/../../b.npz", "sub/a.npz", "C:a.npz", "C:\\a.npz", "a\\b.npz",
        "\\\\host\\share\\a.npz", "http://host/a.npz", "s3://b/a.npz", "a.npz\n", ".npz",
        "..npz", "nul.npz", "COM1.x.npz", "index.npz", "a.npz/", "a", "", "-a.npz", "a b.npz",
        "a.npz::$DATA", "ä.npz", "x" * 300 + ".npz",
    ],
)  # fmt: skip
def test_paths_never_leave_the_folder(folder, index, name):
    """Names that are more than a plain file in the folder are refused, on every system."""
    index["shards"]["name"][0] = name
    write_index(folder, index)
    with pytest.raises(UnsafeNameError):
        npzkit.open(folder)


def test_names_that_differ_in_case_alone_are_refused(folder, index):
    """Two names that are one file on some systems are refused."""
    index["shards"]["name"] = ["a.npz", "A.npz"]
    write_index(folder, index)
    with pytest.raises(UnsafeNameError, match="differ in case"):
        npzkit.open(folder)


@needs_symlinks
@pytest.mark.remedy("Put the file itself into the folder.")
def test_links_that_lead_out_are_refused(folder, tmp_path):
    """A shard that is a link to a file outside is not opened; within the folder it is."""
    path = min(folder.glob("shard-*.npz"))
    inside = folder / "kept.bin"
    path.rename(inside)
    path.symlink_to(inside)
    with npzkit.open(folder) as npz:
        npz["w"]
    inside.rename(tmp_path / "kept.bin")
    path.unlink()
    path.symlink_to(tmp_path / "kept.bin")
    with (
        npzkit.open(folder) as npz,
        pytest.raises(UnsafeNameError, match="leads out of the folder"),
    ):
        npz["w"]
    path.unlink()
    (tmp_path / "kept.bin").rename(path)
    with npzkit.open(folder) as npz:
        npz["w"]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "the file is empty"),
        (b"[]", "not a zip archive"),
        (b"\xff" * 1000, "not a zip archive"),
    ],
    ids=["empty", "list", "bytes"],
)
def test_what_is_not_an_archive_is_refused(folder, data, message):
    """An index that is no archive is an error that says so."""
    (folder / "index.npz").write_bytes(data)
    with pytest.raises(FormatError, match=message) as caught:
        npzkit.open(folder)
    assert caught.value.path == str(folder / "index.npz")


@pytest.mark.slow
def test_each_damaged_byte_is_found(folder):
    """With any byte changed, the index is refused, or says the same as before."""
    path = folder / "index.npz"
    data = path.read_bytes()
    with npzkit.open(folder) as npz:
        infos = [npz.info(key) for key in npz]
    for at in range(0, len(data), 7):
        path.write_bytes(data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :])
        try:
            npz = npzkit.open(folder)
        except (FormatError, ChecksumError):
            continue
        assert [npz.info(key) for key in npz] == infos
        assert npz.metadata == {"step": 7}
    for size in range(0, len(data), 50):
        path.write_bytes(data[:size])
        with pytest.raises(FormatError):
            npzkit.open(folder)


@pytest.mark.slow
def test_claims_of_a_hostile_index_take_no_memory(folder):
    """An index that would take more memory than its limit is refused before it is read."""
    with npzkit.NpzFile(folder / "index.npz") as npz:
        arrays, metadata = npz.load_all(), npz.metadata
    arrays["shapes"] = np.zeros(1 << 27, np.uint8)
    with npzkit.NpzWriter(folder / "index.npz", metadata=metadata, compression="deflated") as w:
        for key, array in arrays.items():
            w[key] = array
    arrays.clear()
    tracemalloc.start()
    with pytest.raises(LimitExceededError, match="the index would take too much memory") as caught:
        npzkit.open(folder)
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()
    assert not caught.value.is_damage


@pytest.mark.remedy("Pass limits=npzkit.Limits(metadata_size=...) if the file is trusted.")
def test_the_limit_of_an_index_can_be_changed(folder):
    """A lower limit refuses what the default accepts, by its size and by its strings."""
    with npzkit.NpzFile(folder / "index.npz") as npz:
        size = npz.archive_info().uncompressed_size
    for limit in (2_000, 8 * size + 100):
        with pytest.raises(LimitExceededError, match=r"index would.*Limits\(metadata_size"):
            npzkit.open(folder, limits=npzkit.Limits(metadata_size=limit))
    for limit in (8 * size + 5_000, None):
        with npzkit.open(folder, limits=npzkit.Limits(metadata_size=limit, member_count=3)) as npz:
            assert npz["w"].tolist() == WHOLE.tolist()


def test_one_item_has_no_parts(folder, index):
    """An array without dimensions that claims two parts is refused: nothing could tile it."""
    arrays, parts = index["arrays"], index["parts"]
    number = arrays["key"].index("layer/1")
    del index["shapes"][sum(arrays["ndim"][:number])]
    arrays["ndim"][number], arrays["parts"][number] = 0, 2
    for column in parts.values():
        column.append(column[-1])
    write_index(folder, index)
    with pytest.raises(IndexFormatError, match="an array of one item has several parts"):
        npzkit.open(folder)


def test_fields_of_claimed_arrays_take_no_memory(tmp_path):
    """A field of a terabyte of records that no shard has is refused without memory for it."""
    with npzkit.ShardedWriter(tmp_path, shard_size=1) as w:
        for start in range(2):
            w.add("r", np.zeros(1, [("a", "i4"), ("b", "f8")]), (start,), (2,))
        w.commit()
    index = index_of(tmp_path)
    rows = 2**36
    index["shapes"], index["boxes"] = [rows], [0, 1, 1, rows - 1]
    index["shards"]["size"], index["parts"]["size"] = [2**50, 2**50], [2**40, 2**40]
    write_index(tmp_path, index)
    tracemalloc.start()
    with npzkit.open(tmp_path) as npz:
        for read in (lambda: npz.lazy("r")["b"], lambda: npz.lazy("r")[["a"]]):
            with pytest.raises(NpzkitError, match="was replaced since the index"):
                read()
    assert tracemalloc.get_traced_memory()[1] < 1 << 24
    tracemalloc.stop()


def test_claims_take_no_memory(folder, index):
    """An array of a terabyte that no shard has is refused without memory for it."""
    rows = 2**30
    index["shapes"][0] = rows
    for part in (2, 3):
        index["boxes"][4 * part + 2] = rows - 3
    index["shards"]["size"] = [2**50, 2**50]
    index["parts"]["size"] = [2**40 + at for at in range(6)]
    write_index(folder, index)
    tracemalloc.start()
    with npzkit.open(folder) as npz:
        for read in (lambda: npz["w"], npz.load_all, lambda: npz.lazy("w")[:]):
            with pytest.raises(NpzkitError, match=r"was replaced since|too large for"):
                read()
    assert tracemalloc.get_traced_memory()[1] < 1 << 24
    tracemalloc.stop()


@pytest.mark.remedy("Write the archive again.")
def test_an_index_that_lies_about_a_part_is_refused(folder, index):
    """Parts whose headers are not what the index says are errors, and never other data."""
    index["dtypes"][0] = np.dtype(">f4")
    write_index(folder, index)
    with npzkit.open(folder) as npz:
        for read in (lambda: npz["w"], lambda: npz.lazy("w")[0], npz.load_all):
            with pytest.raises(IndexFormatError, match="a part is not what the index says"):
                read()
    write_run(folder, attempt="a2")
    with npzkit.open(folder) as npz:
        assert npz["w"].tolist() == WHOLE.tolist()


@pytest.mark.remedy("Open the file by its path, or open another folder.")
def test_an_archive_with_the_name_of_an_index(tmp_path):
    """A user's own index.npz is an archive like any, and its folder is no sharded archive."""
    path = tmp_path / "index.npz"
    npzkit.save(path, {"x": np.arange(3)}, metadata={"title": "mine"})
    for name in (tmp_path, f"{tmp_path}/"):
        with pytest.raises(IndexFormatError, match="not the index of a sharded archive"):
            npzkit.open(name)
    for name in (path, str(path), path.as_uri()):
        with npzkit.open(name) as npz:
            assert type(npz) is npzkit.NpzFile
            assert (npz["x"].tolist(), npz.metadata) == ([0, 1, 2], {"title": "mine"})
        assert npzkit.verify(name).ok
        npzkit.convert(name, tmp_path / "copy.npz", overwrite=True)
    (tmp_path / "copy.npz").unlink()
    write_run(tmp_path / "run")
    with npzkit.open(tmp_path / "run") as npz:
        assert npz["w"].tolist() == WHOLE.tolist()


def test_an_archive_with_the_name_of_an_index_in_a_store():
    """A user's own index.npz in a store is opened by its URL, and has no shards beside it."""
    url = "memory://mine/index.npz"
    npzkit.save(url, {"x": np.arange(3)})
    with npzkit.open(url) as npz:
        assert npz["x"].tolist() == [0, 1, 2]
    assert npzkit.verify(url).ok
    with pytest.raises(FileExistsError, match=r"index\.npz"):
        npzkit.ShardedWriter("memory://mine")


def test_an_index_is_an_archive(folder):
    """Other functions and np.load read it as any archive, and it can be changed as one."""
    path = folder / "index.npz"
    with np.load(path) as npz:
        assert npz["shapes"].tolist() == [7, 6, 2, 3]
    with npzkit.NpzWriter(path, "a") as w:
        w.metadata["step"] = 8
    with npzkit.open(folder) as npz:
        assert (npz.metadata, npz["w"].tolist()) == ({"step": 8}, WHOLE.tolist())


def test_dtypes_of_every_kind(tmp_path):
    """The index keeps structures, dtypes without bytes and byte orders as the shards have them."""
    nested = np.dtype([("a", [("b", ">i2", (2,)), ("c", "S0")]), (("title", "d"), "M8[3D]")])
    arrays = {
        "nested": np.zeros(2, nested), "big": np.zeros(2, ">f8"), "none": np.ndarray(3, "S0"),
        "padded": np.zeros(2, np.dtype([("a", "i1"), ("b", "f8")], align=True)),
        "empty": np.zeros((0, 3), "U5"),
    }  # fmt: skip
    with npzkit.ShardedWriter(tmp_path) as w:
        w.update(arrays)
        w.commit()
    with npzkit.open(tmp_path) as npz:
        for key, array in npz.load_all().items():
            assert (array.dtype, array.shape) == (npz.info(key).dtype, arrays[key].shape)
        assert npz.info("big").dtype == ">f8"
        assert npz.verify().ok


@pytest.mark.slow
def test_a_large_index_is_compact_and_parsed_by_columns():
    """5,000 arrays and 10,000 parts take less than 60 bytes each, and all of them are kept."""
    shards = [ShardRecord(f"shard-a.{at:08x}-00000.npz", 1 << 40, at) for at in range(10)]
    rows = [
        ArrayRow(
            f"model.layers.{at}.weight", (8, 4), np.dtype("<f4"), None, False, {},
            tuple(
                PartRow(2 * at % 10 + half, f"model.layers.{at}.weight", (4 * half, 0), (4, 4), 128, at, 0)
                for half in range(2)
            ),
        )
        for at in range(5_000)
    ]  # fmt: skip
    data = format_index("a", {}, shards, rows)
    assert len(data) < 60 * 10_000
    index, _ = parse_index(data)
    assert (len(index.keys), sum(index.nbytes)) == (5_000, 5_000 * 128)
    assert list(index.parts(777)) == list(rows[777].parts)


@pytest.mark.remedy("Install a newer npzkit.")
def test_the_index_of_a_newer_npzkit(folder, index, monkeypatch):
    """An archive with a higher version is an error that says what to do, not damage."""
    index["metadata"]["npzkit.shards"] |= {"version": 2, "more": {"of": "what is new"}}
    write_index(folder, index)
    with pytest.raises(UnsupportedError, match="Install a newer npzkit") as caught:
        npzkit.open(folder)
    assert (caught.value.found, caught.value.expected) == (2, 1)
    assert caught.value.path == str(folder / "index.npz")
    assert not caught.value.is_damage
    # What a newer one knows.
    monkeypatch.setattr(index_format, "VERSION", 2)
    assert npzkit.open(folder)["w"].tolist() == WHOLE.tolist()


def test_the_format_is_documented(folder):
    """The docstring of the format names each array of an index."""
    with npzkit.NpzFile(folder / "index.npz") as npz:
        for name in npz:
            assert f"``{name}``" in index_format.__doc__


def test_an_archive_without_arrays(tmp_path):
    """A folder with an index and no shard is read, listed and replaced like others."""
    for step in (1, 2):
        npzkit.ShardedWriter(tmp_path, metadata={"step": step}).commit([])
        for path in (tmp_path, tmp_path / "index.npz", *find_archives(tmp_path)):
            with npzkit.open(path) as npz:
                assert (npz.files, npz.metadata, type(npz)) == ([], {"step": step}, ShardedFile)
            assert npzkit.verify(path).ok
