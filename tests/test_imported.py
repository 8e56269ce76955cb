"""Packages that another thread is importing."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

SAVE = """
    import builtins, importlib, importlib.util, io, sys, threading
    import npzkit, numpy as np

    name, path = sys.argv[1:]
    sys.modules.pop(name, None)
    builtins.entered, builtins.leave = threading.Event(), threading.Event()

    class Finder:
        @staticmethod
        def find_spec(wanted, *_):
            return importlib.util.spec_from_file_location(name, path) if wanted == name else None

    sys.meta_path.insert(0, Finder)
    thread = threading.Thread(target=importlib.import_module, args=(name,))
    thread.start()
    assert entered.wait(60) and name in sys.modules
    stream = io.BytesIO()
    tree = {"n": {"x": np.arange(2)}, "l": [np.eye(2), None, np.float32(1)], "m": {}}
    npzkit.save(stream, tree)
    npzkit.load_tree(stream, like=tree)
    npzkit.save(stream, {"x": np.zeros((), "i4,f8")})
    leave.set()
    thread.join()
    print("saved", stream.getbuffer().nbytes > 0)
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["numpy.ma", "torch", "jax"])
def test_a_package_that_is_being_imported(tmp_path, name):
    """Saving and loading work while another thread imports a package that has no names yet."""
    slow = tmp_path / "slow.py"
    slow.write_text("import builtins\nbuiltins.entered.set()\nassert builtins.leave.wait(60)\n")
    found = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(SAVE), name, str(slow)],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert (found.stdout, found.stderr) == ("saved True\n", "")
