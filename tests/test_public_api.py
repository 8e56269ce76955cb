"""What is public is listed in public_api.txt: a change of a name changes that file.

Reads the source, not the modules: so no engine must be installed, and each Python sees the same.
``python tests/test_public_api.py`` writes the file.
"""

from __future__ import annotations

import ast
import difflib
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import click
import npzkit
from npzkit.cli import commands

LIST = Path(__file__).with_name("public_api.txt")
MODULES = ["npzkit", *sorted(f"npzkit.{name}" for name in npzkit._MODULES)]


@functools.cache
def names_of(module: str) -> dict[str, ast.AST]:
    """Return what each name of a module is: a definition, an import, or a value."""
    place = Path(npzkit.__file__).parent.joinpath(*module.split(".")[1:])
    path = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
    # What is imported on first use, checkers of types learn from a stub.
    path = stub if (stub := path.with_suffix(".pyi")).exists() else path
    found: dict[str, ast.AST] = {}
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        match node:
            case ast.ImportFrom(module=other, names=[ast.alias("*")]):
                found |= names_of(other)
            case ast.ImportFrom(names=names):
                found |= {alias.asname or alias.name: node for alias in names}
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                found.setdefault(name, node)
            case ast.Assign(targets=[ast.Name(name)]) | ast.AnnAssign(target=ast.Name(name)):
                found.setdefault(name, node.value)
    return found


def public(module: str) -> list[str]:
    """Return the names in `__all__`, and at the top those of what is only returned."""
    returned = npzkit._HOMES if module == "npzkit" else {}
    return sorted({*ast.literal_eval(names_of(module)["__all__"]), *returned})


def definition(module: str, name: str) -> tuple[str, ast.AST | None]:
    """Return the module that defines a name, and the definition, if it is npzkit's."""
    node = names_of(module).get(name)
    if not isinstance(node, ast.ImportFrom):
        return module, node
    if not node.module.startswith("npzkit") or f"{node.module}.{name}" in MODULES:
        return node.module, None
    return definition(node.module, name)


def parameters(function: ast.FunctionDef) -> str:
    """Return the parameters of a function with their defaults, without types."""
    for argument in ast.walk(function.args):
        if isinstance(argument, ast.arg):
            argument.annotation = None
    return re.sub(r"^(self|cls)(, |$)", "", ast.unparse(function.args))


PUBLIC = {name for module in MODULES for name in public(module)}


def bases(module: str, class_: ast.ClassDef) -> Iterator[tuple[str, str, ast.ClassDef | None]]:
    """Yield the name of each base, its module, and its definition if it is private to npzkit."""
    for base in class_.bases:
        name = ast.unparse(base).split("[")[0]
        home, found = definition(module, name)
        is_private = isinstance(found, ast.ClassDef) and name not in PUBLIC
        yield name, home, found if is_private else None


def members(module: str, class_: ast.ClassDef) -> Iterator[tuple[str, str]]:
    """Yield public methods with their parameters, and attributes; inherited ones first.

    The one without a name makes an object, if the docstring says how users do so.
    """
    for _, home, private in bases(module, class_):
        if private is not None:
            yield from members(home, private)
    for node in class_.body:
        match node:
            case ast.FunctionDef(name="__init__"):
                if "Parameters\n" in (ast.get_docstring(class_) or ""):
                    yield "", f"({parameters(node)})"
                for target in ast.walk(node):
                    match target:
                        case ast.Attribute(ast.Name("self"), name, ast.Store()):
                            yield name, ""
            case ast.FunctionDef(name=name, decorator_list=decorators):
                is_value = re.search("property|setter", " ".join(map(ast.unparse, decorators)))
                yield name, "" if is_value else f"({parameters(node)})"
            case ast.AnnAssign(target=ast.Name(name)):
                yield name, ""


def names(module: str) -> Iterator[str]:
    """Yield a line for each public name of a module, and for each member of a class."""
    for name in public(module):
        home, node = definition(module, name)
        if isinstance(node, ast.FunctionDef):
            yield f"{module}.{name}({parameters(node)})"
        elif isinstance(node, ast.ClassDef):
            shown = ", ".join(base for base, _, private in bases(home, node) if private is None)
            found = dict(members(home, node))
            yield f"{module}.{name}{found.pop('', '')}" + (f": {shown}" if shown else "")
            yield from (f"    {n}{found[n]}" for n in sorted(found) if not n.startswith("_"))
        else:
            yield f"{module}.{name}"


def options(command: click.Command, name: str) -> Iterator[str]:
    """Yield a line for a command, or for each command of a group, with arguments and options."""
    if isinstance(command, click.Group):
        for inner in command.list_commands(None):
            yield from options(command.get_command(None, inner), f"{name} {inner}")
    else:
        words = [" ".join(sorted(p.opts)) for p in command.params]
        yield f"{name}: {', '.join(words)}"


