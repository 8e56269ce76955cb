"""Archives from and to other formats, by the names of the files.

Owns the order of things: what is read is checked, written beside the new path, and compared,
before it takes its place; and that a library's exception for a damaged file becomes an error of
npzkit.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

from npzkit.codecs.coding import checked_method
from npzkit.conversion import foreign_process, unpickled
from npzkit.conversion.arrays import (
    HOLDS_OBJECTS,
    MAKE_PLAIN,
    Array,
    Contents,
    FileOptions,
    Say,
    few,
    is_masked,
    named,
    parts_of,
    with_dtypes,
    without_arrays,
)
from npzkit.conversion.formats import (
    MATLAB,
    NPZ,
    ZARR,
    Format,
    module_of,
    needing,
    source_format,
    target_format,
)
from npzkit.conversion.output_paths import check_not_itself, check_path, replacing
from npzkit.conversion.read_back import compare
from npzkit.conversion.refusals import Claims, fitting_arrays, size_of
from npzkit.datasets.opening import is_npy, is_sharded, is_zarr, open
from npzkit.errors import (
    GET_AGAIN,
    SKIP,
    ConversionError,
    FormatError,
    NpzkitError,
    UnsupportedError,
    printable,
    shown_url,
)
from npzkit.files.file_objects import as_path
from npzkit.files.progress import Advance, Meter
from npzkit.files.urls import Location, default_storage_options, find_locations
from npzkit.limits import DEFAULT_HEADER_SIZE, Limits, check_limits
from npzkit.maintenance.repack import Chosen, rewrite
from npzkit.members.keys import child_key, missing, with_folders
from npzkit.members.metadata import TREE_KEY, format_metadata
from npzkit.trees.note_edits import EditedNote
from npzkit.trees.notes import (
    is_leaf,
    is_value,
    items_of,
    kind_of,
    links,
    needs_no_array,
    nodes_of,
    values_of,
)
from npzkit.trees.restoring import named_keys

if TYPE_CHECKING:
    from npzkit.typing import Progress


class ConvertReport(NamedTuple):
    """What `convert` wrote.

    Attributes
    ----------
    output : str
        The path of the file or folder.
    keys : tuple of str
        The keys of its arrays, in their order.
    notes : tuple of str
        What was not kept or changed, a sentence each.
    skipped : mapping of str to str
        Why an array was left out, by key. Empty unless ``skip=True``.
    """

    output: str
    keys: tuple[str, ...]
    notes: tuple[str, ...]
    skipped: Mapping[str, str]


_PERHAPS_DAMAGED = f"It may be cut off or damaged. {GET_AGAIN}."
_SHOWN_LENGTH = 200
"""Characters of a library's message that are quoted."""


