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
from types import ModuleType

import npzkit
import numpy as np
import pytest
from npzkit.cli import commands

from tables import each_row

ROOT = Path(__file__).parent.parent
MODULES = ["npzkit"] + [
    info.name
    for info in pkgutil.walk_packages(npzkit.__path__, "npzkit.")
    if not info.name.endswith("__main__")
]


ENGINES = ["dask", "jax", "torch", "xarray"]
"""Packages that users bring, each with a room of its name, and examples in the guide."""


def imported(name):
    """Return a module, or skip the test if it needs a package that is not installed."""
    needed = {engine: engine for engine in ENGINES}
    needed |= {"viewer": "bokeh", "conversion.torch_file": "torch"}
    for place, package in needed.items():
        if f"{name}.".startswith(f"npzkit.{place}."):
            pytest.importorskip(package, reason=f"{package} is not installed")
    return importlib.import_module(name)


@pytest.mark.filterwarnings("ignore:torch.distributed is")
@each_row("name", MODULES)
def test_examples_in_docstrings(name, monkeypatch):
    """Every example in a docstring gives what it shows."""
    monkeypatch.chdir(ROOT)
    module = imported(name)
    if ">>> " in Path(module.__file__).read_text(encoding="utf-8"):
        assert doctest.testmod(module, optionflags=doctest.ELLIPSIS).failed == 0


@each_row("name", MODULES)
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


@each_row(("name", "thing"), list(public_objects()))
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


GUIDE = Path(npzkit.__file__).parent / "guide"
README = (ROOT / "README.md").read_text(encoding="utf-8")
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
CHANGELOG = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
PAGES = {"README": README} | {
    path.stem: path.read_text(encoding="utf-8") for path in sorted(GUIDE.glob("*.md"))
}


def run_blocks(page: str, language: str) -> None:
    """Run the blocks of a page from top to bottom; each print must print what its line says."""
    code = blocks(PAGES[page], language)
    printed: list[str] = []
    namespace = {"print": lambda *args: printed.append(" ".join(map(str, args)))}
    for block in code:
        exec(compile(block, page, "exec"), namespace)
    assert re.findall(r"^\s*print\(.*\)\s+# (.*)$", "\n".join(code), re.MULTILINE) == printed


@each_row("page", PAGES)
def test_the_code_of_each_page_runs(page, tmp_path, monkeypatch, capsys):
    """The Python and the commands of a page run by themselves; the Python prints what it says."""
    monkeypatch.chdir(tmp_path)
    run_blocks(page, "python")
    if page == "quickstart":
        with npzkit.open("run.npz") as npz:
            assert f"```\n{npz.summary()}\n```" in PAGES[page]
    run_commands(page)
    told = capsys.readouterr().err.splitlines()
    assert not [line for line in told if not line.startswith("npzkit: not looked at: ")]


def run_commands(page: str) -> None:
    """Run the commands of a page at a prompt, with the files that its Python wrote."""
    for line in "\n".join(blocks(PAGES[page], "sh")).splitlines():
        program, *arguments = shlex.split(line, comments=True) or [""]
        if program == "npzkit" and arguments[0] != "view":
            # The page of `view` is there until Ctrl-C; see tests/cli/test_view.py.
            assert commands.run(arguments) in (0, 1), line


@pytest.mark.parametrize(
    ("page", "engine"),
    [
        (page, engine)
        for page in PAGES
        for engine in ENGINES
        if f"```python {engine}" in PAGES[page]
    ],
)
def test_the_code_for_an_engine_runs(page, engine, tmp_path, monkeypatch):
    """A page's blocks ```python ENGINE run from top to bottom, and print what they say."""
    pytest.importorskip(engine, reason=f"{engine} is not installed")
    monkeypatch.chdir(tmp_path)
    run_blocks(page, f"python {engine}")


def test_each_engine_has_code_on_a_page():
    """dask, JAX, torch and xarray are shown by programs that run."""
    text = "".join(PAGES.values())
    assert all(f"```python {engine}\n" in text for engine in ENGINES)


@each_row("page", PAGES)
def test_a_page_is_short(page):
    """The README and each page of the guide have at most 200 lines."""
    assert PAGES[page].count("\n") <= 200


