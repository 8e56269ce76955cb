"""How a page looks: its template, its colours by day and by night, and its widgets' style.

Owns all CSS. No file is loaded from another server.
"""

from __future__ import annotations

from typing import Any

from bokeh.models import InlineStyleSheet
from bokeh.themes import Theme
from jinja2 import Environment

__all__ = ["NAN_COLOUR", "MINUS_COLOUR", "PLUS_COLOUR", "TEMPLATE", "theme", "widget_style"]

NAN_COLOUR, PLUS_COLOUR, MINUS_COLOUR = "#ff4fd8", "#ff3b30", "#2f7bff"
"""The colours of values that are not finite. No palette has them."""

TEMPLATE = Environment(autoescape=True).from_string(
    """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<link rel="icon" href="data:,">
<title>{{ title }}</title>
<style>
:root {
  --ground: #f5f6f8; --panel: #ffffff; --ink: #1c2430; --soft: #5c6776; --line: #d9dee6;
  --field: #ffffff; --accent: #1766c2; --on-accent: #ffffff; --chosen: #dbe9fa;
  --hover: #eef3f9; --bad: #b3261e; --good: #1a7f37; --warn: #8a5a00;
}
:root[data-theme="dark"] {
  --ground: #11151b; --panel: #191f27; --ink: #e6eaf0; --soft: #9aa6b5; --line: #323c49;
  --field: #10151b; --accent: #6cb0ff; --on-accent: #0b1420; --chosen: #21405f;
  --hover: #232c37; --bad: #ff8a80; --good: #6fdc8c; --warn: #ffcf70;
}
:root[data-theme="light"] { color-scheme: light; }
:root[data-theme="dark"] { color-scheme: dark; }
html, body { height: 100%; margin: 0; background: var(--ground); color: var(--ink);
  font: 14px/1.45 system-ui, "Segoe UI", Roboto, "Noto Sans", sans-serif; }
.page { display: grid; height: 100vh; box-sizing: border-box; gap: 8px; padding: 8px;
  grid-template: auto minmax(0, 1fr) / minmax(270px, 25%) minmax(0, 1fr); }
header { grid-column: 1 / 3; display: flex; align-items: center; gap: 12px; }
header > .grow { flex: 1; min-width: 0; }
aside, main { display: flex; flex-direction: column; gap: 6px; min-height: 0; min-width: 0;
  background: var(--panel); border: 1px solid var(--line); border-radius: 8px; padding: 8px; }
.tree { flex: 3; min-height: 120px; display: flex; }
.details { flex: 2; min-height: 80px; overflow: auto; border-top: 1px solid var(--line); }
.controls, .axes { display: flex; flex-wrap: wrap; align-items: end; gap: 8px; }
.panes { flex: 1; min-height: 160px; display: flex; overflow: auto; }
@media (max-width: 760px) {
  .page { height: auto; grid-template: auto auto auto / minmax(0, 1fr); }
  header { grid-column: 1; flex-wrap: wrap; }
  .tree { height: 40vh; } .panes { height: 70vh; }
}
</style>
<script>
(() => {
  const root = document.documentElement;
  root.dataset.theme = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
})();
</script>
{{ bokeh_css | safe }}
{{ bokeh_js | safe }}
</head>
<body>
{%- macro place(root) %}<div id="{{ root.elementid }}" data-root-id="{{ root.id }}" style="display: contents"></div>{% endmacro %}
<div class="page">
<header><div class="grow">{{ place(roots.about) }}</div>{{ place(roots.actions) }}</header>
<aside>{{ place(roots.filter) }}<div class="tree">{{ place(roots.tree) }}</div>
<div class="details">{{ place(roots.details) }}</div></aside>
<main>{{ place(roots.title) }}{{ place(roots.controls) }}{{ place(roots.axes) }}
<div class="panes">{{ place(roots.panes) }}</div>{{ place(roots.foot) }}</main>
</div>
{{ plot_script | safe }}
</body>
</html>
"""
)
"""The page around the widgets."""

