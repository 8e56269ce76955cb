"""Put small faults into npzkit's source, one at a time, and say which ones no test notices.

``python tests/mutation/mutate.py`` copies the checkout to a folder and records once which test
runs which line. Then it tries faults in lines that tests run: in a forked process, and only with
the tests that run the line. A run that was stopped goes on with the same folder; remove the
folder to begin with the checkout as it is now.
"""

from __future__ import annotations

import argparse
import compileall
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import hypothesis  # noqa: F401  here so that forked processes have it
import numpy as np  # noqa: F401
import pytest
from equivalent import EQUIVALENT
from mutants import Mutant, find_mutants

HERE = Path(__file__).resolve().parent
ROOMS = [
    "zip",
    "format",
    "reading",
    "writing",
    "files",
    "stores",
    "checkpoint",
    "datasets",
    "maintenance",
    "members",
    "trees",
]
_LEFT_OUT = ["viewer", "torch", "xarray", "dask", "benchmarks", "pictures", "interop", "mutation"]
"""Folders of tests that take long and run other rooms than these."""
_FIRST = 60
"""The fastest tests in a module's own room, which notice most faults."""
_REPETITION = 0.02
"""Seconds that a test counts more for each faster test of its file."""
_MEMORY = 4 << 30


class Chosen:
    """A plugin of pytest that runs the named tests, in this order."""

    def __init__(self, names: list[str]) -> None:
        self._order = {name: number for number, name in enumerate(names)}

    def pytest_collection_modifyitems(self, items):
        items[:] = sorted(
            (item for item in items if item.nodeid in self._order),
            key=lambda item: self._order[item.nodeid],
        )


class Tree:
    """A copy of the checkout that one process puts faults into."""

    def __init__(self, folder: Path, package: str) -> None:
        self.folder, self.package = folder, folder / package
        self._changes = 0

    def write(self, module: str, source: bytes) -> None:
        """Replace a module; its compiled file must never seem to be that of another version."""
        path = self.package / module
        path.write_bytes(source)
        self._changes += 1
        os.utime(path, (self._changes, self._changes))

    def passes(self, tests: list[str], seconds: float) -> bool:
        """Run tests in a forked process, until the first one fails or the time is up."""
        child = os.fork()
        if not child:
            self._run(tests)
        ends = time.monotonic() + seconds
        while True:
            pid, status = os.waitpid(child, os.WNOHANG)
            if pid or time.monotonic() > ends:
                break
            time.sleep(0.02)
        try:
            os.killpg(child, signal.SIGKILL)
        except ProcessLookupError:
            pass
        if not pid:
            os.waitpid(child, 0)
        elif os.WIFEXITED(status) and os.WEXITSTATUS(status) == pytest.ExitCode.NO_TESTS_COLLECTED:
            raise RuntimeError(f"no test was found: {tests[:3]}")
        return bool(pid) and status == 0

    def _run(self, tests: list[str]) -> None:
        os.setsid()
        log = os.open(self.folder.with_suffix(".log"), os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
        for stream in (1, 2):
            os.dup2(log, stream)
        resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY, _MEMORY))
        sys.dont_write_bytecode = True
        # Plugins take longer to load than most tests run.
        os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
        enter(self.folder)
        files = sorted({name.partition("::")[0] for name in tests})
        options = ["-x", "-q", "-m", "", "-p", "no:cacheprovider", f"--rootdir={self.folder}"]
        # hypothesis is imported before, so that this is not done for each fault.
        options += ["-W", "ignore::pytest.PytestAssertRewriteWarning", *files]
        os._exit(pytest.main(options, plugins=[Chosen(tests)]))

    def check(self, tests: list[list]) -> None:
        """Raise if tests fail without a fault, so that no failure would mean anything."""
        fastest = sorted(tests, key=lambda test: test[1])[:_FIRST]
        if not self.passes([name for name, _ in fastest], 600):
            raise RuntimeError(f"tests fail without a fault: see {self.folder.with_suffix('.log')}")


