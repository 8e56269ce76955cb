"""Where figures and tables are placed: one, or several beside each other that are linked.

Owns which figures exist, and the ranges that they share.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from html import escape
from typing import Any, Literal

import numpy as np
from bokeh.layouts import column, gridplot, row
from bokeh.models import Div, Spacer

from npzkit.errors import printable
from npzkit.viewer.drawing import HistogramDrawn, Pane, PlaneDrawn, largest_place
from npzkit.viewer.figures import Ranges, figure_of
from npzkit.viewer.shown import Shown, column_count, row_count
from npzkit.viewer.style import text_div
from npzkit.viewer.texts import notes_html, statistics_html

Reason = Literal["choice", "zoom", "size"]
"""Why something is read: it was chosen, or the same is shown in more or less detail, or in
figures of another size."""

_USUAL_SIZE = 900, 600
"""Width and height of a figure in pixels, before the browser has told them."""
_NEAR = 0.2
"""The change of a size for which nothing is read again."""
_SLIGHT = 0.05
"""The change of a size for which the view stays: the labels of an axis become longer or shorter
when a user zooms, and the figure with them."""
_AROUND = 90, 50
"""Pixels beside and above an image that its axes, its colours and its title take."""
_FACTS = 170
"""The height of statistics."""
_MOST = 2000
"""The most pixels that are read for, along an axis."""


def _column_count(count: int, width: float, height: float, area: Sequence[int]) -> int:
    """Return in how many columns some figures of a shape are largest, in an area.

    Examples
    --------
    >>> _column_count(3, 1, 4, (900, 600)), _column_count(3, 3, 2, (900, 600))
    (3, 2)
    """

    def scale(columns: int) -> float:
        rows = -(-count // columns)
        room = area[0] / columns - _AROUND[0], area[1] / rows - _AROUND[1]
        return min(room[0] / width, room[1] / height)

    return max(range(count, 0, -1), key=scale)


def _differ(size: Sequence[int], before: Sequence[int], share: float) -> bool:
    """Return whether width or height have changed by more than a share."""
    pairs = zip(size, before, strict=True)
    return any(abs(length - former) > share * former for length, former in pairs)


class Panes:
    """The figures and tables of one page.

    Parameters
    ----------
    zoomed : callable
        Called with the rows and columns in sight.
    resized : callable
        Called if figures are of another size than what they show was read for.

    Attributes
    ----------
    root : bokeh.models.LayoutDOM
        Its tags are its width and height in pixels, which the browser tells.
    readout, notes : bokeh.models.Div
        The value under the mouse, and what has to be said of the values.
    size : (int, int)
        Width and height of a figure in pixels, as far as they are known.
    """

    def __init__(self, zoomed: Callable[..., object], resized: Callable[[], object]) -> None:
        self._zoomed, self._resized = zoomed, resized
        self._nothing = Spacer(visible=False)
        self._statistics = text_div("statistics", width=250, styles={"flex": "none"})
        self.root = row(self._nothing, name="panes", sizing_mode="stretch_both", tags=[900, 600])
        self.root.on_change("tags", self._moved)
        self.readout = text_div(
            "readout", "&nbsp;", styles={"font-variant-numeric": "tabular-nums"}
        )
        self.notes = text_div("notes")
        self._kind: tuple[Any, ...] = ()
        self._figures: list[Any] = []
        self._texts: list[Div] = []
        self._ranges: Ranges | None = None
        self._drawn: list[Pane] = []
        self._rest: tuple[Any, str | None] = None, None
        self._seen: tuple[Any, ...] = ()
        self._shape: tuple[int, ...] = ()
        self._is_zoom = False
        self._fit: Callable[[], None] | None = None
        self._mark: tuple[int, ...] | None = None
        self._shown: Shown | None = None
        self.size = self._read_for = self._fitted_to = _USUAL_SIZE

    def _sized(self, name: str, old: Any, new: Any) -> None:
        """Note how large the browser has made the figures, and fit the view into them."""
        size = list(self.size)
        size[name == "inner_height"] = min(max(int(new), 50), _MOST)
        if self._shown is None or tuple(size) == self.size:
            return
        self.size = size[0], size[1]
        if self._fit is not None and not self._is_zoom and _differ(size, self._fitted_to, _SLIGHT):
            self._fit()
        self._check_size()

    def _moved(self, name: str, old: Any, new: Any) -> None:
        """Place the panes in another way if that shows more."""
        if self._shown and self._kind != self._kind_of(self._drawn, self._shown):
            self._resized()

    def _kind_of(self, panes: Sequence[Pane], shown: Shown) -> tuple[Any, ...]:
        """Return what is the same as long as the same figures can show something."""
        width, height = 3.0, 2.0
        if shown.view == "line":
            width, height = 4.0, 1.0
        elif shown.view in {"image", "picture"} and shown.aspect == "equal":
            height, width = (self._shape[int(axis or 0)] for axis in (shown.down, shown.across))
        room = self.root.tags[0], self.root.tags[1] - _FACTS * (shown.view == "histogram")
        columns = len(panes)
        if shown.view != "table":
            columns = _column_count(len(panes), width, height, room)
        heights = shown.heights if shown.view == "histogram" else None
        return shown.view, heights, tuple(pane.is_difference for pane in panes), columns

    def _check_size(self) -> None:
        """Have what is shown read again if it was read for figures of quite another size."""
        if _differ(self.size, self._read_for, _NEAR):
            self._read_for = self.size
            self._resized()

    def prepare(self, shape: tuple[int, ...], reason: Reason, mark: tuple[int, ...] | None) -> None:
        """Note what will be shown; the ranges change when its values are there."""
        self._shape = shape
        self._read_for = self.size
        if reason == "choice":
            self._mark = mark
        if reason != "size":
            self._is_zoom = reason == "zoom"

    def has_all_of(self, shown: Shown) -> bool:
        """Whether what is drawn has every value of the window, so nothing need be read."""
        drawn = self._drawn[0].drawn if self._drawn else None
        if isinstance(drawn, HistogramDrawn):
            return self._shown is not None and shown == replace(
                self._shown, heights=shown.heights
            )  # fmt: skip
        if not isinstance(drawn, PlaneDrawn):
            return False
        rows, columns = drawn.rows, drawn.columns
        if rows.step != 1 or columns.step != 1 or shown.down is None or shown.across is None:
            return False
        down = shown.rows or (0, self._shape[shown.down])
        across = shown.columns or (0, self._shape[shown.across])
        return (
            rows.start <= down[0] and down[1] <= rows.stop
            and columns.start <= across[0] and across[1] <= columns.stop
        )  # fmt: skip

    def place(self, shown: Shown) -> None:
        """Show what was read before, in other figures if it needs them."""
        if self._kind != self._kind_of(self._drawn, shown):
            self.show(self._drawn, shown, *self._rest)

    def forget(self) -> None:
        """Make new figures for what is shown next."""
        self._kind = ()

    def clear(self) -> None:
        """Show nothing."""
        self.root.children = [self._nothing]
        self.notes.text, self.readout.text = "", "&nbsp;"
        self._kind, self._drawn, self._seen, self._shown = (), [], (), None

    def show(self, panes: Sequence[Pane], shown: Shown, dtype: Any, why: str | None) -> None:
        """Show what was read."""
        kind = self._kind_of(panes, shown)
        is_new = kind != self._kind
        places = self._make(panes, shown) if is_new else []
        self._kind, self._shown = kind, shown
        self._drawn, self._rest = list(panes), (dtype, why)
        self._set_ranges(shown, dtype)
        for figure, heading, pane in zip(self._figures, self._texts, panes, strict=True):
            title = escape(printable(pane.title))
            heading.text = f'<b class="name" title="{title}">{title}</b>'
            if pane.is_difference and shown.view != "picture":
                figure.show(pane.drawn, replace(shown, palette="diverging"), np.dtype(np.float64))
            else:
                figure.show(pane.drawn, shown, dtype)
            if isinstance(pane.drawn, PlaneDrawn):
                figure.mark(self._marked_place(pane, shown))
        if is_new:
            is_alone, is_histogram = len(panes) < 2, shown.view == "histogram"
            self._statistics.visible = is_histogram
            self._statistics.sizing_mode = "fixed" if is_alone else "stretch_width"
            self.root.styles = {"gap": "8px", "flex-direction": "row" if is_alone else "column"}
            # Figures are sent with what they show. Those of one view share a toolbar.
            grid = gridplot(
                [figure.plot for figure in self._figures], ncols=kind[-1],
                sizing_mode="stretch_both", toolbar_location="above" if self._ranges else None,
                toolbar_options={"logo": None},
            )  # fmt: skip
            grid.spacing = 8
            grid.children = [
                (place, *at) for place, (_, *at) in zip(places, grid.children, strict=True)
            ]
            self.root.children = [self._statistics, grid]
        if shown.view == "histogram":
            self._statistics.text = statistics_html(panes)
        self.notes.text = notes_html(panes, why)
        self._check_size()

    def _set_ranges(self, shown: Shown, dtype: Any) -> None:
        """Show the window, unless the user has zoomed to it."""
        ranges = self._ranges
        if ranges is None:
            self._fit = None
            return
        lengths = row_count(self._shape, shown.down), column_count(self._shape, dtype, shown.across)

        def fit() -> None:
            self._fitted_to = self.size
            ranges.show(lengths, shown, self._fitted_to)

        self._fit = fit
        seen = (
            shown.archive, shown.key, shown.view, shown.down, shown.across, shown.rows,
            shown.columns, shown.aspect,
        )  # fmt: skip
        if not self._seen or (seen != self._seen and not self._is_zoom):
            fit()
        self._seen = seen

    def _make(self, panes: Sequence[Pane], shown: Shown) -> list[Any]:
        """Make the figures or tables for a view, and return what is to be placed."""
        is_image = shown.view in {"image", "picture"}
        has_ranges = is_image or shown.view == "line"
        self._ranges = Ranges(self._zoomed, is_image=is_image) if has_ranges else None
        self._figures, self._texts = [], []
        places = []
        for pane in panes:
            heading = text_div("heading", visible=len(panes) > 1, styles={"overflow": "hidden"})
            figure = figure_of(pane.drawn, shown, self._ranges, self.readout)
            if has_ranges:
                figure.plot.on_change("inner_width", self._sized)
                figure.plot.on_change("inner_height", self._sized)
            self._figures.append(figure)
            self._texts.append(heading)
            places.append(
                column(heading, figure.plot, sizing_mode="stretch_both", styles={"min-width": "0"})
            )
        self._seen = ()
        self.readout.text = "&nbsp;"
        return places

    def _marked_place(self, pane: Pane, shown: Shown) -> tuple[float, float] | None:
        """Return the row and the column to be marked: what was searched, or differs most."""
        if self._mark is not None and shown.down is not None and shown.across is not None:
            return self._mark[shown.down], self._mark[shown.across]
        return largest_place(pane.drawn) if pane.is_difference else None
