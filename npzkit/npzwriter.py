"""Writing archives: keys and arrays to members, whole or not at all.

Owns what may be written under which key, metadata, and when the new file takes
the old one's place. Knows nothing of bytes: `npzkit.format` makes them,
`npzkit.zip.writer` arranges them, `npzkit.sink` puts them down.
"""

from __future__ import annotations

import io
import os
import pickle
import threading
import warnings
from collections.abc import Callable, Iterable, Mapping
from types import NoneType
from typing import Any, Literal, NamedTuple

import numpy as np

from npzkit.codecs import STORED, check_level, method_number
from npzkit.errors import ClosedArchiveError, NpzkitError, UnsafeNameError
from npzkit.extension_dtypes import DTYPE_ATTRIBUTE, check_fields, extension_name
from npzkit.format.array import array_header, check_savable, data_pieces, needs_pickle
from npzkit.keys import check_key
from npzkit.metadata import format_attrs, format_metadata
from npzkit.sink import open_sink
from npzkit.source import name_of
from npzkit.zip.writer import ZipWriter

__all__ = ["NpzWriter", "save"]

Compression = Literal["stored", "deflated"] | int | None


class NpzWriter:
    """Writes an archive, array by array; nothing is final until `close`.

    At a path, the archive is written to a file beside it that takes its place
    on `close`: whatever happens before, the path holds the old file, whole,
    or none. Leaving the ``with`` block by an exception discards the new one.

    Parameters
    ----------
    file : path or file object
        A path is taken as it is, no ``.npz`` is appended. A file object needs
        only ``write``; it is left open, and its position is where the archive
        begins.
    mode : {"w", "x"}, default "w"
        Replace what is at the path, or fail where something is.
    compression : {"stored", "deflated"} or int, default "stored"
        For arrays that do not say otherwise; zipfile's constants are taken too.
    level : int, optional
        0 to 9 for arrays that are deflated; None takes 6, as numpy does.
    metadata : mapping, optional
        Anything JSON can express, by strings; kept in the archive's comment.
        Tuples come back as lists; NaN and infinity are written as Python's
        `json` writes them, which other languages may refuse.
    allow_pickle : bool, default False
        Whether arrays of Python objects may be written.
    durable : bool, default False
        On `close`, wait until the file is on disk before it takes its place.

    Attributes
    ----------
    metadata : dict
        May be changed until `close`.
    files : list of str
        The keys written so far.

    Raises
    ------
    OSError
        The file cannot be made.
    FileExistsError
        Mode "x" and the path is there.
    ValueError, TypeError
        Bad mode, compression, level or metadata; nothing was touched.

    Notes
    -----
    The bytes depend on the arrays and the options only: no clock, no host.
    Stored data begins at multiples of 64 bytes, for memory maps. Several
    threads may add arrays; they are written one after the other, in the order
    their calls come in. A forked child cannot use its parent's writer, and
    dropping it there changes nothing.

    Examples
    --------
    >>> import io, npzkit, numpy as np
    >>> stream = io.BytesIO()
    >>> with npzkit.NpzWriter(stream, compression="deflated") as w:
    ...     w["weights"] = np.zeros((64, 64))
    ...     w.add("bias", np.ones(3), compression="stored", attrs={"unit": "m"})
    ...     w.metadata["step"] = 7
    >>> npz = npzkit.open(stream)
    >>> npz.info("weights").method, npz.info("bias").attrs["unit"], npz.metadata["step"]
    ('deflated', 'm', 7)
    """

    def __init__(
        self,
        file: Any,
        mode: Literal["w", "x"] = "w",
        *,
        compression: Compression = "stored",
        level: int | None = None,
        metadata: Mapping[str, Any] | None = None,
        allow_pickle: bool = False,
        durable: bool = False,
    ) -> None:
        if mode not in ("w", "x"):
            raise ValueError(f"mode must be 'w' or 'x', not {mode!r}")
        self._method = method_number(compression)
        check_level(level)
        self._level = level
        self._allow_pickle = allow_pickle
        if not isinstance(metadata, (Mapping, NoneType)):
            raise TypeError(f"metadata must be a mapping, not {type(metadata).__name__}")
        self.metadata = dict(metadata or {})
        format_metadata(self.metadata)
        self._members: dict[str, str] = {}
        if not hasattr(file, "write"):
            file = os.fsdecode(file)
        self._name = name_of(file) if hasattr(file, "write") else file
        self._process = os.getpid()
        # Reentrant, so that a signal handler gets an error and does not wait for ever.
        self._lock = threading.RLock()
        self._is_writing = False
        self._sink = open_sink(file, exclusive=mode == "x", durable=durable)
        self._zip = ZipWriter(self._sink)
        self._failure = ""
        self._is_open = True

    @property
    def files(self) -> list[str]:
        return list(self._members.values())

    def __contains__(self, key: object) -> bool:
        return key in self._members.values()

    def __len__(self) -> int:
        return len(self._members)

    def __repr__(self) -> str:
        state = "open" if self._is_open else "closed"
        return f"<NpzWriter {self._name!r}, {len(self)} arrays, {state}>"

    def __setitem__(self, key: str, array: Any) -> None:
        self.add(key, array)

    def add(
        self,
        key: str,
        array: Any,
        *,
        compression: Compression | None = None,
        level: int | None = None,
        attrs: Mapping[str, Any] | None = None,
    ) -> None:
        """Write one array.

        Parameters
        ----------
        key : str
            New to the archive; may hold ``/``. See `npzkit.errors.UnsafeNameError`
            for what may not be a key.
        array : array-like
            Read before this returns, so that it may be changed afterwards.
        compression, level : optional
            For this array; the writer's by default.
        attrs : mapping of str to object, optional
            Attributes to keep with the array: up to 255, strings or whatever
            JSON can express, 65,279 bytes in all.

        Raises
        ------
        UnsafeNameError
            The key cannot be used, or is taken.
        PickleRefusedError
            The array needs pickle and the writer does not allow it.
        UnsupportedError
            A masked array, or fields that overlap or lie out of order.
        LimitExceededError, ValueError, TypeError
            Attributes that are too long, contain themselves, or are nothing
            JSON can express.
        OSError
            The disk is full, or the like. The archive is then discarded, and
            whatever is tried with the writer afterwards is an error.
        ClosedArchiveError
            After `close`, after an array could not be written, or in a forked
            child.
        RuntimeError
            Called within another call, by a signal handler for instance.

        Notes
        -----
        Everything but ``OSError`` is raised before a byte is written, and the
        writer stays usable.
        """
        self._check_open(key)
        name = check_key(key)
        method = self._method if compression is None else method_number(compression)
        level = _level_for(method, level)
        if attrs and DTYPE_ATTRIBUTE in attrs:
            raise ValueError(f"the attribute {DTYPE_ATTRIBUTE!r} is npzkit's own")
        member = _prepare(key, name, array, attrs, allow_pickle=self._allow_pickle)
        self._put(member, method, self._level if level is None else level)

    def _put(self, member: _Member, method: int, level: int | None) -> None:
        self._check_open(member.key)
        self._alone(self._write, member, method, level)

    def _alone(self, work: Callable[..., None], *args: Any) -> None:
        """Call `work` while no other thread writes, and no call further up in this one."""
        with self._lock:
            if self._is_writing:
                raise RuntimeError(
                    "the writer was called while it was writing, by a signal handler or by "
                    "the file object itself; call it when that is done"
                )
            self._is_writing = True
            try:
                work(*args)
            finally:
                self._is_writing = False

    def _write(self, member: _Member, method: int, level: int | None) -> None:
        key, name, pieces, size, extra = member
        self._check_open(key)
        if name in self._members:
            raise UnsafeNameError(
                "this key is in the archive already", path=self._name, key=key,
                remedy="Write each key once.",
            )  # fmt: skip
        try:
            self._zip.write_member(name, pieces, size, method=method, level=level, extra=extra)
            self._members[name] = key
        except BaseException as error:
            # Half a member may be in the file: nothing can follow it.
            self._give_up("the archive was discarded, as an array could not be written", error)
            raise

    def _give_up(self, what: str, error: BaseException) -> None:
        """Discard the archive. Of the error only text is kept: its frames hold the array."""
        self._is_open, self._failure = False, f"{what}: {error!r}"
        self._sink.abort()

    def _check_open(self, key: str | None = None) -> None:
        if self._is_inherited():
            raise ClosedArchiveError(
                "the writer belongs to the process that made it, and this is a forked child",
                path=self._name, key=key, remedy="Write in that process, or to a file of its own.",
            )  # fmt: skip
        if self._failure:
            raise ClosedArchiveError(
                self._failure, path=self._name, key=key, remedy="Write it again from the start."
            )
        if not self._is_open:
            raise ClosedArchiveError("the writer is closed", path=self._name, key=key)

    def _is_inherited(self) -> bool:
        """Whether this is a forked child's copy: its lock may be held for ever."""
        return os.getpid() != self._process

    def close(self) -> None:
        """Complete the archive and put it in its place. Idempotent.

        Raises
        ------
        LimitExceededError, ValueError, TypeError
            The metadata cannot be written; the old file stays.
        OSError
            The file cannot be completed; the old file stays.
        ClosedArchiveError
            An array could not be written before, or the archive not completed;
            the old file stays. Also in a forked child.
        RuntimeError
            Called within another call, by a signal handler for instance.
        """
        if self._is_open or self._failure:
            self._check_open()
        self._alone(self._finish)

    def _finish(self) -> None:
        if self._failure:
            self._check_open()
        if not self._is_open:
            return
        self._is_open = False
        try:
            self._zip.finish(format_metadata(self.metadata))
            self._sink.commit()
        except BaseException as error:
            self._give_up("the archive could not be completed when it was closed", error)
            raise

    def abort(self) -> None:
        """Discard what was written. Idempotent.

        A path keeps its old file. What reached a file object stays there,
        without an end record, so that no reader takes it for an archive. In a
        forked child only the child's copy of the writer is closed.

        Raises
        ------
        RuntimeError
            Called within another call, by a signal handler for instance.
        """
        if self._is_inherited():
            self._discard()
        else:
            self._alone(self._discard)

    def _discard(self) -> None:
        if self._is_open:
            self._is_open = False
            self._sink.abort()

    def __enter__(self) -> NpzWriter:
        return self

    def __exit__(self, exc_type: type[BaseException] | None, *rest: object) -> None:
        if exc_type is None:
            self.close()
        else:
            self.abort()

    def __del__(self) -> None:
        if not getattr(self, "_is_open", False):
            return
        if not self._is_inherited():
            warnings.warn(
                f"NpzWriter {self._name!r} was never closed; what it wrote is discarded",
                ResourceWarning,
                stacklevel=2,
                source=self,
            )
        self.abort()


