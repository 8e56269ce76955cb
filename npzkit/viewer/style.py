"""How a page looks: its template, its colours by day and by night, and its widgets' style.

Owns the colours of figures and images, and where the files are that a browser gets: they contain no
text of an archive. No file is loaded from another server.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Any

from bokeh.models import Div, InlineStyleSheet
from bokeh.palettes import Category20_20, RdBu11, all_palettes, interp_palette
from bokeh.themes import Theme
from jinja2 import Environment

PALETTES = {
    "viridis": "Viridis", "magma": "Magma", "inferno": "Inferno", "cividis": "Cividis",
    "greys": "Greys", "turbo": "Turbo", "diverging": "Diverging", "cyclic": "Cyclic",
    "labels": "Labels",
}  # fmt: skip
"""The palettes, with their names on the page."""

LABEL_COUNT = 20
"""Labels that differ by this number have the same colour."""

MARK_COLOUR = "#ff3b30"
"""No palette has it."""
_CYCLE = ("#e2d9e2", "#6785be", "#2f1436", "#a24a4a", "#e2d9e2")


@cache
def browser_file(name: str) -> str:
    """Return the text of a file that a browser gets."""
    return (files("npzkit.viewer") / "browser" / name).read_text(encoding="utf-8")


TEMPLATE = Environment(autoescape=True).from_string(browser_file("page.html"))
"""The page around the widgets."""


def widget_style() -> InlineStyleSheet:
    """Return the style of a document's widgets, which all of them share."""
    return InlineStyleSheet(css=browser_file("widgets.css"))


def text_div(name: str, text: str = "", **options: Any) -> Div:
    """Return a widget for HTML, in which nothing is a formula."""
    options = {"sizing_mode": "stretch_width"} | options
    return Div(text=text, name=name, disable_math=True, **options)


def theme(style: InlineStyleSheet, *, is_dark: bool) -> Theme:
    """Return the style of widgets, and the colours of figures by day or by night."""
    ink, soft, line = ("#e6eaf0", "#9aa6b5", "#323c49") if is_dark else (
        "#1c2430", "#5c6776", "#d9dee6"
    )  # fmt: skip
    panel = "#191f27" if is_dark else "#ffffff"
    attrs: dict[str, dict[str, Any]] = {
        "Plot": {
            "background_fill_color": panel, "border_fill_color": panel,
            "outline_line_color": line, "border_line_color": None,
        },
        "LayoutDOM": {"margin": 0},
        "Widget": {"stylesheets": [style]},
        "Grid": {"grid_line_color": line, "grid_line_alpha": 0.6},
        "Axis": {
            "major_label_text_color": soft, "axis_label_text_color": soft,
            "axis_line_color": line, "major_tick_line_color": line,
            "minor_tick_line_color": None, "axis_label_text_font_style": "normal",
            "major_label_text_font_size": "12px", "axis_label_text_font_size": "12px",
        },
        "BaseColorBar": {
            "background_fill_color": panel, "major_label_text_color": soft,
            "major_tick_line_color": line, "bar_line_color": line,
            "major_label_text_font_size": "12px",
        },
        "Title": {"text_color": ink},
    }  # fmt: skip
    return Theme(json={"attrs": attrs})


def palette_of(name: str, *, is_bool: bool, is_phase: bool) -> list[str]:
    """Return the colours of an image, from low to high."""
    if is_bool:
        return ["#2b3443", "#ffd166"]
    if is_phase or name == "cyclic":
        return list(interp_palette(_CYCLE, 256))
    if name == "diverging":
        return list(interp_palette(RdBu11, 256))
    if name == "labels":
        return list(Category20_20)
    return list(all_palettes[PALETTES.get(name, "Viridis")][256])
