"""What must hold of an archive that is written to, or repaired: nothing that could be read is lost."""

from __future__ import annotations

import io
import os
import struct
import zlib
from collections.abc import Callable
from typing import Any

import npzkit
import numpy as np
import plain_reader
from calls import LIMITS, Violation, attempt, by_numpy, folder_of, is_same, shown
from npzkit.errors import LimitExceededError, NpzkitError, PickleRefusedError, ZipFormatError

__all__ = ["check_append"]

NEW = "fuzz/new"
ADDED = np.arange(7, dtype="<i2")


def check_append(data: bytes, thorough: bool) -> list[str]:
    """Append in one of several ways, and now and then repair; or all of that."""
    before = _contents(data)
    chosen = zlib.crc32(data)
    labels = [
        _check_append(data, before, kind)
        for number, kind in enumerate(_EDITS)
        if thorough or chosen % len(_EDITS) == number
    ]
    labels += [
        _check_repair(data, before, partial="mask" if number & 1 else None)
        for number in range(2)
        if thorough or chosen // 8 % 8 == number
    ]
    if thorough or chosen // 8 % 4 == 0:
        labels.append(_check_cut(data, before))
    return labels


class _Contents:
    """What can be read of an archive, by member name, and where its last commit ends.

    If its comment does not fit its checksum, its arrays are read, but it is not appended to.
    `committed` are the bytes up to there as a writer leaves them: with the magic and the mark
    that are missing. Nor is it appended to if it `is_joined`: behind zeros, others find another
    archive. The end is 0 where it is one of no members: a first one behind it would be
    nothing that np.load reads, and such an archive is begun anew.
    """

    def __init__(self, data: bytes, npz: npzkit.NpzFile) -> None:
        self.end_offset = npz._archive.directory.end_offset if npz.files else 0
        directory = npz._archive.directory
        self.committed = _completed(data, directory)[: self.end_offset]
        begin, is_last = directory.directory_offset, directory.end_offset == len(data)
        footer = plain_reader.parse_footer(data, begin, is_last=is_last)
        comment = len(directory.comment), zlib.crc32(directory.comment)
        self.has_damaged_comment = footer is not None and (
            comment[0] == footer.comment_size and comment[1] != footer.comment_crc32
        )
        # Long metadata are elsewhere.
        if directory.comment.startswith(b'{"npzkit.metadata":['):
            self.has_damaged_comment |= (
                attempt("comment", lambda: npz._archive.comment).error is not None
            )
        behind = data[directory.end_offset :]
        is_lost = not behind[: plain_reader.INTENT_SIZE].strip(b"\0")
        self.is_joined = directory.is_joined and is_lost and b"PK\5\6" in behind
        self.arrays: dict[str, Any] = {}
        self.last = npz._archive.entry(npz.files[-1]).name if npz.files else None
        for name in npz._archive.entries:
            read = attempt(f"read {name!r}", npz.read, name)
            if isinstance(read.error, PickleRefusedError):
                read = attempt(f"stream {name!r}", npz.stream(name).read)
            if read.error is None:
                self.arrays[name] = read.value


def _contents(data: bytes) -> _Contents | NpzkitError:
    opened = attempt("open", npzkit.open, data, limits=LIMITS)
    if opened.error is not None:
        return opened.error
    with opened.value as npz:
        return _Contents(data, npz)


def _completed(data: bytes, directory: Any) -> bytes:
    """Return an archive with the magic and the mark of its last commit, if these are missing."""
    begin, end = directory.directory_offset, directory.end_offset
    footer = plain_reader.parse_footer(data, begin, is_last=end == len(data))
    if footer is None:
        return data
    data = data[: begin - 4] + b"NPZX" + data[begin:]
    stop = footer.intent_offset + plain_reader.INTENT_SIZE
    if not plain_reader.INTENT_SIZE < stop <= begin:
        return data
    intent, mark = data[footer.intent_offset : stop - 8], data[stop - 8 : stop]
    crc = struct.pack("<L", zlib.crc32(intent[57:73]))
    if any(mark) or intent != plain_reader.piece(intent[57:77] + mark)[:-8] or intent[73:] != crc:
        return data
    return data[: stop - 8] + struct.pack("<Q", end) + data[stop:]


def _check_kept(wanted: dict[str, Any], after: bytes, kind: str) -> None:
    found = _contents(after)
    if isinstance(found, NpzkitError):
        raise Violation(f"after {kind}: {shown(found)}")
    if found.end_offset not in (0, len(after)) and kind != "give up":
        raise Violation(f"after {kind}: {len(after) - found.end_offset} bytes behind the end")
    for name, value in wanted.items():
        if name not in found.arrays or not is_same(found.arrays[name], value):
            raise Violation(
                f"after {kind}: {name!r} is {shown(found.arrays.get(name))}, was {shown(value)}"
            )


