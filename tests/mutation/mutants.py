"""Small faults in source code: which there are, and how they are written.

Owns the kinds of faults. Messages, annotations, docstrings and code that runs on import are left
alone: no test has to notice a change there. Knows neither tests nor processes.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple

__all__ = ["Mutant", "find_mutants"]

_SWAPPED = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult,
    ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.LShift: ast.RShift, ast.RShift: ast.LShift,
}  # fmt: skip
_TOLD = {"found", "expected", "remedy", "stacklevel", "strict"}
"""Arguments that only a message shows, or that check what is known."""
_SHOWING = {"__repr__", "__str__", "_repr_html_"}
"""Functions whose results only people read."""


class Mutant(NamedTuple):
    """One fault: a piece of a module's source, and what takes its place.

    Attributes
    ----------
    module : str
        Path of the module in its package.
    line, statement : int
        Lines where the piece and the statement around it begin. A default
        value counts as a part of its function's first statement.
    begin, end : int
        Of the piece, in bytes of the source.
    text : str
        What takes its place.
    before, after : str
        The line without and with the fault, to show it and to find it again.
    """

    module: str
    line: int
    statement: int
    begin: int
    end: int
    text: str
    before: str
    after: str

    @property
    def name(self) -> tuple[str, str, str]:
        """What stays the same if other lines of the module change."""
        return self.module, self.before, self.after

    def apply(self, source: bytes) -> bytes:
        """Return the module's source with the fault."""
        return source[: self.begin] + self.text.encode() + source[self.end :]


def find_mutants(module: str, source: bytes) -> Iterator[Mutant]:
    """Yield every fault of a module that is known here."""
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    for node, text, statement in _faults(ast.parse(source)):
        begin = starts[node.lineno - 1] + node.col_offset
        end = starts[node.end_lineno - 1] + node.end_col_offset
        mutant = Mutant(module, node.lineno, statement, begin, end, text, "", "")
        number = node.lineno - 1
        lines = [code.splitlines()[number].decode() for code in (source, mutant.apply(source))]
        yield mutant._replace(before=lines[0].strip(), after=lines[1].strip())


Fault = tuple[ast.AST, str, int]


def _faults(tree: ast.Module) -> Iterator[Fault]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name not in _SHOWING:
            for default in filter(None, [*node.args.defaults, *node.args.kw_defaults]):
                yield from _of_expression(default, node.body[-1].lineno)
            yield from _of_body(node.body)


def _of_body(body: list[ast.stmt]) -> Iterator[Fault]:
    """Yield the faults of statements, without those of functions defined among them."""
    for statement in body:
        if isinstance(statement, ast.FunctionDef | ast.ClassDef):
            continue
        yield from ((node, text, statement.lineno) for node, text in _of_statement(statement))
        for _, value in ast.iter_fields(statement):
            for part in value if isinstance(value, list) else [value]:
                if isinstance(part, ast.stmt):
                    yield from _of_body([part])
                elif isinstance(part, ast.ExceptHandler):
                    yield from _of_body(part.body)
                elif _is_meant(statement, part):
                    yield from _of_expression(part, statement.lineno)


def _is_meant(statement: ast.stmt, part: object) -> bool:
    """Whether a part of a statement is an expression, and neither a message nor an annotation."""
    if isinstance(statement, ast.AnnAssign):
        return part is statement.value
    return not isinstance(statement, ast.Raise | ast.Assert | ast.Import | ast.ImportFrom) and (
        isinstance(part, ast.expr | ast.withitem)
    )


def _of_statement(node: ast.stmt) -> Iterator[tuple[ast.AST, str]]:
    match node:
        case ast.Expr(ast.Call()) | ast.Raise() | ast.AugAssign() | ast.Delete() | ast.Continue():
            yield node, "pass"
        case ast.Assign([ast.Attribute() | ast.Subscript()]):
            yield node, "pass"
        case ast.Return(ast.expr() as value) if not isinstance(value, ast.Constant):
            yield node, "return None"
        case ast.If():
            yield node.test, "(False)"
            yield node.test, "(True)"


def _of_expression(node: ast.AST | None, statement: int) -> Iterator[Fault]:
    """Yield the faults of an expression and of its parts."""
    if node is None or isinstance(node, ast.JoinedStr | ast.Lambda) or _makes_error(node):
        return
    for piece, text in _of_node(node):
        yield piece, text, statement
    for part in ast.iter_child_nodes(node):
        if not (isinstance(part, ast.keyword) and part.arg in _TOLD):
            yield from _of_expression(part, statement)


def _of_node(node: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    match node:
        case ast.Constant(bool() as value):
            yield node, str(not value)
        case ast.Constant(int() as value):
            yield node, str(value + 1)
            if value:
                yield node, str(value - 1)
        case ast.Compare(left, [operator], rest) if type(operator) in _SWAPPED:
            yield node, _text(ast.Compare(left, [_SWAPPED[type(operator)]()], rest))
        case ast.Compare(left, [first, *others], rest) if type(first) in _SWAPPED:
            yield node, _text(ast.Compare(left, [_SWAPPED[type(first)](), *others], rest))
        case ast.BoolOp(operator, values):
            yield node, _text(ast.BoolOp(_SWAPPED[type(operator)](), values))
            for value in values:
                yield node, _text(ast.BoolOp(operator, [one for one in values if one is not value]))
        case ast.UnaryOp(ast.Not(), value):
            yield node, _text(value)
        case ast.BinOp(left, operator, right) if type(operator) in _SWAPPED:
            yield node, _text(ast.BinOp(left, _SWAPPED[type(operator)](), right))
        case ast.Call(function, [first, second, *others], keywords) if _has_order(node):
            yield node, _text(ast.Call(function, [second, first, *others], keywords))
        case ast.Slice(upper=ast.expr() as upper):
            yield upper, _text(ast.BinOp(upper, ast.Sub(), ast.Constant(1)))


def _has_order(call: ast.Call) -> bool:
    """Whether the first two arguments of a call may not be exchanged."""
    is_any = isinstance(call.func, ast.Name) and call.func.id in ("max", "min")
    return not is_any and ast.dump(call.args[0]) != ast.dump(call.args[1])


def _makes_error(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id.endswith(("Error", "Warning", "warn"))
    )


def _text(node: ast.expr) -> str:
    return f"({ast.unparse(node)})"
