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
from npzkit.viewer.palettes import PALETTES
from npzkit.viewer.shown import Shown
from npzkit.viewer.views import (
    PARTS,
    SCALES,
    TABLE_COLUMNS,
    TABLE_ROWS,
    VIEWS,
    column_count,
    drawn_axes,
    row_count,
    views_of,
)

_ALL_FIELDS = ""
_FIELD_COUNT = 500
"""Fields that can be chosen: a structured array may have more."""


class Controls:
    """The widgets of one page.

    Parameters
    ----------
    change : callable
        Called with the attributes of `Shown` that the user has changed.
    play : callable
        Called with an axis, or with None to stop.
    find : callable
        Called with what is sought, of `npzkit.viewer.finding.SOUGHT`.
    style : list of bokeh.models.StyleSheet

    Attributes
    ----------
    bar, axes : bokeh.models.LayoutDOM
        To be placed on the page.
    """

    def __init__(
        self,
        change: Callable[..., object],
        play: Callable[[int | None], object],
        find: Callable[[str], object],
        style: list[Any],
    ) -> None:
        self._change, self._play, self._style = change, play, style
        self._is_setting = False
        self._shape: tuple[int, ...] = ()
        self._views: list[str] = []
        self._play_axis: int | None = None
        self._view = RadioButtonGroup(labels=[], name="views", stylesheets=style)
        self._view.on_change("active", self._chose_view)
        self._field = self._select("Field", "field", [], lambda text: text or None)
        self._part = self._select("Part", "part", list(PARTS))
        self._down = self._select("Down", "down", [], int)
        self._across = self._select("Across", "across", [], int)
        self._palette = self._select("Colours", "palette", list(PALETTES.items()))
        self._scale = self._select("Range", "scale", list(SCALES.items()))
        self._aspect = Toggle(label="Square", stylesheets=style, name="aspect")
        self._aspect.on_change("active", self._chose_aspect)
        self._pages = _Pages(change, style)
        self._finders = [
            Button(label=f"Go to {label[0].lower()}{label[1:]}", name=f"find-{what}",
                   stylesheets=style)
            for what, label in SOUGHT.items()
        ]  # fmt: skip
        for what, button in zip(SOUGHT, self._finders, strict=True):
            button.on_click(partial(find, what))
        self.bar = row(
            self._view, self._field, self._part, self._down, self._across, self._palette,
            self._scale, self._aspect, *self._pages.widgets, *self._finders, name="controls",
            styles={"flex-wrap": "wrap", "align-items": "end", "gap": "8px"},
        )  # fmt: skip
        self._nothing = Spacer(visible=False)
        self.axes = column(self._nothing, name="axes", sizing_mode="stretch_width")
        self._sliders: dict[int, _AxisSlider] = {}

    def _select(
        self, title: str, name: str, options: list[Any], parse: Callable[[str], Any] = str
    ) -> Select:
        found = Select(title=title, options=options, name=name, width=112, stylesheets=self._style)

        def chose(attribute: str, old: Any, new: Any) -> None:
            if not self._is_setting:
                self._change(**{name: parse(new)})

        found.on_change("value", chose)
        return found

    def _chose_view(self, attribute: str, old: Any, new: Any) -> None:
        if not self._is_setting and new in range(len(self._views)):
            # The windows of a table are its pages.
            self._change(view=self._views[new], rows=None, columns=None)

    def _chose_aspect(self, attribute: str, old: Any, new: Any) -> None:
        if not self._is_setting:
            self._change(aspect="equal" if new else "fill")

    # -- what is shown ------------------------------------------------------

    def hide(self) -> None:
        """Show no widget: there is nothing to choose."""
        self.bar.visible = self.axes.visible = False

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
            self._pages.show(
                shown, row_count(shape, shown.down), column_count(shape, dtype, shown.across)
            )
        finally:
            self._is_setting = False

    def _show_view(
        self, shown: Shown, shape: tuple[int, ...], dtype: np.dtype[Any], names: Any
    ) -> None:
        views = [view for view in VIEWS if view in views_of(shape, dtype)]
        if views != self._views:
            self._views = views
            self._view.update(active=None, labels=[VIEWS[view] for view in views])
        self._view.active = views.index(str(shown.view))
        self._view.visible = len(views) > 1
        is_image = shown.view == "image"
        self._field.visible = bool(names)
        if names:
            options = [(name, printable(name)) for name in names[:_FIELD_COUNT]]
            self._field.options = [(_ALL_FIELDS, "all fields"), *options]
            self._field.value = shown.field or _ALL_FIELDS
        for what, button in zip(SOUGHT, self._finders, strict=True):
            button.visible = shown.view == "histogram"
            if what == "difference":
                has_difference = is_numeric(dtype) or dtype.kind in "SUT"
                button.visible = shown.other_key is not None and has_difference
        self._part.visible = dtype.kind == "c" and shown.view in {"image", "line"}
        self._part.value = shown.part
        is_phase = dtype.kind == "c" and shown.part == "phase"
        has_colours = is_image and dtype.kind != "b" and not is_phase
        self._palette.visible = has_colours
        self._palette.value = shown.palette
        self._scale.visible = has_colours and shown.palette != "labels"
        self._scale.value = shown.scale
        self._aspect.visible = is_image or shown.view == "picture"
        self._aspect.active = shown.aspect == "equal"

    def _show_axes(self, shown: Shown, shape: tuple[int, ...]) -> None:
        count = len(shape) - (shown.view == "picture")
        drawn = drawn_axes(shown)
        options = [(str(axis), f"axis {axis} ({shape[axis]:,})") for axis in range(count)]
        has_choice = count > 2 or (count == 2 and shown.view == "line")
        for select, axis, is_used in (
            (self._down, shown.down, shown.view != "line"),
            (self._across, shown.across, True),
        ):
            select.visible = is_used and has_choice and axis in drawn
            select.options = options
            select.value = "" if axis is None else str(axis)
        wanted = [] if shown.view == "histogram" else [a for a in range(count) if a not in drawn]
        if (self._shape, list(self._sliders)) != (shape, wanted):
            self._shape = shape
            self._sliders = {
                axis: _AxisSlider(axis, shape[axis], self._moved, self._toggled, self._style)
                for axis in wanted
            }
            widgets = [slider.widget for slider in self._sliders.values()]
            self.axes.children = widgets or [self._nothing]
        for axis, slider in self._sliders.items():
            slider.set(shown.at[axis], is_playing=axis == self._play_axis)

    def _moved(self, axis: int, position: int) -> None:
        if not self._is_setting:
            self._change(position=(axis, position))

    def _toggled(self, axis: int, is_on: bool) -> None:
        if self._is_setting:
            return
        self._play_axis = axis if is_on else None
        self._play(self._play_axis)

    def stop_playing(self) -> None:
        """Show that nothing is played."""
        self._play_axis = None
        self._is_setting = True
        for slider in self._sliders.values():
            slider.stop()
        self._is_setting = False


