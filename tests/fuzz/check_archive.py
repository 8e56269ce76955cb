"""What must hold of any archive: however it is read, it holds the same, and what np.load finds."""

from __future__ import annotations

import contextlib
import html
import io
import zlib
from collections.abc import Iterator
from typing import Any

import npzkit
import numpy as np
from calls import (
    CRASHES_NUMPY,
    LIMITS,
    Result,
    Violation,
    attempt,
    by_numpy,
    folder_of,
    is_same,
    shown,
)
from differences import Case, explain
from memory_store import InStore, MemoryStore
from npzkit.errors import (
    ChecksumError,
    LimitExceededError,
    NpyFormatError,
    NpzkitError,
    PickleRefusedError,
    TornArchiveWarning,
    ZipFormatError,
)
from npzkit.members.metadata import TREE_KEY
from npzkit.reading import load_all as bulk
from npzkit.reading import member as reader
from npzkit.reading import small_member
from npzkit.stores import remote_source, retries
from npzkit.zip import directory

__all__ = ["check_archive"]

_WALKS = {
    "by columns": ((directory, "_COLUMNS_COUNT", 1), (bulk, "_SWEEP_COUNT", 1)),
    "in blocks": (
        (small_member, "SMALL_SIZE", 48), (reader, "SMALL_SIZE", 48), (bulk, "SMALL_SIZE", 48),
        (reader, "CHUNKED_SIZE", 1), (bulk, "CHUNKED_SIZE", 1),
    ),
}  # fmt: skip
"""What makes a small archive be read in the ways of large ones."""
_TAIL_SIZES = 40, 1 << 16
"""Bytes of a store's first answer: less than a directory, and more than most archives."""
_LEFT_BYTES = (
    "the compressed stream does not end where the member does",
    "the deflated stream ends early",
)
"""What is not noticed of large members whose data is right: `verify` alone tells of bytes behind
the stream, and chunks that an index leads to may each be marked as the last one."""
_DECODERS_DIFFER = "the deflate stream is damaged"
"""libdeflate inflates streams with some faults in codes that no symbol uses, which the libraries
for small members refuse. The CRC says whether the data is right."""
_INDEX_LIES = "the list of its chunks leads to wrong data"
_ARRAY_INDEX_LIES = "the array index and the array's own header disagree"


def _walk(name: str) -> Any:
    return _patched(_WALKS[name])


@contextlib.contextmanager
def _patched(constants: Any) -> Iterator[None]:
    old = [getattr(module, constant) for module, constant, _ in constants]
    try:
        for module, constant, value in constants:
            setattr(module, constant, value)
        yield
    finally:
        for (module, constant, _), value in zip(constants, old, strict=True):
            setattr(module, constant, value)


def check_archive(data: bytes, thorough: bool) -> list[str]:
    """Open it, read everything, and hold that against half of the other ways, or all."""
    chosen = zlib.crc32(data)
    opened = attempt("open", npzkit.open, data, limits=LIMITS)
    if opened.error is not None:
        if thorough or chosen % 2:
            _check_refused_alike(data, opened.error)
        if thorough or chosen % 4 == 3:
            _check_refused_in_store(data, opened.error)
        return _check_refused(data, opened.error)
    with opened.value as npz:
        reads = {key: attempt(f"read {key!r}", npz.read, key) for key in npz.files}
        if thorough or chosen % 2:
            _check_together(npz, reads, "")
        for number, name in enumerate(_WALKS):
            if thorough or chosen % 4 == 2 * number:
                with (
                    _walk(name),
                    attempt(f"open {name}", npzkit.open, data, limits=LIMITS).value as other,
                ):
                    _check_other(other, reads, name)
                    _check_together(other, reads, f" {name}")
        if thorough or chosen % 2:
            rows = _check_verified(npz, reads)
            for key, read in reads.items():
                _check_ways(npz, key, read, rows.get(key, []))
            attempt("metadata", lambda: dict(npz.metadata))
            attempt("summary", npz.summary)
            _check_shown(npz)
        if thorough or chosen % 4 == 1:
            _check_tree(npz, reads)
        if thorough or chosen % 16 == 0:
            _check_path(data, reads)
        if thorough or chosen % 4 == 3:
            _check_store(data, reads)
        is_torn = any(category is TornArchiveWarning for _, category in opened.warned)
        labels = _check_newest(data, npz) if is_torn else []
        # Behind a torn end, what was committed counts: np.load is asked of that.
        committed = data[: npz._archive.directory.end_offset]
        labels += _check_numpy(committed, npz, reads)
    return ["opened", *labels]


