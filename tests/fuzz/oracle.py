"""What must hold of any input whatever: `check` raises `Violation` where it does not.

An `NpzkitError` or data, never another exception and no warning but those that
are documented; the data np.load gives, or a row of `differences.DIFFERENCES`;
and all of npzkit's own ways to a member agree. Nothing takes long, or much
memory.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shutil
import tempfile
import time
import traceback
import warnings
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import npzkit
import numpy as np
from differences import Case, explain
from npzkit import bulk, reader
from npzkit.errors import (
    AmbiguousArchiveWarning,
    ArchiveLockedError,
    ChecksumError,
    ClosedArchiveError,
    LimitExceededError,
    NotMappableError,
    NpyFormatError,
    NpzkitError,
    PickleRefusedError,
    StaleArchiveError,
    TornArchiveWarning,
    ZipFormatError,
)
from npzkit.zip import directory

try:
    import resource
except ImportError:  # Windows
    resource = None

__all__ = ["TARGETS", "Violation", "check"]

MAX_SECONDS = 1.0
"""Of the processor's time, for a small input."""
MAX_GROWTH = 500 << 20
"""Bytes that one input may cost in memory."""
LIMITS = npzkit.Limits(member_size=1 << 22, member_count=10_000)
"""A bzip2 stream of 50 bytes is 900 kB: members are kept small, not refused archives."""
DOCUMENTED_WARNINGS = (
    (UserWarning, "Reading this header needed an extra step"),
    # Of a member that cannot be copied: the archive stays as it was committed.
    (RuntimeWarning, "the archive is complete, but its dead space could not be given back"),
)


UNTRUE = (StaleArchiveError, ArchiveLockedError, ClosedArchiveError)
"""What no input is: nothing else has it open."""


class Violation(AssertionError):
    """npzkit did what it must not do."""


class Result:
    """What one call returned or raised, and whether it warned."""

    __slots__ = ("error", "value", "warned")

    def __init__(self, value: Any, error: NpzkitError | None, warned: list[Any]) -> None:
        self.value, self.error, self.warned = value, error, warned

    @property
    def outcome(self) -> Any:
        return self.value if self.error is None else self.error


def attempt(what: str, call: Callable[..., Any], *args: Any, **options: Any) -> Result:
    """Call npzkit: an NpzkitError and documented warnings may come of it, nothing else."""
    before = len(_warned)
    value, error = None, None
    begin = time.process_time()
    try:
        value = call(*args, **options)
    except Violation:
        raise
    except NpzkitError as raised:
        error = raised
        if isinstance(raised, UNTRUE):
            raise Violation(f"{what}: {shown(raised)}") from raised
        str(raised)
    except BaseException as raised:
        if isinstance(raised, (KeyboardInterrupt, SystemExit)):
            raise
        text = "".join(traceback.format_exception(raised)[-4:])
        raise Violation(
            f"{what} raised {type(raised).__name__}, no NpzkitError:\n{text}"
        ) from raised
    finally:
        _spent[0] += time.process_time() - begin
    warned = _warned[before:]
    del _warned[before:]
    for message, category in warned:
        if category not in (TornArchiveWarning, AmbiguousArchiveWarning) and not any(
            category is kind and str(message).startswith(text) for kind, text in DOCUMENTED_WARNINGS
        ):
            raise Violation(f"{what} warned: {category.__name__}: {message}")
    return Result(value, error, warned)


_spent = [0.0]
"""Seconds in npzkit: numpy may take as long as it likes."""
_warned: list[tuple[Any, type[Warning]]] = []


@contextlib.contextmanager
def recorded_warnings() -> Iterator[None]:
    """Record all warnings, once for many inputs: to do so for each would take longer than it."""
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = lambda message, category, *rest, **more: _warned.append(
            (message, category)
        )
        yield


