"""Ways to save and to read arrays that `corruption` compares: a row of `FORMATS` per format.

A way of reading gets the path that was saved and the arrays that are there, of which it uses only
the keys and shapes. It yields what it reads: key, index within the array, and values.
"""

from __future__ import annotations

import struct
import sys
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import npzkit
import numpy as np
from data import KEYS, Arrays
from npzkit.checkpoint import CheckpointStore
from npzkit.trees.containers import flatten

Piece = tuple[str, Any, Any]
Way = Callable[[Path, Arrays], Iterator[Piece]]

OLDER, NEWEST = 1, 2
_PART_COUNT = 4
"""Parts and chunks of an array: the lengths of all arrays are multiples of it."""


@cache
def datasets(step: int = NEWEST) -> dict[str, Arrays]:
    """Return the arrays of each file: weights, a grid, and a step of a run.

    Some are larger than 256 KiB, one is larger than 1 MiB. The grid is compressed by formats
    that compress.
    """
    rng = np.random.default_rng(step)

    def normal(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape, "f4") * np.float32(0.02)

    day = np.sin(np.arange(24 * 96 * 128).reshape(24, 96, 128) / 1e4)
    weights = [normal(320, 256), normal(256, 64).astype("f2"), normal(64, 128), normal(320)]
    return {
        "weights": {KEYS["PyTorch"](i, "q_proj"): array for i, array in enumerate(weights)},
        "grid": {
            "temperature": np.round(280 + 20 * day + normal(*day.shape), 2).astype("f4"),
            "latitude": np.linspace(-60, 60, 96, dtype="f4"),
            "time": np.arange(24, dtype="i4"),
        },
        "step": {
            "model/encoder": (encoder := normal(300, 256)),
            "model/bias": normal(256),
            "optimizer/exp_avg": encoder * np.float32(0.1),
            "optimizer/step": np.array(1000 * step, "i4"),
        },
    }