# -- trees, parts and tables ----------------------------------------------------


def _check_tree(npz: npzkit.NpzFile, reads: dict[str, Result]) -> None:
    """Arrays in parts are joined or refused; each array is in the tree once, if not joined."""
    joined = {key: attempt(f"join {key!r}", npz.join, key) for key in reads}
    tree = attempt("load_tree", npzkit.load_tree, npz, threads=1)
    if tree.error is not None or TREE_KEY in npz.metadata:
        return
    for key, read in reads.items():
        if not is_same(joined[key].value, read.value):
            # An array in parts: the others of them are not in the tree.
            return
    count = _leaf_count(tree.value)
    if count != len(reads):
        raise Violation(f"load_tree has {count} arrays, and there are {len(reads)}")


def _leaf_count(tree: Any) -> int:
    return sum(map(_leaf_count, tree.values())) if isinstance(tree, dict) else 1


def _check_shown(npz: npzkit.NpzFile) -> None:
    text = attempt("as HTML", npz._repr_html_).value
    if not html.unescape(text).isprintable():
        raise Violation(f"HTML that controls: {text!r}"[:300])


# -- refused ---------------------------------------------------------------


def _check_refused(data: bytes, error: NpzkitError) -> list[str]:
    label = f"refused: {type(error).__name__}"
    theirs = by_numpy(np.load, io.BytesIO(data))
    if isinstance(theirs, BaseException) or not hasattr(theirs, "zip"):
        return [label]
    name = explain("open", Case(data, error, theirs, archive=theirs.zip))
    if name is None:
        raise Violation(f"npzkit: {shown(error)}; numpy opens it: {theirs.files}")
    return [label, f"difference: {name}"]


def _check_refused_alike(data: bytes, error: NpzkitError) -> None:
    report = attempt("verify", npzkit.verify, data, limits=LIMITS, threads=1)
    if report.error is not None or report.value.ok:
        raise Violation(f"open: {shown(error)}; verify: {report.outcome}")
    with _walk("by columns"):
        columns = attempt("open by columns", npzkit.open, data, limits=LIMITS)
    stream = attempt("open of a stream", npzkit.open, io.BytesIO(data), limits=LIMITS)
    for way, other in (("by columns", columns), ("of a stream", stream)):
        if type(other.error) is not type(error) or other.error.what != error.what:
            raise Violation(f"open: {shown(error)}; {way}: {shown(other.outcome)}")


# -- one way against another -----------------------------------------------


def _are_alike(one: NpzkitError | None, other: NpzkitError | None) -> bool:
    """Whether two ways met the same fault; of several, one may meet the CRC first."""
    if any(error is not None and error.what.startswith(_LEFT_BYTES) for error in (one, other)):
        return True
    if one is None or other is None:
        return one is other
    kinds = {type(one), type(other)}
    if any(error.what.startswith("the compressed stream") for error in (one, other)):
        # A small member is inflated completely before its header is looked at, others are not.
        return kinds <= {NpyFormatError, ZipFormatError} or ChecksumError in kinds
    return type(one) is type(other) or ChecksumError in (type(one), type(other))


def _check_together(npz: npzkit.NpzFile, reads: dict[str, Result], walk: str) -> None:
    """All at once: what each gives, or the error of one of them."""
    found = attempt(f"load_all{walk}", npz.load_all, threads=1)
    wanted = [list(reads)]
    if found.error is not None:
        read = reads.get(found.error.key)
        if read is None or not _are_alike(read.error, found.error):
            raise Violation(f"load_all{walk}: {shown(found.error)}; read: {read and read.outcome}")
        wanted = [[key] for key, read in reads.items() if read.error is None]
    for keys in wanted:
        some = (
            found
            if found.error is None
            else attempt(f"load_all{walk}", npz.load_all, keys, threads=1)
        )
        for key in keys:
            value = some.outcome if some.error is not None else some.value[key]
            error = reads[key].error
            if error is not None and error.what.startswith(_LEFT_BYTES):
                continue
            if walk == " in blocks" and some.error is None and _is_refused_stream(error):
                continue
            if error is not None or not is_same(value, reads[key].value, ordered=True):
                raise Violation(
                    f"load_all{walk} {key!r}: {shown(value)}; read: {shown(reads[key].outcome)}"
                )


