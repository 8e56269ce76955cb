"""What PyTorch's planners need to know of a checkpoint: as JSON in its metadata, and back.

Owns the entry in the metadata of the archive, and what a planner learns about archives
that have none, because they were not made by PyTorch. The arrays describe themselves: their
shapes, dtypes and parts are not repeated in the entry, which is::

    {"version": 1, "items": {"w": {}, "lr": {"value": 0.1}}, "planner": note}

An item is a tensor, or has the note of a value. A tensor has, where they are not the usual
ones: ``key`` in the archive, and ``dtype`` if its array has another one. PyTorch fills tensors
that have all other properties already.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import quote

import numpy as np
import torch
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    TensorProperties,
    TensorStorageMetadata,
)

from npzkit.archive.lazyarray import LazyArray
from npzkit.archive.npzfile import NpzFile
from npzkit.datasets.index_format import newer_version
from npzkit.datasets.sharded_array import ShardedArray
from npzkit.errors import (
    IndexFormatError,
    NpyFormatError,
    NpzkitError,
    UnsafeNameError,
    UnsupportedError,
)
from npzkit.members.keys import check_key
from npzkit.members.tensors import SPECIAL
from npzkit.trees.containers import decode_value, encode_value
from npzkit.trees.frameworks import from_array

ENTRY = "npzkit.torch"
"""The key of the entry in the metadata of an archive."""
_VERSION = 1
_MAX_POSITION = 1 << 20
"""Longest list of a state dict."""


class Item(NamedTuple):
    """A tensor or another value of a state dict, as the archive has it.

    Attributes
    ----------
    array : LazyArray or None
        Of a tensor; None for a value.
    special : str or None
        The name of a tensor's dtype if its array has another one.
    note : object
        Of a value.
    """

    array: LazyArray | None
    special: str | None = None
    note: Any = None


def key_for(name: str) -> str:
    """Return the key of an item: its name in the state dict, unless no key may be like that.

    Examples
    --------
    >>> key_for("layers.0.weight"), key_for("../weight")
    ('layers.0.weight', '%2E%2E%2Fweight')
    """
    try:
        check_key(name)
    except UnsafeNameError:
        quoted = quote(name, safe="", errors="surrogatepass").replace(".", "%2E") or "%"
        check_key(quoted)
        return quoted
    return name


# -- to JSON ----------------------------------------------------------------


def format_entry(
    metadata: Metadata, notes: Mapping[str, Any], special: Mapping[str, str]
) -> dict[str, Any]:
    """Return the entry of a checkpoint.

    Parameters
    ----------
    metadata : Metadata
        From the planner.
    notes : mapping of str to object
        Of the values, by their names.
    special : mapping of str to str
        The dtypes of tensors whose arrays have another one.

    Raises
    ------
    UnsupportedError
        The planner's data cannot be kept without pickle.
    """
    items = {
        name: _tensor_item(name, special.get(name))
        if isinstance(found, TensorStorageMetadata)
        else {"value": notes[name]}
        for name, found in metadata.state_dict_metadata.items()
    }
    planner, arrays = encode_value(metadata.planner_data, "planner_data")
    if arrays:
        raise UnsupportedError(
            "the data of the planner has arrays, which cannot be kept",
            remedy="Put them into the state dict.",
        )
    return {"version": _VERSION, "items": items, "planner": planner}


def _tensor_item(name: str, special: str | None) -> dict[str, Any]:
    item: dict[str, Any] = {}
    if (key := key_for(name)) != name:
        item["key"] = key
    if special is not None:
        item["dtype"] = special
    return item


# -- and back ---------------------------------------------------------------


def parse_items(npz: NpzFile) -> dict[str, Item]:
    """Return the items of a checkpoint; those of an archive without an entry are its arrays.

    Raises
    ------
    IndexFormatError
        The entry is not valid.
    """
    entry = npz.metadata.get(ENTRY)
    if entry is None:
        return {key: _array_item(npz, key) for key in npz.files}
    if not isinstance(entry, Mapping) or entry.get("version") != _VERSION:
        found = entry.get("version") if isinstance(entry, Mapping) else type(entry).__name__
        raise newer_version(f"the entry {ENTRY!r} of the metadata", found, _VERSION)
    if entry.keys() != {"version", "items", "planner"} or not isinstance(entry["items"], Mapping):
        raise _damaged(None, sorted(entry))
    return {name: _parse_item(npz, name, item) for name, item in entry["items"].items()}


def _array_item(npz: NpzFile, key: str) -> Item:
    """Return the item of an array: a tensor, or a value if PyTorch has no such dtype."""
    with contextlib.suppress(NpyFormatError, UnsupportedError):
        array = npz.lazy(key)
        if _tensor_dtype(array.dtype, None) is not None:
            return Item(array)
    return Item(None, note=["array", key])


def _parse_item(npz: NpzFile, name: str, item: Any) -> Item:
    if not isinstance(item, Mapping):
        raise _damaged(name, item)
    if "value" in item:
        return Item(None, note=item["value"])
    key, special = item.get("key", name), item.get("dtype")
    if not (isinstance(key, str) and key in npz and isinstance(special, (str, type(None)))):
        raise _damaged(name, dict(item))
    array = npz.lazy(key)
    is_paired = special != "complex32" or array.shape[-1:] == (2,)
    if special is not None and not (is_paired and SPECIAL.get(special) == array.dtype.name):
        raise _damaged(name, dict(item))
    return Item(array, special)


def _damaged(name: str | None, found: Any) -> IndexFormatError:
    return IndexFormatError(
        f"the entry {ENTRY!r} of the metadata is not valid", key=name, found=found
    )


def metadata_of(entry: Any, items: Mapping[str, Item]) -> Metadata:
    """Return what a planner needs to know of a checkpoint.

    Parameters
    ----------
    entry : mapping or None
        Of the metadata, checked by `parse_items`.
    items : mapping of str to Item

    Raises
    ------
    UnsupportedError
        PyTorch has no such dtype.
    IndexFormatError
        The data of the planner are not valid.
    """
    return Metadata(
        {
            name: BytesStorageMetadata()
            if item.array is None
            else _tensor_metadata(name, item.array, item)
            for name, item in items.items()
        },
        planner_data={name: (name,) for name in items}
        if entry is None
        else _checked(decode_value(entry["planner"], dict[str, Any]().__getitem__)),
    )


def _checked(planner_data: Any) -> Any:
    """Return the paths of a planner, which makes lists as long as they say."""
    paths = planner_data.values() if isinstance(planner_data, Mapping) else ()
    for path in paths:
        for step in path if isinstance(path, tuple) else ():
            if type(step) is int and not 0 <= step < _MAX_POSITION:
                raise IndexFormatError(
                    "a position in a list is out of range", found=step,
                    expected=f"0 to {_MAX_POSITION - 1}",
                )  # fmt: skip
    return planner_data


def _tensor_metadata(name: str, array: LazyArray, item: Item) -> TensorStorageMetadata:
    dtype = _tensor_dtype(array.dtype, item.special)
    if dtype is None:
        raise UnsupportedError(
            "PyTorch has no dtype for this array", key=name,
            found=item.special or str(array.dtype), remedy="Read it by npzkit.open(path)[key].",
        )  # fmt: skip
    shape, boxes = array.shape, boxes_of(array)
    if item.special == "complex32":
        # The last axis of the array has the real and the imaginary part.
        shape = shape[:-1]
        boxes = [(offset[:-1], size[:-1]) for offset, size in boxes]
    return TensorStorageMetadata(
        TensorProperties(dtype),
        torch.Size(shape),
        [ChunkStorageMetadata(torch.Size(offset), torch.Size(size)) for offset, size in boxes],
    )


def boxes_of(array: LazyArray) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Return offset and shape of each part of an array."""
    if not isinstance(array, ShardedArray):
        return [((0,) * array.ndim, array.shape)]
    offsets, shapes = array._shards.index.boxes(array._number)
    return list(zip(map(tuple, offsets.tolist()), map(tuple, shapes.tolist()), strict=True))


@functools.lru_cache(256)
def _tensor_dtype(dtype: np.dtype[Any], special: str | None) -> torch.dtype | None:
    """Return the dtype of the tensor that an array becomes, or None if PyTorch has none."""
    shape = (0, 2) if special == "complex32" else (0,)
    try:
        found = from_array(np.empty(shape, dtype), special)
    except RecursionError:
        raise
    except (NpzkitError, TypeError, RuntimeError):
        return None
    return found.dtype if isinstance(found, torch.Tensor) else None
