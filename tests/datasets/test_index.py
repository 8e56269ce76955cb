"""The index of a sharded archive, from strangers."""

from __future__ import annotations

import json
import tracemalloc

import npzkit
import numpy as np
import pytest
from npzkit.datasets import index_format
from npzkit.datasets.index import ArrayRow, PartRow, ShardRow
from npzkit.datasets.index_format import format_index, parse_index
from npzkit.errors import (
    IndexFormatError,
    LimitExceededError,
    NpzkitError,
    UnsafeNameError,
    UnsupportedError,
)
from sharded import WHOLE, index_of, write_run
from systems import needs_symlinks


def set_in(index, path, value):
    *outer, last = path
    for name in outer:
        index = index[name]
    index[last] = value


@pytest.fixture
def index(folder):
    return index_of(folder)


BAD = [
    # The document.
    (["format"], "other", "this is not the index"),
    (["version"], 2, "a version that this npzkit does not know"),
    (["version"], True, "a version that this npzkit does not know"),
    (["more"], 1, "the fields of 'index'"),
    (["arrays", "more"], [], "the fields of 'arrays'"),
    (["shards"], [], "the fields of 'shards'"),
    (["metadata"], [], "in place of an object"),
    (["attempt"], "../x", "attempt must be"),
    (["attempt"], 7, "attempt must be"),
    # Columns.
    (["shards", "size"], [1], "wrong length"),
    (["shards", "size", 0], -1, "out of range"),
    (["shards", "size", 0], 2**63, "out of range"),
    (["shards", "size", 0], True, "must have integers"),
    (["shards", "size", 0], 100.0, "must have integers"),
    (["shards", "size", 0], {"npzkit.float": "NaN"}, "must have integers"),
    (["metadata"], {"npzkit.float": "NaN"}, "in place of an object"),
    (["arrays", "attrs"], {"0": {"npzkit.float": "NaN"}}, "in place of an object"),
    (["shards", "size", 0], float("nan"), "not JSON: NaN is not a number"),
    (["shards", "crc32", 0], 2**32, "out of range"),
    (["shards", "name", 0], None, "must be strings"),
    (["arrays", "key", 0], "layer/0", "a key occurs twice"),
    (["arrays", "key", 0], "../w", "has a '.' or '..' part"),
    (["arrays", "dtype", 0], 9, "out of range"),
    (["arrays", "ndim", 0], 65, "out of range"),
    (["arrays", "ndim", 0], 1, "wrong length"),
    (["arrays", "parts", 0], 3, "wrong length"),
    (["arrays", "parts", 0], 2**62, "wrong length"),
    (["arrays", "fortran"], [7], "out of range"),
    (["arrays", "attrs"], {"7": {}}, "a row that is not there"),
    (["arrays", "attrs"], {"-1": {}}, "a row that is not there"),
    (["arrays", "attrs"], {"0": []}, "in place of an object"),
    (["arrays", "attrs"], {"0": {}, "00": {}}, "the same row twice"),
    (["parts", "shard", 0], 2, "out of range"),
    (["parts", "key"], {"0": "/etc"}, "absolute path"),
    (["parts", "key"], {"0": 1}, "must be strings"),
    # Dtypes.
    (["dtypes", 0], ["|O", None], "Python objects"),
    (["dtypes", 0], ["nothing", None], "not valid"),
    (["dtypes", 0], ["<f4"], "a descr and a name"),
    (["dtypes", 0], [[["x"]], None], "a field of a dtype"),
    (["dtypes", 0], [{}, None], "not valid"),
    # Shapes.
    (["arrays", "shape", 0], 2**62, "too large"),
    (["arrays", "shape", 0], 8, "leave a gap"),
    (["arrays", "shape", 0], 0, "has no parts"),
    (["arrays", "shape", 2], 4000, "fewer bytes in its shard"),
    (["parts", "offset", 0], 1, "gap|overlap|reaches out"),
    (["parts", "offset", 0], 2**63 - 1, "reaches out"),
    (["parts", "shape", 0], 4, "overlap|reaches out"),
    (["parts", "shape", 0], 0, "is empty"),
    (["parts", "size", 0], 2**40, "larger than its file"),
    (["parts", "size", 0], 10, "fewer bytes in its shard"),
    (["parts", "shard"], [0, 0, 0, 0, 0, 0], "taken for two parts"),
]  # fmt: skip


