"""The rooms: imports point down, without a circle, and each module says what it owns."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import os
import subprocess
import sys
from collections import Counter

import npzkit
import pytest
from structure import CORE, FRONT, MODULES, ROOT, imports_of, inner_imports, reached, room_of, waist

ROOMS = [
    {"errors", "imported", "limits", "typing"},
    {"tables"},
    {"codecs"},
    {"files"},
    {"zip", "format"},
    {"members"},
    {"reading", "writing"},
    {"display"},
    {"maintenance"},
    {"archive"},
    {"stores", "trees"},
    {"datasets"},
    {"drop_ins", "jax"},
    {"analysis", "conversion"},
    {"checkpoint", "torch", "viewer", "xarray"},
    {"dask"},
    {""},
    {"cli"},
    {"__main__"},
]
"""From the bottom up: a room imports from rooms below, never from one beside it."""

KNOWS_NOT = {
    "zip": {"numpy"},
    "format": {"zipfile"},
    "files": {"numpy"},
    "stores": {"numpy"},
    "codecs": {"numpy"},
    "reading.indexing": {"npzkit.zip", "npzkit.format", "npzkit.files"},
}
"""What a room, or a module, must do without."""

EXEMPT = {
    "zip.array_index", "zip.entry_columns", "zip.header_columns", "zip.last_commit",
    "zip.chunks", "zip.written_header",
    "codecs.checksum", "codecs.encoders",
}  # fmt: skip
"""Modules that handle records by the thousand, or data by the megabyte, with numpy."""

THIRD_PARTIES = {
    "cli": {"click", "rich"},
    "conversion.hdf5": {"h5py"},
    "conversion.matlab": {"scipy"},
    "conversion.safetensors_file": {"safetensors"},
    "conversion.torch_file": {"torch"},
    "conversion.zarr_store": {"zarr", "numcodecs"},
    "dask": {"dask"},
    "jax": {"jax"},
    "stores.connections": {"socks", "urllib3"},
    "stores.fsspec_store": {"fsspec"},
    "torch": {"torch"},
    "viewer": {"bokeh", "jinja2", "tornado"},
    "xarray": {"dask", "xarray"},
}
"""Which room, or module, imports which package that is optional, or needed for URLs only."""


def test_every_module_is_in_a_room():
    """A new module, or room, must be given its place."""
    assert set().union(*ROOMS) == {room_of(name) for name in MODULES}


def test_imports_point_down():
    """No room imports from a room above it, or beside it."""
    level = {room: index for index, rooms in enumerate(ROOMS) for room in rooms}
    for name in MODULES:
        for target in inner_imports(name):
            room, other = room_of(name), room_of(target)
            assert room == other or level[other] < level[room], f"{name or 'npzkit'}: {target}"


def test_there_is_no_circle():
    """Following imports never leads back, within a room neither."""
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, " -> ".join((*path, name))
        if name not in done:
            for target in inner_imports(name):
                visit(target, (*path, name))
            done.add(name)

    for name in MODULES:
        visit(name, ())


@pytest.mark.slow
def test_names_occur_once():
    """No two files of the package have a name, and no two classes: where to look is clear."""
    files = Counter(path.stem for path in MODULES.values() if path.stem != "__init__")
    classes = Counter(
        node.name
        for path in MODULES.values()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef)
    )
    repeated = {name for name, count in (files + classes).items() if count > 1}
    # The command diff is the function diff.
    assert repeated == {"diff"}


def test_wings_use_the_waist():
    """A wing imports public names and the modules of the waist, and no others of the core."""
    wings = {room_of(name) for name in MODULES} - CORE - FRONT
    assert len(waist()) <= 14
    assert {wing: reached(wing) for wing in wings if reached(wing)} == {}


def test_what_a_room_must_not_know():
    """The zip layer knows numpy in some modules alone, the NPY layer no zip, files neither."""
    for name in MODULES.keys() - EXEMPT:
        forbidden = KNOWS_NOT.get(room_of(name), set()) | KNOWS_NOT.get(name, set())
        for module in imports_of(MODULES[name]):
            for unknown in forbidden:
                assert not (module == unknown or module.startswith(unknown + ".")), (name, module)


def test_public_names_are_those_that_checkers_see():
    """Each public name is what its import for type checkers says."""
    tree = ast.parse(MODULES[""].read_text(encoding="utf-8"))
    seen = {
        alias.name: node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module.startswith("npzkit")
        for alias in node.names
    }
    assert set(npzkit.__all__) <= set(seen) == {*npzkit._MODULES, *npzkit._HOMES}
    assert set(npzkit.__all__) <= set(dir(npzkit))
    # Engines may not be installed.
    for name in set(seen) - (npzkit._MODULES - set(npzkit.__all__)):
        module = seen[name]
        inner = f"npzkit.{name}" if module == "npzkit" else module
        home = importlib.import_module(inner)
        assert getattr(npzkit, name) is (home if module == "npzkit" else getattr(home, name))


@pytest.mark.slow
def test_a_star_import_has_all_public_names():
    """`from npzkit import *` and `import npzkit.errors` find what is imported on first use."""
    code = (
        "import npzkit; from npzkit import *; "
        "assert errors is npzkit.errors; assert errors.NpzkitError is NpzkitError; "
        "print(sorted(set(npzkit.__all__) - set(globals())), hasattr(npzkit, 'opne'))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (found.stdout, found.stderr) == ("[] False\n", "")


def test_an_engine_is_there_if_its_package_is():
    """`hasattr(npzkit, "torch")` and `dir(npzkit)` say which engines can be imported."""
    for name in ("dask", "torch", "xarray"):
        can_import = importlib.util.find_spec(name) is not None
        assert hasattr(npzkit, name) == can_import == (name in dir(npzkit))


def test_an_engine_without_its_package(monkeypatch):
    """An engine whose package is missing is no attribute, and says what to install."""
    monkeypatch.setitem(sys.modules, "dask", None)
    for name in [name for name in sys.modules if name.startswith("npzkit.dask")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delattr(npzkit, "dask", raising=False)
    assert not hasattr(npzkit, "dask")
    with pytest.raises(AttributeError, match="cannot be imported"):
        _ = npzkit.dask


def test_a_warnings_filter_finds_npzkits_warnings():
    """`-W error::npzkit.errors.TornArchiveWarning` works, although Python reads it before it is set up."""
    code = "import warnings; print(warnings.filters[0][2].__name__)"
    found = subprocess.run(
        [sys.executable, "-W", "error::npzkit.errors.TornArchiveWarning", "-c", code],
        env={**os.environ, "PYTHONPATH": str(ROOT.parent)},
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert (found.stdout, found.stderr) == ("TornArchiveWarning\n", "")


def test_third_parties_are_imported_by_the_command_line():
    """The command line imports what it prints with, a format its library, others nothing."""
    optional = set().union(*THIRD_PARTIES.values())
    for name in MODULES:
        allowed = THIRD_PARTIES.get(room_of(name), set()) | THIRD_PARTIES.get(name, set())
        found = {room_of(module) for module in imports_of(MODULES[name])} & optional
        assert found <= allowed, name


@pytest.mark.slow
def test_a_formats_library_is_imported_when_it_is_met():
    """Nothing optional is imported with npzkit, nor with its functions that convert."""
    packages = sorted(set().union(*THIRD_PARTIES.values()))
    code = (
        "import io, sys, npzkit; npzkit.convert, npzkit.pack, npzkit.extract; "
        "npzkit.save(file := io.BytesIO(), {'a': [1], 's': {1}}); npzkit.load_tree(file); "
        f"print(set({packages}) & set(sys.modules))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (found.stdout, found.stderr) == ("set()\n", "")


def test_the_bottom_imports_nothing_of_npzkit():
    """errors, imported, limits and typing stand on the standard library alone."""
    for name in ("errors", "imported", "limits", "typing"):
        assert not inner_imports(name)


@pytest.mark.slow
def test_docstrings_say_what_a_module_owns():
    """A newcomer reads in the first lines of a module what it is for."""
    for name in MODULES.keys() - {"__main__", ""}:
        docstring = ast.get_docstring(ast.parse(MODULES[name].read_text(encoding="utf-8"))) or ""
        is_command = docstring.startswith(("The command", "The group of commands"))
        says = any(f"{verb} " in docstring for verb in ("Owns", "Guarantees", "Decides"))
        assert says or is_command or name == room_of(name), name
