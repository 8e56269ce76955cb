"""Mutations of an NPY file: version, length, the literal's tokens, the data.

With some probability what was changed is made to fit again, length of the
header and size of the data, so that a reader gets past its first checks.
"""

from __future__ import annotations

import random
import re
import struct
from typing import NamedTuple

from mutate_bytes import mutate_bytes

__all__ = ["mutate_npy"]

_ITEMSIZES = {
    "'|b1'": 1, "'|u1'": 1, "'<i2'": 2, "'>i4'": 4, "'<i8'": 8, "'<f2'": 2, "'<f4'": 4, "'>f8'": 8,
    "'<c16'": 16, "'<f16'": 16, "'<M8[ns]'": 8, "'<m8[25s]'": 8, "'<U3'": 12, "'|S5'": 5, "'|V3'": 3,
    "'|S0'": 0, "'<U0'": 0, "'|V0'": 0, "'float64'": 8, "'int32'": 4, "'>U2'": 8, "'|V2'": 2,
    "[('a', '<i4'), ('b', '<f8')]": 12, "[('a', '<i4', (2, 3))]": 24, "[('a', '|S3'), ('', '|V5'), ('b', '|u1')]": 9,
    "[(('title', 'a'), '<i2'), ('b', [('c', '|b1'), ('d', '<f4', (2,))])]": 11, "[]": 0, "'<M8'": 8,
    "[('a', '<i4', 2)]": 8, "[('a', '<i4', (1,))]": 4, "[('a', [])]": 0, "[('a', '|V0'), ('b', '|u1')]": 1,
}  # fmt: skip
"""What a descr may be, and the bytes of an item."""
_BAD_DESCRS = (
    "'|O'", "[('a', '|O')]", "('<i4', (3,))", "'<i3'", "'i4,i4'", "'(2,)i4'", "{'names': ['a'], 'formats': ['<i4']}",
    "['<i4']", "[('a',)]", "[('a', '<i4'), ('a', '<i4')]", "'<M8[xs]'", "'|S99999999999'", "None", "3", "True", "''",
    "[('a', '<i4', -1)]", "[('a', '<i4', (2, 0))]", "'T'", "'a5'", "'<f'", "'='", "'|V1000000000000'", "'<U536870912'",
    "[('a', '<i4', (2147483647,))]", "[('a', '<i4', (65536, 65536))]", "('<i4', 2)", "[('\\x00', '<i4')]", "'<M8[s]'",
    "[('a\\u1234', '<i4')]", "'<e'", "'object'", "'str'", "'bytes'", "'void'", "'|W4'", "'<g'", "'p'", "'P'", "'n'",
    "[('a', ('<i4', (2,)))]", "[(('t', 'a'), '<i4'), (('t', 'b'), '<i4')]", "[('f', [('f', [('f', '|u1')])])]", "b'<i4'",
    "'<V8'", "'>S4'", "'<b1'", "'|i4'", "'|u8'", "'=f8'", "'<i08'", "'<i+8'", "' <i4'", "'<i4 '", "'datetime64[s]'", "'M'",
    "'Float64'", "'c'", "'<c'", "'B'", "'?'", "'h'", "'Bytes0'", "'Str0'", "'<U'", "'|S'", "'|V'", "'U'", "'S'",
)  # fmt: skip
_SHAPES = (
    "()", "(0,)", "(1,)", "(3,)", "(2, 3)", "(3, 2)", "(0, 3)", "(3, 0)", "(1, 1)", "(2, 2, 2)", "(7,)", "(1, 5)",
)  # fmt: skip
_BAD_SHAPES = (
    "(-1,)", "(True,)", "(3.0,)", "[3]", "3", "(3)", "(9223372036854775807,)", "(9223372036854775808,)", "(4294967296, 4294967296)",
    "(1" + ",1" * 63 + ")", "(1" + ",1" * 64 + ")", "(2, -3)", "(-2, -3)", "(0, 9223372036854775807)", "('3',)", "(1e3,)", "(0x3,)",
    "(3L,)", "(3l,)", "(03,)", "(1_0,)", "(3,,)", "(,)", "(3 ,)", "(+3,)", "(16777216,)", "(16777217,)", "None", "(None,)", "(2,3",
    "(18446744073709551616,)", "(3 L,)", "(0, 4611686018427387904, 4)", "(0, 0)", "(-0,)", "(1000000,)", "(3,)+()", "(0,-1)",
)  # fmt: skip
_PIECES = (
    "#", "# comment\n", "\\\n", "\n", "\r", "\t", "\f", "\0", " ", "L", "u", "r", "b", "'", '"', "'''", ",", ":", "(", ")", "[", "]",
    "{", "}", "-", "--", "+", "1", "0", "True", "False", "None", "...", "\\x41", "\\N{DIGIT ONE}", "\\u0041", "\\777", "\\q", "\x85",
    "\xa0", "\xff", "é", "set()", "1j", "if", "lambda: 0", "*", "**{}", "'a' 'b'", "; ", "=", "\x1c", "\u2028", "\ufeff",
)  # fmt: skip
_TOKEN = re.compile(r"'[^']*'|[0-9]+|[A-Za-z_]+|[^\sA-Za-z0-9_]|\s+")


class _Parts(NamedTuple):
    version: tuple[int, int]
    text: str
    data: bytes


