"""The colours of images, and of marks in them.

Owns their names, and which are for phases and labels. Knows no figure.
"""

from __future__ import annotations

from bokeh.palettes import Category20_20, RdBu11, all_palettes, interp_palette

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