# -- appending -------------------------------------------------------------


class _GaveUpError(Exception):
    """Raised within a writer's block."""


def _add(w: npzkit.NpzWriter, **options: Any) -> None:
    w.add(NEW, ADDED, overwrite=True, **options)


def _add_twice(w: npzkit.NpzWriter) -> None:
    _add(w)
    w.commit()
    w.metadata["fuzz"] = 1
    _add(w, compression="deflated")


def _remove_last(w: npzkit.NpzWriter) -> None:
    if w.files:
        del w[w.files[-1]]
    _add(w)


def _create(w: npzkit.NpzWriter) -> None:
    with w.create(NEW, (len(ADDED),), ADDED.dtype) as array:
        array[:] = ADDED


def _give_up(w: npzkit.NpzWriter) -> None:
    _add(w)
    raise _GaveUpError


_EDITS: dict[str, Callable[[npzkit.NpzWriter], None]] = {
    "add": _add,
    "add twice": _add_twice,
    "remove": _remove_last,
    "create": _create,
    "give up": _give_up,
    "add by path": _add,
    "remove by path": _remove_last,
}


def _append_to(file: Any, kind: str) -> None:
    try:
        # auto_repack, which is on, may write the whole of a path anew.
        with npzkit.NpzWriter(file, "a", threads=1, auto_repack=kind != "add by path") as w:
            _EDITS[kind](w)
    except _GaveUpError:
        pass


def _appended(data: bytes, kind: str) -> tuple[NpzkitError | None, bytes]:
    """Return what was raised, and what is there then."""
    if "path" not in kind:
        stream = io.BytesIO(data)
        return attempt(kind, _append_to, stream, kind).error, stream.getvalue()
    with folder_of(data) as (folder, path):
        error = attempt(kind, _append_to, path, kind).error
        left = os.listdir(folder)
        if left != ["a.npz"]:
            raise Violation(f"{kind} left files behind: {left}")
        return error, _bytes_of(path)


