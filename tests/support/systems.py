"""What not every system does or has, for tests that need it."""

from __future__ import annotations

import importlib.util
import os
import sys
import tempfile
from pathlib import Path

import pytest
from npzkit.files.disk import RENAMES_OPEN_FILES

__all__ = [
    "HAS_DEFLATE64",
    "IS_32_BIT",
    "READ",
    "WRITE",
    "need_decoder_of",
    "need_library_of",
    "needs_symlinks",
    "replaces_open_files",
]

READ = "preadv" if hasattr(os, "preadv") else "read"
"""The call of `os` that reads an archive."""
WRITE = "pwrite" if hasattr(os, "pwrite") else "write"
"""The call of `os` that writes one."""
IS_32_BIT = sys.maxsize < 1 << 32
HAS_DEFLATE64 = any(map(importlib.util.find_spec, ("zipfile_deflate64", "inflate64")))
"""Whether a package that decodes it is installed."""


def need_decoder_of(fixture: str) -> None:
    """Skip the test if the package for the method of a fixture is not installed."""
    if "deflate64" in fixture and not HAS_DEFLATE64:
        pytest.skip("the package inflate64 is not installed")


def need_library_of(path: str | os.PathLike[str]) -> None:
    """Skip the test if the package for a file's format is not installed."""
    packages = {".h5": "h5py", ".mat": "scipy", ".safetensors": "safetensors", ".zarr": "zarr"}
    package = packages.get(Path(path).suffix)
    if package is not None:
        pytest.importorskip(package, reason=f"the package {package} is not installed")


def _makes_symlinks() -> bool:
    """Return whether this user may make symbolic links; wine 8 makes none, and says nothing."""
    with tempfile.TemporaryDirectory() as folder:
        link = Path(folder, "link")
        try:
            link.symlink_to(folder)
        except OSError:
            return False
        return link.is_symlink()


needs_symlinks = pytest.mark.skipif(
    not _makes_symlinks(), reason="no symbolic link can be made here"
)
replaces_open_files = pytest.mark.skipif(
    not RENAMES_OPEN_FILES, reason="Windows replaces, removes and cuts off no file in use"
)