@pytest.mark.parametrize(("path", "value", "message"), BAD, ids=str)
def test_a_wrong_field_is_refused(index, path, value, message):
    """Each wrong field is an error that says what is wrong, before a shard is opened."""
    set_in(index, path, value)
    with pytest.raises(NpzkitError, match=message):
        parse_index(json.dumps(index).encode())


@pytest.mark.parametrize(
    "name",
    [
        "/etc/a.npz", "../a.npz", "a/../../b.npz", "sub/a.npz", "C:a.npz", "C:\\a.npz", "a\\b.npz",
        "\\\\host\\share\\a.npz", "http://host/a.npz", "s3://b/a.npz", "a\0.npz", "a.npz\n", ".npz",
        "..npz", "nul.npz", "COM1.x.npz", "index.json", "a.npz/", "a", "", "-a.npz", "a b.npz",
        "a.npz::$DATA", "ä.npz", "x" * 300 + ".npz",
    ],
)  # fmt: skip
def test_paths_never_leave_the_folder(index, name):
    """Names that are more than a plain file in the folder are refused, on every system."""
    index["shards"]["name"][0] = name
    with pytest.raises(UnsafeNameError):
        parse_index(json.dumps(index).encode())


def test_names_that_differ_in_case_alone_are_refused(index):
    """Two names that are one file on some systems are refused."""
    index["shards"]["name"] = ["a.npz", "A.npz"]
    with pytest.raises(UnsafeNameError, match="differ in case"):
        parse_index(json.dumps(index).encode())


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
        (b"", "not JSON"),
        (b"[]", "not the index"),
        (b"\xff{}", "not JSON"),
        (b'{"format": "npzkit sharded archive", "format": 1}', "the same name twice"),
        (b"[" * 100_000, "not JSON"),
        (b'{"format": ' + b"9" * 10_000 + b"}", "not JSON"),
    ],
    ids=["empty", "list", "bytes", "twice", "deep", "digits"],
)
def test_what_is_not_an_index_is_refused(data, message):
    """Other JSON, and what is not JSON, is an error that says so."""
    with pytest.raises(IndexFormatError, match=message):
        parse_index(data)


def test_nesting_is_bounded(index):
    """Metadata, attributes and dtypes that are nested too deeply are refused."""
    deep = "[" * 600 + "]" * 600
    for name, value in (("metadata", f'{{"a": {deep}}}'), ("dtypes", f"[[{deep}, null]]")):
        data = json.dumps({**index, name: "HERE"}).replace('"HERE"', value)
        with pytest.raises(IndexFormatError, match="nested too deeply"):
            parse_index(data.encode())


def test_a_long_index_is_refused_before_it_is_read(folder, monkeypatch):
    """An index above the limit is not read into memory."""
    monkeypatch.setattr(index_format, "MAX_SIZE", 100)
    with pytest.raises(LimitExceededError, match="the index is too long") as caught:
        npzkit.open(folder)
    assert caught.value.path == str(folder / "index.json")


def test_an_index_that_would_be_too_long_is_not_committed(tmp_path, monkeypatch):
    """The commit of an index above the limit is an error, because no reader would take it."""
    monkeypatch.setattr(index_format, "MAX_SIZE", 100)
    with npzkit.ShardedWriter(tmp_path) as w:
        w.add("x", np.zeros(2))
        with pytest.raises(LimitExceededError, match="the index is too long"):
            w.commit()
    assert not (tmp_path / "index.json").exists()


def test_one_item_has_no_parts(folder, index):
    """An array without dimensions that claims two parts is refused: nothing could tile it."""
    arrays, parts = index["arrays"], index["parts"]
    number = arrays["key"].index("layer/1")
    start = sum(arrays["ndim"][:number])
    del arrays["shape"][start]
    arrays["ndim"][number], arrays["parts"][number] = 0, 2
    for name in ("shard", "size", "crc32", "method"):
        parts[name].append(parts[name][-1])
    (folder / "index.json").write_text(json.dumps(index))
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
    index["arrays"]["shape"], index["parts"]["shape"] = [rows], [1, rows - 1]
    index["shards"]["size"], index["parts"]["size"] = [2**50, 2**50], [2**40, 2**40]
    (tmp_path / "index.json").write_text(json.dumps(index))
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
    index["arrays"]["shape"][0] = rows
    index["parts"]["shape"] = [3, 4, 3, 2, rows - 3, 4, rows - 3, 2]
    index["shards"]["size"] = [2**50, 2**50]
    index["parts"]["size"] = [2**40 + at for at in range(6)]
    (folder / "index.json").write_text(json.dumps(index))
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
    index["dtypes"][0][0] = ">f4"
    (folder / "index.json").write_text(json.dumps(index))
    with npzkit.open(folder) as npz:
        for read in (lambda: npz["w"], lambda: npz.lazy("w")[0], npz.load_all):
            with pytest.raises(IndexFormatError, match="a part is not what the index says"):
                read()
    write_run(folder, attempt="a2")
    with npzkit.open(folder) as npz:
        assert npz["w"].tolist() == WHOLE.tolist()