def enter(folder: Path) -> None:
    """Make this process, and those that it starts, import the package of a copy."""
    os.chdir(folder)
    sys.path.insert(0, str(folder))
    os.environ["PYTHONPATH"] = str(folder)


def copy_checkout(source: Path, folder: Path) -> None:
    """Copy what git would keep."""
    ignored = shutil.ignore_patterns(".*", "__pycache__", "build", "dist")
    shutil.copytree(source, folder, ignore=ignored)


def record(folder: Path, package: str, tests: list[str], output: Path) -> None:
    """Run the tests once, in a new process, and keep which lines each one runs."""
    program = (
        "import sys, pytest; from pathlib import Path; sys.dont_write_bytecode = False;"
        f"sys.path[:0] = [{str(folder)!r}, {str(HERE)!r}]; import recording;"
        f"recorder = recording.Recorder(Path({str(folder / package)!r}), Path({str(output)!r}));"
        "pytest.main(sys.argv[1:], plugins=[recorder])"
    )
    options = ["-q", "-m", "", "-p", "no:cacheprovider", f"--rootdir={folder}", *tests]
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    subprocess.run([sys.executable, "-c", program, *options], cwd=folder, env=environment)
    compileall.compile_dir(folder / package, quiet=2)


def find_tested(folder: Path, rooms: list[str], lines: dict) -> dict[tuple, list[Mutant]]:
    """Return the faults in lines that tests run, by line."""
    by_line: dict[tuple[str, int], list[Mutant]] = {}
    for path in sorted(path for room in rooms for path in (folder / room).rglob("*.py")):
        module = path.relative_to(folder).as_posix()
        for mutant in find_mutants(module, path.read_bytes()):
            is_run = str(mutant.statement) in lines.get(module, ())
            if is_run and mutant.name not in EQUIVALENT:
                by_line.setdefault((module, mutant.line), []).append(mutant)
    return by_line


def choose(by_line: dict[tuple, list[Mutant]], count: int, seed: int) -> list[Mutant]:
    """Choose faults at random: first a line, then one of its faults."""
    generator = random.Random(seed)
    lines = generator.sample(sorted(by_line), len(by_line))[:count]
    return [generator.choice(by_line[line]) for line in lines]


def lives(tree: Tree, mutant: Mutant, recorded: dict, seconds: float) -> bool:
    """Return whether all tests that run the line pass with the fault."""
    numbers = recorded["lines"][mutant.module][str(mutant.statement)]
    near, far = _in_order([recorded["tests"][number] for number in numbers], mutant.module)
    source = (tree.package / mutant.module).read_bytes()
    tree.write(mutant.module, mutant.apply(source))
    try:
        for some in (near, _within(far, seconds)):
            limit = 60 + 10 * sum(duration for _, duration in some)
            if some and not tree.passes([name for name, _ in some], limit):
                return False
    finally:
        tree.write(mutant.module, source)
    return True


def _in_order(tests: list[list], module: str) -> tuple[list[list], list[list]]:
    """Return the fastest tests of the module's own room, and the others.

    The others begin with fast tests of many files, which notice more than many tests of one file.
    """
    tests = sorted(tests, key=lambda test: test[1])
    room = f"tests/{module.partition('/')[0]}/"
    near = [test for test in tests if test[0].startswith(room)][:_FIRST]
    taken, seen, costs = {name for name, _ in near}, Counter(), {}
    for name, duration in tests:
        file = name.partition("::")[0]
        costs[name] = duration + _REPETITION * seen[file]
        seen[file] += 1
    far = [test for test in tests if test[0] not in taken]
    return near, sorted(far, key=lambda test: costs[test[0]])


