"""The tree of keys on a page: a filter, and a table with the rows that are visible.

Owns which folders are open, and that only some hundreds of rows are sent.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

from bokeh.models import (
    ColumnDataSource,
    CustomJS,
    DataTable,
    StringFormatter,
    TableColumn,
    TextInput,
)

from npzkit.display.key_tree import Row
from npzkit.errors import NpzkitError, format_count, format_dtype, format_size, printable
from npzkit.viewer.archives import ShownArchive
from npzkit.viewer.worker import Work, Worker

_ROW_COUNT = 400
"""Rows that are sent. The last one brings as many more."""
_OPEN_COUNT = 60
"""Folders are open at first if the tree has no more rows."""

_COLUMNS = ("key", "shape", "dtype", "size", "colour")
_HEADINGS: tuple[tuple[str, str, int, dict[str, Any]], ...] = (
    ("key", "Key", 160, {"text_color": {"field": "colour"}}), ("shape", "Shape", 98, {}),
    ("dtype", "Type", 62, {}), ("size", "Size", 66, {"text_align": "right"}),
)  # fmt: skip
"""Field, title and width of each column that is shown, and the look of its cells."""

Item = tuple[int, Row | None]
"""The number of an archive and one of its rows; None for the row of the archive."""


class TreePanel:
    """The widgets of the tree.

    Parameters
    ----------
    archives : sequence of ShownArchive
    choose : callable
        Called with the number of an archive and a key.
    worker : Worker
        Reads shapes and dtypes.

    Attributes
    ----------
    filter, table : bokeh.models.Widget
    draw_again : bokeh.models.CustomJS
        Called by the page when it is ready: it shows cells that were filled before.
    """

    def __init__(
        self, archives: Sequence[ShownArchive], choose: Callable[[int, str], object], worker: Worker
    ) -> None:
        self._archives, self._choose, self._worker = archives, choose, worker
        self._opened = [archive.tree.folders(_OPEN_COUNT) for archive in archives]
        self._closed: set[int] = set()
        self._items: list[Item] = []
        self._chosen: tuple[int, str] | None = None
        self._count = _ROW_COUNT
        self._marked: list[int] = []
        self.filter = TextInput(
            placeholder=f"Filter {sum(len(a.tree.keys) for a in archives):,} keys",
            name="filter", sizing_mode="stretch_width",
        )  # fmt: skip
        self.filter.on_change("value_input", self._filtered)
        self._source = ColumnDataSource({name: [] for name in _COLUMNS})
        self._source.selected.on_change("indices", self._clicked)
        columns = [
            TableColumn(field=name, title=title, width=width, sortable=False,
                        formatter=StringFormatter(**look))
            for name, title, width, look in _HEADINGS
        ]  # fmt: skip
        self.table = DataTable(
            source=self._source, name="tree", sizing_mode="stretch_both", columns=columns,
            index_position=None, selectable=True, reorderable=False, row_height=24,
            header_row=True, autosize_mode="none",
        )  # fmt: skip
        # The table itself draws again only when there are more rows, or fewer.
        self.draw_again = CustomJS(
            args={"table": self.table},
            code="Bokeh.index.find_one_by_id(table.id)?.grid?.invalidate()",
        )
        self._source.js_on_change("patching", self.draw_again)
        self.show()

    # -- what the user does -------------------------------------------------

    def _filtered(self, name: str, old: Any, new: Any) -> None:
        self._count = _ROW_COUNT
        self.show()

    def _clicked(self, name: str, old: Any, new: list[int]) -> None:
        if not new or new == self._marked or new[0] >= len(self._items) + 1:
            return
        if new[0] == len(self._items):
            self._count += _ROW_COUNT
            self.show()
            return
        number, row = self._items[new[0]]
        if row is None:
            self._closed ^= {number}
            self.show()
        elif row.folder is not None:
            self._opened[number] ^= {row.folder}
            self.show()
        elif row.key is not None:
            self._choose(number, row.key)

    # -- what is shown ------------------------------------------------------

    def reveal(self, number: int, key: str) -> None:
        """Show which array was chosen, and open its folders."""
        self._chosen = number, key
        tree = self._archives[number].tree
        parents = tree.parents(key)
        if not parents <= self._opened[number] and not self.filter.value_input:
            self._opened[number] |= parents
            self._closed.discard(number)
        self.show()

    def show(self) -> None:
        """Send the rows that are visible."""
        self._items, self._hidden_count = self._visible()
        self._send()
        self._describe()

    def _visible(self) -> tuple[list[Item], int]:
        """Return the rows to send, and how many there are besides."""
        items: list[Item] = []
        total = 0
        words = self.filter.value_input or ""
        for number, archive in enumerate(self._archives):
            room = max(self._count - len(items), 0)
            if len(self._archives) > 1:
                items.append((number, None))
                if number in self._closed:
                    continue
            if words.strip():
                keys, count = archive.tree.matching(words, room)
                found = [Row(printable(key), 0, key=key) for key in keys]
            else:
                found = archive.tree.rows(self._opened[number], room)
                count = archive.tree.row_count(self._opened[number])
            items += [(number, row) for row in found]
            total += count - len(found)
        return items, total

    def _send(self) -> None:
        columns = list(zip(*map(self._cells, self._items), strict=True)) or [()] * 5
        data = dict(zip(_COLUMNS, map(list, columns), strict=True))
        last = ""
        if self._hidden_count:
            last = f"… {self._hidden_count:,} more"
        elif not any(row for _, row in self._items) and not self._closed:
            last = "No key matches" if self.filter.value_input else "No keys"
        if last:
            colour = "var(--accent)" if self._hidden_count else "var(--soft)"
            for name, text in zip(_COLUMNS, (last, "", "", "", colour), strict=True):
                data[name].append(text)
        self._marked = [
            place for place, (number, row) in enumerate(self._items)
            if row is not None and (number, row.key) == self._chosen
        ]  # fmt: skip
        if len(data["key"]) == len(self._source.data["key"]):
            if data != self._source.data:
                whole = slice(len(data["key"]))
                self._source.patch({name: [(whole, data[name])] for name in _COLUMNS})
        else:
            # A row that is chosen while its place is gone would come back as a click.
            self._source.selected.indices = []
            self._source.data = data
        self._source.selected.indices = self._marked

    def _cells(self, item: Item) -> tuple[str, str, str, str, str]:
        number, row = item
        if row is None:
            sign = "▸" if number in self._closed else "▾"
            return f"{sign} {self._archives[number].label}", "", "", "", "var(--soft)"
        indent = "\u2003" * (row.depth + (len(self._archives) > 1))
        if row.folder is not None:
            sign = "▾" if row.is_open else "▸"
            count = format_count(row.key_count, "key")
            mark, colour = self._mark(number, row.folder)
            return f"{indent}{sign} {mark}{row.label}", count, "", "", colour
        key = str(row.key)
        mark, colour = self._mark(number, key)
        info = self._archives[number].known.get(key)
        label = f"{indent}{mark}{row.label}"
        if info is None:
            return label, "", "", "", colour
        shape = "" if info.shape is None else " x ".join(map(str, info.shape)) or "scalar"
        names = None if info.dtype is None else info.dtype.names
        dtype = "" if info.dtype is None else format_dtype(info.dtype)
        if names:
            dtype = format_count(len(names), "field")
        return label, shape, dtype, format_size(info.nbytes), colour

    def _mark(self, number: int, name: str) -> tuple[str, str]:
        """Return the sign and the colour of a key or a folder."""
        archive = self._archives[number]
        if name in archive.damaged:
            return "✗ ", "var(--bad)"
        return ("≠ ", "var(--warn)") if name in archive.differing else ("", "var(--ink)")

    # -- shapes and dtypes ----------------------------------------------------

    def _describe(self) -> None:
        """Read what is not known yet of the visible arrays, in the background."""
        wanted = [
            (number, row.key) for number, row in self._items
            if row is not None and row.key and row.key not in self._archives[number].known
        ]  # fmt: skip
        if not wanted:
            self._worker.cancel()
            return

        def read(work: Work) -> None:
            for number, key in wanted:
                work.proceed()
                with contextlib.suppress(NpzkitError, OSError):
                    self._archives[number].info(key)

        self._worker.start(read, lambda found: self._send(), lambda error: None)
