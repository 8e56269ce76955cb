"""Arrays of dask from archives, and to archives: `from_npz` and `to_npz`.

Needs dask, which ``pip install "npzkit[dask]"`` installs. Every scheduler of dask works,
also those with processes on other machines, if all of them reach the archive.

>>> import dask.array, npzkit, npzkit.dask
>>> x = dask.array.ones((1000, 8), chunks=(250, 8))
>>> npzkit.dask.to_npz("memory://doctest/dask", {"x": x}, metadata={"step": 7})
>>> y = npzkit.dask.from_npz("memory://doctest/dask", "x")
>>> float(y.sum().compute()), npzkit.open("memory://doctest/dask").metadata["step"]
(8000.0, 7)
"""

from __future__ import annotations

try:
    import dask.array as _dask_array
    import dask.task_spec as _task_spec
except ImportError as error:
    raise ImportError(
        'npzkit.dask needs dask 2025.1 or newer; install it: python -m pip install "npzkit[dask]"'
    ) from error

from npzkit.dask.from_archives import from_npz
from npzkit.dask.to_shards import to_npz

__all__ = ["from_npz", "to_npz"]

del _dask_array, _task_spec

# -- decisions -----------------------------------------------------------------------------------
# Change one if you can show something better.
#
# - A task holds a pickled archive, which has its path and version. Processes keep the archives
#   open that they used last.
# - `dask.array.from_array` makes the graph, because dask joins the slices of its tasks with later
#   slices. So `x[10:20]` reads ten rows, not a chunk.
# - A name has the CRC-32s and the first items of the data. CRC-32s have 32 bits: among 10,000
#   arrays of one shape, two have the same one with a probability of 1 %, and dask takes arrays of
#   the same name for equal. Arrays of four parts and more need no items.
# - Writing tasks are optimized together with those of the arrays. So one task computes a chunk
#   and writes it, and chunks do not wait in memory.
# - Each run of a writing task chooses its shard's name, and returns the record of the shard. The
#   last task commits the records that it gets. It runs on a worker, because the caller may not
#   reach the folder.
# - Small chunks are gathered by a task per shard, not by `rechunk`, which would copy them.
# - One file is refused, because processes cannot write to one file. A pattern's files are opened
#   one by one, to know their CRC-32s.
