"""Files, folders and archives packed into one archive.

Owns the order in which inputs are read and written, and whose metadata is kept.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Iterable, Mapping, Sequence, Set
from itertools import filterfalse
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from npzkit.archive.npzwriter import NpzWriter
from npzkit.codecs.coding import STORED, checked_method
from npzkit.conversion.arrays import Array, Say, array_of, without_arrays
from npzkit.conversion.inputs import PAIR, Given, Input, Packed, located, opened_inputs
from npzkit.conversion.joining import join_archives
from npzkit.conversion.npz import is_value, write_array
from npzkit.conversion.output_paths import check_path
from npzkit.display import blocks
from npzkit.errors import Advice, printable, some_of
from npzkit.files.file_objects import UNNAMED, as_path, can_write
from npzkit.files.progress import Meter
from npzkit.files.urls import Location, find_location
from npzkit.members.keys import taken, with_folders
from npzkit.members.metadata import TREE_KEY
from npzkit.trees.containers import without_note
from npzkit.trees.restoring import KeySelection
from npzkit.trees.tree_edits import add_note, spell_out

if TYPE_CHECKING:
    from npzkit.typing import Compression, Progress, Writable


class PackReport(NamedTuple):
    """What `pack` wrote.

    Attributes
    ----------
    output : str or None
        The path of the archive; None for a file object.
    keys : tuple of str
        The keys of its arrays, in their order.
    notes : tuple of str
        What was skipped or not kept, a sentence each.
    replaced : tuple of str
        Keys among these that the archive had before.
    """

    output: str | None
    keys: tuple[str, ...]
    notes: tuple[str, ...] = ()
    replaced: tuple[str, ...] = ()


def pack(
    file: Writable,
    inputs: Any,
    *,
    compression: Compression = "stored",
    level: int | None = None,
    allow_pickle: bool = False,
    encoding: str = "ASCII",
    join: Literal["concatenate", "stack"] | None = None,
    axis: int = 0,
    keys: Iterable[str] | None = None,
    skip: bool = False,
    overwrite: bool = False,
    progress: Progress | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> PackReport:
    """Pack .npy files, folders and archives into a new archive.

    Large arrays are read and written in parts, so that they take little memory.
    The archive appears at its path or URL when it is complete.

    Parameters
    ----------
    file : path, URL or file object
        The archive to write. A path is taken as it is, no ``.npz`` is appended.
        URLs are as in `NpzWriter`.
    inputs : path, URL, NpzFile, file object, iterable of these, or mapping
        ``.npy`` files, archives (``.npz``), folders, and binary file objects
        that give one .npy and then end. Texts may be patterns such as ``"runs/*.npz"``.
        URLs are as in `npzkit.open`; an .npy file behind one is read into memory. A
        mapping, or pairs in the iterable, give keys to them. The usual key is
        the file's name without its suffix; ``arr_0`` for a file object. If `numpy.save`
        wrote several arrays to one file, they get ``.0``, ``.1`` and so on after the
        key, and a note. Arrays
        of a folder have their paths in it as keys, and those of an archive
        their own keys, after the given key and a slash. If two archives without a
        given key have arrays of the same key, that of each of their arrays comes
        after the file's name and a slash. An archive's attributes and metadata are
        kept.
    compression : {"stored", "deflated", "zstd"} or int, default "stored"
    level : int, optional
        Of compressed arrays, as in `NpzWriter`.
    allow_pickle : bool, default False
        Whether to read and write arrays of Python objects, which runs code
        from the inputs.
    encoding : str, default "ASCII"
        Of text in Python objects that Python 2 wrote, as in `npzkit.load`.
    join : {None, "concatenate", "stack"}, default None
        How to make one array of those that have the same key in several archives: `inputs`
        is then a pattern or a list of archives, as for `open_many`. "stack" puts them on
        a new first axis, a position per file. Attributes and metadata are those of the
        first file, with a note of each that differs in another. The arrays may be larger
        than memory, except masked ones.
    axis : int, default 0
        Along which arrays are concatenated.
    keys : iterable of str, optional
        Which arrays are packed or joined: keys, folders of keys, or patterns such as
        ``"loss/*"``, in each input. By default all. Some of nested data become plain arrays.
    skip : bool, default False
        Whether to leave out, with a note, files that cannot be opened or are damaged, with all
        their arrays; for this, all is read twice. With `join`, also files that do not fit the
        first one, and arrays that lack `axis`, such as scalars, or hold Python objects, instead
        of raising DifferentFilesError, ConversionError or UnsupportedError. If none of several
        others fits the first one, that is a DifferentFilesError still.
    overwrite : bool, default False
        Whether to replace a file at the path.
    progress : callable, optional
        Called with the bytes done and the total: every few megabytes, and at
        the end.
    storage_options : dict, optional
        For the stores of URLs; see `npzkit.open`.

    Returns
    -------
    PackReport

    Raises
    ------
    FileExistsError
        The path already exists, and `overwrite` is False.
    OSError
        An input does not exist, or the archive cannot be written.
    ConversionError
        An input is not an array, a folder has no array, or bytes that are no array
        follow an array. Also if an array follows that of a file object, of a URL, or
        one of Python objects.
    UnsafeNameError
        Two inputs have the same key (`KeyExistsError`), or a key cannot be saved.
    NpzkitError
        An input is damaged, or needs pickle.
    ValueError, TypeError
        A bad argument.

    Notes
    -----
    Files in a folder that are not arrays, and members of an archive that are
    not, are skipped with a note. If two archives have different
    metadata of one name, the first one's is kept. Nested data of several archives is kept
    where no other has anything under the same first name; a note says where that is not so.
    `join` makes plain keys of nested data, without its values that are no arrays, which a note
    names.

    Examples
    --------
    >>> import npzkit, numpy as np, os, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.save(os.path.join(folder, "weights.npy"), np.eye(2))
    ...     np.save(os.path.join(folder, "bias.npy"), np.ones(2))
    ...     path = os.path.join(folder, "a.npz")
    ...     report = npzkit.pack(path, folder)
    ...     with npzkit.open(path) as npz:
    ...         print(report.keys, npz["bias"])
    ('bias', 'weights') [1. 1.]
    """
    if join not in (None, "concatenate", "stack"):
        raise ValueError(f"join must be 'concatenate', 'stack' or None, not {join!r}")
    target, given = located(file, () if join else inputs, storage_options)
    path = None if can_write(target) or isinstance(target, Location) else as_path(target)
    if path is not None:
        check_path(path, overwrite=overwrite)
    mode: Any = "w" if overwrite or can_write(target) else "x"
    if join is None:
        report = _pack(
            target, path, mode, given, progress, keys=keys, skip=skip,
            compression=compression, level=level, allow_pickle=allow_pickle, encoding=encoding,
        )  # fmt: skip
    else:
        written, notes = join_archives(
            target, path, mode, inputs, operator.index(axis) if join == "concatenate" else None,
            keys, progress, skip=skip, storage_options=storage_options,
            compression=compression, level=level,
        )  # fmt: skip
        report = PackReport(path, written, notes)
    return report._replace(output=str(target)) if isinstance(target, Location) else report


def add(
    file: str | os.PathLike[str],
    inputs: Any,
    *,
    compression: Compression = "stored",
    level: int | None = None,
    allow_pickle: bool = False,
    encoding: str = "ASCII",
    lock_timeout: float | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> PackReport:
    """Add files, folders and archives to an archive that exists, in one commit.

    Parameters
    ----------
    file : path
        The archive.
    inputs, compression, level, allow_pickle, encoding, progress
        As in `pack`.
    lock_timeout : float, optional
        As in `NpzWriter`.
    overwrite : bool, default False
        Whether to replace arrays that have the same keys, whose attributes are removed, with
        a note, and metadata of the same names, which otherwise stays.
    storage_options : mapping, optional
        For the stores of inputs that are URLs; see `npzkit.open`.

    Returns
    -------
    PackReport

    Raises
    ------
    KeyExistsError
        The archive already has one of the keys, and `overwrite` is False.
    NpzkitError, OSError, ValueError, TypeError
        As `pack`, and as `NpzWriter` in mode "a". The archive stays as it was.

    Examples
    --------
    >>> import npzkit, numpy as np, os, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path, bias = os.path.join(folder, "a.npz"), os.path.join(folder, "bias.npy")
    ...     npzkit.save(path, {"weights": np.eye(2)})
    ...     np.save(bias, np.zeros(2))
    ...     report = npzkit.add(path, bias)
    ...     with npzkit.open(path) as npz:
    ...         print(report.keys, npz.files)
    ('bias',) ['weights', 'bias']
    """
    place = find_location(file)
    if isinstance(place, Location):
        # Raises what to do instead.
        NpzWriter(place, "a").abort()
    path = os.fsdecode(place)
    os.stat(path)
    _, given = located(path, inputs, storage_options)
    return _pack(
        path, path, "a", given, progress, overwrite=overwrite, compression=compression,
        level=level, allow_pickle=allow_pickle, encoding=encoding, lock_timeout=lock_timeout,
    )  # fmt: skip


def _pack(
    file: Any,
    path: str | None,
    mode: Literal["w", "x", "a"],
    given: Sequence[Given],
    progress: Progress | None,
    *,
    keys: Iterable[str] | None = None,
    overwrite: bool = False,
    skip: bool = False,
    encoding: str,
    **writing: Any,
) -> PackReport:
    """Write the inputs to an archive that is opened in a mode, with other options in `writing`.

    `path` is None for a file object or a URL. `overwrite` replaces keys and metadata
    that the archive has.
    """
    compresses = checked_method(writing["compression"], writing["level"]) != STORED
    notes: dict[str, None] = {}
    pickling = {"allow_pickle": writing["allow_pickle"], "pickle_kwargs": {"encoding": encoding}}
    wanted = None if keys is None else KeySelection(keys, "keys")
    reading: Any = {"wanted": wanted, "skip": skip, **pickling}
    with opened_inputs(given, path, notes.setdefault, **reading) as found:
        meter = Meter(progress, sum(item.size for packed in found for item in packed.items))
        with NpzWriter(file, mode, masked="split", strings="split", **writing) as writer:
            written = [key for packed in found for key in packed.keys]
            replaced = [key for key in written if key in writer or is_value(writer, key)]
            _refuse_taken(() if overwrite else replaced, path)
            _add_metadata(writer, found, notes.setdefault, path, overwrite=overwrite)
            attrs = {key: dict(writer.attrs(key)) for key in replaced if key in writer}
            before = set(with_folders(there := writer.files))
            for packed in found:
                own = set(packed.keys)
                spell_out(writer._archive)
                if overwrite and packed.npz is not None:
                    before = set(with_folders([key for key in writer.files if key not in own]))
                elif not overwrite:
                    # The archive before may have a value without an array of this key.
                    _refuse_taken([key for key in packed.keys if is_value(writer, key)], path)
                for item in packed.items:
                    _add(writer, path, item, meter, compresses=compresses)
                if wanted is None:
                    _add_tree(writer, packed, before, notes.setdefault, overwrite)
                elif packed.npz is not None:
                    note = packed.npz.metadata.get(TREE_KEY)
                    for values in without_arrays(note, wanted.__contains__):
                        notes.setdefault(f"{printable(packed.path)}: {values}; not kept")
                before.update(with_folders(sorted(own)))
            if replaced:
                _note_lost(attrs, {*there, *written}, writer, notes.setdefault)
        meter.finish()
    return PackReport(path, tuple(written), tuple(notes), tuple(replaced))


def _note_lost(
    attrs: Mapping[str, Mapping[str, Any]], known: Set[str], writer: NpzWriter, say: Say
) -> None:
    """Name attributes that replaced arrays had before, and tensors that are no longer tied."""
    lost = {key: [*filterfalse(writer.attrs(key).__contains__, attrs[key])] for key in attrs}
    texts = [f"{printable(key)} ({printable(', '.join(lost[key]))})" for key in lost if lost[key]]
    if texts:
        say(f"attributes of replaced arrays are removed: {some_of(texts)}")
    for key in sorted({*writer.files} - known):
        say(
            f"{printable(key)} keeps the old values: it was tied to an array that was replaced. "
            "Replace it too, or remove it"
        )


def _refuse_taken(keys: Sequence[str], path: str | None) -> None:
    """Raise KeyExistsError for the first of the keys that the archive has."""
    if keys:
        raise taken(
            keys[0], path,
            remedy="Pass " + Advice("overwrite=True", "--overwrite") + " to replace it, which "
            "removes its attributes, or give the new array another key by " + PAIR + ".",
        )  # fmt: skip


def _add(
    writer: NpzWriter, path: str | None, item: Input, meter: Meter, *, compresses: bool
) -> None:
    """Read an array and write it."""
    array, part = item.read(), meter.part(item.size, item.work)
    is_large = isinstance(array, np.memmap) and array.nbytes > blocks.BLOCK_SIZE
    if is_large and path is not None:
        array = array_of(item.key, array)
    if isinstance(array, Array):
        if item.key in writer:
            del writer[item.key]
        array = array._replace(key=item.key).watched(part.add)
        write_array(writer, array, path, item.attrs, is_compressed=compresses)
    else:
        writer.add(item.key, array, attrs=item.attrs, overwrite=True)
    part.end()


def _add_metadata(
    writer: NpzWriter, found: Sequence[Packed], say: Say, target: str | None, *, overwrite: bool
) -> None:
    """Add the metadata of archives; a name that has another value already stays, with a note."""
    owners = dict.fromkeys(writer.metadata, target or UNNAMED)
    for packed in found:
        path, metadata = packed.path, {} if packed.npz is None else packed.npz.metadata
        for name, value in without_note(metadata)[0].items():
            if name not in owners or overwrite:
                writer.metadata[name] = value
            elif writer.metadata[name] != value:
                say(
                    f"{printable(path)}: the metadata {printable(name)!r} is not kept, because "
                    f"{printable(owners[name])} has another value"
                )
            owners.setdefault(name, path)


def _add_tree(
    writer: NpzWriter, packed: Packed, before: Set[str], say: Say, overwrite: bool
) -> None:
    """Add what makes nested data of an archive's arrays; what does not fit is left out, noted."""
    npz = packed.npz
    note = None if npz is None else npz.metadata.get(TREE_KEY)
    if npz is None or note is None:
        return
    left_out = add_note(
        writer._archive, note, npz.files, packed.prefix, before, overwrite=overwrite
    )
    if left_out:
        say(f"{printable(packed.path)}: {left_out}")
