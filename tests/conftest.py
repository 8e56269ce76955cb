"""Fixtures shared by all tests."""

from __future__ import annotations

import ctypes
import gc
import importlib.util
import itertools
import os
import re
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from deep import DEEP, amount
from hypothesis import HealthCheck, settings
from npzkit.codecs import checksum, decompressors, zstandard
from npzkit.files import sync_before_rename
from remedies import Met
from systems import SLOW_UNDER_WINE

settings.register_profile(
    "npzkit",
    deadline=None,
    max_examples=amount(5, 100),
    # The quick suite tries the same examples everywhere; a deep run looks for new ones.
    derandomize=not DEEP,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("thorough", settings.get_profile("npzkit"), max_examples=3000)
settings.load_profile("npzkit")
_NUMBERS = itertools.count()
_OWN_PASSED = pytest.StashKey[list[str]]()
_ENDED_EARLY = pytest.StashKey[bool]()
# All machines make the same calls: those for a file system of which nothing is known.
sync_before_rename.JOURNALS = os.devnull
_TRIM = getattr(ctypes.CDLL(None), "malloc_trim", None) if os.name == "posix" else None
"""Of glibc alone."""


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module", autouse=True)
def _little_for_the_collector():
    """Have `gc.collect` look at what a module's tests make, not at all that was imported.

    Memory that is free goes back to the system: a fork copies the table of its pages, which
    takes longer than what most forked children do.
    """
    gc.collect()
    if _TRIM is not None:
        _TRIM(0)
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _usual_python(tmp_path_factory):
    """Have the processes that tests start run as a user's, whatever PYTHON* variables are set.

    PYTHONPATH stays, which may say where npzkit is. The processes share compiled modules, where
    none are written. NumPy's linear algebra has one thread: starting others takes half of the
    time of `import numpy`.
    """
    names = [name for name in os.environ if name.startswith("PYTHON") and name != "PYTHONPATH"]
    with pytest.MonkeyPatch.context() as patched:
        for name in names:
            patched.delenv(name)
        patched.setenv("OPENBLAS_NUM_THREADS", "1")
        if sys.dont_write_bytecode:
            patched.setenv("PYTHONPYCACHEPREFIX", str(tmp_path_factory.mktemp("compiled")))
        yield


@pytest.fixture
def tmp_path(request, tmp_path_factory) -> Iterator[Path]:
    """A new folder, which is removed unless the test fails.

    pytest's own takes a millisecond, to find a free number and to leave a link. Thousands of
    tests ask for a folder.
    """
    name = re.sub(r"\W", "_", request.node.name)[:30]
    path = tmp_path_factory.getbasetemp() / f"{name}-{next(_NUMBERS)}"
    path.mkdir(mode=0o700)
    failed = request.session.testsfailed
    yield path
    if request.session.testsfailed == failed:
        shutil.rmtree(path, ignore_errors=True)


_PASSED = Path(os.environ.get("NPZKIT_PASSED") or os.devnull)
"""A list of the tests that passed before. The first run writes it, and later ones, with other
packages, leave these tests out."""


def pytest_sessionfinish(session):
    """Write the list, if this is the first run, and not a worker of it."""
    if not _PASSED.exists() and not hasattr(session.config, "workerinput"):
        _PASSED.write_text("\n".join(session.config.stash.get(_OWN_PASSED, [])), encoding="utf-8")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Leave out what passed before and, on Windows, what takes long under wine."""
    if _PASSED.is_file():
        passed = set(_PASSED.read_text(encoding="utf-8").splitlines())
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid in passed])
        items[:] = [item for item in items if item.nodeid not in passed]
    skip = pytest.mark.skip(reason="takes long under wine; set NPZKIT_DEEP=1")
    for item in items if os.name == "nt" and not DEEP else ():
        if item.originalname in SLOW_UNDER_WINE:
            item.add_marker(skip)


class _Passing:
    """Notes which tests passed."""

    def __init__(self, config):
        self.passed = config.stash[_OWN_PASSED] = []

    def pytest_runtest_logreport(self, report):
        if report.when == "call" and report.passed:
            self.passed.append(report.nodeid)


def pytest_configure(config):
    if DEEP and config.option.markexpr == "not slow":
        config.option.markexpr = ""
    config.pluginmanager.register(_Passing(config))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_makereport(item, call):
    """Note that a test ended early: it failed, or needs what is not installed."""
    if call.excinfo is not None:
        item.stash[_ENDED_EARLY] = True


@pytest.fixture(autouse=True)
def remedies_met(request):
    """Have a test that follows a remedy fail if no error had its words; give what was met."""
    words = [one for mark in request.node.iter_markers("remedy") for one in mark.args]
    if not words:
        yield None
        return
    with pytest.MonkeyPatch.context() as patched:
        met = Met(patched)
        yield met
    for one in () if _ENDED_EARLY in request.node.stash else words:
        met.check(one)


@pytest.fixture(scope="session")
def fixtures() -> Path:
    """The folder of files that other programs made."""
    return Path(__file__).parent.parent / "fixtures"


@pytest.fixture
def arrays() -> dict[str, np.ndarray]:
    """One array of every kind that needs no pickle."""
    rng = np.random.default_rng(0)
    record = np.zeros(3, [("id", "<i4"), ("pos", "<f8", (2,)), ("tag", "S3")])
    record["id"] = [1, 2, 3]
    return {
        "weights": rng.random((200, 300)),
        "fortran": np.asfortranarray(rng.random((30, 50)).astype("f4")),
        "strided": rng.random((100, 80))[::2, ::-3],
        "big_endian": np.arange(10, dtype=">i4"),
        "empty": np.zeros((0, 3)),
        "scalar": np.float32(3.5),
        "text": np.array(["a", "bcd"]),
        "bytes": np.array([b"a", b"bcd"]),
        "when": np.arange("2020-01", "2020-04", dtype="M8[M]"),
        "flags": np.array([True, False]),
        "record": record,
        "complex": np.array([1 + 2j]),
        "a/b": np.arange(5),
    }


@pytest.fixture(scope="module", params=["one by one", "columns"])
def either_walk(request):
    """Every archive read as one of few members is, and again as one of many."""
    count = {"one by one": 1 << 60, "columns": 1}[request.param]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("npzkit.zip.directory._COLUMNS_COUNT", count)
        patched.setattr("npzkit.reading.load_all._SWEEP_COUNT", 1)
        yield request.param


@pytest.fixture(params=["small", "large"])
def any_size(request, monkeypatch):
    """Users' arrays of a few bytes are filled as small ones are, and again as large ones."""
    if request.param == "large":
        for module in ("archive.npzfile", "datasets.joined"):
            monkeypatch.setattr(f"npzkit.{module}.READ_ONCE_SIZE", 0)


@pytest.fixture
def interrupts():
    """SIGINT raises KeyboardInterrupt, even if the tests were started with SIGINT ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def hide_library(monkeypatch):
    """Call with the name of a decoder's package: the test runs as if it were not installed."""
    caches = [decompressors._import_deflate64, checksum.zstandard_library]
    caches.append(zstandard._decompress_function)

    def hide(name):
        for known in [known for known in sys.modules if known.startswith(f"{name}.")]:
            monkeypatch.delitem(sys.modules, known)
        monkeypatch.setitem(sys.modules, name, None)
        for cache in caches:
            cache.cache_clear()

    yield hide
    for cache in caches:
        cache.cache_clear()


@pytest.fixture
def deflate64_by(hide_library):
    """Call with the one library that is to decode Deflate64."""

    def choose(library):
        if importlib.util.find_spec(library) is None:
            pytest.skip(f"the package {library} is not installed")
        for other in {"zipfile_deflate64", "inflate64"} - {library}:
            hide_library(other)

    return choose
