"""Writing sharded archives: what users can do with one.

Owns `ShardedWriter`: what its calls take, check and promise.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, Self

from npzkit.archive.npzwriter import NpzWriter
from npzkit.archive.save import PreparedArchive
from npzkit.codecs.coding import CHUNK_SIZE, check_coding
from npzkit.datasets.added_shards import Base
from npzkit.datasets.shard_names import (
    ShardRecord,
    attempt_of,
    check_attempt,
    check_shard_names,
    new_attempt,
    new_writer,
    record_file,
    shard_name,
    writing_mode_of,
)
from npzkit.datasets.sharding import (
    ShardPart,
    add_part,
    check_index_not_lost,
    check_own_folder,
    check_part,
    commit_index,
    discard,
    parse_size,
    place_of,
    read_records,
)
from npzkit.errors import (
    REMOVE_FIRST,
    ArchiveLockedError,
    ClosedArchiveError,
    IndexFormatError,
    MissingShardError,
    NpzkitError,
)
from npzkit.limits import thread_count
from npzkit.members.keys import taken
from npzkit.members.metadata import format_metadata
from npzkit.stores.objects import NOTHING_ADDED

if TYPE_CHECKING:
    from npzkit.stores.objects import Found, Objects
    from npzkit.typing import Compression, PathLike


def _per_axis(numbers: Sequence[int] | int | None) -> tuple[int, ...] | None:
    """Return a number for each axis, of which one alone may be an int, as in NumPy's shapes."""
    if numbers is None:
        return None
    return tuple(numbers) if isinstance(numbers, Iterable) else (numbers,)


