"""What the documentation says is true: examples run, tables match the code."""

from __future__ import annotations

import doctest
import importlib
import inspect
import os
import pkgutil
import re
import shlex
import tomllib
from pathlib import Path

import npzkit
import pytest
from npzkit.cli import commands

ROOT = Path(__file__).parent.parent
MODULES = ["npzkit"] + [
    info.name
    for info in pkgutil.walk_packages(npzkit.__path__, "npzkit.")
    if not info.name.endswith("__main__")
]


ENGINES = ["dask", "torch", "xarray"]
"""Packages that users bring, each with a module of its name, and examples in the README."""


def imported(name):
    """Return a module, or skip the test if it needs a package that is not installed."""
    needed = {engine: engine for engine in ENGINES} | {"viewer": "bokeh"}
    package = needed.get(f"{name}.".split(".")[1])
    if package is not None:
        pytest.importorskip(package, reason=f"{package} is not installed")
    return importlib.import_module(name)


@pytest.mark.filterwarnings("ignore:torch.distributed is")
@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings(name, monkeypatch):
    """Every example in a docstring gives what it shows."""
    monkeypatch.chdir(ROOT)
    assert doctest.testmod(imported(name), optionflags=doctest.ELLIPSIS).failed == 0


@pytest.mark.parametrize("name", MODULES)
def test_modules_say_what_they_own(name):
    """Every module has a docstring."""
    assert imported(name).__doc__


def public_objects():
    for module in (npzkit, npzkit.format, npzkit.errors, npzkit.checkpoint):
        for name in module.__all__:
            thing = getattr(module, name)
            if inspect.isclass(thing) or inspect.isfunction(thing):
                yield f"{module.__name__}.{name}", thing
                if inspect.isclass(thing):
                    for inner, value in vars(thing).items():
                        if inspect.isfunction(value) and not inner.startswith("_"):
                            yield f"{module.__name__}.{name}.{inner}", value


@pytest.mark.parametrize(("name", "thing"), list(public_objects()))
def test_public_things_are_documented(name, thing):
    """Every public class, function and method has a docstring; parameters are all named in it."""
    assert thing.__doc__, name
    if inspect.isfunction(thing) and "See `" not in thing.__doc__ and "see `" not in thing.__doc__:
        if "Parameters\n" in thing.__doc__:
            for parameter in inspect.signature(thing).parameters:
                if parameter != "self":
                    assert re.search(rf"\b{parameter}\b", thing.__doc__), f"{name}: {parameter}"


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


README = (ROOT / "README.md").read_text(encoding="utf-8")
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


def test_the_readmes_code_runs(tmp_path, monkeypatch, capsys):
    """The README's Python and commands run from top to bottom; the Python prints what it says."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "fixtures").symlink_to(ROOT / "fixtures")
    code = blocks(README, "python")
    assert code
    printed: list[str] = []
    namespace = {"print": lambda *args: printed.append(" ".join(map(str, args)))}
    for block in code:
        exec(compile(block, "README.md", "exec"), namespace)
    promised = re.findall(r"^\s*print\(.*\)\s+# (.*)$", "\n".join(code), re.MULTILINE)
    assert promised == printed
    with npzkit.open("run.npz") as npz:
        assert f"```\n{npz.summary()}\n```" in README
    # The commands at a prompt are about the files that the code has made.
    for line in re.findall(r"^npzkit .*$", "\n".join(blocks(README, "sh")), re.MULTILINE):
        arguments = shlex.split(line, comments=True)[1:]
        if arguments[0] == "view":
            continue  # It runs until Ctrl-C; see tests/cli/test_view.py.
        assert commands.run(arguments) in (0, 1), line
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("engine", ENGINES)
def test_the_readmes_code_for_an_engine_runs(engine, tmp_path, monkeypatch):
    """The README's blocks ```python ENGINE run from top to bottom, and print what they say."""
    pytest.importorskip(engine, reason=f"{engine} is not installed")
    monkeypatch.chdir(tmp_path)
    code = blocks(README, f"python {engine}")
    assert code
    printed: list[str] = []
    namespace = {"print": lambda *args: printed.append(" ".join(map(str, args)))}
    for block in code:
        exec(compile(block, "README.md", "exec"), namespace)
    assert re.findall(r"^\s*print\(.*\)\s+# (.*)$", "\n".join(code), re.MULTILINE) == printed


def test_the_readmes_commands_are_the_ones_that_run():
    """The two set-up commands stand in the README, and .ci/run takes them from there."""
    assert 'python -m pip install -e ".[all]" && python tests/demo.py' in README
    assert 'python -m pip install -e ".[dev]" && python -m pytest' in README
    script = ROOT / ".ci" / "run"
    if not script.exists():
        pytest.skip("the wheel's tests run without the checkout's .ci")
    commands = re.findall(r"readme_command \w+ '(.+?)'", script.read_text(encoding="utf-8"))
    lines = README.splitlines()
    assert [next(line for line in lines if command in line)[:32] for command in commands] == [
        'python -m pip install -e ".[dev]', 'python -m pip install -e ".[all]'
    ]  # fmt: skip


def test_the_differences_are_pinned():
    """Each row of the README's table of differences names a test that exists."""
    table = README[README.index("## How it differs from NumPy") :]
    rows = re.findall(r"^\|.*\| `(test_\w+)` \|$", table, re.MULTILINE)
    assert len(rows) >= 12
    sources = "".join(path.read_text(encoding="utf-8") for path in ROOT.glob("tests/**/test_*.py"))
    for name in rows:
        assert f"def {name}(" in sources, name


def test_the_drawing_of_the_house_is_the_real_one():
    """CONTRIBUTING draws every room, and every module that it names exists."""
    house = Path(npzkit.__file__).parent
    rooms = {path.parent.name for path in house.glob("*/__init__.py")}
    drawn = re.findall(r"^(?:\w+, )*\w+(?=/? )", blocks(CONTRIBUTING, "")[0], re.MULTILINE)
    assert rooms | {path.stem for path in house.glob("*.py")} <= set(", ".join(drawn).split(", "))
    named = re.findall(rf"`((?:{'|'.join(rooms)})/\w+)`", CONTRIBUTING)
    assert len(named) > 20
    assert [name for name in named if not (house / f"{name}.py").exists()] == []


def test_no_path_of_a_machine():
    """The documentation speaks of npzkit alone."""
    pages = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
    for page in [*pages, Path(npzkit.__file__).parent / "guide" / "format.md"]:
        text = page.read_text(encoding="utf-8")
        assert not re.search(r"/(root|work|home|tmp)/", text), page.name
    assert os.fspath(ROOT) not in README


@pytest.mark.parametrize("extra", ["all", "dev"])
def test_the_readmes_commands_need_no_compiler(extra):
    """The extras that the README installs bring inflate64, which has wheels, and not the other."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    names, found = {extra}, set()
    while names:
        for requirement in extras[names.pop()]:
            inner = re.match(r"npzkit\[(.*)]$", requirement)
            names |= set(inner[1].split(",")) if inner else set()
            found.add(re.match(r"[\w-]*", requirement)[0])
    assert "inflate64" in found
    assert "zipfile-deflate64" not in found