@pytest.mark.remedy(
    'Open another folder: an index has the field "format": "npzkit sharded archive".'
)
def test_the_index_of_another_program(folder, tmp_path):
    """The error says by what npzkit's own are known, and a folder with one is opened."""
    (tmp_path / "index.json").write_text('{"title": "mine"}')
    with pytest.raises(IndexFormatError, match="not the index of a sharded archive"):
        npzkit.open(tmp_path)
    (other,) = (path.parent for path in tmp_path.glob("*/index.json"))
    assert index_of(other)["format"] == "npzkit sharded archive"
    with npzkit.open(other) as npz:
        assert npz["w"].tolist() == WHOLE.tolist()


@pytest.mark.remedy('Write the archive again. If you edited the index, remove its item "crc32".')
@pytest.mark.parametrize("way", ["write", "remove"])
def test_an_index_that_was_edited(folder, index, way):
    """Its checksum differs; without it, or written again, the archive is opened."""
    path = folder / "index.json"
    path.write_bytes(path.read_bytes().replace(b'{"step":7}', b'{"step":8}'))
    with pytest.raises(IndexFormatError, match="its CRC-32 differs"):
        npzkit.open(folder)
    if way == "write":
        write_run(folder, attempt="a2")
    else:
        edited = json.loads(path.read_bytes())
        del edited["crc32"]
        path.write_text(json.dumps(edited))
    with npzkit.open(folder) as npz:
        assert npz.metadata == {"step": 7 if way == "write" else 8}
        assert npz["w"].tolist() == WHOLE.tolist()


def test_a_large_index_is_compact_and_parsed_by_columns():
    """5,000 arrays and 10,000 parts take less than 100 bytes each, and all of them are kept."""
    shards = [ShardRow(f"shard-a.{at:08x}-00000.npz", 1 << 40, at) for at in range(10)]
    rows = [
        ArrayRow(
            f"model.layers.{at}.weight", (8, 4), "<f4", None, False, {},
            tuple(
                PartRow(2 * at % 10 + half, f"model.layers.{at}.weight", (4 * half, 0), (4, 4), 128, at, 0)
                for half in range(2)
            ),
        )
        for at in range(5_000)
    ]  # fmt: skip
    data = format_index("a", {}, shards, rows)
    assert len(data) < 100 * 10_000
    index = parse_index(data)
    assert (len(index.keys), sum(index.nbytes)) == (5_000, 5_000 * 128)
    assert list(index.parts(777)) == list(rows[777].parts)


@pytest.mark.remedy("Install a newer npzkit.")
@pytest.mark.parametrize("version", [2, 2**70])
def test_the_index_of_a_newer_npzkit(folder, index, version, monkeypatch):
    """An archive with a higher version is an error that says what to do, not damage."""
    fields = {**index, "version": version, "more": {"of": "what is new"}}
    (folder / "index.json").write_text(json.dumps(fields))
    with pytest.raises(UnsupportedError, match="Install a newer npzkit") as caught:
        npzkit.open(folder)
    assert (caught.value.found, caught.value.expected) == (version, 1)
    assert caught.value.path == str(folder)
    assert not caught.value.is_damage
    # What a newer one knows.
    monkeypatch.setattr(index_format, "VERSION", version)
    monkeypatch.setattr(index_format, "_FIELDS", index_format._FIELDS | {"more"})
    assert npzkit.open(folder)["w"].tolist() == WHOLE.tolist()


def test_the_format_is_documented():
    """The docstring of the format names each of its fields."""
    for names in (index_format._FIELDS, index_format._ARRAYS, index_format._PARTS):
        for name in names:
            assert f'"{name}"' in index_format.__doc__
