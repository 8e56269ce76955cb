"""repair: what it saves from a damaged archive, and what it never does."""

from __future__ import annotations

import errno
import gzip
import io
import itertools
import json
import os
import re
import struct
import subprocess
import sys
import tarfile
import textwrap
import threading
import warnings
import zipfile
import zlib

import npzkit
import npzkit.files.disk
import numpy as np
import pytest
from commits import unfinished, with_footer
from deep import extent
from forge import Member, archive, chunked, npy, with_chunks
from hypothesis import given
from hypothesis import strategies as st
from npzkit.errors import (
    AmbiguousArchiveError,
    ArchiveLockedError,
    NpyFormatError,
    UnsupportedError,
    ZipFormatError,
)
from npzkit.maintenance.findings import Lost, RepairReport
from systems import HAS_DEFLATE64, WRITE, needs_symlinks

from tables import each_row

RNG = np.random.default_rng(0)
TABLE = np.zeros(5, [("id", "<i4"), ("pos", "<f8", (3,)), ("tag", "S3")])
TABLE["id"] = range(5)
ARRAYS = {
    "weights": RNG.random((40, 30)),
    "counts": RNG.integers(0, 9, (50, 40)),
    "fortran": np.asfortranarray(RNG.random((6, 5))),
    "big_endian": np.arange(10, dtype=">i4"),
    "scalar": np.float64(2.5),
    "empty": np.zeros((0, 3)),
    "text": np.array(["a", "größe"]),
    "table": TABLE,
    "layer/größe": np.arange(7),
    "noise": np.frombuffer(RNG.bytes(20_000), "u1"),
    "zeros": np.zeros(30_000),
    "last": np.arange(100.0),
}
SEEKABLE = ("counts", "noise", "zeros")


def write(file, arrays=ARRAYS, **options):
    """Save arrays, some of them deflated and seekable, each with an attribute."""
    with npzkit.NpzWriter(file, metadata={"step": 7}, **options) as writer:
        for key, array in arrays.items():
            compression = "deflated" if key in SEEKABLE else "stored"
            writer.add(key, array, compression=compression, chunk_size=4096, attrs={"of": key})


def saved():
    stream = io.BytesIO()
    write(stream)
    return stream.getvalue()


GOOD = saved()
STEP = extent(9, 1)
"""One bit out of this many is flipped."""
DIRECTORY = GOOD.index(b"NPZX") + 4
FOREIGN_ONE = archive(Member("x.npy", npy(np.arange(9))))
"""An archive of another program, which has no array index."""
METADATA_KEY = "npzkit.metadata"
END = "the end of the file"


def boundaries():
    """Return the end of each member, by key."""
    with npzkit.open(GOOD) as npz:
        entries = [npz._archive.entry(key) for key in npz.files]
    return {entry.name.removesuffix(".npy"): entry.end_offset for entry in entries}


def same(found, expected):
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    assert np.array_equal(found, expected)


@pytest.fixture
def paths(tmp_path):
    """Return the path of a damaged archive and another path."""
    return tmp_path / "damaged.npz", tmp_path / "whole.npz"


def repair_bytes(paths, data, **options):
    """Repair bytes into another file, which must verify, and return report and arrays."""
    path, output = paths
    path.write_bytes(data)
    report = npzkit.repair(path, output, overwrite=True, **options)
    assert path.read_bytes() == data
    found = npzkit.verify(output)
    assert found.ok, found
    with warnings.catch_warnings(), npzkit.open(output, strict=True) as npz:
        arrays = npz.load_all()
        assert tuple(npz.files) == report.kept
    assert report.output == os.fspath(output)
    return report, arrays


def check_all(arrays, expected=ARRAYS):
    assert set(arrays) == set(expected)
    for key, array in arrays.items():
        same(array, expected[key])


# -- torn tails, in place ----------------------------------------------------------


@pytest.mark.parametrize("tail", [b"x", b"PK\x03\x04" + bytes(900), GOOD[:500], b"PK\5\6"])
def test_a_torn_tail_is_cut_off(paths, tail):
    """Bytes after the last commit are cut off, and nothing else changes."""
    path, _ = paths
    path.write_bytes(GOOD + tail)
    report = npzkit.repair(path)
    assert path.read_bytes() == GOOD
    assert report == (os.fspath(path), tuple(ARRAYS), (), len(tail), False, (), (), False, ())
    with npzkit.open(path, strict=True) as npz:
        check_all(npz.load_all())


@pytest.mark.parametrize("kind", ["sound", "damaged data", "read-only"])
def test_without_a_torn_tail_nothing_is_written(paths, kind):
    """A file without a torn end keeps its bytes and time, even if members are damaged."""
    path, _ = paths
    data = bytearray(GOOD)
    if kind == "damaged data":
        data[DIRECTORY // 2] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(10**18, 10**18))
    if kind == "read-only":
        path.chmod(0o444)
    report = npzkit.repair(path)
    assert report.cut_size == 0
    assert report.kept == tuple(ARRAYS)
    assert path.read_bytes() == data
    assert path.stat().st_mtime_ns == 10**18
    assert os.listdir(path.parent) == [path.name]


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"", ZipFormatError),
        (b"<html>" * 50, ZipFormatError),
        pytest.param(
            FOREIGN_ONE[:-40],
            ZipFormatError,
            marks=pytest.mark.remedy("Save what can be read: npzkit.repair(path, output"),
        ),
        (FOREIGN_ONE[:-18] + struct.pack("<HHHHLLH", 1, 1, 1, 1, 0, 0, 0), UnsupportedError),
        (archive(Member("a.npy", b""), comment=b"PK\5\6" + bytes(18)), AmbiguousArchiveError),
    ],
    ids=["empty", "page", "cut", "split", "two ends"],
)
def test_in_place_nothing_is_guessed(paths, data, error):
    """If no commit is found, the file stays, and the error recommends an output if there is a member."""
    path, output = paths
    path.write_bytes(data)
    with pytest.raises(error) as caught:
        npzkit.repair(path)
    assert caught.value.path == os.fspath(path)
    assert path.read_bytes() == data
    assert os.listdir(path.parent) == [path.name]
    if error is ZipFormatError and data:
        is_page = data.startswith(b"<html>")
        assert ("Save what can be read" in caught.value.remedy) == (not is_page)
        if not is_page:
            npzkit.repair(path, output, keep_partial="mask", overwrite=True)
            assert np.load(output)["x"].tolist() == list(range(9))


# -- where it is written -------------------------------------------------------------


@pytest.mark.remedy(
    "Write to another path. A damaged array is removed in place by "
    'NpzWriter(path, "a") and del writer[key].'
)
@needs_symlinks
def test_the_input_is_never_overwritten(paths):
    """Another output replaces what is there; the input is refused, by any name that it has."""
    path, output = paths
    report, _ = repair_bytes(paths, GOOD[:DIRECTORY])
    assert report.kept == tuple(ARRAYS)
    output.write_bytes(b"something else")
    npzkit.repair(path, output, overwrite=True)
    assert npzkit.verify(output).ok
    link, hard = path.parent / "link.npz", path.parent / "hard.npz"
    link.symlink_to(path)
    os.link(path, hard)
    for same in (path, path.parent / "." / path.name, link, hard):
        with pytest.raises(UnsupportedError, match=r"del writer\[key\]"):
            npzkit.repair(path, same, overwrite=True)
    assert path.read_bytes() == hard.read_bytes() == GOOD[:DIRECTORY]
    assert sorted(os.listdir(path.parent)) == sorted([path.name, output.name, link.name, hard.name])
    path.write_bytes(archive(Member("x.npy", npy(np.arange(9))), Member("y.npy", b"damaged")))
    with pytest.raises(UnsupportedError):
        npzkit.repair(path, path, overwrite=True)
    assert npzkit.repair(path, output, overwrite=True).kept == ("x",)
    with npzkit.NpzWriter(path, "a") as writer:
        del writer["y"]
    for sound in (path, output):
        assert npzkit.verify(sound).ok
        assert np.load(sound)["x"].tolist() == list(range(9))


def test_a_damaged_array_is_removed_in_place(paths):
    """What the refusal says: without the damaged array, the archive is sound."""
    path, _ = paths
    npzkit.save(path, {"x": np.eye(9), "y": np.arange(9)})
    path.write_bytes(path.read_bytes().replace(np.eye(9).tobytes(), bytes(648)))
    with npzkit.NpzWriter(path, "a") as writer:
        del writer["x"]
    assert npzkit.verify(path).ok
    with npzkit.open(path, strict=True) as npz:
        assert npz.files == ["y"]


def test_errors_of_the_system_pass_through(tmp_path):
    """A missing input, and an output in a missing folder, raise OSError."""
    with pytest.raises(FileNotFoundError):
        npzkit.repair(tmp_path / "none.npz")
    (tmp_path / "a.npz").write_bytes(GOOD)
    with pytest.raises(FileNotFoundError):
        npzkit.repair(tmp_path / "a.npz", tmp_path / "none" / "b.npz", overwrite=True)
    with pytest.raises((IsADirectoryError, PermissionError)):
        npzkit.repair(tmp_path / "a.npz", tmp_path, overwrite=True)
    assert (tmp_path / "a.npz").read_bytes() == GOOD


# -- a lost directory ----------------------------------------------------------------


@pytest.mark.slow
@each_row("key", ARRAYS)
def test_cut_at_a_members_end(paths, key):
    """Members before the cut are restored, with attributes, and without lists of chunks."""
    end = boundaries()[key]
    expected = dict(list(ARRAYS.items())[: list(ARRAYS).index(key) + 1])
    report, arrays = repair_bytes(paths, GOOD[:end])
    check_all(arrays, expected)
    assert report.is_rebuilt
    # The footer behind the last member tells what the list has, and that there was metadata.
    assert [lost.key for lost in report.lost] == [METADATA_KEY if key == "last" else END]
    assert key == "last" or (report.lost[0].where, f"after '{key}'" in report.lost[0].what) == (
        end,
        True,
    )
    with npzkit.open(paths[1]) as npz:
        for name in expected:
            assert npz.info(name).attrs == {"of": name}
            assert npz.info(name).seekable == (key == "last" or name not in SEEKABLE)
            assert npz.info(name).method == ("deflated" if name in SEEKABLE else "stored")
        assert dict(npz.metadata) == {"npzkit.lost": [METADATA_KEY if key == "last" else END]}


