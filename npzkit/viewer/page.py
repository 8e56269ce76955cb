"""One browser's page: what is shown, and how it follows what the user does.

Owns the order of things: a choice changes `Shown`, the widgets and the link follow, the
values are read in the background, and figures and tables show them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from html import escape
from typing import Any

import numpy as np
from bokeh.layouts import column, row
from bokeh.models import Button, CustomJS, Div, Toggle
from tornado.ioloop import IOLoop

from npzkit.analysis.diff import DiffReport, diff
from npzkit.errors import printable, shown_key
from npzkit.members.array_info import ArrayInfo
from npzkit.viewer.archives import ShownArchive, field_dtype, source_of, why_hidden
from npzkit.viewer.controls import Controls
from npzkit.viewer.drawing import HistogramDrawn, Pane, difference_of, draw
from npzkit.viewer.finding import SOUGHT, Place, find_place, shown_at
from npzkit.viewer.panes import Panes, Reason
from npzkit.viewer.shown import Shown, format_link, settled, shown_of
from npzkit.viewer.style import TEMPLATE, browser_file, text_div, theme, widget_style
from npzkit.viewer.texts import (
    about_html,
    archive_html,
    array_html,
    damaged_html,
    error_html,
    title_html,
)
from npzkit.viewer.tree_panel import TreePanel
from npzkit.viewer.worker import Work, Worker

_WAIT = '<span class="wait">Reading…</span>'
_AND = " &nbsp;·&nbsp; "
"""Between two things that are said."""


class Page:
    """One browser's page.

    Parameters
    ----------
    document : bokeh.document.Document
    archives : sequence of ShownArchive
    first : Shown
        What is shown if the address of the page does not say it.
    """

    def __init__(self, document: Any, archives: Sequence[ShownArchive], first: Shown) -> None:
        self._document, self._archives = document, archives
        self._loop, self._shown = IOLoop.current(), Shown()
        self._info: Any = None
        self._is_over, self._is_asking = False, False
        self._message = ""
        self._workers = [Worker(self._hand_over) for _ in range(3)]
        self._reading, self._searching, self._describing = self._workers
        self._style = widget_style()
        self._tree = TreePanel(archives, self._choose, self._describing)
        self._status = text_div("status")
        self._controls = Controls(self._change, self._find)
        # What is in sight is read again for figures of another size.
        self._panes = Panes(self._zoomed, lambda: self._show(self._shown, "size"))
        self._make_widgets()
        self._place_widgets()
        document.template = TEMPLATE
        document.title = f"{', '.join(archive.label for archive in archives)} - npzkit"
        document.theme = theme(self._style, is_dark=False)
        document.on_session_destroyed(lambda context: self.close())
        self._start(first)

    def _make_widgets(self) -> None:
        """Make what no other module makes."""
        self._title = text_div("title")
        self._array, self._archive = text_div("array"), text_div("archive")
        self._compare = Toggle(label="Compare", name="compare", width=90)
        self._compare.on_change("active", self._toggled_compare)
        self._compare_all = Button(
            label="Compare all keys", name="compare_all", visible=len(self._archives) > 1
        )
        self._compare_all.on_click(self._find_differing)
        self._dark = Toggle(
            label="☾", name="dark", width=36, html_attributes={"title": "Dark or light"}
        )
        self._dark.on_change("active", self._toggled_dark)
        self._dark.js_on_change("active", CustomJS(
            code='document.documentElement.dataset.theme = this.active ? "dark" : "light"'
        ))  # fmt: skip
        self._document.js_on_event("document_ready", CustomJS(
            args={"dark": self._dark, "panes": self._panes.root, "table": self._tree.table},
            code=browser_file("ready.js"),
        ))  # fmt: skip
        self._document.js_on_event("document_ready", self._tree.draw_again)
        self._stop = Button(label="Cancel", name="cancel", width=90, visible=False)
        self._stop.on_click(self._stop_searching)
        # The address holds what is shown: it survives that the page is loaded again.
        self._address = Div(visible=False, name="address", tags=[""])
        self._address.js_on_change("tags", CustomJS(code=(
            'history.replaceState(null, "", "?" + this.tags[0])'
        )))  # fmt: skip

    def _place_widgets(self) -> None:
        comparing = row(
            self._compare, self._controls.difference, name="comparing",
            styles={"gap": "8px", "align-items": "center", "flex-wrap": "wrap"},
        )  # fmt: skip
        foot = column(
            self._panes.readout, self._panes.notes, self._status, self._stop, self._address,
            name="foot", sizing_mode="stretch_width",
        )  # fmt: skip
        details = column(self._array, self._archive, name="details", sizing_mode="stretch_width")
        for root in (
            text_div("about", about_html(self._archives)), self._compare_all, self._dark,
            self._tree.filter, self._tree.table, details, self._title, comparing,
            self._controls.bar, self._controls.axes, self._panes.root, foot,
        ):  # fmt: skip
            self._document.add_root(root)

    # -- threads ------------------------------------------------------------

    def _hand_over(self, call: Callable[[], None]) -> None:
        """Call a function in the page's thread, unless the page is closed."""
        if not self._is_over:
            # Not from another thread: Bokeh may be making the session, and would add it twice.
            self._loop.add_callback(self._document.add_next_tick_callback, call)

    def close(self) -> None:
        """Cancel what is under way."""
        self._is_over = True
        for worker in self._workers:
            worker.close()

    # -- what the user does -------------------------------------------------

    def _start(self, first: Shown) -> None:
        """Show what the address of the page says, or else the first array."""
        context = self._document.session_context
        given = context.request.arguments if context is not None else {}
        shown, message = first, ""
        try:
            texts = {
                name: values[-1].decode("utf-8", "surrogatepass")
                for name, values in given.items() if not name.startswith("bokeh-")
            }  # fmt: skip
            shown = shown_of(texts) if texts else first
        except ValueError as error:
            message = error_html(error)
        if shown.key is None:
            shown = self._first_array()
        if max(shown.archive, shown.other_archive) >= len(self._archives):
            shown = replace(shown, archive=0, other_key=None)
        self._show(shown, message=message)

    def _first_array(self) -> Shown:
        keys = (archive.tree.keys for archive in self._archives)
        first = (Shown(archive=number, key=found[0]) for number, found in enumerate(keys) if found)
        return next(first, Shown())

    def _choose(self, number: int, key: str) -> None:
        """Show an array that was clicked; with Compare, beside the one that is shown."""
        if self._compare.active and self._shown.key is not None:
            self._compare_with(number, key)
        else:
            self._show(replace(self._kept(), archive=number, key=key))

    def _kept(self) -> Shown:
        """Return what stays when another array is shown."""
        names = "palette", "scale", "part", "heights"
        return Shown(**{name: getattr(self._shown, name) for name in names})

    def _compare_with(self, number: int, key: str) -> None:
        """Compare a key that was clicked: in both archives, if the same key of both is shown."""
        shown, archives, other = self._shown, self._archives, self._shown.other_archive
        is_pair = shown.key == shown.other_key and shown.archive != other
        if not is_pair or number != shown.archive:
            self._show(replace(shown, other_archive=number, other_key=key))
        elif key in archives[other].npz:
            self._show(
                replace(self._kept(), archive=number, key=key, other_archive=other, other_key=key)
            )
        else:
            message = escape(
                f"Only {printable(archives[number].label)} has the key {shown_key(key)}. "
                "Click a key of the other archive to compare it with."
            )
            self._show(replace(self._kept(), archive=number, key=key), message=message)

    def _toggled_compare(self, name: str, old: Any, new: bool) -> None:
        is_compared = self._shown.other_key is not None
        if self._shown.key is None or (new and is_compared):
            return
        if not new:
            self._show(replace(self._shown, other_key=None))
            return
        key = self._shown.key
        others = [
            number for number, archive in enumerate(self._archives)
            if number != self._shown.archive and key in archive.npz
        ]  # fmt: skip
        if others:
            self._show(replace(self._shown, other_archive=others[0], other_key=key))
        else:
            only = "Only this archive has this key. " if len(self._archives) > 1 else ""
            self._say(f"{only}Click the key to compare with, on the left.")

    def _toggled_dark(self, name: str, old: Any, new: bool) -> None:
        self._document.theme = theme(self._style, is_dark=new)
        # Figures that change their colours keep some pixels of the old ones.
        self._panes.forget()
        self._show(self._shown, "size")

    def _change(self, position: tuple[int, int] | None = None, **changes: Any) -> None:
        """Show something else of the same array."""
        shown = self._shown
        if position is not None:
            axis, place = position
            changes["at"] = (*shown.at[:axis], place, *shown.at[axis + 1 :])
            if changes["at"] == shown.at:
                return
        if {"field", "down", "across"} & changes.keys():
            changes |= {"rows": None, "columns": None}
        if "field" in changes:
            changes |= {"view": None, "down": None, "across": None}
        if "down" in changes and changes["down"] == shown.across:
            changes["across"] = shown.down
        if "across" in changes and changes["across"] == shown.down:
            changes["down"] = shown.across
        self._show(replace(shown, **changes), "size" if "heights" in changes else "choice")

    def _zoomed(self, rows: Any, columns: Any) -> None:
        """Read what is in sight again, if it can be seen in more detail now."""
        if (rows, columns) != (self._shown.rows, self._shown.columns):
            self._show(replace(self._shown, rows=rows, columns=columns), "zoom")

    def _find(self, what: str) -> None:
        """Search the complete array, and show where it has what is sought."""
        shown, (shape, dtype) = self._shown, field_dtype(self._info, self._shown.field)
        name = SOUGHT[what]

        def find(work: Work, proceed: Callable[[float], None]) -> Place | str | None:
            sought_in = difference_of if what == "difference" else source_of
            source = sought_in(self._archives, shown, work.proceed)
            return source if isinstance(source, str) else find_place(source, what, proceed)

        def take(found: Place | str | None) -> None:
            if not isinstance(found, Place):
                nothing = f"There is no {'NaN' if what == 'nan' else name.lower()}."
                if what == "difference":
                    nothing = "The arrays are equal: all values were compared."
                self._say(escape(printable(found or nothing)))
                return
            where = ", ".join(map(str, found.position))
            value = "" if what == "nan" else f" {escape(found.text)}"
            self._show(
                shown_at(shown, what, found.position, shape, dtype, self._panes.size),
                mark=found.position,
                message=f"{name}:{value} at ({where})",
            )

        doing = "Comparing" if what == "difference" else "Searching"
        self._search(f"{doing} all values", find, take)

    def _find_differing(self) -> None:
        """Compare all keys of two archives, and mark those that differ in the tree."""
        first, second = self._shown.archive, self._shown.other_archive
        if self._shown.other_key is None or first == second:
            second = int(first == 0)
        pair = [self._archives[number] for number in sorted((first, second))]

        def compare(work: Work, proceed: Callable[[float], None]) -> DiffReport:
            return diff(
                pair[0].npz, pair[1].npz,
                progress=lambda done, total: proceed(done / max(total, 1)),
            )  # fmt: skip

        def take(report: DiffReport) -> None:
            for problem in report.problems:
                pair[problem.archive == "b"].damaged[problem.key] = problem.what
            for archive, own in zip(pair, (report.removed, report.added), strict=True):
                archive.mark([*report.changed, *own])
            self._tree.show()
            found = escape(str(report).rpartition("\n")[2])
            self._say(f"<b>{found}</b>; marked ≠ in the tree" if report else found)

        self._search("Comparing all keys", compare, take)

    def _search(self, doing: str, search: Callable[..., Any], take: Callable[[Any], None]) -> None:
        """Search in the background, with what it is doing on the page, and take the result."""
        self._say_share(doing, 0)
        self._searching.start(
            lambda work: search(work, self._telling(self._searching, work, doing)), take, self._fail
        )

    def _telling(self, worker: Worker, work: Work, doing: str | None) -> Callable[[float], None]:
        """Return what work calls with the share that is done; the page shows it, and of what."""

        def proceed(share: float) -> None:
            work.proceed()
            if doing is not None:
                worker.tell(work, partial(self._say_share, doing, share))

        return proceed

    def _say_share(self, doing: str, share: float) -> None:
        self._say(f'<span class="wait">{doing}: {share:.0%}</span>', can_stop=True)

    def _stop_searching(self) -> None:
        self._searching.cancel()
        if self._shown.amount == "all" and not self._panes.has_all_of(self._shown):
            self._change(amount="sample")
        self._say("The search was cancelled.")

    # -- what is shown ------------------------------------------------------

    def _say(self, message: str | None = None, *, can_stop: bool = False) -> None:
        """Say something of what is shown, and which of its arrays are damaged.

        Parameters
        ----------
        message : str, optional
            HTML. By default what was said before.
        can_stop : bool
            Whether it is about a search, which can be cancelled.
        """
        if message is not None:
            self._message, self._stop.visible = message, can_stop
        said = [self._message] if self._message else []
        self._status.text = _AND.join([*said, *self._damage(self._shown)])

    def _show(
        self,
        shown: Shown,
        reason: Reason = "choice",
        *,
        mark: tuple[int, ...] | None = None,
        message: str = "",
    ) -> None:
        """Show something: now its name, and its values when they are read.

        Parameters
        ----------
        shown : Shown
        reason : {"choice", "zoom", "size"}
            Unless something else was chosen, what was said stays, and a search goes on.
        mark : tuple of int, optional
            A position to be marked.
        message : str
            HTML that is said of it, once it is shown.
        """
        if reason == "choice":
            self._searching.cancel()
            self._message, self._stop.visible = message, False
        elif self._is_asking:
            # Something else was chosen, and will be shown.
            return
        if shown.key is None:
            self._title.text = title_html("This archive has no arrays", None)
            self._archive.text = archive_html(self._archives[0])
            self._controls.hide()
            return
        archive, key = self._archives[shown.archive], shown.key
        if key in archive.known:
            self._show_array(shown, archive.known[key], reason, mark)
            return
        self._status.text, self._is_asking = _WAIT, True
        self._reading.start(
            lambda work: archive.info(key),
            lambda info: self._show_array(shown, info, reason, mark),
            partial(self._fail_at, shown),
        )  # fmt: skip

    def _show_array(
        self, shown: Shown, info: ArrayInfo, reason: Reason, mark: tuple[int, ...] | None
    ) -> None:
        """Show an array whose shape and dtype are known."""
        self._is_asking = False
        # A link may name it with .npy behind.
        shown = replace(shown, key=info.key)
        is_other = (shown.archive, shown.key) != (self._shown.archive, self._shown.key)
        self._info = info
        if is_other or not self._shown.at:
            self._title.text = title_html(info.key, info)
            self._array.text = array_html(info)
            self._archive.text = archive_html(self._archives[shown.archive])
            self._tree.reveal(shown.archive, info.key)
        why = why_hidden(info)
        if why is not None:
            self._fail_at(shown, why)
            return
        names = np.dtype(info.dtype).names
        if shown.field not in (names or ()):
            shown = replace(shown, field=None)
        shape, dtype = field_dtype(info, shown.field)
        shown = settled(shown, shape, dtype)
        self._shown = shown
        self._controls.show(shown, shape, dtype, names)
        self._follow(shown)
        self._panes.prepare(shape, reason, mark)
        if reason != "choice" and self._panes.has_all_of(shown):
            self._panes.place(shown)
        else:
            self._read(shown, dtype)

    def _read(self, shown: Shown, dtype: Any) -> None:
        """Read values in the background, and show them."""
        self._status.text = _WAIT
        size = self._panes.size

        def read(work: Work) -> tuple[list[Pane], str | None]:
            doing = "Reading all values" if shown.amount == "all" else None
            return draw(self._archives, shown, size, self._telling(self._reading, work, doing))

        self._reading.start(read, partial(self._take, shown, dtype), self._fail)

    def _follow(self, shown: Shown) -> None:
        """Let the address and the button follow what is shown."""
        if shown.other_key is not None:
            self._compare.active = True
        self._address.tags = [format_link(shown)]

    def _take(self, shown: Shown, dtype: Any, found: tuple[list[Pane], str | None]) -> None:
        panes, why = found
        if self._damage(shown):
            self._tree.show()
        self._say("" if shown.amount == "all" else None)
        self._panes.show(panes, shown, dtype, why)
        drawn = panes[0].drawn
        self._controls.read_all.visible = (
            isinstance(drawn, HistogramDrawn) and not drawn.is_complete
        )

    def _damage(self, shown: Shown) -> list[str]:
        """Return which of the arrays that are shown are known to be damaged, and why."""
        arrays = dict.fromkeys([(shown.archive, shown.key), (shown.other_archive, shown.other_key)])
        return [
            damaged_html(key, self._archives[number].damaged[key])
            for number, key in arrays
            if key is not None and key in self._archives[number].damaged
        ]

    def _fail(self, error: Exception) -> None:
        self._panes.clear()
        self._say(error_html(error))

    def _fail_at(self, shown: Shown, why: Exception | str) -> None:
        """Show why an array cannot be shown."""
        self._shown, self._is_asking = shown, False
        self._reading.cancel()
        self._controls.hide()
        self._panes.clear()
        self._follow(shown)
        if isinstance(why, Exception):
            self._title.text = title_html(str(shown.key), None)
        self._say(why if isinstance(why, str) else error_html(why))
