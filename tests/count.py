"""Count what there is to know: ``python tests/count.py`` prints a line per room of the package.

Lines of code, of docstrings, of comments; modules; functions of more than 40 lines; and for each
wing the modules of the core that it imports beside public ones and those of the waist.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parent / "support"))

from structure import CORE, FRONT, MODULES, reached, room_of, waist

LONG = 40
_LAYOUT = {
    tokenize.COMMENT, tokenize.DEDENT, tokenize.ENDMARKER, tokenize.INDENT, tokenize.NEWLINE,
    tokenize.NL,
}  # fmt: skip


class Count(NamedTuple):
    """What was counted in some modules."""

    code: int = 0
    docstrings: int = 0
    comments: int = 0
    modules: int = 0
    long_functions: int = 0

    def plus(self, other: Count) -> Count:
        return Count(*map(sum, zip(self, other, strict=True)))


def count_module(path: Path) -> Count:
    """Count the lines of a module; a line with code and a comment is a line of code."""
    source = path.read_text(encoding="utf-8")
    nodes = list(ast.walk(ast.parse(source)))
    strings = {line for node in nodes if _is_docstring(node) for line in _lines(node)}
    code, comments = set(), set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        lines = range(token.start[0], token.end[0] + 1)
        if token.type == tokenize.COMMENT:
            comments.update(lines)
        elif token.type not in _LAYOUT:
            code.update(lines)
    code -= strings
    long = [node for node in nodes if isinstance(node, ast.FunctionDef) and _size(node) > LONG]
    return Count(len(code), len(strings), len(comments - code), 1, len(long))


def _is_docstring(node: ast.AST) -> bool:
    """Whether this is a string that stands alone: a docstring, or one behind an attribute."""
    value = getattr(node, "value", None) if isinstance(node, ast.Expr) else None
    return isinstance(value, ast.Constant) and isinstance(value.value, str)


def _lines(node: ast.AST) -> range:
    return range(node.lineno, node.end_lineno + 1)


def _size(node: ast.FunctionDef) -> int:
    """Return the lines of a function, without its docstring."""
    first = node.body[0]
    return len(_lines(node)) - (len(_lines(first)) if _is_docstring(first) else 0)


def count_rooms() -> dict[str, Count]:
    """Count each room of the package; modules beside the rooms are rooms of their own."""
    found: dict[str, Count] = {}
    for name, path in sorted(MODULES.items()):
        room = room_of(name)
        found[room] = found.get(room, Count()).plus(count_module(path))
    return found


def main() -> None:
    rooms = count_rooms()
    core = everything = Count()
    print(f"{'':14}{'code':>8}{'docs':>8}{'comments':>10}{'modules':>9}{'> 40':>6}  reaches into")
    for room, count in rooms.items():
        everything = everything.plus(count)
        if room in CORE:
            core = core.plus(count)
        inside = sorted(reached(room)) if room not in CORE | FRONT else []
        _print(room or "__init__", count, f"{len(inside):3}  {' '.join(inside)}" if inside else "")
    _print("core", core)
    _print("all", everything)
    print(f"the waist: {len(waist())} modules: {', '.join(waist())}")


def _print(name: str, count: Count, behind: str = "") -> None:
    code, docstrings, comments, modules, long = count
    line = f"{name:14}{code:8,}{docstrings:8,}{comments:10,}{modules:9}{long:6}  {behind}"
    print(line.rstrip())


if __name__ == "__main__":
    main()
