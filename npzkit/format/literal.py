"""The text of an NPY header: Python literals with a small grammar.

Owns the parser. Knows nothing about arrays, dtypes or files. It replaces
``ast.literal_eval``, which can use much memory or crash the interpreter on
hostile text. This parser reads every character once, to a limited depth.

Grammar::

    value  = string | integer | "True" | "False" | tuple | list | dict
    tuple  = "(" [ value { "," value } [ "," ] ] ")"     -- "(1)" is refused
    list   = "[" [ value { "," value } [ "," ] ] "]"
    dict   = "{" [ string ":" value { "," string ":" value } [ "," ] ] "}"
    integer = ["-"] digits ["L"]                         -- "L": Python 2 only
    string = ["u"] a quoted Python string on one line, with Python's escapes

Source: the NPY format description in `numpy.lib.format`, "Format Version 1.0".
"""

from __future__ import annotations

import re
from typing import Any

from npzkit.errors import DAMAGED, NpyFormatError
from npzkit.limits import MAX_DESCR_DEPTH

MAX_DIGITS = 20
"""Digits of 2**64. This limits ``int()``, whose time is quadratic in the digits."""

_TOKEN = r"""[ \t\n\r]*(?:
        (?P<mark>[](){}[:,])
      | [uU]?(?P<string>'[^'\\\n\r\0]*(?:\\.[^'\\\n\r\0]*)*'
                       |"[^"\\\n\r\0]*(?:\\.[^"\\\n\r\0]*)*")
      | (?P<integer>-?(?:0|[1-9][0-9]*))(?P<long>L?)(?![0-9A-Za-z_.])
      | (?P<word>True|False)(?![0-9A-Za-z_])
      | (?P<end>\Z)
    )"""
_ESCAPE = r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([0-7]{1,3})|(.))"
_PLAIN_ESCAPES = {
    "\\": "\\", "'": "'", '"': '"', "n": "\n", "r": "\r", "t": "\t",
    "a": "\a", "b": "\b", "f": "\f", "v": "\v",
}  # fmt: skip
_CLOSING = {"(": ")", "[": "]", "{": "}"}


def parse_literal(text: str, *, python2: bool = False) -> tuple[Any, bool]:
    """Parse `text`, which must be exactly one literal.

    Parameters
    ----------
    text : str
        The decoded header, including padding and newline.
    python2 : bool, default False
        Accept integers with the suffix ``L`` of Python 2.

    Returns
    -------
    value : object
        Made of dict, list, tuple, str, int and bool.
    had_long : bool
        Whether an integer had an ``L``.

    Raises
    ------
    NpyFormatError
        The text does not follow the grammar. The message has the position.

    Examples
    --------
    >>> parse_literal("{'shape': (3, 4), 'fortran_order': False}")
    ({'shape': (3, 4), 'fortran_order': False}, False)
    """
    parser = _Parser(text, python2)
    parser.advance()
    value = parser.value(0)
    if parser.kind != "end":
        raise parser.unexpected("the end of the header")
    return value, parser.had_long


class _Parser:
    """A parser with one token of lookahead."""

    def __init__(self, text: str, python2: bool) -> None:
        self.text = text
        self.python2 = python2
        self.had_long = False
        # Compiled on first use, to keep the import of npzkit fast; re caches it.
        self.match_token = re.compile(_TOKEN, re.VERBOSE).match
        self.kind = ""
        self.token = ""
        self.start = 0
        self.position = 0

    def advance(self) -> None:
        match = self.match_token(self.text, self.position)
        self.start = self.position
        if match is None:
            raise self.unexpected("a literal")
        self.kind = match.lastgroup or ""
        if self.kind == "long":
            self.kind = "integer"
            if match["long"]:
                self.had_long = True
                if not self.python2:
                    raise self.unexpected("an integer without Python 2's 'L'")
        self.token = match[self.kind]
        self.position = match.end()

    def unexpected(self, expected: str) -> NpyFormatError:
        return NpyFormatError(
            f"Cannot parse header: its text is not a valid literal at character {self.start}",
            found=self.text[self.start : self.start + 40].strip() or "the end of the header",
            expected=expected,
            remedy=DAMAGED,
        )

    def value(self, depth: int) -> Any:
        kind, token = self.kind, self.token
        if kind == "string":
            result: Any = self.string(token)
        elif kind == "integer":
            if len(token) > MAX_DIGITS:
                raise self.unexpected(f"an integer of at most {MAX_DIGITS} digits")
            result = int(token)
        elif kind == "word":
            result = token == "True"
        elif token in _CLOSING:
            if depth == MAX_DESCR_DEPTH:
                raise self.unexpected(f"at most {MAX_DESCR_DEPTH} nested brackets")
            self.advance()
            return self.mapping(depth) if token == "{" else self.sequence(token, depth)
        else:
            raise self.unexpected("a value")
        self.advance()
        return result

    def sequence(self, opening: str, depth: int) -> Any:
        closing = _CLOSING[opening]
        items = []
        while self.token != closing or self.kind != "mark":
            items.append(self.value(depth + 1))
            if self.token == "," and self.kind == "mark":
                self.advance()
            elif opening == "(" and len(items) == 1:
                raise self.unexpected("',' (a tuple of one value ends with a comma)")
            elif self.token != closing or self.kind != "mark":
                raise self.unexpected(f"',' or {closing!r}")
        self.advance()
        return tuple(items) if opening == "(" else items

    def mapping(self, depth: int) -> dict[str, Any]:
        items: dict[str, Any] = {}
        while self.token != "}" or self.kind != "mark":
            if self.kind != "string":
                raise self.unexpected("a key in quotes")
            key = self.string(self.token)
            if key in items:
                raise self.unexpected("each key once")
            self.advance()
            if self.token != ":" or self.kind != "mark":
                raise self.unexpected("':'")
            self.advance()
            items[key] = self.value(depth + 1)
            if self.token == "," and self.kind == "mark":
                self.advance()
            elif self.token != "}" or self.kind != "mark":
                raise self.unexpected("',' or '}'")
        self.advance()
        return items

    def string(self, token: str) -> str:
        body = token[1:-1]
        return re.sub(_ESCAPE, self.unescape, body) if "\\" in body else body

    def unescape(self, match: re.Match[str]) -> str:
        digits = match[1] or match[2] or match[3]
        if digits or match[4]:
            code = int(digits, 16) if digits else int(match[4], 8)
            if code <= 0x10FFFF:
                return chr(code)
        elif match[5] in _PLAIN_ESCAPES:
            return _PLAIN_ESCAPES[match[5]]
        raise self.unexpected("a known escape sequence")
