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
