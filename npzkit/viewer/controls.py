"""The widgets above what is drawn: views, axes, positions, colours, pages.

Owns which of them are visible, and what a change of one means for what is shown.
Knows no archive.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from bokeh.layouts import column, row
from bokeh.models import Button, RadioButtonGroup, Select, Slider, Spacer, Spinner, Toggle

from npzkit.display.piecewise import is_numeric
from npzkit.errors import printable
from npzkit.viewer.finding import SOUGHT
from npzkit.viewer.shown import (
    PARTS,
    SCALES,
    TABLE_COLUMNS,
    TABLE_ROWS,
    VIEWS,
    Shown,
    Window,
    column_count,
    drawn_axes,
    row_count,
    views_of,
)
from npzkit.viewer.style import PALETTES

_ALL_FIELDS = ""
_FIELD_COUNT = 500
"""Fields that can be chosen: a structured array may have more."""


class Controls:
    """The widgets of one page.

    Parameters
    ----------
    change : callable
        Called with the attributes of `Shown` that the user has changed.
    find : callable
        Called with what is sought, of `npzkit.viewer.finding.SOUGHT`.

    Attributes
    ----------
    bar, axes : bokeh.models.LayoutDOM
    difference : bokeh.models.Button
        To be placed on the page.
    read_all : bokeh.models.Button
        To be shown if a sample was read.
    """

    def __init__(self, change: Callable[..., object], find: Callable[[str], object]) -> None:
        self._change = change
        self._is_setting = False
        self._shape: tuple[int, ...] = ()
        self._views: list[str] = []
        self._view = RadioButtonGroup(labels=[], name="views")
        self._watch(self._view, "active", self._chose_view)
        self._field = self._select("Field", "field", [], lambda text: text or None)
        self._part = self._select("Part", "part", list(PARTS))
        self._down = self._select("Down", "down", [], int)
        self._across = self._select("Across", "across", [], int)
        self._palette = self._select("Colours", "palette", list(PALETTES.items()))
        self._scale = self._select("Range", "scale", list(SCALES.items()))
        self._aspect = Toggle(label="Square", name="aspect")
        self._watch(self._aspect, "active", lambda on: change(aspect="equal" if on else "fill"))
        self._heights = Toggle(label="Log counts", name="heights")
        self._watch(self._heights, "active", lambda on: change(heights="log" if on else "linear"))
        self.read_all = Button(label="Read all values", name="read-all")
        self.read_all.on_click(lambda: change(amount="all"))
        self._row = self._start("From row", "rows", TABLE_ROWS)
        self._column = self._start("From column", "columns", TABLE_COLUMNS)
        self._make_finders(find)
        self._nothing = Spacer(visible=False)
        self.axes = column(self._nothing, name="axes", sizing_mode="stretch_width")
        self._sliders: dict[int, tuple[Slider, Spinner]] = {}
        self.bar = row(
            self._view, self._field, self._part, self._down, self._across, self._palette,
            self._scale, self._aspect, self._heights, self.read_all, self._row, self._column,
            *self._finders.values(),
            name="controls", styles={"flex-wrap": "wrap", "align-items": "end", "gap": "8px"},
        )  # fmt: skip

    def _make_finders(self, find: Callable[[str], object]) -> None:
        self._finders = {
            what: Button(label=f"Go to {label[0].lower()}{label[1:]}", name=f"find-{what}")
            for what, label in SOUGHT.items()
        }  # fmt: skip
        for what, button in self._finders.items():
            button.on_click(partial(find, what))
        self.difference = self._finders.pop("difference")
        self.difference.label = "Compare all values"

    def _watch(self, widget: Any, name: str, act: Callable[[Any], object]) -> None:
        """Call a function with what the user, not `show`, makes of a widget."""

        def note(attribute: str, old: Any, new: Any) -> None:
            if not self._is_setting:
                act(new)

        widget.on_change(name, note)

    def _select(
        self, title: str, name: str, options: list[Any], parse: Callable[[str], Any] = str
    ) -> Select:
        found = Select(title=title, options=options, name=name, width=104)
        self._watch(found, "value", lambda text: self._change(**{name: parse(text)}))
        return found

    def _start(self, title: str, name: str, size: int) -> Spinner:
        """Return a widget for the first row or column of a table's page; its arrows turn it."""
        found = Spinner(title=title, low=0, high=0, step=size, width=110, name=name, value=0)
        self._watch_place(found, found, lambda at: self._change(**{name: (at, at + size)}))
        return found

    def _watch_place(self, widget: Any, limits: Spinner, act: Callable[[int], object]) -> None:
        """Call a function with the place that the user chooses, within the limits of a spinner."""

        def note(new: Any) -> None:
            if isinstance(new, (int, float)) and math.isfinite(new):
                act(min(max(int(new), 0), int(limits.high)))

        self._watch(widget, "value", note)

    def _axis(self, axis: int, length: int) -> tuple[Slider, Spinner]:
        """Return what chooses the position along an axis."""
        last = max(length - 1, 0)
        number = Spinner(low=0, high=last, step=1, width=110, name=f"number{axis}", value=0)
        slider = Slider(
            start=0, end=last or 1, step=1, value=0, title=f"axis {axis} (0 to {last:,})",
            show_value=False, name=f"slider{axis}", disabled=not last,
            sizing_mode="stretch_width",
        )  # fmt: skip
        for widget in (number, slider):
            self._watch_place(widget, number, lambda at: self._change(position=(axis, at)))
        return slider, number

    def _chose_view(self, new: Any) -> None:
        if new in range(len(self._views)):
            # The windows of a table are its pages.
            self._change(view=self._views[new], rows=None, columns=None)

    # -- what is shown ------------------------------------------------------

    def hide(self) -> None:
        """Show no widget: there is nothing to choose."""
        self.bar.visible = self.axes.visible = self.difference.visible = False

    def show(self, shown: Shown, shape: tuple[int, ...], dtype: Any, names: Any) -> None:
        """Set all widgets to a settled view of an array.

        Parameters
        ----------
        shown : Shown
        shape : tuple of int
        dtype : numpy.dtype
            Of the field, if there is one.
        names : tuple of str or None
            The fields of the array.
        """
        self._is_setting = True
        try:
            self.bar.visible = self.axes.visible = True
            self._show_view(shown, shape, dtype, names)
            self._show_axes(shown, shape)
            self._show_pages(self._row, shown, shown.rows, row_count(shape, shown.down))
            columns = column_count(shape, dtype, shown.across)
            self._show_pages(self._column, shown, shown.columns, columns)
        finally:
            self._is_setting = False

    def _show_view(
        self, shown: Shown, shape: tuple[int, ...], dtype: np.dtype[Any], names: Any
    ) -> None:
        views = [view for view in VIEWS if view in views_of(shape, dtype)]
        if views != self._views:
            self._views = views
            self._view.update(active=None, labels=[VIEWS[view] for view in views])
        self._view.update(active=views.index(str(shown.view)), visible=len(views) > 1)
        is_image = shown.view == "image"
        self._field.visible = bool(names)
        if names:
            options = [(name, printable(name)) for name in names[:_FIELD_COUNT]]
            options.insert(0, (_ALL_FIELDS, "all fields"))
            self._field.update(options=options, value=shown.field or _ALL_FIELDS)
        for button in self._finders.values():
            button.visible = shown.view == "histogram"
        self.difference.visible = shown.other_key is not None and is_numeric(dtype)
        has_parts = dtype.kind == "c" and shown.view in {"image", "line"}
        self._part.update(visible=has_parts, value=shown.part)
        is_phase = dtype.kind == "c" and shown.part == "phase"
        has_colours = is_image and dtype.kind != "b" and not is_phase
        self._palette.update(visible=has_colours, value=shown.palette)
        has_scale = has_colours and shown.palette != "labels"
        self._scale.update(visible=has_scale, value=shown.scale)
        is_log = shown.heights == "log"
        self._heights.update(visible=shown.view == "histogram", active=is_log)
        self.read_all.visible &= shown.view == "histogram"
        has_aspect = is_image or shown.view == "picture"
        self._aspect.update(visible=has_aspect, active=shown.aspect == "equal")

    def _show_axes(self, shown: Shown, shape: tuple[int, ...]) -> None:
        count = len(shape) - (shown.view == "picture")
        drawn = drawn_axes(shown)
        options = [(str(axis), f"axis {axis} ({shape[axis]:,})") for axis in range(count)]
        has_choice = count > 2 or (count == 2 and shown.view == "line")
        for select, axis, is_used in (
            (self._down, shown.down, shown.view != "line"),
            (self._across, shown.across, True),
        ):
            value = "" if axis is None else str(axis)
            select.update(
                visible=is_used and has_choice and axis in drawn, options=options, value=value
            )
        wanted = [] if shown.view == "histogram" else [a for a in range(count) if a not in drawn]
        if (self._shape, list(self._sliders)) != (shape, wanted):
            self._shape = shape
            self._sliders = {axis: self._axis(axis, shape[axis]) for axis in wanted}
            rows = [
                row(*widgets, sizing_mode="stretch_width",
                    styles={"align-items": "end", "gap": "8px"})
                for widgets in self._sliders.values()
            ]  # fmt: skip
            self.axes.children = rows or [self._nothing]
        for axis, (slider, number) in self._sliders.items():
            slider.value = number.value = shown.at[axis]

    def _show_pages(self, start: Spinner, shown: Shown, window: Window | None, count: int) -> None:
        """Show where a page of a table begins, if there is more than one."""
        is_long = shown.view == "table" and count > start.step
        start.update(visible=is_long, high=max(count - 1, 0), value=window[0] if window else 0)
