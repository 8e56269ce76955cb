"""Arrays of dask to arrays of an archive, block by block.

Owns that only a few blocks are in memory. dask is imported when there is such an array.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from npzkit.archive.lazyarray import LazyArray
from npzkit.archive.npzfile import NpzFile
from npzkit.archive.npzwriter import NpzWriter

_ROWS_SIZE = 1 << 27
"""Most bytes of rows that are in memory at a time, unless one block has more."""


def is_chunked(data: Any) -> bool:
    """Return whether this is an array of dask."""
    return hasattr(data, "chunks") and hasattr(data, "compute")


def fill(filled: list[tuple[Any, Any]]) -> None:
    """Compute arrays into arrays of an archive that are filled in any order.

    All are computed at once, because they may have intermediate results in common.

    Parameters
    ----------
    filled : list of (dask.array.Array, FilledArray)
    """
    if not filled:
        return
    import dask.array

    with contextlib.ExitStack() as stack:
        for _, target in filled:
            stack.enter_context(target)
        sources, targets = zip(*filled, strict=True)
        dask.array.store(list(sources), list(targets), lock=False)


def write_rows(
    writer: NpzWriter,
    key: str,
    data: Any,
    shape: tuple[int | None, ...],
    options: Mapping[str, Any],
) -> None:
    """Write an array that must be written from front to back.

    Parameters
    ----------
    writer : NpzWriter
    key : str
    data : dask.array.Array
    shape, options
        As of `NpzWriter.create`.
    """
    row_size = max(data.nbytes // len(data), 1)
    row_counts = data.chunks[0]
    with contextlib.ExitStack() as stack:
        if max(row_counts) * row_size > _ROWS_SIZE and data.npartitions > len(row_counts):
            data = stack.enter_context(_in_order(data))
            row_counts = [max(_ROWS_SIZE // row_size, 1)] * len(data)
        target = stack.enter_context(writer.create(key, shape, data.dtype, **options))
        start = 0
        for count in row_counts:
            if start < len(data):
                target.append(np.asarray(data[start : start + count]))
            start += count


@contextlib.contextmanager
def _in_order(data: Any) -> Iterator[LazyArray]:
    """Yield an array of dask from a temporary archive, where its rows are complete."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "rows.npz")
        with NpzWriter(path) as writer:
            fill([(data, writer.create("rows", data.shape, data.dtype))])
        with NpzFile(path) as npz:
            yield npz.lazy("rows")


def fixed_width_blocks(strings: Any) -> Any:
    """Return an array of dask of variable-width strings with the width of the longest.

    The blocks are computed for it, one at a time. If they hold anything but text,
    the array is returned as it is.
    """
    width = 1
    for index in np.ndindex(*strings.numblocks):
        block = np.asarray(strings.blocks[index].compute())
        if not all(isinstance(text, str) for text in block.flat):
            return strings
        check_strings(block, strings.name)
        width = max(width, *map(len, block.flat)) if block.size else width
    return strings.astype(f"U{width}")


def check_strings(strings: np.ndarray[Any, Any], key: str) -> None:
    """Raise ValueError if NumPy would cut strings that get a fixed width."""
    ends: dict[type, Any] = {str: "\0", bytes: b"\0"}
    for text in strings.flat:
        if type(text) in ends and text.endswith(ends[type(text)]):
            raise ValueError(
                f"the variable {key!r} has strings that end with NUL, which NumPy's strings of a "
                "fixed width cannot keep"
            )
