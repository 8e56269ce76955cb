"""The modules of the package, what each imports, and which of them wings may use.

The table of the waist is in CONTRIBUTING.md, and nowhere else.
"""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

import npzkit

ROOT = Path(npzkit.__file__).parent
GUIDE = Path(__file__).parents[2] / "CONTRIBUTING.md"
CORE = {
    "archive", "codecs", "errors", "files", "format", "imported", "limits", "maintenance",
    "members", "reading", "tables", "typing", "writing", "zip",
}  # fmt: skip
"""The rooms of the core. `npzkit.__init__` and `drop_ins` are the front door; others are wings."""
FRONT = {"", "__main__", "drop_ins"}
IMPLEMENTS = {
    "stores": {"files"}, "datasets": {"archive", "members"}, "trees": {"archive", "members"},
    "conversion": {"maintenance"},
}  # fmt: skip
"""A wing that implements the interfaces of a room of the core imports that room; and to convert
from archive to archive is to repack."""
BY_ALL = {"errors", "imported", "limits", "tables", "typing"}
"""What every module imports."""


def module_name(path: Path) -> str:
    """Return a module's name without the package's: "" for the package itself."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


MODULES = {
    module_name(path): path for path in ROOT.rglob("*.py") if ROOT / "guide" not in path.parents
}


def room_of(name: str) -> str:
    return name.split(".")[0]


@functools.cache
def names_imported(path: Path) -> frozenset[tuple[str, str]]:
    """Return each module and name of `from module import name` in a file, inside functions too."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {(alias.name, "") for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found |= {(node.module or "", alias.name) for alias in node.names}
    return frozenset(found)


def imports_of(path: Path) -> set[str]:
    """Return every module that a file imports, inside functions too."""
    found = set()
    for module, name in names_imported(path):
        inner = f"{module}.{name}"
        found.add(inner if inner.removeprefix("npzkit.") in MODULES else module)
    return found


def inner_imports(name: str) -> set[str]:
    """Return the modules of the package that a module of it imports."""
    return {
        module.removeprefix("npzkit").removeprefix(".")
        for module in imports_of(MODULES[name])
        if room_of(module) == "npzkit"
    }


def waist() -> dict[str, str]:
    """Return the modules of the core that wings may import, and what each is for."""
    text = GUIDE.read_text(encoding="utf-8").split("\n## The waist\n")[1].split("\n## ")[0]
    return dict(re.findall(r"^\| `([a-z_.]+)` \| (.+) \|$", text, re.MULTILINE))


def reached(room: str) -> set[str]:
    """Return the modules of the core of which a wing imports what is neither public nor the waist's."""
    allowed, public = waist().keys() | npzkit._MODULES, {*npzkit.__all__, *npzkit._HOMES}
    found = set()
    for path in (path for name, path in MODULES.items() if room_of(name) == room):
        for module, name in names_imported(path):
            inner = f"{module}.{name}".removeprefix("npzkit.")
            target = inner if inner in MODULES else module.removeprefix("npzkit.")
            if room_of(target) in CORE - BY_ALL - IMPLEMENTS.get(room, set()) and not (
                target in allowed or name in public
            ):
                found.add(target)
    return found