def _check_other(npz: npzkit.NpzFile, reads: dict[str, Result], walk: str) -> None:
    """Another archive object onto the same bytes reads the same."""
    if npz.files != list(reads):
        raise Violation(f"keys {walk}: {npz.files}; else {list(reads)}")
    for key, read in reads.items():
        found = attempt(f"read {walk}", npz.read, key)
        is_left = read.error is not None and read.error.what.startswith(_LEFT_BYTES)
        if walk == "in blocks" and found.error is None and _is_refused_stream(read.error):
            continue
        if not _are_alike(found.error, read.error) or not (
            is_left or is_same(found.value, read.value, ordered=True)
        ):
            raise Violation(
                f"read of {key!r} {walk}: {shown(found.outcome)}; else {shown(read.outcome)}"
            )


def _is_refused_stream(error: NpzkitError | None) -> bool:
    """Whether a decoder refuses a stream, which another one may inflate to the right data."""
    return error is not None and error.what.startswith(_DECODERS_DIFFER)


def _is_attributes(npz: npzkit.NpzFile, key: str, error: NpzkitError) -> bool:
    """Whether it is a member's attributes that are damaged, which its data does not need."""
    return explain("ways", Case(b"", error, None, info=npz._archive.entry(key))) is not None


def _check_verified(npz: npzkit.NpzFile, reads: dict[str, Result]) -> dict[str, list[Any]]:
    """An error in the report is one in reading, and the other way round."""
    report = attempt("verify", npz.verify, threads=1)
    if report.error is not None:
        raise Violation(f"verify raised: {shown(report.error)}")
    str(report.value)
    rows: dict[str, list[Any]] = {}
    for row in report.value.rows:
        if row.severity == "error":
            rows.setdefault(row.key, []).append(row)
    if report.value.ok != (not rows):
        raise Violation("verify's ok is not that of its rows")
    for key, read in reads.items():
        found = rows.get(key, [])
        lies = _INDEX_LIES, _ARRAY_INDEX_LIES
        left = [row for row in found if not row.what.startswith(lies)]
        if read.error is None:
            if left and not (
                len(left) == 1 and _is_attributes(npz, key, ZipFormatError(left[0].what))
            ):
                raise Violation(f"verify {key!r}: {left[0].what}; read: {shown(read.value)}")
        elif not found and not isinstance(read.error, PickleRefusedError):
            raise Violation(f"verify finds nothing wrong with {key!r}; read: {shown(read.error)}")
    if set(rows) - set(reads) - {None}:
        raise Violation(f"verify tells of members that are not there: {set(rows) - set(reads)}")
    return rows


def _check_ways(npz: npzkit.NpzFile, key: str, read: Result, rows: list[Any]) -> None:
    """info, stream and lazy, against what was read."""
    info = attempt(f"info {key!r}", npz.info, key)
    stream = attempt(f"stream {key!r}", lambda: npz.stream(key).read())
    lazy = attempt(f"lazy {key!r}", npz.lazy, key)
    value = read.value
    told = f"{key!r}: read: {shown(read.outcome)}"
    said = [row.what for row in rows]
    # Of a member with two faults, verify tells the other one.
    said += [way.error.what for way in (stream, lazy) if way.error is not None]
    if read.error is None and any(what.startswith(_ARRAY_INDEX_LIES) for what in said):
        for way in (stream, lazy):
            if not (
                way.error is None
                or way.error.what.startswith(_ARRAY_INDEX_LIES)
                or _is_attributes(npz, key, way.error)
            ):
                raise Violation(f"{told}; {shown(way.error)}, and the array index lies")
        return
    if read.error is not None:
        _check_unread(npz, key, read.error, stream, lazy)
        return
    if stream.error is not None:
        raise Violation(f"{told}; stream: {shown(stream.error)}")
    if info.error is not None and not _is_attributes(npz, key, info.error):
        raise Violation(f"{told}; info: {shown(info.error)}")
    if isinstance(value, bytes):
        if stream.value != value or not (info.error or info.value.dtype is None):
            raise Violation(f"{told}; info: {shown(info.outcome)}")
        if not isinstance(lazy.error, NpyFormatError):
            raise Violation(f"{told}; lazy: {shown(lazy.outcome)}")
        return
    parsed = attempt("read_array of a stream", npzkit.format.read_array, io.BytesIO(stream.value))
    if parsed.error is not None or (
        parsed.value.tobytes() != value.tobytes() and not is_same(parsed.value, value)
    ):
        raise Violation(f"{told}; stream: {shown(parsed.outcome)}")
    if lazy.error is not None:
        if not _is_attributes(npz, key, lazy.error):
            raise Violation(f"{told}; lazy: {shown(lazy.error)}")
    elif info.error is None:
        found = info.value.dtype, info.value.shape, info.value.nbytes
        if found != (value.dtype, value.shape, value.nbytes):
            raise Violation(f"{told}; info: {info.value}")
        has_lying_index = any(row.what.startswith(_INDEX_LIES) for row in rows)
        _check_parts(key, lazy.value, value, has_lying_index)


