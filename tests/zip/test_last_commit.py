"""What follows the last end record that fits: an unfinished append, a damaged commit, another archive, junk.

The first table has whole files, with what npzkit and np.load make of each; the second what an
append leaves, as in the table of `npzkit.zip.last_commit`. Behind them are files cut or changed at
every byte, and what repair makes of more than one damage; `test_single_damage.py` has all the
single ones.
"""

from __future__ import annotations

import contextlib
import functools
import io
import os
import random
import re
import struct
import tempfile
import warnings
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import crash
import npzkit
import numpy as np
import plain_writer
import pytest
from commits import (
    INTENT_SIZE,
    SLOT_SIZE,
    find_footer,
    find_intent,
    format_intent,
    last_end,
    unfinished,
    unsealed,
    with_footer,
)
from deep import amount, extent
from forge import Member, archive, npy
from npzkit.errors import (
    AmbiguousArchiveError,
    ChecksumError,
    NpzkitError,
    TornArchiveWarning,
    UnsupportedError,
    ZipFormatError,
)
from npzkit.files import path_sink
from plain_reader import members_begin

from tables import each_row

END = b"PK\5\6" + bytes(18)
META = {"step": 1, "note": "x" * 40}


def two_commits(*, metadata: bool = False, count: int = 1) -> tuple[bytes, bytes]:
    """Return an archive after its first commit, and after its second."""
    stream = io.BytesIO()
    npzkit.save(stream, {"a": np.arange(3.0)}, metadata=META if metadata else None)
    first = stream.getvalue()
    with npzkit.NpzWriter(stream, "a", auto_repack=False) as w:
        for number in range(count):
            w.add(f"b{number}", np.arange(5) + number, attrs={"unit": "m"})
    return first, stream.getvalue()


def by_numpy(**arrays: Any) -> bytes:
    stream = io.BytesIO()
    np.savez(stream, **arrays)
    return stream.getvalue()


def flipped(data: bytes, bit: int) -> bytes:
    """Return the data with one bit the other way."""
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def loaded(data: bytes) -> list[str] | None:
    """Return the keys that np.load finds; None where it cannot read the file."""
    try:
        with np.load(io.BytesIO(data)) as npz:
            for key in npz.files:
                npz[key]
            return npz.files
    except Exception:
        return None


# -- whole files ---------------------------------------------------------------------


class Row(NamedTuple):
    """A file, by what it is made of.

    Attributes
    ----------
    name : str
    make : callable
        Returns its bytes; the argument is the archive that npzkit is to find.
    outcome : str or type
        "whole", "torn" (the archive is read, with a warning), "joined" (the same, but nothing
        is cut off), or the error.
    others : str
        What np.load reads: "it", "other", or "error".
    """

    name: str
    make: Callable[[bytes], bytes]
    outcome: str | type
    others: str


OTHER = by_numpy(other=np.arange(4))
STREAMED = archive(Member("other.npy", npy(np.arange(4)), method=8, descriptor="signed"))
"""An archive whose members' sizes stand behind their data."""
GROWN = two_commits()[1].replace(b"a.npy", b"o.npy")
TEXT = b"This was added by hand.\n"
SIGNED = b"PK\3\4" + bytes(40)

