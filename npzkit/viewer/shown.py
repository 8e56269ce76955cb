"""What a page shows, as a value, and the link that holds it.

Owns the names in a link. Whether the array has such axes and positions is
`npzkit.viewer.views`'s.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

Window = tuple[int, int]
"""The first position, and the one after the last."""

_LENGTH = 100_000
"""The most characters of a link: a key has up to 65,535 bytes."""


@dataclass(frozen=True)
class Shown:
    """What a page shows.

    Attributes
    ----------
    archive : int
        The number of the archive, as they were given.
    key : str or None
        None before an array is chosen.
    field : str or None
        A field of a structured array.
    view : str or None
        One of `npzkit.viewer.views.VIEWS`; None for what suits the array.
    at : tuple of int
        A position for each axis. Those of drawn axes are kept for other views.
    down, across : int or None
        The axes that are drawn.
    rows, columns : (int, int) or None
        The window along these axes; None for all of them.
    part : str
        Of complex numbers: magnitude, phase, real or imag.
    palette : str
        The colours of an image.
    scale : str
        Which values the colours range over, as `npzkit.viewer.views.SCALES`.
    aspect : str or None
        ``equal`` for square values, ``fill``; None for what suits the shape.
    other_archive : int
    other_key : str or None
        The array that is compared; None without a comparison.
    """

    archive: int = 0
    key: str | None = None
    field: str | None = None
    view: str | None = None
    at: tuple[int, ...] = ()
    down: int | None = None
    across: int | None = None
    rows: Window | None = None
    columns: Window | None = None
    part: str = "magnitude"
    palette: str = "viridis"
    scale: str = "1-99"
    aspect: str | None = None
    other_archive: int = 0
    other_key: str | None = None


_DEFAULT = Shown()


def format_link(shown: Shown) -> str:
    """Return what is shown as the query of a URL, without what is usual.

    Examples
    --------
    >>> format_link(Shown(key="a/b", at=(3, 0), rows=(5, 9)))
    'key=a%2Fb&at=3%2C0&rows=5%3A9'
    """
    pairs = []
    for field in fields(Shown):
        value = getattr(shown, field.name)
        if value != getattr(_DEFAULT, field.name):
            pairs.append((field.name, _text(field.name, value)))
    return urlencode(pairs, errors="surrogatepass")


def _text(name: str, value: Any) -> str:
    if isinstance(value, tuple):
        return (":" if name in {"rows", "columns"} else ",").join(map(str, value))
    return str(value)


def parse_link(link: str) -> Shown:
    """Return what a link holds: a query, or a complete URL that has one.

    Raises
    ------
    ValueError
        The link is damaged.

    Examples
    --------
    >>> parse_link("http://127.0.0.1:5000/secret/?key=a%2Fb&at=3,0&rows=5:9").at
    (3, 0)
    """
    if len(link) > _LENGTH:
        raise ValueError("the link is too long")
    query = urlsplit(link).query if "://" in link else link.removeprefix("?")
    return shown_of(dict(parse_qsl(query, keep_blank_values=True, errors="surrogatepass")))


def shown_of(given: Mapping[str, str]) -> Shown:
    """Return what the values of a link mean; names that are not known are ignored."""
    found = {}
    for name, text in given.items():
        if name in _PARSERS:
            try:
                found[name] = _PARSERS[name](text)
            except ValueError as error:
                raise ValueError(f"the link is damaged: {name} is {text[:50]!r}") from error
    return Shown(**found)


def _integer(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,18}", text):
        raise ValueError("not a position")
    return int(text)


def _integers(text: str) -> tuple[int, ...]:
    return tuple(map(_integer, text.split(","))) if text else ()


def _window(text: str) -> Window:
    start, stop = map(_integer, text.split(":"))
    return start, stop


def _word(text: str) -> str:
    if not re.fullmatch(r"[a-z0-9-]{1,20}", text):
        raise ValueError("not a word")
    return text


_PARSERS: dict[str, Callable[[str], Any]] = {
    "archive": _integer, "key": str, "field": str, "view": _word, "at": _integers,
    "down": _integer, "across": _integer, "rows": _window, "columns": _window, "part": _word,
    "palette": _word, "scale": _word, "aspect": _word, "other_archive": _integer,
    "other_key": str,
}  # fmt: skip
