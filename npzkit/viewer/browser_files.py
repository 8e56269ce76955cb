"""The files that a browser gets: the page around the widgets, its CSS, its scripts.

Owns where they are. They contain no text of an archive, and none is put into them.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files


@cache
def browser_file(name: str) -> str:
    """Return the text of a file."""
    return (files("npzkit.viewer") / "browser" / name).read_text(encoding="utf-8")
