"""The programs in tests/examples/data: other systems read the files of a data set."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import npzkit
import pytest

TESTS = Path(__file__).parent
PROGRAMS = {"read_by_ray": "ray", "read_by_webdataset": "webdataset", "read_by_spark": "pyspark"}


def test_each_program_is_tried():
    """No program is left out, neither here nor in the guide."""
    assert {path.stem for path in (TESTS / "examples" / "data").glob("*.py")} == set(PROGRAMS)
    page = (Path(npzkit.__file__).parent / "guide" / "datasets.md").read_text(encoding="utf-8")
    assert all(f"(../../tests/examples/data/{name}.py)" in page for name in PROGRAMS)


@pytest.mark.parametrize("name", PROGRAMS)
def test_each_program_reads_all_samples(tmp_path, name):
    """Each program reads twenty samples, and prints the sums of their labels and pictures."""
    spec = importlib.util.find_spec(PROGRAMS[name])
    # A folder of that name is not the package.
    if spec is None or spec.origin is None:
        pytest.skip(f"the package {PROGRAMS[name]} is not installed")
    if name == "read_by_spark" and shutil.which("java") is None:
        pytest.skip("Spark needs Java, which is not installed")
    done = subprocess.run(
        [sys.executable, str(TESTS / "examples" / "data" / f"{name}.py"), str(tmp_path / "files")],
        capture_output=True, text=True, timeout=300,
        env={**os.environ, "PYTHONPATH": str(Path(npzkit.__file__).parent.parent)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].split() == ["20", "19", "12160.0"]
