"""verify: a row for each fault, and none for a sound archive."""

from __future__ import annotations

import io
import itertools
import json
import os
import pickle
import struct
import subprocess
import sys
import textwrap
import threading
import tracemalloc
import warnings
import zipfile
from pathlib import Path
from types import SimpleNamespace

import npzkit
import numpy as np
import pytest
from deep import extent
from forge import Member, archive, chunked, deflate, header, npy, with_chunks
from npzkit.errors import (
    ClosedArchiveError,
    LimitExceededError,
    MemberNotFoundError,
    NpzkitError,
    StaleArchiveError,
)
from npzkit.maintenance.findings import Finding, VerifyReport
from systems import need_decoder_of, replaces_open_files

from tables import each_row

X = np.arange(6.0).reshape(2, 3)
DATA = npy(X)
LARGE = npy(np.arange(20_000.0))
LONG = npy(np.arange(60_000))
SIZE = 30 + len("x.npy") + len(DATA)
"""Bytes of a stored member `x` with its local header."""


def plain(name="x.npy", data=DATA, **forged):
    return Member(name, data, **forged)


def both(name="x.npy", data=DATA, *, fields, **forged):
    """A member whose two headers have the same wrong fields."""
    local = {field: value for field, value in fields.items() if field != "disk"}
    return Member(name, data, local=local, central=fields, **forged)


def described(shape="(1,)", descr="'<f8'", data=bytes(8), padding=""):
    text = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}}}{padding}"
    return plain(data=header(text) + data)


def key_values(payload):
    return struct.pack("<HH", 0x564B, len(payload)) + payload


RAW, OFFSETS = chunked(LONG, 1 << 15)
SHIFTED = [end - begin for begin, end in itertools.pairwise([0, *OFFSETS, len(RAW)])]
SHIFTED[0] += 1
SHIFTED[-1] -= 1
# Chunks of the same size each, the first two in each other's place.
SWAPPED = LONG[1 << 15 : 1 << 16] + LONG[: 1 << 15] + LONG[1 << 16 :]
LIST_AT = 30 + len("x.npy") + len(RAW) + 57
INDEXED = with_chunks("x.npy", LONG, 1 << 15)


