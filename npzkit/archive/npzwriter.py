"""Writing archives: what users can do with one.

Owns `NpzWriter`: what its calls take, check and promise. Each call hands its
work on: to `npzkit.archive.written_archive` and the modules that build on it, which
change the archive, and to `npzkit.writing`, which makes members of arrays.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, Self, cast

import numpy as np

from npzkit.archive.written_archive import WrittenArchive
from npzkit.codecs.coding import CHUNK_SIZE, Coding, check_coding, coding_for
from npzkit.errors import UnsupportedError, quiet_at_exit, quoted
from npzkit.members.keys import SUFFIX, check_key
from npzkit.members.metadata import check_attrs, nested_data
from npzkit.writing.array_members import Member, Preparation

if TYPE_CHECKING:
    from npzkit.typing import Compression, OnParts, Writable
    from npzkit.writing.created_array import CreatedArray


_NOT_NESTED = {np.ndarray, *map(type, (True, 1, 0.5, 1j, "", b""))}
"""Types of values that hold no others."""


class NpzWriter:
    """Write an archive array by array.

    `close` commits what was written, and `commit` does so in between. What was
    committed survives whatever happens afterwards, including a crash. Leaving
    the ``with`` block by an exception discards what was not committed.

    A new archive is written to a file next to `file`. At the first commit that
    file replaces the one at the path, which stays complete until then. The new
    file gets the old one's owner, group, permissions and extended attributes (``user.*``)
    if the system allows it. Symbolic links are followed. Other hard links keep the old file.

    In mode "a", new arrays are written after those of the existing archive,
    which any program may have made. None of its bytes change: readers that
    have it open or mapped continue to see what they opened.

    To a URL, parts are sent while the next ones are written. The archive appears
    in the store when the writer is closed.

    Parameters
    ----------
    file : path, URL or file object
        A path is used as it is; ``.npz`` is not appended. A file object needs
        only ``write``. It is left open, and the archive begins at its position; if that
        is the start, a longer content is cut off.
        URLs are as in `npzkit.open`, but neither web servers nor chains.
    mode : {"w", "x", "a"}, default "w"
        "w" replaces an existing file, "x" fails if the path exists, and "a"
        adds to an existing archive or makes a new one, also in an empty file. In mode
        "a" a file object holds either nothing or one archive from its first byte on.
    compression : {"stored", "deflated", "zstd"} or int, default "stored"
        Default for each array. zipfile's constants are accepted too. ``"zstd"`` is
        read by npzkit, 7-Zip, libarchive and, from Python 3.14 on, by NumPy; it needs
        Python 3.14 or ``pip install npzkit[zstd]``. Everything reads ``"deflated"``.
    level : int, optional
        Default compression level: 0 to 9 for deflated arrays, -7 to 19 for zstd. None
        means 1 for zstd. For deflated arrays it uses, for each stretch of the data, the
        fastest encoder whose output is no larger than that of zlib's level 6, which
        NumPy uses.
    metadata : mapping, optional
        String keys with values that JSON can express. Tuples come back as lists. NaN and
        infinity come back too: in the text, which any language can read, they are
        ``{"npzkit.float": "NaN"}``, ``"Infinity"`` or ``"-Infinity"``. In mode "a" the
        values are added to the existing metadata.
    allow_pickle : bool, default False
        Whether arrays of Python objects may be written.
    durable : bool, default False
        Whether each commit waits for the disk, so that it also survives a
        power failure. Without it, a commit survives a crash of the program.
    chunk_size : int, default 262_144
        Bytes of the chunks in which arrays are compressed, 4 KiB to 64 MiB. A
        slice reads at least one chunk. Chunks of 32 KiB take two to four times
        as long to write.
    seekable : bool, default True
        Whether the checksum of each chunk is kept, and where each compressed chunk
        begins, so that parts can be read and checked alone.
    threads : int, optional
        Number of threads that compress and compute CRCs; by default one per
        processor. The bytes written do not depend on it.
    lock_timeout : float, optional
        Seconds to wait if another writer has the file; by default it does not
        wait.
    masked : {"refuse", "split"}, default "refuse"
        How to write a masked array, whose mask NPY cannot hold. "refuse"
        raises an error if any value is masked. "split" writes two arrays, ``key``
        and ``key.mask``, and `NpzFile.join` returns the masked array, with its
        fill value if JSON can express it.
    strings : {"refuse", "split"}, default "refuse"
        How to write an array of `numpy.dtypes.StringDType`. "refuse" raises an
        error. "split" writes ``key`` with the UTF-8 bytes, ``key.offsets`` with
        the start of each string and the end of the last one, and
        ``key.missing`` if strings may be missing. `NpzFile.join` returns the
        array. `rename`, ``del`` and ``overwrite=True`` act on all of these arrays
        together, and so they do on the two of a masked array.
    auto_repack : bool, default True
        Whether `close` rewrites the file, as `npzkit.repack` does, if more than
        half of it is unused or its first member was removed, renamed or
        replaced. Otherwise 7-Zip shows the old contents after that and refuses
        to change the file, and zip.js in strict mode refuses to open it.
    storage_options : dict, optional
        For the store of a URL; see `npzkit.open`.

    Attributes
    ----------
    metadata : dict
        May be changed until `close`. A value that JSON cannot express is refused with
        a TypeError when it is assigned; one that is put into a list or a mapping there, by
        `commit`, and by `close`, which then discards what was written since the last commit.
        What npzkit keeps there, under names that begin with ``npzkit.``, stays when a dict is
        assigned or all is cleared. After `close`, a read-only mapping.
    files : list of str
        The keys, in the archive's order.

    Raises
    ------
    OSError
        The file cannot be created or opened for writing, or the file that it
        would replace is read-only.
    FileExistsError
        Mode "x", and the path exists. Also at the first commit in mode "a", if there was
        no file, and another writer has made one since.
    ArchiveLockedError
        Another writer has the file at the path.
    ZipFormatError, AmbiguousArchiveError
        Mode "a", and the file is not an archive or is damaged. It is not
        changed.
    UnsupportedError
        Mode "a", and the file object cannot read or seek, or `file` is a URL. Or
        the URL cannot be written to.
    ValueError, TypeError
        Bad mode, compression, level, chunk_size, threads, lock_timeout or
        metadata; no file was touched.

    Warns
    -----
    TornArchiveWarning
        Mode "a", and an earlier append was interrupted. Its remains after the
        last commit are dropped when the first array is written.

    Notes
    -----
    The bytes depend on the arrays and the options, not on the clock or the
    host. For compressed arrays they also depend on the installed libraries and,
    without a level, on the pieces in which an array is appended.

    Compressing needs a few megabytes of memory per thread. The data of stored
    arrays begins at multiples of 64 bytes, for memory maps.

    What needs written bytes again is not for URLs: mode "a", `commit` before
    `close`, `rename`, and `create` of arrays that are filled in any order. Arrays
    that grow by ``append`` are for S3; for other stores, their length must be
    given. If the writer is aborted or the connection is lost, nothing is
    visible, and the parts are removed. Parts that a killed process leaves
    are removed on S3 by the next upload to the same name, which also ends another
    upload to it that is under way. Other stores remove them after some days.
    Mode "x" is checked by the store when the archive appears, on S3, Google and Azure.
    About 80 MB of parts are in memory, and more for archives above 8 GB.

    Several threads may add arrays to one writer. They are written one at a time,
    in the order of the calls; parts of created arrays are too. While an array that is
    compressed or grows is created, every other is a ValueError: use a lock. A forked child cannot
    use its parent's writer; dropping it in the child has no effect on the file.

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

    Mode "a" keeps the existing arrays and adds to them:

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
        file: Writable,
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
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        if mode not in ("w", "x", "a"):
            raise ValueError(f"mode must be 'w', 'x' or 'a', not {mode!r}")
        self._coding = check_coding(compression, level, chunk_size, seekable)
        self._preparation = Preparation(allow_pickle=allow_pickle, masked=masked, strings=strings)
        self._auto_repack = auto_repack
        self._archive = WrittenArchive(
            file, mode, metadata=metadata, durable=durable, threads=threads,
            lock_timeout=lock_timeout, storage_options=storage_options,
        )  # fmt: skip

    # -- what there is ------------------------------------------------------

    @property
    def files(self) -> list[str]:
        return self._archive.listing.keys

    @property
    def metadata(self) -> dict[str, Any]:
        """The metadata of the archive, which may be changed until the writer is closed."""
        values, is_open = self._archive.metadata.values, self._archive.state.is_open
        return values if is_open else cast("dict[str, Any]", MappingProxyType(values))

    @metadata.setter
    def metadata(self, values: dict[str, Any]) -> None:
        self._archive.metadata.replace(values)

    def __iter__(self) -> Iterator[str]:
        return iter(self.files)

    def __contains__(self, key: object) -> bool:
        return key in self._archive.listing

    def __len__(self) -> int:
        return len(self._archive.listing)

    def __repr__(self) -> str:
        state = "open" if self._archive.state.is_open else "closed"
        return f"<NpzWriter {self._archive.path!r}, {len(self)} arrays, {state}>"

    # -- arrays -------------------------------------------------------------

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
            Must be new to the archive unless `overwrite` is true; may contain
            ``/``. `npzkit.errors.UnsafeNameError` is raised for unsafe keys.
        array : array-like, or dict, list, tuple or dataclass that holds arrays
            May be changed once this returns. Nested data is saved under the
            key as by `npzkit.save`, for `npzkit.load_tree`. A tensor that is not in nested
            data is saved as an array.
        compression, level, chunk_size, seekable : optional
            For this array; by default those of the writer.
        attrs : mapping of str to object, optional
            Attributes to keep with the array: up to 255, with values that JSON
            can express, 65,279 bytes in total. NaN and infinity are written as in
            metadata. Not for nested data.
        overwrite : bool, default False
            Replace an array with the same key. Its attributes are removed, unless you pass
            ``attrs=w.attrs(key)``. The old array counts
            until the next commit, and its bytes stay in the file until it is repacked.
            A tensor that was tied to it keeps the old values.
            Nested data replaces everything under its key.

        Raises
        ------
        UnsafeNameError
            The key cannot be used.
        KeyExistsError
            The key already exists in the archive.
        NotAnArrayError
            NumPy cannot convert the object to an array.
        PickleRefusedError
            The array needs pickle, and the writer does not allow it.
        UnsupportedError
            Values of the array are masked, or its fields overlap or are out of order, or
            nested data has a value that cannot be kept.
        LimitExceededError, ValueError, TypeError
            The attributes are too long, contain themselves or cannot be
            expressed in JSON; or compression, level or chunk_size is bad; or
            an array that grows is not sealed yet.
        OSError
            Writing failed, for example because the disk is full. What was not
            committed is discarded, and further calls fail.
        StaleArchiveError
            Another program changed the file; the consequences are the same.
        ClosedArchiveError
            The writer is closed, an earlier write failed, or this is a forked
            child.
        RuntimeError
            Called during another call, for example by a signal handler.

        Notes
        -----
        Except for OSError and StaleArchiveError, errors are raised before
        anything is written, and the writer can still be used.
        """
        self._archive.state.check_open(key)
        check_key(key)
        coding = coding_for(self._coding, compression, level, chunk_size, seekable)
        check_attrs(attrs)
        if type(array) not in _NOT_NESTED and nested_data("containers").is_tree(array):
            if attrs:
                raise ValueError("attrs belong to an array; nested data cannot have any")
            self._add_tree(key, array, coding, overwrite=overwrite)
            return
        self._add(key, array, attrs, coding, overwrite=overwrite)

    def _add(self, key: str, array: Any, attrs: Any, coding: Coding, *, overwrite: bool) -> None:
        """Write an array that is no tree with any attributes, also npzkit's own."""
        members = self._preparation.one(key, check_key(key), array, attrs, coding)
        self._archive.alone(self._put, key, members, coding, overwrite)

    def _add_each(self, items: Iterable[tuple[str, Any, Mapping[str, Any] | None]]) -> None:
        """Write keys, arrays that are no trees, and any attributes, also npzkit's own."""
        members = self._preparation.each(items, self._coding)
        self._archive.alone(self._archive.write, members, self._coding, False)

    def _put(self, key: str, members: list[Member], coding: Coding, overwrite: bool) -> None:
        archive, listing = self._archive, self._archive.listing
        if archive.tree is not None:
            if overwrite:
                archive.tree.hand_over(key.__eq__)
            else:
                archive.tree.check_free(key)
        is_first = key not in listing
        others = listing.others_of(key + SUFFIX) if overwrite else []
        archive.put(members, coding, overwrite)
        for other in set(others).difference(listing.others_of(key + SUFFIX)):
            listing.remove(other)
        if archive.tree is not None:
            archive.tree.note.put(key, is_first=is_first)

    def _add_tree(self, key: str, tree: Any, coding: Coding, *, overwrite: bool) -> None:
        arrays, note = nested_data("containers").flatten(tree, key)
        members = list(self._preparation.many(arrays, coding))
        archive = self._archive
        write_tree = nested_data("tree_edits").write_tree
        archive.alone(write_tree, archive, key, members, note, coding, overwrite)

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
    ) -> CreatedArray:
        """Begin an array that is filled piece by piece, for data larger than memory.

        A stored array of known shape is filled in any order:
        ``dst[0:1000] = part``. Other processes that are forked, or receive
        `dst` by pickle, can fill it too, unless the archive is written to a file
        object. They change nothing but the array, and get ClosedArchiveError once it
        is sealed or discarded. Parts that are never written are zeros. Rows of
        deflated arrays, and of arrays whose length is not known,
        are written in order: by ``dst.append(rows)``, or by ``dst[i:j] = rows``
        if `i` rows were written before. So are those of all arrays in an archive
        that is written to a URL, or to a file object that cannot be read and
        written at offsets. If the file object cannot seek, an array is kept in
        memory until its last row is written.

        Parameters
        ----------
        key : str
            Must be new to the archive.
        shape : int or sequence of int
            If the first dimension is None, it becomes the number of appended
            rows.
        dtype : dtype-like
            Without Python objects.
        compression, level, attrs, chunk_size, seekable
            As in `add`.
        fortran_order : bool, default False
            For a stored array of known shape.

        Returns
        -------
        dst : CreatedArray
            To be used in a ``with`` block. Leaving the block seals the array;
            leaving it by an exception discards the archive. `close` also seals
            the array.

        Raises
        ------
        UnsafeNameError, KeyExistsError, PickleRefusedError, LimitExceededError, \
        ClosedArchiveError
            As `add`. LimitExceededError also if the header of a deflated array
            of unknown length exceeds 65,535 bytes.
        UnsupportedError
            The archive is written to a URL, or to a file object that cannot be
            read and written at offsets, and the array is in Fortran order, or has
            no dimensions, or its length is not known and the file object cannot
            seek. Later, parts are written in another order.
        ValueError
            The shape is bad, or an array that grows is not sealed yet: nothing
            can be written after it.
        OSError
            There is no room for the array, if the system tells it in advance.
        StaleArchiveError
            Another program changed the file.

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
        self._archive.state.check_open(key)
        check_key(key)
        coding = coding_for(self._coding, compression, level, chunk_size, seekable)
        check_attrs(attrs)
        return self._create(key, shape, dtype, attrs, coding, fortran_order=fortran_order)

    def _create(
        self, key: str, shape: Any, dtype: Any, attrs: Any, coding: Coding, *, fortran_order: bool
    ) -> CreatedArray:
        """Begin an array with any attributes, also npzkit's own."""
        from npzkit.writing.create_arguments import plan_array

        archive, name = self._archive, check_key(key)
        plan = plan_array(key, name, shape, dtype, attrs, coding, fortran_order=fortran_order)
        created: CreatedArray = archive.alone(
            archive.create, plan.for_sink(archive.sink, archive.path)
        )
        return created

    def append(self, key: str, rows: Any) -> None:
        """Add rows to an array that is there, along its first axis.

        Each call writes the whole array again, behind the others, because committed bytes
        are never changed; so it takes as long as saving it, and the old bytes stay until the
        file is repacked. For an array that grows for long, use `npzkit.ShardedWriter`.

        Parameters
        ----------
        key : str
            Of an array that any program wrote, in this archive or in this session.
        rows : array-like
            Shape ``(n, *shape[1:])``, or one row of shape ``shape[1:]``. They are
            cast to the array's dtype; only floating-point numbers may be rounded.
            Records need the same fields.

        Raises
        ------
        MemberNotFoundError
            The key does not exist: `add` or `create` begins an array.
        ValueError
            The shape does not fit, the dtype cannot represent a value, or an array is
            being created.
        NotAnArrayError
            NumPy cannot make an array of `rows`, or the member is none.
        PickleRefusedError
            The array holds Python objects.
        UnsupportedError
            The array is saved in parts or encrypted, or `rows` has masked values, or the archive is
            written to a URL, or to a file object that cannot be read.
        ZipFormatError, ChecksumError
            The array is damaged; what was not committed is discarded.
        OSError, StaleArchiveError, ClosedArchiveError, RuntimeError
            As `add`.

        Notes
        -----
        The array keeps its order, compression, attributes and place among the keys.

        Examples
        --------
        >>> import io, npzkit, numpy as np
        >>> stream = io.BytesIO()
        >>> npzkit.save(stream, {"log": np.zeros((2, 3))})
        >>> with npzkit.NpzWriter(stream, mode="a") as w:
        ...     w.append("log", np.ones((4, 3)))
        >>> npzkit.open(stream)["log"].shape
        (6, 3)
        """
        archive = self._archive
        archive.state.check_open(key)
        from npzkit.archive.added_rows import add_rows

        archive.alone(add_rows, archive, key, rows, self._coding)

    # -- edits --------------------------------------------------------------

    def __delitem__(self, key: str) -> None:
        """Remove an array, or values of nested data, with the next commit.

        Values are what has no array, such as a learning rate or an empty dict: the one with this
        key, or all in a container that has no arrays.

        Raises
        ------
        MemberNotFoundError
            The key does not exist.
        UnsupportedError
            The key is that of a part of an array, such as its mask, which goes with the array.
        ClosedArchiveError
            As `add`.

        Notes
        -----
        Its bytes stay in the file until it is repacked; see `auto_repack`.
        """
        self._archive.state.check_open(key)
        self._archive.alone(self._remove, key)

    def _remove(self, key: str) -> None:
        archive, listing = self._archive, self._archive.listing
        if archive.tree is not None and key not in listing and archive.tree.removed_values(key):
            return
        name = listing.find(key)
        listing.check_whole(name)
        others, key = listing.others_of(name), name.removesuffix(SUFFIX)
        if archive.tree is not None:
            archive.tree.removed(key)
        if name in listing.entries:
            for part in (name, *others):
                listing.remove(part)

    def rename(self, old: str, new: str) -> None:
        """Give an array another key, at the same place in the order.

        Its other parts, such as its mask, go with it: in a loop over all keys, skip those that
        are not there any more.

        The archive stores the name a second time in front of the data, where
        it cannot be changed. So the member is copied as it is, without
        decompression. With ``auto_repack=False``, 7-Zip shows the old contents
        and zip.js in strict mode refuses the archive if its first member was
        renamed.

        Parameters
        ----------
        old : str
            Key of an existing array.
        new : str
            Must not exist.

        Raises
        ------
        MemberNotFoundError
            `old` does not exist.
        UnsafeNameError
            `new` cannot be used.
        KeyExistsError
            `new` already exists in the archive.
        ZipFormatError, ChecksumError
            The member is damaged; what was not committed is discarded.
        UnsupportedError
            The member is encrypted, or a part of an array, or the archive is written to a
            URL, or to a file object that cannot be read.
        OSError, StaleArchiveError, ClosedArchiveError
            As `add`.
        """
        archive = self._archive
        archive.state.check_open(old)
        name = check_key(new)
        from npzkit.archive.renaming import rename

        archive.alone(rename, archive, old, new, name)

    def attrs(self, key: str) -> dict[str, Any]:
        """Return an array's attributes as a dict that can be changed.

        Parameters
        ----------
        key : str
            Key of an existing array.

        Returns
        -------
        dict
            The same object each time. The next commit writes its changes. Values are
            strings and what JSON can express; others are refused with a TypeError when
            they are assigned.

        Raises
        ------
        MemberNotFoundError
            The key does not exist.
        ZipFormatError
            The attributes are damaged.
        ClosedArchiveError
            As `add`.
        """
        self._archive.state.check_open(key)
        listing = self._archive.listing
        return listing.attrs(listing.find(key))

    # -- commits ------------------------------------------------------------

    def commit(self) -> None:
        """Make all changes so far the archive's contents.

        They survive whatever happens afterwards, including a power failure if
        ``durable=True``. Created arrays that are not sealed yet are left out.
        If nothing was changed, nothing is written. A new archive appears at its
        path once it has an array or is closed.

        Raises
        ------
        LimitExceededError, ValueError, TypeError
            Metadata or attributes cannot be written, or an array that grows is
            not sealed yet; nothing is lost.
        StaleArchiveError
            The path leads to another file now, or another program changed the
            file. What was not committed is discarded.
        UnsupportedError
            The archive is written to a URL, or to a file object that cannot seek,
            where it is committed by `close`; nothing is lost.
        OSError
            Writing failed, for example because the disk is full. What was not
            committed is discarded.
        ClosedArchiveError, RuntimeError
            As `add`.

        Notes
        -----
        A commit writes a new directory, 50 to 100 bytes per array. A reader
        that opens the archive meanwhile finds either the previous commit or
        this one.
        """
        self._archive.alone(self._archive.commit)

    def close(self) -> None:
        """Commit and close the file. Closing it again does nothing.

        Created arrays that are not sealed yet are sealed first. If more than
        half of the file is unused, it is then repacked; see `auto_repack`.

        Raises
        ------
        LimitExceededError, ValueError, TypeError
            The metadata cannot be written. The file is as at the last commit.
        OSError, StaleArchiveError
            As `commit`.
        UnsupportedError
            On Windows, a map of an array that was created is in use. The writer stays open,
            also after the ``with`` block: delete the map, and call `close` again.
        ClosedArchiveError
            An earlier write or commit failed, and the file is as at the last
            commit. Also in a forked child.
        RuntimeError
            Called during another call, for example by a signal handler.

        Warns
        -----
        RuntimeWarning
            Everything is committed, but the file could not be repacked.
        """
        archive, state = self._archive, self._archive.state
        if state.is_open or state.failure:
            state.check_open()
        elif state.is_inherited:
            # Closed before the fork.
            return
        archive.listing.seal_all()
        state.run(archive.finish, self._auto_repack, ends=True)

    def abort(self) -> None:
        """Discard what was written since the last commit, and close the file.

        A path keeps the file as it was then. What reached a file object before
        any commit stays in it without an end record, so that no reader takes
        it for an archive. Aborting again does nothing. In a forked child only
        the child's copy of the writer is closed.

        Raises
        ------
        OSError
            What was written could not be removed. It is still in the file, but
            readers skip it.
        RuntimeError
            Called during another call, for example by a signal handler.
        """
        self._archive.state.abort()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, error: BaseException | None, *_: object
    ) -> None:
        if error is not None:
            self._archive.state.abandon(error)
            return
        try:
            self.close()
        except BaseException as failed:
            # While a map is in use nothing is lost, and `close` may be called again. An interrupt
            # may have come before it did anything.
            if not (isinstance(failed, UnsupportedError) and self._archive.maps):
                self._archive.state.abandon(failed)
            raise

    @quiet_at_exit
    def __del__(self) -> None:
        archive = getattr(self, "_archive", None)
        if archive is None or not archive.state.is_open:
            return
        try:
            if not archive.state.is_inherited:
                warnings.warn(
                    f"NpzWriter {quoted(archive.path)} was never closed; what it wrote is "
                    "discarded",
                    ResourceWarning,
                    stacklevel=3,
                    source=self,
                )
        finally:
            # The warning may be an error.
            self.abort()
