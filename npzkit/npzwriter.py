"""Writing archives: keys and arrays to members, whole or not at all.

Owns what may be written under which key, metadata, and when the new file takes
the old one's place. Knows nothing of bytes: `npzkit.format` makes them,
`npzkit.zip.writer` arranges them, `npzkit.sink` puts them down. What begins an
array that is filled piece by piece is `npzkit.creation`'s.
"""

from __future__ import annotations

import contextlib
import os
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from types import NoneType
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from npzkit.codecs import STORED, check_level, method_number
from npzkit.errors import ClosedArchiveError, UnsafeNameError
from npzkit.extension_dtypes import check_attrs
from npzkit.keys import SUFFIX, check_key, check_keys
from npzkit.metadata import format_metadata
from npzkit.parallel import Pipeline, thread_count
from npzkit.prepare import SMALL_SIZE, Heads, Prepared, SmallArrays, gather, prepare
from npzkit.sink import open_sink
from npzkit.source import name_of
from npzkit.zip.deflate import deflate_small
from npzkit.zip.sozip import CHUNK_SIZE, check_chunk_size
from npzkit.zip.writer import Coding, ZipWriter

if TYPE_CHECKING:
    from npzkit.created import CreatedArray
    from npzkit.creation import Plan

__all__ = ["NpzWriter", "save"]