CASES = {
    # What no part of the archive can be read of.
    "not a zip": (b"<html>404</html>", None, "error", "HTML", None),
    "empty file": (b"", None, "error", "the file is empty", None),
    "truncated": (
        archive(plain())[:-30], None, "error", "cut off: at least its last 30 bytes are missing",
        len(archive(plain())) - 30,
    ),
    "bytes before": (archive(plain(), prefix=b"#!"), None, "error", "precede the first", 0),
    "directory offset": (archive(plain(), offset=7), None, "error", "is not where", SIZE + 51),
    "count": (archive(plain(), count=2, total=2), None, "error", "entries that the end", SIZE),
    "name with a control character": (
        archive(plain("x\x1b[2Jy.npy")), "x\x1b[2Jy", "error", "control character", 0,
    ),
    "name not UTF-8": (archive(plain(b"\xff.npy")), "\udcff", "error", "not UTF-8", 0),
    "extra field runs over": (
        archive(plain(extra=struct.pack("<HH", 0x5455, 9))), None, "error", "extends past its end", SIZE + 4,
    ),
    "split": (archive(plain(), disk=1, directory_disk=1), None, "error", "split", SIZE + 51),
    "two ends": (
        archive(plain(), comment=b"PK\5\6" + bytes(18)), None, "error", "two end of central", len(archive(plain())) - 22,
    ),
    "overlap": (
        archive(plain(), plain("y.npy", central={"offset": 10})), "x", "error", "overlap", 0,
    ),
    # What is odd.
    "torn end": (archive(plain()) + b"junk", None, "warning", "4 bytes after the last commit", SIZE + 73),
    "one byte after": (archive(plain()) + b"\n", None, "warning", "1 byte after", SIZE + 73),
    "repeated name": (archive(plain(), plain()), "x", "warning", "2 entries have this name", SIZE),
    "gap": (archive(plain(), gap=bytes(500)), None, "note", "500 bytes of dead space", None),
    "hidden member": (
        archive(plain(), gap=plain("y.npy", LARGE).local_bytes()), None, "note", "of dead space, which no member uses", None,
    ),
    # A member's two headers.
    **{
        f"local {field}": (
            archive(plain("a.npy"), plain(local=fields)), "x", "error", f"disagree on the {says}", SIZE,
        )
        for field, fields, says in [
            ("signature", {"signature": b"PK\3\5"}, "signature"),
            ("name", {"name": b"y.npy"}, "name"),
            ("method", {"method": 8}, "method"),
            ("encryption", {"flags": 1}, "encryption flag"),
            ("descriptor flag", {"flags": 8}, "descriptor flag"),
            ("crc", {"crc": 5}, "CRC-32"),
            ("csize", {"csize": 5}, "compressed size"),
            ("usize", {"usize": 5}, "uncompressed size"),
        ]
    },
    "local extra field": (
        archive(plain(local_extra=struct.pack("<HH", 0xD935, 300) + bytes(300)), plain("y.npy"), gap=b"")
        .replace(struct.pack("<HHL", 5, 304, 0x04034B50)[:4], struct.pack("<HH", 5, 600), 1),
        "x", "error", "overlaps the next member", SIZE - len(DATA) + 600,
    ),
    "descriptor": (
        archive(plain(descriptor="signed 32")).replace(b"PK\7\x08", b"PK\7\x09"),
        "x", "error", "data descriptor", SIZE,
    ),
    "encrypted": (archive(both(fields={"flags": 1})), "x", "error", "encrypted", 0),
    "patched": (archive(both(fields={"flags": 0x20})), "x", "error", "patched", 0),
    "on another disk": (archive(both(fields={"disk": 3})), "x", "error", "split over", 0),
    "unknown method": (archive(both(fields={"method": 97})), "x", "error", "method is not supported", 0),
    "two sizes": (archive(both(fields={"usize": 5})), "x", "error", "two different sizes", 0),
    "bomb": (
        archive(both(fields={"usize": 10**9}, method=8)), "x", "error", "more bytes than", 0,
    ),
    # The data.
    "crc, stored": (archive(both(fields={"crc": 1})), "x", "error", "CRC-32 differs", SIZE - len(DATA)),
    "crc, deflated": (
        archive(both(fields={"crc": 1}, method=8)), "x", "error", "CRC-32 differs", SIZE - len(DATA),
    ),
    "crc of a note": (
        archive(both("note.txt", b"text", fields={"crc": 1})), "note.txt", "error", "CRC-32 differs", 38,
    ),
    "stream cut": (
        archive(plain(method=8, raw=deflate(DATA)[:-9])), "x", "error", "stream ends early", 35,
    ),
    "bytes behind the stream": (
        archive(plain(method=8, raw=deflate(DATA) + b"!!")), "x", "error", "2 bytes left",
        35 + len(deflate(DATA)),
    ),
    # The array.
    "no array": (archive(plain(data=b"no array at all")), "x", "error", "magic string", 35),
    "version": (
        archive(plain(data=b"\x93NUMPY\x04\0" + bytes(200))), "x", "error", "format version", 35,
    ),
    "not a literal": (archive(described("(1+1,)")), "x", "error", "Cannot parse header", 35),
    "bad shape": (archive(described("(-1,)")), "x", "error", "shape is not valid", 35),
    "bad dtype": (archive(described(descr="'<q9'")), "x", "error", "descr", 35),
    "shape larger than the member": (archive(plain(data=DATA[:-1])), "x", "error", "reading array data", 35),
    "shape smaller than the member": (archive(plain(data=DATA + b"!")), "x", "error", "bytes follow", 35),
    "header over the limit": (archive(described(padding=" " * 20_000)), "x", "error", "Header info length", 35),
    "Python 2's header": (archive(described("(1L,)")), "x", "warning", "Python 2 wrote its header", 35),
    "objects": (archive(described(descr="'|O'", data=b"N.")), "x", "note", "allow_pickle=True", 35),
    "objects in a structure": (
        archive(described(descr="[('a','|O')]", data=b"N.")), "x", "note", "allow_pickle=True", 35,
    ),
    # Names.
    **{
        f"name {name!r}": (archive(plain("a.npy"), plain(name)), name.removesuffix(".npy"), "warning", says, SIZE)
        for name, says in [
            ("/abs.npy", "absolute path"),
            ("C:/x.npy", "a drive"),
            ("../up.npy", "'..' part"),
            ("a\\b.npy", "backslash"),
            ("a//b.npy", "empty part"),
        ]
    },
    "composition": (
        archive(plain("Ϊ\u0301.npy"), plain("\u0390.npy")), "\u0390", "warning",
        "it conflicts with", SIZE + 3,
    ),
    "a folder on its way": (
        archive(plain("X"), plain("x/y.npy")), "x/y", "warning", "it conflicts with X when", SIZE - 4,
    ),
    "case": (archive(plain("X.npy"), plain()), "x", "warning", "it conflicts with X.npy when", SIZE),
    "case of a folder": (
        archive(plain("A/x.npy"), plain("a/x.npy")), "a/x", "warning", "it conflicts with A/x.npy when", SIZE + 2,
    ),
    "case beyond ASCII": (
        archive(plain("STRASSE.npy"), plain("straße.npy")), "straße", "warning", "it conflicts with STRASSE.npy when", SIZE + 6,
    ),
    # What npzkit adds.
    "attributes": (
        archive(plain(extra=key_values(b"KeyValuePairs\1\5\0abc"))), "x", "error", "key-value", 0,
    ),
    "a list of other chunks": (
        with_chunks("x.npy", LONG, 1 << 15, sizes=[5, 3]), "x", "warning", "does not match it", LIST_AT,
    ),
    "a list with another CRC": (
        INDEXED[:LIST_AT] + b"CRC!" + INDEXED[LIST_AT + 4 :],
        "x", "warning", "does not match it", LIST_AT,
    ),
    "a list with another chunk size": (
        with_chunks("x.npy", LONG, 1 << 15, claimed=1 << 14), "x", "warning", "does not match it", LIST_AT,
    ),
    "a list whose sizes are shifted": (
        with_chunks("x.npy", LONG, 1 << 15, sizes=SHIFTED),
        "x", "error", "list of its chunks leads to wrong data", LIST_AT,
    ),
}  # fmt: skip
"""For each case, an archive and its row: key, severity, part of what, where."""


