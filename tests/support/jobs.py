"""Jobs of several processes that tests start, and the values that they save."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from pathlib import Path

import npzkit
import numpy as np

__all__ = ["ends_of", "free_address", "run_job", "start", "value_of"]

JOB = Path(__file__).parents[1] / "jax" / "job.py"


def start(*command):
    """Start a Python program, which finds this folder's modules."""
    paths = Path(npzkit.__file__).parents[1], Path(__file__).parent
    return subprocess.Popen(
        [sys.executable, *map(str, command)],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))},
    )  # fmt: skip


def ends_of(processes):
    """Return what each process printed, and its exit code."""
    try:
        return [(each.communicate(timeout=240)[0], each.returncode) for each in processes]
    finally:
        for each in processes:
            with contextlib.suppress(OSError):
                each.kill()


def free_address():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{free.getsockname()[1]}"


def run_job(case, count, folder):
    """Run a job of JAX, and return what each process printed, and its exit code."""
    address = free_address()
    return ends_of([start(JOB, case, number, count, address, folder) for number in range(count)])


def value_of(version):
    """Return an array of a version, of which no part is like that of another version."""
    return np.arange(128, dtype="f4").reshape(8, 16) + 1000 * version
