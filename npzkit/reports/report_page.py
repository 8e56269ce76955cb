"""What a report shows of each array, its texts, and the template that they are put into.

Owns how much of an array is read for it, that a damaged array does not end the report, and
how facts read. Python objects are never unpickled. Jinja2 escapes every text; what npzkit has
made as HTML is `Markup`. Only this module imports Jinja2.
"""

from __future__ import annotations

import copy
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

import numpy as np

from npzkit.archive.npzfile import NpzFile
from npzkit.display.cells import TablePage, cell_text, table_page
from npzkit.display.histograms import HistogramOverview, histogram_overview
from npzkit.display.sampling import reachable
from npzkit.display.tables import SHOWN_COUNT, short_texts
from npzkit.display.thumbnails import Thumbnail, histogram_markup, thumbnail
from npzkit.errors import (
    ClosedArchiveError,
    NpzkitError,
    StaleArchiveError,
    UnsupportedError,
    format_count,
    format_ratio,
    format_size,
    printable,
    shown_key,
)
from npzkit.members.info import ArchiveInfo, ArrayInfo, short_dtype

COMPLETE_SIZE = 1 << 20
"""Bytes of an array that is read completely, and so checked."""
_BATCH_COUNT = 32
"""Arrays that are read together, if they are small."""
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
    for start in range(0, len(keys), _BATCH_COUNT):
        batch = [_headed(npz, key) for key in keys[start : start + _BATCH_COUNT]]
        small = [look.key for look in batch if _is_small(look.info)]
        loaded = _load(npz, small) if len(small) > 1 else {}
        for look in batch:
            if look.error is None:
                _look_at(npz, look, loaded.get(look.key))
            yield look


def _headed(npz: NpzFile, key: str) -> Look:
    """Return what is known of an array without its data."""
    try:
        return Look(key, npz.info(key))
    except NpzkitError as error:
        return Look(key, error=_told(error))


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


def _told(error: NpzkitError) -> str:
    """Return what is wrong with an array, without the path and the key."""
    if isinstance(error, (StaleArchiveError, ClosedArchiveError)):
        raise error
    told = copy.copy(error)
    told.path = told.key = told.offset = told.remedy = None
    return str(told)


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
        look.error = _told(error)


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


# -- the page -----------------------------------------------------------------


def page_html(npz: NpzFile, seen: Sequence[Look]) -> str:
    """Return the page about an archive, of which some arrays were looked at.

    Raises
    ------
    UnsupportedError
        Jinja2 is not installed.
    """
    environment = _environment()
    info = npz.archive_info()
    template = resources.files("npzkit.reports").joinpath("page.html").read_text(encoding="utf-8")
    page: str = environment.from_string(template).render(
        title=_title(info),
        totals=_totals(info),
        hidden_count=info.member_count - len(seen),
        damaged=[shown_key(look.key) for look in seen if look.error is not None],
        metadata=_metadata(npz),
        arrays=[_array(number, look) for number, look in enumerate(seen, 1)],
    )
    return page


def _environment() -> Any:
    try:
        import jinja2
    except ImportError as error:
        raise UnsupportedError(
            "a report needs the package Jinja2, which is not installed",
            remedy="Install it: python -m pip install 'npzkit[report]'",
        ) from error
    return jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )


def _title(info: ArchiveInfo) -> str:
    """Return the name of the file without its folder, which is nobody else's business."""
    return printable(os.path.basename(info.path.rstrip("/\\")) if info.path else "archive")


def _totals(info: ArchiveInfo) -> list[tuple[str, str]]:
    totals = [
        ("arrays", f"{info.member_count:,}"),
        ("data", format_size(info.uncompressed_size)),
        ("file", format_size(info.size)),
        ("ratio", format_ratio(info.compressed_size, info.uncompressed_size)),
    ]
    if info.dead_size:
        totals.append(("unused space", format_size(info.dead_size)))
    if info.torn_size:
        totals.append(("after the last commit", format_size(info.torn_size)))
    return totals


def _metadata(npz: NpzFile) -> list[tuple[str, str]]:
    try:
        return _texts(npz.metadata)
    except NpzkitError as error:
        return [("(damaged)", printable(error.what))]