T = TypeVar("T")

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
        0 to 9 for arrays that are deflated; None takes the fastest encoder
        that keeps to the size of zlib's 6, which is numpy's, for each stretch
        of the data.
    metadata : mapping, optional
        Anything JSON can express, by strings; kept in the archive's comment.
        Tuples come back as lists; NaN and infinity are written as Python's
        `json` writes them, which other languages may refuse.
    allow_pickle : bool, default False
        Whether arrays of Python objects may be written.
    durable : bool, default False
        On `close`, wait until the file is on disk before it takes its place.
    chunk_size : int, default 262_144
        Bytes of the chunks in which arrays are deflated: what a slice of one
        costs at least. 4 KiB to 64 MiB; 32 KiB take two to four times as long.
    seekable : bool, default True
        Whether a deflated array of more than one chunk gets a seek index, a
        hidden member that other programs skip.
    threads : int, optional
        How many deflate and take CRCs; None takes the processors there are.
        The bytes are the same for any number.

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
        Bad mode, compression, level, chunk_size, threads or metadata; nothing
        was touched.

    Notes
    -----
    The bytes depend on the arrays and the options: no clock, no host. Where
    deflated, also on the libraries that are installed, and, without a level,
    on the pieces in which an array is appended. Beside the array, some
    megabytes a thread are held while it is deflated. Stored data begins at
    multiples of 64 bytes, for memory maps. Several threads may add arrays; they
    are written one after the other, in the order their calls come in. A forked
    child cannot use its parent's writer, and dropping it there changes nothing.

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
        chunk_size: int = CHUNK_SIZE,
        seekable: bool = True,
        threads: int | None = None,
    ) -> None:
        if mode not in ("w", "x"):
            raise ValueError(f"mode must be 'w' or 'x', not {mode!r}")
        self._coding = Coding(
            method_number(compression), check_level(level), check_chunk_size(chunk_size), seekable
        )
        self._threads = thread_count(threads)
        self._allow_pickle = allow_pickle
        if not isinstance(metadata, (Mapping, NoneType)):
            raise TypeError(f"metadata must be a mapping, not {type(metadata).__name__}")
        self.metadata = dict(metadata or {})
        format_metadata(self.metadata)
        self._members: dict[str, str] = {}
        self._heads: dict[tuple[int, int], Heads] = {}
        self._created: list[CreatedArray] = []
        self._growing: CreatedArray | None = None
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
        chunk_size: int | None = None,
        seekable: bool | None = None,
    ) -> None:
        """Write one array.

        Parameters
        ----------
        key : str
            New to the archive; may hold ``/``. See `npzkit.errors.UnsafeNameError`
            for what may not be a key.
        array : array-like
            Read before this returns, so that it may be changed afterwards.
        compression, level, chunk_size, seekable : optional
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
            JSON can express; a bad compression, level or chunk_size; an array
            that grows is not sealed yet.
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
        coding = self._coding_for(compression, level, chunk_size, seekable)
        check_attrs(attrs)
        if attrs:
            self._put([prepare(key, name, array, attrs, allow_pickle=self._allow_pickle)], coding)
            return
        largest = _largest_small(coding.method, coding.chunk_size)
        members = gather(
            (key,), (name,), (array,), self._heads.setdefault((coding.method, largest), {}),
            largest=largest, allow_pickle=self._allow_pickle,
        )  # fmt: skip
        self._put(list(members), coding)

    def _coding_for(
        self,
        compression: Compression | None,
        level: int | None,
        chunk_size: int | None,
        seekable: bool | None,
    ) -> Coding:
        """Return how one array is to be written: what is not given is the writer's."""
        coding = self._coding
        method = coding.method if compression is None else method_number(compression)
        level = _level_for(method, level)
        return Coding(
            method,
            coding.level if level is None else level,
            coding.chunk_size if chunk_size is None else check_chunk_size(chunk_size),
            coding.is_seekable if seekable is None else seekable,
        )

    def create(
        self,
        key: str,
        shape: int | Sequence[int | None] | None,
        dtype: Any,
        *,
        compression: Compression | None = None,
        level: int | None = None,
        attrs: Mapping[str, Any] | None = None,
        fortran_order: bool = False,
        chunk_size: int | None = None,
        seekable: bool | None = None,
    ) -> Any:
        """Begin an array that is larger than memory, to be filled piece by piece.

        Stored, with a shape that is known, it is filled in any order:
        ``dst[0:1000] = part``, also by other processes, forked or handed `dst`
        by pickle; what is never written is zeros. Deflated, or with a first
        dimension of None, it grows: ``dst.append(rows)``.

        Parameters
        ----------
        key : str
        shape : int or sequence of int
            The first dimension may be None: it is then the number of rows that
            were appended.
        dtype : dtype-like
            Of plain values.
        compression, level, attrs, chunk_size, seekable
            As in `add`.
        fortran_order : bool, default False
            For a stored array of known shape.

        Returns
        -------
        dst : FilledArray or AppendedArray
            To be used in a ``with`` block: leaving it seals the array, leaving
            it by an exception discards the archive. `close` seals as well.

        Raises
        ------
        UnsafeNameError, PickleRefusedError, LimitExceededError, ClosedArchiveError
            As `add`. Also for a header over 65,535 bytes, of a deflated array
            whose number of rows is not known.
        UnsupportedError
            The archive goes to a file object that cannot be read and written
            at offsets.
        ValueError
            A bad shape; or an array that grows is not sealed yet: nothing can
            be written behind it.
        OSError
            No room for the array, where that can be known first.

        Examples
        --------
        >>> import io, npzkit, numpy as np
        >>> stream = io.BytesIO()
        >>> with npzkit.NpzWriter(stream) as w:
        ...     with w.create("big", (4, 2), "i4") as dst:
        ...         dst[2:4] = 7
        ...         dst[0:2] = [[1, 2], [3, 4]]
        ...     with w.create("log", (None, 2), "f8", compression="deflated") as dst:
        ...         for step in range(3):
        ...             dst.append([step, step / 2])
        >>> npz = npzkit.open(stream)
        >>> npz["big"].tolist(), npz["log"].shape
        ([[1, 2], [3, 4], [7, 7], [7, 7]], (3, 2))
        """
        self._check_open(key)
        name = check_key(key)
        coding = self._coding_for(compression, level, chunk_size, seekable)
        check_attrs(attrs)
        from npzkit.creation import plan_array

        plan = plan_array(key, name, shape, dtype, attrs, coding, fortran_order=fortran_order)
        plan.check_sink(self._sink, self._name)
        return self._alone(self._begin, plan)

    def _begin(self, plan: Plan) -> CreatedArray:
        from npzkit.creation import Hooks, begin

        self._check_open()
        self._check_free(plan.key, plan.name)
        if plan.size is not None and not plan.grows:
            # Where there is no room nothing is lost.
            self._sink.reserve(plan.size)
        hooks = Hooks(self._write_more, self._seal, self._abandon)
        with self._giving_up():
            created = begin(plan, self._zip, self._threads, hooks)
            self._members[plan.name] = plan.key
        self._created.append(created)
        if plan.grows:
            self._growing = created
        return created

    def _write_more(self, write: Callable[..., None], *args: Any) -> None:
        """Write more of an array that was created."""
        # In a forked child the lock may be held for ever.
        self._check_open()
        self._alone(self._guarded, write, *args)

    def _seal(self, created: CreatedArray, seal: Callable[[], None]) -> None:
        self._check_open()
        self._alone(self._guarded, self._seal_alone, created, seal)

    def _seal_alone(self, created: CreatedArray, seal: Callable[[], None]) -> None:
        seal()
        self._created.remove(created)
        if created is self._growing:
            self._growing = None

    def _guarded(self, work: Callable[..., None], *args: Any) -> None:
        """Call what writes, and give the archive up where that fails."""
        self._check_open()
        with self._giving_up():
            work(*args)

    def _put(self, members: Iterable[Prepared | SmallArrays], coding: Coding) -> None:
        self._check_open()
        self._alone(self._write, members, coding)

    def _alone(self, work: Callable[..., T], *args: Any) -> T:
        """Call `work` while no other thread writes, and no call further up in this one."""
        with self._lock:
            if self._is_writing:
                raise RuntimeError(
                    "the writer was called while it was writing, by a signal handler or by "
                    "the file object itself; call it when that is done"
                )
            self._is_writing = True
            try:
                return work(*args)
            finally:
                self._is_writing = False

    def _write(self, members: Iterable[Prepared | SmallArrays], coding: Coding) -> None:
        """Write members in their order, small stored ones together."""
        self._check_open()
        with Pipeline(self._threads) as pipeline:
            for member in members:
                if isinstance(member, SmallArrays):
                    self._write_small(member, coding, pipeline)
                else:
                    self._write_one(member, coding, pipeline)
            with self._giving_up():
                pipeline.drain()

    def _write_one(self, member: Prepared, coding: Coding, pipeline: Pipeline) -> None:
        key, name, pieces, size, extra = member
        self._check_free(key, name)
        with self._giving_up():
            self._zip.write_member(name, pieces, size, pipeline, coding=coding, extra=extra)
            self._members[name] = key

    def _write_small(self, arrays: SmallArrays, coding: Coding, pipeline: Pipeline) -> None:
        taken = self._members.keys() & arrays.names
        if taken or self._growing is not None:
            name = next(iter(taken), arrays.names[0])
            self._check_free(name.removesuffix(SUFFIX), name)
        with self._giving_up():
            pipeline.drain()
            encode = None if coding.method == STORED else partial(deflate_small, level=coding.level)
            self._zip.write_small(arrays.members(encode), coding.method)
            self._members.update(zip(arrays.names, arrays.keys, strict=True))

    def _check_free(self, key: str, name: str) -> None:
        """Raise unless a member of this name can be written now."""
        if self._growing is not None:
            raise ValueError(
                f"the array {self._growing.key!r} is still growing; close it before another "
                "is written"
            )
        if name in self._members:
            raise UnsafeNameError(
                "this key is in the archive already", path=self._name, key=key,
                remedy="Write each key once.",
            )  # fmt: skip

    @contextlib.contextmanager
    def _giving_up(self) -> Iterator[None]:
        """Discard the archive where what follows fails: half a member may be in the file."""
        try:
            yield
        except BaseException as error:
            self._give_up("the archive was discarded, as an array could not be written", error)
            raise

    def _give_up(self, what: str, error: BaseException) -> None:
        """Discard the archive. Of the error only text is kept: its frames hold the array."""
        self._is_open, self._failure = False, f"{what}: {error!r}"
        self._forget_created()
        self._sink.abort()

    def _forget_created(self) -> None:
        for created in self._created:
            created.forget()
        self._created.clear()
        self._growing = None

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

        Arrays that were created and are not sealed yet are sealed first.

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
        for created in list(self._created):
            created.close()
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

    def _abandon(self) -> None:
        """Discard the archive because of an array that was created and not completed."""
        if self._is_open:
            self._failure = (
                "the archive was discarded: an array that was being created was given up, by an "
                "exception in its block or before it was complete"
            )
            self._alone(self._discard)

    def _discard(self) -> None:
        if self._is_open:
            self._is_open = False
            self._forget_created()
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