ROWS = [
    Row("nothing", lambda a: a, "whole", "it"),
    # A whole archive behind it is what others read.
    Row("archive", lambda a: a + OTHER, AmbiguousArchiveError, "other"),
    Row("archive with descriptors", lambda a: a + STREAMED, AmbiguousArchiveError, "other"),
    Row("archive of two commits", lambda a: a + GROWN, AmbiguousArchiveError, "other"),
    Row("two archives", lambda a: a + OTHER + OTHER, AmbiguousArchiveError, "other"),
    Row("itself", lambda a: a + a, AmbiguousArchiveError, "it"),
    Row("zero, archive", lambda a: a + b"\0" + OTHER, AmbiguousArchiveError, "other"),
    # Zeros are also what is left of an append whose first sector was lost.
    Row("zeros, archive", lambda a: a + bytes(700) + OTHER, "joined", "other"),
    Row("many zeros, archive", lambda a: a + bytes(70_000) + OTHER, "joined", "other"),
    Row("text, archive", lambda a: a + TEXT + OTHER, AmbiguousArchiveError, "other"),
    Row("archive, text", lambda a: a + OTHER + TEXT, AmbiguousArchiveError, "other"),
    Row("text, empty end", lambda a: a + TEXT + END, AmbiguousArchiveError, "other"),
    Row("text, empty end, text", lambda a: a + TEXT + END + TEXT, AmbiguousArchiveError, "other"),
    # In front of it is nothing that np.load reads past.
    Row("script in front", lambda a: b"#!/bin/sh\nexit\n" + a, ZipFormatError, "error"),
    Row("zeros in front", lambda a: bytes(512) + a, ZipFormatError, "error"),
    # What is no record is passed over, as np.load does.
    Row("byte", lambda a: a + b"x", "torn", "it"),
    Row("zero", lambda a: a + b"\0", "torn", "it"),
    Row("text", lambda a: a + TEXT, "torn", "it"),
    Row("zeros", lambda a: a + bytes(600), "torn", "it"),
    Row("much text", lambda a: a + 3000 * TEXT, "torn", "error"),
    Row("many zeros", lambda a: a + bytes(70_000), "torn", "error"),
    Row("zeros, text", lambda a: a + bytes(75) + TEXT[:24], "torn", "it"),
    Row("zeros, text for a mark", lambda a: a + bytes(80) + TEXT[:24], "torn", "it"),
    Row("beginning of a member", lambda a: a + SIGNED, "torn", "it"),
    Row("signature", lambda a: a + b"PK\5\6", "torn", "error"),
    Row("half an archive", lambda a: a + OTHER[: len(OTHER) // 2], "torn", "it"),
]


@pytest.mark.slow
@each_row("first", ["np.savez", "one commit", "two commits", "with metadata"])
@each_row("row", ROWS)
def test_what_follows_an_archive(tmp_path, row, first):
    """Each file is read, read with a warning, or refused; what is refused is not changed by repair or append."""
    own = {
        "np.savez": by_numpy(a=np.arange(3.0)),
        "one commit": two_commits()[0],
        "two commits": two_commits()[1],
        "with metadata": two_commits(metadata=True)[1],
    }[first]
    with npzkit.open(own, strict=True) as npz:
        keys, metadata = list(npz), dict(npz.metadata)
    data = row.make(own)
    path = tmp_path / "a.npz"
    path.write_bytes(data)
    found = loaded(data)
    assert found is None if row.others == "error" else (found == keys) == (row.others == "it")
    if isinstance(row.outcome, type):
        for read in (npzkit.open, npzkit.repair, lambda path: npzkit.NpzWriter(path, "a")):
            with pytest.raises(row.outcome):
                read(path)
        assert path.read_bytes() == data
        assert not npzkit.verify(path).ok
        return
    is_torn = row.outcome != "whole"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with npzkit.open(path) as npz:
            assert (list(npz), dict(npz.metadata)) == (keys, metadata)
            assert npz["a"].tolist() == [0, 1, 2]
    assert [warning.category for warning in caught] == [TornArchiveWarning] * is_torn
    report, is_joined = npzkit.verify(path), row.outcome == "joined"
    assert (report.ok, report.torn_size) == (not is_joined, len(data) - len(own))
    if is_torn:
        with pytest.raises(ZipFormatError, match="torn"):
            npzkit.open(path, strict=True)
    if is_joined:
        check_nothing_is_cut_off(path)
        return
    assert npzkit.repair(path).cut_size == len(data) - len(own)
    assert path.read_bytes() == own
    path.write_bytes(data)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TornArchiveWarning)
        w = npzkit.NpzWriter(path, "a", auto_repack=False)
    w["new"] = np.arange(2)
    w.close()
    assert path.read_bytes().startswith(own)
    with npzkit.open(path, strict=True) as npz:
        assert (list(npz), dict(npz.metadata)) == ([*keys, "new"], metadata)


def check_nothing_is_cut_off(path: Path) -> None:
    """What may be another archive stays; repair copies the first one to another file."""
    data, output = path.read_bytes(), path.with_name("copy.npz")
    for change in (npzkit.repair, lambda path: npzkit.NpzWriter(path, "a")):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", TornArchiveWarning)
            with pytest.raises(AmbiguousArchiveError, match="another end"):
                change(path)
    npzkit.repair(path, output, overwrite=True)
    assert path.read_bytes() == data
    with npzkit.open(output, strict=True) as npz:
        assert npz["a"].tolist() == [0, 1, 2]


def test_an_archive_behind_other_bytes():
    """A file object that stands where the archive begins is read, however its offsets count."""
    for own in two_commits(metadata=True):
        for lead in (b"#!/bin/sh\n", bytes(700)):
            stream = io.BytesIO(lead + own)
            stream.seek(len(lead))
            with npzkit.open(stream, strict=True) as npz:
                assert npz["a"].tolist() == [0, 1, 2]
                assert dict(npz.metadata) == META


# -- what an append leaves -----------------------------------------------------------


class Appends(NamedTuple):
    """An append as it was made in each of the two ways: what the file held after each call.

    Attributes
    ----------
    first : bytes
        The file before it.
    small : list of bytes
        After each call of one that was sealed: everything, the seal, the mark.
    far : list of bytes
        After each call of one that had a far copy, in the end twice moved.
    cut : int
        The last of `far` before what follows the new end is cut off.
    """

    first: bytes
    small: list[bytes]
    far: list[bytes]
    cut: int


@functools.cache
def appends() -> Appends:
    """Append the same array in each of the two ways."""
    with tempfile.TemporaryDirectory() as folder:
        path, found = Path(folder) / "a.npz", []
        for is_small in (True, False):
            npzkit.save(path, {"a": np.arange(3.0)})
            first = path.read_bytes()
            with pytest.MonkeyPatch.context() as patched, crash.recorded(Path(folder)) as recorder:
                if not is_small:
                    patched.setattr(path_sink, "_DIRECT_SIZE", 1)
                with npzkit.NpzWriter(path, "a", auto_repack=False) as w:
                    w["b"] = np.arange(200)
            calls = [call for call in recorder.calls if call.kind in ("write", "truncate")]
            found.append([crash.replay(first, calls[:n]) for n in range(1, len(calls) + 1)])
            assert found[-1][-1] == path.read_bytes()
    small, far = found
    assert len(small) == 3
    assert small[-1] == far[-1]
    return Appends(first, small, far, len(far) - 4)


def far_copy(content: bytes) -> tuple[int, int]:
    """Return where the directory of the far copy at a file's end begins and ends."""
    end = content.rindex(b"PK\5\6")
    assert content.endswith(b"npzkit: an append is under way, or was not finished")
    size, begin = struct.unpack_from("<LL", content, end + 12)
    assert begin + size == end
    return begin, end


def zeroed(content: bytes, begin: int, end: int) -> bytes:
    return content[:begin] + bytes(end - begin) + content[end:]


def without_first_sector(content: bytes) -> bytes:
    """Return an append whose intent was lost, with the rest of its sector."""
    begin = len(appends().first)
    return zeroed(content, begin, begin + (-begin % 512 or 512))


def with_a_damaged_end(content: bytes) -> bytes:
    """Return an archive whose new end record has another signature."""
    return flipped(content, 8 * (len(appends().small[-1]) - 22))


def begun() -> bytes:
    """Return an archive to which an append has written its intent alone."""
    return appends().small[0][: members_begin(len(appends().first))]


def with_little() -> bytes:
    """Return an append that lost its intent and its footer, with zeros behind its end."""
    first, content = len(appends().first), appends().far[-3]
    directory = struct.unpack_from("<L", content, content.rindex(b"PK\5\6") + 16)[0]
    content = zeroed(content, first, members_begin(first))
    return zeroed(content, directory - 68, directory) + bytes(100)


def full() -> bytes:
    """Return an append with a far copy of which all is written, and nothing cut off."""
    return appends().far[appends().cut]


class Shape(NamedTuple):
    """How a file ends that an append was made to, and what is read of it.

    Attributes
    ----------
    name : str
    make : callable
        Returns its bytes.
    state : str or type
        "old" or "new", with nothing behind it; "torn": old, with a warning; or the error.
    others : str
        What np.load reads: "old", "new", "other", or "error".
    note : str, default ""
        What `verify` says beside that.
    """

    name: str
    make: Callable[[], bytes]
    state: str | type
    others: str
    note: str = ""


UNMARKED = "not marked as complete"
SHAPES = [
    Shape("nothing behind it", lambda: appends().first, "old", "old"),
    Shape("an intent", lambda: begun(), "torn", "old"),
    Shape("a part of an intent", lambda: begun()[:-45], "torn", "old"),
    Shape("members and no end", lambda: appends().small[0], "torn", "old"),
    Shape("members that are cut", lambda: appends().small[0][:-900], "torn", "old"),
    Shape("a far copy", lambda: appends().far[1], "torn", "old"),
    Shape("a far copy that is not sealed", lambda: appends().far[0], "torn", "old"),
    Shape("a far copy, an intent", lambda: appends().far[2], "torn", "old"),
    Shape("a far copy, an end without its magic", full, "torn", "old"),
    Shape("a far copy, a damaged end", lambda: with_a_damaged_end(full()), "torn", "old"),
    Shape(
        "a far copy without its directory",
        lambda: zeroed(full(), *far_copy(full())),
        "torn",
        "error",
    ),
    Shape(
        "a far copy without its piece",
        lambda: zeroed(full(), far_copy(full())[0] - 32, far_copy(full())[0]),
        "torn",
        "old",
    ),
    Shape(
        "a far copy without both",
        lambda: zeroed(full(), far_copy(full())[0] - 32, far_copy(full())[1]),
        "torn",
        "error",
    ),
    Shape("a part of a far copy", lambda: full()[:-10], "torn", "old"),
    Shape(
        "a part of a far copy, a damaged intent",
        lambda: flipped(full()[:-10], 8 * (len(appends().first) + 46) + 7),
        AmbiguousArchiveError,
        "old",
    ),
    Shape("cut, without magic", lambda: appends().far[-3], "new", "new", UNMARKED),
    Shape("cut, without a mark", lambda: appends().far[-2], "new", "new", UNMARKED),
    Shape("sealed, without a mark", lambda: appends().small[1], "new", "new", UNMARKED),
    Shape("marked", lambda: appends().small[2], "new", "new"),
    Shape(
        "marked, a damaged end",
        lambda: with_a_damaged_end(appends().small[2]),
        ZipFormatError,
        "old",
    ),
    Shape(
        "marked, a damaged directory",
        lambda: flipped(appends().small[2], 8 * (appends().small[2].rindex(b"PK\1\2") + 30)),
        ZipFormatError,
        "new",
    ),
    Shape("marked, cut off", lambda: appends().small[2][:-3], ZipFormatError, "error"),
    Shape("no intent, members", lambda: without_first_sector(appends().small[0]), "torn", "old"),
    Shape("no intent, a far copy", lambda: without_first_sector(full()), "torn", "old"),
    Shape("no intent, an end without its footer", lambda: with_little(), "torn", "new"),
    Shape("zeros", lambda: appends().first + bytes(600), "torn", "old"),
    Shape("another archive", lambda: appends().first + OTHER, AmbiguousArchiveError, "other"),
    Shape("bytes of others", lambda: appends().first + TEXT, "torn", "old"),
]


@pytest.mark.slow
@each_row("shape", SHAPES)
def test_what_an_append_leaves(tmp_path, shape):
    """What npzkit, np.load, the next append, verify and repair make of each way in which a file may end."""
    data, first = shape.make(), appends().first
    path, output = tmp_path / "a.npz", tmp_path / "b.npz"
    path.write_bytes(data)
    keys = {"old": ["a"], "new": ["a", "b"], "other": ["other"], "error": None}
    assert loaded(data) == keys[shape.others]
    if isinstance(shape.state, type):
        for change in (npzkit.open, lambda path: npzkit.NpzWriter(path, "a")):
            with pytest.raises(shape.state):
                change(path)
        assert not npzkit.verify(path).ok
        # What was committed, or may be, is saved.
        kept = ("a", "other") if shape.others == "other" else ("a", "b")
        assert npzkit.repair(path, output, overwrite=True).kept == kept
        assert path.read_bytes() == data
        if shape.state is AmbiguousArchiveError:
            with pytest.raises(shape.state):
                npzkit.repair(path)
            assert path.read_bytes() == data
        else:
            assert npzkit.repair(path).kept == kept
            assert path.read_bytes().startswith(data)
            assert npzkit.verify(path).ok
        return
    is_torn = shape.state == "torn"
    committed = ["a"] if is_torn else keys[shape.state]
    torn_size = len(data) - len(first) if is_torn else 0
    warned = pytest.warns(TornArchiveWarning) if is_torn else contextlib.nullcontext()
    with warned, npzkit.open(path) as npz:
        assert list(npz) == committed
        assert {key: npz[key].tolist() for key in npz} == {
            key: (np.arange(3) if key == "a" else np.arange(200)).tolist() for key in committed
        }
    report = npzkit.verify(path)
    assert (report.ok, report.torn_size) == (True, torn_size)
    said = [row.what for row in report.rows if "dead space" not in row.what]
    if is_torn:
        assert [f"{torn_size:,} bytes after the last commit" in what for what in said] == [True]
    else:
        assert [shape.note in what for what in said] == [True] * bool(shape.note)
    assert path.read_bytes() == data
    assert npzkit.repair(path, output, overwrite=True).kept == tuple(committed)
    assert path.read_bytes() == data
    report = npzkit.repair(path)
    assert (report.kept, report.cut_size) == (tuple(committed), torn_size)
    # Repair and the next append give the commit what it lacks, and change nothing else.
    whole = appends().small[-1] if shape.state == "new" else first
    assert path.read_bytes() == whole
    path.write_bytes(data)
    warned = pytest.warns(TornArchiveWarning) if is_torn else contextlib.nullcontext()
    with warned, npzkit.NpzWriter(path, "a", auto_repack=False) as w:
        w["new"] = np.arange(2)
    for changed, expected in ((path, [*committed, "new"]), (output, committed)):
        assert not [row for row in npzkit.verify(changed).rows if "dead space" not in row.what]
        assert loaded(changed.read_bytes()) == expected
        with npzkit.open(changed, strict=True) as npz:
            assert list(npz) == expected
    assert path.read_bytes().startswith(whole)


def pair_of(data: bytes) -> tuple[str, str]:
    """Return what npzkit makes of a file, and what np.load finds, in the words of `Shape`."""
    names = {("a",): "old", ("a", "b"): "new", ("other",): "other"}
    try:
        with np.load(io.BytesIO(data)) as npz:
            others = names[tuple(npz.files)]
    except Exception:
        others = "error"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            with npzkit.open(data) as npz:
                return "torn" if caught else names[tuple(npz)], others
        except NpzkitError as error:
            return type(error).__name__, others


@pytest.mark.slow
def test_crashes_and_damage_leave_no_other_shapes(tmp_path):
    """Killed, without power, and then with one byte changed, every file is of a kind that the table has."""
    known = {(s.state if isinstance(s.state, str) else s.state.__name__, s.others) for s in SHAPES}
    found, rng = Counter(), random.Random(0)
    for size in (1 << 16, 1):
        path = tmp_path / f"{size}.npz"
        npzkit.save(path, {"a": np.arange(3.0)})
        with pytest.MonkeyPatch.context() as patched, crash.recorded(tmp_path) as recorder:
            patched.setattr(path_sink, "_DIRECT_SIZE", size)
            recorder.mark(0, 1)
            with npzkit.NpzWriter(path, "a", auto_repack=False, durable=True) as w:
                w["b"] = np.arange(200)
            recorder.mark(1)
        killed = crash.killed_states(recorder, str(path))
        lost = crash.power_loss_states(recorder, str(path), rng, extent(40, 400), crash.sector_cuts)
        states = {state.content for state in (*killed, *lost) if state.content is not None}
        for content in sorted(states)[:: extent(7, 1)]:
            found[pair_of(content)] += 1
            place = rng.randrange(len(appends().first), len(content) + 1)
            if place < len(content):
                found[pair_of(flipped(content, 8 * place + rng.randrange(8)))] += 1
    assert set(found) <= known, found


# -- end records in comments -----------------------------------------------------------


def in_comment(kind: str) -> bytes:
    """An archive of two members, with an end record in its comment."""
    members = [Member(name, npy(np.arange(6.0))) for name in ("x.npy", "y.npy")]
    if kind == "both fit":
        return archive(*members, comment=END)
    if kind == "empty":
        return archive(*members, comment=b"note" + END + b"junk")
    plain = archive(*members)
    begin = plain.index(b"PK\1\2")
    entry = plain[begin : plain.index(b"PK\1\2", begin + 4)]
    # It leads to a directory of its own, which lists the first member alone.
    end = b"PK\5\6" + struct.pack("<HHHHLLH", 0, 0, 1, 1, len(entry), len(plain) + 4, 0)
    return archive(*members, comment=b"note" + entry + end + b"junk")


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("kind", ["both fit", "empty", "another directory"])
def test_an_end_record_in_the_comment(kind, strict):
    """An end record that others find in the comment is refused, wherever its own comment ends."""
    data = in_comment(kind)
    if kind != "both fit":
        with zipfile.ZipFile(io.BytesIO(data)) as theirs:
            # It takes what it finds, and looks no further.
            assert theirs.namelist() == ([] if kind == "empty" else ["x.npy"])
    with pytest.raises(AmbiguousArchiveError):
        npzkit.open(data, strict=strict)
    assert not npzkit.verify(data).ok


@pytest.mark.slow
def test_an_older_end_whose_comment_seems_to_end_the_file():
    """A flipped bit in an older end's comment size hides no append: its intent says that it is the later one."""
    size = 2048
    for room in range(1000, size):
        stream = io.BytesIO()
        npzkit.save(stream, {"a": np.arange(3.0)})
        first = stream.getvalue()
        with npzkit.NpzWriter(stream, "a", auto_repack=False) as w:
            w.add("b", np.zeros(room, "u1"))
        data = bytearray(stream.getvalue())
        if len(data) - len(first) >= size:
            break
    assert len(data) - len(first) == size
    data[len(first) - 2 : len(first)] = struct.pack("<H", size)
    assert list(npzkit.open(bytes(data), strict=True)) == loaded(data) == ["a", "b"]
    with pytest.raises(AmbiguousArchiveError):
        npzkit.open(bytes(data).replace(b"NZ\x1c\0\1", b"NZ\x1c\0\0"))


def test_a_signature_without_room_for_a_record():
    """What no program can take for an end record keeps no archive from being read."""
    data = archive(Member("x.npy", npy(np.arange(6.0))), comment=b"PK\5\6" + bytes(17))
    with npzkit.open(data, strict=True) as npz:
        assert npz["x"].tolist() == list(range(6))


# -- every byte -------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("metadata", [False, True])
def test_a_file_that_is_cut_anywhere(metadata):
    """A file that ends within a commit is damaged, as the commit is marked as done; within its mark, it is unfinished."""
    first, data = two_commits(metadata=metadata)
    mark = find_intent(len(first)) + INTENT_SIZE - SLOT_SIZE
    edges = [*range(len(first) - 1, len(first) + 2), *range(mark - 1, mark + SLOT_SIZE + 2)]
    for size in {*range(0, len(data), extent(5, 1)), *edges, len(data) - 1}:
        if size == len(first):
            with npzkit.open(data[:size], strict=True) as npz:
                assert list(npz) == ["a"]
        elif len(first) < size <= mark:
            with pytest.warns(TornArchiveWarning), npzkit.open(data[:size]) as npz:
                assert list(npz) == ["a"]
        elif size < mark or size >= mark + SLOT_SIZE:
            with pytest.raises(ZipFormatError) as caught:
                npzkit.open(data[:size])
            if size > len(first):
                assert "repair" in caught.value.remedy
        else:
            # A part of the mark is none.
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", TornArchiveWarning)
                try:
                    npz = npzkit.open(data[:size])
                except ZipFormatError:
                    continue
            with npz:
                assert list(npz) == ["a"]


@pytest.mark.slow
@pytest.mark.parametrize("compression", ["stored", "deflated"])
def test_an_append_that_was_cut_anywhere(compression):
    """An append that is not marked as done leaves the last commit, with a warning, wherever it was cut."""
    stream = io.BytesIO()
    npzkit.save(stream, {"a": np.arange(3.0)})
    first = stream.getvalue()
    inner = np.frombuffer(first * 3, "u1")
    with npzkit.NpzWriter(stream, "a") as w:
        w.add("b", inner, compression=compression)
        w["c"] = np.arange(3)
    data = stream.getvalue()
    seal = last_end(data)[1]
    step = extent(3, 1)
    cuts = [unfinished(data, size) for size in range(len(first) + 1, seal, step)]
    cuts += [unfinished(data)[:size] for size in range(seal, len(data) + 1)]
    cuts += [torn + bytes(900) for torn in cuts[::7]]
    for torn in cuts:
        with pytest.warns(TornArchiveWarning), npzkit.open(torn) as npz:
            assert list(npz) == ["a"]


@pytest.mark.parametrize("size", range(1, 5))
def test_a_seal_that_is_not_all_there(tmp_path, size):
    """A commit without its whole seal is none; with a mark it was one, and what is in the place of the seal is damage."""
    first, data = two_commits(metadata=True)
    seal, path = last_end(data)[1], tmp_path / "a.npz"
    for found in (b"PK\5\6"[: 4 - size].ljust(4, b"\0"), b"\xff" * size + b"PK\5\6"[size:]):
        torn = unfinished(data)
        torn = torn[:seal] + found + torn[seal + 4 :]
        with pytest.warns(TornArchiveWarning), npzkit.open(torn) as npz:
            assert list(npz) == ["a"]
        path.write_bytes(data[:seal] + found + data[seal + 4 :])
        with pytest.raises(ZipFormatError, match="last commit is damaged"):
            npzkit.open(path)
        assert npzkit.repair(path).kept == ("a", "b0")
        with npzkit.open(path, strict=True) as npz:
            assert dict(npz.metadata) == META
        path.write_bytes(torn)
        assert npzkit.repair(path).kept == ("a",)
        assert path.read_bytes() == first


# -- bytes that were lost or inserted -----------------------------------------------------


def three_commits() -> tuple[bytes, bytes]:
    """Return an archive after its second commit, and after its third, which replaces and removes."""
    stream = io.BytesIO()
    npzkit.save(stream, {key: np.arange(3.0) for key in "abc"})
    with npzkit.NpzWriter(stream, "a", auto_repack=False) as w:
        w["d"] = np.ones(2)
    second = stream.getvalue()
    with npzkit.NpzWriter(stream, "a", auto_repack=False) as w:
        w.add("b", np.arange(3.0) + 9, overwrite=True)
        del w["c"]
    return second, stream.getvalue()


@pytest.mark.slow
@pytest.mark.parametrize("inserted", [None, b"\1", b"PK\5\6"])
def test_bytes_lost_or_inserted_are_no_unfinished_append(inserted):
    """A commit from which bytes are missing, or that has more, never leaves the older state."""
    second, data = three_commits()
    mark = find_intent(len(second)) + INTENT_SIZE - SLOT_SIZE
    for place in range(len(second), len(data) - 22, 3):
        if mark <= place < mark + SLOT_SIZE:
            # Both the mark and the end are damaged then.
            continue
        rest = data[place + 1 :] if inserted is None else inserted + data[place:]
        with pytest.raises(NpzkitError), warnings.catch_warnings():
            warnings.simplefilter("error")
            npzkit.open(data[:place] + rest)


# -- what np.load reads ------------------------------------------------------------------


def appended() -> list[bytes]:
    """Return archives of one, two and three commits, of savez and in each step of an append."""
    first, second = two_commits()
    with_metadata = two_commits(metadata=True)
    member = first[first.index(b"\x93NUMPY") :][: 128 + 24]
    new = {"new.npy": (member, b"")}, b'{"n":1}'
    steps = [
        *plain_writer.append(second, *new),
        *plain_writer.append_in_room(first, *new),
        *plain_writer.append_in_room(with_metadata[1], *new, room=300),
    ]
    return [first, second, *with_metadata, *three_commits(), *steps, OTHER]


def with_another_end(data: bytes, rng: random.Random) -> bytes:
    """Return a file whose last bytes were changed, lost, moved, or followed by others."""
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        least = max(len(data) - rng.choice((30, 100, 400, 1200)), 0)
        begin, other = rng.randrange(least, len(data)), rng.randrange(least, len(data))
        end = min(begin + rng.choice((1, 4, 8, 22, 85, 200)), len(data))
        part = data[begin:end]
        data = rng.choice(
            (
                flipped(data, 8 * begin + rng.randrange(8)),
                data[:begin] + bytes(len(part)) + data[end:],
                data[:begin] + rng.randbytes(len(part)) + data[end:],
                data[: begin + 1],
                data[: begin + 1] + data[end:],
                data[:other] + part + data[other:],
                data[:other] + part + data[other + len(part) :],
                data + part,
                data + rng.choice((b"x", bytes(100), END, OTHER, data)),
            )
        )
    return data


def arrays_of(npz: Any) -> dict[str, tuple]:
    """Return all that is in the arrays of an archive, of npzkit or np.load."""
    return {key: (array.dtype, array.shape, array.tobytes()) for key, array in npz.items()}


@pytest.mark.slow
def test_two_states_are_never_read_without_a_word():
    """Whatever happened to an archive's end: if npzkit and np.load read different arrays, npzkit warns."""
    rng, archives, outcomes = random.Random(0), appended(), Counter()
    for _ in range(amount(2000, 40_000)):
        data = with_another_end(rng.choice(archives), rng)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                with npzkit.open(data) as npz:
                    ours = arrays_of(npz)
            except NpzkitError:
                outcomes["an error"] += 1
                continue
        try:
            with np.load(io.BytesIO(data)) as npz:
                theirs = arrays_of(npz)
        except Exception:
            outcomes["not by np.load"] += 1
            continue
        kind = "the same" if ours == theirs else "other arrays"
        assert caught or kind == "the same", data.hex()
        outcomes[kind + ", warned" * bool(caught)] += 1
    assert outcomes.keys() >= {"an error", "the same", "the same, warned", "not by np.load"}


# -- unfinished appends ------------------------------------------------------------------


def test_an_append_of_many_whole_archives(tmp_path):
    """Whole archives in an array that was half appended hide no commit, however many there are."""
    inner = archive(Member("x.npy", b"12"))
    path = tmp_path / "a.npz"
    npzkit.save(path, {"a": np.arange(3.0)})
    first = path.read_bytes()
    with npzkit.NpzWriter(path, "a") as w:
        w["archives"] = np.frombuffer(inner * 20_000, "u1")
    data = path.read_bytes()
    torn = unfinished(data, len(data) - 2000)
    path.write_bytes(torn)
    with pytest.warns(TornArchiveWarning), npzkit.open(path) as npz:
        assert list(npz) == ["a"]
    assert npzkit.repair(path).cut_size == len(torn) - len(first)
    assert path.read_bytes() == first


def test_a_lost_sector_within_a_name():
    """An append of which the disk lost a sector in a name, and more, leaves the last commit."""
    stream = io.BytesIO()
    npzkit.save(stream, {"a": np.arange(3.0)})
    first = stream.getvalue()
    inner = archive(Member("x.npy", npy(np.arange(3))))
    with npzkit.NpzWriter(stream, "a") as w:
        w.add("b" * 900, np.frombuffer(inner, "u1"))
    data = unfinished(stream.getvalue())
    end = data.index(b"PK\5\6", len(first))
    for lost in range(-(-(len(first) + 31) // 512) * 512, len(first) + 900, 512):
        with pytest.warns(TornArchiveWarning):
            npz = npzkit.open(data[:lost] + bytes(end - lost) + data[end : end + 22])
        with npz:
            assert list(npz) == ["a"]


def test_an_intent_that_follows_another_end():
    """An intent that does not fit the end before it is damage: nothing tells what follows it."""
    first, data = two_commits()
    place = find_intent(len(first))
    for other in (format_intent(len(first) + 1, 0), format_intent(len(first), 1)):
        for rest in (b"", unsealed(data)[place + INTENT_SIZE :]):
            with pytest.raises(ZipFormatError, match="repair"):
                npzkit.open(data[:place] + other + rest)


# -- newer versions ----------------------------------------------------------------------


@pytest.mark.remedy("Install a newer npzkit, which completes or removes what it appended.")
def test_a_newer_intent(tmp_path, monkeypatch):
    """What a newer version was appending is not judged by this one, and not removed.

    One that knows that version completes it, or removes it.
    """
    first, data = two_commits()
    path = tmp_path / "a.npz"
    crc = zlib.crc32(first[last_end(first)[0] :])
    place = find_intent(len(first))
    assert (
        data[place : place + INTENT_SIZE - SLOT_SIZE] == format_intent(len(first), crc)[:-SLOT_SIZE]
    )
    newer = data[:place] + format_intent(len(first), crc, version=2)
    for content in (newer, newer + unsealed(data)[place + INTENT_SIZE :]):
        path.write_bytes(content)
        for read in (npzkit.open, lambda path: npzkit.NpzWriter(path, "a"), npzkit.repair):
            with pytest.raises(UnsupportedError, match="newer"):
                read(path)
        assert path.read_bytes() == content
    # Once it is sealed the intent has served.
    with npzkit.open(newer + data[place + INTENT_SIZE :]) as npz:
        assert npz["b0"].tolist() == [0, 1, 2, 3, 4]
    monkeypatch.setattr("npzkit.zip.commit._VERSION", 2)
    path.write_bytes(newer)
    with pytest.warns(TornArchiveWarning), npzkit.NpzWriter(path, "a") as w:
        w["new"] = np.arange(3)
    with npzkit.open(path, strict=True) as npz:
        assert npz.files == ["a", "new"]


@pytest.mark.remedy("Install a newer npzkit. np.load reads the arrays.")
def test_a_newer_index(tmp_path, monkeypatch):
    """An index whose last bytes have a higher version is refused as such, where the checksum of these bytes fits."""
    path = tmp_path / "a.npz"
    for data in two_commits(metadata=True):
        assert with_footer(data) == data
        newer = with_footer(data, version=2)
        path.write_bytes(newer)
        for read in (npzkit.open, lambda path: npzkit.NpzWriter(path, "a")):
            with pytest.raises(UnsupportedError, match="newer"):
                read(path)
        assert path.read_bytes() == newer
        with np.load(path) as theirs:
            assert theirs["a"].tolist() == [0, 1, 2]
        with monkeypatch.context() as patched:
            patched.setattr("npzkit.zip.commit._VERSION", 2)
            with npzkit.open(path, strict=True) as npz:
                assert npz["a"].tolist() == [0, 1, 2]
        # Without the right checksum it is damage, and no reason to refuse the archive.
        place, _ = find_footer(data)
        with npzkit.open(data[: place + 64] + b"\2" + data[place + 65 :]) as npz:
            assert npz["a"].tolist() == [0, 1, 2]


def test_a_footer_that_says_other_things():
    """A footer that fits its own checksum, and not the directory or the comment behind it, is an error."""
    data = two_commits(metadata=True)[1]
    _, footer = find_footer(data)
    for field in ("directory_size", "entry_count", "directory_crc32"):
        with pytest.raises(ZipFormatError, match="repair"):
            npzkit.open(with_footer(data, **{field: getattr(footer, field) ^ 1}))
    with npzkit.open(with_footer(data, comment_crc32=footer.comment_crc32 ^ 1)) as npz:
        assert npz["b0"].tolist() == [0, 1, 2, 3, 4]
        with pytest.raises(ZipFormatError):
            _ = npz.metadata


@pytest.mark.parametrize("count", [0, 1])
def test_what_another_program_changes_is_believed(tmp_path, count):
    """zipfile adds a member and another comment: neither is damage."""
    path = tmp_path / "a.npz"
    path.write_bytes(two_commits(metadata=True)[count])
    with zipfile.ZipFile(path, "a") as theirs:
        theirs.comment = b"a comment of another size"
    with npzkit.open(path, strict=True) as npz:
        assert npz["a"].tolist() == [0, 1, 2]
        assert dict(npz.metadata) == {}
    with zipfile.ZipFile(path, "a") as theirs:
        theirs.writestr("theirs.npy", npy(np.arange(2)))
    with npzkit.open(path, strict=True) as npz:
        assert list(npz)[-1] == "theirs"
        assert npz["theirs"].tolist() == [0, 1]
    assert npzkit.verify(path).ok


# -- what repair makes of it -----------------------------------------------------------


def test_two_damaged_end_records(tmp_path):
    """If the ends of both commits are damaged, repair saves the newer state."""
    first, data = two_commits()
    damaged = bytearray(data)
    for begin in (len(first) - 22, len(data) - 22):
        damaged[begin] ^= 8
    path = tmp_path / "a.npz"
    path.write_bytes(damaged)
    with pytest.raises(ZipFormatError, match="repair"):
        npzkit.open(path)
    assert npzkit.repair(path).kept == ("a", "b0")


def test_a_damaged_directory_is_no_older_state(tmp_path):
    """A flipped bit in the newest directory is an error, and repair keeps what it can prove."""
    _, data = two_commits(count=3)
    path, output = tmp_path / "a.npz", tmp_path / "b.npz"
    begin = data.rindex(b"PK\1\2", 0, data.rindex(b"b1.npy"))
    path.write_bytes(flipped(data, 8 * begin))
    with pytest.raises(ZipFormatError, match="repair"):
        npzkit.open(path)
    report = npzkit.repair(path, output, overwrite=True)
    assert set(report.kept) == {"a", "b0", "b1", "b2"}
    # The checksum of the directory says that it is restored to the bit.
    assert report.uncertain == npzkit.repair(path).uncertain == ()
    assert path.read_bytes()[: len(data)] == flipped(data, 8 * begin)
    for repaired in (path, output):
        with npzkit.open(repaired, strict=True) as npz:
            assert {key: npz[key][0] for key in npz} == {"a": 0, "b0": 0, "b1": 1, "b2": 2}
            assert npz.info("b2").attrs == {"unit": "m"}


def test_what_is_lost_behind_the_last_commit_is_not_cut_off(tmp_path):
    """If a directory never reached the disk, repair keeps the last commit and what is sound behind it."""
    _, data = two_commits(count=3)
    size = int.from_bytes(data[-10:-6], "little")
    damaged = bytearray(data)
    damaged[-22 - size : -22] = bytes(size)
    # One of the new arrays is damaged too.
    damaged[data.rindex(b"\x93NUMPY", 0, data.rindex(b"b2.npy", 0, -22 - size)) + 130] ^= 1
    path, output = tmp_path / "a.npz", tmp_path / "b.npz"
    path.write_bytes(damaged)
    with pytest.raises(ZipFormatError, match="repair"):
        npzkit.open(path)
    report = npzkit.repair(path, output, overwrite=True)
    assert report.kept == ("a", "b0", "b2")
    assert [lost.key for lost in report.lost] == ["b1"]
    assert report.uncertain == ()
    assert npzkit.repair(path).kept == ("a", "b0", "b1", "b2")
    assert path.read_bytes().startswith(damaged)
    for repaired in (path, output):
        with npzkit.open(repaired, strict=True) as npz:
            assert npz["b2"].tolist() == [2, 3, 4, 5, 6]


def test_a_comment_that_goes_on(tmp_path):
    """If an end record cuts its metadata short, that is damage, and repair has all of it."""
    _, data = two_commits(metadata=True)
    begin = data.rindex(b"PK\5\6")
    path = tmp_path / "a.npz"
    for size in (0, 5):
        path.write_bytes(data[: begin + 20] + struct.pack("<H", size) + data[begin + 22 :])
        with pytest.raises(ZipFormatError, match="repair"):
            npzkit.open(path)
        npzkit.repair(path)
        with npzkit.open(path, strict=True) as npz:
            assert dict(npz.metadata) == META


def test_metadata_lost_with_all_that_follows_it(tmp_path):
    """If a sector with the size of an older comment and the rest of the file is lost, that is no empty comment."""
    first, data = two_commits(metadata=True)
    begin = first.rindex(b"PK\5\6") + 20
    path = tmp_path / "a.npz"
    path.write_bytes(data[:begin] + bytes(len(data) - begin))
    with pytest.raises(ZipFormatError, match="repair"):
        npzkit.open(path)
    report = npzkit.repair(path)
    assert report.kept == ("a",)
    assert [lost.key for lost in report.lost] == ["npzkit.metadata"]
    with npzkit.open(path, strict=True) as npz:
        assert list(npz) == ["a"]


@pytest.mark.parametrize("missing", [0, 1])
def test_repair_makes_no_older_record_fit(tmp_path, missing):
    """Of two end records in a repaired file, only the new one ends with the file."""
    _, data = two_commits()
    begin = data.rindex(b"PK\5\6")
    path = tmp_path / "a.npz"

    def repaired_size(comment_size):
        damaged = data[: begin + 20] + struct.pack("<H", comment_size) + data[begin + 22 :]
        path.write_bytes(damaged)
        assert npzkit.repair(path).kept
        return path.stat().st_size

    size = repaired_size(30_000)
    assert repaired_size(size - begin - 22 - missing) == size + (not missing)
    with npzkit.open(path, strict=True) as npz, np.load(path) as theirs:
        assert npz["b0"].tolist() == theirs["b0"].tolist() == [0, 1, 2, 3, 4]


def test_repair_in_place_lists_the_newest_of_two(tmp_path):
    """Where an entry of the newest directory is damaged, its newer array is listed, not the older one."""
    _, data = three_commits()
    path = tmp_path / "a.npz"
    begin = data.rindex(b"PK\1\2", 0, data.rindex(b"b.npy"))
    for bit in (0, 8 * 28, 8 * 28 + 2, 8 * 30 + 3):
        path.write_bytes(flipped(data, 8 * begin + bit))
        for output in (tmp_path / "b.npz", None):
            report = npzkit.repair(path, output, overwrite=True)
            with npzkit.open(output or path) as npz:
                assert npz["a"].tolist() == [0, 1, 2]
                assert npz["b"].tolist() == [9, 10, 11]
            with zipfile.ZipFile(output or path) as theirs:
                found = {(info.flag_bits, info.extract_version) for info in theirs.infolist()}
            assert found == {(0, 20)}
            assert (report.lost, report.uncertain) == ((), ())


def test_a_newer_array_that_is_damaged_is_no_older_one(tmp_path):
    """Where the newest entry and its array are damaged, a copy goes without it and says so; in its place it stays listed."""
    _, data = three_commits()
    damaged, value = bytearray(data), data.rindex(struct.pack("<d", 10.0))
    damaged[value] ^= 1
    damaged[data.rindex(b"PK\1\2", 0, data.rindex(b"b.npy"))] ^= 1
    path, output = tmp_path / "a.npz", tmp_path / "b.npz"
    path.write_bytes(damaged)
    report = npzkit.repair(path, output, overwrite=True)
    place = data.rindex(b"\x93NUMPY", 0, value)
    assert [(lost.key, lost.where) for lost in report.lost] == [("b", place)]
    assert report.kept == ("a", "d")
    assert npzkit.repair(path).kept == ("a", "b", "d")
    with npzkit.open(path, strict=True) as npz, pytest.raises(ChecksumError):
        npz["b"]


def test_an_entry_that_runs_into_the_end_record(tmp_path):
    """If the newest directory's last entry claims bytes of the end record, its array keeps its key."""
    _, data = three_commits()
    path = tmp_path / "a.npz"
    name_size = data.rindex(b"PK\1\2") + 28
    for output in (tmp_path / "b.npz", None):
        path.write_bytes(flipped(data, 8 * name_size + 1))
        assert "d" in npzkit.repair(path, output, overwrite=True).kept
        with npzkit.open(output or path) as npz:
            assert npz["d"].tolist() == [1, 1]


def test_a_repaired_comment_is_no_end_record(tmp_path):
    """What repair writes is read by np.load, also where the damaged file's comment kept that from it."""
    path = tmp_path / "a.npz"
    comment = b"x" * 30 + b"PK\5\6" + b"y" * 10
    path.write_bytes(archive(Member("a.npy", npy(np.arange(3)))))
    with zipfile.ZipFile(path, "a") as z:
        z.comment = comment
    output = tmp_path / "b.npz"
    npzkit.repair(path, output, overwrite=True)
    with np.load(output) as npz:
        assert npz["a"].tolist() == [0, 1, 2]


def saved(write):
    """Return the bytes of an archive of three arrays."""
    stream = io.BytesIO()
    write(stream, **{f"k{i}": np.arange(40 + i) for i in range(3)})
    return stream.getvalue()


def streamed(stream, **arrays):
    """Save as `zipfile` does to a pipe: sizes follow the data."""
    with zipfile.ZipFile(OnlyWrite(stream), "w") as file:
        for key, array in arrays.items():
            with file.open(f"{key}.npy", "w") as member:
                npzkit.format.write_array(member, array)


class OnlyWrite:
    """A stream that cannot seek."""

    def __init__(self, stream):
        self.write, self.flush = stream.write, stream.flush


CUT = {
    "np.savez": saved(np.savez),
    "np.savez_compressed": saved(np.savez_compressed),
    "npzkit": saved(npzkit.savez),
    "deflated": saved(npzkit.savez_compressed),
    "pipe": saved(streamed),
    "comment": archive(Member("x.npy", npy(np.arange(3))), comment=b"a comment"),
}


@pytest.mark.slow
@pytest.mark.parametrize("program", CUT)
def test_an_archive_that_is_cut_says_how_much_is_missing(program):
    """Cut anywhere, its error and the first finding of verify say so first, and count what is known."""
    data = CUT[program]
    step = extent(4, 1)
    ends = range(len(data) - 300, len(data), step)
    for size in {*range(2, 120, step), *range(2, len(data), 7 * step), *ends, len(data) - 1}:
        if not 1 < size < len(data):
            continue
        with pytest.raises(ZipFormatError) as caught:
            npzkit.open(data[:size])
        missing = len(data) - size
        found = re.match(
            "the archive is cut off: at least its last ([0-9,]*) ?bytes? (is|are) missing",
            caught.value.what,
        )
        assert found, caught.value
        count = int(found[1].replace(",", "") or 1)
        is_known = missing < (10 if program == "comment" else len(data) // 10)
        assert count == missing if is_known else 0 < count <= missing
        assert caught.value.offset == size
        row = npzkit.verify(data[:size]).rows[0]
        assert (row.where, row.what.startswith(found[0])) == (size, True)


@pytest.mark.parametrize("size", [0, 3, 300])
def test_a_comment_of_another_size_with_bytes_behind_it(size):
    """If the size of a comment is damaged, the metadata is never absent, whatever follows."""
    stream = io.BytesIO()
    npzkit.save(stream, {"x": np.arange(3)}, metadata={"note": "n" * 90})
    data = bytearray(stream.getvalue() + b"junk" * 80)
    place = data.rindex(b"PK\5\6") + 20
    data[place : place + 2] = size.to_bytes(2, "little")
    with pytest.raises(ZipFormatError):
        npzkit.open(bytes(data))


@pytest.mark.parametrize("maker", ["savez", "npzkit"])
@pytest.mark.parametrize("share", [0.3, 0.6, 0.95])
def test_a_file_that_was_cut_off_is_not_searched(tmp_path, monkeypatch, maker, share):
    """Members lie side by side to its end: the error comes without reading their data."""
    path = tmp_path / "a.npz"
    arrays = {f"a{i}": np.random.default_rng(i).random(50_000) for i in range(4)}
    np.savez(path, **arrays) if maker == "savez" else npzkit.save(path, arrays)
    os.truncate(path, int(path.stat().st_size * share))
    monkeypatch.setattr("npzkit.zip.last_commit.places_before", None)
    with pytest.raises(ZipFormatError, match="is cut off"):
        npzkit.open(path)
    monkeypatch.undo()
    assert npzkit.repair(path, tmp_path / "b.npz", keep_partial="mask").kept
