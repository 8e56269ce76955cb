"""The HTML on a page: titles, facts, tables of values.

Guarantees that all text of an archive is escaped.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

import numpy as np

from npzkit.display.cells import cell_text
from npzkit.display.lines import LineOverview
from npzkit.errors import (
    NpzkitError,
    format_count,
    format_dtype,
    format_ratio,
    format_size,
    printable,
    shown_key,
)
from npzkit.members.array_info import ArchiveInfo, ArrayInfo
from npzkit.tables import short_texts
from npzkit.trees.containers import without_note
from npzkit.viewer.archives import ShownArchive
from npzkit.viewer.drawing import HistogramDrawn, Pane, PlaneDrawn, TableDrawn

NAN_COLOUR = "#ff4fd8"
"""Of NaN in images. No palette has it."""
_TITLE_LENGTH = 200
"""Characters of a key in a title."""


_EXTENT = " "
"""The name of the last row of statistics: how many values were read."""


def _text(text: str) -> str:
    return escape(printable(text))


def about_html(archives: Sequence[ShownArchive]) -> str:
    """Return the names of the archives, with how much they hold."""
    parts = []
    for archive in archives:
        info = archive.totals
        parts.append(
            f'<b>{_text(archive.label)}</b> <span class="soft">'
            f"{format_count(info.member_count, 'member')}, "
            f"{format_size(info.uncompressed_size)}</span>"
        )
    return " &nbsp;·&nbsp; ".join(parts)


def title_html(title: str, info: ArrayInfo | None) -> str:
    """Return the key that is shown, with its shape and dtype."""
    shown_title = title if len(title) <= _TITLE_LENGTH else f"{title[:_TITLE_LENGTH]}…"
    if info is None:
        return f'<div class="title">{_text(shown_title)}</div>'
    kind = ""
    if info.dtype is not None:
        kind = f"{_text(str(info.shape))} {_text(format_dtype(info.dtype))}"
    return f'<div class="title">{_text(shown_title)} <span class="soft">{kind}</span></div>'


def _facts(rows: Iterable[tuple[str, str]]) -> str:
    cells = (f"<tr><td>{_text(name)}</td><td>{_text(value)}</td></tr>" for name, value in rows)
    return f'<table class="facts">{"".join(cells)}</table>'


def array_html(info: ArrayInfo) -> str:
    """Return what is known of an array."""
    rows = [("key", shown_key(info.key))]
    if info.dtype is None:
        rows += [("kind", "not an array")]
    else:
        rows += [("shape", str(info.shape)), ("dtype", str(info.dtype)[:500])]
        if info.fortran_order and len(info.shape or ()) > 1:
            rows.append(("order", "Fortran, by columns"))
    rows += [
        ("size", format_size(info.nbytes)),
        ("in the file", format_size(info.compressed_size)),
        ("ratio", format_ratio(info.compressed_size, info.nbytes)),
        ("method", info.method),
        ("parts", info.parts_text()),
        ("CRC-32", "none" if info.crc32 is None else f"{info.crc32:08x}"),
    ]
    attrs = short_texts(info.attrs)
    found = f"<h3>Array</h3>{_facts(rows)}"
    return found + (f"<h3>Attributes</h3>{_facts(attrs)}" if attrs else "")


def archive_html(archive: ShownArchive) -> str:
    """Return the totals of an archive, and its metadata."""
    info: ArchiveInfo = archive.totals
    rows = [
        ("path", archive.path),
        ("size", format_size(info.size)),
        ("arrays", f"{info.member_count:,}, {format_size(info.uncompressed_size)}"),
        ("in the file", format_size(info.compressed_size)),
    ]
    if info.dead_size:
        rows.append(("unused", format_size(info.dead_size)))
    metadata, is_tree = without_note(archive.npz.metadata)
    if is_tree:
        rows.append(("nested", "npzkit.load_tree returns it, with its dicts and lists"))
    texts = short_texts(metadata)
    found = f"<h3>Archive</h3>{_facts(rows)}"
    return found + (f"<h3>Metadata</h3>{_facts(texts)}" if texts else "")


def error_html(error: Exception) -> str:
    """Return what went wrong."""
    text = str(error) if isinstance(error, NpzkitError) else f"{type(error).__name__}: {error}"
    return f'<span class="bad">{_text(text[:2000])}</span>'


def damaged_html(key: str, why: str) -> str:
    """Return that the values of an array that is shown are damaged."""
    shown = _text(shown_key(key))
    return (
        f'<b class="bad">✗ {shown} is damaged: its values are not what was saved</b> ({_text(why)})'
    )


# -- what was read ------------------------------------------------------------


def notes_html(panes: Sequence[Pane], why: str | None) -> str:
    """Return what has to be said of the values that are shown."""
    found = [note for pane in panes[:1] for note in _notes(pane.drawn)]
    planes = [pane.drawn for pane in panes if not pane.is_difference]
    found += _range_notes([plane for plane in planes if isinstance(plane, PlaneDrawn)])
    for pane in panes:
        if pane.is_difference:
            found += _difference_notes(pane)
    table = panes[0].drawn if panes else None
    if isinstance(table, TableDrawn) and table.marked is not None:
        found.append(_marked_note(table, panes[0].part))
    if why is not None:
        found.append(f'<span class="warn">{_text(why)}</span>')
    return " &nbsp;·&nbsp; ".join(found)


def _notes(drawn: Any) -> list[str]:
    if isinstance(drawn, PlaneDrawn):
        return [_steps(drawn), *(_counts(drawn.numbers) if drawn.colours is None else [])]
    if not isinstance(drawn, LineOverview):
        return []
    notes = []
    if not drawn.has_values:
        each = (drawn.edges[-1] - drawn.edges[0]) / max(len(drawn.low), 1)
        notes.append(
            f"each pixel shows the least and the largest of {each:,.0f} values"
            if drawn.sampled == 1
            else f'<span class="warn">a sample: {drawn.sampled:.2g} of the values were '
            "read. Zoom in to read all</span>"
        )
    if drawn.nan_count:
        notes.append(f"{format_count(drawn.nan_count, 'NaN')}")
    if drawn.inf_count:
        notes.append(f"{drawn.inf_count:,} infinite")
    return notes


def _range_notes(planes: Sequence[PlaneDrawn]) -> list[str]:
    """Return where colours end, if there are values beyond."""
    if not planes or planes[0].colours is not None:
        return []
    low, high = planes[0].low, planes[0].high
    least, most = min(plane.reach[0] for plane in planes), max(plane.reach[1] for plane in planes)
    dtype = planes[0].overview.values.dtype

    def text(number: float) -> str:
        if dtype.kind == "M":
            return cell_text(np.array(int(number), np.int64).view(dtype.newbyteorder("="))[()])
        return f"{number:.{4 if high - low > 1e-2 * max(-low, high) else 12}g}"

    beyond = [text(end) for end, is_out in ((least, least < low), (most, most > high)) if is_out]
    if not beyond:
        return []
    return [f'<span class="warn">colours end at {_text(text(low))} and {_text(text(high))}; '
            f"values reach {_text(' and '.join(beyond))}</span>"]  # fmt: skip


def _difference_notes(pane: Pane) -> list[str]:
    """Return how far apart the values are that a difference shows, and what it does not show."""
    drawn = pane.drawn
    if isinstance(drawn, PlaneDrawn):
        numbers, is_complete = drawn.numbers, drawn.is_complete
    elif isinstance(drawn, LineOverview):
        numbers = np.array([*drawn.low, *drawn.high, *[np.nan] * bool(drawn.nan_count)])
        is_complete = drawn.sampled == 1
    elif isinstance(drawn, HistogramDrawn):
        statistics = drawn.overview.statistics
        ends = [0 if end is None else end for end in (statistics.min, statistics.max)]
        numbers = np.array([*ends, *[np.nan] * bool(statistics.nan_count)])
        is_complete = drawn.is_complete
    else:
        return []
    largest = np.nanmax(np.abs(numbers), initial=0)
    parts = [f"largest difference shown: {cell_text(largest)}"] if largest else []
    if np.isnan(numbers).any():
        parts.append("some values are NaN in one array only")
    if not is_complete:
        found_text = " and ".join(parts) or "no difference in a sample"
        return [f'<b>{found_text}</b>; <span class="warn">not all values were compared</span>']
    return [_compared(" and ".join(parts), pane.part)]


def _compared(difference: str, part: tuple[str, str] | None) -> str:
    """Return what differs, or what is equal, and what was not compared."""
    if part is None:
        return f"<b>{difference or 'the arrays are equal: all values were compared'}</b>"
    shown, rest = part
    found = difference or f"{shown} is equal"
    return f'<b>{found}</b>; <span class="warn">{rest} were not compared</span>'


def _marked_note(drawn: TableDrawn, part: tuple[str, str] | None) -> str:
    """Return how many cells of a page differ."""
    count = len(drawn.marked or ())
    what = f"differing on this page: {format_count(count, 'cell')}" if count else ""
    return _compared(what, part)


def _steps(drawn: PlaneDrawn) -> str:
    parts = [
        f"every {_ordinal(step)} {name}"
        for step, name in ((drawn.rows.step, "row"), (drawn.columns.step, "column"))
        if step > 1
    ]
    return (
        f"{' and '.join(parts)} is shown; zoom in to see all" if parts else "every value is shown"
    )


def _ordinal(number: int) -> str:
    suffix = "th"
    if number % 100 not in {11, 12, 13}:
        suffix = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number:,}{suffix}"


def _counts(numbers: np.ndarray[Any, Any]) -> list[str]:
    """Return what is unusual among the numbers of an image."""
    if numbers.dtype.kind != "f":
        return []
    swatch = f'<span class="swatch" style="background:{NAN_COLOUR}"></span>'
    counts = (
        (np.isnan(numbers).sum(), f"{swatch}{{:,}} NaN"),
        (np.isposinf(numbers).sum(), "{:,} +infinity"),
        (np.isneginf(numbers).sum(), "{:,} \u2212infinity"),
    )
    return [text.format(count) for count, text in counts if count]


def statistics_html(panes: Sequence[Pane]) -> str:
    """Return the statistics of arrays as a table, a column each; those of samples say so."""
    columns = [_statistics(pane.drawn) for pane in panes]
    if len(panes) > 1:
        heads = "left", "right", "difference"
        columns = [{"": head} | column for head, column in zip(heads, columns, strict=False)]
        if all("sample" not in column["values"] for column in columns):
            del columns[0][_EXTENT]
    lines = (
        f"<tr><td>{name}</td>{''.join(f'<td>{column[name]}</td>' for column in columns)}</tr>"
        for name in columns[0]
    )
    return f'<table class="facts">{"".join(lines)}</table>'


def _statistics(drawn: Any) -> dict[str, str]:
    found = drawn.overview.statistics
    sample, of_all = "", "all were read"
    if not drawn.is_complete:
        sample = ' <span class="warn">sample</span>'
        of_all = f"{100 * drawn.overview.sampled * drawn.share:.2g} % of all, spread evenly"
    if drawn.share < 1:
        of_all = f"the first {100 * drawn.share:.2g} % of all"
    numbers = {
        "values": f"{found.count:,}",
        "minimum": "-" if found.min is None else cell_text(found.min),
        "maximum": "-" if found.max is None else cell_text(found.max),
        "mean": "-" if found.mean is None else f"{found.mean:.6g}",
        "deviation": "-" if found.std is None else f"{found.std:.6g}",
        "NaN": f"{found.nan_count:,}",
        "infinite": f"{found.inf_count:,}",
    }
    shown = {name: f"{_text(number)}{sample}" for name, number in numbers.items()}
    return shown | {_EXTENT: f'<span class="soft">{of_all}</span>'}


def page_html(drawn: TableDrawn, *, are_texts: bool, has_rows: bool) -> str:
    """Return a page of values as a table."""
    page = drawn.page
    if not page.cells:
        return '<p class="soft">This array has no values.</p>'
    kind = ' class="text"' if are_texts else ""
    marked = f' class="differs{" text" if are_texts else ""}"' if drawn.marked else ""
    heads = "".join(f"<th>{_text(head)}</th>" for head in ["", *page.heads])
    lines = [f"<tr>{heads}</tr>"] if any(page.heads) else []
    for place, (number, cells) in enumerate(zip(page.rows, page.cells, strict=True)):
        shown = "".join(
            f"<td{marked if (place, column) in (drawn.marked or ()) else kind}>{_text(cell)}</td>"
            for column, cell in enumerate(cells)
        )
        lines.append(f"<tr><th>{number if has_rows else ''}</th>{shown}</tr>")
    return f'<table class="values">{"".join(lines)}</table>'