@pytest.mark.parametrize("kept", [{"y", "z"}, {"x", "y"}], ids=["start", "middle"])
def test_what_only_the_list_at_the_end_names_is_lost(paths, kept):
    """If bytes before the end are gone, members that it lists and the file lacks are reported."""
    data = archive(*(Member(f"{name}.npy", npy(np.arange(9))) for name in "xyz"))
    at = data.index(b"PK\3\4", 1)
    (lost,) = {"x", "y", "z"} - kept
    begin = 0 if lost == "x" else data.index(b"PK\3\4", at + 1)
    report, arrays = repair_bytes(paths, data[:begin] + data[begin + at - 20 :])
    assert arrays.keys() == {*report.kept} == kept
    assert [(row.key, row.what) for row in report.lost] == [(lost, "not found in the file")]


@pytest.mark.slow
def test_cut_within_the_next_header(paths):
    """A truncated local header is ignored, and members before it are restored."""
    first = Member("a.npy", npy(np.arange(3))).local_bytes()
    header = bytes(40) + Member("b.npy", b"").local_bytes()
    for size in range(70):
        report, arrays = repair_bytes(paths, first + header[:size])
        check_all(arrays, {"a": np.arange(3)})
        assert [lost.key for lost in report.lost] == [END]


def cut_ends():
    """Yield archives of "a" and "b" without their end, what is lost, and what is said of it."""
    arrays = {"a": np.ones(300), "b": np.zeros(300)}
    for save in (np.savez, lambda file, **arrays: npzkit.save(file, arrays, metadata={"step": 5})):
        save(stream := io.BytesIO(), **arrays)
        data, own = stream.getvalue(), save is not np.savez
        member = data.index(b"PK\3\4", 1)
        yield data[:member], {"b"}, [(END, "after 'a' is not known: arrays, metadata, and values")]
        yield data[: member + 20], {"b"}, [(END, "after 'a' is not known: arrays, metadata")]
        record = data.index(b"PK\1\2")
        told = [(END, "after 'b' is not known: metadata, and values without an array")]
        yield data[: record + 60], set(), told if own else []
        yield data[: record + 30], set(), told
    # The end record counts the entries, whatever is left of them and of the members.
    header = bytes(data[:member]) + bytes(400) + data[member + 400 :]
    record = data.index(b"NPZX") + 4
    gone = header[:record] + bytes(data.index(b"PK\5\6") - record) + header[data.index(b"PK\5\6") :]
    yield gone, {"b"}, [(END, "not found of the 2 members in its list: 1")]


@pytest.mark.parametrize("case", range(9))
def test_what_came_after_the_last_array_is_not_known(paths, case):
    """Without the end of the file nobody knows what else it had: that is a loss, never silence."""
    data, lost, told = list(cut_ends())[case]
    report, arrays = repair_bytes(paths, data)
    assert arrays.keys() == {"a", "b"} - lost
    found = [(row.key, row.what) for row in report.lost]
    assert len(found) == len(told)
    assert all(
        key == one and words in what for (key, what), (one, words) in zip(found, told, strict=True)
    )


@pytest.mark.parametrize("comment", [b"made by hand", b'{"step":5}'])
def test_bytes_before_an_archive_cost_no_comment(paths, comment):
    """The comment of the end record at the file's end is the newest, whoever wrote it."""
    data = b"HEADER " + archive(Member("x.npy", npy(np.eye(3))), comment=comment)
    report, arrays = repair_bytes(paths, data)
    check_all(arrays, {"x": np.eye(3)})
    assert report.lost == ()
    assert zipfile.ZipFile(paths[1]).comment == comment


def test_a_lost_commit_behind_a_whole_one(paths):
    """If all of a complete append but its first bytes is cut off, that is a loss, in place too."""
    path, _ = paths
    npzkit.save(path, {"x": np.arange(9, dtype="i8")})
    size = path.stat().st_size
    with npzkit.NpzWriter(path, "a", auto_repack=False) as writer:
        writer["y"] = np.arange(900, dtype="i8")
    data = path.read_bytes()[: size + 150]
    report, arrays = repair_bytes(paths, data)
    reports = report, npzkit.repair(path)
    assert [[row.key for row in one.lost] for one in reports] == [[END], [END]]
    assert arrays.keys() == {"x"}


def zeroed(start, end):
    return GOOD[:start] + bytes(end - start) + GOOD[end:]


DIRECTORIES = {
    "end record zeroed": zeroed(len(GOOD) - len(b'{"step":7}') - 22, len(GOOD)),
    "directory zeroed": zeroed(DIRECTORY, len(GOOD) - len(b'{"step":7}') - 22),
    "directory cut": GOOD[: DIRECTORY + 100],
    "first entry zeroed": zeroed(DIRECTORY, DIRECTORY + 46),
    "a signature flipped": GOOD[: DIRECTORY + 1] + b"Q" + GOOD[DIRECTORY + 2 :],
    "an offset damaged": GOOD[: DIRECTORY + 42] + b"\xff\xff" + GOOD[DIRECTORY + 44 :],
    "a name's size damaged": GOOD[: DIRECTORY + 28] + b"\xff" + GOOD[DIRECTORY + 29 :],
    "a CRC damaged": GOOD[: DIRECTORY + 16] + b"\xff" + GOOD[DIRECTORY + 17 :],
    "a size damaged": GOOD[: DIRECTORY + 24] + b"\xff" + GOOD[DIRECTORY + 25 :],
    "a method damaged": GOOD[: DIRECTORY + 10] + b"\x08" + GOOD[DIRECTORY + 11 :],
    "a flag damaged": GOOD[: DIRECTORY + 8] + b"\x09" + GOOD[DIRECTORY + 9 :],
    "a NUL in a name": GOOD[: DIRECTORY + 47] + b"\0" + GOOD[DIRECTORY + 48 :],
}


@pytest.mark.slow
@each_row("case", DIRECTORIES)
def test_a_damaged_directory(paths, case):
    """With any damage to the directory, all members are restored by their own headers."""
    report, arrays = repair_bytes(paths, DIRECTORIES[case])
    check_all(arrays)
    has_end = case not in ("end record zeroed", "directory cut")
    assert [lost.key for lost in report.lost] == ([] if has_end else [METADATA_KEY])
    # A commit may have followed what was cut off; the two CRC-32s of an array disagree.
    uncertain = {"directory cut": report.kept, "a CRC damaged": ("weights",)}
    assert report.uncertain == uncertain.get(case, ())
    with npzkit.open(paths[1]) as npz:
        assert all(npz.info(key).attrs == {"of": key} for key in npz)
        assert dict(npz.metadata) == ({"step": 7} if has_end else {"npzkit.lost": [METADATA_KEY]})


def test_what_is_saved_is_what_would_have_been_written(paths):
    """A directory that was overwritten with zeros is restored byte for byte."""
    repair_bytes(paths, DIRECTORIES["directory zeroed"])
    assert paths[1].read_bytes() == GOOD


class Pipe:
    """A stream that cannot seek."""

    def __init__(self, stream):
        self.write, self.flush = stream.write, stream.flush


def by_numpy(save):
    stream = io.BytesIO()
    save(stream, **ARRAYS)
    return stream.getvalue()


def by_zipfile(method, *, streamed=False, zip64=False):
    stream = io.BytesIO()
    with zipfile.ZipFile(Pipe(stream) if streamed else stream, "w", method) as written:
        for key, array in ARRAYS.items():
            with written.open(key + ".npy", "w", force_zip64=zip64) as member:
                member.write(npy(array))
    return stream.getvalue()


FOREIGN = {
    "np.savez": lambda: by_numpy(np.savez),
    "np.savez_compressed": lambda: by_numpy(np.savez_compressed),
    **{
        f"zipfile, method {method}{', streamed' * streamed}{', zip64' * zip64}": (
            lambda m=method, s=streamed, z=zip64: by_zipfile(m, streamed=s, zip64=z)
        )
        for method in (0, 8, 12, 14)
        for streamed in (False, True)
        for zip64 in (False, True)
        # Where nothing tells where such a stream ends, nothing finds it.
        if not (streamed and method in (12, 14))
    },
}


@pytest.mark.slow
@each_row("case", FOREIGN)
def test_other_programs_archives(paths, case):
    """Archives of NumPy and zipfile are restored without their directory, with descriptors or not."""
    data = FOREIGN[case]()
    report, arrays = repair_bytes(paths, data[: data.index(b"PK\x01\x02")])
    check_all(arrays)
    assert report.is_rebuilt
    assert [lost.key for lost in report.lost] == [END]


@pytest.mark.slow
def test_fixtures_without_their_directory(paths, fixtures):
    """Archives of other programs are restored, with any method."""
    for path in sorted(fixtures.glob("*.npz")):
        if path.name in ("infozip_encrypted.npz", "zipfile_zstandard.npz"):
            continue
        if "deflate64" in path.name and not HAS_DEFLATE64:
            continue
        data = path.read_bytes()
        with npzkit.open(data, allow_pickle=True) as npz:
            keys = npz.files
            has_objects = "object" in path.name or path.name.startswith("pickled_")
            expected = {} if has_objects else npz.load_all()
        path, output = paths
        path.write_bytes(data[: data.rindex(b"PK\x05\x06")])
        report = npzkit.repair(path, output, overwrite=True)
        assert report.is_rebuilt
        # Without a directory, a seek index of another program is a member like any.
        assert sorted(key for key in report.kept if not key.endswith(".sozip.idx")) == sorted(keys)
        with npzkit.open(output) as npz:
            assert all(np.array_equal(npz[key], array) for key, array in expected.items())


# -- damaged members -------------------------------------------------------------------


