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
