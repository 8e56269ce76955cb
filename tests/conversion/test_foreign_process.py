"""Libraries in a process of their own: what they cannot do to the program that converts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import h5py
import npzkit
import numpy as np
import pytest
from npzkit.errors import ConversionError, FormatError, UnsupportedError

LIBRARY = """
import os, signal, sys, time
class File:
    def __init__(self, path, mode):
        with open("pid", "w") as file:
            file.write(str(os.getpid()))
        {}
"""


CRASHING = """
import os, sys
sys.path.remove(os.path.dirname(__file__))
del sys.modules["h5py"]
import h5py
opened = h5py.File
def File(path, mode):
    if os.path.getsize(path) < 100:
        os._exit(3)
    return opened(path, mode)
h5py.File = File
"""
"""An h5py that crashes on a file that is cut off."""


@pytest.fixture
def library(here, monkeypatch):
    """Return a function that makes an h5py whose files do what a text says."""
    (here / "path").mkdir()
    (here / "a.h5").write_bytes(b"")
    monkeypatch.syspath_prepend(here / "path")
    return lambda text: (here / "path/h5py.py").write_text(LIBRARY.format(text))


def has_ended():
    """Return whether the process that read the file is gone."""
    with open("pid") as file:
        pid = int(file.read())
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("os._exit(3)", "exit status 3"),
        pytest.param(
            "os.kill(os.getpid(), signal.SIGSEGV)", "signal 11, SIGSEGV",
            marks=pytest.mark.skipif(sys.platform == "win32", reason="Windows has no signals"),
        ),
    ],
)  # fmt: skip
def test_a_crash_is_an_error(here, library, text, what):
    """A library that ends its process ends no other, and the error says how it ended."""
    library(text)
    with pytest.raises(ConversionError, match=f"h5py crashed.*{what}") as caught:
        npzkit.convert("a.h5", "a.npz")
    assert caught.value.path == "a.h5"
    assert caught.value.remedy
    assert sorted(os.listdir()) == ["a.h5", "path", "pid"]


@pytest.mark.slow
@pytest.mark.remedy("Check it with the program that made it, or make it again.")
def test_a_file_that_crashes_its_library_is_made_again(here, library, monkeypatch):
    """The file that its program makes again is converted by the same library."""
    library("")
    (here / "path/h5py.py").write_text(CRASHING)
    with pytest.raises(ConversionError, match="h5py crashed"):
        npzkit.convert("a.h5", "a.npz")
    with h5py.File("a.h5", "w") as file:
        file["x"] = np.arange(3)
    npzkit.convert("a.h5", "a.npz")
    assert npzkit.load_tree("a.npz")["x"].tolist() == [0, 1, 2]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="os.kill would end the process there")
def test_a_library_that_does_not_answer_is_ended(here, library, monkeypatch):
    """A library in an endless loop, which holds the interpreter, is ended after a time."""
    monkeypatch.setattr("npzkit.conversion.foreign_process.TIME", 1)
    library("import re; re.match('(a*)*b', 'a' * 64)")
    with pytest.raises(ConversionError, match="h5py did not answer for 1 s") as caught:
        npzkit.convert("a.h5", "a.npz")
    assert caught.value.path == "a.h5"
    assert has_ended()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="signals go to the process there")
@pytest.mark.usefixtures("interrupts")
def test_an_interrupt_ends_the_library(here, library):
    """Ctrl-C ends a library in an endless loop, and leaves no file."""
    library("import re; re.match('(a*)*b', 'a' * 64)")

    def interrupt():
        while not os.path.exists("pid") or not os.path.getsize("pid"):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        npzkit.convert("a.h5", "a.npz")
    thread.join()
    assert has_ended()
    assert sorted(os.listdir()) == ["a.h5", "path", "pid"]


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="the limit needs /proc")
def test_memory_of_a_library_is_limited(here, library):
    """A library that wants far more memory than the arrays of the file may have gets none."""
    library("bytearray(1 << 42)")
    with pytest.raises(MemoryError):
        npzkit.convert("a.h5", "a.npz")


@pytest.mark.slow
def test_a_stack_is_no_limit_of_the_program(here, library):
    """Recursion that a file causes is an error of the file."""
    library("f = lambda: f(); f()")
    with pytest.raises(FormatError, match="nested too deeply"):
        npzkit.convert("a.h5", "a.npz")


@pytest.mark.slow
@pytest.mark.parametrize("error", ["OSError(13, 'Permission denied', path)", "ValueError('odd')"])
def test_errors_of_a_library(here, library, error):
    """Errors of the system are raised as they are; others become an error that names the file."""
    library(f"raise {error}")
    with pytest.raises(PermissionError if "13" in error else FormatError, match=r"'a\.h5'"):
        npzkit.convert("a.h5", "a.npz")


@pytest.mark.slow
def test_what_a_library_prints_is_no_data(here, library, capfd):
    """What a library prints is neither taken for data nor shown."""
    library("print('x' * 100_000); os.write(1, b'y'); raise ImportError('no h5py', name='h5py')")
    with pytest.raises(UnsupportedError, match="h5py, which is not installed"):
        npzkit.convert("a.h5", "a.npz")
    assert capfd.readouterr() == ("", "")


PROGRAM = """
import npzkit
print(npzkit.convert("a.h5", "a.npz").keys)
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", ["script", "text", "input"])
def test_any_program_can_convert(here, how):
    """A program is not run again for it, whatever it is, and its folder has no libraries."""
    with h5py.File("a.h5", "w") as file:
        file["x"] = np.arange(3)
    (here / "h5py.py").write_text("raise SystemExit('of the folder')")
    os.mkdir("programs")
    (here / "programs/a.py").write_text(PROGRAM)
    command = {"script": ["programs/a.py"], "text": ["-c", PROGRAM], "input": ["-"]}[how]
    given = PROGRAM if how == "input" else None
    result = subprocess.run(
        [sys.executable, *command], input=given, capture_output=True, text=True, timeout=60
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, "('x',)\n", "")


@pytest.mark.slow
@pytest.mark.remedy("Convert the file with an ordinary installation of Python.")
@pytest.mark.parametrize(("name", "value"), [("executable", ""), ("frozen", True)])
def test_no_python_to_start(here, monkeypatch, name, value):
    """A program that has no Python to start says so; an ordinary Python converts the file."""
    with h5py.File("a.h5", "w") as file:
        file["x"] = np.arange(3)
    with monkeypatch.context() as patched:
        patched.setattr(sys, name, value, raising=False)
        with pytest.raises(UnsupportedError, match="process of its own"):
            npzkit.convert("a.h5", "a.npz")
    assert npzkit.convert("a.h5", "a.npz").keys == ("x",)


@pytest.mark.slow
@pytest.mark.parametrize("is_imported", [False, True])
def test_filters_of_hdf5_are_there_if_the_program_has_them(here, library, monkeypatch, is_imported):
    """A program that has imported hdf5plugin reads what its filters can read."""
    library("")
    (here / "path" / "hdf5plugin.py").write_text("open('filters', 'w').close()")
    monkeypatch.delitem(sys.modules, "hdf5plugin", raising=False)
    if is_imported:
        monkeypatch.setitem(sys.modules, "hdf5plugin", sys)
    with pytest.raises(npzkit.NpzkitError):
        npzkit.convert("a.h5", "b.npz")
    assert (here / "filters").exists() == is_imported