class ShardedWriter:
    """Write a sharded archive: a folder of ``.npz`` files and their index.

    Several processes, also on several machines, may write one archive. Each has
    a writer of its own and writes to files of its own. They need to agree on
    one thing: the name of the attempt. When all are closed, one of them calls
    `commit`, and the archive appears. What was in the folder before is replaced
    then, and stays complete until then. Without the name of an attempt, the end of a
    ``with`` block commits, as of an `NpzWriter`, unless `close` or `commit` was called.

    Parameters
    ----------
    folder : path or URL
        Is made if necessary. URLs are as in `npzkit.NpzWriter`.
    mode : {"w", "a"}, default "w"
        "w" replaces what the folder has. "a" keeps its arrays, and adds arrays and rows
        to them: only what is new is written. All writers of an attempt have the same mode.
    metadata : mapping, optional
        Of the archive, as in `NpzWriter`. That of the writer which commits
        counts.
    attempt : str, optional
        The same for all writers of an archive, and a new one each time that it
        is written: letters, digits, ``-`` and ``_``. Shards of other attempts
        are never taken for parts of this one. By default a random name, for an
        archive that one process writes.
    compression, level, chunk_size, seekable, threads
        As in `NpzWriter`.
    shard_size : int or str, default "5GB"
        The writer begins a new shard when the current one has this many bytes.
        An array that is added at once is in one shard.
    durable : bool, default False
        Whether each shard and the commit wait for the disk. A commit that
        replaces an archive always does.
    storage_options : dict, optional
        For the store of a URL; see `npzkit.open`.

    Attributes
    ----------
    attempt : str
    metadata : dict
        May be changed until `commit`.
    shards : list of str
        Names of the files that this writer has completed.

    Raises
    ------
    ValueError, TypeError
        Bad attempt, compression, level, shard_size or metadata.
    UnsupportedError
        The URL cannot be written to, or the folder is a file.
    FileExistsError
        The folder has other ``.npz`` files, and is no sharded archive.
    FileNotFoundError
        In mode "a", the folder has no ``index.npz``, but shards of another attempt that are more
        than a day old.

    Notes
    -----
    A writer that is killed leaves files that no index names, and the archive as
    it was. The next commit removes them: those of its own attempt at once, and
    those of other attempts if they are a day older than its own. If such an
    attempt was still under way, its commit raises MissingShardError.

    Examples
    --------
    Two processes would each have one of the first two writers:

    >>> import npzkit, numpy as np
    >>> folder = "memory://doctest/run"
    >>> with npzkit.ShardedWriter(folder, attempt="a1") as w:
    ...     w.add("x", np.zeros((2, 3)), offset=(0, 0), global_shape=(4, 3))
    >>> with npzkit.ShardedWriter(folder, attempt="a1") as w:
    ...     w.add("x", np.ones((2, 3)), offset=(2, 0), global_shape=(4, 3))
    >>> npzkit.ShardedWriter(folder, attempt="a1", metadata={"step": 7}).commit()
    >>> npz = npzkit.open(folder)
    >>> npz["x"][:, 0], npz.metadata["step"]
    (array([0., 0., 1., 1.]), 7)
    """

    _is_open = _is_aborted = False
    _count, _shard_name = 0, ""
    _shard: NpzWriter | None = None
    _order: Iterable[str] = ()
    """Of the keys in the index, if it is not that in which they were written."""

    def __init__(
        self,
        folder: PathLike,
        mode: Literal["w", "a"] = "w",
        *,
        metadata: Mapping[str, Any] | None = None,
        attempt: str | None = None,
        compression: Compression = "stored",
        level: int | None = None,
        shard_size: int | str = "5GB",
        durable: bool = False,
        chunk_size: int = CHUNK_SIZE,
        seekable: bool = True,
        threads: int | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        # As a single file does: nobody else can commit what is written here.
        self._commits_itself = attempt is None
        self._process = os.getpid()
        if mode not in ("w", "a"):
            raise ValueError(f"mode must be 'w' or 'a', not {mode!r}")
        self._coding = check_coding(compression, level, chunk_size, seekable)
        format_metadata(metadata or {})
        self.attempt = new_attempt() if attempt is None else check_attempt(attempt)
        self._shard_size = parse_size(shard_size)
        self._durable = durable
        self._options: dict[str, Any] = {
            "compression": compression, "level": level, "durable": durable,
            "chunk_size": chunk_size, "seekable": seekable, "threads": thread_count(threads),
        }  # fmt: skip
        self._place = place_of(folder, storage_options)
        self._place.begin_writing()
        self._base = Base.read(self._place) if mode == "a" else Base()
        if self._base.index is None:
            check_own_folder(self._place)
            if mode == "a":
                check_index_not_lost(self._place, self.attempt)
        self.metadata: dict[str, Any] = {**self._base.metadata, **(metadata or {})}
        self._mode, self._name = mode, new_writer(mode)
        self._records: list[ShardRecord] = []
        self._is_open = True

    def __repr__(self) -> str:
        state = "open" if self._is_open else "closed"
        return f"<ShardedWriter {self._place.name!r}, attempt {self.attempt!r}, {state}>"

    def __contains__(self, key: object) -> bool:
        """Whether the archive that is added to, or what this writer wrote, has an array."""
        return (
            key in self._base
            or any(part.key == key for record in self._records for part in record.parts)
            or (self._shard is not None and key in self._shard)
        )

    @property
    def is_adding(self) -> bool:
        """Whether mode "a" has found an archive."""
        return self._base.index is not None

    @property
    def shards(self) -> list[str]:
        return [record.name for record in self._records]

    @property
    def records(self) -> list[ShardRecord]:
        """What `commit` can be given instead of names; they can be pickled."""
        return list(self._records)

    def _check_own(self) -> None:
        """Raise ClosedArchiveError in a forked child, whose copy of the writer changes nothing."""
        if os.getpid() != self._process:
            raise ClosedArchiveError(
                "the writer belongs to the process that made it, and this is a forked child",
                path=self._place.name, remedy="Make a writer here, with the same attempt.",
            )  # fmt: skip

    def _check_open(self) -> None:
        self._check_own()
        if not self._is_open:
            raise ClosedArchiveError(
                "the writer is closed", path=self._place.name, remedy="Make a new one."
            )

    # -- arrays -------------------------------------------------------------

    def __setitem__(self, key: str, array: Any) -> None:
        self.add(key, array)

    def add(
        self,
        key: str,
        array: Any,
        offset: Sequence[int] | int | None = None,
        global_shape: Sequence[int] | int | None = None,
        attrs: Mapping[str, Any] | None = None,
        *,
        compression: Compression | None = None,
        level: int | None = None,
        overwrite: bool = False,
    ) -> None:
        """Write one array, or a part of an array whose other parts are added elsewhere.

        Parameters
        ----------
        key : str
            Of the array. Each part of an array has the same key.
        array : array-like
            The part.
        offset : sequence of int, or int, optional
            Where the part begins in the array, along each axis. By default,
            `array` is complete.
        global_shape : sequence of int, or int, optional
            Of the array, if `offset` is given.
        attrs : mapping of str to object, optional
            Attributes of the array. It gets those of all its parts.
        compression, level : optional
            For this part; by default those of the writer.
        overwrite : bool, default False
            In mode "a", replace the array with this key, if there is one. Its attributes are
            removed.

        Raises
        ------
        ValueError, TypeError
            The part is not within an array of `global_shape`.
        KeyExistsError
            The archive that is added to has this key, and `overwrite` is False.
        UnsupportedError
            This writer appended rows to the array that is to be replaced.
        NpzkitError, OSError
            As `NpzWriter.add`. After an OSError the writer is closed, and what
            it wrote is discarded.
        """
        start, whole = _per_axis(offset), _per_axis(global_shape)
        part = check_part(ShardPart(key, array, start, whole, attrs))
        self._base.check_free(key, self._place.name, overwrite=overwrite)
        with self._open_shard() as shard:
            add_part(shard, part, compression, level)
        self._base.added(key)

    def append(self, key: str, rows: Any) -> None:
        """Add rows to an array of the archive, along its first axis, in mode "a".

        Only the rows are written. Readers find them after `commit`, by this writer.

        Parameters
        ----------
        key : str
            Of an array that was committed.
        rows : array-like
            Shape ``(n, *shape[1:])``, or one row of shape ``shape[1:]``. They are cast to
            the array's dtype; only floating-point numbers may be rounded. Records need the
            same fields.

        Raises
        ------
        MemberNotFoundError
            There is no such array: `add` begins one.
        UnsupportedError
            This writer replaced it.
        ValueError
            The shape does not fit, or the dtype cannot represent a value.
        NpzkitError, OSError
            As `add`.

        Examples
        --------
        >>> import npzkit, numpy as np
        >>> folder = "memory://doctest/log"
        >>> with npzkit.ShardedWriter(folder) as w:
        ...     w["log"] = np.zeros((2, 3))
        >>> with npzkit.ShardedWriter(folder, mode="a") as w:
        ...     w.append("log", np.ones((4, 3)))
        >>> npzkit.open(folder)["log"].shape
        (6, 3)
        """
        part = self._base.appended(key, rows, self._place.name)
        if part is not None:
            with self._open_shard() as shard:
                add_part(shard, part)

    def __delitem__(self, key: str) -> None:
        """Remove an array of the archive, in mode "a", with this writer's `commit`.

        Its bytes stay in the shards until they have no other array, or until `npzkit.repack`.

        Raises
        ------
        MemberNotFoundError
            No array with this key was committed.
        UnsupportedError
            This writer replaced it or appended rows to it, or it belongs to nested data.
        ClosedArchiveError
            The writer is closed.
        """
        self._check_open()
        self._base.remove(key, self._place.name)

    def rename(self, old: str, new: str) -> None:
        """Give an array of the archive another key, in mode "a", with this writer's `commit`.

        Its place in the order and its shards stay the same.

        Raises
        ------
        UnsafeNameError
            `new` cannot be used.
        KeyExistsError
            `new` already exists.
        MemberNotFoundError, UnsupportedError, ClosedArchiveError
            As ``del writer[old]``.

        Examples
        --------
        >>> import npzkit, numpy as np
        >>> folder = "memory://doctest/renamed"
        >>> with npzkit.ShardedWriter(folder) as w:
        ...     w["a"], w["b"] = np.ones(2), np.zeros(2)
        >>> with npzkit.ShardedWriter(folder, mode="a") as w:
        ...     w.rename("a", "first")
        ...     del w["b"]
        >>> list(npzkit.open(folder))
        ['first']
        """
        self._check_open()
        if new in self and new != old:
            remedy = REMOVE_FIRST if new in self._base else "Use another key."
            raise taken(new, self._place.name, remedy)
        self._base.rename(old, new, self._place.name)

    def update(self, arrays: Mapping[str, Any]) -> None:
        """Write complete arrays by their keys, which is faster than one by one.

        In mode "a", they must be new.

        Neighbours of less than 64 KiB are in one shard, as long as they have less than 512 KiB.

        Raises
        ------
        NpzkitError, OSError
            As `add`. The arrays before the one that cannot be saved are written.
        """
        for key in arrays if self._base.index else ():
            self._base.check_free(key, self._place.name)
        method, level, chunk_size, seekable = self._coding
        # What is no dict is prepared piece by piece.
        prepared = PreparedArchive(
            MappingProxyType(arrays), method, level, chunk_size=chunk_size, seekable=seekable
        )
        prepared._write_in_files(self._open_shard, self._shard_size)

    @contextlib.contextmanager
    def _open_shard(self) -> Iterator[NpzWriter]:
        """Yield the shard to write to, which is completed if it is full then."""
        self._check_open()
        if self._shard is None:
            name = self._next_name()
            self._shard = NpzWriter(self._place.file(name), "x", **self._options)
            self._shard_name = name
        shard = self._shard
        try:
            yield shard
        except OSError:
            self.abort()
            raise
        if shard._archive.sink.position >= self._shard_size:
            self._complete_shard()

    def _next_name(self) -> str:
        self._count += 1
        return shard_name(self.attempt, self._name, self._count - 1)

    def _take(self, place: Objects, record: ShardRecord) -> bool:
        """Make a complete shard of another archive one of this archive too.

        It is linked, or copied by the store. Returns False if this process copied it.
        """
        own = record._replace(name=self._next_name())
        self._records.append(own)
        return self._place.take(place, record.name, own.name, durable=self._durable)

    def _complete_shard(self) -> None:
        if self._shard is None:
            return
        try:
            self._shard.close()
            self._records.append(record_file(self._place, self._shard_name))
        except BaseException:
            # Without this shard, a commit would lose arrays and nobody would notice.
            with contextlib.suppress(OSError, NpzkitError):
                self.abort()
            raise
        self._shard = None

    # -- the end ------------------------------------------------------------

    def close(self) -> list[ShardRecord]:
        """Complete the writer's last shard. Closing it again does nothing.

        What it wrote appears in the archive with `commit`.

        Returns
        -------
        list of ShardRecord
            What `commit` of another writer can be given. They can be pickled.
        """
        if self._is_open:
            self._check_own()
            self._is_open = False
            self._complete_shard()
        return self.records

    def commit(self, shards: Iterable[str | ShardRecord] | None = None) -> None:
        """Make the shards of the attempt the contents of the archive.

        To be called once per attempt, by one process, when all writers are
        closed. Calling it again with the same shards changes nothing. This
        writer is closed first.

        Parameters
        ----------
        shards : iterable of str or ShardRecord, optional
            The shards that count: names, or what `close` returned, from all
            processes. By default all shards of the attempt that are in the
            folder. If a task may run twice, give those of the runs that count.

        Raises
        ------
        IndexFormatError
            The parts of an array overlap, leave gaps, or have several dtypes. Or a shard of
            the attempt was written in another mode. Or the folder has an ``index.npz`` of
            another program.
        MissingShardError
            A shard is not there, or the attempt has none.
        KeyExistsError
            Another writer wrote the key that this one renamed an array to.
        ClosedArchiveError
            This writer failed, or was aborted.
        StaleArchiveError, ArchiveLockedError
            Another writer committed at the same time. Its archive is kept.

        Notes
        -----
        The index is written last and in one step. After that, shards of the
        older archive are removed. Readers that have it open get
        `StaleArchiveError` for shards that they had not opened.
        """
        self._check_own()
        self.close()
        if self._is_aborted:
            raise ClosedArchiveError(
                "the writer failed or was aborted, and what it wrote is discarded",
                path=self._place.name, remedy="Write again, with another writer.",
            )  # fmt: skip
        known = {record.name: record for record in self._records}
        files = self._place.listed()
        given = self._find_shards(files) if shards is None else list(shards)
        names = [shard for shard in given if isinstance(shard, str) and shard not in known]
        check_shard_names(names)
        known.update(zip(names, read_records(self._place, names), strict=True))
        records = [known[shard] if isinstance(shard, str) else shard for shard in given]
        self._check_mode(records)
        try:
            commit_index(
                self._place, self._base.followed_by(records, self._place.name), self.metadata,
                attempt=self.attempt, durable=self._durable, order=self._order or self._base.order,
                base=self._base.before, files=files,
            )  # fmt: skip
        except IndexFormatError as error:
            if shards is None and error.remedy is None:
                error.remedy = (
                    "Give all writers the same attempt, and close them before the commit. If an "
                    "earlier run had it too, give each run a new one, or pass the shards that "
                    "count."
                )
            raise
        except ArchiveLockedError as error:
            error.remedy = NOTHING_ADDED
            raise

    def _find_shards(self, files: Mapping[str, Found]) -> list[str]:
        """Return the shards of the attempt, those that were completed first before others.

        Raises
        ------
        MissingShardError
            There is none, and no archive that is added to: the name of the attempt may be
            wrong.
        """
        own = self.shards
        others = [
            (found.modified, name)
            for name, found in files.items()
            if attempt_of(name) == self.attempt and name not in own
        ]
        if not (own or others or self._base.index):
            raise MissingShardError(
                f"there is no shard of the attempt {self.attempt!r}", path=self._place.name,
                remedy="Give all writers the same attempt, and close them before the commit.",
            )  # fmt: skip
        return [*own, *(name for _, name in sorted(others))]

    def _check_mode(self, records: Iterable[ShardRecord]) -> None:
        """Raise IndexFormatError if new shards of the attempt were written in the other mode."""
        base = self._base.index
        older = set() if base is None else {shard.name for shard in base.shards}
        for name in {record.name for record in records} - older:
            if attempt_of(name) == self.attempt and writing_mode_of(name) not in ("", self._mode):
                raise IndexFormatError(
                    f"the shard {name!r} was written in another mode than that of this commit",
                    path=self._place.name, found=writing_mode_of(name), expected=self._mode,
                    remedy="Give all writers of a run, also the one that commits, the same mode: "
                    "'a' adds their arrays, 'w' replaces the archive. Give each run a new attempt.",
                )  # fmt: skip

    def abort(self) -> None:
        """Remove what this writer wrote, and close it. Nothing of it can be committed.

        What was committed before stays. In a forked child, only the child's copy of the
        writer is closed.
        """
        self._is_open, self._is_aborted = False, True
        shard, self._shard = self._shard, None
        records, self._records = self._records, []
        names = [record.name for record in records] + [self._shard_name] * (shard is not None)
        try:
            if shard is not None:
                shard.abort()
        finally:
            if names and os.getpid() == self._process:
                discard(self._place, names)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, exc_type: type[BaseException] | None, *_: object) -> None:
        is_changed = self.is_adding and self.metadata != self._base.metadata
        has_new = self._shard or self._records or is_changed or self._base.is_edited
        if exc_type is None and self._is_open and self._commits_itself and has_new:
            self.commit()
        elif exc_type is None:
            self.close()
        elif self._is_open:
            self.abort()
