"""Regular expressions: they mean the same on every Python."""

from __future__ import annotations

import re
import tokenize
from pathlib import Path

import npzkit

MODULES = sorted(Path(npzkit.__file__).parent.rglob("*.py"))
POSSESSIVE = re.compile(r"(?<!\\)[+*?}]\+|\(\?>")


def raw_texts(path: Path) -> list[str]:
    """Return the raw strings of a module, in which patterns are written."""
    with tokenize.open(path) as source:
        tokens = list(tokenize.generate_tokens(source.readline))
    fstring = getattr(tokenize, "FSTRING_MIDDLE", None)
    is_raw = re.compile("[bfBF]?[rR]")
    return [
        token.string
        for token in tokens
        if (token.type == tokenize.STRING and is_raw.match(token.string)) or token.type == fstring
    ]


def test_no_pattern_is_possessive():
    """Python 3.11.0 to 3.11.4 match quantifiers such as ++ wrongly where a group backtracks."""
    # Splitting a module into tokens takes long.
    suspected = [path for path in MODULES if POSSESSIVE.search(path.read_text(encoding="utf-8"))]
    assert not [
        (path.name, text)
        for path in suspected
        for text in filter(POSSESSIVE.search, raw_texts(path))
    ]
    assert 'r"[*[]"' in raw_texts(Path(npzkit.__file__).parent / "cli" / "messages.py")
    assert POSSESSIVE.search(r"[a-z]++") and not POSSESSIVE.search(r"a\++")
