"""What a report shows of one array: a picture, its statistics, or its first values.

Owns how much of an array is read for it, and that a damaged array does not end the report.
Python objects are never unpickled.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from npzkit.archive.npzfile import NpzFile
from npzkit.display.cells import TablePage, table_page
from npzkit.display.histograms import HistogramOverview, histogram_overview
from npzkit.display.sampling import reachable
from npzkit.display.thumbnails import Thumbnail, thumbnail
from npzkit.errors import ClosedArchiveError, NpzkitError, StaleArchiveError
from npzkit.maintenance.findings import finding
from npzkit.members.info import ArrayInfo

COMPLETE_SIZE = 1 << 20
"""Bytes of an array that is read completely, and so checked."""
_BATCH_SIZE = 1 << 25
"""Bytes of arrays that are read together."""
_PICTURE_BUDGET, _STATISTICS_BUDGET, _TABLE_BUDGET = 1 << 22, 1 << 22, 1 << 18
"""Bytes that are read of a larger array for each of them."""
_ROW_COUNT = _COLUMN_COUNT = 6
"""Rows and columns that are shown of values that have no picture. So many values need none."""


@dataclass
class Look:
    """What is shown of one array.

    Attributes
    ----------
    key : str
    info : ArrayInfo or None
        None if the headers are damaged.
    error : str or None
        What is wrong with the array.
    is_checked : bool
        Whether it was read completely, and its CRC-32 was compared.
    picture : Thumbnail or None
    statistics : HistogramOverview or None
    table : TablePage or None
        The first values of an array without a picture.
    seen : float
        The share of the array that was within reach: less than 1 if it is large, and
        compressed without a seek index.
    """

    key: str
    info: ArrayInfo | None = None
    error: str | None = None
    is_checked: bool = False
    picture: Thumbnail | None = None
    statistics: HistogramOverview | None = None
    table: TablePage | None = None
    seen: float = 1.0


def looks(npz: NpzFile, keys: Sequence[str]) -> Iterator[Look]:
    """Yield what is shown of each array, in the order of the keys.

    Arrays up to a megabyte are read completely and checked, many at once. Of larger
    ones, a few megabytes are read.
    """
    for batch in _batches(npz, keys):
        small = [look.key for look in batch if _is_small(look.info)]
        loaded = _load(npz, small) if len(small) > 1 else {}
        for look in batch:
            if look.error is None:
                _look_at(npz, look, loaded.get(look.key))
            yield look


def _batches(npz: NpzFile, keys: Sequence[str]) -> Iterator[list[Look]]:
    """Yield looks without their data, so many that their small arrays fit in memory."""
    batch: list[Look] = []
    size = 0
    for key in keys:
        look = Look(key)
        try:
            look.info = npz.info(key)
        except NpzkitError as error:
            look.error = _told(key, error)
        if look.info is not None and _is_small(look.info):
            size += look.info.nbytes
        if size > _BATCH_SIZE:
            yield batch
            batch, size = [], 0
        batch.append(look)
    yield batch


def _is_small(info: ArrayInfo | None) -> bool:
    """Whether an array is read completely."""
    return (
        info is not None
        and info.dtype is not None
        and not info.dtype.hasobject
        and info.nbytes <= COMPLETE_SIZE
    )


def _load(npz: NpzFile, keys: list[str]) -> dict[str, Any]:
    """Return arrays by their keys. If one is damaged, return none: they are read one by one."""
    try:
        return npz.load_all(keys)
    except (StaleArchiveError, ClosedArchiveError):
        raise
    except NpzkitError:
        return {}


def _told(key: str, error: NpzkitError) -> str:
    """Return what is wrong with an array, as `verify` says it."""
    if isinstance(error, StaleArchiveError):
        raise error
    return finding(key, error).what


def _look_at(npz: NpzFile, look: Look, loaded: Any) -> None:
    """Fill in what is seen of an array, or what is wrong with it."""
    if look.info is None or look.info.dtype is None or look.info.dtype.hasobject:
        return
    try:
        if _is_small(look.info):
            source = npz.read(look.key) if loaded is None else loaded
            look.is_checked = True
        else:
            source = reachable(npz.lazy(look.key))
            look.seen = math.prod(source.shape) / math.prod(look.info.shape or ())
        _draw(look, source)
    except NpzkitError as error:
        look.error = _told(look.key, error)


def _draw(look: Look, source: Any) -> None:
    """Fill in a picture and statistics, or a table."""
    if math.prod(source.shape) > _ROW_COUNT:
        look.picture = thumbnail(source, budget=_PICTURE_BUDGET)
    if look.picture is not None:
        look.statistics = histogram_overview(source, budget=_STATISTICS_BUDGET)
        return
    axes = list(range(len(source.shape)))[-2:]
    down, across = (*axes, None, None)[:2]
    if 0 in source.shape:
        return
    look.table = table_page(
        source, [slice(None) if axis in axes else 0 for axis in range(len(source.shape))],
        down=down, across=across, rows=(0, _ROW_COUNT), columns=(0, _COLUMN_COUNT),
        budget=_TABLE_BUDGET,
    )  # fmt: skip