class _AxisSlider:
    """The position along an axis: a slider, its number, and a button that plays."""

    def __init__(
        self,
        axis: int,
        length: int,
        moved: Callable[[int, int], object],
        toggled: Callable[[int, bool], object],
        style: list[Any],
    ) -> None:
        last = max(length - 1, 0)
        self._play = Toggle(
            label="▶", width=36, stylesheets=style, name=f"play{axis}", disabled=not last
        )
        self._play.on_change("active", lambda name, old, new: toggled(axis, bool(new)))
        self._number = Spinner(
            low=0, high=last, step=1, width=110, stylesheets=style, name=f"number{axis}", value=0
        )
        self._number.on_change("value", partial(self._set_number, moved, axis, last))
        self._slider = Slider(
            start=0, end=last or 1, step=1, value=0, title=f"axis {axis} (0 to {last:,})",
            show_value=False, stylesheets=style, name=f"slider{axis}", disabled=not last,
            sizing_mode="stretch_width",
        )  # fmt: skip
        self._slider.on_change("value", lambda name, old, new: moved(axis, int(new)))
        self.widget = row(
            self._slider, self._number, self._play, sizing_mode="stretch_width",
            styles={"align-items": "end", "gap": "8px"},
        )  # fmt: skip

    def _set_number(self, moved: Any, axis: int, last: int, name: str, old: Any, new: Any) -> None:
        if isinstance(new, (int, float)) and math.isfinite(new):
            moved(axis, min(max(int(new), 0), last))

    def set(self, position: int, *, is_playing: bool) -> None:
        """Show a position."""
        self._slider.value = self._number.value = position
        self._play.active = is_playing

    def stop(self) -> None:
        self._play.active = False


class _Pages:
    """The buttons that turn the pages of a table."""

    def __init__(self, change: Callable[..., object], style: list[Any]) -> None:
        self._change, self._shown = change, Shown()
        self._lengths: dict[str, int] = {}
        self._is_setting = False
        self._row = Spinner(title="From row", low=0, step=1, width=110, stylesheets=style,
                            name="row", value=0)  # fmt: skip
        self._column = Spinner(title="From column", low=0, step=1, width=110, stylesheets=style,
                               name="column", value=0)  # fmt: skip
        self._up, self._next = self._buttons("▲", "▼", "rows", TABLE_ROWS, style)
        self._left, self._right = self._buttons("◀", "▶", "columns", TABLE_COLUMNS, style)
        self._row.on_change("value", lambda name, old, new: self._go("rows", new))
        self._column.on_change("value", lambda name, old, new: self._go("columns", new))
        self.widgets = [
            self._row, self._up, self._next, self._column, self._left, self._right
        ]  # fmt: skip

    def _buttons(
        self, back: str, on: str, name: str, size: int, style: list[Any]
    ) -> tuple[Button, Button]:
        found = []
        for label, step in ((back, -size), (on, size)):
            button = Button(label=label, width=36, stylesheets=style, name=f"{name}{step:+}")
            button.on_click(partial(self._turn, name, step))
            found.append(button)
        return found[0], found[1]

    def _turn(self, name: str, step: int) -> None:
        window = getattr(self._shown, name)
        self._go(name, (window[0] if window else 0) + step)

    def _go(self, name: str, start: Any) -> None:
        if self._is_setting or not isinstance(start, (int, float)) or not math.isfinite(start):
            return
        size = TABLE_ROWS if name == "rows" else TABLE_COLUMNS
        first = min(max(int(start), 0), max(self._lengths[name] - 1, 0))
        self._change(**{name: (first, first + size)})

    def show(self, shown: Shown, row_count: int, column_count: int) -> None:
        """Show the buttons if there is more than one page."""
        self._shown, self._lengths = shown, {"rows": row_count, "columns": column_count}
        self._is_setting = True
        is_table = shown.view == "table"
        for widget in (self._row, self._up, self._next):
            widget.visible = is_table and row_count > TABLE_ROWS
        for widget in (self._column, self._left, self._right):
            widget.visible = is_table and column_count > TABLE_COLUMNS
        self._row.value = shown.rows[0] if shown.rows else 0
        self._column.value = shown.columns[0] if shown.columns else 0
        self._is_setting = False