def by_numpy(call: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Call numpy: whatever it raises is its outcome."""
    try:
        return call(*args, **options)
    except (KeyboardInterrupt, SystemExit, Violation):
        raise
    except BaseException as error:
        return error
    finally:
        _warned.clear()


def is_same(ours: Any, theirs: Any, *, ordered: bool = False) -> bool:
    """Whether two arrays have the same dtype, shape, bytes and, if asked, order in memory."""
    if not isinstance(ours, np.ndarray) or not isinstance(theirs, np.ndarray):
        return type(ours) is type(theirs) and ours == theirs
    if ours.dtype != theirs.dtype or ours.shape != theirs.shape:
        return False
    # Items without bytes have no order that would show.
    if (
        ordered
        and ours.size > 1
        and ours.itemsize
        and (
            ours.flags.c_contiguous != theirs.flags.c_contiguous
            or ours.flags.f_contiguous != theirs.flags.f_contiguous
        )
    ):
        return False
    if ours.tobytes() == theirs.tobytes():
        return True
    names = ours.dtype.names
    # Padding is copied or not.
    return names is not None and all(is_same(ours[name], theirs[name]) for name in names)


def shown(outcome: Any) -> str:
    if isinstance(outcome, BaseException):
        return f"{type(outcome).__name__}: {outcome}"[:300]
    if isinstance(outcome, np.ndarray):
        return f"array of {outcome.dtype} {outcome.shape}"
    return repr(outcome)[:100]


def check(target: str, data: bytes, *, thorough: bool = False) -> list[str]:
    """Hold one input against everything; return what came of it, in a few words each.

    Parameters
    ----------
    target : {"npy", "archive", "append"}
    data : bytes
    thorough : bool
        Take every way to a member, those through the disk too; else, the
        input's CRC decides which of the slow ones.

    Raises
    ------
    Violation
        Something does not hold.
    """
    growth = _peak()
    _spent[0] = 0.0
    labels = TARGETS[target](bytes(data), thorough)
    seconds = _spent[0]
    if seconds > MAX_SECONDS * max(len(data) / 65_536, 1):
        raise Violation(f"too slow: {seconds:.1f} s for {len(data)} bytes")
    if _peak() - growth > MAX_GROWTH:
        raise Violation(f"too large: {_peak() - growth} bytes of memory for {len(data)} bytes")
    return labels


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 if resource else 0


# -- an NPY file -----------------------------------------------------------

_CRASHES_NUMPY = re.compile(rb"[mM]8?\[[^\]]*(/|0)|datetime64\[|timedelta64\[")
"""A divided unit or one of zero ends the process with a division by zero in C."""


class _Trickle:
    """A stream that gives few bytes at a time."""

    def __init__(self, data: bytes) -> None:
        self._stream = io.BytesIO(data)

    def read(self, size: int = -1) -> bytes:
        return self._stream.read(min(size, 7) if size >= 0 else 7)


def check_npy(data: bytes, thorough: bool) -> list[str]:
    """An NPY file, read by npzkit.format and by numpy.lib.format."""
    stream = io.BytesIO(data)
    ours = attempt("read_array", npzkit.format.read_array, stream)
    chosen = zlib.crc32(data) % 8
    if thorough or chosen == 0:
        again = attempt("read_array in pieces", npzkit.format.read_array, _Trickle(data))
        if type(again.error) is not type(ours.error) or not is_same(again.value, ours.value):
            raise Violation(f"whole: {shown(ours.outcome)}; in pieces: {shown(again.outcome)}")
    if thorough:
        _check_map(data, ours)
    is_left_out = chosen % 4 and not thorough
    if ours.error is not None and (is_left_out or _CRASHES_NUMPY.search(data)):
        # Most of the time here is numpy's, on what it refuses as well.
        return [f"refused: {type(ours.error).__name__}, numpy not asked"]
    their_stream = io.BytesIO(data)
    theirs = by_numpy(np.lib.format.read_array, their_stream, allow_pickle=False)
    label = _compare_npy(Case(data, ours.outcome, theirs))
    if (
        ours.error is None
        and not isinstance(theirs, BaseException)
        and stream.tell() != their_stream.tell()
    ):
        raise Violation(f"npzkit stopped at byte {stream.tell()}, numpy at {their_stream.tell()}")
    return [label]


def _compare_npy(case: Case) -> str:
    ours, theirs = case.ours, case.theirs
    if isinstance(ours, BaseException) and isinstance(theirs, BaseException):
        return f"refused: {type(ours).__name__}"
    if not isinstance(ours, BaseException) and not isinstance(theirs, BaseException):
        if is_same(ours, theirs, ordered=True):
            return "agreed"
        raise Violation(f"npzkit: {shown(ours)}, numpy: {shown(theirs)}")
    name = explain("header", case)
    if name is None:
        raise Violation(f"npzkit: {shown(ours)}; numpy: {shown(theirs)}")
    return f"difference: {name}"


def _check_map(data: bytes, ours: Result) -> None:
    """The same file by its path, mapped."""
    with _folder() as folder:
        path = _written(folder, "a.npy", data)
        mapped = attempt("open_memmap", _quietly_mapped, path)
        if (
            mapped.error is None
            and ours.error is None
            and not is_same(np.asarray(mapped.value), ours.value)
        ):
            raise Violation("a map holds other data than the array that was read")
        if mapped.error is None and ours.error is not None:
            raise Violation(f"mapped, but not read: {shown(ours.error)}")


def _quietly_mapped(path: str) -> Any:
    try:
        return npzkit.format.open_memmap(path, "r")
    except (ValueError, OverflowError) as error:
        # numpy.memmap's own words for an array of no bytes.
        if isinstance(error, NpzkitError) or "empty file" not in str(error):
            raise
        raise NotMappableError(str(error)) from error


# -- an archive ------------------------------------------------------------


@contextlib.contextmanager
def _folder() -> Iterator[str]:
    memory = "/dev/shm"
    folder = tempfile.mkdtemp(dir=memory if os.path.isdir(memory) else None)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _written(folder: str, name: str, data: bytes) -> str:
    path = os.path.join(folder, name)
    with open(path, "wb") as file:
        file.write(data)
    return path


@contextlib.contextmanager
def _constants(**values: int) -> Iterator[None]:
    """Read a small archive in the ways of large ones."""
    places = {
        "columns": ((directory, "_COLUMNS_COUNT"),),
        "sweep": ((bulk, "_SWEEP_COUNT"),),
        "small": ((reader, "SMALL_SIZE"), (bulk, "SMALL_SIZE")),
        "chunked": ((reader, "CHUNKED_SIZE"), (bulk, "CHUNKED_SIZE")),
    }
    old = []
    try:
        for name, value in values.items():
            for module, constant in places[name]:
                old.append((module, constant, getattr(module, constant)))
                setattr(module, constant, value)
        yield
    finally:
        for module, constant, value in old:
            setattr(module, constant, value)


WALKS = {"by columns": {"columns": 1, "sweep": 1}, "in blocks": {"small": 48, "chunked": 1}}


def check_archive(data: bytes, thorough: bool) -> list[str]:
    """Open, and read everything in every way."""
    opened = attempt("open", npzkit.open, data, limits=LIMITS)
    ways = zlib.crc32(data) % 8
    with _constants(**WALKS["by columns"]):
        columns = attempt("open by columns", npzkit.open, data, limits=LIMITS)
    if type(opened.error) is not type(columns.error) or (
        opened.error is not None and opened.error.what != columns.error.what
    ):
        raise Violation(
            f"one by one: {shown(opened.outcome)}; by columns: {shown(columns.outcome)}"
        )
    if opened.error is not None:
        return _check_refused(data, opened.error, thorough or ways == 1)
    npz = opened.value
    with npz:
        reads = {key: attempt(f"read {key!r}", npz.read, key) for key in npz.files}
        _check_together(npz, reads, "")
        for name, constants in WALKS.items():
            if thorough or ways % 2 == (name == "by columns"):
                with (
                    _constants(**constants),
                    attempt(f"open {name}", npzkit.open, data, limits=LIMITS).value as other,
                ):
                    _check_other(other, reads, name)
                    _check_together(other, reads, f" {name}")
        rows = _check_verified(npz, reads)
        for key, read in reads.items():
            _check_ways(npz, key, read, rows.get(key, []))
        attempt("metadata", lambda: dict(npz.metadata))
        attempt("summary", npz.summary)
        if thorough or ways == 0:
            _check_path(data, reads)
        labels = ["opened"]
        if any(category is TornArchiveWarning for _, category in opened.warned):
            labels.append("difference: torn end")
        # Behind a torn end, what was committed counts: np.load is asked of that.
        labels += _check_numpy(data[: npz._end_offset], npz, reads)
    return labels


def _check_refused(data: bytes, error: NpzkitError, is_slow_too: bool) -> list[str]:
    report = attempt("verify", npzkit.verify, data, limits=LIMITS)
    if report.error is not None or report.value.ok:
        raise Violation(f"open: {shown(error)}; verify: {report.outcome}")
    if is_slow_too:
        again = attempt("open of a stream", npzkit.open, io.BytesIO(data), limits=LIMITS)
        if again.error is None or again.error.what != error.what:
            raise Violation(f"bytes: {shown(error)}; as a stream: {shown(again.outcome)}")
    label = f"refused: {type(error).__name__}"
    theirs = by_numpy(np.load, io.BytesIO(data))
    if isinstance(theirs, BaseException) or not hasattr(theirs, "zip"):
        return [label]
    name = explain("open", Case(data, error, theirs, theirs_open=theirs))
    if name is None:
        raise Violation(f"npzkit: {shown(error)}; numpy opens it: {theirs.files}")
    return [label, f"difference: {name}"]


def _check_together(npz: npzkit.NpzFile, reads: dict[str, Result], walk: str) -> None:
    """All at once: what each gives, or the error of one of them."""
    found = attempt("load_all" + walk, npz.load_all, threads=1)
    if found.error is not None:
        read = reads.get(found.error.key)
        if read is None or not _are_alike(read.error, found.error):
            raise Violation(
                f"load_all{walk}: {shown(found.error)}; read: {read and shown(read.outcome)}"
            )
    else:
        for key, read in reads.items():
            if read.error is not None or not is_same(found.value[key], read.value, ordered=True):
                raise Violation(
                    f"load_all{walk} {key!r}: {shown(found.value[key])}; read: {shown(read.outcome)}"
                )
    for key, read in reads.items():
        if found.error is not None and read.error is None:
            alone = attempt(f"load_all of {key!r}{walk}", npz.load_all, [key], threads=1)
            if alone.error is not None or not is_same(alone.value[key], read.value, ordered=True):
                raise Violation(
                    f"load_all of {key!r}{walk}: {shown(alone.outcome)}; read: {shown(read.outcome)}"
                )


def _are_alike(one: NpzkitError | None, other: NpzkitError | None) -> bool:
    """Whether two ways met the same fault; of several, one may meet the CRC first."""
    if one is None or other is None:
        return one is other
    return type(one) is type(other) or ChecksumError in (type(one), type(other))


def _check_other(npz: npzkit.NpzFile, reads: dict[str, Result], walk: str) -> None:
    """Another archive object onto the same bytes reads the same."""
    if npz.files != list(reads):
        raise Violation(f"keys {walk}: {npz.files}; else {list(reads)}")
    for key, read in reads.items():
        found = attempt(f"read {walk}", npz.read, key)
        if not _are_alike(found.error, read.error) or not is_same(
            found.value, read.value, ordered=True
        ):
            raise Violation(
                f"read of {key!r} {walk}: {shown(found.outcome)}; else {shown(read.outcome)}"
            )


INDEX_LIES = "its seek index leads to other data"


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
        if read.error is None:
            left = [row for row in found if not row.what.startswith(INDEX_LIES)]
            if left and not _is_attribute_row(npz, key, left):
                raise Violation(f"verify {key!r}: {left[0].what}; read: {shown(read.value)}")
        elif not found and not isinstance(read.error, PickleRefusedError):
            raise Violation(f"verify finds nothing wrong with {key!r}; read: {shown(read.error)}")
    if set(rows) - set(reads) - {None}:
        raise Violation(f"verify tells of members that are not there: {set(rows) - set(reads)}")
    return rows


def _is_attribute_row(npz: npzkit.NpzFile, key: str, rows: list[Any]) -> bool:
    error = ZipFormatError(rows[0].what)
    return len(rows) == 1 and bool(explain("ways", Case(b"", error, None, info=npz._entry(key))))


def _check_ways(npz: npzkit.NpzFile, key: str, read: Result, rows: list[Any]) -> None:
    """info, stream and lazy, against what was read."""
    info = attempt(f"info {key!r}", npz.info, key)
    stream = attempt(f"stream {key!r}", lambda: npz.stream(key).read())
    lazy = attempt(f"lazy {key!r}", npz.lazy, key)
    value = read.value
    if read.error is not None:
        _check_unread(npz, key, read.error, stream, lazy)
        return
    if stream.error is not None:
        raise Violation(f"stream of {key!r}: {shown(stream.error)}; read: {shown(value)}")
    if isinstance(value, bytes):
        told = info.error is None and info.value.dtype is None
        if info.error is not None:
            told = explain("ways", Case(b"", info.error, value, info=npz._entry(key)))
        if stream.value != value or not told:
            raise Violation(f"{key!r} is no array by read, {shown(info.outcome)}")
        if not isinstance(lazy.error, NpyFormatError):
            raise Violation(f"{key!r} is no array by read, {shown(lazy.outcome)} by lazy")
        return
    parsed = attempt("read_array of a stream", npzkit.format.read_array, io.BytesIO(stream.value))
    if parsed.error is not None or (
        parsed.value.tobytes() != value.tobytes() and not is_same(parsed.value, value)
    ):
        raise Violation(f"stream of {key!r}: {shown(parsed.outcome)}; read: {shown(value)}")
    case = Case(b"", info.error or lazy.error, value, info=npz._entry(key))
    if info.error is not None or lazy.error is not None:
        if explain("ways", case) is None:
            raise Violation(
                f"read: {shown(value)}; info: {shown(info.outcome)}; lazy: {shown(lazy.outcome)}"
            )
        return
    if (info.value.dtype, info.value.shape, info.value.nbytes) != (
        value.dtype,
        value.shape,
        value.nbytes,
    ):
        raise Violation(f"info: {info.value}; read: {shown(value)}")
    _check_parts(key, lazy.value, value, any(row.what.startswith(INDEX_LIES) for row in rows))


def _check_unread(
    npz: npzkit.NpzFile, key: str, error: NpzkitError, stream: Result, lazy: Result
) -> None:
    """What cannot be read gives an error, or some data, in every other way; a CRC in all whole ones."""
    if stream.error is None and not isinstance(
        error, (NpyFormatError, PickleRefusedError, LimitExceededError)
    ):
        # A dtype's name is an attribute: the bytes can be read, the array cannot.
        if not explain("ways", Case(b"", error, stream.value, info=npz._entry(key))):
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
        part = attempt(f"part {index} of {key!r}", lambda index=index: lazy[index])
        if has_lying_index:
            continue
        if part.error is not None or not is_same(np.asarray(part.value), np.asarray(value[index])):
            raise Violation(
                f"part {index} of {key!r}: {shown(part.outcome)}; whole: {shown(value[index])}"
            )


def _check_path(data: bytes, reads: dict[str, Result]) -> None:
    """The same archive in a file: read, mapped, and as a stream that was sought in."""
    with _folder() as folder:
        path = _written(folder, "a.npz", data)
        with attempt("open by path", npzkit.open, path, limits=LIMITS).value as npz:
            _check_other(npz, reads, "by path")
            for key, read in reads.items():
                mapped = attempt(f"memmap {key!r}", npz.memmap, key)
                is_mappable = not isinstance(read.value, bytes)
                if (
                    mapped.error is None
                    and read.error is None
                    and not is_same(np.asarray(mapped.value), read.value)
                ):
                    raise Violation(f"a map of {key!r} holds other data than was read")
                if mapped.error is not None and read.error is None and is_mappable:
                    info = attempt(f"info {key!r}", npz.info, key)
                    if info.error is None and info.value.method == "stored":
                        raise Violation(
                            f"memmap of {key!r}: {shown(mapped.error)}; read: {shown(read.value)}"
                        )
                del mapped
        with attempt("open of a stream", npzkit.open, io.BytesIO(data), limits=LIMITS).value as npz:
            _check_other(npz, reads, "of a stream")


def _check_numpy(data: bytes, npz: npzkit.NpzFile, reads: dict[str, Result]) -> list[str]:
    """Each member, by np.load."""
    end_at = len(data) - 22 - len(npz._comment)
    if data.rfind(b"PK\5\6") != end_at:
        return ["difference: zipfile takes another end record"]
    theirs = by_numpy(np.load, io.BytesIO(data))
    if isinstance(theirs, BaseException):
        name = explain("open", Case(data, npz, theirs))
        if name is None:
            raise Violation(f"npzkit opens it: {npz.files}; numpy: {shown(theirs)}")
        return [f"difference: {name}"]
    infos = {info.header_offset: info for info in theirs.zip.filelist}
    labels = []
    for key, read in reads.items():
        info = infos.get(npz._entry(key).header_offset)
        if info is None:
            raise Violation(f"zipfile sees no member where {key!r} is")
        if (
            isinstance(read.error, LimitExceededError)
            and read.error.what == "the member is too large"
        ):
            labels.append("refused: LimitExceededError, numpy not asked")
        elif theirs.zip.NameToInfo[info.filename] is not info:
            labels.append("difference: zipfile gives two members one name")
        else:
            labels.append(_compare_member(data, theirs, info, read, npz))
    return labels


def _compare_member(data: bytes, theirs: Any, info: Any, read: Result, npz: npzkit.NpzFile) -> str:
    npy = by_numpy(lambda: theirs.zip.open(info).read(1 << 16))
    npy = None if isinstance(npy, BaseException) else npy
    if read.error is not None and npy is not None and _CRASHES_NUMPY.search(npy[:20_000]):
        return f"refused: {type(read.error).__name__}, numpy not asked"
    found = by_numpy(theirs.__getitem__, info.filename)
    case = Case(data, read.outcome, found, info, theirs, npy)
    is_raised = isinstance(found, BaseException)
    if read.error is not None and is_raised:
        return f"refused: {type(read.error).__name__}"
    if read.error is None and not is_raised:
        if is_same(read.value, found, ordered=True):
            return "agreed"
        if _is_extension(read.value, found, info):
            return "difference: dtype of ml_dtypes"
        raise Violation(f"{info.filename!r}: npzkit: {shown(read.value)}; numpy: {shown(found)}")
    name = explain("member", case) or explain("header", case)
    if name is None:
        raise Violation(f"{info.filename!r}: npzkit: {shown(read.outcome)}; numpy: {shown(found)}")
    return f"difference: {name}"


def _is_extension(ours: Any, theirs: Any, info: Any) -> bool:
    return (
        b"npzkit.dtype" in info.extra
        and isinstance(ours, np.ndarray)
        and isinstance(theirs, np.ndarray)
        and ours.dtype.isbuiltin == 2
        and ours.shape == theirs.shape
        and ours.tobytes() == theirs.tobytes()
    )


# -- appending, and repairing ----------------------------------------------

NEW = "fuzz/new"
ADDED = np.arange(7, dtype="<i2")


class _GaveUp(Exception):
    """Raised within a writer's block."""


def _contents(data: Any) -> tuple[dict[str, Any], int] | NpzkitError:
    """Return what can be read, by member name, and where the last commit ends.

    0 where that is one of no members: a first one behind it would be nothing
    that np.load reads, and such an archive is begun anew.
    """
    opened = attempt("open", npzkit.open, data, limits=LIMITS)
    if opened.error is not None:
        return opened.error
    found = {}
    with opened.value as npz:
        for name in npz._entries:
            read = attempt(f"read {name!r}", npz.read, name)
            if read.error is None:
                found[name] = read.value
            elif isinstance(read.error, PickleRefusedError):
                whole = attempt(f"stream {name!r}", npz.stream(name).read)
                if whole.error is None:
                    found[name] = whole.value
        end_offset = npz._end_offset if npz.files else 0
    return found, end_offset


def check_append(data: bytes, thorough: bool) -> list[str]:
    """Append in one of several ways, and repair: nothing that could be read is lost."""
    before = _contents(data)
    kinds = list(EDITS)
    chosen = zlib.crc32(data)
    labels = []
    for kind in kinds if thorough else [kinds[chosen % len(kinds)]]:
        labels.append(_check_append(data, before, kind))
    for number in range(4) if thorough else [chosen // 64 % 4] if chosen // 8 % 4 == 0 else []:
        labels.append(
            _check_repair(data, before, partial=bool(number & 1), uncommitted=bool(number & 2))
        )
    if thorough or chosen // 8 % 4 == 1:
        labels.append(_check_cut(data, before))
    return labels


def _add(w: npzkit.NpzWriter, **options: Any) -> None:
    w.add(NEW, ADDED, overwrite=True, **options)


def _add_twice(w: npzkit.NpzWriter) -> None:
    _add(w)
    w.commit()
    w.metadata["fuzz"] = 1
    _add(w, compression="deflated")


def _edit(w: npzkit.NpzWriter) -> None:
    """Remove the last key there is."""
    if w.files:
        del w[w.files[-1]]
    _add(w)


def _create(w: npzkit.NpzWriter) -> None:
    with w.create(NEW, (len(ADDED),), ADDED.dtype) as array:
        array[:] = ADDED


def _give_up(w: npzkit.NpzWriter) -> None:
    _add(w)
    raise _GaveUp


EDITS: dict[str, Callable[[npzkit.NpzWriter], None]] = {
    "add": _add,
    "add twice": _add_twice,
    "remove and add": _edit,
    "create": _create,
    "give up": _give_up,
    "add by path": _add,
    "remove by path": _edit,
}


def _append_to(file: Any, kind: str) -> None:
    try:
        # auto_repack, which is on, may write the whole of a path anew.
        with npzkit.NpzWriter(file, "a", threads=1, auto_repack=kind != "add by path") as w:
            EDITS[kind](w)
    except _GaveUp:
        pass


def _check_append(data: bytes, before: Any, kind: str) -> str:
    if "path" in kind:
        with _folder() as folder:
            path = _written(folder, "a.npz", data)
            done = attempt(kind, _append_to, path, kind)
            left = sorted(os.listdir(folder))
            if left != ["a.npz"]:
                raise Violation(f"{kind} left files behind: {left}")
            with open(path, "rb") as file:
                after = file.read()
    else:
        stream = io.BytesIO(data)
        done = attempt(kind, _append_to, stream, kind)
        after = stream.getvalue()
    # A stream without bytes is begun anew, a file without any is no archive.
    if isinstance(before, NpzkitError) and (data or "path" in kind):
        if done.error is None:
            raise Violation(f"open: {shown(before)}; {kind} goes through")
        if after != data:
            raise Violation(f"{kind}: {shown(done.error)}, but the file was touched")
        return f"{kind} refused: {type(done.error).__name__}"
    contents, end_offset = ({}, 0) if isinstance(before, NpzkitError) else before
    if done.error is not None:
        if after[:end_offset] != data[:end_offset]:
            raise Violation(f"{kind}: {shown(done.error)}, and what was committed was touched")
        # Whatever it was, it must not have cost anything.
        _check_kept(contents, after, kind)
        if after != data:
            raise Violation(f"{kind}: {shown(done.error)}, but the file was touched")
        raise Violation(f"{kind}: {shown(done.error)}; open: {list(contents)}")
    wanted = dict(contents)
    if "remove" in kind:
        opened = npzkit.open(data, limits=LIMITS) if data else None
        if opened is not None and opened.files:
            wanted.pop(opened._member(opened.files[-1]), None)
        del _warned[:]
    if kind == "give up":
        if after[:end_offset] != data[:end_offset]:
            raise Violation("an append that was given up touched what was committed")
        if end_offset:
            _check_kept(contents, after, kind)
        return kind
    wanted[NEW + ".npy"] = ADDED
    if contents and "path" not in kind and after[:end_offset] != data[:end_offset]:
        raise Violation(f"{kind} touched what was committed")
    _check_kept(wanted, after, kind)
    _check_numpy_reads(data[:end_offset], after, kind)
    return kind


def _check_kept(wanted: dict[str, Any], after: bytes, kind: str) -> None:
    found = _contents(after)
    if isinstance(found, NpzkitError):
        raise Violation(f"after {kind}: {shown(found)}")
    contents, end_offset = found
    if end_offset not in (0, len(after)) and kind != "give up":
        raise Violation(f"after {kind}: {len(after) - end_offset} bytes behind the end")
    for name, value in wanted.items():
        if name not in contents or not is_same(contents[name], value):
            raise Violation(
                f"after {kind}: {name!r} is {shown(contents.get(name))}, was {shown(value)}"
            )


def _check_numpy_reads(before: bytes, after: bytes, kind: str) -> None:
    """Where np.load opened it, it still does, and reads the new array.

    Unless the archive's comment, which is kept, holds what zipfile takes for an end record.
    """
    with npzkit.open(after) as npz:
        if b"PK\5\6" in npz._comment:
            return
    if before and isinstance(by_numpy(np.load, io.BytesIO(before)), BaseException):
        return
    theirs = by_numpy(np.load, io.BytesIO(after))
    if isinstance(theirs, BaseException):
        raise Violation(f"after {kind}, np.load: {shown(theirs)}")
    found = by_numpy(theirs.__getitem__, NEW + ".npy")
    if not is_same(found, ADDED):
        raise Violation(f"after {kind}, np.load: {shown(found)} for the new array")


def _check_repair(data: bytes, before: Any, *, partial: bool, uncommitted: bool) -> str:
    with _folder() as folder:
        path = _written(folder, "a.npz", data)
        output = os.path.join(folder, "b.npz")
        report = attempt(
            "repair", npzkit.repair, path, output, partial=partial, uncommitted=uncommitted,
            limits=LIMITS, threads=1,
        )  # fmt: skip
        with open(path, "rb") as file:
            if file.read() != data:
                raise Violation("repair touched the damaged file")
        contents = {} if isinstance(before, NpzkitError) else before[0]
        left = sorted(os.listdir(folder))
        if report.error is not None:
            if contents:
                raise Violation(f"repair: {shown(report.error)}; read: {list(contents)}")
            if left != ["a.npz"]:
                raise Violation(f"repair: {shown(report.error)}, and left {left}")
            return f"repair refused: {type(report.error).__name__}"
        if left != ["a.npz", "b.npz"]:
            raise Violation(f"repair left {left}")
        str(report.value)
        with open(output, "rb") as file:
            after = file.read()
    opened = attempt("strict open of what was repaired", npzkit.open, after, strict=True)
    verified = attempt("verify of what was repaired", npzkit.verify, after)
    if opened.error is not None or not verified.value.ok:
        raise Violation(f"after repair: {shown(opened.outcome)}, {verified.outcome}")
    with opened.value as npz:
        if list(report.value.kept) != npz.files and not report.value.lost:
            raise Violation(f"repair kept {report.value.kept}, and there are {npz.files}")
    # What lies behind the last commit may have another array of the same name.
    if not uncommitted:
        _check_kept(contents, after, "repair")
    return "rebuilt" if report.value.is_rebuilt else "repaired"


def _check_cut(data: bytes, before: Any) -> str:
    """repair in place: a tail is cut off, and nothing else is done."""
    with _folder() as folder:
        path = _written(folder, "a.npz", data)
        report = attempt("repair in place", npzkit.repair, path)
        with open(path, "rb") as file:
            after = file.read()
    if report.error is not None:
        if after != data:
            raise Violation(f"repair in place: {shown(report.error)}, but the file was touched")
        if not isinstance(before, NpzkitError):
            raise Violation(f"repair in place: {shown(report.error)}; it opens")
        return f"repair in place refused: {type(report.error).__name__}"
    if isinstance(before, NpzkitError):
        if not isinstance(before, LimitExceededError):
            raise Violation(f"repaired in place; open: {shown(before)}")
        return "repaired in place"
    contents, _ = before
    end_offset = len(data) - report.value.cut_size
    if after != data[:end_offset] or before[1] not in (0, end_offset):
        raise Violation("repair in place did other than cut the tail off")
    _check_kept(contents, after, "repair in place")
    return "repaired in place"


TARGETS: dict[str, Callable[[bytes, bool], list[str]]] = {
    "npy": check_npy,
    "archive": check_archive,
    "append": check_append,
}
