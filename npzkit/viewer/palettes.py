"""The colours of images, and of marks in them.

Owns their names, and which are for phases and labels. Knows no figure.
"""

from __future__ import annotations

from bokeh.palettes import (
    Category20_20,
    Cividis256,
    Greys256,
    Inferno256,
    Magma256,
    RdBu11,
    Turbo256,
    Viridis256,
    interp_palette,
)

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
    known = {
        "magma": Magma256, "inferno": Inferno256, "cividis": Cividis256, "turbo": Turbo256,
        "greys": tuple(reversed(Greys256)) if Greys256[0] == "#ffffff" else Greys256,
        "diverging": interp_palette(RdBu11, 256), "labels": Category20_20,
    }  # fmt: skip
    return list(known.get(name, Viridis256))