def _level_for(method: int, level: int | None) -> int | None:
    """Check a level, and that it was not given for what is stored."""
    level = check_level(level)
    if level is not None and method == STORED:
        raise ValueError("level is for compression='deflated'; stored arrays have none")
    return level


def _as_array(array: Any, key: str, *, allow_pickle: bool) -> np.ndarray[Any, Any]:
    """Convert to an array that can be saved whole, or say why that cannot be."""
    converted: np.ndarray[Any, Any] = np.asanyarray(array)
    try:
        check_savable(converted, allow_pickle=allow_pickle)
        check_fields(converted.dtype)
    except NpzkitError as error:
        if converted.dtype == object and not isinstance(array, np.ndarray):
            error.found = type(array).__name__
            error.remedy = (
                "Save the arrays in it under keys of their own, such as 'layer/weights'."
                if isinstance(array, Mapping)
                else "Save something that NumPy makes an array of numbers or strings of, "
                "or pass allow_pickle=True."
            )
        raise error.locate(key=key) from None
    return converted


class _Member(NamedTuple):
    """An array that is checked and only needs to be written.

    Attributes
    ----------
    key, name : str
        The name is the key's, in the archive.
    pieces : sequence or iterator of bytes-like
        Header and data.
    size : int
        Bytes in `pieces` together.
    extra : bytes
        The attributes.
    """

    key: str
    name: str
    pieces: Any
    size: int
    extra: bytes