def _texts(values: Any) -> list[tuple[str, str]]:
    texts = [(printable(key), printable(text)) for key, text in short_texts(values)]
    if len(values) > SHOWN_COUNT:
        texts.append(("...", f"{len(values) - SHOWN_COUNT:,} more"))
    return texts


# -- an array -----------------------------------------------------------------


def _array(number: int, look: Look) -> dict[str, Any]:
    """Return what the template shows of an array."""
    return {
        "name": f"a{number}",
        "key": shown_key(look.key),
        "error": None if look.error is None else printable(look.error),
        "picture": look.picture,
        "table": look.table,
        "more": _more(look),
        "statistics": _facts(look.statistics),
        "histogram": _histogram(look.statistics),
        "note": " ".join(_notes(look)),
        "attrs": _texts(look.info.attrs) if look.info else [],
        **_columns(look.info),
    }


def _columns(info: ArrayInfo | None) -> dict[str, str]:
    """Return the cells of an array's row."""
    if info is None:
        return dict.fromkeys(("shape", "dtype", "size", "ratio", "method", "parts"), "-")
    return {
        "shape": "-" if info.shape is None else str(info.shape),
        "dtype": printable(short_dtype(info.dtype)),
        "size": format_size(info.nbytes),
        "ratio": format_ratio(info.compressed_size, info.nbytes),
        "method": info.method,
        "parts": {True: "yes", False: "no", None: "-"}[info.has_cheap_parts],
    }


def _notes(look: Look) -> list[str]:
    """Return what a reader must know to read the picture and the numbers."""
    if look.info is None:
        return []
    if look.info.dtype is None:
        return ["It is not an array."]
    if look.info.dtype.hasobject:
        return ["It holds Python objects, which are not unpickled."]
    notes = []
    if look.info.shape is not None and 0 in look.info.shape:
        notes.append("It is empty.")
    if look.seen < 1:
        notes.append(f"Only the first {_percent(look.seen)} was read: there is no seek index.")
    if look.statistics is not None and look.statistics.sampled < 1:
        share = _percent(look.statistics.sampled * look.seen)
        notes.append(f"Statistics of a sample: {share} of the values.")
    if not look.is_checked and look.error is None:
        notes.append("Checksum not checked.")
    return notes


def _percent(share: float) -> str:
    """Return a share that is not rounded to nothing or to all."""
    percent = 100 * share
    if percent >= 1:
        return f"{min(percent, 99):.0f} %"
    return f"{percent:.1g} %" if percent >= 0.01 else "less than 0.01 %"


def _more(look: Look) -> str:
    """Return how much of a table is not shown."""
    table = look.table
    if table is None:
        return ""
    rows, columns = table.row_count - len(table.rows), table.column_count - len(table.columns)
    parts = [format_count(rows, "more row")] if rows else []
    if columns:
        parts.append(format_count(columns, "more column"))
    return ", ".join(parts)


def _facts(found: HistogramOverview | None) -> list[tuple[str, str]]:
    """Return the statistics as names and texts; NaNs and infinities only if there are any."""
    if found is None:
        return []
    told = found.statistics
    facts = [
        (name, _number(getattr(told, name)))
        for name in ("min", "max", "mean", "std")
        if getattr(told, name) is not None
    ]
    facts += [
        (name, f"{count:,}")
        for name, count in (("NaN", told.nan_count), ("infinite", told.inf_count))
        if count
    ]
    return facts


def _number(value: Any) -> str:
    """Return a number with six digits if it is not an integer; a date as it is."""
    kind = getattr(getattr(value, "dtype", None), "kind", "f")
    return f"{value:.6g}" if kind == "f" else cell_text(value)


def _histogram(found: HistogramOverview | None) -> dict[str, Any] | None:
    if found is None or found.statistics.histogram is None:
        return None
    edges = found.statistics.histogram.edges
    ends = [cell_text(edge) if edges.dtype.kind in "mM" else f"{edge:.4g}" for edge in edges]
    if isinstance(found.statistics.min, np.bool_) or len(ends) == 2:
        # The last bin ends where 2 would be, or the only one at the next number.
        ends = [_number(found.statistics.min), _number(found.statistics.max)]
    return {"bars": histogram_markup(found.statistics.histogram), "ends": (ends[0], ends[-1])}
