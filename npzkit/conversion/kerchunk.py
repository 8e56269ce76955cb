"""An archive as references of kerchunk: Zarr arrays whose chunks are bytes of the file.

Owns which Zarr metadata stand for an array, and which of its bytes are a chunk.
Needs no package: the references are dicts and strings. Specifications: version 1 of
kerchunk's references, and version 2 of Zarr.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from npzkit import format as npy
from npzkit.archive.npzfile import NpzFile
from npzkit.conversion.dimensions import DIMENSIONS, made_up_dimensions, named_dimensions
from npzkit.datasets.opening import opened
from npzkit.datasets.shardedfile import ShardedFile
from npzkit.errors import ConversionError, UnsafeNameError, UnsupportedError
from npzkit.files.urls import Location, find_location
from npzkit.members.info import ArrayInfo
from npzkit.members.keys import SUFFIX, check_key
from npzkit.members.metadata import format_json, without_note
from npzkit.members.tensors import extension_name

if TYPE_CHECKING:
    from npzkit.typing import ArchiveLike

_CHUNK_SIZE = 1 << 24
"""Most bytes of a chunk, if the array can be divided evenly."""
_RESERVED = {".zarray", ".zattrs", ".zgroup", ".zmetadata"}
"""Names that Zarr gives to its own files."""


def kerchunk(
    file: ArchiveLike,
    *,
    keys: Iterable[str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the references by which zarr and xarray read an archive without npzkit.

    fsspec's ReferenceFileSystem takes the dict, also as JSON in a file, and so
    does VirtualiZarr. Each stored array becomes an array of Zarr, whose chunks
    are ranges of bytes of the archive. No data is read.

    Parameters
    ----------
    file : path, URL or NpzFile
        If it is not a URL, it is named by its absolute path.
    keys : iterable of str, optional
        The arrays; by default all.
    storage_options : dict, optional
        For the store of a URL; see `npzkit.open`. They are not in the
        references: pass them to fsspec as ``remote_options``.

    Returns
    -------
    dict
        ``{"version": 1, "refs": {...}}``, of values that JSON can express.

    Raises
    ------
    UnsupportedError
        An array is compressed: `npzkit.repack` stores it. Or zarr cannot read
        its dtype: Python objects, long doubles, fields that have fields or
        shapes. Or the archive is not at a path or a URL.
    ConversionError
        A key cannot be a path in Zarr, because it is also the group of another one.
    UnsafeNameError
        A key leads out of the folder, such as ``../x``, as for `npzkit.convert`.
    NpzkitError, OSError
        As `npzkit.open`.

    Notes
    -----
    The references are for the file as it is: zarr does not notice if it changes,
    and does not compare CRC-32s. An array is one chunk if it has up to 16 MiB, or
    if its first dimension (in Fortran order: the last) has no divisor that makes
    chunks of at most that size. Slashes in keys make groups. Attributes are
    kept, with null for NaN and infinity, which JSON does not have. The references
    contain the URL with its user, password and query, because readers need them.
    Dimensions without names get made-up ones in ``_ARRAY_DIMENSIONS``, as in xarray.

    Examples
    --------
    >>> import tempfile, npzkit, numpy as np
    >>> path = tempfile.mkdtemp() + "/a.npz"
    >>> npzkit.save(path, {"x": np.arange(6).reshape(2, 3)})
    >>> refs = npzkit.kerchunk(path)["refs"]
    >>> sorted(refs)
    ['.zattrs', '.zgroup', 'x/.zarray', 'x/.zattrs', 'x/0.0']
    >>> with npzkit.open(path) as npz:
    ...     refs["x/0.0"] == [path, npz.info("x").data_offset, 48]
    True
    """
    with opened(file, storage_options=storage_options) as npz:
        return _references(npz, keys)


def _references(npz: NpzFile, keys: Iterable[str] | None) -> dict[str, Any]:
    place = _place(npz)
    infos = {key: npz.info(key) for key in (npz.files if keys is None else keys)}
    if keys is None:
        infos = {key: info for key, info in infos.items() if info.dtype is not None}
    refs: dict[str, Any] = {".zgroup": _json({"zarr_format": 2})}
    refs[".zattrs"] = _json(without_note(npz.metadata)[0])
    dims = _dimensions(infos)
    for group in _groups(infos, npz._archive.path):
        refs[f"{group}/.zgroup"] = refs[".zgroup"]
    for key, info in infos.items():
        try:
            _check(info)
            count = _chunk_count(info)
            refs[f"{key}/.zarray"] = _json(_metadata(info, count))
        except UnsupportedError as error:
            raise error.locate(path=npz._archive.path, key=key) from None
        refs[f"{key}/.zattrs"] = _json({**info.attrs, DIMENSIONS: list(dims[key])})
        refs.update(_chunk_references(key, info, count, place))
    return {"version": 1, "refs": refs}


def _json(value: Any) -> str:
    """Return JSON, with null for NaN and infinity, which readers take for no value."""
    return format_json(value, special=lambda name: None, separators=(",", ":"))


