"""safetensors: a header of JSON, then the arrays' bytes, each array in C order.

Owns how such files are written, since the package takes all arrays at once. It
checks a file that is read, and its arrays are read where they lie. Source: the
format's description in huggingface/safetensors.
"""

from __future__ import annotations

import contextlib
import json
import struct
from collections.abc import Container, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from npzkit.conversion.arrays import Array, Contents, FileOptions, InFile, Say, few, unreadable
from npzkit.conversion.foreign_process import LibraryError
from npzkit.conversion.refusals import Claims
from npzkit.errors import format_dtype, printable
from npzkit.files import disk
from npzkit.members.metadata import TREE_KEY, format_json, parse_json

_NAMES = {
    "float64": "F64", "float32": "F32", "float16": "F16", "complex64": "C64", "bool": "BOOL",
    "int64": "I64", "int32": "I32", "int16": "I16", "int8": "I8",
    "uint64": "U64", "uint32": "U32", "uint16": "U16", "uint8": "U8",
    "bfloat16": "BF16", "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2",
    "float8_e8m0fnu": "F8_E8M0", "float8_e4m3fnuz": "F8_E4M3FNUZ",
    "float8_e5m2fnuz": "F8_E5M2FNUZ",
}  # fmt: skip
_DTYPES = {name: dtype for dtype, name in _NAMES.items()}
_METADATA = "__metadata__"
_OWN = "npzkit"
"""The metadata holds only strings. Under this name it has everything else as JSON."""
_FORMAT, _TORCH = "format", "pt"
"""The metadata that says which library has saved a file, and its value for PyTorch."""
_ALIGNMENT = 8


@contextlib.contextmanager
def read(path: str, say: Say, claims: Claims) -> Iterator[Contents]:
    """Open a file."""
    # Checks that sizes, shapes and places fit the file, and each other.
    with _opened(path), open(path, "rb") as file:
        (size,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(size))
    stored = header.pop(_METADATA, None) or {}
    metadata, attrs = _parse_metadata(stored)
    places = sorted(header.items(), key=lambda item: item[1]["data_offsets"])
    arrays = [_array(path, 8 + size, key, place, attrs.get(key, {})) for key, place in places]
    keys = {array.key: None for array in arrays if not array.problem}
    tied = {} if _OWN in stored else _tied(keys, stored)
    if tied:
        say(f"the metadata names tied tensors: {few([*tied], printable)}")
    if TREE_KEY not in metadata and (note := _tensors(keys, metadata) | tied):
        metadata[TREE_KEY] = note
    yield Contents(metadata, arrays)


def _opened(path: str) -> Any:
    try:
        return safe_open(path, framework="numpy")
    except SafetensorError as error:
        raise LibraryError(str(error)) from error


def _tensors(keys: Iterable[str], metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the note of a dict of tensors, as which ``load_tree(file, like={})`` returns it."""
    return {key: ["as", "tensor"] for key in keys if metadata.get(_FORMAT) == _TORCH}


def _tied(keys: Container[str], metadata: Mapping[str, str]) -> dict[str, Any]:
    """Return the notes of tensors that save_model of safetensors.torch left out as tied ones.

    Its names have a dot, between module and tensor; a title, say, has none.
    """
    return {
        name: ["same", key]
        for name, key in metadata.items()
        if "." in name and key in keys and name not in keys
    }


def _array(
    path: str, start: int, key: str, place: Mapping[str, Any], attrs: Mapping[str, Any]
) -> Array:
    name, shape = place["dtype"], tuple(place["shape"])
    try:
        dtype = _dtype(name)
    except (KeyError, AttributeError):
        return unreadable(key, shape, f"numpy has no dtype for {name}")
    offset = start + place["data_offsets"][0]
    return Array(key, shape, dtype, partial(InFile, path, dtype, offset, shape), attrs)


def _dtype(name: str) -> Any:
    dtype = _DTYPES[name]
    if hasattr(np, dtype):
        return np.dtype(dtype).newbyteorder("<")
    import ml_dtypes

    return np.dtype(getattr(ml_dtypes, dtype))


def _parse_metadata(found: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Return metadata and attributes; the inverse of `_format_metadata`."""
    metadata: dict[str, Any] = dict(found)
    try:
        own = parse_json(metadata.get(_OWN, "null"))
    except ValueError:
        own = None
    is_own = isinstance(own, dict) and own.keys() == {"metadata", "attrs"}
    if not (is_own and all(isinstance(inner, dict) for inner in own.values())):
        return metadata, {}
    del metadata[_OWN]
    # The one that was saved is among npzkit's own.
    metadata.pop(_FORMAT, None)
    attrs = {key: value for key, value in own["attrs"].items() if isinstance(value, dict)}
    return {**metadata, **own["metadata"]}, attrs


def _format_metadata(contents: Contents) -> dict[str, str]:
    """Return strings as they are; the rest, and attributes of arrays, as one JSON text."""
    metadata = {k: v for k, v in contents.metadata.items() if isinstance(v, str) and k != _OWN}
    rest = {k: v for k, v in contents.metadata.items() if k not in metadata}
    keys = {array.key: None for array in contents.arrays}
    tensors, tied = _tensors(keys, metadata), _tied(keys, metadata)
    attrs = {array.key: dict(array.attrs) for array in contents.arrays if array.attrs}
    if tied and rest == {TREE_KEY: tensors | tied} and not attrs:
        return metadata
    if tensors and rest.get(TREE_KEY) == tensors:
        # What programs of PyTorch read are tensors.
        del rest[TREE_KEY]
    if rest or attrs or (metadata and _FORMAT not in metadata):
        rest |= {_FORMAT: metadata[_FORMAT]} if _FORMAT in metadata else {}
        metadata[_OWN] = format_json({"metadata": rest, "attrs": attrs})
        # transformers refuses metadata without it.
        metadata.setdefault(_FORMAT, _TORCH)
    return metadata


def why_unfit(array: Array) -> str | None:
    """Return why safetensors has no place for an array, or None."""
    if array.key == _METADATA:
        return "this name is reserved for the metadata"
    shown = format_dtype(array.dtype, 60)
    return None if array.dtype.name in _NAMES else f"safetensors has no dtype {shown}"


def write(path: str, contents: Contents, options: FileOptions, say: Say) -> None:
    """Write a file: the widest items first, so that every array is aligned."""
    if options.method:
        say("safetensors files are not compressed")
    arrays = sorted(contents.arrays, key=lambda array: -array.dtype.itemsize)
    metadata = _format_metadata(contents)
    header: dict[str, Any] = {_METADATA: metadata} if metadata else {}
    end = 0
    for array in arrays:
        begin, end = end, end + array.nbytes
        name = _NAMES[array.dtype.name]
        header[array.key] = {"dtype": name, "shape": array.shape, "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    with contextlib.closing(disk.File(path, is_new=True)) as file:
        file.patch(0, struct.pack("<Q", len(text)) + text)
        file.reserve(8 + len(text), end, mapped=True)
    for array in arrays:
        dtype = array.dtype if array.dtype.isbuiltin == 2 else array.dtype.newbyteorder("<")
        offset = 8 + len(text) + header[array.key]["data_offsets"][0]
        place = InFile(path, dtype, offset, array.shape)
        for index, part in array.parts():
            place.mapped("r+")[index] = part
