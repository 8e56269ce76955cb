"""The example programs: a run that is killed again and again ends as one that is not."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import npzkit
import pytest
from deep import amount
from npzkit.checkpoint import CheckpointStore
from npzkit.datasets.paths import find_archives

KILLING = Path(__file__).parent / "support" / "killing.py"
GUIDE = Path(npzkit.__file__).parent / "guide"
EXAMPLES = GUIDE / "examples"
PROGRAMS = {
    "train_numpy": (36, "numpy"),
    "train_torch": (36, "torch", "torch._dynamo"),
    "train_jax": (60, "jax"),
    "train_jax_processes": (60, "jax"),
    "fit_sklearn": (12, "sklearn", "sklearn.linear_model"),
    "train_keras": (30, "keras", "torch", "torch._dynamo"),
}
"""In how many calls each program is killed, and what it imports, its package first.

To save a step takes some eight calls that change a file.
"""


RESUMED = {"train_lightning": "lightning", "train_transformers": "transformers"}
"""Programs in which a framework decides when it saves, and its package."""
READERS = {"read_by_ray": "ray", "read_by_webdataset": "webdataset", "read_by_spark": "pyspark"}
"""Programs in which another system reads the files of a data set, and its package."""


def output_of(*command) -> str:
    """Run a Python program, which is to end well, and return what it printed."""
    done = subprocess.run(
        [sys.executable, *map(str, command)], capture_output=True, text=True, timeout=600,
        env=os.environ | {"KERAS_BACKEND": "torch"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_each_program_is_tried():
    """No example is left out, neither here nor in the guide."""
    assert {path.stem for path in EXAMPLES.glob("*.py")} == {*PROGRAMS, *RESUMED, *READERS}
    page = (GUIDE / "training.md").read_text(encoding="utf-8")
    assert all(f"(examples/{name}.py)" in page for name in (*PROGRAMS, *RESUMED))
    page = (GUIDE / "datasets.md").read_text(encoding="utf-8")
    assert all(f"(examples/{name}.py)" in page for name in READERS)


@pytest.mark.parametrize("name", RESUMED)
def test_a_framework_continues_with_what_npzkit_saved(tmp_path, name):
    """From the second checkpoint on, the losses are the same as without a break."""
    if importlib.util.find_spec(RESUMED[name]) is None:
        pytest.skip(f"the package {RESUMED[name]} is not installed")
    program = EXAMPLES / f"{name}.py"
    expected = output_of(program, tmp_path)
    assert len(set(expected.split())) >= 6
    saved = sorted(tmp_path.iterdir(), key=lambda path: path.stat().st_mtime_ns)
    for path in saved[2:]:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert any(find_archives(tmp_path, recursive=True)) or saved[0].suffix == ".ckpt"
    assert output_of(program, tmp_path) == expected


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_killed_run_ends_with_the_same_losses(tmp_path, name):
    """Whenever a program is killed and started again, its losses are the same to the last bit."""
    calls, package, *_ = PROGRAMS[name]
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"the package {package} is not installed")
    program = EXAMPLES / f"{name}.py"
    expected = output_of(program, tmp_path / "whole")
    assert len(set(expected.split())) >= 6
    if not hasattr(os, "fork"):
        pytest.skip("this system has no fork; the program was run, and not killed")
    with CheckpointStore(tmp_path / "whole") as whole:
        steps = whole.steps
    kills = 0
    for seed in range(amount(1, 8)):
        folder = tmp_path / f"killed {seed}"
        found = output_of(KILLING, program, folder, seed, calls, *PROGRAMS[name][1:])
        count, losses = found.split("\n", 1)
        assert losses == expected
        kills += int(count)
        with CheckpointStore(folder) as store:
            # If the last kill came before old steps were removed, they are still there.
            assert set(steps) <= set(store.steps)
            assert store.latest == steps[-1]
            assert store.verify().ok
    assert kills >= 2


@pytest.mark.parametrize("name", READERS)
def test_each_reader_reads_all_samples(tmp_path, name):
    """Each program reads twenty samples, and prints the sums of their labels and pictures."""
    spec = importlib.util.find_spec(READERS[name])
    # A folder of that name is not the package.
    if spec is None or spec.origin is None:
        pytest.skip(f"the package {READERS[name]} is not installed")
    if name == "read_by_spark" and shutil.which("java") is None:
        pytest.skip("Spark needs Java, which is not installed")
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / f"{name}.py"), str(tmp_path / "files")],
        capture_output=True, text=True, timeout=300,
        env={**os.environ, "PYTHONPATH": str(Path(npzkit.__file__).parent.parent)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].split() == ["20", "19", "12160.0"]
