"""What is shown, as a file: an .npy file or CSV, sent to the browser piece by piece; the buttons.

Owns the bytes of these files, the names that they get, and what all answers of the server
have in common: headers, and what is logged. A piece of a few megabytes
is in memory, however large the slice is.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from types import TracebackType
from typing import Any

import numpy as np
from bokeh.models import Button, CustomJS, Div
from tornado.ioloop import IOLoop
from tornado.log import app_log
from tornado.web import HTTPError, RequestHandler

from npzkit import format as npy
from npzkit.conversion.csv_tables import check_is_table, write_table
from npzkit.errors import NpyFormatError, NpzkitError, printable
from npzkit.viewer.archives import ShownArchive, field_dtype, source_of, why_hidden
from npzkit.viewer.shown import Shown, drawn_axes, items_of, parse_link, settled, window_of
from npzkit.viewer.style import browser_file, text_div

_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; sandbox",
    "Content-Type": "text/plain; charset=utf-8",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
"""They keep a browser from running, keeping or telling anything of an answer."""
_PIECE_SIZE = 1 << 22
"""Bytes that are read and sent at a time."""
_NAME_LENGTH = 80


@dataclass(frozen=True)
class Slice:
    """The part of an array that is shown, with all of its values.

    Attributes
    ----------
    source : ArraySource
    items : list
        An integer or a slice without a step for each axis.
    axes : list of int
        Those with slices, in the order in which they are saved.
    """

    source: Any
    items: list[Any]
    axes: list[int]

    @classmethod
    def of(cls, source: Any, shown: Shown) -> Slice:
        """Return what a settled view shows of an array; all of it if it has no values."""
        if 0 in source.shape:
            axes = list(range(len(source.shape)))
            return cls(source, [slice(None)] * len(axes), axes)
        items = items_of(shown, len(source.shape))
        windows = {shown.down: shown.rows, shown.across: shown.columns}
        drawn = drawn_axes(shown)
        for axis in drawn:
            items[axis] = slice(*window_of(windows[axis], source.shape[axis]))
        sliced = [axis for axis, item in enumerate(items) if isinstance(item, slice)]
        axes = [axis for axis in drawn if axis in sliced]
        return cls(source, items, axes + [axis for axis in sliced if axis not in axes])

    @property
    def shape(self) -> tuple[int, ...]:
        lengths = (range(self.source.shape[axis])[self.items[axis]] for axis in self.axes)
        return tuple(map(len, lengths))

    def pieces(self) -> Iterator[np.ndarray[Any, Any]]:
        """Yield the values, cut along the first of the axes."""
        shape, sliced = self.shape, sorted(self.axes)
        if not shape:
            yield np.asarray(self.source[tuple(self.items)])
            return
        order = [sliced.index(axis) for axis in self.axes]
        row_size = max(math.prod(shape[1:]) * self.source.dtype.itemsize, 1)
        step = max(_PIECE_SIZE // row_size, 1)
        items = list(self.items)
        first = range(self.source.shape[self.axes[0]])[self.items[self.axes[0]]]
        for start in range(first.start, first.stop, step):
            items[self.axes[0]] = slice(start, min(start + step, first.stop))
            yield np.asarray(self.source[tuple(items)]).transpose(order)

    def npy_size(self) -> int:
        """Return the bytes of the .npy file."""
        return len(self._header()) + math.prod(self.shape) * int(self.source.dtype.itemsize)

    def _header(self) -> bytes:
        descr, stream = npy.dtype_to_descr(self.source.dtype), io.BytesIO()
        fields = {"descr": descr, "fortran_order": False, "shape": self.shape}
        is_usual = repr(fields).isascii() and len(repr(fields)) < 60_000
        write = npy.write_array_header_1_0 if is_usual else npy.write_array_header_3_0
        write(stream, fields)
        return stream.getvalue()

    def npy(self) -> Iterator[bytes]:
        """Yield the bytes of an .npy file."""
        yield self._header()
        for piece in self.pieces():
            yield piece.tobytes()

    def csv(self) -> Iterator[bytes]:
        """Yield the lines of a CSV file: one per row, with the names of fields in front."""
        head = b""
        for piece in self.pieces():
            yield _lines(piece).removeprefix(head)
            head = _lines(piece[:0]) if piece.ndim else b""


def _lines(piece: np.ndarray[Any, Any]) -> bytes:
    """Return a part of a table as text, the names of its fields first."""
    lines = io.BytesIO()
    try:
        write_table(piece, lines, ",", lambda size: None)
    except (SystemError, UnicodeEncodeError) as error:
        raise NpyFormatError(
            "the text is not valid Unicode", remedy="Save the slice as .npy."
        ) from error
    return lines.getvalue()


class Answer(RequestHandler):
    """The base of all answers: by default plain text, in which nothing runs.

    Errors contain keys from archives. Addresses contain the token, and so they are
    not logged.
    """

    def set_default_headers(self) -> None:
        # tornado calls this for its own answers to errors, too.
        for name, value in _HEADERS.items():
            self.set_header(name, value)

    def log_exception(
        self, typ: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None
    ) -> None:
        if typ is not None and value is not None and not isinstance(value, HTTPError):
            app_log.error("npzkit view could not answer", exc_info=(typ, value, tb))

    def write_error(self, status_code: int, **options: object) -> None:
        self.finish(f"{status_code}: {self._reason}\n")


class SaveHandler(Answer):
    """Answers with a file of what a link shows."""

    def initialize(self, archives: Sequence[ShownArchive]) -> None:
        self._archives = archives
        self._is_gone = False

    def on_connection_close(self) -> None:
        self._is_gone = True

    async def get(self, name: str) -> None:
        suffix = name.rpartition(".")[2]
        if name not in {"slice.npy", "slice.csv"}:
            raise HTTPError(404)
        try:
            found, shown = await self._in_thread(self._slice)
            if suffix == "csv":
                if shown.view == "histogram":
                    raise ValueError("this view has no rows and columns")
                check_is_table(found.shape, found.source.dtype, str(shown.key))
            size = await self._in_thread(found.npy_size)
        except (LookupError, ValueError, NpzkitError) as error:
            self.set_status(400)
            self.finish(f"{error}\n")
            return
        safe = re.sub(r"[^A-Za-z0-9._-]+", "_", str(shown.key))[-_NAME_LENGTH:].strip("._")
        self.set_header("Content-Disposition", f'attachment; filename="{safe or "array"}.{suffix}"')
        kind = "text/csv; charset=utf-8" if suffix == "csv" else "application/octet-stream"
        self.set_header("Content-Type", kind)
        if suffix == "npy":
            # A browser notices a download that ends early.
            self.set_header("Content-Length", str(size))
        pieces = found.npy() if suffix == "npy" else found.csv()
        try:
            while (piece := await self._in_thread(lambda: next(pieces, None))) is not None:
                self.write(piece)
                await self.flush()
        except (NpzkitError, OSError):
            # The browser sees that the download is not complete.
            self.detach().close()

    async def _in_thread(self, call: Any) -> Any:
        return await IOLoop.current().run_in_executor(None, call)

    def _slice(self) -> tuple[Slice, Shown]:
        shown = parse_link(self.request.query)
        if shown.key is None or shown.archive >= len(self._archives):
            raise ValueError("the link names no array")
        info = self._archives[shown.archive].info(shown.key)
        why = why_hidden(info)
        if why is not None:
            raise ValueError(why)
        shown = settled(shown, *field_dtype(info, shown.field))
        source = source_of(self._archives, shown, self._check_wanted)
        return Slice.of(source, shown), shown

    def _check_wanted(self) -> None:
        """Raise an error if the browser has closed the connection."""
        if self._is_gone:
            raise ConnectionAbortedError("the browser ended the download")


# -- the buttons ----------------------------------------------------------------


def caption_of(archives: Sequence[ShownArchive], shown: Shown) -> str:
    """Return what a picture shows: the file, the key, and the part as in Python.

    Examples
    --------
    >>> caption_of([], Shown(key="noise", view="image", at=(3, 0, 0), down=1, across=2))
    'noise[3, :, :]'
    """
    names = [(shown.archive, shown.key), (shown.other_archive, shown.other_key)]
    found = [
        f"{f'{archives[number].label}: ' if archives else ''}{key}"
        for number, key in names if key is not None
    ]  # fmt: skip
    field = "" if shown.field is None else f"[{shown.field!r}]"
    is_part = bool(drawn_axes(shown))
    windows = {shown.down: shown.rows, shown.across: shown.columns} if is_part else {}
    places = [
        ":".join(map(str, windows.get(axis) or ("", ""))) if isinstance(item, slice) else str(item)
        for axis, item in enumerate(items_of(shown, len(shown.at)))
    ]
    part = f"{field}[{', '.join(places)}]" if places else field
    return printable(" | ".join(f"{name}{part}" for name in found))


class SaveButtons:
    """The buttons of one page.

    Parameters
    ----------
    archives : sequence of ShownArchive

    Attributes
    ----------
    widgets : list of bokeh.models.Widget
    """

    def __init__(self, archives: Sequence[ShownArchive]) -> None:
        self._archives = archives
        self._files = text_div("files", sizing_mode="inherit")
        self._name = Div(visible=False, tags=["npzkit.png", ""])
        self._png = Button(label="Save PNG", name="png", width=86)
        self._png.js_on_click(CustomJS(args={"name": self._name}, code=browser_file("save_png.js")))
        self.widgets = [self._png, self._files]

    def show(self, shown: Shown, link: str) -> None:
        """Let the buttons save what is shown."""
        is_figure = shown.view not in {None, "table", "counts"}
        self._png.disabled = not is_figure
        key = "".join(sign if sign.isalnum() else "_" for sign in str(shown.key))[-60:]
        self._name.tags = [f"{key}.png", caption_of(self._archives, shown)]
        has_rows = shown.view in {"image", "line", "table"}
        suffixes = ["npy", "csv"] if has_rows else ["npy"]
        self._files.text = '<span class="soft">slice</span> ' + " ".join(
            f'<a class="save" href="save/slice.{suffix}?{escape(link)}" download>.{suffix}</a>'
            for suffix in ([] if shown.view is None else suffixes)
        )