_WIDGETS = """
:host { font: 13px/1.4 system-ui, "Segoe UI", Roboto, "Noto Sans", sans-serif; color: var(--ink); }
.bk-input, select.bk-input { background-color: var(--field); color: var(--ink);
  border: 1px solid var(--line); border-radius: 6px; min-height: 28px; font-size: 13px; }
.bk-input:focus { border-color: var(--accent); box-shadow: none; outline: 1px solid var(--accent); }
.bk-input::placeholder { color: var(--soft); }
select.bk-input option { background: var(--field); color: var(--ink); }
.bk-input-group > label, .bk-slider-title { color: var(--soft); font-size: 12px; }
.bk-btn { background: var(--field); color: var(--ink); border: 1px solid var(--line);
  border-radius: 6px; font-size: 13px; padding: 3px 10px; min-height: 28px; }
.bk-btn:hover { background: var(--hover); }
.bk-btn.bk-active { background: var(--accent); color: var(--on-accent);
  border-color: var(--accent); }
.bk-btn:focus-visible { outline: 2px solid var(--accent); }
.bk-btn-group .bk-btn { border-radius: 0; }
.bk-btn-group .bk-btn:first-child { border-radius: 6px 0 0 6px; }
.bk-btn-group .bk-btn:last-child { border-radius: 0 6px 6px 0; }
.bk-spin-wrapper .bk-spin-btn { background: var(--field); }
.noUi-target { background: var(--ground) !important; border-color: var(--line) !important; }
.noUi-connect { background: var(--accent) !important; }
.noUi-handle { background: var(--panel) !important; border-color: var(--accent) !important;
  box-shadow: none !important; }
.slickgrid, .slick-viewport, .slick-pane, .grid-canvas { background: var(--panel); }
.slick-header, .slick-header-columns, .slick-header-column.ui-state-default {
  background: var(--panel) !important; color: var(--soft) !important; font-weight: 600;
  border-color: var(--line) !important; }
.slick-row, .slick-row.odd { background: var(--panel) !important; }
.slick-row:hover .slick-cell { background: var(--hover) !important; }
.slick-cell { border: 0 !important; color: var(--ink); font-size: 13px; cursor: pointer; }
.slick-row .slick-cell.selected { background: var(--chosen) !important; }
.slick-cell.active { outline: none; }
a { color: var(--accent); }
.facts { border-collapse: collapse; width: 100%; }
.facts td { padding: 1px 8px 1px 0; vertical-align: top; overflow-wrap: anywhere; }
.facts td:first-child { color: var(--soft); white-space: nowrap; }
h3 { font-size: 12px; margin: 8px 0 2px; color: var(--soft); text-transform: uppercase;
  letter-spacing: .04em; }
.title { font-size: 16px; font-weight: 600; overflow-wrap: anywhere; }
.soft { color: var(--soft); font-weight: 400; }
.bad { color: var(--bad); } .good { color: var(--good); } .warn { color: var(--warn); }
.values { border-collapse: collapse; font: 13px/1.5 ui-monospace, "DejaVu Sans Mono", monospace; }
.values th { position: sticky; top: 0; background: var(--panel); color: var(--soft);
  font-weight: 400; }
.values th, .values td { padding: 1px 10px; text-align: right; white-space: pre;
  border-bottom: 1px solid var(--line); }
.values th:first-child { left: 0; position: sticky; background: var(--panel); }
.values td.text { text-align: left; }
.swatch { display: inline-block; width: .8em; height: .8em; border-radius: 2px; margin-right: 4px; }
.wait { animation: appear .2s .25s both; color: var(--soft); }
@keyframes appear { from { opacity: 0 } to { opacity: 1 } }
code { font: 12px ui-monospace, "DejaVu Sans Mono", monospace; overflow-wrap: anywhere; }
progress { width: 140px; accent-color: var(--accent); vertical-align: middle; }
"""


def widget_style() -> InlineStyleSheet:
    """Return the style of a document's widgets, which all of them share."""
    return InlineStyleSheet(css=_WIDGETS)


def theme(*, is_dark: bool) -> Theme:
    """Return the colours of figures by day or by night."""
    ink, soft, line = ("#e6eaf0", "#9aa6b5", "#323c49") if is_dark else (
        "#1c2430", "#5c6776", "#d9dee6"
    )  # fmt: skip
    panel = "#191f27" if is_dark else "#ffffff"
    attrs: dict[str, dict[str, Any]] = {
        "Plot": {
            "background_fill_color": panel, "border_fill_color": panel,
            "outline_line_color": line,
        },
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
