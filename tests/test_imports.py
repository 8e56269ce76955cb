"""The layers: imports point down, without a circle."""

from __future__ import annotations

import ast
from pathlib import Path

import npzkit

ROOT = Path(npzkit.__file__).parent

LAYERS = [
    {"errors", "limits", "progress"},
    {
        "disk",
        "locking",
        "source",
        "sink",
        "codecs",
        "decompressors",
        "encoders",
        "format.literal",
        "format.descr",
        "keys",
    },
    {
        "format.header",
        "format.array",
        "format.memmap",
        "parallel",
        "path_sink",
        "zip.records",
        "zip.extra",
        "zip",
    },
    {
        "format",
        "zip.end",
        "zip.entries",
        "zip.columns",
        "zip.directory",
        "zip.member",
        "zip.local",
        "zip.stream",
        "zip.tail",
    },
    {"zip.sozip", "zip.salvage", "zip.deflate", "zip.layout", "zip.reseal"},
    {"zip.editing", "zip.recovery"},
    {"zip.member_writer", "zip.writer"},
    {"zip.chunks", "zip.random_access"},
    {"selection", "spans"},
    {"metadata", "extension_dtypes", "info", "sealing", "mapping", "copying"},
    {"attributes", "appending", "notebook"},
    {"window", "neighbours", "inflation", "streaming", "reader", "bulk", "lazyarray", "rows"},
    {"parts", "nesting"},
    {"prepare", "created", "creation"},
    {"npzfile", "npzwriter", "repacking", "repairing", "verifying"},
    {"trees"},
    {"saving"},
    {"drop_ins"},
    {""},
    {"cli.wording"},
    {"cli", "cli.output", "cli.tour", "cli.measuring", "cli.targets", "cli.parts"},
    {"cli.opening", "cli.members", "cli.slicing", "cli.tables", "cli.archives"},
    {"cli.plotting", "cli.inputs", "cli.formats", "cli.formats.arrays"},
    {"cli.formats.attributes"},
    {
        "cli.formats.hdf5",
        "cli.formats.matlab",
        "cli.formats.npy_folder",
        "cli.formats.npz",
        "cli.formats.safetensors_file",
        "cli.formats.zarr_store",
    },
    {
        "cli.comparing",
        "cli.completing",
        "cli.describing",
        "cli.listing",
        "cli.maintaining",
        "cli.packing",
        "cli.showing",
        "cli.timing",
        "cli.touring",
    },
    {"cli.converting", "cli.editing"},
    {"cli.commands", "__main__"},
]
"""From the bottom up: a module imports from its own layer or lower ones."""

EXEMPT = {"zip.columns": {"numpy"}, "zip.local": {"numpy"}, "zip.tail": {"numpy"}}
"""Modules that may import what their layer may not."""

FORBIDDEN = {
    "zip": {"numpy", "npzkit.format", "npzkit.reader", "npzkit.npzfile"},
    "format": {"zipfile", "npzkit.zip", "npzkit.source", "npzkit.codecs"},
    "selection": {"npzkit.zip", "npzkit.format", "npzkit.source"},
    "source": {"numpy", "npzkit.zip", "npzkit.format"},
    "sink": {"numpy", "npzkit.zip", "npzkit.format"},
    "path_sink": {"numpy", "npzkit.zip", "npzkit.format"},
    "disk": {"numpy", "npzkit.zip", "npzkit.format", "npzkit.sink"},
    "locking": {"numpy", "npzkit.zip", "npzkit.format", "npzkit.sink"},
}


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


MODULES = {module_name(path): path for path in ROOT.rglob("*.py")}


def imports_of(path: Path) -> set[str]:
    """Every module a file imports, inside functions too."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            inner = {name for name in names if name.removeprefix("npzkit.") in MODULES}
            found |= inner if inner == names else inner | {node.module or ""}
    return found


def inner_imports(name: str) -> set[str]:
    return {
        module.removeprefix("npzkit").removeprefix(".")
        for module in imports_of(MODULES[name])
        if module.split(".")[0] == "npzkit"
    }


def test_every_module_has_a_layer():
    """A new module must be given its place."""
    assert set(MODULES) == set().union(*LAYERS) & set(MODULES)
    assert set().union(*LAYERS) == set(MODULES)


def test_imports_point_down():
    """No module imports from a layer above its own."""
    level = {name: index for index, layer in enumerate(LAYERS) for name in layer}
    for name in MODULES:
        for target in inner_imports(name):
            assert level[target] <= level[name], f"{name or 'npzkit'} imports {target}"


def test_there_is_no_circle():
    """Following imports never leads back."""
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, " -> ".join((*path, name))
        if name not in done:
            for target in inner_imports(name):
                visit(target, (*path, name))
            done.add(name)

    for name in MODULES:
        visit(name, ())


def test_layers_do_not_know_each_other():
    """The zip layer knows no NPY, and numpy in its columns alone; the NPY layer no zip, sources neither."""
    for name in MODULES:
        for module in imports_of(MODULES[name]):
            for forbidden in FORBIDDEN.get(name.split(".")[0], set()) - EXEMPT.get(name, set()):
                assert not (module == forbidden or module.startswith(forbidden + ".")), (
                    f"{name}: {module}"
                )


def test_the_bottom_imports_nothing_of_npzkit():
    """errors and limits stand on the standard library alone."""
    assert not inner_imports("errors")
    assert not inner_imports("limits")
