"""xarray's data sets in archives: ``xarray.open_dataset("data.npz")`` and `to_npz`.

xarray finds the engine by itself once npzkit is installed. This package needs
xarray, which ``pip install "npzkit[xarray]"`` installs.

>>> import tempfile, xarray, npzkit.xarray
>>> path = tempfile.mkdtemp() + "/t.npz"
>>> dataset = xarray.Dataset({"t": ("x", [1.5, 2.5])}, {"x": [10, 20]}, {"title": "demo"})
>>> npzkit.xarray.to_npz(dataset, path)
>>> with xarray.open_dataset(path) as found:
...     print(found["t"].sel(x=20).item(), found.attrs)
2.5 {'title': 'demo'}
"""

from __future__ import annotations

try:
    import xarray as _xarray  # noqa: F401 - only to say what is missing
except ImportError as error:
    raise ImportError(
        'npzkit.xarray needs xarray; install it: python -m pip install "npzkit[xarray]"'
    ) from error

from npzkit.xarray.backend import NpzBackend
from npzkit.xarray.writing import to_npz

__all__ = ["NpzBackend", "to_npz"]

# -- decisions -----------------------------------------------------------------------------------
# Change one if you can show something better.
#
# - Booleans are stored as such, and times by CF's rules: NPY has both, but xarray's attributes of
#   times (units, calendar) come back only by CF.
# - Made-up names of dimensions are one per length in the whole archive, so that the groups of a
#   tree agree. They are a warning, because data with wrong names is aligned wrongly.
# - Arrays of dask go to stored arrays of a local file in any order, all in one computation. To
#   compressed arrays and to URLs they go by rows. If blocks have too many rows for memory, a
#   temporary file puts them in order.
# - An empty slice with a negative step is not passed through xarray's adapter, which fails for
#   it.