@pytest.mark.slow
@each_row("case", CASES)
@pytest.mark.usefixtures("either_walk")
def test_each_fault_has_its_row(case):
    """Each fault is reported with its key, severity, description and offset."""
    data, key, severity, says, where = CASES[case]
    report = npzkit.verify(data)
    rows = [row for row in report.rows if says in row.what]
    assert [(row.key, row.severity) for row in rows] == [(key, severity)], report
    assert rows[0].where == where, report
    assert report.ok == (severity != "error")
    # One fault is one row; notes on alignment and space come beside it.
    assert len([row for row in report.rows if row.severity != "note"]) == (severity != "note")
    assert not rows[0].what.endswith(".")


def test_chunks_in_the_wrong_order():
    """A list whose chunks have the right sizes at wrong offsets leads to wrong data."""
    data = bytearray(with_chunks("x.npy", LONG, 1 << 15))
    raw, offsets = chunked(SWAPPED, 1 << 15)
    # The whole stream is that of the swapped data; its CRC is the entry's, those of the list are not.
    good = archive(Member("x.npy", LONG, method=8, raw=RAW))
    assert npzkit.verify(good).ok
    first, second, third = 0, OFFSETS[0], OFFSETS[1]
    assert offsets[1] == third  # Both chunks together take the same bytes.
    data[35 + first : 35 + third] = RAW[second:third] + RAW[first:second]
    rows = npzkit.verify(bytes(data)).rows
    assert [row.severity for row in rows if row.key == "x"] == ["error", "error"]
    assert raw != RAW


def test_several_faults_are_several_rows():
    """One fault does not hide others, and they are reported in the order of members."""
    data = archive(
        plain("sound.npy"),
        both("crc.npy", LARGE, fields={"crc": 1}),
        plain("header.npy", data=b"no array at all"),
        plain("../up.npy", LARGE, method=8),
        both("locked.npy", fields={"flags": 1}),
        plain("local.npy", local={"crc": 9}),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        report = npzkit.verify(data + b"torn")
    assert not report.ok
    told = [(row.key, row.severity) for row in report.rows if row.severity != "note"]
    assert told == [
        (None, "warning"), ("../up", "warning"), ("crc", "error"), ("header", "error"),
        ("locked", "error"), ("local", "error"),
    ]  # fmt: skip
    assert report.member_count == 6


def test_a_member_may_have_two_faults():
    """A damaged header and damaged data are both reported for one member."""
    bad = described("(-1,)")
    report = npzkit.verify(archive(both(data=bad.data, fields={"crc": 1})))
    assert ["shape" in row.what or "CRC" in row.what for row in report.rows] == [True, True]


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 2, 4])
@pytest.mark.parametrize("compression", ["stored", "deflated"])
def test_large_members_are_checked_by_any_number_of_threads(compression, threads, tmp_path):
    """One flipped byte in several pieces is found anywhere, by every way to read it."""
    path = tmp_path / "a.npz"
    size = extent(18_000_000, 40_000_000)
    array = np.frombuffer(np.random.default_rng(0).bytes(size), "u1")
    npzkit.save(path, {"a": array}, compression=compression)
    assert npzkit.verify(path, threads=threads).ok
    for position in (1 << 20, size - 1_000_000):
        with open(path, "r+b") as file:
            file.seek(position)
            byte = file.read(1)
            file.seek(position)
            file.write(bytes([byte[0] ^ 16]))
        report = npzkit.verify(path, threads=threads)
        assert not report.ok
        assert {row.key for row in report.rows} == {"a"}
        with open(path, "r+b") as file:
            file.seek(position)
            file.write(byte)


@pytest.mark.slow
def test_any_number_of_threads_says_the_same(tmp_path):
    """Rows and their order do not depend on the threads."""
    members = [
        plain(f"{i}.npy", LARGE, method=8 * (i % 2)) if i % 5 else both(f"{i}.npy", fields={"crc": i})
        for i in range(1, 80)
    ]  # fmt: skip
    data = archive(*members)

    first = npzkit.verify(data, threads=1)
    assert len([row for row in first.rows if row.severity == "error"]) == 15
    assert all(npzkit.verify(data, threads=threads) == first for threads in (2, 4, None))


def saved_by_npzkit(arrays):
    file = io.BytesIO()
    with npzkit.NpzWriter(file) as w:
        for key, array in arrays.items():
            w[key] = array
        w.attrs("b")["unit"] = "m"
    return file.getvalue()


def saved_by_numpy(arrays):
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


