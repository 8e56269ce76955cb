"""`npzkit.report`: an archive as one page of HTML.

Owns its parameters, what becomes of the page, and its object in a notebook.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from html import escape
from typing import Any

from npzkit.archive.npzfile import NpzFile
from npzkit.conversion.output_paths import check_file_path, replacing
from npzkit.datasets.opening import opened
from npzkit.errors import UnsupportedError, format_count, printable
from npzkit.files.progress import Report
from npzkit.files.urls import check_local
from npzkit.members.keys import check_several, missing

_FRAME_HEIGHT = 600


@dataclass(frozen=True, eq=False)
class ArchiveReport:
    """What `report` made.

    Attributes
    ----------
    html : str
        The page.
    output : str or None
        The path that it was written to.
    keys : tuple of str
        The arrays that are shown.
    damaged : mapping of str to str
        What is wrong with each array that could not be read, by key.
    """

    html: str = field(repr=False)
    output: str | None
    keys: tuple[str, ...]
    damaged: Mapping[str, str]

    def _repr_html_(self) -> str:
        """Return the page in a frame, so that its style stays its own."""
        return (
            f'<iframe srcdoc="{escape(self.html)}" sandbox="" title="npzkit report" '
            f'style="width:100%;height:{_FRAME_HEIGHT}px;border:0;"></iframe>'
        )

    def __str__(self) -> str:
        lines = [f"{printable(self.output or 'report')}: {format_count(len(self.keys), 'array')}"]
        lines += [f"{printable(key)}: {printable(what)}" for key, what in self.damaged.items()]
        return "\n".join(lines)


def report(
    file: Any,
    output: str | os.PathLike[str] | None = None,
    *,
    keys: Iterable[str] | None = None,
    count: int = 100,
    overwrite: bool = False,
    progress: Report | None = None,
) -> ArchiveReport:
    """Make a page of HTML that shows what is in an archive.

    The page is one file, for a mail or a CI artifact: it has no scripts, and loads nothing.
    It has a table of the arrays, the metadata and attributes, and for each array a small
    picture, a histogram and statistics. Arrays that have no picture, such as text and
    records, show their first values. Damaged arrays are marked, and the page is still made.

    Arrays up to 1 MiB are read completely and checked. Of larger ones, a few megabytes
    that are spread over the array are read, and the page says so. Arrays of Python objects
    are not unpickled.

    Parameters
    ----------
    file : path, URL, bytes-like, file object or NpzFile
    output : path, optional
        The file to write. It appears when it is complete. By default no file is written.
    keys : iterable of str, optional
        The arrays to show; by default the first `count`.
    count : int, default 100
        The most arrays to show, if `keys` is not given.
    overwrite : bool, default False
        Whether to replace a file that exists.
    progress : callable, optional
        Called with the number of arrays done and in total.

    Returns
    -------
    ArchiveReport
        The page as text, and which arrays are damaged. Notebooks display it.

    Raises
    ------
    UnsupportedError
        Jinja2 is not installed, which ``pip install "npzkit[report]"`` does; or `output`
        is a URL or the archive itself.
    FileExistsError
        `output` exists, and `overwrite` is False.
    MemberNotFoundError
        One of `keys` does not exist.
    OSError, NpzkitError
        As `npzkit.open`.

    Examples
    --------
    >>> import io, npzkit, numpy as np
    >>> stream = io.BytesIO()
    >>> npzkit.save(stream, {"image": np.eye(8), "names": np.array(["a", "b"])})
    >>> found = npzkit.report(stream)
    >>> found.keys, found.html[:15], "<script" in found.html
    (('image', 'names'), '<!doctype html>', False)
    """
    if isinstance(count, bool) or not isinstance(count, int) or count < 0:
        raise ValueError(f"count must be a non-negative integer, not {count!r}")
    check_several(keys)
    path = None if output is None else _checked_path(output, overwrite=overwrite)
    from npzkit.reports.report_page import Look, looks, page_html

    with opened(file) as npz:
        _check_other(path, npz)
        chosen = npz.files[:count] if keys is None else _known(npz, keys)
        seen: list[Look] = []
        for look in looks(npz, chosen):
            seen.append(look)
            if progress is not None:
                progress(len(seen), len(chosen))
        html = page_html(npz, seen)
    if path is not None:
        with replacing(path) as temporary, open(temporary, "w", encoding="utf-8") as page:
            page.write(html)
    damaged = {look.key: look.error for look in seen if look.error is not None}
    return ArchiveReport(html, path, tuple(look.key for look in seen), damaged)


def _checked_path(output: str | os.PathLike[str], *, overwrite: bool) -> str:
    """Return the path to write to, before the archive is read."""
    check_local(output, "a report is written to a file", "Write it to a path, and copy the file.")
    path = os.fspath(output)
    if not isinstance(path, str):
        raise TypeError(f"output must be a path, not {type(output).__name__}")
    check_file_path(path, overwrite=overwrite)
    return path


def _check_other(path: str | None, npz: NpzFile) -> None:
    """Raise UnsupportedError if the page would replace the archive."""
    archive = npz.archive_info().path
    if path is None or archive is None:
        return
    if os.path.exists(path) and os.path.exists(archive) and os.path.samefile(path, archive):
        raise UnsupportedError(
            "the report would replace the archive", path=path,
            remedy="Write it to another path, such as report.html.",
        )  # fmt: skip


def _known(npz: NpzFile, keys: Iterable[str]) -> list[str]:
    """Return each key once, after checking that it exists."""
    wanted = list(dict.fromkeys(keys))
    for key in wanted:
        if key not in npz:
            raise missing(key, npz.files, npz.archive_info().path)
    return wanted