def convert(
    file: str | os.PathLike[str],
    output: str | os.PathLike[str],
    only: str | Iterable[str] | None = None,
    *,
    compression: Literal["stored", "deflated", "zstd"] | int | None = None,
    level: int | None = None,
    zarr_format: Literal[2, 3] = 3,
    skip: bool = False,
    overwrite: bool = False,
    progress: Progress | None = None,
    dtypes: Mapping[str, Any] | None = None,
    allow_pickle: bool = False,
    encoding: str = "ASCII",
    limits: Limits | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> ConvertReport:
    """Convert a file of arrays to another format, which the name of `output` says.

    The format of `file` is that of its bytes, and if they show none, that of its name.

    ============================  ===========================  ==================
    name                          format                       needs
    ============================  ===========================  ==================
    ``.npz``                      an archive
    ``.npy``                      NumPy's; read, not written
    ``.safetensors``              safetensors                  ``safetensors``
    ``.h5``, ``.hdf5``            HDF5                         ``h5py``
    ``.zarr``                     a folder that Zarr reads     ``zarr``
    ``.mat``                      MATLAB, version 5            ``scipy``
    ``.pt``, ``.pth``, ``.bin``,  of torch.save; read, not     ``torch``
    ``.ckpt``                     written
    ============================  ===========================  ==================

    `pack` makes an archive of many .npy files, and `extract` writes them.

    Keys, attributes and metadata are kept if the new format has a place for
    them. Large arrays are converted in parts, so that they take little memory;
    .mat needs the memory of the largest array.

    A file of torch.save is read with ``torch.load(weights_only=True)``, which runs no
    code from it. The archive has what `npzkit.save` would have written: `load_tree`
    returns the nested data, and `npzkit.torch.load_file` the tensors.

    Parameters
    ----------
    file : path or URL
        The file or folder to read. A URL must be of an .npz archive. A folder
        with an ``index.npz`` of npzkit is a sharded archive. Only this file or
        folder is read: links and data in other files are not followed.
    output : path or URL
        The file or folder to write. It appears when it is complete. URLs are as
        in `NpzWriter`, and are for .npz archives.
    only : str or iterable of str, optional
        Keys, and patterns such as ``"encoder/*"``, in which ``*`` also matches ``/``: the
        arrays to convert, with all that is below these keys.
    compression : {"stored", "deflated", "zstd"} or int, optional
        By default arrays are stored; those of .zarr are compressed as zarr does
        by default, and from .npz to .npz each array keeps its method.
    level : int, optional
        Of compressed arrays, as in `NpzWriter`. HDF5 has no zstd: it uses gzip at its level 6.
    zarr_format : {3, 2}
        The version of Zarr that is written.
    skip : bool, default False
        Whether to leave out arrays that `output` cannot hold and report them. By
        default the first one raises.
    overwrite : bool, default False
        Whether to replace a file at `output`. A folder is replaced only if it is
        a Zarr store. An empty folder is used.
    progress : callable, optional
        Called with the bytes done and the total: every few megabytes, and at
        the end.
    dtypes : mapping of str to dtype, optional
        What the bytes of some arrays are, by key: ``{"w": "bfloat16"}`` for an array of ``V2``.
        Other programs save dtypes that NumPy lacks so, and do not say which it was.
    allow_pickle : bool, default False
        Whether to unpickle the objects of an archive, which runs code that the file names:
        only for files that you trust. An array of objects becomes one of numbers or
        texts, or nested data for `load_tree`. What has no place there is refused, or left
        out by `skip`. Files of torch.save are not unpickled so.
    encoding : str, default "ASCII"
        How to decode strings of Python 2 in pickles, as in `npzkit.load`.
    limits : Limits, optional
        Upper bounds on the arrays of `file`. Without a ``total_size``, the arrays of a file that
        its library reads may have 1 GiB, and 1032 bytes for each byte of the file.
    storage_options : dict, optional
        For the stores of `file` and `output`, if they are URLs; see `npzkit.open`.

    Returns
    -------
    ConvertReport

    Raises
    ------
    FileExistsError
        `output` exists, and `overwrite` is False.
    OSError
        `file` cannot be read, or `output` cannot be written.
    ConversionError
        A name has no known format, `file` has members but no arrays, `output` cannot
        be replaced, a value has no place in the new format and `skip` is False, `skip`
        leaves out all arrays, or the
        library of the format does not read back what was written, crashes or does not
        answer.
    ChecksumError
        A record of a file of torch.save does not fit its CRC-32.
    ArchiveLockedError
        A writer has the archive open that `output` would replace.
    FormatError
        `file` is damaged.
    PickleRefusedError
        `file` is of torch.save, and is an object of another class, or has one of a class that
        extends a dict, a list or a tensor.
    LimitExceededError
        The arrays of `file` are larger, or more, than `limits` allows.
    UnsupportedError
        The library of a format is not installed.
    MemberNotFoundError
        A pattern of `only` matches nothing.
    NpzkitError
        An archive is damaged, as of `NpzFile.read`.
    ValueError
        A bad argument.

    Notes
    -----
    If there is an error, `output` stays as it was.

    Files of .h5, .zarr, .mat and torch.save are read by their library in a process of its own,
    which a damaged file may crash or stop. This takes about as long as starting Python and
    importing the library. A library that sends nothing for a minute is ended, after a second more
    for each 10 MiB of the file.

    Before a new file of another format takes its place, its library reads it, and every value is
    compared with `file`, part by part. This takes about as long as to convert the file back.
    An array whose dtype has become another one, with the same values, is noted.

    Examples
    --------
    >>> import npzkit, numpy as np, os, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "model.npz")
    ...     npzkit.save(path, {"layer/w": np.eye(2), "b": np.ones(2)}, metadata={"step": 1})
    ...     copy = os.path.join(folder, "copy.npz")
    ...     report = npzkit.convert(path, copy, compression="deflated")
    ...     with npzkit.open(copy) as npz:
    ...         print(report.keys, npz.metadata["step"], npz.info("b").method)
    ('layer/w', 'b') 1 deflated
    """
    options = _options(compression, level, zarr_format)
    checked = check_limits(limits, DEFAULT_HEADER_SIZE)
    location, destination = find_locations((file, output), storage_options)
    source, is_url = source_format(location), isinstance(location, Location)
    file = location.url if is_url else os.fsdecode(location)
    output = str(destination) if isinstance(destination, Location) else as_path(destination)
    target = target_format(output)
    if source.is_foreign:
        check_not_itself(file, output)
    place = _place(destination, output, target, overwrite=overwrite)
    with default_storage_options(location.options if is_url else {}):
        claims = Claims(checked, size_of(file) if source.is_foreign else None)
        made = _Conversion(file, output, place, source, target, claims, only, skip, progress)
        if source == target == NPZ and not (dtypes or allow_pickle) and _is_copied(location):
            return made.copy(
                location, compression=compression, level=level,
                overwrite=overwrite or place is not output,
            )  # fmt: skip
        return made.convert(options, dtypes or {}, encoding if allow_pickle else None)


def _is_copied(location: Any) -> bool:
    """Return whether an archive is in one file, whose members can be copied."""
    if isinstance(location, Location):
        # A URL without a suffix may be the prefix of a sharded archive.
        return bool(os.path.splitext(location.file_name)[1]) and not is_sharded(location.url)
    return not is_sharded(location) and not is_npy(location)


class _Conversion(NamedTuple):
    """What is converted to what.

    Attributes
    ----------
    file, output : str
        As errors and reports name them.
    place : object
        Where to write: the path, or a sink in a store.
    source, target : Format
    claims : Claims
    only : str, iterable of str or None
    skip : bool
    progress : callable or None
    """

    file: str
    output: str
    place: Any
    source: Format
    target: Format
    claims: Claims
    only: str | Iterable[str] | None
    skip: bool
    progress: Progress | None

    def copy(self, location: Any, **how: Any) -> ConvertReport:
        """Copy the members of an archive, compressed as `how` says.

        A member is copied as it is, so an array of Python objects would stay one.
        """
        others, metadata, chosen = set[str](), None, None
        with open(location, limits=self.claims.limits) as npz:
            metadata = npz.metadata
            if self.only is not None:
                others = _not_named(self.only, npz.files, metadata, npz._archive.path)
            infos = {key: npz.info(key) for key in npz if key not in others}
            others -= {part for info in infos.values() for part in info.split_into}
            for info in infos.values():
                self.claims.add(info.key, info.nbytes)
            objects = [key for key, info in infos.items() if info.dtype and info.dtype.hasobject]
            if objects and not self.skip:
                raise ConversionError(
                    f"the value cannot be kept: {HOLDS_OBJECTS}", key=objects[0],
                    remedy=MAKE_PLAIN,
                )  # fmt: skip
            others.update(objects)
            kept = [key for key in npz if key not in others]
            keys = tuple(key for key in kept if npz.info(key).dtype is not None)
            if others:
                metadata = _without(metadata, npz.files, others)
                names = {npz._archive.one_file().entry(key).name for key in kept}
                chosen = Chosen(names, format_metadata(metadata))
            _check_some_left(keys, dict.fromkeys(objects, HOLDS_OBJECTS), metadata.get(TREE_KEY))
        rewrite(self.file, self.place, chosen, progress=self.progress, **how)
        left_out = dict.fromkeys(objects, HOLDS_OBJECTS)
        lost = _lost_items(metadata.get(TREE_KEY), kept, left_out)
        return ConvertReport(self.output, keys, tuple(lost), left_out)

    def convert(
        self, options: FileOptions, dtypes: Mapping[str, Any], encoding: str | None
    ) -> ConvertReport:
        """Write the arrays that the format of the file reads; objects too with an `encoding`."""
        notes, skipped, raised = dict[str, None](), dict[str, str](), list[BaseException]()
        say, writer, target = notes.setdefault, module_of(self.target), self.target
        with (
            _explaining(self.file, self.output, raised),
            self._reading(say, encoding) as found,
        ):
            contents = found if self.only is None else _chosen(found, self.only, self.file)
            tree = contents.metadata.get(TREE_KEY)
            arrays = with_dtypes(list(contents.arrays), dtypes, self.file)
            arrays = fitting_arrays(arrays, writer, skipped if self.skip else None)
            _check_some_left(arrays, skipped, tree)
            if target is not NPZ:
                _note_parts(arrays, say)
            if target is not NPZ or encoding is not None:
                kept = "not kept" if target is MATLAB else "only npzkit finds this, in the metadata"
                for values in without_arrays(tree, metadata=contents.metadata):
                    say(f"{values}; {kept}")
            work = sum(array.work + array.nbytes * (target is not NPZ) for array in arrays)
            meter = Meter(_noting(self.progress, raised), work)
            given = Contents(contents.metadata, arrays)
            while (refused := self._write(given, options, meter.add, say)) is not None:
                skipped[refused.key or ""] = refused.what
                arrays[:] = [array for array in arrays if array.key != refused.key]
                _check_some_left(arrays, skipped, tree)
            meter.finish()
        keys = tuple(array.key for array in arrays)
        notes |= dict.fromkeys(_lost_items(tree, keys, skipped))
        return ConvertReport(self.output, keys, tuple(notes), skipped)

    @contextlib.contextmanager
    def _reading(self, say: Say, encoding: str | None) -> Iterator[Contents]:
        """Open the file, and check what its arrays claim."""
        source, path, claims = self.source, self.file, self.claims
        with contextlib.ExitStack() as stack:
            with needing(source):
                if source.is_foreign:
                    reading = foreign_process.read(source.module, source.library, path, say, claims)
                elif source is NPZ and encoding is not None:
                    reading = unpickled.read(path, say, claims, encoding)
                else:
                    reading = module_of(source).read(path, say, claims)
                contents = stack.enter_context(reading)
            if not source.is_foreign:
                for array in contents.arrays:
                    claims.add(array.key, array.nbytes)
            yield contents

    def _write(
        self, contents: Contents, options: FileOptions, advance: Advance, say: Say
    ) -> ConversionError | None:
        """Write the new file, and compare what the library of its format reads from it.

        Return the error for an array that the library does not keep, if it can be left out.
        """
        watched = Contents(contents.metadata, [array.watched(advance) for array in contents.arrays])
        module, notes, place = module_of(self.target), dict[str, None](), self.place
        try:
            with replacing(place) if isinstance(place, str) else nullcontext(place) as path:
                module.write(path, watched, options, notes.setdefault)
                if self.target.library:
                    pads_text = getattr(module, "PADS_TEXT", False)
                    claims = Claims(Limits(), None)
                    with module.read(path, lambda note: None, claims) as found:
                        compare(contents, found, notes.setdefault, advance, pads_text=pads_text)
        except ConversionError as error:
            if not self.skip or all(array.key != error.key for array in contents.arrays):
                raise
            return error
        for note in notes:
            say(note)
        return None


def _note_parts(arrays: list[Array], say: Say) -> None:
    keys = {array.key for array in arrays}
    for array in arrays:
        if (parts := parts_of(array)) and parts <= keys:
            kind = "a masked array" if is_masked(array) else "strings of any length"
            say(
                f"{printable(array.key)!r} was saved in parts, as {kind}; the parts are kept as "
                "plain arrays, which only npzkit puts together"
            )


def _chosen(contents: Contents, only: str | Iterable[str], path: str) -> Contents:
    """Return the arrays that some patterns name, and the metadata without the others' places."""
    arrays = list(contents.arrays)
    keys = [array.key for array in arrays]
    others = _not_named(only, keys, contents.metadata, path)
    others.difference_update(*(parts_of(array) for array in arrays if array.key not in others))
    metadata = _without(contents.metadata, keys, others)
    return Contents(metadata, [array for array in arrays if array.key not in others])


def _not_named(
    only: str | Iterable[str], keys: list[str], metadata: Mapping[str, Any], path: str | None
) -> set[str]:
    """Return the keys of arrays, values and empty containers that no pattern names.

    What a pattern names exists. Of a tied tensor, the array is named too.
    """
    patterns = [only] if isinstance(only, str) else list(only)
    if not patterns:
        raise ValueError("only must have at least one key or pattern")
    note = metadata.get(TREE_KEY)
    there = [*keys, *(key for key, found in nodes_of(note) if key and needs_no_array(found))]
    chosen = set(named_keys(patterns, there, path))
    for key in sorted(chosen.difference(there)):
        raise missing(key, keys, path)
    return set(there) - chosen - {target for key, target in links(note).items() if key in chosen}


def _without(
    metadata: Mapping[str, Any], keys: Iterable[str], others: Iterable[str]
) -> dict[str, Any]:
    """Return metadata whose note of nested data has no places for what is left out."""
    if TREE_KEY not in metadata:
        return dict(metadata)
    note = EditedNote(metadata[TREE_KEY], set(keys).__contains__)
    for key in others:
        note.take(key)
    return {**metadata, TREE_KEY: note.note}


def _options(compression: Any, level: int | None, zarr_format: int) -> FileOptions:
    """Check arguments."""
    if zarr_format not in (2, 3):
        raise ValueError(f"zarr_format must be 2 or 3, not {zarr_format!r}")
    method = checked_method("deflated" if compression is None else compression, level)
    return FileOptions(None if compression is None else method, level, zarr_format)


def _place(location: Any, path: str, target: Format, *, overwrite: bool) -> Any:
    """Return where to write: a path, which is checked, or a sink in a store."""
    if not isinstance(location, Location):
        check_path(path, overwrite=overwrite, is_own=is_zarr if target is ZARR else None)
        return path
    if target is not NPZ:
        raise UnsupportedError(
            "only .npz archives can be written to a store", path=str(location),
            remedy="Write to a path, and upload the file.",
        )  # fmt: skip
    from npzkit.stores.store_for_url import open_sink

    return open_sink(location, exclusive=not overwrite)


def _check_some_left(left: Collection[Any], skipped: Mapping[str, str], tree: Any) -> None:
    """Raise ConversionError if all is left out that could be in the new file."""
    if skipped and not left and not values_of(tree):
        key, reason = next(iter(skipped.items()))
        raise ConversionError(
            f"all arrays are left out, so that the new file would be empty: {reason}", key=key,
            remedy="Convert to another format, or do what the error without " + SKIP + " says.",
        )  # fmt: skip


def _lost_items(tree: Any, keys: Iterable[str], skipped: Iterable[str]) -> list[str]:
    """Return a note that names the lists and tuples without some of the arrays left out, if any."""
    nodes = [*nodes_of(tree)] if (lost := _with_folders(skipped)) else []
    # An empty container is a value too.
    values = [key for key, note in nodes if is_value(note) or not (is_leaf(note) or items_of(note))]
    lost -= _with_folders([*keys, *values])
    found = [
        named(key or None) for key, note in nodes
        if kind_of(note) in ("list", "tuple", "named") and key not in lost
        and any(child_key(key, name) in lost for name in items_of(note))
    ]  # fmt: skip
    what = "lists and tuples that lost items load as dicts by index or name: "
    return [what + few(found)] if found else []


def _with_folders(keys: Iterable[str]) -> set[str]:
    """Return keys, and the keys of all that they are in."""
    keys = [*keys]
    return {*keys, *(folder.removesuffix("/") for folder in with_folders(keys))}


def _noting(progress: Progress | None, raised: list[BaseException]) -> Progress | None:
    """Return `progress`, whose exceptions are noted."""

    def report(done: int, total: int) -> None:
        try:
            cast("Progress", progress)(done, total)
        except BaseException as error:
            raised.append(error)
            raise

    return report if progress else None


@contextlib.contextmanager
def _explaining(file: str, output: str, raised: list[BaseException]) -> Iterator[None]:
    """Turn every exception of a library for a damaged file into one error.

    Those that are in `raised`, and those of the system, are left as they are.
    """
    try:
        yield
    except NpzkitError as error:
        raise error.locate(path=shown_url(file)) from error.__cause__
    except Exception as error:
        if any(error is other for other in raised) or _is_of_system(error):
            raise
        text = printable(" ".join(str(error).split()))[:_SHOWN_LENGTH] or type(error).__name__
        is_reading = isinstance(error, foreign_process.LibraryError)
        raise FormatError(
            f"the file cannot be {'read' if is_reading else f'converted to {output!r}'}: {text}",
            path=shown_url(file),
            remedy=_PERHAPS_DAMAGED if is_reading else None,
        ) from error


def _is_of_system(error: Exception) -> bool:
    """Whether the system raised an error, such as for a full disk, and not a library."""
    if isinstance(error, OSError) and error.filename is None:
        return error.errno is not None and error.strerror == os.strerror(error.errno)
    return isinstance(error, (OSError, MemoryError, RecursionError))