@pytest.mark.slow
@pytest.mark.parametrize("save", [saved_by_npzkit, saved_by_numpy])
def test_many_members_are_checked_as_few(save, monkeypatch):
    """Whatever byte is changed, members that are checked together have the rows of one by one."""
    arrays = {"a": np.arange(3), "b": np.eye(2), "n": np.zeros((), "M8[s]"), "ö": np.array(["x"])}
    data, found = save(arrays), set()
    for place in range(0, len(data), extent(11, 1)):
        damaged = bytearray(data)
        damaged[place] ^= 1 << place % 8
        reports = []
        for count in (1, 1 << 60):
            monkeypatch.setattr("npzkit.zip.directory._COLUMNS_COUNT", count)
            reports.append(npzkit.verify(bytes(damaged)))
        assert reports[0] == reports[1], place
        found.update(row.severity for row in reports[0].rows)
    assert "error" in found


@pytest.mark.slow
def test_progress_is_told_in_the_callers_thread(tmp_path):
    """The bytes done grow to the total, and are reported in the calling thread."""
    path = tmp_path / "a.npz"
    arrays = {f"a{i}": np.arange(50_000) for i in range(20)} | {"big": np.zeros(3_000_000)}
    npzkit.save(path, arrays, compression="deflated")
    for threads in (1, 4):
        steps, callers = [], set()

        def progress(done, total, steps=steps, callers=callers):
            steps.append((done, total))
            callers.add(threading.current_thread())

        report = npzkit.verify(path, progress=progress, threads=threads)
        assert callers == {threading.current_thread()}
        assert [done for done, _ in steps] == sorted(done for done, _ in steps)
        assert steps[-1] == (report.nbytes, report.nbytes)
        assert {total for _, total in steps} == {sum(a.nbytes + 128 for a in arrays.values())}


def test_many_small_members_are_counted_as_they_are_checked(tmp_path):
    """Progress is reported, and may stop the check, although no thread ever waits for another."""
    path = tmp_path / "a.npz"
    npzkit.save(path, {str(number): np.zeros(2) for number in range(3000)})
    for threads in (1, 2):
        steps = []
        npzkit.verify(path, progress=lambda done, total, s=steps: s.append(done), threads=threads)
        assert len(set(steps)) > 10, threads
        assert steps[0] == 0


def test_progress_may_stop_it():
    """An exception from the callback stops the work and passes through."""

    def stop(done, total):
        raise KeyboardInterrupt

    before = set(threading.enumerate())
    with pytest.raises(KeyboardInterrupt):
        npzkit.verify(archive(*[plain(f"{i}.npy") for i in range(50)]), progress=stop, threads=2)
    assert set(threading.enumerate()) <= before


@replaces_open_files
def test_an_open_archive_is_verified(tmp_path):
    """An NpzFile is checked as it was opened, with its own limits unless others are given."""
    path = tmp_path / "a.npz"
    npzkit.save(path, {"x": np.arange(1000), "y": np.eye(2)})
    with npzkit.open(path, limits=npzkit.Limits(member_size=1000)) as npz:
        assert npzkit.verify(npz) == npz.verify()
        assert not npzkit.verify(npz).ok
        assert npzkit.verify(npz, ["y"]).ok
        found = npzkit.verify(npz, limits=npzkit.Limits())
        assert (found.ok, found.path, found.member_count) == (True, str(path), 2)
        npzkit.save(path, {"other": np.eye(3)})
        assert npzkit.verify(npz, limits=npzkit.Limits()).member_count == 2
        assert npz["y"].shape == (2, 2)
    with pytest.raises(npzkit.errors.ClosedArchiveError):
        npzkit.verify(npz)


def test_only_some_members():
    """keys= checks and counts only those members, and not the archive itself."""
    data = (
        archive(plain("a.npy", LARGE), both("b.npy", fields={"crc": 1}), plain("c.npy")) + b"torn"
    )
    report = npzkit.verify(data, keys=["a", "c.npy"])
    assert report.ok
    assert {row.key for row in report.rows} <= {"a", "c.npy"}
    assert (report.member_count, report.nbytes) == (2, len(LARGE) + len(DATA))
    assert not npzkit.verify(data, ["b"]).ok
    assert npzkit.verify(data, []).member_count == 0
    with pytest.raises(MemberNotFoundError):
        npzkit.verify(data, ["d"])
    with pytest.raises(TypeError):
        npzkit.verify(data, "a")


def test_only_some_members_of_a_stream():
    """keys= of a stream checks only those members, and without it the archive as well."""

    class Pipe(io.BytesIO):
        def seekable(self):
            return False

    data = archive(plain("a.npy", LARGE), plain("b.npy"), plain("b.npy"))
    assert {row.key for row in npzkit.verify(Pipe(data)).rows} >= {None, "b"}
    report = npzkit.verify(Pipe(data), keys=["a"])
    assert (report.ok, report.member_count, report.nbytes) == (True, 1, len(LARGE))
    assert {row.key for row in report.rows} <= {"a"}
    with pytest.raises(npzkit.errors.MemberNotFoundError, match="no array named 'c'"):
        npzkit.verify(Pipe(data), keys=["c"])


# -- what is sound ---------------------------------------------------------------


def faults(report):
    return [row for row in report.rows if row.severity != "note"]