def _split(npy: bytes) -> _Parts | None:
    if len(npy) < 12 or npy[:6] != b"\x93NUMPY":
        return None
    size = 2 if npy[6] == 1 else 4
    length = int.from_bytes(npy[8 : 8 + size], "little")
    text = npy[8 + size : 8 + size + length]
    encoding = "utf-8" if npy[6] == 3 else "latin1"
    return _Parts((npy[6], npy[7]), text.decode(encoding, "replace"), npy[8 + size + length :])


def _join(parts: _Parts, rng: random.Random, fix: bool) -> bytes:
    text = parts.text.encode("utf-8" if parts.version[0] == 3 else "latin1", "replace")
    size = 2 if parts.version[0] == 1 else 4
    if fix:
        text = text.rstrip(b" \n")
        text += b" " * (-(9 + size + len(text)) % rng.choice((1, 16, 64, 64, 64))) + b"\n"
    length = len(text)
    if not fix and rng.random() < 0.3:
        length = max(length + rng.choice((-64, -2, -1, 1, 2, 64, 10_000, 60_000)), 0)
    field = struct.pack("<H" if size == 2 else "<I", min(length, (1 << 8 * size) - 1))
    return b"\x93NUMPY" + bytes(parts.version) + field + text + parts.data


def _whole(rng: random.Random) -> _Parts:
    """A new array of a random dtype and shape, right or slightly wrong."""
    descr, itemsize = rng.choice(list(_ITEMSIZES.items()))
    shape = rng.choice(_SHAPES)
    count = 1
    for number in re.findall("[0-9]+", shape):
        count *= int(number)
    order = rng.choice(("False", "False", "True"))
    wrong = rng.randrange(12)
    if wrong == 0:
        descr = rng.choice(_BAD_DESCRS)
    elif wrong == 1:
        shape = rng.choice(_BAD_SHAPES)
    elif wrong == 2:
        order = rng.choice(("1", "0", "None", "'True'", "true", "Truee"))
    size = count * itemsize
    if wrong == 3:
        size = max(size + rng.choice((-1, 1, -8, 8)), 0)
    names = ["'descr'", "'fortran_order'", "'shape'"]
    items = [f"{name}: {value}" for name, value in zip(names, (descr, order, shape), strict=True)]
    if wrong == 4:
        rng.shuffle(items)
    elif wrong == 5:
        items.append(rng.choice((items[0], "'more': 1", "3: 4", "'descr': '<i4'")))
    elif wrong == 6:
        items.pop()
    text = "{" + ", ".join(items) + rng.choice((", }", "}")) + "\n"
    version = rng.choice(((1, 0), (1, 0), (1, 0), (2, 0), (3, 0)))
    return _Parts(version, text, rng.randbytes(size))


def _change_text(text: str, rng: random.Random) -> str:
    kind = rng.randrange(9)
    if kind == 0:
        return re.sub(r"(?<='descr': )('[^']*'|\[.*\])", lambda _: rng.choice(_BAD_DESCRS), text)
    if kind == 1:
        return re.sub(r"(?<='shape': )\([^()]*\)", lambda _: rng.choice(_BAD_SHAPES), text)
    if kind == 2:
        return re.sub(
            r"[0-9]+", lambda m: str(_number(int(m[0][:20]), rng)), text, count=rng.randrange(3)
        )
    tokens = _TOKEN.findall(text)
    if not tokens:
        return rng.choice(_PIECES)
    at = rng.randrange(len(tokens))
    if kind == 3:
        tokens[at] = rng.choice(_PIECES)
    elif kind == 4:
        tokens.insert(at, rng.choice(_PIECES))
    elif kind == 5:
        del tokens[at : at + rng.randrange(1, 3)]
    elif kind == 6:
        other = rng.randrange(len(tokens))
        tokens[at], tokens[other] = tokens[other], tokens[at]
    elif kind == 7:
        tokens[at] *= rng.choice((2, 2, 3, 60, 150, 2000))
    else:
        tokens[at] = tokens[at] + rng.choice((" ", "\n", "\t", "L", "\\\n"))
    return "".join(tokens)


def _number(old: int, rng: random.Random) -> int:
    return rng.choice(
        (0, 1, old + 1, max(old - 1, 0), old * 2, 2**31, 2**32, 2**63 - 1, 2**63, 10**19)
    )


def mutate_npy(npy: bytes, rng: random.Random, others: tuple[bytes, ...] = ()) -> bytes:
    """Change one NPY file in one to three places."""
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        kind = rng.randrange(10)
        parts = _split(npy)
        if kind < 2 or parts is None:
            parts = _whole(rng)
            npy = _join(parts, rng, fix=True)
        elif kind == 2:
            npy = mutate_bytes(npy, rng, others)
        elif kind == 3:
            npy = (
                npy[: -rng.randrange(1, 9)]
                if rng.random() < 0.5
                else npy + rng.randbytes(rng.randrange(1, 9))
            )
        elif kind == 4:
            version = rng.choice(
                ((1, 0), (2, 0), (3, 0), (3, 0), (1, 1), (0, 0), (4, 0), (255, 255))
            )
            npy = _join(parts._replace(version=version), rng, fix=True)
        else:
            text = _change_text(parts.text, rng)
            npy = _join(parts._replace(text=text), rng, fix=rng.random() < 0.85)
    return npy
