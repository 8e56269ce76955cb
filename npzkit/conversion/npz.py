"""Archives, from and to other formats.

Owns how an array is written to an archive part by part.
"""

from __future__ import annotations

import contextlib
import math
import os
import tempfile
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np

from npzkit.archive.npzfile import NpzFile
from npzkit.archive.npzwriter import NpzWriter
from npzkit.codecs.coding import STORED
from npzkit.conversion.arrays import (
    HOLDS_OBJECTS,
    Array,
    Contents,
    FileOptions,
    Say,
    named,
    parts_of,
)
from npzkit.conversion.refusals import Claims
from npzkit.datasets.opening import open_any
from npzkit.display import blocks
from npzkit.errors import NpzkitError, printable
from npzkit.files import disk
from npzkit.members.metadata import PARTS_ATTRIBUTE, check_attrs, format_attrs, format_metadata


@contextlib.contextmanager
def read(path: str, say: Say, claims: Claims) -> Iterator[Contents]:
    """Open an archive, or a .npy file as one."""
    with open_any(path, limits=claims.limits) as npz:
        yield Contents(npz.metadata, list(listed_arrays(npz, say)))


def listed_arrays(npz: NpzFile, say: Say) -> Iterator[Array]:
    """Yield the arrays of an archive; of those with objects, that they have a problem."""
    for key in npz.files:
        info = npz.info(key)
        if info.dtype is None or info.shape is None:
            say(f"{printable(key)!r} is not an array and is not kept")
            continue
        yield array_in(npz, key)


def array_in(npz: NpzFile, key: str) -> Array:
    """Return an array of an archive, read in parts if it is large."""
    info = npz.info(key)
    dtype: Any = info.dtype
    is_large = blocks.is_taken_by_parts(info)
    is_checked = is_large and info.crc32 is not None
    read = npz.lazy if is_large else npz.read
    attrs = dict(info.attrs)
    if info.split_into:
        attrs[PARTS_ATTRIBUTE] = npz._archive.saved_attrs(key)[PARTS_ATTRIBUTE]
    return Array(
        key, info.shape or (), dtype, partial(read, key), attrs,
        fortran_order=bool(info.fortran_order),
        problem=HOLDS_OBJECTS if dtype.hasobject else "",
        check=partial(blocks.check_array, npz, key) if is_checked else None,
    )  # fmt: skip


def why_unfit(array: Array) -> str | None:
    """Return why an array cannot be kept as NPY; None for all but arrays of objects."""
    return "NPY cannot hold its dtype" if array.dtype.hasobject else None


def write(path: Any, contents: Contents, options: FileOptions, say: Say) -> None:
    """Write an archive to a path, or to a sink."""
    place = path if isinstance(path, str) else None
    metadata = _fitting(contents.metadata, None, say)
    method = options.method or STORED
    with NpzWriter(path, compression=method, level=options.level) as writer:
        arrays = list(contents.arrays)
        keys = {array.key for array in arrays}
        for array in arrays:
            attrs = _fitting(array.attrs, array.key, say)
            if not parts_of(array) <= keys:
                attrs = {name: attrs[name] for name in attrs if name != PARTS_ATTRIBUTE}
            write_array(writer, array, place, attrs, is_compressed=method != STORED)
        # Its note of nested data is of all arrays, and has no places for masks.
        writer.metadata.update(metadata)


def _fitting(attrs: Mapping[str, Any], key: str | None, say: Say) -> Mapping[str, Any]:
    """Return the attributes if there is room for all of them, else none, with a note."""
    try:
        if key is None:
            format_metadata(attrs)
        else:
            check_attrs({name: attrs[name] for name in attrs if name != PARTS_ATTRIBUTE})
            format_attrs(attrs)
    except (NpzkitError, TypeError, ValueError) as error:
        say(f"the attributes of {named(key)} are not kept: {printable(str(error))}")
        return {}
    return attrs


def write_array(
    writer: NpzWriter,
    array: Array,
    path: str | None,
    attrs: Mapping[str, Any] | None = None,
    *,
    is_compressed: bool,
) -> None:
    """Write an array to the archive at `path`; part by part if it is large.

    `path` is None if the archive goes to a file object or to a store. An array takes the place of
    a value of nested data: another program may have put it there.
    """
    if is_value(writer, array.key):
        del writer[array.key]
    if array.nbytes <= blocks.BLOCK_SIZE:
        writer._add(array.key, array.whole(), attrs, writer._coding, overwrite=False)
    elif not is_compressed and path is not None:
        with writer._create(
            array.key, array.shape, array.dtype, attrs, writer._coding,
            fortran_order=array.fortran_order,
        ) as out:  # fmt: skip
            for index, part in array.parts():
                out[index] = part
    elif is_compressed and _has_small_rows(array):
        with writer._create(
            array.key, array.shape, array.dtype, attrs, writer._coding, fortran_order=False
        ) as out:
            for _, part in array.parts():
                out.append(part)
    else:
        with _spooled(array, path) as whole:
            writer._add(array.key, whole, attrs, writer._coding, overwrite=False)


def is_value(writer: NpzWriter, key: str) -> bool:
    """Return whether nested data in an archive has a value, without an array, at a key."""
    tree = writer._archive.tree
    return tree is not None and tree.note.has_value(key)


def _has_small_rows(array: Array) -> bool:
    """Return whether the array's parts are complete rows, one after the other."""
    indices = blocks.blocks(array.shape, array.dtype.itemsize, array.least)
    first = next(indices)
    lengths = tuple(part.stop - part.start for part in first[1:])
    return not array.fortran_order and lengths == array.shape[1:]


@contextlib.contextmanager
def _spooled(array: Array, path: str | None) -> Iterator[np.ndarray[Any, Any]]:
    """Write an array whose parts are not rows to a file beside the archive, and map that.

    The system removes the file when it is closed and no longer mapped, however that ends.
    """
    parent = None if path is None else os.path.dirname(os.path.abspath(path))
    with tempfile.TemporaryFile(dir=parent, prefix=".npzkit-") as file:
        stored = array.stored()
        size = math.prod(stored.shape) * stored.dtype.itemsize
        with contextlib.closing(disk.File(None, file.fileno())) as spool:
            spool.reserve(0, size, mapped=True)
        order: Any = "F" if stored.fortran_order else "C"
        mapped = partial(np.memmap, file, stored.dtype, "r+", 0, stored.shape, order)
        for index, part in stored.parts():
            mapped()[index] = part
        yield mapped().view(array.dtype)
