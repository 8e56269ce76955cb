"""Zarr stores that are folders, versions 2 and 3, by zarr-python.

Owns which of Zarr's kinds an array becomes, and how large its chunks are.
"""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any

import numpy as np
import zarr
import zarr.codecs

from npzkit.codecs.coding import STORED, ZSTANDARD, ZSTANDARD_LEVEL
from npzkit.conversion.arrays import HOLDS_OBJECTS, Array, Contents, FileOptions, Say, is_c_number
from npzkit.conversion.hierarchies import array_in_store, from_library, giving, stored_in
from npzkit.conversion.refusals import Claims, leads_out
from npzkit.display.blocks import block_shape
from npzkit.errors import Advice, ConversionError, format_dtype, printable

NESTED = True
"""A group is not an array: no key may be the folder of another."""
_RESERVED = {"zarr.json", ".zarray", ".zattrs", ".zgroup", ".zmetadata"}
_CHUNK_SIZE = 1 << 22


@contextlib.contextmanager
def read(path: str, say: Say, claims: Claims) -> Iterator[Contents]:
    """Open a store."""
    _check_files(path)
    root: Any = zarr.open(path, mode="r")
    if isinstance(root, zarr.Array):
        name = os.path.basename(os.path.abspath(path)).removesuffix(".zarr")
        yield Contents({}, [_array(name, root, say, claims)])
        return
    metadata = from_library(root.attrs.asdict(), None, say)
    yield Contents(metadata, _arrays(root, say, claims))


def _check_files(path: str) -> None:
    """Check that a store has no link to a folder, or to a file outside it, and only files."""
    root = os.path.realpath(path)
    for place, folders, names in os.walk(path):
        for name in (*folders, *names):
            inner = os.path.join(place, name)
            is_outside = os.path.islink(inner) and (name in folders or leads_out(root, inner))
            if is_outside:
                raise ConversionError(
                    "the store has a symbolic link, which is not followed", path=inner,
                    remedy="Remove the link, or replace it with a copy of what it leads to.",
                )  # fmt: skip
            # Reading a FIFO waits for ever.
            if name in names and os.path.exists(inner) and not os.path.isfile(inner):
                raise ConversionError(
                    "the store has something that is neither a file nor a folder", path=inner,
                    remedy="Remove it.",
                )  # fmt: skip


def _arrays(root: Any, say: Say, claims: Claims) -> Iterator[Array]:
    for key, item in sorted(root.members(max_depth=None)):
        if isinstance(item, zarr.Array):
            yield _array(key, item, say, claims)
        elif item.attrs.asdict():
            say(f"the attributes of the group {printable(key)!r} are not kept")


def _array(key: str, item: Any, say: Say, claims: Claims) -> Array:
    if item.dtype.names and item.metadata.zarr_format == 3:
        say(
            f"{printable(key)!r}: version 3 of Zarr does not say in which byte order fields are; "
            "they are read as zarr-python does"
        )
    codecs = (*item.filters, *item.compressors)
    is_pickled = any(getattr(codec, "codec_id", "") == "pickle" for codec in codecs)
    return array_in_store(
        key, item, item.attrs.asdict(), say, claims, stored=item.nbytes_stored,
        texts=item if item.dtype.char in "TO" else None,
        problem=HOLDS_OBJECTS if is_pickled else "",
    )  # fmt: skip


def why_unfit(array: Array) -> str | None:
    """Return why Zarr has no type for an array's dtype, or no place for its key; or None."""
    if not _RESERVED.isdisjoint(array.key.split("/")):
        return "a name in its key is that of a file of Zarr's own"
    dtype = array.stored().dtype
    fields = [dtype[name] for name in dtype.names] if dtype.names else [dtype]
    if all(map(_is_scalar, fields)):
        return None
    return f"Zarr has no type for {format_dtype(array.dtype, 60)}"


def _is_scalar(dtype: np.dtype[Any]) -> bool:
    if dtype.names or dtype.subdtype or not dtype.itemsize:
        return False
    if dtype.kind == "M" and np.datetime_data(dtype)[0] == "generic":
        # What zarr writes of dates without a unit, it does not read.
        return False
    return dtype.kind in "mMUSV" or is_c_number(dtype)


def write(path: str, contents: Contents, options: FileOptions, say: Say) -> None:
    """Write a store."""
    version: Any = options.zarr_format
    # zarr writes in its own threads, which continue after an interrupt of this one. So
    # leaving this block always waits for the part that is being written.
    with ThreadPoolExecutor(1) as pool:
        made = pool.submit(zarr.open_group, path, mode="w-", zarr_format=version)
        root = made.result()
        root.attrs.update(dict(contents.metadata))
        for array in contents.arrays:
            _write(root, array, options, say, pool)


def _write(root: Any, array: Array, options: FileOptions, say: Say, pool: Executor) -> None:
    stored, noted = stored_in(array, "Zarr", say)
    if stored.dtype.names:
        stored = stored._replace(dtype=_plain(stored.dtype, options.zarr_format))
    chunks = block_shape(array.shape, stored.dtype.itemsize, size=_CHUNK_SIZE)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with giving(array.key, "zarr"):
            data = root.create_array(
                array.key, shape=array.shape, dtype=stored.dtype, chunks=chunks,
                attributes={**array.attrs, **noted}, compressors=_compressor(options),
                # A chunk of -0.0 is one of zeros to zarr 3.1, if they are complex.
                config={"write_empty_chunks": stored.dtype.kind in "cV"},
            )  # fmt: skip
        for index, part in stored.parts(chunks):
            with giving(array.key, "zarr"):
                pool.submit(data.__setitem__, index, part).result()
    if any("specification" in str(warning.message) for warning in caught):
        say(
            f"{printable(array.key)!r}: version 3 of Zarr has no specification of its dtype yet; "
            "zarr-python reads it back. Version 2 has one: "
            + Advice("zarr_format=2", "--zarr-format 2")
        )


def _plain(dtype: np.dtype[Any], version: int) -> np.dtype[Any]:
    """Return a structure without gaps and titles; for version 3 of little-endian fields.

    zarr 3.1 writes the bytes of others as they are, and notes no gaps and no byte order.
    """
    order: Any = "<" if version == 3 else "|"
    return np.dtype([(name, dtype[name].newbyteorder(order)) for name in dtype.names or ()])


def _compressor(options: FileOptions) -> Any:
    """Return what compresses chunks: zarr's default, gzip, or nothing."""
    if options.method is None:
        return "auto"
    if options.method == STORED:
        return None
    name, level = "GZip", options.gzip_level
    if options.method == ZSTANDARD:
        name, level = "Zstd", ZSTANDARD_LEVEL if options.level is None else options.level
    if options.zarr_format == 2:
        import numcodecs

        return getattr(numcodecs, name)(level)
    return getattr(zarr.codecs, f"{name.capitalize()}Codec")(level=level)