def _prepare(
    key: str, name: str, array: Any, attrs: Mapping[str, Any] | None, *, allow_pickle: bool
) -> _Member:
    """Do everything that can fail but the writing: header, attributes and pickle."""
    array = _as_array(array, key, allow_pickle=allow_pickle)
    extension = extension_name(array.dtype)
    if extension is not None:
        attrs = {**(attrs or {}), DTYPE_ATTRIBUTE: extension}
    extra = format_attrs(attrs)
    try:
        pieces, size = _member_pieces(array)
    except NpzkitError as error:
        raise error.locate(key=key) from error.__cause__
    return _Member(key, name, pieces, size, extra)


def _member_pieces(array: np.ndarray[Any, Any]) -> tuple[Any, int]:
    """Return a member's data, header first, and its size in bytes."""
    header = array_header(array)
    if needs_pickle(array.dtype):
        stream = io.BytesIO()
        pickle.dump(array, stream, protocol=4)
        pickled = stream.getbuffer()
        return [header, pickled], len(header) + len(pickled)
    pieces = data_pieces(array)
    size = len(header) + array.nbytes
    return ([header, *pieces] if isinstance(pieces, list) else _chain(header, pieces)), size


def _chain(header: bytes, pieces: Any) -> Any:
    yield header
    yield from pieces


