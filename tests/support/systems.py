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
    "SLOW_UNDER_WINE",
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
SLOW_UNDER_WINE = {
    "test_a_crc_behind_the_data_is_left_alone", "test_a_flipped_bit_is_no_wrong_step",
    "test_a_sound_step_is_never_lost", "test_a_torn_archive_is_a_warning_in_a_line",
    "test_a_truncated_step_is_damaged", "test_alike_files_are_alike_in_every_byte",
    "test_an_encoding_that_lacks_letters", "test_any_arguments", "test_any_index_is_that_of_numpy",
    "test_any_program_can_convert", "test_cut_within_the_next_header",
    "test_half_of_another_version", "test_processes_and_threads",
    "test_python_ends_while_a_save_is_under_way", "test_python_waits_for_saves_before_it_ends",
    "test_spawned_children", "test_the_end_of_python_renews_the_crc",
    "test_the_next_save_removes_what_a_killed_one_left",
}  # fmt: skip
"""Tests that take 7 to 30 seconds there. They run on Windows with NPZKIT_DEEP=1."""
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
