"""HDF5, by h5py: a key's slashes are groups, attributes are attributes.

Owns which of HDF5's kinds an array becomes. Nothing outside of the file is
read: external links, and data in other files, are not followed.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from typing import Any

import h5py
import numpy as np

from npzkit.conversion.arrays import Array, Contents, FileOptions, Say, named
from npzkit.conversion.hierarchies import (
    JSON_ATTRIBUTE,
    array_in_store,
    from_library,
    giving,
    split_json,
    stored_in,
)
from npzkit.conversion.refusals import Claims
from npzkit.display.blocks import block_shape
from npzkit.errors import format_dtype, printable

NESTED = True
"""A group is not an array: no key may be the folder of another."""
_CHUNK_SIZE = 1 << 20
"""Bytes of a chunk of a compressed array."""


@contextlib.contextmanager
def read(path: str, say: Say, claims: Claims) -> Iterator[Contents]:
    """Open a file."""
    with h5py.File(path, "r") as file:
        metadata = from_library(_attrs_of(file, None, say), None, say)
        yield Contents(metadata, _arrays(file, say, claims))


def _arrays(file: Any, say: Say, claims: Claims) -> Iterator[Array]:
    seen = {_identity(file): "/"}
    # Not by recursion, which groups in groups would use up.
    entries = [_entries(file, "")]
    while entries:
        group, name, key = next(entries[-1], (None, "", ""))
        if group is None:
            entries.pop()
            continue
        link = group.get(name, getlink=True)
        if not isinstance(link, h5py.HardLink):
            say(f"{printable(key)!r} is a link and is not followed")
            continue
        item = group[name]
        if first := seen.get(_identity(item)):
            say(f"{printable(key)!r} is another name for {printable(first)!r}, which is kept")
        elif isinstance(item, h5py.Group):
            if len(item.attrs):
                say(f"the attributes of the group {printable(key)!r} are not kept")
            seen[_identity(item)] = key
            entries.append(_entries(item, f"{key}/"))
        elif isinstance(item, h5py.Dataset) and item.shape is not None:
            seen[_identity(item)] = key
            yield _array(key, item, say, claims)
        else:
            say(f"{printable(key)!r} is not an array and is not kept")


def _entries(group: Any, prefix: str) -> Iterator[tuple[Any, str, str]]:
    return ((group, name, prefix + name) for name in group)


def _identity(item: Any) -> Any:
    info = h5py.h5o.get_info(item.id)
    return info.fileno, info.addr


def _array(key: str, item: Any, say: Say, claims: Claims) -> Array:
    is_text = h5py.check_string_dtype(item.dtype) is not None and item.dtype.kind == "O"
    problem = ""
    if item.external or item.is_virtual:
        problem = "its data is in other files, which are not read"
    elif item.dtype.hasobject and not is_text:
        problem = "numpy has no dtype for what it holds"
    if h5py.check_enum_dtype(item.dtype):
        say(f"the names of the values of {named(key)} are not kept")
    if "MATLAB_class" in item.attrs and len(item.shape) > 1:
        say(f"the axes of {named(key)} are in the reverse of MATLAB's order")
    texts = item.asstr() if is_text else None
    return array_in_store(
        key, item, _attrs_of(item, key, say), say, claims,
        stored=item.id.get_storage_size, texts=texts, problem=problem,
    )  # fmt: skip


def _attrs_of(item: Any, key: str | None, say: Say) -> dict[str, Any]:
    """Read attributes; those that h5py cannot read are left out, with a note."""
    found = {}
    for name in item.attrs:
        with _noting(name, key, say):
            found[name] = item.attrs[name]
    return found


@contextlib.contextmanager
def _noting(name: str, key: str | None, say: Say) -> Iterator[None]:
    """Note that an attribute is not kept, in place of h5py's error."""
    try:
        yield
    except RecursionError:
        raise
    except (OSError, TypeError, ValueError, KeyError, RuntimeError) as error:
        reason = printable(str(error))[:80]
        say(f"the attribute {printable(name)!r} of {named(key)} is not kept: {reason}")


def why_unfit(array: Array) -> str | None:
    """Return why HDF5 has no type for an array's dtype, or None."""
    if not array.dtype.itemsize:
        return "HDF5 has no type of size 0"
    try:
        h5py.h5t.py_create(_stored_dtype(array.stored().dtype), logical=True)
    except (TypeError, ValueError):
        return f"h5py has no type for {format_dtype(array.dtype, 60)}"
    return None


def _stored_dtype(dtype: np.dtype[Any]) -> Any:
    if dtype.kind == "U":
        return h5py.string_dtype()
    if dtype.kind in "mM":
        return h5py.opaque_dtype(dtype)
    return dtype


def write(path: str, contents: Contents, options: FileOptions, say: Say) -> None:
    """Write a file."""
    try:
        with h5py.File(path, "w-") as file:
            _write_attrs(file.attrs, contents.metadata, None, say)
            for array in contents.arrays:
                _write(file, array, options, say)
    except (OSError, RuntimeError) as error:
        # Closing the file fails, too, and hides what the system says.
        found: BaseException | None = error
        while found is not None and not getattr(found, "errno", None):
            found = found.__context__
        if isinstance(found, OSError) and found.errno:
            raise OSError(found.errno, os.strerror(found.errno)) from error
        raise


def _write(file: Any, array: Array, options: FileOptions, say: Say) -> None:
    coding: dict[str, Any] = {}
    if options.method and array.nbytes and array.shape:
        chunks = block_shape(array.shape, array.dtype.itemsize, size=_CHUNK_SIZE)
        coding = {"compression": "gzip", "compression_opts": options.gzip_level, "chunks": chunks}
    stored, noted = stored_in(array, "HDF5", say)
    dtype = _stored_dtype(stored.dtype)
    with giving(array.key, "h5py"):
        data = file.create_dataset(array.key, array.shape, dtype, **coding)
    _write_attrs(data.attrs, array.attrs, array.key, say)
    data.attrs.update(noted)
    for index, part in stored.parts(coding.get("chunks")):
        with giving(array.key, "h5py"):
            data[index] = part.astype(object) if dtype.hasobject else part.view(dtype)


def _write_attrs(target: Any, attrs: Mapping[str, Any], key: str | None, say: Say) -> None:
    simple, text = split_json(attrs)
    if text is not None:
        simple[JSON_ATTRIBUTE] = text
    for name, value in simple.items():
        with _noting(name, key, say):
            target[name] = value
