"""`npzkit.report`: what the page shows of each array, and how much is read for it.

Owns the frame of the page. `npzkit.tables` escapes all text from the file, `npzkit.display` makes
the pictures, and Python objects are never unpickled.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from html import escape
from typing import TYPE_CHECKING, Any

from npzkit.analysis.statistics import statistics
from npzkit.archive.npzfile import NpzFile
from npzkit.conversion.output_paths import check_file_path, replacing
from npzkit.datasets.opening import opened
from npzkit.display.cells import table_page
from npzkit.display.histograms import histogram_overview, statistics_markup
from npzkit.display.piecewise import is_numeric
from npzkit.display.sampling import reachable
from npzkit.display.thumbnails import thumbnail
from npzkit.errors import (
    ClosedArchiveError,
    NpzkitError,
    StaleArchiveError,
    UnsupportedError,
    format_count,
    format_dtype,
    format_ratio,
    format_size,
    printable,
    shown_key,
    values_text,
)
from npzkit.files.progress import Report
from npzkit.files.urls import check_local
from npzkit.members.info import ArrayInfo
from npzkit.members.metadata import without_note
from npzkit.tables import SHOWN_COUNT, block, line, short_texts, table

if TYPE_CHECKING:
    from npzkit.typing import ArchiveLike

_WHOLE_SIZE = 1 << 26
"""Bytes of an array that is read completely, and so checked."""
_CELLS = 6
"""Rows and columns that are shown of text, records and small arrays."""
_HEAD = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy"
  content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
:root { color-scheme: light dark; font: 15px/1.4 system-ui, sans-serif }
body { max-width: 62rem; margin: 1.5rem auto; padding: 0 1rem }
h1 { font-size: 1.5rem; overflow-wrap: anywhere }
h2 { margin: 1rem 0 .2rem; padding-top: .8rem; border-top: 1px solid #8886;
  font: 600 1rem monospace; overflow-wrap: anywhere }
.parts { display: flex; flex-wrap: wrap; gap: 0 2rem; align-items: flex-start; overflow-x: auto }
.parts > div:first-child { min-width: 160px }
img, svg { margin-top: .5rem }
svg { color: #2f6fb5 }
.unread div { color: #b3261e }
@media (prefers-color-scheme: dark) { svg { color: #7db4f0 } .unread div { color: #ff9d94 } }
</style>
"""