def nested(arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arrays as nested dicts, by the slashes in their keys."""
    tree: dict[str, Any] = {}
    for key, array in arrays.items():
        inner, *parts = tree, *key.split("/")
        for part in parts[:-1]:
            inner = inner.setdefault(part, {})
        inner[parts[-1]] = array
    return tree


# -- pieces ------------------------------------------------------------------


def complete(found: Mapping[str, Any] | Iterable[tuple[str, Any]]) -> Iterator[Piece]:
    """Yield complete arrays of a dict, or of keys with arrays."""
    for key, array in found.items() if isinstance(found, Mapping) else found:
        yield key, ..., array


def of_tree(tree: Any) -> Iterator[Piece]:
    return complete(flatten(tree)[0])


def each(read: Callable[[str], Any], keys: Iterable[str]) -> Iterator[Piece]:
    return complete((key, read(key)) for key in keys)


def in_parts(lazy: Callable[[str], Any], arrays: Arrays) -> Iterator[Piece]:
    """Yield quarters of each array."""
    for key, array in arrays.items():
        found = lazy(key)
        if not array.ndim:
            yield key, ..., found[...]
            continue
        size = len(array) // _PART_COUNT
        for start in range(0, len(array), size):
            index = slice(start, start + size)
            yield key, index, found[index]


# -- npzkit ------------------------------------------------------------------


def load_all(path: Path, arrays: Arrays) -> Iterator[Piece]:
    with npzkit.open(path) as npz:
        yield from complete(npz.load_all())


def load_into(path: Path, arrays: Arrays) -> Iterator[Piece]:
    outs = {key: np.empty_like(array) for key, array in arrays.items()}
    with npzkit.open(path) as npz:
        npz.load_all(out=outs)
    yield from complete(outs)


def by_key(path: Path, arrays: Arrays) -> Iterator[Piece]:
    with npzkit.open(path) as npz:
        yield from each(npz.__getitem__, npz)


def lazily(path: Path, arrays: Arrays) -> Iterator[Piece]:
    with npzkit.open(path) as npz:
        yield from in_parts(npz.lazy, arrays)


def by_chunks(path: Path, arrays: Arrays) -> Iterator[Piece]:
    with npzkit.open(path) as npz:
        for key in npz:
            lazy = npz.lazy(key)
            for chunk in lazy.iter_chunks():
                yield key, chunk, lazy[chunk]


def load_tree(path: Path, arrays: Arrays) -> Iterator[Piece]:
    yield from of_tree(npzkit.load_tree(path))


def part_of_tree(path: Path, arrays: Arrays) -> Iterator[Piece]:
    for key in arrays:
        yield from of_tree(npzkit.load_tree(path, only=key))


def as_stream(path: Path, arrays: Arrays) -> Iterator[Piece]:
    with open(path, "rb") as file:
        # Arrays that the directory does not list are reported at the end.
        yield from complete(dict(npzkit.iter_arrays(file)))


def maps(path: Path, arrays: Arrays) -> Iterator[Piece]:
    with npzkit.open(path) as npz:
        yield from each(npz.memmap, npz)


def by_dask(path: Path, arrays: Arrays) -> Iterator[Piece]:
    import npzkit.dask

    for key, array in arrays.items():
        chunks = rows_of_chunks(array) if array.ndim else None
        blocks = npzkit.dask.from_npz(path, key, chunks=chunks)
        yield key, ..., blocks.compute(scheduler="synchronous")


def by_xarray(path: Path, arrays: Arrays) -> Iterator[Piece]:
    import xarray

    for key, array in arrays.items():
        # A slash in a key makes a group.
        group, _, name = key.rpartition("/")
        with xarray.open_dataset(path, engine="npzkit", group=group) as dataset:
            for _, index, part in in_parts(dataset.variables.__getitem__, {name: array}):
                yield key, index, part.values


def by_dcp(path: Path, arrays: Arrays) -> Iterator[Piece]:
    from npzkit.torch import NpzStorageReader

    yield from filled_by_dcp(NpzStorageReader(path), arrays)


def save_shards(path: Path, arrays: Arrays) -> None:
    """Save two shards; two processes have half of the largest array each."""
    with npzkit.ShardedWriter(path, shard_size="400KB") as w:
        for key, array in arrays.items():
            half = len(array) // 2 if array.nbytes > 256 << 10 else 0
            for start, stop in ((0, half), (half, len(array))) if half else ():
                offset = (start,) + (0,) * (array.ndim - 1)
                w.add(key, array[start:stop], offset=offset, global_shape=array.shape)
            if not half:
                w.add(key, array)
        w.commit()


def save_steps(path: Path, arrays: Arrays, **options: Any) -> None:
    """Save an older step, and the newest one, which is to be damaged."""
    (name,) = (name for name, held in datasets().items() if held is arrays)
    with CheckpointStore(path, durable=False) as store:
        store.save(OLDER, nested(datasets(OLDER)[name]), **options)
        store.save(NEWEST, nested(arrays), **options)


def load_step(path: Path, arrays: Arrays) -> Iterator[Piece]:
    with CheckpointStore(path) as store:
        yield from of_tree(store.load().tree)


def load_step_like(path: Path, arrays: Arrays) -> Iterator[Piece]:
    example = nested({key: np.zeros_like(array) for key, array in arrays.items()})
    with CheckpointStore(path) as store:
        yield from of_tree(store.load(like=example).tree)


def part_of_step(path: Path, arrays: Arrays) -> Iterator[Piece]:
    with CheckpointStore(path) as store:
        # One call, because each may return another step.
        yield from of_tree(store.load(only=[*arrays]).tree)


def step_in_parts(path: Path, arrays: Arrays) -> Iterator[Piece]:
    with CheckpointStore(path) as store, store[NEWEST] as npz:
        yield from in_parts(npz.lazy, arrays)


def mapped_step(path: Path, arrays: Arrays) -> Iterator[Piece]:
    with CheckpointStore(path) as store:
        yield from of_tree(store.load(verify=False, mmap_mode="r").tree)


def step_files(path: Path) -> list[Path]:
    with CheckpointStore(path) as store:
        newest = Path(store.path(NEWEST))
    return [newest] if newest.is_file() else sorted(newest.iterdir())


# -- peers -------------------------------------------------------------------


def load_numpy(path: Path, arrays: Arrays) -> Iterator[Piece]:
    with np.load(path) as npz:
        yield from each(npz.__getitem__, npz.files)


def save_torch(path: Path, arrays: Arrays) -> None:
    import torch

    torch.save(nested(tensors(arrays)), path)


def tensors(arrays: Arrays) -> dict[str, Any]:
    import torch

    return {key: torch.from_numpy(np.array(array)) for key, array in arrays.items()}


def load_torch(path: Path, arrays: Arrays, **options: Any) -> Iterator[Piece]:
    import torch

    yield from of_tree(torch.load(path, **options))


def save_dcp(path: Path, arrays: Arrays, *, is_ours: bool = False) -> None:
    import torch.distributed.checkpoint as dcp

    if is_ours:
        from npzkit.torch import NpzStorageWriter

        writer: Any = NpzStorageWriter(path, durable=False)
    else:
        writer = dcp.FileSystemWriter(path, sync_files=False)
    dcp.save(tensors(arrays), storage_writer=writer, no_dist=True)


def filled_by_dcp(reader: Any, arrays: Arrays) -> Iterator[Piece]:
    import torch.distributed.checkpoint as dcp

    outs = tensors({key: np.zeros_like(array) for key, array in arrays.items()})
    dcp.load(outs, storage_reader=reader, no_dist=True)
    yield from complete(outs)


def load_dcp(path: Path, arrays: Arrays) -> Iterator[Piece]:
    import torch.distributed.checkpoint as dcp

    yield from filled_by_dcp(dcp.FileSystemReader(path), arrays)


def save_safetensors(path: Path, arrays: Arrays) -> None:
    import safetensors.numpy

    safetensors.numpy.save_file(arrays, path)


def load_safetensors(path: Path, arrays: Arrays) -> Iterator[Piece]:
    import safetensors.numpy

    yield from complete(safetensors.numpy.load_file(path))


def safetensors_parts(path: Path, arrays: Arrays) -> Iterator[Piece]:
    import safetensors

    with safetensors.safe_open(path, "np") as file:
        scalars = {key for key, array in arrays.items() if not array.ndim}
        yield from each(file.get_tensor, scalars)
        rest = {key: array for key, array in arrays.items() if key not in scalars}
        yield from in_parts(file.get_slice, rest)


def save_orbax(path: Path, arrays: Arrays) -> None:
    import orbax.checkpoint

    with orbax.checkpoint.StandardCheckpointer() as checkpointer:
        checkpointer.save(path, nested(arrays))


@cache
def _orbax() -> Any:
    import orbax.checkpoint

    return orbax.checkpoint.StandardCheckpointer()


def load_orbax(path: Path, arrays: Arrays) -> Iterator[Piece]:
    yield from of_tree(_orbax().restore(path))


def rows_of_chunks(array: np.ndarray) -> tuple[int, ...]:
    return (len(array) // _PART_COUNT, *array.shape[1:])


def save_zarr(path: Path, arrays: Arrays, *, crc32c: bool = False, shards: bool = False) -> None:
    import zarr
    import zarr.codecs

    group = zarr.open_group(path, mode="w")
    for key, array in arrays.items():
        options: dict[str, Any] = {}
        if crc32c:
            options["compressors"] = [zarr.codecs.ZstdCodec(), zarr.codecs.Crc32cCodec()]
        if array.ndim:
            options["chunks"] = rows_of_chunks(array)
        if array.ndim and shards:
            options["shards"] = array.shape
        group.create_array(key, data=array, **options)


def load_zarr(path: Path, arrays: Arrays) -> Iterator[Piece]:
    import zarr

    group = zarr.open_group(path, mode="r")
    yield from each(lambda key: group[key][...], arrays)


def zarr_parts(path: Path, arrays: Arrays) -> Iterator[Piece]:
    import zarr

    yield from in_parts(zarr.open_group(path, mode="r").__getitem__, arrays)


def save_h5py(path: Path, arrays: Arrays, *, fletcher32: bool = False) -> None:
    import h5py

    with h5py.File(path, "w") as file:
        for key, array in arrays.items():
            options: dict[str, Any] = {}
            if array.ndim:
                options = {"fletcher32": fletcher32, "chunks": rows_of_chunks(array)}
            if key == "temperature":
                options["compression"] = "gzip"
            file.create_dataset(key, data=array, **options)


def load_h5py(path: Path, arrays: Arrays) -> Iterator[Piece]:
    import h5py

    with h5py.File(path) as file:
        names: list[str] = []
        file.visit(names.append)
        yield from each(lambda key: file[key][...], [n for n in names if hasattr(file[n], "dtype")])


def h5py_parts(path: Path, arrays: Arrays) -> Iterator[Piece]:
    import h5py

    with h5py.File(path) as file:
        yield from in_parts(file.__getitem__, arrays)


# -- where data is in files --------------------------------------------------


def data_found(path: Path, arrays: Arrays) -> Iterator[range]:
    """Yield where arrays are that are stored in one piece."""
    content = path.read_bytes()
    for array in arrays.values():
        start = content.find(array.tobytes())
        if start >= 0:
            yield range(start, start + array.nbytes)


def zip_data(path: Path, arrays: Arrays) -> Iterator[range]:
    """Yield where the data of arrays is in a zip file of NumPy, npzkit or torch.save."""
    if not zipfile.is_zipfile(path):
        return
    content = path.read_bytes()
    with zipfile.ZipFile(path) as archive:
        for entry in archive.infolist():
            name_size, extra_size = struct.unpack_from("<HH", content, entry.header_offset + 26)
            start = entry.header_offset + 30 + name_size + extra_size
            stop = start + entry.compress_size
            if entry.filename.endswith(".npy") and not entry.compress_type:
                start += 10 + struct.unpack_from("<H", content, start + 8)[0]
            if entry.filename.endswith(".npy") or "/data/" in entry.filename:
                yield range(start, stop)


def hdf5_data(path: Path, arrays: Arrays) -> Iterator[range]:
    """Yield where the chunks of arrays are, and arrays that are in one piece."""
    import h5py

    with h5py.File(path) as file:
        for key in arrays:
            inner = file[key].id
            if inner.get_offset() is not None:
                yield range(inner.get_offset(), inner.get_offset() + inner.get_storage_size())
                continue
            for number in range(inner.get_num_chunks()):
                chunk = inner.get_chunk_info(number)
                yield range(chunk.byte_offset, chunk.byte_offset + chunk.size)


def zarr_data(path: Path, arrays: Arrays) -> Iterator[range]:
    """Yield the complete file of a chunk or a shard."""
    if path.name != "zarr.json":
        yield range(path.stat().st_size)


# -- the table of formats ----------------------------------------------------


class Format(NamedTuple):
    """How arrays are saved, and each way to read them; `needs` are modules."""

    save: Callable[[Path, Arrays], object]
    ways: Mapping[str, Way]
    needs: tuple[str, ...] = ()
    files: Callable[[Path], list[Path]] = lambda path: (
        [path] if path.is_file() else sorted(found for found in path.rglob("*") if found.is_file())
    )
    """The files at a path that are damaged."""
    data: Callable[[Path, Arrays], Iterable[range]] | None = zip_data
    """Where data of arrays is in a file; None if that is not known."""


OURS: dict[str, Way] = {
    "load_all": load_all, "load_all(out=)": load_into, "npz[key]": by_key, "lazy[a:b]": lazily,
    "iter_chunks": by_chunks, "load_tree": load_tree, "load_tree(only=)": part_of_tree,
    "dask": by_dask, "xarray": by_xarray,
}  # fmt: skip
STREAM: dict[str, Way] = {"iter_arrays": as_stream}
STEPS: dict[str, Way] = {
    "load": load_step, "load(like=)": load_step_like, "load(only=)": part_of_step,
    "store[step].lazy": step_in_parts,
}  # fmt: skip
MAPS: dict[str, Way] = {"memmap": maps}
NUMPY: dict[str, Way] = {"np.load": load_numpy}
ZARR: dict[str, Way] = {"array[...]": load_zarr, "array[a:b]": zarr_parts}
HDF5: dict[str, Way] = {"file[key][...]": load_h5py, "file[key][a:b]": h5py_parts}
NEEDED_BY = {"dask": ("dask",), "xarray": ("xarray",), "DCP": ("torch", "ml_dtypes")}
"""Modules that a way needs besides those of its format."""
UNCHECKED = {"memmap", "load(mmap_mode=)"}
"""npzkit's ways that compare no checksums."""

ZSTD = ("compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd",)

FORMATS = {
    "npzkit stored": Format(npzkit.save, OURS | STREAM | MAPS),
    "npzkit deflated": Format(partial(npzkit.save, compression="deflated"), OURS | STREAM),
    "npzkit zstd": Format(partial(npzkit.save, compression="zstd"), OURS | STREAM, ZSTD),
    "npzkit shards": Format(save_shards, OURS),
    "npzkit DCP": Format(partial(save_dcp, is_ours=True), {"DCP": by_dcp}, NEEDED_BY["DCP"]),
    "npzkit steps": Format(
        save_steps, STEPS | {"load(mmap_mode=)": mapped_step}, files=step_files
    ),
    "npzkit steps in shards": Format(
        partial(save_steps, shard_size="400KB"), STEPS, files=step_files
    ),
    "np.savez": Format(lambda path, arrays: np.savez(path, **arrays), NUMPY),
    "np.savez_compressed": Format(
        lambda path, arrays: np.savez_compressed(path, **arrays), NUMPY
    ),
    "torch.save": Format(
        save_torch, {"load": load_torch, "load(mmap=True)": partial(load_torch, mmap=True)}, ("torch",)
    ),
    "torch DCP": Format(save_dcp, {"load": load_dcp}, ("torch",), data=data_found),
    "safetensors": Format(
        save_safetensors, {"load_file": load_safetensors, "get_slice": safetensors_parts},
        ("safetensors",), data=data_found,
    ),
    "orbax": Format(save_orbax, {"restore": load_orbax}, ("orbax", "jax"), data=None),
    "zarr": Format(save_zarr, ZARR, ("zarr",), data=zarr_data),
    "zarr crc32c": Format(partial(save_zarr, crc32c=True), ZARR, ("zarr",), data=zarr_data),
    "zarr shards": Format(partial(save_zarr, shards=True), ZARR, ("zarr",), data=zarr_data),
    "h5py": Format(save_h5py, HDF5, ("h5py",), data=hdf5_data),
    "h5py fletcher32": Format(partial(save_h5py, fletcher32=True), HDF5, ("h5py",), data=hdf5_data),
}  # fmt: skip