@pytest.mark.slow
@each_row("key", ["weights", "counts", "noise", "last"])
@each_row("is_lost", [False, True])
def test_damaged_members_are_left_out_and_named(paths, key, is_lost):
    """A member with damaged data is reported with the fault, and all others are kept."""
    with npzkit.open(GOOD) as npz:
        info = npz.info(key)
    data = bytearray(GOOD)
    data[info.data_offset + info.compressed_size // 2] ^= 4
    row = next(row for row in npzkit.verify(bytes(data)).rows if row.key == key)
    data = data[:DIRECTORY] if is_lost else data
    report, arrays = repair_bytes(paths, bytes(data))
    check_all(arrays, {name: array for name, array in ARRAYS.items() if name != key})
    lost = report.lost[0]
    assert [lost.key for lost in report.lost[1:]] == [METADATA_KEY] * is_lost
    assert (lost.key, lost.where) == (key, row.where)
    assert any(word in lost.what for word in ("CRC-32", "stream", "deflate"))
    assert report.is_rebuilt == is_lost


@pytest.mark.parametrize("is_cut", [False, True])
def test_data_as_it_is_needs_an_archive_that_opens(paths, is_cut):
    """Of an array whose values are damaged, the advice to read it all the same is one that works."""
    data = archive(Member("x.npy", npy(np.arange(99))), Member("y.npy", npy(np.arange(9))))
    hole = b"" if is_cut else b"1234"
    (lost,) = repair_bytes(paths, data[:300] + hole + data[304:])[0].lost
    assert lost.key == "x"
    assert lost.what.endswith("reads it as it is") != is_cut
    assert "nobody knows which values are wrong" in lost.what
    if not is_cut:
        with npzkit.open(paths[0]) as npz:
            assert npz.read("x", verify=False)[-1] == 98


@pytest.mark.parametrize(
    ("lost_size", "told"), [(30, "lost: npzkit.metadata"), (2000, f"lost: {END}")]
)
def test_what_a_tree_has_beside_arrays_is_named(paths, lost_size, told):
    """If the metadata is lost, or nobody knows of any, repair says what it has of nested data."""
    path, output = paths
    npzkit.save(path, {"model": {"w": np.arange(5000.0), "rate": 0.1}, "steps": [np.arange(3)]})
    os.truncate(path, path.stat().st_size - lost_size)
    lines = str(npzkit.repair(path, output, keep_partial="mask", overwrite=True)).splitlines()
    (line,) = [
        line for line in lines if "learning rates, tied keys, lists and integer keys" in line
    ]
    assert line.startswith(told)


def test_names_that_cannot_be_used_are_reported(paths):
    """A sound member whose name has a control character is kept with another name."""
    x = npy(np.arange(3))
    data = archive(Member("x.npy", x), Member("new\nline.npy", x), Member("y.npy", x))
    with pytest.raises(npzkit.errors.ZipFormatError, match=r"control character.*npzkit\.repair"):
        npzkit.open(data)["new\nline"]
    report, arrays = repair_bytes(paths, data)
    assert sorted(arrays) == ["new%0Aline", "x", "y"]
    (lost,) = report.lost
    assert (lost.key, lost.where) == ("new\nline", data.index(b"PK\x03\x04", 4))
    assert "control character" in lost.what
    assert "new\\nline" in str(report)


def test_members_that_cannot_be_read_are_left_out(paths):
    """Encrypted members and unknown methods are reported, and the rest is kept."""
    data = archive(
        Member("locked.npy", npy(np.eye(2)), central={"flags": 1}, local={"flags": 1}),
        Member("odd.npy", npy(np.eye(2)), central={"method": 97}, local={"method": 97}),
        Member("x.npy", npy(np.eye(3))),
    )
    report, arrays = repair_bytes(paths, data)
    check_all(arrays, {"x": np.eye(3)})
    assert [lost.key for lost in report.lost] == ["locked", "odd"]


@pytest.mark.parametrize(
    "comment", [b"", b'{"step":7}', b"{}", b"plain", b'{"npzkit.lost":["older"]}']
)
def test_a_copy_says_what_it_lacks(paths, comment):
    """The metadata of a copy list what was lost, now and before; a plain comment stays as it is."""
    x, bad = npy(np.eye(3)), {"crc": 1}
    members = Member("x.npy", x), Member("y.npy", x, central=bad, local=bad)
    report, _ = repair_bytes(paths, archive(*members, comment=comment))
    assert [lost.key for lost in report.lost] == ["y"]
    with npzkit.open(paths[1]) as npz:
        found = dict(npz.metadata)
    if comment in (b"plain", b"{}"):
        assert zipfile.ZipFile(paths[1]).comment == comment
    else:
        before = json.loads(comment or b"{}")
        assert found == before | {"npzkit.lost": [*before.get("npzkit.lost", []), "y"]}
        # Without a loss, a copy is as it was.
        assert npzkit.repair(paths[1], paths[0], overwrite=True).lost == ()
        with npzkit.open(paths[0]) as npz:
            assert dict(npz.metadata) == found


def test_a_long_list_of_what_is_lost_is_cut(paths):
    """Of many arrays that are lost, the metadata name a hundred."""
    npzkit.save(paths[0], {f"k{number}": np.arange(9) for number in range(150)})
    data = paths[0].read_bytes()
    report, _ = repair_bytes(
        paths, data[: data.index(b"k1.npy") - 30] + data[data.index(b"k149.npy") - 30 :]
    )
    assert len(report.lost) > 100
    with npzkit.open(paths[1]) as npz:
        assert npz.metadata["npzkit.lost"] == [lost.key for lost in report.lost[:100]]


@pytest.mark.parametrize("is_cut", [False, True])
def test_rows_of_a_npy_file_are_marked(tmp_path, is_cut):
    """The archive of a truncated .npy file says that rows are lost."""
    path, output = tmp_path / "a.npy", tmp_path / "b.npz"
    np.save(path, np.arange(100))
    os.truncate(path, path.stat().st_size - 80 * is_cut)
    npzkit.repair(path, output, keep_partial="mask")
    with npzkit.open(output) as npz:
        assert dict(npz.metadata) == ({"npzkit.lost": ["a"]} if is_cut else {})


@each_row("which", ["local", "central"])
@each_row("field", ["crc", "csize", "usize", "method", "flags"])
@each_row("method", [0, 8])
def test_two_headers_that_disagree(paths, which, field, method):
    """If entry and local header differ, the one that matches the data is used."""
    x = npy(np.eye(3))
    wrong = {"crc": 5, "csize": 5, "usize": 5, "method": 8 - method, "flags": 1}
    odd = Member("x.npy", x, method=method, **{which: {field: wrong[field]}})
    report, arrays = repair_bytes(paths, archive(odd, Member("y.npy", x)))
    check_all(arrays, {"x": np.eye(3), "y": np.eye(3)})
    assert not report.lost


@pytest.mark.slow
@pytest.mark.parametrize(
    "save", [np.savez, np.savez_compressed, npzkit.savez, npzkit.savez_compressed]
)
def test_any_bit_of_a_local_header(paths, save):
    """A flipped bit in a local header loses no array, because its data matches the directory."""
    stream = io.BytesIO()
    save(stream, x=np.arange(300.0), y=np.eye(3))
    data = stream.getvalue()
    for bit in range(STEP // 2, 8 * data.index(b"x.npy"), STEP):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        if bit < 32:
            # np.load asks for the first signature too.
            continue
        paths[0].write_bytes(damaged)
        report = npzkit.repair(*paths, overwrite=True)
        with npzkit.open(paths[1], strict=True) as npz:
            assert npz["x"].tolist() == list(range(300)), f"bit {bit}"
        assert (report.kept, report.lost) == (("x", "y"), ())


def test_a_member_without_bytes_is_not_made_of_one_that_has_some(paths):
    """A local header with zero sizes loses no member, because its data matches the directory."""
    zeros = {"csize": 0, "usize": 0, "crc": 0}
    data = archive(Member("note.txt", b"a note", local=zeros), Member("x.npy", npy(np.eye(3))))
    report, _ = repair_bytes(paths, data)
    assert report.kept == ("note.txt", "x")
    with npzkit.open(paths[1]) as npz:
        assert npz["note.txt"] == b"a note"
    # Where the data is damaged too nothing is right.
    report, _ = repair_bytes(paths, data.replace(b"a note", b"a nope"))
    assert report.kept == ("x",)
    assert [lost.key for lost in report.lost] == ["note.txt"]
    # And where the directory is lost nothing tells.
    report, _ = repair_bytes(paths, data[: data.index(b"PK\1\2")])
    assert report.kept == ("x",)


def test_a_local_header_with_another_name(paths):
    """If the data matches the directory, the member is saved with the name in the directory."""
    x = npy(np.eye(3))
    odd = Member("x.npy", x, local={"name": b"z.npy"})
    _, arrays = repair_bytes(paths, archive(odd, Member("y.npy", x)))
    check_all(arrays, {"x": np.eye(3), "y": np.eye(3)})


@pytest.mark.parametrize("is_lost", [False, True])
def test_damaged_attributes_cost_no_data(paths, is_lost):
    """An array whose attributes are damaged is kept without them, and this is reported."""
    payload = b"KeyValuePairs\1\5\0abc"
    extra = struct.pack("<HH", 0x564B, len(payload)) + payload
    data = archive(Member("x.npy", npy(np.eye(3)), extra=extra))
    report, arrays = repair_bytes(paths, data[: data.index(b"PK\1\2")] if is_lost else data)
    check_all(arrays, {"x": np.eye(3)})
    assert "attributes" in report.lost[0].what
    # A block that runs over its field makes the directory no one's.
    data = archive(Member("x.npy", npy(np.eye(3)), extra=extra[:-1]))
    report, arrays = repair_bytes(paths, data)
    check_all(arrays, {"x": np.eye(3)})
    assert "attributes" in report.lost[0].what


def test_two_names_of_a_member_cost_no_data(paths):
    """A member whose Unicode path differs from its name is kept with its name."""
    payload = b"\1" + struct.pack("<L", zlib.crc32(b"x.npy")) + b"z.npy"
    extra = struct.pack("<HH", 0x7075, len(payload)) + payload
    for damaged in (extra, extra[:-1]):
        data = archive(Member("x.npy", npy(np.eye(3)), extra=damaged))
        _, arrays = repair_bytes(paths, data)
        check_all(arrays, {"x": np.eye(3)})


def test_a_block_that_runs_over_behind_the_attributes(paths):
    """A member found by its own header keeps its data, and its lost attributes are reported."""
    pairs = b"KeyValuePairs\1\1\0a\1\0b"
    extra = struct.pack("<HH", 0x564B, len(pairs)) + pairs + b"\1\2\3\4"
    report, arrays = repair_bytes(paths, Member("x.npy", npy(np.eye(3)), extra=extra).local_bytes())
    check_all(arrays, {"x": np.eye(3)})
    assert "attributes" in report.lost[0].what


def test_rows_that_are_left_have_one_name(paths):
    """A wrong Unicode path does not become valid when rows are written with a UTF-8 name."""
    payload = b"\1" + struct.pack("<L", zlib.crc32("é.npy".encode())) + b"other.npy"
    extra = struct.pack("<HH", 0x7075, len(payload)) + payload
    rows = Member("é.npy".encode("cp437"), npy(np.arange(1e3)), extra=extra, local={"flags": 0})
    report, arrays = repair_bytes(paths, rows.local_bytes()[:-800], keep_partial="mask")
    assert report.kept == ("é",)
    check_all(arrays, {"é": np.arange(900.0)})


def test_rows_of_a_name_that_is_too_long_are_lost(paths):
    """A name that is too long in UTF-8 is reported, and the other members are kept."""
    whole = Member("x.npy", npy(np.eye(3))).local_bytes()
    name = b"\x82" * 65_531 + b".npy"
    rows = Member(name, npy(np.arange(1000)), local={"flags": 0}).local_bytes()
    report, arrays = repair_bytes(paths, whole + rows[:-800], keep_partial="mask")
    check_all(arrays, {"x": np.eye(3)})
    assert [lost.key[:3] for lost in report.lost] == ["ééé", END[:3]]


def test_what_looks_like_a_locator_ends_no_archive(paths):
    """An extra field that ends like a zip64 locator is kept, and misleads no reader."""
    extra = struct.pack("<HH", 0x9999, 20) + b"PK\x06\x07" + bytes(16)
    data = Member("x.npy", npy(np.eye(3)), extra=extra).local_bytes()
    _, arrays = repair_bytes(paths, data)
    check_all(arrays, {"x": np.eye(3)})


def test_extra_fields_that_run_over_cost_no_data(paths):
    """An extra block that exceeds its field is removed together with the attributes."""
    x = npy(np.eye(3))
    sizes = struct.pack("<HHQQ", 1, 16, len(x), len(x))
    pairs = b"KeyValuePairs\1\1\0a\1\0b"
    attributes = struct.pack("<HH", 0x564B, len(pairs)) + pairs
    for extra in (sizes + attributes[:-1], sizes + attributes + b"\1\2\3\4"):
        member = Member(
            "x.npy",
            x,
            extra=extra,
            local_extra=b"",
            central={"usize": 0xFFFFFFFF, "csize": 0xFFFFFFFF},
        )
        _, arrays = repair_bytes(paths, archive(member))
        check_all(arrays, {"x": np.eye(3)})


def test_a_seek_index_that_leads_elsewhere_is_left_out(paths):
    """The data of a member with a wrong index is kept, without the index."""
    data = npy(np.arange(60_000))
    raw, offsets = chunked(data, 1 << 15)
    ends = [offset + 1 for offset in offsets]
    sizes = [end - begin for begin, end in itertools.pairwise([0, *ends, len(raw)])]
    wrong = with_chunks("x.npy", data, 1 << 15, sizes=sizes)
    assert not npzkit.verify(wrong).ok
    report, arrays = repair_bytes(paths, wrong)
    check_all(arrays, {"x": np.arange(60_000)})
    assert "list of its chunks" in report.lost[0].what
    with npzkit.open(paths[1]) as npz:
        assert not npz.info("x").seekable


# -- archives in arrays ----------------------------------------------------------------


def nested():
    inner = io.BytesIO()
    npzkit.save(inner, {"x": np.zeros(3), "inner": np.ones(3)})
    nest = np.frombuffer(inner.getvalue(), "u1")
    stream = io.BytesIO()
    npzkit.save(stream, {"x": np.arange(5.0), "nest": nest, "z": np.arange(9)})
    return stream.getvalue(), nest


@pytest.mark.parametrize("damage", ["none", "data", "cut", "cut behind"])
def test_an_archive_in_an_array_is_no_member(paths, damage):
    """An archive inside an array, complete, damaged or truncated, is not taken for the outer one."""
    data, nest = nested()
    start = data.index(nest.tobytes())
    data = bytearray(data[: data.rindex(b"PK\3\4")])
    if damage == "data":
        data[start + len(nest) - 9] ^= 1
    elif damage == "cut":
        data = data[: start + len(nest) - 40]
    elif damage == "cut behind":
        data += b"PK\3\4"
    report, arrays = repair_bytes(paths, bytes(data))
    same(arrays["x"], np.arange(5.0))
    assert "inner" not in arrays
    assert ("nest" in arrays) == (damage in ("none", "cut behind"))
    if damage in ("data", "cut"):
        assert "nest" in [lost.key for lost in report.lost]


def test_a_neighbour_in_what_a_damaged_member_claims(paths):
    """A damaged size that covers later members does not lose them."""
    x, y, z = (npy(np.full(30, value)) for value in range(3))
    data = archive(
        Member("x.npy", x),
        Member("y.npy", y, local={"csize": 700, "usize": 700}),
        Member("z.npy", z),
    )
    report, arrays = repair_bytes(paths, data[: data.index(b"PK\1\2")])
    check_all(arrays, {"x": np.full(30, 0), "z": np.full(30, 2)})
    assert [lost.key for lost in report.lost] == ["y", END]
    # Claims beyond the end of the file leave what is there too.
    data = archive(
        Member("x.npy", x),
        Member("y.npy", y, local={"csize": 10**6, "usize": 10**6}),
        Member("z.npy", z),
    )
    report, arrays = repair_bytes(paths, data[: data.index(b"PK\1\2")])
    check_all(arrays, {"x": np.full(30, 0), "z": np.full(30, 2)})
    # One of two of a name lies there: the other one is kept, and this one named.
    data = archive(
        Member("x.npy", x),
        Member("y.npy", y, local={"csize": 10**6, "usize": 10**6}),
        Member("x.npy", z),
    )
    report, arrays = repair_bytes(paths, data[: data.index(b"PK\1\2")])
    check_all(arrays, {"x": np.full(30, 0)})
    assert [lost.key for lost in report.lost] == ["y", "x", END]


# -- replaced arrays, commits ------------------------------------------------------------


def test_of_two_of_a_name_the_later_one_counts(paths):
    """A replaced array is restored in its last state, at its position."""
    old, other, new = npy(np.zeros(3)), npy(np.ones(4)), npy(np.full(5, 7))
    data = archive(Member("a.npy", old), Member("b.npy", other), Member("a.npy", new))
    data = data[: data.index(b"PK\1\2")]
    report, arrays = repair_bytes(paths, data)
    check_all(arrays, {"a": np.full(5, 7), "b": np.ones(4)})
    assert report.kept == ("b", "a")
    assert [lost.key for lost in report.lost] == [END]
    # The last one damaged: what it replaced is not passed off as it.
    damaged = bytearray(data)
    damaged[-20] ^= 1
    report, arrays = repair_bytes(paths, bytes(damaged))
    assert report.kept == ("b",)
    assert [lost.key for lost in report.lost] == ["a", END]


@pytest.mark.parametrize("is_own", [False, True])
def test_of_joined_archives_the_first_ones_array_is_lost(paths, is_own):
    """Two archives one behind the other: what both have is kept once, and the other one named."""
    save = npzkit.save if is_own else lambda file, arrays: np.savez(file, **arrays)
    parts = []
    for arrays in {"x": np.zeros(3), "a": np.eye(2)}, {"x": np.ones(3), "b": np.eye(3)}:
        save(stream := io.BytesIO(), arrays)
        parts.append(stream.getvalue())
    report, arrays = repair_bytes(paths, b"".join(parts))
    check_all(arrays, {"x": np.ones(3), "a": np.eye(2), "b": np.eye(3)})
    assert [(lost.key, lost.where) for lost in report.lost] == [("x", 0)]
    assert "second one has an array of this name, which is kept" in report.lost[0].what


def test_a_member_whose_name_is_listed_again_is_lost(paths):
    """Of two entries with one name, the last one is kept; the other one is named."""
    data = archive(Member("a.npy", npy(np.zeros(3))), Member("a.npy", npy(np.ones(3))))
    report, arrays = repair_bytes(paths, data)
    check_all(arrays, {"a": np.ones(3)})
    assert "partly lost: a" in str(report)
    assert "2 entries have this name: only the last one is used" in report.lost[0].what


def test_commits_of_an_archive_without_any_end(paths):
    """An archive that was appended to and lost every directory is restored in its last state."""
    path, _ = paths
    npzkit.save(path, {"a": np.zeros(3), "b": np.ones(4)})
    with npzkit.NpzWriter(path, "a", auto_repack=False) as writer:
        writer.add("a", np.full(5, 7), overwrite=True)
    data = path.read_bytes().replace(b"PK\5\6", b"PK\0\0").replace(b"PK\1\2", b"PK\0\0")
    report, arrays = repair_bytes(paths, data)
    check_all(arrays, {"a": np.full(5, 7), "b": np.ones(4)})
    assert report.is_rebuilt


def torn(path):
    """An archive, and another member after its last commit."""
    npzkit.save(path, {"a": np.zeros(3), "b": np.ones(4)}, metadata={"step": 1})
    size = path.stat().st_size
    with npzkit.NpzWriter(path, "a", auto_repack=False) as writer:
        writer.add("a", np.full(5, 7), overwrite=True)
        writer["c"] = np.arange(9)
        writer["d"] = np.arange(9000)
    data = path.read_bytes()
    return unfinished(data, data.index(b"d.npy") + 400), size


def test_what_was_not_committed(paths):
    """Members after the last commit are no part of the archive: they are left out."""
    data, size = torn(paths[0])
    report, arrays = repair_bytes(paths, data)
    assert not report.is_rebuilt
    assert (report.cut_size, report.lost) == (len(data) - size, ())
    check_all(arrays, {"a": np.zeros(3), "b": np.ones(4)})
    with npzkit.open(paths[1]) as npz:
        assert dict(npz.metadata) == {"step": 1}


@pytest.mark.remedy("To save the arrays, see npzkit help append.")
def test_complete_arrays_of_an_unfinished_append_are_named(paths, remedies_met):
    """verify and repair name the arrays that a cut removes; a copy of the bytes from there saves them."""
    data, size = torn(paths[0])
    report, _ = repair_bytes(paths, data)
    assert report.uncommitted == ("a", "c")
    assert "after the last commit left out; complete arrays there: a, c" in str(report)
    row = npzkit.verify(paths[0]).rows[0]
    remedies_met.texts.append(row.remedy)
    assert row.what.endswith("; complete arrays there: a, c")
    # As the page append says.
    paths[1].write_bytes(data[row.where - 1 :])
    assert npzkit.repair(paths[1], paths[0], overwrite=True).kept == ("a", "c")
    with npzkit.open(paths[0]) as npz:
        check_all(npz.load_all(), {"a": np.full(5, 7), "c": np.arange(9)})
    paths[0].write_bytes(data)
    report = npzkit.repair(paths[0])
    assert report.uncommitted == ("a", "c")
    assert "after the last commit removed; complete arrays there: a, c" in str(report)
    assert "npzkit help append says how to save such arrays before" in str(report)
    assert paths[0].stat().st_size == size


# -- rows ----------------------------------------------------------------------------------


ROWS = {
    "1-D": np.arange(1000.0),
    "2-D": RNG.random((300, 20)),
    "3-D": RNG.integers(0, 99, (100, 5, 6)).astype("i2"),
    "structured": np.rec.fromarrays([np.arange(500), RNG.random(500)], names="i,x"),
    "big endian": np.arange(900, dtype=">u2"),
}


@pytest.mark.slow
@each_row("compression", ["stored", "deflated"])
@each_row("kind", ROWS)
def test_whole_rows_are_kept(paths, kind, compression):
    """keep_partial="mask" keeps the complete rows with the key and the attributes."""
    array = np.asarray(ROWS[kind]).view(np.ndarray)
    with npzkit.NpzWriter(paths[0]) as writer:
        writer.add("first", np.eye(2))
        writer.add("a", array, compression=compression, chunk_size=4096, attrs={"unit": "m"})
    data = paths[0].read_bytes()
    with npzkit.open(data) as npz:
        info = npz.info("a")
        start, size = (
            info.data_offset,
            info.nbytes if compression == "stored" else info.compressed_size,
        )
    seen = set()
    for share in (0.3, 0.6, 0.99):
        cut = data[: start + int(size * share)]
        report, arrays = repair_bytes(paths, cut, keep_partial="mask")
        count = len(arrays["a"])
        seen.add(count)
        assert 0 < count < len(array)
        same(arrays["a"], array[:count])
        if compression == "stored":
            row = array.nbytes // len(array)
            assert count == (len(cut) - start) // row
        assert report.kept == ("first", "a")
        assert f"{count:,} of {len(array):,} rows kept, unchecked" in report.lost[0].what
        with npzkit.open(paths[1]) as npz:
            assert npz.info("a").attrs == {"unit": "m", "partly_lost": report.lost[0].what}
            assert npz.info("a").method == compression
        report, arrays = repair_bytes(paths, cut)
        assert report.kept == ("first",)
        assert report.lost[0].what.endswith("keep_partial='mask') saves its complete rows")
        assert "truncated" in report.lost[0].what
    assert len(seen) > 1


def test_rows_with_damaged_attributes(paths):
    """Rows are kept without damaged attributes, and both are reported."""
    payload = b"KeyValuePairs\1\5\0abc"
    extra = struct.pack("<HH", 0x564B, len(payload)) + payload
    cut = Member("x.npy", npy(np.arange(100.0)), extra=extra).local_bytes()[:-80]
    report, arrays = repair_bytes(paths, cut, keep_partial="mask")
    check_all(arrays, {"x": np.arange(90.0)})
    assert ["attributes" in lost.what for lost in report.lost] == [True, False, False]
    assert "90 of 100 rows kept, unchecked; the other 10 are not in" in report.lost[1].what


@each_row("method", [0, 8])
@each_row("array", [
    np.asfortranarray(RNG.random((50, 60))), np.float64(2.5), np.array([{}, 1], dtype=object), np.zeros((0, 3)),
])  # fmt: skip
def test_what_has_no_rows_is_lost(paths, array, method):
    """Fortran order, scalars and pickles have no complete first rows to keep."""
    stream = io.BytesIO()
    np.lib.format.write_array(stream, np.asanyarray(array))
    member = Member("a.npy", stream.getvalue(), method=method)
    data = archive(Member("b.npy", npy(np.eye(2))), member)
    data = data[: data.rindex(member.raw) + len(member.raw) - 2]
    report, arrays = repair_bytes(paths, data, keep_partial="mask")
    check_all(arrays, {"b": np.eye(2)})
    assert [lost.key for lost in report.lost] == ["a", END]
    assert "truncated" in report.lost[0].what


@pytest.mark.parametrize("method", [0, 8])
def test_rows_of_a_stream(paths, method):
    """Rows are also kept for a member whose size would follow its data."""
    array = RNG.integers(0, 9, (500, 8))
    stream = io.BytesIO()
    with zipfile.ZipFile(Pipe(stream), "w", method) as written:
        written.writestr("a.npy", npy(array))
    data = stream.getvalue()
    _, arrays = repair_bytes(paths, data[: int(len(data) * 0.7)], keep_partial="mask")
    assert 100 < len(arrays["a"]) < 500
    same(arrays["a"], array[: len(arrays["a"])])


def test_rows_of_zip64_members(paths):
    """Rows are also kept for np.savez's members, whose sizes are in a zip64 field."""
    array = RNG.random((100, 8))
    stream = io.BytesIO()
    np.savez(stream, a=array)
    _, arrays = repair_bytes(paths, stream.getvalue()[:3000], keep_partial="mask")
    same(arrays["a"], array[: len(arrays["a"])])
    assert len(arrays["a"]) > 30


# -- hostile files -----------------------------------------------------------------------


def local(name=b"", method=0, flags=0, size=0, usize=None, crc=0):
    usize = size if usize is None else usize
    fields = (20, flags, method, 0, 33, crc, size, usize, len(name), 0)
    return struct.pack("<4sHHHHHLLLHH", b"PK\3\4", *fields) + name


def chain(count, tail=b"", **forged):
    """Headers nested in each other's deflated data, in uncompressed blocks."""
    out = []
    unit = 36 + 5
    for i in range(count):
        rest = (count - i) * unit - 36 + len(tail)
        size = {} if forged.get("flags") else {"size": rest}
        out.append(local(b"%06x" % i, 8, **{**size, **forged}))
        out.append(
            b"\0" + struct.pack("<HH", 36, 36 ^ 0xFFFF) if i < count - 1 else b"\0\0\0\xff\xff"
        )
    return b"".join(out) + tail


def bomb(size):
    stream = zlib.compressobj(9, zlib.DEFLATED, -15)
    return stream.compress(bytes(size)) + stream.flush()


HOSTILE = {
    "a header every 30 bytes": lambda n: local() * (n // 30),
    "an empty member every 36 bytes": lambda n: b"".join(local(b"%06x" % i) for i in range(n // 36)),
    "long names": lambda n: (local()[:26] + b"\xff\xff\xff\xff") * (n // 30),
    "long names of text": lambda n: (local(b"a", 200)[:26] + b"\x10\x27\0\0" + b"a" * 99) * (n // 129),
    "claiming all that follows": lambda n: b"".join(
        local(b"%06x" % i, size=n // 36 * 36 - 36 * i - 36, crc=1) for i in range(n // 36)
    ),
    "claiming all but the end": lambda n: b"".join(
        local(b"%06x" % i, size=n // 36 * 36 - 36 * i - 36, crc=1) for i in range(n // 36)
    ) + b"neither header nor end",
    "claiming more than there is": lambda n: b"".join(
        local(b"%06x.npy" % i, size=1 << 31, crc=1) for i in range(n // 40)
    ),
    "descriptors that never come": lambda n: b"".join(
        local(b"%06x" % i, flags=8) for i in range(n // 36)
    ),
    "descriptors everywhere": lambda n: b"".join(
        local(b"%06x" % i, flags=8) + b"PK\7\x08" + bytes(12) for i in range(n // 52)
    ),
    "streams within streams": lambda n: chain(n // 41, flags=8),
    "members within members": lambda n: chain(n // 41, usize=10, crc=1),
    "bombs within bombs": lambda n: chain(n // 820, bomb(400 * n), usize=400 * n, crc=1),
}  # fmt: skip


@pytest.mark.slow
@each_row("case", HOSTILE)
def test_hostile_files_take_linear_work(paths, case):
    """Twice the bytes take about twice the calls, or the scan gives up early."""
    path, output = paths
    counts = []
    for size in (extent(8_000, 20_000), extent(16_000, 40_000)):
        path.write_bytes(HOSTILE[case](size))
        counts.append(
            calls_of(lambda: npzkit.repair(path, output, keep_partial="mask", overwrite=True))
        )
    assert counts[1] < 2.5 * counts[0]


def test_a_descriptor_beyond_any_file(paths):
    """No bytes are read where a header puts its descriptor: 2**63 bytes behind the file."""
    path, output = paths
    extra = struct.pack("<HHQQ", 1, 16, 1 << 63, 1 << 63)
    sizes = struct.pack("<LLLHH", 1, 0xFFFFFFFF, 0xFFFFFFFF, 5, len(extra))
    lost = b"PK\x03\x04" + struct.pack("<HHHHH", 45, 8, 0, 0, 33) + sizes + b"x.npy" + extra
    path.write_bytes(lost + bytes(100))
    with pytest.raises(ZipFormatError, match="nothing can be saved"):
        npzkit.repair(path, output, overwrite=True)


@pytest.mark.parametrize(
    "case",
    ["streams within streams", "descriptors that never come", "claiming all but the end"],
)
def test_a_scan_that_gives_up_says_so(paths, monkeypatch, case):
    """What was found before is kept, and what was not read is in the report."""
    path, output = paths
    monkeypatch.setattr("npzkit.zip.member_search._ALLOWED_LEAST", 0)
    monkeypatch.setattr("npzkit.zip.member_search._ALLOWED_RATIO", 1)
    sound = archive(Member("sound.npy", npy(np.arange(3))))
    path.write_bytes(sound[: sound.index(b"PK\1\2")] + HOSTILE[case](20_000))
    report = npzkit.repair(path, output, overwrite=True)
    assert "sound" in report.kept
    lost = [row.what for row in report.lost if row.key == "?"]
    assert lost == ["not read, like everything after it: too many headers claim the same bytes"]


def calls_of(work):
    """Return the number of function calls in `work` on all threads, the same on any machine."""
    count = 0

    def profile(frame, event, argument):
        nonlocal count
        count += event in ("call", "c_call")

    threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        work()
    except ZipFormatError:
        pass
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return count


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_is_bounded(tmp_path):
    """A zip bomb, and a large archive without its directory, take some megabytes."""
    data = npy(np.zeros(extent(6_000_000, 20_000_000)))
    member = Member("a.npy", data, method=8)
    sound = archive(member, Member("b.npy", npy(np.ones(3))))
    (tmp_path / "sound.npz").write_bytes(sound[: sound.rindex(b"PK\1\2") - 51])
    crc = {"crc": 1}
    (tmp_path / "bomb.npz").write_bytes(
        archive(
            Member("a.npy", data, method=8, local=crc, central=crc),
            Member("b.npy", npy(np.ones(3))),
        )
    )
    code = """
        import sys, npzkit, npzkit.maintenance.repair

        def peak():
            with open("/proc/self/status") as file:
                return next(int(line.split()[1]) for line in file if line.startswith("VmHWM"))

        before = peak()
        report = npzkit.repair(sys.argv[1], sys.argv[1] + ".out", threads=2, overwrite=True)
        print(len(report.kept), peak() - before)
    """
    for name, kept in (("sound.npz", 2), ("bomb.npz", 1)):
        command = [sys.executable, "-c", textwrap.dedent(code), os.fspath(tmp_path / name)]
        told = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
        assert int(told[0]) == kept
        assert int(told[1]) < 40 << 10  # KiB


# -- the report ------------------------------------------------------------------------------


def test_the_report_goes_through_json_and_is_printed(paths):
    """as_dict survives JSON, and the text lists what was lost, one per line."""
    data = bytearray(archive(
        Member("x.npy", npy(np.eye(3))), Member("y\u202e.npy", npy(np.eye(3)), central={"crc": 1}, local={"crc": 1}),
    ))  # fmt: skip
    report, _ = repair_bytes(paths, bytes(data) + b"junk")
    assert json.loads(report.to_json()) == report.as_dict()
    assert report.as_dict() == {
        "output": os.fspath(paths[1]), "kept": ["x"], "cut_size": 4, "is_rebuilt": False, "sealed": [],
        "lost": [{"key": "y\u202e", "what": report.lost[0].what, "where": report.lost[0].where, "rows": []}],
        "uncertain": [], "is_completed": False, "uncommitted": [],
    }  # fmt: skip
    lines = str(report).splitlines()
    assert lines[0] == f"{paths[1]}: 1 member kept"
    assert lines[1] == "4 bytes after the last commit left out"
    assert lines[2].startswith("lost: 'y\\u202e' (at byte ")
    assert len(lines) == 3
    report, _ = repair_bytes(paths, DIRECTORIES["directory zeroed"])
    assert str(report).splitlines()[:2] == [
        f"{paths[1]}: 12 members kept",
        "the list at the end of the file was damaged, and is restored",
    ]
    report, _ = repair_bytes(paths, GOOD[: boundaries()["last"] - 1000])
    assert str(report).splitlines()[:2] == [
        f"{paths[1]}: 12 members kept",
        "the list at the end of the file is missing or damaged: if the file was ever changed in place, old arrays may be among these",
    ]


def test_replaced_members_stand_where_they_were_found(paths):
    """Of two members with one key, the later one is kept, after the members before it."""
    stream = io.BytesIO()
    npzkit.save(stream, {"x": np.arange(3), "y": np.arange(4)})
    with npzkit.NpzWriter(stream, "a", auto_repack=False) as w:
        w.add("x", np.arange(5), overwrite=True)
    data = stream.getvalue()
    torn = unfinished(data, data.rindex(b"PK\1\2"))
    none = data[: data.rindex(b".npzkit", 0, -200) - 46].replace(b"PK\5\6", b"    ")
    none = none.replace(b"PK\1\2", b"    ").replace(b"NPZX", b"    ")
    report, arrays = repair_bytes(paths, none)
    assert (report.kept, len(arrays["x"])) == (("y", "x"), 5)
    # The footer tells the order of the directory.
    report, arrays = repair_bytes(
        paths, data.replace(b"PK\5\6", b"    ").replace(b"PK\1\2", b"    ")
    )
    assert (report.kept, len(arrays["x"])) == (("x", "y"), 5)
    report, arrays = repair_bytes(paths, torn)
    assert (report.kept, len(arrays["x"])) == (("x", "y"), 3)


def test_rows_behind_the_last_commit_are_not_called_whole(paths):
    """An array that was truncated in an append is neither kept nor reported as sound."""
    stream = io.BytesIO()
    npzkit.save(stream, {"x": np.arange(3)})
    with npzkit.NpzWriter(stream, "a") as w:
        w["y"] = np.arange(10_000)
    data = unfinished(stream.getvalue(), 20_000)
    report, arrays = repair_bytes(paths, data, keep_partial="mask")
    assert list(arrays) == ["x"]
    assert not any("whole" in lost.what for lost in report.lost)


def test_what_is_cut_off_is_gone_from_the_disk_too(paths, monkeypatch):
    """A repair in place is synced, so that a crash does not restore the torn end."""
    path, _ = paths
    path.write_bytes(GOOD + b"torn")
    synced = []
    monkeypatch.setattr(npzkit.files.disk.File, "sync", lambda file: synced.append(file.size))
    npzkit.repair(path)
    assert synced == [len(GOOD)]


def test_progress_is_told(paths):
    """The bytes done grow to twice the file's size, with or without a directory."""
    for data in (GOOD, GOOD[:DIRECTORY], GOOD + b"torn"):
        steps = []
        repair_bytes(paths, data, progress=lambda *step, steps=steps: steps.append(step))
        done = [step[0] for step in steps]
        assert done == sorted(set(done))
        assert steps[-1] == (2 * len(data), 2 * len(data))
        assert {total for _, total in steps} == {2 * len(data)}


def test_limits_are_held_against_members(paths):
    """Members that exceed the limits are not saved."""
    report, _ = repair_bytes(paths, GOOD, limits=npzkit.Limits(member_size=9000))
    assert {lost.key for lost in report.lost} == {"weights", "counts", "noise", "zeros"}
    assert all("too large" in lost.what for lost in report.lost)


# -- failures ------------------------------------------------------------------------------


@pytest.mark.remedy("keep_partial='mask' keeps what is left of damaged arrays.")
def test_what_is_left_where_all_is_damaged(paths):
    """If every array is damaged, nothing is saved, unless parts of arrays are asked for."""
    path, output = paths
    npzkit.save(path, {"x": np.arange(100_000, dtype="i8")})
    sound = path.read_bytes()
    path.write_bytes(sound.replace(np.int64(70_000).tobytes(), np.int64(7).tobytes()))
    with pytest.raises(ZipFormatError, match="nothing can be saved"):
        npzkit.repair(path, output, overwrite=True)
    npzkit.repair(path, output, keep_partial="mask", overwrite=True)
    with npzkit.open(output) as npz:
        found = npz.join("x")
    assert 70_000 not in found.compressed()
    assert np.array_equal(found.compressed(), np.flatnonzero(~found.mask))
    assert found.mask.sum() < 50_000
    path.write_bytes(sound)
    with npzkit.open(path) as npz:
        assert npz["x"][70_000] == 70_000


@pytest.mark.slow
@each_row(
    "save",
    [
        lambda file, arrays: npzkit.save(file, arrays),
        lambda file, arrays: npzkit.save(file, arrays, compression="deflated"),
        lambda file, arrays: np.savez(file, **arrays),
        lambda file, arrays: np.savez_compressed(file, **arrays),
    ],
)
def test_bytes_that_are_missing_inside_an_archive(tmp_path, save):
    """Of an array with a gap nothing is kept that would be shifted: the file is not truncated."""
    path, output = tmp_path / "a.npz", tmp_path / "b.npz"
    arrays = {"z": np.ones(9), "last": RNG.integers(0, 99, (300, 20))}
    save(path, arrays)
    data = path.read_bytes()
    last = data.rfind(b"PK\1\2")
    gaps = [(20_000, 20_777), (20_000, last), (300, last - 300)]
    gaps += [sorted(RNG.integers(0, len(data) - 22, 2)) for _ in range(extent(10, 500))]
    for start, stop in gaps:
        path.write_bytes(data[:start] + data[stop:])
        try:
            report = npzkit.repair(path, output, keep_partial="mask", overwrite=True)
        except (ZipFormatError, AmbiguousArchiveError):
            continue
        assert not any("truncated" in row.what for row in report.lost), (start, stop)
        with npzkit.open(output) as npz:
            for key in {"z", "last"} & {*npz.files}:
                found = npz.join(key)
                kept = ~np.ma.getmaskarray(found)
                assert np.array_equal(np.asarray(found)[kept], arrays[key][kept]), (start, stop)


@pytest.mark.remedy("or save its complete rows: npzkit.repair(path, output, keep_partial='mask').")
@pytest.mark.remedy("If it is truncated, save its complete rows: npzkit.repair(")
def test_a_npy_file_that_is_cut_off(paths):
    """Its complete rows are saved, as an archive; the whole file is read again once it is back."""
    path, output = paths[0].with_suffix(".npy"), paths[1]
    sound = npy(np.arange(100.0).reshape(10, 10))
    path.write_bytes(sound[:600])
    with pytest.raises(NpyFormatError, match="Failed to read all data"):
        npzkit.load(path)
    for places in ((path,), (path, output)):
        with pytest.raises(ZipFormatError, match=r"a bare \.npy file"):
            npzkit.repair(*places)
    npzkit.repair(path, output, keep_partial="mask", overwrite=True)
    with npzkit.open(output) as npz:
        assert npz[path.stem].tolist() == np.arange(50).reshape(5, 10).tolist()
    path.write_bytes(sound[:-8])
    report = npzkit.repair(path, output, keep_partial="mask", overwrite=True)
    assert "partly lost: " in str(report)
    assert report.lost[0].what.endswith("the other is not in the file")
    with npzkit.open(output) as npz:
        assert npz.info(path.stem).attrs == {"partly_lost": report.lost[0].what}
    path.write_bytes(sound)
    assert npzkit.load(path).shape == (10, 10)


@pytest.mark.remedy(
    "The file is truncated in its header. Download it, create it again or restore a backup."
)
@pytest.mark.parametrize("size", [7, 9, 50])
def test_a_npy_file_that_is_cut_off_in_its_header(paths, size):
    """No repair is advised, which could save nothing; the whole file is read once it is back."""
    path = paths[0].with_suffix(".npy")
    sound = npy(np.arange(10))
    path.write_bytes(sound[:size])
    with pytest.raises(NpyFormatError) as caught:
        npzkit.load(path)
    assert "repair" not in caught.value.remedy
    path.write_bytes(sound)
    assert npzkit.load(path).tolist() == list(range(10))


@pytest.mark.remedy("Download it, create it again or restore a backup.")
@pytest.mark.parametrize("size", [40, 600])
def test_repair_of_a_file_without_a_member(paths, size):
    """The error does not advise the call that raised it."""
    path, output = paths
    npzkit.save(path, {"x": np.arange(100.0)})
    sound = path.read_bytes()
    path.write_bytes(sound[:40] if size == 40 else sound[-size:])
    for partial in None, "mask":
        with pytest.raises(ZipFormatError, match="no complete member was found") as caught:
            npzkit.repair(path, output, keep_partial=partial)
        assert "repair" not in caught.value.remedy
    path.write_bytes(sound)
    assert npzkit.load(path)["x"].shape == (100,)


@pytest.mark.parametrize("more", [b"!", npy(np.arange(4.0))])
def test_bytes_after_the_array_of_a_npy_file_are_reported(paths, more):
    """The array is saved, and what is left out has a line."""
    path, output = paths[0].with_suffix(".npy"), paths[1]
    path.write_bytes(npy(np.arange(3)) + more)
    report = npzkit.repair(path, output, keep_partial="mask")
    assert npzkit.load_tree(output) == {path.stem: pytest.approx(np.arange(3))}
    (lost,) = report.lost
    assert (lost.where, lost.rows) == (path.stat().st_size - len(more), ())
    assert f"{len(more)} byte" in lost.what
    assert "partly lost" in str(report)


@pytest.mark.parametrize(
    ("array", "damage", "says"),
    [
        (np.array([{}, 1], object), bytes, "Python objects is not repaired: it is read completely"),
        (np.asfortranarray(np.eye(3)), bytes, "nothing to repair: the .npy file is complete"),
        (np.float64(3), bytes, "nothing to repair: the .npy file is complete"),
        (np.float64(3), lambda data: data[:-1], "the truncated .npy file has no complete row"),
        (np.arange(5), lambda data: data.replace(b"shape", b"shade"), "nothing can be saved: Header"),
    ],
)  # fmt: skip
def test_why_no_rows_of_a_npy_file_are_saved(paths, array, damage, says):
    """What is wrong is said; a complete file is not called damaged."""
    path, output = paths[0].with_suffix(".npy"), paths[1]
    np.save(path, array)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(npzkit.NpzkitError, match=re.escape(says)):
        npzkit.repair(path, output, keep_partial="mask")
    assert not output.exists()


def test_nothing_to_save(paths):
    """If every member is damaged, an error says so, and no file is created."""
    path, output = paths
    x = npy(np.eye(3))
    path.write_bytes(archive(Member("x.npy", x, central={"crc": 1}, local={"crc": 1})))
    with pytest.raises(ZipFormatError, match="nothing can be saved") as caught:
        npzkit.repair(path, output, overwrite=True)
    assert caught.value.path == os.fspath(path)
    for data, says in ((b"", "empty"), (b"<html>" * 9, "HTML"), (bytes(9999), "not a zip")):
        path.write_bytes(data)
        with pytest.raises(ZipFormatError, match=says):
            npzkit.repair(path, output, overwrite=True)
    assert os.listdir(path.parent) == [path.name]


@pytest.mark.parametrize("program", ["tar", "gzip"])
def test_files_of_other_formats_are_refused(tmp_path, program):
    """An archive inside one is not taken for what is left: the error says what the file is."""
    path, inner = tmp_path / "a.npz", tmp_path / "x.npz"
    np.savez(inner, x=np.eye(3))
    if program == "tar":
        with tarfile.open(path, "w") as file:
            file.add(inner)
    else:
        path.write_bytes(gzip.compress(inner.read_bytes(), 0))
    with pytest.raises(
        ZipFormatError, match=rf"it is (a )?{program}.*(Decompress|Extract) it first"
    ):
        npzkit.repair(path, tmp_path / "b.npz")
    assert not (tmp_path / "b.npz").exists()


def test_empty_members_are_kept(paths):
    """An empty member, which cannot be an array, is kept with or without a directory."""
    data = archive(
        Member("empty.txt", b""), Member("x.npy", npy(np.eye(3))), Member("last.txt", b"")
    )
    for damaged in (data, data[: data.index(b"PK\1\2")]):
        report, _ = repair_bytes(paths, damaged)
        assert report.kept == ("empty.txt", "x", "last.txt")


def test_a_sound_archive_without_members(paths):
    """An empty archive is copied as one."""
    report, arrays = repair_bytes(paths, archive())
    assert report == (os.fspath(paths[1]), (), (), 0, False, (), (), False, ())
    assert arrays == {}


def test_a_writer_at_work_is_left_alone(paths):
    """An unfinished write of another writer raises ArchiveLockedError and stays untouched."""
    path, output = paths
    path.write_bytes(GOOD)
    with npzkit.NpzWriter(path, "a") as writer:
        writer["new"] = np.arange(100_000)
        before = path.read_bytes()
        for target in (None, output, path):
            with pytest.raises(ArchiveLockedError) as caught:
                npzkit.repair(path, target, overwrite=True)
            assert caught.value.path == os.fspath(path)
            assert path.read_bytes() == before
    assert npzkit.repair(path, lock_timeout=1).cut_size == 0
    other = path.parent / "other.npz"
    other.write_bytes(GOOD)
    with npzkit.NpzWriter(other, "a"), pytest.raises(ArchiveLockedError) as caught:
        npzkit.repair(path, other, overwrite=True)
    assert caught.value.path == os.fspath(other)
    assert other.read_bytes() == GOOD
    with pytest.raises(ValueError, match="lock_timeout"):
        npzkit.repair(path, lock_timeout=-1)


class FullDisk:
    """The module os, with one call that fails from its n-th time on."""

    def __init__(self, call, count):
        self._call, self._left = call, count

    def __getattr__(self, name):
        if name != self._call:
            return getattr(os, name)
        self._left -= 1
        if self._left >= 0:
            return getattr(os, name)

        def fail(*args, **options):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        return fail


FULL = [(WRITE, 1), (WRITE, 2), ("replace", 0)]
"""Calls that fail, and after how many."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("call", "count", "target"),
    [(*full, target) for full in FULL for target in ("other", "new")]
    # Space is reserved for a file that replaces none.
    + [("posix_fallocate", 0, "new")],
)
def test_a_full_disk_leaves_everything_as_it_was(paths, monkeypatch, call, count, target):
    """A write or a rename that fails leaves input and output, and no third file."""
    path, output = paths
    stream = io.BytesIO()
    write(stream, {**ARRAYS, "large": RNG.random(500_000)})
    data = stream.getvalue()[:-30]
    path.write_bytes(data)
    if target == "other":
        output.write_bytes(b"as it was")
    before = {name: (path.parent / name).read_bytes() for name in os.listdir(path.parent)}
    monkeypatch.setattr(
        "npzkit.files.disk.os", FullDisk(call, 2 * count if call == "pwrite" else count)
    )
    with pytest.raises(OSError, match="No space left"):
        npzkit.repair(path, output, overwrite=True)
    assert {name: (path.parent / name).read_bytes() for name in os.listdir(path.parent)} == before


@pytest.mark.parametrize("count", [0, 1])
def test_a_full_disk_while_an_end_is_repaired(paths, monkeypatch, count):
    """A new directory that cannot be written in place leaves the file, and no lock."""
    path, _ = paths
    damaged = GOOD[:-22] + b"PK\5\6" + b"\xff" * 18
    path.write_bytes(damaged)
    with monkeypatch.context() as patched:
        patched.setattr("npzkit.files.disk.os", FullDisk("pwrite", 2 * count))
        # Who keeps the error keeps what its frames hold.
        with pytest.raises(OSError, match="No space left") as caught:
            npzkit.repair(path)
    assert path.read_bytes() == damaged
    assert npzkit.repair(path).kept
    del caught
    with npzkit.open(path, strict=True) as npz:
        assert npz.files


@pytest.mark.parametrize("call", ["ftruncate", "open"])
def test_a_cut_that_fails_leaves_the_file(paths, monkeypatch, call):
    """If the end cannot be cut off, the error passes through and the file is unchanged."""
    path, _ = paths
    path.write_bytes(GOOD + b"torn")
    monkeypatch.setattr("npzkit.files.disk.os", FullDisk(call, 0))
    with pytest.raises(OSError, match="No space left"):
        npzkit.repair(path)
    assert path.read_bytes() == GOOD + b"torn"


def test_an_interrupt_leaves_everything_as_it_was(paths):
    """A KeyboardInterrupt from the callback passes through, and no file is left."""
    path, output = paths
    path.write_bytes(GOOD[:DIRECTORY])

    def stop(done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        npzkit.repair(path, output, progress=stop, overwrite=True)
    assert path.read_bytes() == GOOD[:DIRECTORY]
    assert os.listdir(path.parent) == [path.name]


# -- any damage ----------------------------------------------------------------------------


@st.composite
def damaged(draw):
    """The archive with a range overwritten, bits flipped, or its end cut off."""
    data = bytearray(GOOD)
    kind = draw(st.sampled_from(["flip", "cut", "overwrite", "cut and flip", "remove"]))
    # Most of the bytes are data: the rest is where it matters.
    place = st.integers(0, len(GOOD) - 1) | st.integers(DIRECTORY, len(GOOD) - 1)
    if "flip" in kind:
        for position in draw(st.lists(place, min_size=1, max_size=3)):
            data[position] ^= 1 << draw(st.integers(0, 7))
    start = draw(place)
    if kind == "overwrite":
        stretch = draw(st.binary(min_size=1, max_size=100) | st.integers(1, 5000).map(bytes))
        data[start : start + len(stretch)] = stretch
    if kind == "remove":
        del data[start : start + draw(st.integers(1, 300))]
    if "cut" in kind:
        del data[start:]
    return bytes(data)


@pytest.mark.slow
@given(damaged(), st.sampled_from([None, "mask", "drop"]))
def test_whatever_is_damaged_what_is_kept_is_right(tmp_path_factory, data, partial):
    """The output verifies, and each of its arrays is what was saved, or a part of it."""
    folder = tmp_path_factory.getbasetemp()
    path, output = folder / "damaged.npz", folder / "whole.npz"
    path.write_bytes(data)
    try:
        report = npzkit.repair(path, output, keep_partial=partial, overwrite=True)
    except ZipFormatError:
        # A cut so early that not one member is whole.
        assert len(data) < 12_000
        return
    found = npzkit.verify(output)
    assert found.ok, found
    with npzkit.open(output) as npz:
        arrays = npz.load_all()
    assert tuple(arrays) == report.kept
    dropped = {row.key: row.rows for row in report.lost if "left out" in row.what}
    lost = {row.key: row.what for row in report.lost}
    masks = {key: arrays.pop(f"{key}.mask") for key in list(arrays) if f"{key}.mask" in arrays}
    names = {key for key in arrays if key not in ARRAYS}
    # Nothing tells a name that was damaged from one that was given.
    assert len(names) <= 3
    for key in set(arrays) - names:
        if "rows kept, unchecked" in lost.get(key, ""):
            # Of rows no CRC is known: a flip in them, and a cut behind, is seen by nobody.
            assert partial and len(arrays[key]) <= len(ARRAYS[key])
            if GOOD.startswith(data):
                same(arrays[key], ARRAYS[key][: len(arrays[key])])
        elif key in dropped:
            rows = [range(*row) for row in dropped[key]]
            same(arrays[key], np.delete(ARRAYS[key], [n for row in rows for n in row], axis=0))
        elif key in masks:
            assert partial == "mask" and "masked, the others are kept" in lost[key]
            same(arrays[key][~masks[key]], ARRAYS[key][~masks[key]])
        else:
            same(arrays[key], ARRAYS[key])


@pytest.mark.parametrize("size", [4, 10, 29])
def test_a_header_cut_short_at_the_end(tmp_path, size):
    """Too few bytes for a header after the archive are no member and no error."""
    path, output = tmp_path / "a.npz", tmp_path / "b.npz"
    npzkit.save(path, {"x": np.arange(9)})
    with open(path, "ab") as stream:
        stream.write((b"PK\3\4" + bytes(26))[:size])
    assert npzkit.repair(path, output, overwrite=True).kept == ("x",)
    with npzkit.open(output) as npz:
        assert npz["x"].tolist() == list(range(9))


def test_bytes_are_no_path(tmp_path):
    """The contents of a file in place of its path are refused with a remedy."""
    npzkit.save(tmp_path / "a.npz", {"x": np.arange(9)})
    for data in ((tmp_path / "a.npz").read_bytes(), b"a.npz", b"\xff"):
        with pytest.raises(TypeError, match="takes a path: write the bytes to a file"):
            npzkit.repair(data)


def test_the_report_of_the_end_says_that_arrays_were_not_checked(tmp_path):
    """A damaged array is counted as kept, so the report names what checks it, which finds it."""
    path = tmp_path / "a.npz"
    npzkit.save(path, {"x": np.arange(1000)})
    data = bytearray(path.read_bytes() + b"junk")
    data[4000] ^= 1
    path.write_bytes(data)
    report = npzkit.repair(path)
    assert str(report).splitlines() == [
        f"{path}: 1 member kept; its arrays were not checked: npzkit.verify checks them",
        "4 bytes after the last commit removed",
    ]
    assert "not checked" in report._repr_html_()
    assert not npzkit.verify(path).ok


def test_the_report_in_a_notebook():
    """Each line of the report is one in the page, and text is escaped."""
    html = RepairReport("a.npz", ("x",), (Lost("<b>", "it is <i>", 7),))._repr_html_()
    assert html.count("<div") == 3
    assert "RepairReport a.npz: 1 member kept" in html
    assert "lost: &lt;b&gt; (at byte 7): it is &lt;i&gt;" in html


def test_a_long_name_of_control_characters_is_shortened(paths):
    """A name that would be too long for a header, with its characters spelled out, loses its start."""
    path, output = paths
    names = [f"{lead}{chr(10) * 30_000}a.npy" for lead in "xy"]
    path.write_bytes(archive(*[Member(name, npy(np.arange(3))) for name in names]))
    report = npzkit.repair(path, output, overwrite=True)
    assert len(report.kept) == 2
    assert str(report).count("kept under another name: ") == 2
    assert "lost: " not in str(report)
    with npzkit.open(output) as npz:
        assert [array.tolist() for array in npz.load_all().values()] == [[0, 1, 2]] * 2
        assert all(key.endswith("%0Aa") for key in npz)


def test_no_cut_leaves_two_ends(tmp_path):
    """Bytes behind the end stay, and it is not opened, if others would read another archive without them."""
    path = tmp_path / "a.npz"
    npzkit.save(path, {"a": np.arange(3)})
    data = path.read_bytes()
    empty = b"PK\5\6" + struct.pack("<4H2LH", 0, 0, 0, 0, 0, len(data), 0)
    data = data[:-2] + struct.pack("<H", len(empty)) + empty + b"tail"
    path.write_bytes(data)
    for use in (npzkit.open, npzkit.repair, lambda path: npzkit.NpzWriter(path, "a")):
        with pytest.raises(AmbiguousArchiveError, match="two end"):
            use(path)
    assert path.read_bytes() == data


def test_an_entry_that_denies_its_member(tmp_path):
    """If a directory fits its checksum and has a wrong flag, the member is kept, and all others."""
    path, output = tmp_path / "a.npz", tmp_path / "b.npz"
    npzkit.save(path, {"a": np.arange(3), "b": np.arange(4)})
    data = bytearray(path.read_bytes())
    begin, end = data.index(b"PK\1\2"), data.index(b"PK\5\6")
    data[begin + 8] |= 0x20
    masked = data[begin:end]
    for place in (0, masked.rindex(b"PK\1\2")):
        masked[place + 16 : place + 20] = bytes(4)
    path.write_bytes(with_footer(bytes(data), directory_crc32=zlib.crc32(masked)))
    assert sorted(npzkit.repair(path, output, overwrite=True).kept) == ["a", "b"]
    assert np.load(output)["a"].tolist() == [0, 1, 2]


def test_a_header_that_would_lie_in_another_member(tmp_path):
    """An entry with a damaged offset still leads to its data, and the array at that offset is copied as it is."""
    path, output = tmp_path / "a.npz", tmp_path / "b.npz"
    np.savez(path, x=np.arange(50), y=np.arange(60))
    data = bytearray(path.read_bytes())
    place = data.rindex(b"PK\1\2") + 42
    offset = int.from_bytes(data[place : place + 4], "little")
    data[place : place + 4] = (offset - 30).to_bytes(4, "little")
    data[offset + 18] ^= 8
    path.write_bytes(data)
    assert set(npzkit.repair(path, output, overwrite=True).kept) == {"x", "y"}
    assert npzkit.verify(output).ok
    with np.load(output) as npz:
        assert npz["x"].tolist() == list(range(50))
        assert npz["y"].tolist() == list(range(60))


@pytest.mark.filterwarnings("ignore:the header of this array")
def test_a_long_header_is_no_damage(tmp_path):
    """A sound array is saved however long its header is, unless a limit was given."""
    path, output = tmp_path / "a.npz", tmp_path / "b.npz"
    table = np.ones(3, [(f"field_{number}", "<f8") for number in range(900)])
    npzkit.save(path, {"table": table, "x": np.arange(3)})
    report = npzkit.repair(path, output, overwrite=True)
    assert (report.kept, report.lost) == (("table", "x"), ())
    with npzkit.open(output, limits=npzkit.Limits(header_size=None)) as npz:
        assert npz["table"].tolist() == table.tolist()
    report = npzkit.repair(path, output, limits=npzkit.Limits(), overwrite=True)
    assert [row.key for row in report.lost] == ["table"]


def test_an_array_whose_size_is_known_modulo_a_power_of_two(paths, monkeypatch):
    """Writers without zip64 keep sizes and offsets modulo 2**32; here it is 2**16."""
    path, output = paths
    monkeypatch.setattr("npzkit.maintenance.damaged_rows.WRAP", 1 << 16)
    arrays = {"a": np.arange(10), "large": np.arange(10_000), "f": np.ones((90, 100), order="F"),
              "b": np.arange(5)}  # fmt: skip
    np.savez(path, **arrays)
    with zipfile.ZipFile(path) as archive:
        infos = archive.infolist()
        data = {info.filename: archive.read(info) for info in infos}
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, content in data.items():
            archive.writestr(name, content)
    wrapped = bytearray(stream.getvalue())
    for begin, places in ((b"PK\3\4", (18, 22)), (b"PK\1\2", (20, 24)), (b"PK\5\6", (16,))):
        at = -1
        while (at := wrapped.find(begin, at + 1)) >= 0:
            for place in (*places, *([42] if begin == b"PK\1\2" else ())):
                (size,) = struct.unpack_from("<L", wrapped, at + place)
                struct.pack_into("<L", wrapped, at + place, size % (1 << 16))
    path.write_bytes(wrapped)
    report = npzkit.repair(path, output, overwrite=True)
    assert set(report.kept) == set(arrays)
    with npzkit.open(output, strict=True) as npz:
        for key, array in arrays.items():
            assert np.array_equal(npz[key], array)
    wrapped[wrapped.index(b"large.npy") + 1000] ^= 1
    path.write_bytes(wrapped)
    assert "large" not in npzkit.repair(path, output, overwrite=True).kept