def _check_unread(
    npz: npzkit.NpzFile, key: str, error: NpzkitError, stream: Result, lazy: Result
) -> None:
    """What cannot be read gives an error, or some data, in other ways; a wrong CRC in all whole ones."""
    if (
        stream.error is None
        and not isinstance(error, (NpyFormatError, PickleRefusedError, LimitExceededError))
        # A dtype's name is an attribute: the bytes can be read, the array cannot.
        and not _is_attributes(npz, key, error)
    ):
        raise Violation(f"stream of {key!r} reads to its end; read: {shown(error)}")
    attempt(f"read without CRC {key!r}", npz.read, key, verify=False)
    if lazy.error is None and lazy.value.nbytes <= LIMITS.member_size:
        attempt(f"part of {key!r}", lambda: lazy.value[(slice(None, 2),) * lazy.value.ndim])


def _check_parts(key: str, lazy: Any, value: np.ndarray, has_lying_index: bool) -> None:
    indices: list[Any] = [...]
    if value.ndim:
        indices += [slice(1, 3), slice(None, None, -2)]
    if value.size:
        indices.append((-1,) * value.ndim)
    if value.dtype.names:
        indices.append(value.dtype.names[0])
    for index in indices:
        theirs = by_numpy(lambda index=index: value[index])
        part = attempt(f"part {index} of {key!r}", lambda index=index: lazy[index])
        if has_lying_index or (part.error is not None and isinstance(theirs, BaseException)):
            # A field may have more axes than NumPy has, with the array's.
            continue
        if part.error is not None or not is_same(np.asarray(part.value), np.asarray(theirs)):
            raise Violation(
                f"part {index} of {key!r}: {shown(part.outcome)}; whole: {shown(theirs)}"
            )


def _check_path(data: bytes, reads: dict[str, Result]) -> None:
    """The same archive in a file: read, mapped, and as a stream that was sought in."""
    with folder_of(data) as (_, path):
        with attempt("open by path", npzkit.open, path, limits=LIMITS).value as npz:
            _check_other(npz, reads, "by path")
            for key, read in reads.items():
                mapped = attempt(f"memmap {key!r}", npz.memmap, key)
                if read.error is not None or isinstance(read.value, bytes):
                    continue
                if mapped.error is None:
                    if not is_same(np.asarray(mapped.value), read.value):
                        raise Violation(f"a map of {key!r} holds other data than was read")
                    continue
                info = attempt(f"info {key!r}", npz.info, key)
                if info.error is None and info.value.method == "stored":
                    raise Violation(f"memmap {key!r}: {shown(mapped.error)}; read: {read.value}")
        with attempt("open of a stream", npzkit.open, io.BytesIO(data), limits=LIMITS).value as npz:
            _check_other(npz, reads, "of a stream")


# -- in a store --------------------------------------------------------------


def _stored(data: bytes) -> tuple[Result, MemoryStore]:
    """Open the archive in a store, some answers of which end early."""
    store = MemoryStore(data, cut=5)
    return attempt("open in a store", npzkit.open, InStore(store), limits=LIMITS), store


def _check_refused_in_store(data: bytes, error: NpzkitError) -> None:
    """What is refused in a file is refused in a store, or when its first member is read."""
    for tail_size in _TAIL_SIZES:
        with _patched(((remote_source, "TAIL_SIZE", tail_size), (retries, "FIRST_DELAY", 0))):
            found, _ = _stored(data)
            if found.error is None and error.what.startswith("bytes precede"):
                with found.value as npz:
                    reads = [attempt(f"read {key!r}", npz.read, key) for key in npz.files]
                if any(read.error is not None for read in reads):
                    continue
            if not _are_alike(found.error, error):
                raise Violation(f"in a store: {shown(found.outcome)}; else: {shown(error)}")


def _check_store(data: bytes, reads: dict[str, Result]) -> None:
    """The same archive in a store, with its directory in the first answer or not."""
    for tail_size in _TAIL_SIZES:
        with _patched(((remote_source, "TAIL_SIZE", tail_size), (retries, "FIRST_DELAY", 0))):
            found, store = _stored(data)
            if found.error is not None:
                raise Violation(f"open in a store: {shown(found.error)}")
            with found.value as npz:
                _check_other(npz, reads, "in a store")
                _check_together(npz, reads, " in a store")
                rows = _check_verified(npz, reads)
                for key, read in reads.items():
                    _check_ways(npz, key, read, rows.get(key, []))
                attempt("summary in a store", npz.summary)
                attempt("archive_info in a store", npz.archive_info)
                store.is_replaced = True
                for key, read in reads.items():
                    late = attempt("read after a change", npz.read, key)
                    if late.error is None and not is_same(late.value, read.value):
                        raise Violation(f"{key!r} after a change: {shown(late.outcome)}")