def anchors_of(text: str) -> set[str]:
    """Return the anchors of a page's headings, as web pages of repositories have them."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S), re.M)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@each_row("path", [ROOT / "README.md", *GUIDE.glob("*.md")])
def test_links_lead_somewhere(path):
    """Every link to a file of the repository names one that exists, with that heading."""
    if not (ROOT / "npzkit").exists():
        pytest.skip("the pages lead to files of a checkout")
    text = path.read_text(encoding="utf-8")
    for target in re.findall(
        r"\]\((?!\w+:)([^)\s]+)\)", re.sub(r"```.*?```|`.*?`", "", text, flags=re.S)
    ):
        name, _, anchor = target.partition("#")
        found = path.parent / name if name else path
        assert found.exists(), target
        assert not anchor or anchor in anchors_of(found.read_text(encoding="utf-8")), target


def api_rows(module: ModuleType) -> list[str]:
    """Return a row for each public name of a module: the first sentences of its docstring."""
    rows = []
    for name in module.__all__:
        summary = inspect.getdoc(getattr(module, name)).split("\n\n")[0].replace("\n", " ")
        rows.append(f"| `{name}` | {summary.replace('``', '`')} |")
    return rows


@pytest.mark.parametrize("name", ["npzkit", "npzkit.checkpoint"])
def test_the_api_page_is_what_the_docstrings_say(name):
    """The page lists each public name with the first sentence of its docstring, and no other."""
    section = PAGES["api"].split(f"\n## Names in {name}\n")[1].split("\n## ")[0]
    found = [line for line in section.splitlines() if line.startswith("| `")]
    assert found == api_rows(importlib.import_module(name))


def test_the_api_page_has_each_error():
    """The page has each error once, and in the row of damage those whose `is_damage` is true."""
    section = PAGES["api"].split("\n## Names in npzkit.errors\n")[1].split("\n## ")[0]
    errors = {name: getattr(npzkit.errors, name) for name in npzkit.errors.__all__}
    assert sorted(re.findall(r"`(\w+)`", section)) == sorted(errors)
    rows = dict(re.findall(r"^\| ([^`|]+) \| (`.*) \|$", section, re.MULTILINE))
    assert set(re.findall(r"`(\w+)`", rows["the file is damaged, or no archive"])) == {
        name for name, error in errors.items() if getattr(error, "is_damage", False)
    }
    assert set(re.findall(r"`(\w+)`", rows["warnings"])) == {
        name for name, error in errors.items() if issubclass(error, Warning)
    }


def test_the_api_page_has_what_numpys_format_lacks():
    """Of npzkit.format it names the functions that numpy.lib.format has not."""
    section = PAGES["api"].split("\n## Names in npzkit.format\n")[1]
    assert re.findall(r"`(\w+)`", section) == [
        name for name in npzkit.format.__all__ if not hasattr(np.lib.format, name)
    ]


def test_the_api_page_has_what_is_returned():
    """So it has the classes that the top has beside what users call."""
    section = PAGES["api"].split("\n## Classes of what is returned\n")[1].split("\n## ")[0]
    assert sorted(re.findall(r"`([A-Z]\w+)`", section)) == sorted(
        npzkit._HOMES.keys() - set(npzkit.__all__)
    )


def test_the_readmes_commands_are_the_ones_that_run():
    """The two set-up commands stand in the README, and .ci/run takes them from there."""
    assert 'python -m pip install -e ".[all]" && python tests/tour.py' in README
    assert 'python -m pip install -e ".[dev]" && python -m pytest' in README
    script = ROOT / ".ci" / "run"
    if not script.exists():
        pytest.skip("the wheel's tests run without the checkout's .ci")
    commands = re.findall(r"readme_command \w+ '(.+?)'", script.read_text(encoding="utf-8"))
    lines = README.splitlines()
    assert [next(line for line in lines if command in line)[:32] for command in commands] == [
        'python -m pip install -e ".[dev]', 'python -m pip install -e ".[all]'
    ]  # fmt: skip


def test_the_version_is_the_same_everywhere():
    """The changelog begins with the version of the package, and CITATION.cff has it too."""
    assert re.search("^## (.*)$", CHANGELOG, re.MULTILINE)[1] == npzkit.__version__
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert re.search("^version: (.*)$", citation, re.MULTILINE)[1] == npzkit.__version__


def test_the_drawing_of_the_house_is_the_real_one():
    """CONTRIBUTING draws every room, and every module that it and the rooms name exists."""
    house = Path(npzkit.__file__).parent
    rooms = {path.parent.name for path in house.glob("*/__init__.py")}
    drawn = re.findall(r"^(?:\w+, )*\w+(?=/? )", blocks(CONTRIBUTING, "")[0], re.MULTILINE)
    assert rooms | {path.stem for path in house.glob("*.py")} <= set(", ".join(drawn).split(", "))
    texts = [
        CONTRIBUTING,
        *(path.read_text(encoding="utf-8") for path in house.glob("*/__init__.py")),
    ]
    named = re.findall(rf"`((?:{'|'.join(rooms)})/\w+)`", "".join(texts))
    assert len(named) > 30
    assert [name for name in named if not (house / f"{name}.py").exists()] == []


def test_no_path_of_a_machine():
    """The documentation speaks of npzkit alone."""
    for text in (*PAGES.values(), CONTRIBUTING, CHANGELOG):
        assert not re.search(r"/(root|work|home|tmp)/", text)
        assert os.fspath(ROOT) not in text


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