@pytest.mark.slow
@pytest.mark.parametrize("options", [
    {}, {"compression": "deflated"}, {"compression": "deflated", "chunk_size": 4096},
    {"compression": "deflated", "seekable": False}, {"compression": "deflated", "level": 9},
], ids=str)  # fmt: skip
def test_what_npzkit_writes_has_no_rows(tmp_path, arrays, options):
    """npzkit's own archives do not get even a note."""
    path = tmp_path / "a.npz"
    with npzkit.NpzWriter(path, metadata={"step": 1}, **options) as writer:
        for key, array in arrays.items():
            writer.add(key, array, attrs={"unit": "m"})
    report = npzkit.verify(path)
    assert report.ok
    assert report.rows == ()
    assert report.member_count == len(arrays)
    assert report.path == os.fspath(path)


def test_what_was_appended_and_removed_is_a_note(tmp_path):
    """Dead space is a note, and repacking removes it."""
    path = tmp_path / "a.npz"
    npzkit.save(path, {"a": np.zeros(1000), "b": np.zeros(1000)})
    with npzkit.NpzWriter(path, "a", auto_repack=False) as writer:
        del writer["b"]
        writer.add("c", np.ones(1000))
    report = npzkit.verify(path)
    assert report.ok
    assert [row.severity for row in report.rows] == ["note"]
    npzkit.repack(path)
    assert npzkit.verify(path).rows == ()


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_what_numpy_writes_is_sound(save, arrays, tmp_path):
    """NumPy's archives, with forced zip64 and arrays that are not aligned, are as they should be.

    That parts of large ones have no checksums is noted.
    """
    save(tmp_path / "a.npz", **arrays)
    report = npzkit.verify(tmp_path / "a.npz")
    assert report.ok
    (note,) = [row for row in report.rows if "Python objects" not in row.what]
    assert (note.key, note.severity) == (None, "note")
    assert "npzkit.repack" in note.what


@pytest.mark.slow
@each_row("method", [0, 8, 12, 14])
@each_row("streamed", [False, True])
def test_what_zipfile_writes_is_sound(method, streamed):
    """zipfile's archives with any method, with or without descriptors, get notes at most."""
    stream = io.BytesIO()

    class Pipe:
        write, flush = stream.write, stream.flush

    with zipfile.ZipFile(Pipe() if streamed else stream, "w", method) as written:
        written.writestr("x.npy", LARGE)
        written.writestr("größe.npy", DATA)
        written.writestr("note.txt", b"")
        written.writestr("folder/", b"")
    report = npzkit.verify(stream)
    assert report.ok
    assert faults(report) == []
    assert report.member_count == 4


FIXTURES = sorted((Path(__file__).parents[2] / "fixtures").glob("*.npz"))


@each_row("path", FIXTURES)
def test_fixtures_are_sound(path):
    """Other programs' archives get notes at most, except an error for the encrypted one."""
    need_decoder_of(path.name)
    if "zstandard" in path.name:
        pytest.importorskip("backports.zstd" if sys.version_info < (3, 14) else "compression.zstd")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        report = npzkit.verify(path)
    if "encrypted" in path.name:
        assert "encrypted" in faults(report)[0].what
        assert report.verdict.startswith("encrypted, ")
        return
    assert report.ok
    assert [row for row in faults(report) if "Python 2" not in row.what] == []


def test_an_empty_archive():
    """An archive without members is sound."""
    report = npzkit.verify(archive())
    assert (report.ok, report.rows, report.member_count, report.nbytes) == (True, (), 0, 0)


# -- objects ---------------------------------------------------------------------


class Trap:
    """Create a folder when it is unpickled."""

    def __init__(self, path):
        self.path = os.fspath(path)

    def __reduce__(self):
        return os.mkdir, (self.path,)


@pytest.mark.parametrize("method", [0, 8])
def test_no_pickle_is_run(tmp_path, method):
    """Python objects are reported and their CRC is checked, but none of their code runs."""
    trace = tmp_path / "sprung"
    stream = io.BytesIO()
    np.lib.format.write_array(stream, np.array([Trap(trace)], dtype=object))
    data = archive(plain(data=stream.getvalue(), method=method))
    report = npzkit.verify(data)
    assert report.ok
    assert [(row.key, row.severity) for row in report.rows] == [("x", "note")]
    with npzkit.open(data, allow_pickle=True) as npz:
        assert npz.verify() == report
    damaged = archive(both(data=stream.getvalue(), method=method, fields={"crc": 1}))
    assert not npzkit.verify(damaged).ok
    assert not trace.exists()
    # The trap is one.
    pickle.loads(pickle.dumps(Trap(trace)))
    assert trace.exists()