def _within(tests: list[list], seconds: float) -> list[list]:
    """Return as many of the first tests as take this long."""
    found = []
    for test in tests:
        seconds -= test[1]
        if seconds < 0:
            break
        found.append(test)
    return found


def work(folder: Path, number: int, mutants: list[Mutant], recorded: dict, options) -> None:
    """Try the mutants in a copy of one process, and keep each result."""
    copy = folder / f"job-{number}"
    if copy.exists():
        shutil.rmtree(copy)
    shutil.copytree(folder / "tree", copy)
    tree, ends = Tree(copy, options.package), time.monotonic() + 60 * options.minutes
    tree.check(recorded["tests"])
    for mutant in mutants:
        if time.monotonic() > ends:
            break
        alive = lives(tree, mutant, recorded, options.seconds)
        with (folder / "results.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps([*mutant, alive]) + "\n")
        if alive:
            print(describe(mutant), flush=True)


def describe(mutant: Mutant) -> str:
    """Return the line that shows a fault."""
    return f"{mutant.module}:{mutant.line}  {mutant.before}  ->  {mutant.after}"


def read_results(path: Path) -> dict[Mutant, bool]:
    """Return which mutants were tried, and whether they live."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return {Mutant(*row[:-1]): row[-1] for row in map(json.loads, lines)}


def find_again(by_line: dict[tuple, list[Mutant]], results: Path) -> list[Mutant]:
    """Return the mutants that lived in another run, as they are in this tree."""
    names = {mutant.name for mutant, alive in read_results(results).items() if alive}
    return [mutant for line in by_line.values() for mutant in line if mutant.name in names]


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=300, help="how many faults are tried")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--minutes", type=float, default=1e6, help="stop after that time")
    parser.add_argument(
        "--seconds", type=float, default=30, help="of tests in other rooms, per fault"
    )
    parser.add_argument("--room", action="append", dest="rooms", help="a folder of the package")
    parser.add_argument("--tests", nargs="+", help="files or folders of tests")
    parser.add_argument("--every", action="store_true", help="try all faults in lines that run")
    parser.add_argument("--again", type=Path, help="results.jsonl: only what lived in that run")
    parser.add_argument("--folder", type=Path, default=HERE.parents[1] / "build/mutation")
    parser.add_argument("--checkout", type=Path, default=HERE.parents[1])
    parser.add_argument("--package", default="npzkit")
    return parser.parse_args()


def main() -> None:
    options = parse_options()
    folder, rooms = options.folder.resolve(), options.rooms or ROOMS
    tree, output = folder / "tree", folder / "record.json"
    if not tree.exists():
        copy_checkout(options.checkout.resolve(), tree)
    if not output.exists():
        entries = sorted(path.name for path in (tree / "tests").iterdir())
        tested = [f"tests/{name}" for name in entries if name not in _LEFT_OUT]
        folders = [name for name in tested if name.startswith("tests/test_") or "." not in name]
        record(tree, options.package, options.tests or folders, output)
    recorded = json.loads(output.read_text(encoding="utf-8"))
    by_line = find_tested(tree / options.package, rooms, recorded["lines"])
    if options.again:
        mutants = find_again(by_line, options.again)
    elif options.every:
        mutants = [mutant for line in by_line.values() for mutant in line]
    else:
        mutants = choose(by_line, options.count, options.seed)
    before = read_results(folder / "results.jsonl")
    left = [mutant for mutant in mutants if mutant not in before]
    children = []
    for number in range(min(options.jobs, len(left))):
        child = os.fork()
        if not child:
            work(folder, number, left[number :: options.jobs], recorded, options)
            os._exit(0)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)
    after = read_results(folder / "results.jsonl")
    tried = [mutant for mutant in mutants if mutant in after]
    for mutant in tried:
        if mutant in before and after[mutant]:
            print(describe(mutant))
    print(f"{sum(after[mutant] for mutant in tried)} of {len(tried)} mutants live")


if __name__ == "__main__":
    main()