def everything() -> str:
    """Return the lines of all modules and commands."""
    lines = [line for module in MODULES for line in names(module)]
    return "\n".join([*lines, *options(commands.npzkit_command, "npzkit"), ""])


SAME = {
    "allow_pickle": "False", "attrs": "None", "chunk_size": "CHUNK_SIZE", "dtypes": "None",
    "encoding": "'ASCII'", "keys": "None", "level": "None", "limits": "None",
    "lock_timeout": "None", "metadata": "None", "only": "None", "overwrite": "False",
    "pickle_kwargs": "None", "progress": "None", "seekable": "True", "skip": "False",
    "storage_options": "None", "strict": "False", "threads": "None",
}  # fmt: skip
"""The default of each parameter that many calls have."""
OTHERS = {
    ("npzkit.diff", "metadata"): "whether to compare them",
    ("npzkit.load_tree", "strict"): "as torch's load_state_dict",
    ("npzkit.checkpoint.CheckpointStore.load", "strict"): "as torch's load_state_dict",
    ("npzkit.torch.NpzStorageWriter", "overwrite"): "as torch's FileSystemWriter",
    ("npzkit.xarray.to_npz", "encoding"): "as xarray's to_netcdf",
    ("npzkit.savez", "allow_pickle"): "as np.savez", ("npzkit.savez_compressed", "allow_pickle"): "",
    ("npzkit.NpzWriter.add", "chunk_size"): "the writer's", ("npzkit.NpzWriter.add", "seekable"): "",
    ("npzkit.NpzWriter.create", "chunk_size"): "", ("npzkit.NpzWriter.create", "seekable"): "",
}  # fmt: skip
"""What has another meaning, or the default of its model."""
KEYWORDS = {*SAME, "align", "compression", "durable", "verify"} - {
    "attrs",
    "keys",
    "metadata",
    "only",
}
"""What is given by its name alone, but where a model takes it by place."""
MODELS = {"npzkit.NpzFile", "npzkit.load", "npzkit.savez", "npzkit.savez_compressed"}
"""Calls that take what NumPy's do."""


def calls() -> Iterator[tuple[str, ast.arguments]]:
    """Yield the name and the parameters of each public function, class and method."""
    for module in MODULES:
        if module == "npzkit.format":
            continue
        for name in public(module):
            _, node = definition(module, name)
            if isinstance(node, ast.FunctionDef):
                yield f"{module}.{name}", node.args
            for inner in getattr(node, "body", ()) if isinstance(node, ast.ClassDef) else ():
                is_method = isinstance(inner, ast.FunctionDef)
                if (
                    is_method
                    and inner.name == "__init__"
                    and "Parameters" in ast.get_docstring(node)
                ):
                    yield f"{module}.{name}", inner.args
                elif is_method and not inner.name.startswith("_"):
                    yield f"{module}.{name}.{inner.name}", inner.args


def test_what_many_calls_have_is_the_same():
    """A parameter that many calls have is a keyword, with one default, wherever it stands."""
    wrong = []
    for call, args in calls():
        places = [*args.posonlyargs, *args.args]
        defaults = [None] * (len(places) - len(args.defaults)) + args.defaults
        given = [
            *zip(places, defaults, strict=True),
            *zip(args.kwonlyargs, args.kw_defaults, strict=True),
        ]
        for parameter, default in given:
            name = parameter.arg
            if name in SAME and (call, name) not in OTHERS and default is not None:
                found = ast.unparse(default)
                wrong += [f"{call}({name}={found})"] if found != SAME[name] else []
            if name in KEYWORDS and parameter in places and call not in MODELS:
                wrong.append(f"{call}: {name} has a place")
    assert not wrong


def test_the_top_has_what_users_call():
    """18 functions, 6 classes and 7 modules are listed; what they return is not."""
    kinds = [type(getattr(npzkit, name)).__name__ for name in npzkit.__all__]
    assert kinds.count("function") == 18
    assert kinds.count("module") + 3 == 7
    assert len(kinds) == 18 + 6 + 4
    assert not set(npzkit.__all__) & {"ArrayInfo", "ManyFiles", "VerifyReport"}
    assert npzkit.ArrayInfo.__module__ == "npzkit.members.array_info"


def test_a_public_name_changes_only_with_its_list():
    """The modules and commands have the names, parameters and options of public_api.txt."""
    listed = LIST.read_text(encoding="utf-8").splitlines()
    changes = list(difflib.unified_diff(listed, everything().splitlines(), n=0, lineterm=""))
    advice = "if this is meant, run: python tests/test_public_api.py"
    assert not changes, "\n".join([advice, *changes[2:]])


if __name__ == "__main__":
    LIST.write_text(everything(), encoding="utf-8")
