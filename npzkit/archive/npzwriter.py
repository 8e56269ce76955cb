"""Writing archives: keys and arrays to members, whole or not at all.

Owns what may be written under which key, what is edited, and when it counts.
Knows nothing of bytes: `npzkit.format` makes them, `npzkit.zip.writer` arranges
them, `npzkit.files.sink` and `npzkit.files.path_sink` put them down. How an archive that is
there is opened is `npzkit.writing.append`'s, what begins an array that is filled
piece by piece `npzkit.writing.array_plan`'s.
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

from npzkit.codecs.methods import STORED, check_level, method_number
from npzkit.errors import (
    ClosedArchiveError,
    KeyExistsError,
    NpzkitError,
    UnsupportedError,
)
from npzkit.files.locking import check_timeout
from npzkit.files.parallel import Pipeline, thread_count
from npzkit.files.source import name_of
from npzkit.members.keys import SUFFIX, check_key, check_keys, keys_of, member_of, missing
from npzkit.members.metadata import check_attrs, format_metadata, parse_metadata
from npzkit.writing.append import Resumed, begin, resume
from npzkit.writing.attributes import EditedAttributes
from npzkit.writing.prepare import (
    SMALL_SIZE,
    Heads,
    Prepared,
    SmallArrays,
    gather,
    gather_split,
    prepare,
    prepare_parts,
    splitting_for,
)
from npzkit.zip.deflate import deflate_small
from npzkit.zip.raw_entries import entry_of
from npzkit.zip.sozip import CHUNK_SIZE, check_chunk_size
from npzkit.zip.writer import Coding, ZipWriter

if TYPE_CHECKING:
    from npzkit.members.multipart import OnParts
    from npzkit.writing.array_plan import Plan
    from npzkit.writing.filled_array import CreatedArray

__all__ = ["Compression", "NpzWriter", "largest_small", "level_for"]

T = TypeVar("T")

Compression = Literal["stored", "deflated"] | int | None


class NpzWriter:
    """Writes an archive, array by array; what counts is what was committed.

    `close` commits, and `commit` does so in between: whatever happens
    afterwards, a crash among it, what was committed stays. Leaving the
    ``with`` block by an exception discards what was not.

    At a path, a new archive is written to a file beside it that takes its
    place with the first commit: until then the path holds the old file, whole,
    or none. It takes the old one's owner, group and permissions, as far as the
    system lets; symbolic links are followed. In mode "a", arrays are written
    behind those of the archive that is there, by whatever program it was made,
    and no byte of it is touched:
    readers that have it open or mapped go on reading what they opened.

    Parameters
    ----------
    file : path or file object
        A path is taken as it is, no ``.npz`` is appended. A file object needs
        only ``write``; it is left open, and its position is where the archive
        begins.
    mode : {"w", "x", "a"}, default "w"
        Replace what is at the path, fail where something is, or add to it (a
        new archive where nothing is). In mode "a" a file object holds one
        archive, from its first byte on, or nothing.
    compression : {"stored", "deflated"} or int, default "stored"
        For arrays that do not say otherwise; zipfile's constants are taken too.
    level : int, optional
        0 to 9 for arrays that are deflated; None takes the fastest encoder
        that keeps to the size of zlib's 6, which is numpy's, for each stretch
        of the data.
    metadata : mapping, optional
        Anything JSON can express, by strings; kept in the archive's comment.
        Tuples come back as lists; NaN and infinity are written as Python's
        `json` writes them, which other languages may refuse. In mode "a" it is
        added to what is there.
    allow_pickle : bool, default False
        Whether arrays of Python objects may be written.
    durable : bool, default False
        At each commit wait for the disk, so that it also survives a loss of
        power. Without it, it survives whatever happens to the program.
    chunk_size : int, default 262_144
        Bytes of the chunks in which arrays are deflated: what a slice of one
        costs at least. 4 KiB to 64 MiB; 32 KiB take two to four times as long.
    seekable : bool, default True
        Whether a deflated array of more than one chunk gets a seek index, a
        hidden member that other programs skip.
    threads : int, optional
        How many deflate and take CRCs; None takes the processors there are.
        The bytes are the same for any number.
    lock_timeout : float, optional
        Seconds to wait where another writer has the file; by default none.
    masked : {"refuse", "split"}, default "refuse"
        What becomes of a masked array, whose mask NPY has no place for: an
        error, or two arrays, ``key`` and ``key.mask``. `NpzFile.join` gives
        the masked array back, with its fill value where JSON can express that.
    strings : {"refuse", "split"}, default "refuse"
        What becomes of an array of `numpy.dtypes.StringDType`: an error, or
        ``key`` with the UTF-8 bytes, ``key.offsets`` with where each string
        begins and the last one ends, and ``key.missing`` where strings may be
        missing. `NpzFile.join` gives it back. All of these are arrays of
        their own: `rename` and ``del`` take each.
    auto_repack : bool, default True
        Whether `close` writes a file anew, as `npzkit.repack` does, of which
        more than half belongs to nothing any more, or whose first member was
        removed (7-Zip would show what was there before).

    Attributes
    ----------
    metadata : dict
        May be changed until `close`.
    files : list of str
        The keys there are, in the archive's order.

    Raises
    ------
    OSError
        The file cannot be made, or opened for writing; or one that may not be
        written to is in its place.
    FileExistsError
        Mode "x" and the path is there.
    ArchiveLockedError
        Another writer has the file that is at the path.
    ZipFormatError, AmbiguousArchiveError
        Mode "a", and what is there is no archive, or a damaged one. It is not
        touched.
    UnsupportedError
        Mode "a", and the file object cannot be read or sought in.
    ValueError, TypeError
        Bad mode, compression, level, chunk_size, threads, lock_timeout or
        metadata; nothing was touched.

    Warns
    -----
    TornArchiveWarning
        Mode "a", and an append was cut short before: what it left behind the
        last commit is dropped with the first array that is written.

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

    What is there stays, and is added to:

    >>> with npzkit.NpzWriter(stream, mode="a") as w:
    ...     w["more"] = np.arange(3)
    ...     w.commit()
    ...     w.add("weights", np.ones(2), overwrite=True)
    ...     w.rename("bias", "offset")
    ...     w.attrs("offset")["unit"] = "km"
    ...     del w["more"]
    >>> npz = npzkit.open(stream)
    >>> list(npz), npz["weights"].tolist(), npz.info("offset").attrs["unit"]
    (['weights', 'offset'], [1.0, 1.0], 'km')
    """

    def __init__(
        self,
        file: Any,
        mode: Literal["w", "x", "a"] = "w",
        *,
        compression: Compression = "stored",
        level: int | None = None,
        metadata: Mapping[str, Any] | None = None,
        allow_pickle: bool = False,
        durable: bool = False,
        chunk_size: int = CHUNK_SIZE,
        seekable: bool = True,
        threads: int | None = None,
        lock_timeout: float | None = None,
        auto_repack: bool = True,
        masked: OnParts = "refuse",
        strings: OnParts = "refuse",
    ) -> None:
        if mode not in ("w", "x", "a"):
            raise ValueError(f"mode must be 'w', 'x' or 'a', not {mode!r}")
        self._coding = Coding(
            method_number(compression), check_level(level), check_chunk_size(chunk_size), seekable
        )
        self._threads = thread_count(threads)
        self._allow_pickle = allow_pickle
        self._splitting = splitting_for(masked, strings)
        if not isinstance(metadata, (Mapping, NoneType)):
            raise TypeError(f"metadata must be a mapping, not {type(metadata).__name__}")
        format_metadata(metadata or {})
        timeout = check_timeout(lock_timeout)
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
        if mode == "a":
            resumed = resume(file, durable=durable, lock_timeout=timeout)
        else:
            resumed = begin(file, exclusive=mode == "x", durable=durable, lock_timeout=timeout)
        self._sink = resumed.sink
        try:
            self._take_over(resumed, metadata or {})
        except BaseException:
            # Nobody has the writer yet.
            self._sink.abort()
            raise
        self._durable, self._auto_repack = durable, auto_repack
        self._is_open = True

    def _take_over(self, resumed: Resumed, metadata: Mapping[str, Any]) -> None:
        """Begin with what is there."""
        self._zip = ZipWriter(self._sink, resumed.listed)
        self._has_bare = not all(name.endswith(SUFFIX) for name in resumed.listed)
        self._attributes = EditedAttributes()
        self._comment = resumed.comment
        self.metadata = dict(parse_metadata(resumed.comment))
        self._committed_metadata = format_metadata(self.metadata)
        self.metadata.update(metadata)
        # Bytes behind the last commit are a change as well.
        self._is_edited = False
        # Whether bytes were given up: looking for them takes as long as a small save.
        self._has_dead = False
        self._failure = ""

    @property
    def files(self) -> list[str]:
        return keys_of(self._zip.listed.keys())

    def __iter__(self) -> Iterator[str]:
        return iter(self.files)

    def __contains__(self, key: object) -> bool:
        return member_of(key, self._zip.listed) is not None

    def __len__(self) -> int:
        return len(self._zip.listed)

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
        overwrite: bool = False,
    ) -> None:
        """Write one array, or a tree of arrays.

        Parameters
        ----------
        key : str
            New to the archive; may hold ``/``. See `npzkit.errors.UnsafeNameError`
            for what may not be a key.
        array : array-like, or dict, list or tuple that holds arrays
            Read before this returns, so that it may be changed afterwards. Nested
            data is saved under the key as `npzkit.save` does it, for
            `npzkit.load_tree`.
        compression, level, chunk_size, seekable : optional
            For this array; the writer's by default.
        attrs : mapping of str to object, optional
            Attributes to keep with the array: up to 255, strings or whatever
            JSON can express, 65,279 bytes in all. Not for nested data.
        overwrite : bool, default False
            Write it in the place of the array that has the key, if one has:
            until the next commit the old one counts. Its bytes stay in the
            file until that is repacked. Nested data replaces everything that
            is under its key.

        Raises
        ------
        UnsafeNameError
            The key cannot be used.
        KeyExistsError
            The key is already in the archive.
        NotAnArrayError
            NumPy cannot make an array of it.
        PickleRefusedError
            The array needs pickle and the writer does not allow it.
        UnsupportedError
            A masked array, fields that overlap or lie out of order, or a
            namedtuple in nested data.
        LimitExceededError, ValueError, TypeError
            Attributes that are too long, contain themselves, or are nothing
            JSON can express; a bad compression, level or chunk_size; an array
            that grows is not sealed yet.
        OSError
            The disk is full, or the like. What was not committed is then
            discarded, and whatever is tried with the writer afterwards is an
            error.
        StaleArchiveError
            Another program wrote to the file meanwhile; the same holds.
        ClosedArchiveError
            After `close`, after an array could not be written, or in a forked
            child.
        RuntimeError
            Called within another call, by a signal handler for instance.

        Notes
        -----
        Everything but ``OSError`` and StaleArchiveError is raised before a
        byte is written, and the writer stays usable.
        """
        self._check_open(key)
        name = check_key(key)
        coding = self._coding_for(compression, level, chunk_size, seekable)
        check_attrs(attrs)
        if isinstance(array, (Mapping, list, tuple)):
            from npzkit.members.nesting import is_nested

            if is_nested({key: array}):
                if attrs:
                    raise ValueError("attrs are those of an array; a tree has none")
                self._add_tree(key, array, coding, overwrite=overwrite)
                return
        parts = self._splitting.parts(array) if self._splitting is not None else []
        if parts:
            self._alone(self._write_parts, prepare_parts(key, parts, attrs), coding, overwrite)
            return
        if attrs:
            prepared = prepare(key, name, array, attrs, allow_pickle=self._allow_pickle)
            self._put([prepared], coding, overwrite=overwrite)
            return
        largest = largest_small(coding.method, coding.chunk_size)
        members = gather(
            (key,), (name,), (array,), self._heads.setdefault((coding.method, largest), {}),
            largest=largest, allow_pickle=self._allow_pickle,
        )  # fmt: skip
        self._put(list(members), coding, overwrite=overwrite)

    def _add_tree(self, key: str, tree: Any, coding: Coding, *, overwrite: bool) -> None:
        """Write a tree's arrays, and note its structure in the metadata."""
        from npzkit.members.nesting import flatten

        arrays, note = flatten({key: tree})
        heads = self._heads.setdefault(
            (coding.method, largest := largest_small(coding.method, coding.chunk_size)), {}
        )
        options: dict[str, Any] = {"largest": largest, "allow_pickle": self._allow_pickle}
        if self._splitting is None:
            keys = list(arrays)
            members = gather(keys, check_keys(keys), arrays.values(), heads, **options)
        else:
            members = gather_split(arrays, self._splitting, heads, **options)
        self._alone(self._write_tree, key, list(members), note, coding, overwrite)

    def _write_tree(
        self,
        key: str,
        members: list[Prepared | SmallArrays],
        note: Any,
        coding: Coding,
        overwrite: bool,
    ) -> None:
        """Write a tree in the place of what is under its key: all of it, or nothing."""
        from npzkit.members.nesting import TREE_KEY, has_note, is_within, replace_note, with_note

        self._check_open()
        old = {name for name in self._zip.listed if is_within(name.removesuffix(SUFFIX), key)}
        noted = self.metadata.get(TREE_KEY)
        if not overwrite and (old or has_note(noted, key)):
            raise KeyExistsError(
                "this key is already in the archive", path=self._name, key=key,
                remedy="Pass overwrite=True to add(), which replaces all that is under it.",
            )  # fmt: skip
        for name in old:
            self._check_sealed(name.removesuffix(SUFFIX), name)
        for member in members:
            for name in member.names if isinstance(member, SmallArrays) else (member.name,):
                self._check_free(name.removesuffix(SUFFIX), name, overwrite=True)
        left = (name for name in reversed(self._zip.listed) if name not in old)
        last = next(left, "").removesuffix(SUFFIX).partition("/")[0] or None
        metadata = with_note(
            self.metadata, replace_note(noted, key, note, None if members else last)
        )
        for name in old:
            self._give_way(name)
            del self._zip.listed[name]
            self._is_edited = True
        self._write(members, coding, overwrite)
        self.metadata.pop(TREE_KEY, None)
        self.metadata.update(metadata)

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
        level = level_for(method, level)
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
        UnsafeNameError, KeyExistsError, PickleRefusedError, LimitExceededError, \
        ClosedArchiveError
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
        StaleArchiveError
            Another program wrote to the file meanwhile.

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
        from npzkit.writing.array_plan import plan_array

        plan = plan_array(key, name, shape, dtype, attrs, coding, fortran_order=fortran_order)
        plan.check_sink(self._sink, self._name)
        return self._alone(self._begin, plan)

    def _begin(self, plan: Plan) -> CreatedArray:
        from npzkit.writing.array_plan import Hooks
        from npzkit.writing.array_plan import begin as begin_array

        self._check_open()
        self._check_free(plan.key, plan.name)
        if plan.size is not None and not plan.grows:
            # If there is no room nothing is lost.
            self._sink.reserve(plan.room, mapped=True)
        hooks = Hooks(self._write_more, self._seal, self._abandon)
        with self._giving_up():
            created = begin_array(plan, self._zip, self._threads, hooks)
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
        # Its place may lie before the last commit already.
        self._is_edited = True
        if created is self._growing:
            self._growing = None

    def _guarded(self, work: Callable[..., None], *args: Any) -> None:
        """Call what writes, and give the archive up where that fails."""
        self._check_open()
        with self._giving_up():
            work(*args)

    def _put(
        self,
        members: Iterable[Prepared | SmallArrays],
        coding: Coding,
        *,
        overwrite: bool = False,
    ) -> None:
        self._check_open()
        self._alone(self._write, members, coding, overwrite)

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
            except NpzkitError as error:
                error.locate(path=self._name)
                raise
            finally:
                self._is_writing = False

    def _write(
        self, members: Iterable[Prepared | SmallArrays], coding: Coding, overwrite: bool
    ) -> None:
        """Write members in their order, small stored ones together."""
        self._check_open()
        with Pipeline(self._threads) as pipeline:
            for member in members:
                if isinstance(member, SmallArrays):
                    self._write_small(member, coding, pipeline, overwrite)
                else:
                    self._write_one(member, coding, pipeline, overwrite)
            with self._giving_up():
                pipeline.drain()

    def _write_parts(self, parts: list[Prepared], coding: Coding, overwrite: bool) -> None:
        """Write an array's parts: all of them, or none where one cannot be."""
        self._check_open()
        for part in parts:
            self._check_free(part.key, part.name, overwrite=overwrite)
        self._write(parts, coding, overwrite)

    def _write_one(
        self, member: Prepared, coding: Coding, pipeline: Pipeline, overwrite: bool
    ) -> None:
        key, name, pieces, size, extra = member
        self._check_free(key, name, overwrite=overwrite)
        self._give_way(name)
        with self._giving_up():
            self._zip.write_member(name, pieces, size, pipeline, coding=coding, extra=extra)

    def _write_small(
        self, arrays: SmallArrays, coding: Coding, pipeline: Pipeline, overwrite: bool
    ) -> None:
        taken = self._zip.listed.keys() & arrays.names
        if taken or self._growing is not None or self._has_bare:
            for name in arrays.names:
                self._check_free(name.removesuffix(SUFFIX), name, overwrite=overwrite)
        for name in taken:
            self._give_way(name)
        with self._giving_up():
            pipeline.drain()
            encode = None if coding.method == STORED else partial(deflate_small, level=coding.level)
            self._zip.write_small(arrays.members(encode), coding.method)

    def _check_free(self, key: str, name: str, *, overwrite: bool = False) -> None:
        """Raise unless a member of this name can be written now."""
        if self._growing is not None:
            raise ValueError(
                f"the array {self._growing.key!r} is still growing; close it before another "
                "is written"
            )
        # Of two members that differ in the suffix alone, readers find the bare one.
        if (key if name != key else key + SUFFIX) in self._zip.listed:
            raise KeyExistsError(
                "a member of this name that is no array is in the archive, and either would hide "
                "the other",
                path=self._name, key=key, remedy="Remove it first, by del, or choose another key.",
            )  # fmt: skip
        if name not in self._zip.listed:
            return
        if not overwrite:
            raise KeyExistsError(
                "this key is already in the archive", path=self._name, key=key,
                remedy="Pass overwrite=True to add(), or write each key once.",
            )  # fmt: skip
        self._check_sealed(key, name)

    def _give_way(self, name: str) -> None:
        """Forget what is known of a member that goes, if there is one of this name."""
        if name in self._zip.listed:
            self._attributes.forget(name)
            self._has_dead = True

    def _check_sealed(self, key: str, name: str) -> None:
        """Raise for an array that is being created."""
        if any(created.key + SUFFIX == name for created in self._created):
            raise ValueError(f"the array {key!r} is being created; close it first")

    # -- edits --------------------------------------------------------------

    def __delitem__(self, key: str) -> None:
        """Remove an array with the next commit.

        Raises
        ------
        MemberNotFoundError
            No such key.
        ClosedArchiveError
            As `add`.

        Notes
        -----
        Its bytes stay in the file until that is repacked; see `auto_repack`.
        """
        self._alone(self._remove, key)

    def _remove(self, key: str) -> None:
        name = self._member(key)
        self._give_way(name)
        del self._zip.listed[name]
        self._is_edited = True

    def rename(self, old: str, new: str) -> None:
        """Give an array another key, in its place.

        The archive names each member twice, and the name before its data is
        not touched: the member is copied, its bytes as they are, without being
        inflated.

        Parameters
        ----------
        old : str
        new : str
            Not taken.

        Raises
        ------
        MemberNotFoundError
            No `old`.
        UnsafeNameError
            `new` cannot be used.
        KeyExistsError
            `new` is already in the archive.
        ZipFormatError, ChecksumError
            The member is damaged; what was not committed is discarded.
        UnsupportedError
            It is encrypted, or the archive goes to a file object that cannot
            be read.
        OSError, StaleArchiveError, ClosedArchiveError
            As `add`.
        """
        self._check_open(old)
        self._alone(self._rename, old, new, check_key(new))

    def _rename(self, old: str, new: str, name: str) -> None:
        from npzkit.files.sink import WrittenSource
        from npzkit.writing.copy import check_copyable, copy_member, rename_entry

        old_name = self._member(old)
        if not old_name.endswith(SUFFIX):
            # What is no array keeps a name without the suffix.
            name = new
        if name == old_name:
            return
        self._check_free(new, name)
        if not self._sink.can_read:
            raise UnsupportedError(
                "the file object cannot be read back, as renaming needs",
                path=self._name, key=old,
                remedy="Write the archive to a path.",
            )  # fmt: skip
        listed = self._apply(self._attributes.changed(self._zip.listed))
        source = WrittenSource(self._sink, self._sink.position)
        entry = entry_of(listed[old_name], source.size)
        try:
            check_copyable(source, entry)
            with self._giving_up():
                copy_member(source, entry, self._zip, renamed=rename_entry(entry, name))
        except NpzkitError as error:
            raise error.locate(path=self._name, key=old) from error.__cause__
        record = self._zip.listed.pop(name)
        self._zip.listed = {
            (name if other == old_name else other): (record if other == old_name else kept)
            for other, kept in self._zip.listed.items()
        }
        self._attributes.forget(old_name)
        self._has_dead = True

    def attrs(self, key: str) -> dict[str, Any]:
        """Return an array's attributes, to be changed until the next commit.

        Parameters
        ----------
        key : str

        Returns
        -------
        dict
            The same one each time. Its changes are checked and written with
            the next commit: strings, and whatever JSON can express.

        Raises
        ------
        MemberNotFoundError
            No such key.
        ZipFormatError
            The attributes are damaged.
        ClosedArchiveError
            As `add`.
        """
        name = self._member(key)
        return self._attributes.of(name, self._zip.listed[name])

    def _member(self, key: str) -> str:
        """Return the name of a member that is there and complete."""
        self._check_open(key)
        name = member_of(key, self._zip.listed)
        if name is None:
            raise missing(key, self.files, self._name)
        self._check_sealed(key, name)
        return name

    def _apply(self, changed: dict[str, bytes]) -> dict[str, bytes]:
        """Put entries that were changed in the place of the old ones."""
        if changed:
            self._zip.listed.update(changed)
            self._is_edited = True
        return self._zip.listed

    # -- commits ------------------------------------------------------------

    def commit(self) -> None:
        """Make all that was written, removed and renamed the archive's contents.

        It survives whatever happens afterwards; under ``durable=True`` a loss
        of power as well. Arrays that were created and are not sealed yet stay
        out of it. Where nothing was changed, nothing is written; a new archive
        is put in its place once it has an array, or is closed.

        Raises
        ------
        LimitExceededError, ValueError, TypeError
            Metadata or attributes that cannot be written; nothing is lost. Or
            an array that grows is not sealed yet.
        StaleArchiveError
            The path leads to another file by now, or another program wrote to
            the one that is open; what was not committed is discarded.
        OSError
            The disk is full, or the like; what was not committed is discarded.
        ClosedArchiveError, RuntimeError
            As `add`.

        Notes
        -----
        Costs a new directory, 50 to 100 bytes an array. A reader that opens
        the archive at any instant finds what was committed before, or after.
        """
        self._check_open()
        self._alone(self._commit)

    def _commit(self, *, is_last: bool = False) -> None:
        self._check_open()
        if self._growing is not None:
            raise ValueError(
                f"the array {self._growing.key!r} is still growing; close it before commit()"
            )
        metadata = format_metadata(self.metadata)
        self._apply(self._attributes.changed(self._zip.listed))
        has_metadata = metadata != self._committed_metadata
        sink = self._sink
        is_changed = self._is_edited or has_metadata or sink.committed_size != sink.position
        # An empty archive that is new is written too.
        if sink.position and not is_changed:
            return
        if not (sink.committed_size or is_last or any(self._zip.listed.values())):
            # What came behind an end record at the file's start would be no archive.
            return
        comment = metadata if has_metadata else self._comment
        # The directory of the commit before is given up.
        self._has_dead |= sink.committed_size > 0
        with self._giving_up("the archive could not be completed"):
            self._zip.commit(comment)
        self._comment, self._committed_metadata = comment, metadata
        self._is_edited = False

    @contextlib.contextmanager
    def _giving_up(self, what: str = "an array could not be written") -> Iterator[None]:
        """Discard what was not committed where what follows fails: half a member may be there."""
        committed_size = self._sink.committed_size
        try:
            yield
        except BaseException as error:
            # Where only the folder could not be synced, the commit is done.
            self._give_up(what, error, is_in_place=self._sink.committed_size > committed_size)
            raise

    def _give_up(self, what: str, error: BaseException, *, is_in_place: bool = False) -> None:
        """Go back to the last commit. Of the error only text is kept: its frames hold the array."""
        state = "what was written is in its place" if is_in_place else self._state
        self._is_open, self._failure = False, what
        self._forget_created()
        try:
            self._sink.abort()
        except OSError as second:
            if self._sink.is_in_doubt:
                state = (
                    f"whether what was written since the last commit counts is not known: {second}"
                )
            elif self._sink.committed_size:
                state += (
                    f"; its bytes are still in the file, where readers pass over them: {second}"
                )
            else:
                state += f", but could not be removed: {second}"
        self._failure = f"{state}, as {what}: {error!r}"
        error.add_note(f"npzkit: {self._name!r}: {state}.")

    @property
    def _state(self) -> str:
        """What giving up means for the file."""
        if self._sink.committed_size:
            return "what was written since the last commit was discarded"
        return "the archive was discarded"

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
            raise ClosedArchiveError(
                "the writer is closed", path=self._name, key=key,
                remedy='Make another one: NpzWriter(path, mode="a") adds to what is there.',
            )  # fmt: skip

    def _is_inherited(self) -> bool:
        """Whether this is a forked child's copy: its lock may be held for ever."""
        return os.getpid() != self._process

    def close(self) -> None:
        """Commit, and let the file go. Idempotent.

        Arrays that were created and are not sealed yet are sealed first. A file
        of which more than half is dead is then repacked; see `auto_repack`.

        Raises
        ------
        LimitExceededError, ValueError, TypeError
            The metadata cannot be written; the file is as at the last commit.
        OSError, StaleArchiveError
            As `commit`.
        ClosedArchiveError
            An array could not be written before, or the archive not completed;
            the file is as at the last commit. Also in a forked child.
        RuntimeError
            Called within another call, by a signal handler for instance.

        Warns
        -----
        RuntimeWarning
            All is committed, but the file could not be repacked.
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
        try:
            self._commit(is_last=True)
        except BaseException as error:
            if self._is_open:
                self._give_up("the archive could not be completed when it was closed", error)
            raise
        self._is_open = False
        try:
            if self._auto_repack and self._has_dead:
                from npzkit.maintenance.repack import repack_dead

                repack_dead(self._sink, durable=self._durable)
        finally:
            # The warning may be an error.
            try:
                self._sink.close()
            except BaseException as error:
                # Interrupts too: the lock would be held for as long as somebody keeps them.
                self._give_up("the file could not be closed", error, is_in_place=True)
                raise

    def abort(self) -> None:
        """Discard what was written since the last commit. Idempotent.

        A path keeps the file it had then. What reached a file object before
        any commit stays there, without an end record, so that no reader takes
        it for an archive. In a forked child only the child's copy of the writer
        is closed.

        Raises
        ------
        OSError
            It cannot be cut off, and is still in the file: readers pass over it.
        RuntimeError
            Called within another call, by a signal handler for instance.
        """
        if self._is_inherited():
            self._discard()
        else:
            self._alone(self._discard)

    def _abandon(self, error: BaseException) -> None:
        """Give up because of an array that was created and not completed."""
        if self._is_open:
            what = "an array that was being created was given up"
            self._alone(lambda: self._give_up(what, error))

    def _discard(self) -> None:
        if self._is_open:
            self._is_open = False
            self._forget_created()
            self._sink.abort()

    def __enter__(self) -> NpzWriter:
        return self

    def __exit__(self, exc_type: type[BaseException] | None, *rest: object) -> None:
        if exc_type is None:
            try:
                self.close()
            except BaseException:
                # An interrupt may have come before it did anything.
                with contextlib.suppress(RuntimeError, OSError):
                    self.abort()
                raise
            return
        try:
            self.abort()
        except OSError as error:
            if isinstance(rest[0], BaseException):
                rest[0].add_note(f"npzkit: {self._name!r} is as at its last commit, but: {error}")

    def __del__(self) -> None:
        if not getattr(self, "_is_open", False):
            return
        try:
            if not self._is_inherited():
                warnings.warn(
                    f"NpzWriter {self._name!r} was never closed; what it wrote is discarded",
                    ResourceWarning,
                    stacklevel=2,
                    source=self,
                )
        finally:
            # The warning may be an error.
            self.abort()


def largest_small(method: int, chunk_size: int) -> int:
    """Bytes of a member that is written with its neighbours: it must need no seek index."""
    return SMALL_SIZE if method == STORED else min(SMALL_SIZE, chunk_size)


def level_for(method: int, level: int | None) -> int | None:
    """Check a level, and that it was not given for what is stored."""
    level = check_level(level)
    if level is not None and method == STORED:
        raise ValueError("level is for compression='deflated'; stored arrays have none")
    return level