def report(
    file: ArchiveLike,
    output: str | os.PathLike[str],
    *,
    read_all: bool = False,
    overwrite: bool = False,
    progress: Report | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> dict[str, str]:
    """Write a page of HTML that shows what is in an archive, for a mail or a CI artifact.

    The page is one file without scripts, which loads nothing. For each array it has a small
    picture, statistics and a histogram, or the first values. Arrays of up to 64 MiB are read
    completely and checked. Of larger ones a sample is read, and each of its numbers says so.

    Parameters
    ----------
    file : path, URL, bytes-like, file object or NpzFile
    output : path
        The page. It appears when it is complete.
    read_all : bool, default False
        Show all arrays, and compute statistics of all values. By default, the first 100 arrays
        are shown.
    overwrite : bool, default False
        Whether to replace a file that exists.
    progress : callable, optional
        Called with the number of arrays done and in total.
    storage_options : dict, optional
        For the store of a URL; see `npzkit.open`.

    Returns
    -------
    dict of str to str
        What is wrong with each array that cannot be read, by key. The page shows it too.

    Raises
    ------
    FileExistsError
        `output` exists, and `overwrite` is False.
    UnsupportedError
        `output` is a URL, or the archive itself.
    OSError, NpzkitError
        As `npzkit.open`.

    Examples
    --------
    >>> import io, tempfile, npzkit, numpy as np
    >>> stream = io.BytesIO()
    >>> npzkit.save(stream, {"image": np.eye(8), "names": np.array(["a", "b"])})
    >>> npzkit.report(stream, tempfile.mkdtemp() + "/report.html")
    {}
    """
    check_local(output, "a report is written to a file", "Write it to a path, and copy the file.")
    path = os.fspath(output)
    check_file_path(path, overwrite=overwrite)
    unread: dict[str, str] = {}
    with opened(file, storage_options=storage_options) as npz:
        _check_other(path, npz)
        keys = npz.files if read_all else npz.files[:SHOWN_COUNT]
        sections = []
        for done, key in enumerate(keys, 1):
            sections.append(_section(npz, key, unread, read_all=read_all))
            if progress is not None:
                progress(done, len(keys))
        page = "".join([_HEAD, *_overview(npz, len(keys), unread), *sections])
    with replacing(path) as temporary, open(temporary, "w", encoding="utf-8") as written:
        written.write(f"{page}</body></html>\n")
    return unread


def _check_other(path: str, npz: NpzFile) -> None:
    archive = npz.archive_info().path or ""
    if os.path.exists(path) and os.path.exists(archive) and os.path.samefile(path, archive):
        raise UnsupportedError(
            "the report would replace the archive", path=path,
            remedy="Write it to another path, such as report.html.",
        )  # fmt: skip


def _overview(npz: NpzFile, shown_count: int, unread: dict[str, str]) -> Iterator[str]:
    """Yield the top of the page: totals, metadata, and which arrays cannot be read."""
    info = npz.archive_info()
    # The folder is nobody else's business.
    title = escape(printable(os.path.basename((info.path or "").rstrip("/\\")) or "archive"))
    yield f"<title>{title}</title></head><body><h1>{title}</h1>"
    ratio = format_ratio(info.compressed_size, info.uncompressed_size)
    data = f"{format_size(info.uncompressed_size)} of data, {ratio} of it in the file"
    yield line(f"{format_count(info.member_count, 'array')}, {data}")
    if shown_count < info.member_count:
        yield line(f"The first {shown_count} arrays are shown.")
    try:
        metadata = without_note(npz.metadata)[0]
    except NpzkitError as error:
        metadata = {"metadata": error.what}
    yield table((), short_texts(metadata))
    yield _warnings([f"{shown_key(key)}: {what}" for key, what in unread.items()])


def _warnings(texts: list[str]) -> str:
    return f'<div class="unread">{block(map(line, texts))}</div>'


def _section(npz: NpzFile, key: str, unread: dict[str, str], *, read_all: bool) -> str:
    """Return what is shown of an array. If it cannot be read, note why in `unread`."""
    shown = f"<h2>{escape(shown_key(key))}</h2>"
    try:
        info = npz.info(key)
        shown += _description(info)
        return f'{shown}<div class="parts">{"".join(_parts(npz, info, read_all=read_all))}</div>'
    except (StaleArchiveError, ClosedArchiveError):
        raise
    except NpzkitError as error:
        unread[key] = error.what + values_text(error)
        return shown + _warnings([unread[key]])


def _description(info: ArrayInfo) -> str:
    """Return what is known of an array without its data."""
    kind = "not an array" if info.dtype is None else f"{info.shape} {format_dtype(info.dtype)}"
    kind += ", by magnitude" if info.dtype is not None and info.dtype.kind == "c" else ""
    size = f"{format_size(info.nbytes)}, {format_size(info.compressed_size)}"
    attrs = [f"{name}: {text}" for name, text in short_texts(info.attrs)]
    return block(map(line, [f"{kind}, {size} in the file, {info.method}", *attrs]))


def _parts(npz: NpzFile, info: ArrayInfo, *, read_all: bool) -> Iterator[str]:
    """Yield a picture and the statistics of an array, or its first values."""
    if info.dtype is None or 0 in (info.shape or ()):
        return
    if info.dtype.hasobject:
        yield line("Python objects, which are not unpickled")
        return
    source = npz.lazy(info.key)
    near = reachable(source)
    if not is_numeric(info.dtype) or source.size <= _CELLS:
        values = _first_values(npz.read(info.key) if info.nbytes <= _WHOLE_SIZE else near)
        yield f"<div>{values}</div>"
        return
    if read_all or info.nbytes <= _WHOLE_SIZE:
        found, mark = statistics(npz, info.key), ""
    else:
        found = histogram_overview(near).statistics
        share = 100 * found.count / source.size
        mark = " (sample)" if share < 100 else ""
    numbers, *bars = statistics_markup(found, mark)
    for part in (thumbnail(near) or "", numbers, "".join(bars)):
        yield f"<div>{part}</div>"
    if mark:
        yield line(f"sample: {share:.2g} % of the values; npzkit report --all reads all")


def _first_values(source: Any) -> str:
    """Return a table of the values at the beginning of the last two axes."""
    axes = range(len(source.shape))[-2:]
    items = [slice(None) if axis in axes else 0 for axis in range(len(source.shape))]
    down, across = (*axes, None, None)[:2]
    page = table_page(
        source, items, down=down, across=across, rows=(0, _CELLS), columns=(0, _CELLS)
    )
    shown = table(page.heads if any(page.heads) else (), page.cells)
    left = page.row_count - len(page.rows)
    return shown + line(f"... {format_count(left, 'more row')}") if left else shown