# -- sources ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind", ["path", "text path", "bytes", "BytesIO", "file", "behind other data"]
)
def test_an_open_archive_says_the_same(kind, tmp_path):
    """npz.verify and npzkit.verify agree for any source, including torn archives."""
    data = (
        archive(plain("a.npy"), both(fields={"crc": 1}), plain("a.npy"), gap=bytes(300)) + b"torn"
    )
    path = tmp_path / "a.npz"
    path.write_bytes(data)
    with open(path, "rb") as file, warnings.catch_warnings():
        behind = io.BytesIO(b"other data" + data)
        behind.seek(10)
        source = {
            "path": path, "text path": os.fspath(path), "bytes": data, "BytesIO": io.BytesIO(data),
            "file": file, "behind other data": behind,
        }[kind]  # fmt: skip
        # Looking leaves a file object where it stood.
        report, some = npzkit.verify(source), npzkit.verify(source, ["a"])
        warnings.simplefilter("ignore")
        with npzkit.open(source) as npz:
            assert npz.verify() == report
            assert npz.verify(["a"]) == some
        with pytest.raises(ClosedArchiveError):
            npz.verify()
    shift = 10 if kind == "behind other data" else 0
    lost = len(plain("a.npy").local_bytes()) + 3 * 300
    assert [row[:2] for row in faults(report)] == [
        (None, "warning"),
        ("a", "warning"),
        ("x", "error"),
    ]
    assert faults(report)[0].where == len(data) - 4 + shift
    assert [row.what for row in report.rows if row.key is None][1].startswith(f"{lost:,} bytes")


def test_errors_of_the_system_pass_through(tmp_path):
    """A missing file or a folder raises an error instead of a finding."""
    with pytest.raises(FileNotFoundError):
        npzkit.verify(tmp_path / "none.npz")
    with pytest.raises(IsADirectoryError):
        npzkit.verify(tmp_path)
    (tmp_path / "empty").write_bytes(b"")
    assert not npzkit.verify(tmp_path / "empty").ok


def test_bad_arguments(tmp_path):
    """The number of threads must be positive."""
    with pytest.raises(ValueError, match="threads"):
        npzkit.verify(archive(), threads=0)


def test_limits_are_held_against_it():
    """A member that exceeds the limits is an error, and None means no limit."""
    data = archive(described(padding=" " * 20_000))
    assert npzkit.verify(data, limits=npzkit.Limits(header_size=None)).ok
    assert "too large" in str(npzkit.verify(data, limits=npzkit.Limits(None, member_size=9)))
    assert "too many" in str(npzkit.verify(data, limits=npzkit.Limits(member_count=0)))
    assert "too large together" in str(npzkit.verify(data, limits=npzkit.Limits(total_size=9)))


# -- the report ------------------------------------------------------------------


def test_a_report_goes_through_json():
    """as_dict survives JSON, and has everything in the report."""
    report = npzkit.verify(archive(plain(), both("größe.npy", fields={"crc": 1})) + b"!")
    found = json.loads(report.to_json(indent=1))
    assert found == report.as_dict()
    assert found["ok"] is False
    assert found["rows"] == [dict(zip(row._fields, row, strict=True)) for row in report.rows]
    assert found["member_count"] == 2
    assert found["nbytes"] == report.nbytes
    assert json.loads(npzkit.verify(b"").to_json())["rows"][0]["key"] is None


def test_a_report_is_printed_as_a_table():
    """Columns are aligned, and the verdict comes last."""
    report = npzkit.verify(archive(both(fields={"crc": 1}), plain("layer/w.npy", LARGE)) + b"!!")
    lines = str(report).splitlines()
    assert lines[0].split() == ["severity", "key", "at", "byte", "what"]
    begin = lines[0].index("what")
    assert [line[begin:] for line in lines[1:-1]] == [
        ". ".join(filter(None, (row.what, row.remedy))) for row in report.rows
    ]
    assert all(line[begin - 2 : begin] == "  " for line in lines[:-1])
    assert lines[-1] == "archive: NOT sound, 2 members, 1 error, 1 warning"
    assert str(npzkit.verify(archive())) == (
        "archive: sound, 0 members; no Python objects, and no unsafe names"
    )
    assert str(npzkit.verify(archive(plain()))).startswith("archive: sound, 1 member; no Python")


@pytest.mark.parametrize(
    "name", ["x\u202egpj.npy", "a\u2028b.npy", "y" * 60_000 + ".npy", "\x9b2J.npy"]
)
def test_names_do_not_control_the_terminal(name):
    """A name with control characters or huge length is escaped and cut."""
    text = str(
        npzkit.verify(
            archive(plain(name), plain(name.upper()), both(name + "a", fields={"crc": 1}))
        )
    )
    assert all(character.isprintable() for line in text.splitlines() for character in line)
    assert len(text.splitlines()) >= 4
    assert max(map(len, text.splitlines())) < 300
    text = str(npzkit.verify(archive(plain("x\x1b[2J.npy"))))
    assert "\x1b" not in text


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("compression", ["stored", "deflated"])
def test_memory_is_bounded(tmp_path, compression):
    """A large array, sound or damaged, is verified in some megabytes on two threads."""
    path = tmp_path / "a.npz"
    with (
        npzkit.NpzWriter(path) as writer,
        writer.create("a", (None, 1 << 17), "f8", compression=compression) as created,
    ):
        for number in range(extent(30, 200)):
            created.append(np.full((1, 1 << 17), number, "f8"))
    code = """
        import sys, npzkit

        def peak():
            with open("/proc/self/status") as file:
                return next(int(line.split()[1]) for line in file if line.startswith("VmHWM"))

        import npzkit.maintenance.verify
        npzkit.verify(sys.argv[1], [], threads=2)
        before = peak()
        report = npzkit.verify(sys.argv[1], threads=2)
        print(report.ok, peak() - before)
    """
    command = [sys.executable, "-c", textwrap.dedent(code), os.fspath(path)]
    for is_sound in (True, False):
        told = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
        assert told[0] == str(is_sound)
        assert int(told[1]) < 24 << 10  # KiB
        with open(path, "r+b") as file:
            file.seek(500)
            file.write(b"damaged")


