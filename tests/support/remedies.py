"""The remedies in the source, and those that tests say they follow.

A test that follows a remedy has the mark ``@pytest.mark.remedy("words of it")``: it meets an
error with these words, does what they say, and then it works. While such a test runs, `Met`
notes each remedy that an error gets; words that no error had make the test fail.
"""

from __future__ import annotations

import ast
import functools
import itertools
import re
import tomllib
from pathlib import Path

from npzkit.errors import NpzkitError
from structure import MODULES

TESTS = Path(__file__).parent.parent
_QUOTED = r"""(?:"(?:[^"\\]|\\.)*"|'[^']*')"""


class _Texts:
    """What expressions of one module say, with an X in the place of what is filled in.

    An `Advice` says it in Python, or as it is said at a prompt.
    """

    def __init__(self, tree: ast.Module) -> None:
        self.at_prompt = False
        self.own: dict[str, ast.expr] = {}
        for node in tree.body:
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                self.own[node.targets[0].id] = node.value
        self.known = self.own
        self.functions: dict[str, list[ast.expr | None]] = {}
        self.given: list[tuple[str, ast.expr]] = []
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                returned = [one for one in ast.walk(node) if isinstance(one, ast.Return)]
                self.functions[node.name] = [one.value for one in returned]
            elif isinstance(node, ast.keyword):
                self.given.append((node.arg or "", node.value))
            elif isinstance(node, ast.Assign):
                names = [getattr(one, "attr", getattr(one, "id", "")) for one in node.targets]
                self.given += [(name.lower(), node.value) for name in names]

    def of(self, node: ast.expr | None) -> list[str]:
        """Return each text that an expression may be."""
        match node:
            case ast.Constant():
                return [node.value] if isinstance(node.value, str) else []
            case ast.JoinedStr():
                return ["".join(text for part in node.values for text in self.of(part)[:1])]
            case ast.FormattedValue():
                return (self.of(node.value)[:1] if isinstance(node.value, ast.Name) else []) or [
                    "X"
                ]
            case ast.BinOp():
                return ["".join(self.of(node.left)[:1] + self.of(node.right)[:1])]
            case ast.Call(func=ast.Name(id="Advice")):
                return self.of(node.args[self.at_prompt])
            case ast.IfExp():
                return self.of(node.body) + self.of(node.orelse)
            case ast.BoolOp():
                return [text for value in node.values for text in self.of(value)]
            case ast.Name():
                return self.of(self.known.get(node.id))
            case ast.Subscript(value=ast.Name()):
                return self.of(self.known.get(node.value.id))
            case ast.Dict():
                return [text for value in node.values for text in self.of(value)]
            case ast.Tuple():
                return [text for value in node.elts for text in self.of(value)]
            case ast.Call(func=ast.Attribute(attr="format")):
                return [re.sub(r"{[^}]*}", "X", text) for text in self.of(node.func.value)]
            case ast.Call(func=ast.Name()) if node.func.id in self.functions:
                return [text for one in self.functions[node.func.id] for text in self.of(one)]
            case ast.Call() if node.args and ast.unparse(node.func) == "printable":
                return self.of(node.args[0])
        return []


def given_as_remedy(*, at_prompt: bool = False) -> dict[str, set[str]]:
    """Return each text that is given as the remedy of an error, with the modules that do."""
    return _given()[_REMEDY, at_prompt]


def given_as_finding() -> dict[str, set[str]]:
    """Return what findings say at a prompt, with the modules that find it."""
    return _given()[_FINDING, True]


_REMEDY, _FINDING = ("remedy", "remedies"), ("what",)
"""The ends of the names to which such texts are given."""


@functools.cache
def _given() -> dict[tuple[tuple[str, ...], bool], dict[str, set[str]]]:
    """Return the texts of each kind, in Python's words and as they are said at a prompt."""
    modules = {
        name: _Texts(ast.parse(path.read_text(encoding="utf-8"))) for name, path in MODULES.items()
    }
    constants = {
        name: value
        for texts in modules.values()
        for name, value in texts.own.items()
        if name[0] != "_"
    }
    found: dict[tuple[tuple[str, ...], bool], dict[str, set[str]]] = {}
    for module, texts in modules.items():
        texts.known = constants | texts.own
        for words, texts.at_prompt in itertools.product((_REMEDY, _FINDING), (False, True)):
            given = found.setdefault((words, texts.at_prompt), {})
            values = [value for name, value in texts.given if name.endswith(words)]
            for text in (text.strip() for value in values for text in texts.of(value)):
                if any(letter.islower() for letter in text):
                    given.setdefault(text, set()).add(module)
    return found


def marked() -> dict[str, str]:
    """Return the words of each mark in the tests, with the file that has it."""
    found = {}
    for path in TESTS.rglob("test_*.py"):
        text = path.read_text(encoding="utf-8")
        for words in re.findall(rf"pytest\.mark\.remedy\(((?:\s*{_QUOTED},?)+)\s*\)", text):
            found.update(dict.fromkeys(ast.literal_eval(f"[{words}]"), path.name))
    return found


def brought_by(extra: str) -> set[str]:
    """Return the names of the packages that an extra of npzkit brings."""
    project = tomllib.loads((TESTS.parent / "pyproject.toml").read_text(encoding="utf-8"))
    wanted = project["project"]["optional-dependencies"][extra]
    return {re.split(r"[^A-Za-z0-9_-]", one)[0] for one in wanted}


class Met:
    """The remedies that errors got while a test runs."""

    def __init__(self, patch):
        self.texts = []
        kept = NpzkitError.__setattr__

        def keep(error, name, value):
            if name == "remedy" and value:
                self.texts.append(value)
            kept(error, name, value)

        patch.setattr(NpzkitError, "__setattr__", keep, raising=False)

    def check(self, words):
        """Raise AssertionError if no error had these words."""
        assert any(words in text for text in self.texts), f"no error said {words!r}: {self.texts}"
