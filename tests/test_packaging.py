"""What pyproject.toml requires: no package that would have to be built, and none that is not needed."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tables import each_row

PROJECT = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text("utf-8"))[
    "project"
]
BUILT = {"isal", "zlib-ng", "deflate"}
"""Packages with a part in C that npzkit runs without."""


def required(texts, **environment):
    """Return the names of the requirements whose markers hold."""
    found = map(Requirement, texts)
    return {one.name for one in found if not one.marker or one.marker.evaluate(environment)}


@each_row(
    ("system", "machine", "expected"),
    [
        *(("linux", machine, BUILT) for machine in ("x86_64", "aarch64")),
        *(("darwin", machine, BUILT) for machine in ("x86_64", "arm64")),
        ("win32", "AMD64", BUILT),
        ("win32", "ARM64", {"zlib-ng", "deflate"}),
        *(("linux", name, set()) for name in ("i686", "ppc64le", "s390x", "riscv64", "armv7l")),
    ],
)  # fmt: skip
def test_what_has_no_wheel_is_not_required(system, machine, expected):
    """Packages are required on the machines for which they have wheels, and on no others."""
    found = required(PROJECT["dependencies"], sys_platform=system, platform_machine=machine)
    assert found & BUILT == expected
    assert found - BUILT == {"numpy", "urllib3"}


def test_a_32_bit_windows():
    """Only libdeflate has wheels for it."""
    found = required(PROJECT["dependencies"], sys_platform="win32", platform_machine="x86")
    assert found & BUILT == {"deflate"}


@pytest.mark.parametrize(
    ("version", "expected"),
    [("3.11", True), ("3.13", True), ("3.14", False), ("3.15", False)],
)  # fmt: skip
def test_zstandard_of_python_itself(version, expected):
    """Python 3.14 has Zstandard, so that nothing more is installed for it."""
    found = required(PROJECT["optional-dependencies"]["zstd"], python_version=version)
    assert found == ({"backports-zstd"} if expected else set())
