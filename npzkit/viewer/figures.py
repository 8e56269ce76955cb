"""Figures: images, pictures, lines, histograms and tables, and what the mouse points at.

Owns their glyphs, ranges and tools. What they show is read by `npzkit.viewer.drawing`.
No text of an archive is drawn: titles in figures would be parsed as formulas.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from bokeh.events import MouseLeave, MouseMove, RangesUpdate, Reset
from bokeh.models import (
    BasicTicker,
    ColorBar,
    ColumnDataSource,
    CustomJS,
    CustomJSTickFormatter,
    DatetimeTicker,
    DatetimeTickFormatter,
    Div,
    FixedTicker,
    LinearColorMapper,
    NoOverlap,
    Range1d,
)
from bokeh.plotting import figure

from npzkit.display.lines import LineOverview
from npzkit.display.numbers import as_placed, is_date, round_numbers, unit_of
from npzkit.viewer.drawing import HistogramDrawn, PlaneDrawn, TableDrawn
from npzkit.viewer.shown import Shown, drawn_axes
from npzkit.viewer.style import LABEL_COUNT, MARK_COLOUR, browser_file, palette_of, text_div
from npzkit.viewer.texts import NAN_COLOUR, page_html


class Ranges:
    """The ranges that figures beside each other share.

    Parameters
    ----------
    zoomed : callable
        Called with the rows and columns that are in sight, and with None for each
        axis that is in sight completely.
    """

    def __init__(self, zoomed: Callable[..., object], *, is_image: bool) -> None:
        self.x, self.y = Range1d(0, 1), Range1d(1, 0) if is_image else Range1d(0, 1)
        self._zoomed, self._is_image = zoomed, is_image
        self._bounds: tuple[int, int] = (1, 1)

    def watch(self, plot: Any) -> None:
        """Note what a user does with a figure."""
        plot.on_event(RangesUpdate, self._updated)
        plot.on_event(Reset, lambda event: self._zoomed(None, None))

    def _updated(self, event: Any) -> None:
        rows, columns = self._bounds
        down = _window(event.y0, event.y1, rows) if self._is_image else None
        self._zoomed(down, _window(event.x0, event.x1, columns))

    def show(self, lengths: tuple[int, int], shown: Shown, size: tuple[int, int]) -> None:
        """Set the ranges to a view that was chosen, not zoomed to.

        Parameters
        ----------
        lengths : (int, int)
            Of the axes down and across.
        shown : Shown
        size : (int, int)
            Width and height of a figure in pixels.
        """
        self._bounds = lengths
        whole = (0, lengths[0]), (0, lengths[1])
        rows, columns = shown.rows or whole[0], shown.columns or whole[1]
        for (down, across), begin, end in (
            ((rows, columns), "start", "end"),
            # Where the tool Reset goes.
            (whole, "reset_start", "reset_end"),
        ):
            if not self._is_image:
                self.x.update(**{begin: across[0] - 0.5, end: across[1] - 0.5})
                continue
            height, width = _sides(down, across, size if shown.aspect == "equal" else None)
            middle = sum(down) / 2 - 0.5, sum(across) / 2 - 0.5
            self.x.update(**{begin: middle[1] - width / 2, end: middle[1] + width / 2})
            self.y.update(**{begin: middle[0] + height / 2, end: middle[0] - height / 2})


def _sides(
    down: tuple[int, int], across: tuple[int, int], size: tuple[int, int] | None
) -> tuple[float, float]:
    """Return the height and width of what is in sight; with square pixels if `size` is given."""
    height, width = float(down[1] - down[0]), float(across[1] - across[0])
    if size is None:
        return height, width
    scale = max(height / size[1], width / size[0])
    return scale * size[1], scale * size[0]


def _window(start: float | None, end: float | None, length: int) -> tuple[int, int] | None:
    """Return the positions between two ends of an axis; None for all."""
    if start is None or end is None:
        return None
    low, high = sorted((start, end))
    first = min(max(int(np.floor(low + 0.5)), 0), length - 1)
    last = min(max(int(np.ceil(high + 0.5)), first + 1), length)
    return None if last - first == length else (first, last)


def _figure(x_range: Any, y_range: Any, tools: str, active: str, scale: str = "linear") -> Any:
    found = figure(
        x_range=x_range, y_range=y_range, y_axis_type=scale, tools=tools, active_scroll=active,
        sizing_mode="stretch_both", min_height=90, min_width=120,
        output_backend="canvas", lod_threshold=None,
    )  # fmt: skip
    for axis, length, room in (
        (found.xaxis[0], "inner_width", 80), (found.yaxis[0], "inner_height", 30)
    ):  # fmt: skip
        # As many labels as have room.
        count = f"Math.max(3, Math.min(8, cb_obj.{length} / {room} | 0))"
        code = f"axis.ticker.desired_num_ticks = {count}"
        found.js_on_change(length, CustomJS(args={"axis": axis}, code=code))
        axis.major_label_policy = NoOverlap()
    found.xaxis.formatter = found.yaxis.formatter = _formatter()
    return found


def _formatter(below: float | None = None, above: float | None = None) -> CustomJSTickFormatter:
    """Return how numbers are written: at two ends with the signs for less and for more."""
    return CustomJSTickFormatter(
        args={"below": below, "above": above}, code=browser_file("ticks.js")
    )


def _label(axis: Any, dtype: np.dtype[Any]) -> None:
    """Have an axis, or a bar of colours, show dates or numbers."""
    if is_date(dtype):
        axis.ticker = DatetimeTicker()
        axis.formatter = DatetimeTickFormatter(
            years="%Y", months="%Y-%m", days="%Y-%m-%d", hours="%m-%d %H:%M", hourmin="%m-%d %H:%M"
        )
    elif isinstance(axis.ticker, DatetimeTicker):
        axis.ticker, axis.formatter = BasicTicker(), _formatter()


def _watch_mouse(plot: Any, source: Any, out: Div, name: str) -> Div:
    """Have a script show the value under the mouse; return where it finds what to know."""
    facts = Div(visible=False, tags=[{}])
    code = browser_file(name).replace("TEXT_OF_VALUE", browser_file("text_of_value.js"))
    found = CustomJS(args={"source": source, "facts": facts, "out": out}, code=code)
    plot.js_on_event(MouseMove, found)
    plot.js_on_event(MouseLeave, CustomJS(args={"out": out}, code='out.text = "&nbsp;"'))
    return facts


class ImageFigure:
    """An image of numbers, or a picture in colours.

    Parameters
    ----------
    ranges : Ranges
    out : bokeh.models.Div
        Where the value under the mouse is shown.
    """

    def __init__(self, ranges: Ranges, out: Div, *, is_picture: bool) -> None:
        self.plot = _figure(ranges.x, ranges.y, "pan,wheel_zoom,box_zoom,reset", "wheel_zoom")
        self.plot.grid.visible = False
        ranges.watch(self.plot)
        self._source = ColumnDataSource({"image": [], "x": [], "y": [], "dw": [], "dh": []})
        self._mapper = LinearColorMapper(palette=["#000000"], nan_color=NAN_COLOUR)
        place = {"x": "x", "y": "y", "dw": "dw", "dh": "dh", "source": self._source}
        if is_picture:
            self.plot.image_rgba("image", **place)
        else:
            self.plot.image("image", color_mapper=self._mapper, **place)
            self._bar = ColorBar(color_mapper=self._mapper, padding=4, width=14)
            self.plot.add_layout(self._bar, "right")
        self._marked = ColumnDataSource({"x": [], "y": []})
        self.plot.scatter(
            "x", "y", source=self._marked, marker="square", size=18, line_width=2,
            fill_alpha=0, line_color=MARK_COLOUR,
        )  # fmt: skip
        self._facts = _watch_mouse(self.plot, self._source, out, "over_image.js")

    def show(self, drawn: PlaneDrawn, shown: Shown, dtype: np.dtype[Any]) -> None:
        """Show what was read."""
        rows, columns = drawn.rows, drawn.columns
        place = {
            "x": [columns.start - 0.5], "y": [rows.start - 0.5],
            "dw": [len(columns) * columns.step], "dh": [len(rows) * rows.step],
        }  # fmt: skip
        self._facts.tags = [{
            **_value_facts(dtype, shown),
            "rows": len(rows), "columns": len(columns), "row_step": rows.step,
            "column_step": columns.step, "row_start": rows.start, "column_start": columns.start,
        }]  # fmt: skip
        if drawn.colours is not None:
            self._source.data = {"image": [drawn.colours], "value": [drawn.numbers], **place}
        else:
            self._show_numbers(drawn, shown, dtype, place)

    def mark(self, place: tuple[float, float] | None) -> None:
        """Mark a row and a column."""
        row, column = ([], []) if place is None else ([place[0]], [place[1]])
        self._marked.data = {"x": column, "y": row}

    def _show_numbers(
        self, drawn: PlaneDrawn, shown: Shown, dtype: np.dtype[Any], place: dict[str, Any]
    ) -> None:
        is_phase = dtype.kind == "c" and shown.part == "phase"
        data: dict[str, Any] = {
            "image": [as_placed(drawn.numbers, dtype)], "value": [drawn.numbers], **place
        }  # fmt: skip
        low, high = (float(as_placed(end, dtype)) for end in (drawn.low, drawn.high))
        has_labels = shown.palette == "labels" and dtype.kind in "iu"
        if has_labels:
            labels = np.mod(drawn.numbers, LABEL_COUNT).astype(np.uint8)
            data["image"] = [labels]
            low, high = 0, LABEL_COUNT - 1
        name = "viridis" if shown.palette == "labels" and not has_labels else shown.palette
        palette = palette_of(name, is_bool=dtype.kind == "b", is_phase=is_phase)
        self._mapper.update(palette=palette, low=low, high=high)
        self._bar.visible = not has_labels
        _label(self._bar, dtype)
        if not is_date(dtype):
            below, above = drawn.beyond
            self._bar.ticker = FixedTicker(ticks=[
                *([low] if below else []), *round_numbers(low, high), *([high] if above else [])
            ])  # fmt: skip
            self._bar.formatter = _formatter(low if below else None, high if above else None)
        self._source.data = data


def _value_facts(dtype: np.dtype[Any], shown: Shown) -> dict[str, Any]:
    """Return how the browser writes a value and its index."""
    digits = {2: 4, 4: 8}.get(dtype.itemsize, 17) if dtype.kind == "f" else 17
    # The colours of a picture are its values.
    count = len(shown.at) - (shown.view == "picture")
    return {
        "kind": dtype.kind, "unit": unit_of(dtype) or "", "digits": digits,
        "at": list(shown.at[:count]), "down": shown.down, "across": shown.across,
    }  # fmt: skip


class LineFigure:
    """The values along an axis.

    Parameters
    ----------
    ranges : Ranges
        Only the range across is shared.
    out : bokeh.models.Div
    """

    def __init__(self, ranges: Ranges, out: Div) -> None:
        self._y = Range1d(0, 1)
        tools = "xpan,xwheel_zoom,xbox_zoom,reset"
        self.plot = _figure(ranges.x, self._y, tools, "xwheel_zoom")
        self.plot.xaxis.axis_label = "index"
        ranges.watch(self.plot)
        self._path = ColumnDataSource({"x": [], "y": []})
        self._dots = ColumnDataSource({"x": [], "y": []})
        self._pixels = ColumnDataSource({"left": [], "right": [], "low": [], "high": []})
        self.plot.line("x", "y", source=self._path, line_width=1.5, line_color="#2f80d0")
        self.plot.scatter("x", "y", source=self._dots, size=5, color="#2f80d0")
        self._facts = _watch_mouse(self.plot, self._pixels, out, "over_line.js")

    def show(self, found: LineOverview, shown: Shown, dtype: np.dtype[Any]) -> None:
        """Show what was read: each pixel from its least to its largest value."""
        left, right = found.edges[:-1].astype(float), found.edges[1:].astype(float) - 1
        middle = (left + right) / 2
        if found.has_values:
            x, y = middle, found.low
        else:
            x, y = np.repeat(middle, 2), np.stack([found.low, found.high], 1).reshape(-1)
        shown_y = as_placed(np.where(np.isfinite(y), y, np.nan), dtype)
        self._path.data = {"x": x, "y": shown_y}
        is_few = found.has_values and len(x) <= 200
        self._dots.data = {"x": x if is_few else [], "y": shown_y if is_few else []}
        # Between two pixels, the mouse is over the nearer one.
        self._pixels.data = {
            "left": left - 0.5, "right": right + 0.5, "low": found.low, "high": found.high
        }  # fmt: skip
        self._facts.tags = [_value_facts(dtype, shown)]
        _label(self.plot.yaxis[0], dtype)
        finite = shown_y[np.isfinite(shown_y)]
        low, high = (finite.min(), finite.max()) if len(finite) else (0.0, 1.0)
        margin = (high - low) * 0.05 or max(abs(high) * 0.05, 0.5)
        self._y.update(start=low - margin, end=high + margin)


class HistogramFigure:
    """How many values are in each bin."""

    def __init__(self, *, is_log: bool) -> None:
        self._x, self._y = Range1d(0, 1), Range1d(0, 1)
        # A logarithm of none would be infinite.
        self._least = 0.5 if is_log else 0.0
        self.plot = _figure(self._x, self._y, "reset", "auto", "log" if is_log else "linear")
        self._source = ColumnDataSource({"left": [], "right": [], "top": []})
        self.plot.quad(
            left="left", right="right", top="top", bottom=self._least, source=self._source,
            fill_color="#2f80d0", line_color="#2f80d0", fill_alpha=0.7,
        )  # fmt: skip

    def show(self, drawn: HistogramDrawn, shown: Shown, dtype: np.dtype[Any]) -> None:
        """Show what was counted."""
        histogram = drawn.overview.statistics.histogram
        self.plot.yaxis.axis_label = "values" if drawn.is_complete else "values of the sample"
        if histogram is None:
            self._source.data = {"left": [], "right": [], "top": []}
            return
        edges, dtype = histogram.edges, histogram.edges.dtype
        if dtype.kind in "mM":
            edges = edges.view(np.int64)
        edges = as_placed(edges.astype(float), dtype)
        _label(self.plot.xaxis[0], dtype)
        tops = np.maximum(histogram.counts, self._least)
        self._source.data = {"left": edges[:-1], "right": edges[1:], "top": tops}
        margin = (edges[-1] - edges[0]) * 0.02 or 1.0
        self._x.update(start=edges[0] - margin, end=edges[-1] + margin)
        room = 1.05 if self._least == 0 else 2.0
        self._y.update(start=self._least, end=float(tops.max()) * room or 1.0)


class TableFigure:
    """A page of values."""

    def __init__(self) -> None:
        look: dict[str, Any] = {"sizing_mode": "stretch_both", "styles": {"overflow": "auto"}}
        self.plot = text_div("values", **look)

    def show(self, drawn: TableDrawn, shown: Shown, dtype: np.dtype[Any]) -> None:
        """Show what was read."""
        are_texts, has_rows = dtype.kind not in "biufcmM", bool(drawn_axes(shown))
        self.plot.text = page_html(drawn, are_texts=are_texts, has_rows=has_rows)


def figure_of(drawn: Any, shown: Shown, ranges: Any, out: Div) -> Any:
    """Return an empty figure for what was read."""
    if isinstance(drawn, TableDrawn):
        return TableFigure()
    if isinstance(drawn, HistogramDrawn):
        return HistogramFigure(is_log=shown.heights == "log")
    if isinstance(drawn, LineOverview):
        return LineFigure(ranges, out)
    return ImageFigure(ranges, out, is_picture=drawn.colours is not None)