@pytest.mark.slow
def test_names_of_many_folders_take_room_for_their_letters():
    """Names with thirty thousand parts or combining marks take memory in proportion to their length."""
    names = ["a/" * 32_000 + f"{i}.npy" for i in range(20)]
    names += ["e" + "\u0316\u0301" * 16_000 + ".npy", "b/c.npy", "B.npy/x.npy", "b.npy"]
    data = archive(*(plain(name) for name in names))
    tracemalloc.start()
    report = npzkit.verify(data)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    # Each name is there in its entry, as text, folded and in messages.
    assert peak < 20 * len(data)
    assert [row.key for row in report.rows if "it conflicts with" in row.what] == ["b"]


class _Pipe(io.RawIOBase):
    """A stream that cannot seek."""

    def __init__(self, data):
        self._stream = io.BytesIO(data)

    def readable(self):
        return True

    def readinto(self, buffer):
        return self._stream.readinto(buffer)


@pytest.mark.slow
@each_row("path", FIXTURES)
def test_a_stream_is_checked_as_a_file_is(path):
    """Sound or damaged, a stream gets the verdict of the file, and errors for the same arrays."""
    data = bytearray(path.read_bytes())
    assert npzkit.verify(_Pipe(data)) == npzkit.verify(data)
    data[len(data) // 3] ^= 4
    stream, file = npzkit.verify(_Pipe(data)), npzkit.verify(data)
    assert (stream.ok, stream.torn_size, stream.nbytes) == (file.ok, file.torn_size, file.nbytes)
    errors = [
        {row.key for row in report.rows if row.severity == "error"} for report in (stream, file)
    ]
    assert errors[0] == errors[1]


def test_the_report_in_a_notebook(tmp_path):
    """A table of the findings, errors first and a hundred at most, in which text is escaped."""
    rows = [Finding("<b>", "note", f"n {i}") for i in range(150)]
    report = VerifyReport("a&b.npz", (*rows, Finding("x", "error", "<i>", 7)), 151, 10)
    html = report._repr_html_()
    assert html.count("<tr") == 101
    assert html.index("&lt;i&gt;") < html.index("&lt;b&gt;")
    assert "a&amp;b.npz: NOT sound, 151 members, 1 error, 150 notes" in html
    assert "151 rows; the first 100 are shown" in html
    assert "<b>" not in html
    assert "<table" not in VerifyReport(None, (), 1, 10)._repr_html_()


def test_a_damaged_member_counts_as_done(tmp_path):
    """Progress goes on from the end of a member that could not be read, not from its start."""
    path, steps = tmp_path / "a.npz", []
    small = {key: np.zeros(1 << 13) for key in "cdefghij"}
    npzkit.save(path, {"a": np.zeros(9), "b": np.zeros(1 << 17)} | small)
    offset = path.read_bytes().index(b"b.npy") - 30
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(b"XXXX")
    report = npzkit.verify(path, progress=lambda done, total: steps.append(done), threads=1)
    assert "b" in {row.key for row in report.rows}
    assert steps[-2] > report.nbytes * 0.8


def test_a_stream_without_end_is_not_copied_for_ever(monkeypatch):
    """A limit of the total size holds while a stream is copied to a temporary file."""
    monkeypatch.setattr("npzkit.files.file_objects._HEADERS_SIZE", 0)
    endless = SimpleNamespace(read=bytes, seekable=lambda: False)
    with pytest.raises(LimitExceededError, match="the stream has more bytes") as caught:
        npzkit.verify(endless, limits=npzkit.Limits(total_size=5_000_000))
    assert "Limits(total_size=...)" in caught.value.remedy


def test_a_check_of_one_array_of_many_takes_no_memory_for_the_others():
    """Of an archive of thousands of arrays, only those that are checked are looked at."""
    stream = io.BytesIO()
    npzkit.save(stream, {f"k{number}": np.array(number) for number in range(5000)})
    with npzkit.open(stream) as npz:
        npz.verify(["k1"])
        tracemalloc.start()
        assert npz.verify(["k2"], threads=1).ok
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 500_000


PLACES = {
    # Where a bit is flipped, from the local header on or from the data on, and what is reported.
    "signature": ("header", 0, "header"),
    "crc32": ("header", 14, "header"),
    "size": ("header", 18, "header"),
    "name": ("header", 30, "header"),
    "magic of NPY": ("data", 0, "data"),
    "header of NPY": ("data", 20, "data"),
    "dtype": ("data", 21, "data"),
    "data": ("data", 150, "data"),
    "end of the data": ("data", -5, "data"),
}
READS = {
    "read": lambda npz, out: npz["x"],
    "load_all": lambda npz, out: npz.load_all(),
    "fill": lambda npz, out: npz.read("x", out=out),
    "lazy": lambda npz, out: npz.lazy("x").read(),
    "stream": lambda npz, out: npz.stream("x").read(),
}


@pytest.mark.slow
@each_row("size", [100, 100_000])
@each_row("save", [np.savez, np.savez_compressed, npzkit.savez, npzkit.savez_compressed])
def test_a_read_and_verify_name_one_offset(save, size):
    """One damage has one offset: of the local header, of the member's data, or of a chunk of it."""
    stream, values = io.BytesIO(), np.random.default_rng(0).integers(0, 9, size)
    save(stream, a=np.arange(5), x=values, z=np.arange(5))
    sound = stream.getvalue()
    with npzkit.open(sound) as npz:
        entry = npz._archive.entry("x")
    begin = entry.header_offset
    data = begin + 30 + sum(struct.unpack_from("<HH", sound, begin + 26))
    offsets = {"header": begin, "data": data}
    with npzkit.open(sound) as npz:
        chunks = npz._archive.reader.lists.find(entry)
    for place_name, (where, at, reported) in PLACES.items():
        place = offsets[where] + (at if at >= 0 else entry.compressed_size + at)
        damaged = bytearray(sound)
        damaged[place] ^= 4
        rows = npzkit.verify(damaged, keys=["x"]).rows
        (offset,) = {row.where for row in rows if row.severity == "error"}
        if chunks is None or place_name != "end of the data":
            assert offset == offsets[reported]
        else:
            starts = chunks.offsets[:-1] or range(0, entry.uncompressed_size, chunks.chunk_size)
            assert offset == data + starts[-1]
        for name, read in READS.items():
            with npzkit.open(damaged) as npz, pytest.raises(NpzkitError) as caught:
                read(npz, np.zeros_like(values))
            assert caught.value.offset == offset, (place_name, name)


def overwritten(path):
    """Copy another version over a file."""
    other = path.with_name("other.npz")
    npzkit.save(other, {"x": np.arange(500.0) + 1, "y": np.arange(9)})
    path.write_bytes(other.read_bytes())


def flushed(path):
    with npzkit.open(path) as npz:
        npz.memmap("x", mode="r+")[:] = 7


def shortened(path):
    os.truncate(path, 3000)


def appended(path):
    with npzkit.NpzWriter(path, "a", auto_repack=False) as w:
        w.add("x", np.arange(3), overwrite=True)


def replaced(path):
    npzkit.save(path, {"other": np.arange(3)})


@pytest.mark.parametrize("verify", [npzkit.verify, npzkit.NpzFile.verify])
@pytest.mark.parametrize("change", [overwritten, flushed, shortened])
def test_an_outdated_handle_says_nothing_of_the_file(change, verify, tmp_path):
    """If what was opened was written over since, that is StaleArchiveError, and no damage."""
    path = tmp_path / "a.npz"
    npzkit.save(path, {"x": np.arange(500.0), "y": np.arange(9)})
    with npzkit.open(path) as npz:
        change(path)
        with pytest.raises(StaleArchiveError):
            verify(npz)


def test_a_stale_handle_with_other_limits(tmp_path):
    """The same is true if the archive is read again from the handle, within other limits."""
    path = tmp_path / "a.npz"
    npzkit.save(path, {"x": np.arange(500), "y": np.arange(9)})
    with npzkit.open(path) as npz:
        npzkit.save(tmp_path / "b.npz", {"x": np.arange(900)})
        path.write_bytes((tmp_path / "b.npz").read_bytes())
        with pytest.raises(StaleArchiveError):
            npzkit.verify(npz, limits=npzkit.Limits())


@pytest.mark.parametrize("change", [appended, pytest.param(replaced, marks=replaces_open_files)])
def test_a_handle_whose_bytes_are_all_there(change, tmp_path):
    """What was opened is sound, if a writer appended to the file, or another one took its place."""
    path = tmp_path / "a.npz"
    npzkit.save(path, {"x": np.arange(500), "y": np.arange(9)})
    with npzkit.open(path) as npz:
        change(path)
        assert npz.verify().ok


@pytest.mark.remedy("Pass limits=npzkit.Limits(")
def test_a_limit_is_named_with_what_to_pass(tmp_path):
    """The row of what exceeds a limit has the remedy of the error that reading raises."""
    path = tmp_path / "a.npz"
    npzkit.save(path, {"x": np.zeros(1000), "y": np.ones(3)}, metadata={"a": "b" * 100})
    for name in ("member_size", "member_count", "metadata_size", "total_size"):
        report = npzkit.verify(path, limits=npzkit.Limits(**{name: 1}))
        assert not report.ok
        for row in report.rows:
            assert row.remedy == f"Pass limits=npzkit.Limits({name}=...) if the file is trusted."
        assert npzkit.verify(path, limits=npzkit.Limits(**{name: 100_000})).ok


def test_a_report_is_true_if_the_archive_is_sound(tmp_path):
    """`assert npzkit.verify(path)` means what it says."""
    path = tmp_path / "a.npz"
    npzkit.save(path, {"x": np.arange(100)})
    assert npzkit.verify(path)
    data = bytearray(path.read_bytes())
    with npzkit.open(path) as npz:
        data[npz.info("x").data_offset] ^= 1
    path.write_bytes(data)
    assert not npzkit.verify(path)