def save(
    file: Any,
    arrays: Mapping[str, Any],
    *,
    compression: Compression = "stored",
    level: int | None = None,
    metadata: Mapping[str, Any] | None = None,
    allow_pickle: bool = False,
    durable: bool = False,
) -> None:
    """Write a mapping of arrays as one archive: the old file or the new one.

    Parameters
    ----------
    file : path or file object
        A path is taken as it is, no ``.npz`` is appended.
    arrays : mapping of str to array-like
        In this order. Any key a file could have, ``"file"`` and ``"arr_0"``
        among them. A dict's arrays are all checked, and pickled where they hold
        objects, before anything is touched; of another mapping, such as an
        `NpzFile`, one array at a time is held.
    compression, level, metadata, allow_pickle, durable
        As in `NpzWriter`.

    Raises
    ------
    NpzkitError, OSError, ValueError, TypeError
        As `NpzWriter` and `NpzWriter.add`. The path keeps its old file.

    Examples
    --------
    >>> import io, npzkit, numpy as np
    >>> stream = io.BytesIO()
    >>> npzkit.save(stream, {"file": np.arange(3), "layer/w": np.eye(2)})
    >>> np.load(io.BytesIO(stream.getvalue()))["file"]
    array([0, 1, 2])
    """
    if not isinstance(arrays, Mapping):
        raise TypeError(
            f"arrays must be a mapping of keys to arrays, not {type(arrays).__name__}: "
            "npzkit.save(file, {'x': x}); npzkit.savez(file, x=x) has numpy's signature"
        )
    method = method_number(compression)
    level = _level_for(method, level)
    members: Iterable[_Member] = (
        _prepare(key, check_key(key), array, None, allow_pickle=allow_pickle)
        for key, array in arrays.items()
    )
    if isinstance(arrays, dict):
        # All of them are at hand: nothing is touched where one cannot be saved.
        members = list(members)
    with NpzWriter(
        file,
        compression=compression,
        level=level,
        metadata=metadata,
        allow_pickle=allow_pickle,
        durable=durable,
    ) as writer:
        for member in members:
            writer._put(member, method, level)