def _bytes_of(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _check_append(data: bytes, before: _Contents | NpzkitError, kind: str) -> str:
    error, after = _appended(data, kind)
    is_opened = not isinstance(before, NpzkitError)
    # A file without bytes is a new archive.
    if (before.has_damaged_comment or before.is_joined) if is_opened else data:
        if error is None or after != data:
            raise Violation(f"open: {shown(before)}; {kind} touched the file; it gave {error}")
        return f"{kind} refused: {type(error).__name__}"
    if error is not None:
        raise Violation(f"{kind}: {shown(error)}; but the archive opens")
    arrays, end_offset, last, committed = {}, 0, None, b""
    if is_opened:
        arrays, end_offset, last = dict(before.arrays), before.end_offset, before.last
        committed = before.committed
    # With auto_repack, a path's file may have been written anew.
    if kind != "remove by path" and after[:end_offset] != committed:
        raise Violation(f"{kind} touched what was committed")
    if kind == "give up":
        if end_offset:
            _check_kept(arrays, after, kind)
        return kind
    # A torn end is dropped before anything is written. An intent begins as a directory does.
    first = b"PK\1\2" if end_offset else b"PK\3\4"
    if kind != "remove by path" and after[end_offset:].lstrip(b"\0")[:4] != first:
        raise Violation(f"{kind} did not write right behind what was committed")
    if "remove" in kind:
        arrays.pop(last, None)
    _check_kept({**arrays, f"{NEW}.npy": ADDED}, after, kind)
    _check_numpy_reads(committed, after, kind)
    return kind


def _check_numpy_reads(before: bytes, after: bytes, kind: str) -> None:
    """Where np.load opened it, it still does, and reads the new array.

    Unless the archive's comment has what zipfile takes for an end record.
    """
    for data in (before, after) if before else (after,):
        opened = attempt("open", npzkit.open, data)
        if data is before and opened.error is not None:
            # Without its magic, a footer counts only at the end of the file.
            return
        with opened.value as npz:
            if b"PK\5\6" in npz._archive.directory.comment:
                return
        theirs = by_numpy(np.load, io.BytesIO(data))
        if isinstance(theirs, BaseException):
            if data is before:
                return
            raise Violation(f"after {kind}, np.load: {shown(theirs)}")
    found = by_numpy(theirs.__getitem__, f"{NEW}.npy")
    if not is_same(found, ADDED):
        raise Violation(f"after {kind}, np.load: {shown(found)} for the new array")


# -- repairing -------------------------------------------------------------


def _check_repair(data: bytes, before: _Contents | NpzkitError, *, partial: str | None) -> str:
    """repair into another file: it is sound, and has what could be read."""
    arrays = {} if isinstance(before, NpzkitError) else before.arrays
    with folder_of(data) as (folder, path):
        output = os.path.join(folder, "b.npz")
        report = attempt(
            "repair", npzkit.repair, path, output, keep_partial=partial, limits=LIMITS, threads=1,
        )  # fmt: skip
        if _bytes_of(path) != data:
            raise Violation("repair touched the damaged file")
        left = sorted(os.listdir(folder))
        if left != (["a.npz"] if report.error else ["a.npz", "b.npz"]):
            raise Violation(f"repair: {shown(report.outcome)}, and left {left}")
        if report.error is not None:
            if arrays:
                raise Violation(f"repair: {shown(report.error)}; read: {list(arrays)}")
            return f"repair refused: {type(report.error).__name__}"
        after = _bytes_of(output)
    str(report.value)
    opened = attempt("strict open of what was repaired", npzkit.open, after, strict=True)
    verified = attempt("verify of what was repaired", npzkit.verify, after, threads=1)
    if opened.error is not None or not verified.value.ok:
        raise Violation(f"after repair: {shown(opened.outcome)}, {verified.outcome}")
    with opened.value as npz:
        if list(report.value.kept) != npz.files and not report.value.lost:
            raise Violation(f"repair kept {report.value.kept}, and there are {npz.files}")
    _check_kept(arrays, after, "repair")
    return "rebuilt" if report.value.is_rebuilt else "repaired"


def _check_cut(data: bytes, before: _Contents | NpzkitError) -> str:
    """repair in place: a tail is cut off, CRCs are sealed, or a directory is written behind all."""
    kind = "repair in place"
    with folder_of(data) as (_, path):
        report = attempt(kind, npzkit.repair, path)
        after = _bytes_of(path)
    if report.error is not None:
        if after != data or not (isinstance(before, NpzkitError) or before.is_joined):
            raise Violation(f"{kind}: {shown(report.error)}; touched: {after != data}; it opens")
        return f"{kind} refused: {type(report.error).__name__}"
    str(report.value)
    cut_size = report.value.cut_size
    if isinstance(before, ZipFormatError) and cut_size:
        data = _without_unfinished(data, cut_size)
        before, cut_size = _contents(data), 0
    if len(after) > len(data):
        if cut_size:
            raise Violation(f"{kind} cut off {cut_size} bytes, and wrote another directory")
        return _check_relisted(data, before, after, report.value)
    end_offset = len(data) - cut_size
    known = (
        data if isinstance(before, NpzkitError) else before.committed + data[before.end_offset :]
    )
    changed = sum(one != other for one, other in zip(after, known, strict=False))
    if len(after) != end_offset or changed > 4 * len(report.value.sealed):
        raise Violation(
            f"{kind} did other than cut the tail off, complete the commit and write CRCs"
        )
    if isinstance(before, NpzkitError):
        if not isinstance(before, LimitExceededError):
            raise Violation(f"{kind} went through; open: {shown(before)}")
    elif before.end_offset not in (0, end_offset):
        raise Violation(f"{kind} cut at {end_offset}, not at {before.end_offset}")
    else:
        _check_kept(before.arrays, after, kind)
    return kind


def _without_unfinished(data: bytes, size: int) -> bytes:
    """Return an archive without its last bytes, which have to be an append without a mark."""
    at = len(data) - size
    stop = plain_reader.members_begin(at)
    if data[stop - 8 : stop].strip(b"\0"):
        raise Violation(f"repair in place cut off at {at} what was committed")
    return data[:at]


def _check_relisted(
    data: bytes, before: _Contents | NpzkitError, after: bytes, report: npzkit.RepairReport
) -> str:
    """A directory behind a damaged one: what np.load read is still there."""
    is_damaged = isinstance(before, ZipFormatError) or getattr(before, "has_damaged_comment", False)
    if not is_damaged:
        raise Violation(f"a sound archive got another directory; it opens: {before}")
    if not after.startswith(data):
        raise Violation("repair in place touched what was there")
    found = _contents(after)
    if isinstance(found, NpzkitError):
        raise Violation(f"after repair in place: {shown(found)}")
    # A key is how a member is called among all, lost ones too.
    if list(report.kept) != _keys(after) and not report.lost:
        raise Violation(f"relisted {report.kept}, and there are {_keys(after)}")
    return "relisted"


def _keys(data: bytes) -> list[str]:
    with npzkit.open(data) as npz:
        return npz.files