# -- numpy -----------------------------------------------------------------


def _check_newest(data: bytes, npz: npzkit.NpzFile) -> list[str]:
    """Behind a torn end np.load finds nothing newer, nor another archive."""
    theirs = by_numpy(np.load, io.BytesIO(data))
    if isinstance(theirs, BaseException):
        return ["difference: torn end"]
    ours = {entry.header_offset for entry in npz._archive.entries.values()}
    listed = {info.header_offset for info in theirs.zip.filelist}
    # zipfile cuts names at a NUL, so that two of them may become one.
    named = {info.header_offset for info in theirs.zip.NameToInfo.values()}
    if named <= ours <= listed:
        return ["torn end, and numpy reads the same"]
    name = explain("torn", Case(data, npz, theirs, archive=theirs.zip))
    if name is None:
        raise Violation(f"npzkit reads {npz.files}, warning; numpy: {theirs.files}")
    return [f"difference: {name}"]


def _check_numpy(data: bytes, npz: npzkit.NpzFile, reads: dict[str, Result]) -> list[str]:
    """Each member, by np.load."""
    end_at = len(data) - 22 - len(npz._archive.directory.comment)
    place = data.rfind(b"PK\5\6")
    if place != end_at:
        if place + 22 <= len(data):
            raise Violation(f"zipfile takes the end record at {place}, npzkit that at {end_at}")
        return ["difference: a signature that ends the file"]
    theirs = by_numpy(np.load, io.BytesIO(data))
    if isinstance(theirs, BaseException):
        name = explain("open", Case(data, npz, theirs))
        if name is None:
            raise Violation(f"npzkit opens it: {npz.files}; numpy: {shown(theirs)}")
        return [f"difference: {name}"]
    infos = {info.header_offset: info for info in theirs.zip.filelist}
    labels = []
    for key, read in reads.items():
        info = infos.get(npz._archive.entry(key).header_offset)
        if info is None:
            raise Violation(f"zipfile sees no member where {key!r} is")
        if isinstance(read.error, LimitExceededError) and read.error.what.startswith("the member"):
            labels.append("refused: LimitExceededError, numpy not asked")
        elif theirs.zip.NameToInfo[info.filename] is not info:
            labels.append("difference: zipfile gives two members one name")
        else:
            labels.append(_compare_member(data, theirs, info, read))
    return labels


def _compare_member(data: bytes, theirs: Any, info: Any, read: Result) -> str:
    npy = None if read.error is None else _begin_by_zipfile(theirs, info)
    if npy is not None and CRASHES_NUMPY.search(npy):
        return f"refused: {type(read.error).__name__}, numpy not asked"
    found = by_numpy(theirs.__getitem__, info.filename)
    is_raised = isinstance(found, BaseException)
    if read.error is not None and is_raised:
        return f"refused: {type(read.error).__name__}"
    told = f"{info.filename!r}: npzkit: {shown(read.outcome)}; numpy: {shown(found)}"
    if read.error is None and not is_raised:
        if is_same(read.value, found, ordered=True):
            return "agreed"
        if _is_extension(read.value, found, info):
            return "difference: dtype of ml_dtypes"
        raise Violation(told)
    case = Case(data, read.outcome, found, info, theirs.zip, npy or _begin_by_zipfile(theirs, info))
    name = explain("member", case) or explain("header", case)
    if name is None:
        raise Violation(told)
    return f"difference: {name}"


def _begin_by_zipfile(theirs: Any, info: Any) -> bytes | None:
    """Return a member's first bytes, more than any header has here.

    If its end is damaged, they are fewer: numpy may have read no further.
    """
    for size in (info.file_size, max(info.file_size - 1, 0), 1 << 12, 1 << 8):
        found = by_numpy(lambda count: theirs.zip.open(info).read(count), min(size, 1 << 16))
        if not isinstance(found, BaseException):
            return found
    return None


def _is_extension(ours: Any, theirs: Any, info: Any) -> bool:
    return (
        b"npzkit.dtype" in info.extra
        and isinstance(ours, np.ndarray)
        and isinstance(theirs, np.ndarray)
        and ours.dtype.isbuiltin == 2
        and ours.shape == theirs.shape
        and ours.tobytes() == theirs.tobytes()
    )