def _largest_small(method: int, chunk_size: int) -> int:
    """Bytes of a member that is written with its neighbours: it must need no seek index."""
    return SMALL_SIZE if method == STORED else min(SMALL_SIZE, chunk_size)


def _level_for(method: int, level: int | None) -> int | None:
    """Check a level, and that it was not given for what is stored."""
    level = check_level(level)
    if level is not None and method == STORED:
        raise ValueError("level is for compression='deflated'; stored arrays have none")
    return level


def save(
    file: Any,
    arrays: Mapping[str, Any],
    *,
    compression: Compression = "stored",
    level: int | None = None,
    metadata: Mapping[str, Any] | None = None,
    allow_pickle: bool = False,
    durable: bool = False,
    chunk_size: int = CHUNK_SIZE,
    seekable: bool = True,
    threads: int | None = None,
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
        `NpzFile`, they are taken one by one, and few are held at a time.
    compression, level, metadata, allow_pickle, durable, chunk_size, seekable, threads
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
    level, chunk_size = _level_for(method, level), check_chunk_size(chunk_size)
    keys = list(arrays)
    members: Iterable[Prepared | SmallArrays] = gather(
        keys, check_keys(keys), arrays.values(), {},
        largest=_largest_small(method, chunk_size), allow_pickle=allow_pickle,
    )  # fmt: skip
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
        chunk_size=chunk_size,
        seekable=seekable,
        threads=threads,
    ) as writer:
        writer._put(members, writer._coding)
