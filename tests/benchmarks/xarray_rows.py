"""How fast xarray opens a compressed data set and reads a part of it, by npzkit and by zarr.

The rows of `engines`. Both libraries compress temperatures of a year with Zstandard, in the chunks
that they choose: npzkit along the order of the array, zarr along all axes.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from rows import Row, ahead
from works import Place, Work

NEEDS = ["xarray", "zarr"]
"""The packages that the rows need."""
SHAPE = 365, 181, 360


def make_temperatures(days: int) -> Any:
    """Return a data set: temperatures with one decimal."""
    import xarray

    season = 10 * np.sin(np.arange(days, dtype="f4") / 58)[:, None, None]
    zone = 30 * np.cos(np.linspace(-1.5, 1.5, SHAPE[1], dtype="f4"))[:, None]
    weather = np.random.default_rng(0).standard_normal((days, *SHAPE[1:]), "f4")
    values = (season + zone + weather).round(1)
    return xarray.Dataset({"t": (("time", "lat", "lon"), values)}, {"time": np.arange(days)})


def read(engine: str, path: Path, ranges: dict[str, Any]) -> np.ndarray:
    import xarray

    with xarray.open_dataset(path, engine=engine) as found:
        return found["t"].isel(ranges).values


def select(place: Place) -> Iterator[Work]:
    """Yield the opening of a data set, and the reading of a part."""
    import npzkit

    days = place.part(SHAPE[0])
    year = make_temperatures(days)
    paths = {"npzkit": place.folder / "year.npz", "zarr": place.folder / "year.zarr"}
    npzkit.xarray.to_npz(year, paths["npzkit"], compression="zstd")
    year.to_zarr(paths["zarr"])
    month = slice(days // 2, days // 2 + 30)
    for title, ranges in {
        "one day": {"time": days // 2},
        "a region in a month": {"time": month, "lat": slice(100, 140), "lon": slice(20, 80)},
        "one place": {"lat": 90, "lon": 180},
    }.items():
        yield Work(title, {name: partial(read, name, path, ranges) for name, path in paths.items()})


ROWS = {
    "xarray-select": Row(
        "xarray opens compressed temperatures of a year, and reads a part", select,
        (ahead("zarr", 1),),
    )
}  # fmt: skip