def _place(npz: NpzFile) -> str:
    """Return how fsspec finds the file."""
    if isinstance(npz, ShardedFile):
        raise UnsupportedError(
            "references are to one file, and the archive has several", path=npz.path,
            remedy="Call npzkit.kerchunk for each of its files.",
        )  # fmt: skip
    source = npz._lend_source()
    if source.state is None:
        raise UnsupportedError(
            "references need a file at a path or a URL, and the archive was opened from an object",
            remedy="Save it to a path.",
        )
    name, _ = source.reopening
    return name if isinstance(find_location(name), Location) else os.path.abspath(name)


def _check(info: ArrayInfo) -> None:
    """Raise UnsupportedError unless the bytes of the file are those of the array."""
    remedy = "Choose other arrays: keys=[...]."
    if info.dtype is None:
        raise UnsupportedError("the member is not an array")
    if info.dtype.hasobject:
        what = "an array of Python objects is a pickle, which Zarr cannot read"
        raise UnsupportedError(what, remedy=remedy)
    if not _is_known(info.dtype):
        raise UnsupportedError(f"Zarr has no dtype {info.dtype}", remedy=remedy)
    if info.method != "stored":
        raise UnsupportedError(
            f"the array is {info.method}, and Zarr reads stored ones alone",
            remedy='Store the arrays: npzkit.repack(path, compression="stored").',
        )


def _is_known(dtype: np.dtype[Any]) -> bool:
    """Whether zarr reads a dtype: of structured ones, those whose fields are plain."""
    if dtype.names is not None:
        fields = [dtype[name] for name in dtype.names]
        return bool(fields) and all(f.names is None and _is_known(f) for f in fields)
    return dtype.subdtype is None and dtype.itemsize > 0 and dtype.char not in "gG"


def _groups(keys: Iterable[str], path: str | None) -> list[str]:
    """Return the groups that keys with slashes are in, and check that none of them is an array."""
    groups: dict[str, None] = {}
    for key in keys:
        try:
            check_key(key.removesuffix(SUFFIX), "a path in Zarr")
        except UnsafeNameError as error:
            error.remedy = "Rename the array with NpzWriter.rename, or choose others: keys=[...]."
            raise error.locate(path=path) from None
        parts = key.split("/")
        if not all(parts) or not _RESERVED.isdisjoint(parts):
            raise ConversionError(
                "the key cannot be a path in Zarr", path=path, key=key,
                remedy="Rename the array with NpzWriter.rename.",
            )  # fmt: skip
        groups |= dict.fromkeys("/".join(parts[:count]) for count in range(1, len(parts)))
    for key in keys:
        if key in groups:
            raise ConversionError(
                "the key is an array and also a group of other arrays, which Zarr cannot have",
                path=path, key=key, remedy="Rename the array, or choose others: keys=[...].",
            )  # fmt: skip
    return list(groups)


def _dimensions(infos: Mapping[str, ArrayInfo]) -> dict[str, tuple[str, ...]]:
    shapes = {key: info.shape or () for key, info in infos.items()}
    found = {key: named_dimensions(infos[key].attrs, len(shape)) for key, shape in shapes.items()}
    known = {key: dims for key, dims in found.items() if dims is not None}
    return {**known, **made_up_dimensions(shapes, known)}


def _slowest_axis(info: ArrayInfo) -> int:
    return len(info.shape or ()) - 1 if info.fortran_order else 0


def _chunk_count(info: ArrayInfo) -> int:
    """Return into how many chunks of the same size an array is divided, along its slowest axis."""
    if info.nbytes <= _CHUNK_SIZE or not info.shape:
        return 1
    length = info.shape[_slowest_axis(info)]
    row_size = info.nbytes // length
    part = _largest_divisor(length, max(_CHUNK_SIZE // row_size, 1))
    # A prime number of rows: so many references would be no help.
    return 1 if part * row_size * 64 < _CHUNK_SIZE else length // part


def _largest_divisor(number: int, most: int) -> int:
    """Return the largest divisor of a number that is at most `most`."""
    small = [d for d in range(1, min(math.isqrt(number), 1 << 20) + 1) if number % d == 0]
    return max(d for d in (*small, *(number // d for d in small)) if d <= most)


def _metadata(info: ArrayInfo, count: int) -> dict[str, Any]:
    dtype: Any = info.dtype
    # One that NumPy lacks, such as bfloat16, is its bytes.
    descr = f"|V{dtype.itemsize}" if extension_name(dtype) else npy.dtype_to_descr(dtype)
    # Zarr has no chunks of length 0.
    chunks = [max(length, 1) for length in info.shape or ()]
    if chunks:
        chunks[_slowest_axis(info)] //= count
    return {
        "zarr_format": 2, "shape": list(info.shape or ()), "chunks": chunks,
        "dtype": descr, "fill_value": None,
        "order": "F" if info.fortran_order else "C", "filters": None, "compressor": None,
    }  # fmt: skip


def _chunk_references(key: str, info: ArrayInfo, count: int, place: str) -> dict[str, list[Any]]:
    """Return by its name where each chunk is in the file."""
    refs = {}
    size = info.nbytes // count
    for number in range(count if size else 0):
        name = ["0"] * max(len(info.shape or ()), 1)
        name[_slowest_axis(info)] = str(number)
        refs[f"{key}/{'.'.join(name)}"] = [place, info.data_offset + number * size, size]
    return refs
