"""Where files are written: names that stay within their folder, files that appear complete.

Owns what may be written at which path. Knows nothing about the contents.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator, Mapping

from npzkit.archive.npzwriter import NpzWriter
from npzkit.conversion.refusals import leads_out
from npzkit.errors import Advice, ConversionError, UnsafeNameError, shown_value
from npzkit.files import disk
from npzkit.files.file_objects import take_after
from npzkit.members.keys import SUFFIX, check_depth, check_key, find_collisions

_OF_WRITING = {errno.ENOSPC, errno.EFBIG, getattr(errno, "EDQUOT", errno.ENOSPC)}
"""Errors that come from what is written, and not from what is read."""


def _check_absent(path: str, *, overwrite: bool = False) -> None:
    """Raise FileExistsError if something, also a link, is at `path`, unless it is replaced."""
    if not overwrite and os.path.lexists(path):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)


def check_not_itself(file: str, output: str) -> None:
    """Raise ConversionError if the output is the file that is read, whose library has it open."""
    if _is_same(file, output):
        raise ConversionError(
            "the output is the file that is converted", path=output, remedy="Choose another path."
        )


def check_not_input(path: str | None, target: str | None, remedy: str | None = None) -> None:
    """Raise ConversionError if an input is the archive that is written; None is no path."""
    if path is not None and target is not None and _is_same(target, path):
        what = "the archive to write is also one of the inputs"
        raise ConversionError(what, path=target, remedy=remedy)


def _is_same(file: str, other: str) -> bool:
    """Return whether two paths are those of one file that exists."""
    return os.path.exists(file) and os.path.exists(other) and os.path.samefile(file, other)


def check_path(path: str, *, overwrite: bool, is_own: Callable[[str], bool] | None = None) -> None:
    """Check that a file may be written to `path`, or a folder, if `is_own` is given.

    A folder is replaced only if `is_own` says that it is of the same kind; an empty one is used.

    Raises
    ------
    ConversionError
        A folder is there, which is not replaced.
    FileExistsError
        Something is there, and `overwrite` is False.
    """
    is_folder = os.path.isdir(path)
    if is_folder and is_own is None:
        raise ConversionError(
            "the path is a folder, but a file is to be written there", path=path,
            remedy="Remove the folder, or write to another path.",
        )  # fmt: skip
    if is_folder and not os.listdir(path):
        return
    _check_absent(path, overwrite=overwrite)
    if is_folder and is_own is not None and not is_own(path):
        raise ConversionError(
            "the folder holds files that are not arrays, so it is not replaced", path=path,
            remedy="Remove it, or choose another folder.",
        )  # fmt: skip


@contextlib.contextmanager
def replacing(path: str) -> Iterator[str]:
    """Yield a path beside `path`; what the block writes there takes its place at the end.

    A file or a folder. An exception removes it, and what was at `path` stays. It has the owner
    and the permissions of what it replaces, if anything, and then nobody else can read it before.
    Nobody writes to an archive (.npz) while the block is to replace it.

    Raises
    ------
    ArchiveLockedError
        A writer has the archive at `path` open.
    FileExistsError
        Nothing was at `path`, and something is when the block ends.
    PermissionError
        The file at `path` may not be written to, though its folder may.
    """
    replaced = _replaced(path)
    mode = 0 if replaced is None else replaced.st_mode
    parent = os.path.dirname(os.path.abspath(path))
    os.stat(parent)
    place = os.path.join(parent, f".npzkit-{secrets.token_hex(8)}.tmp")
    # Folders take long to make on some file systems: what replaces nothing has none.
    temporary = place if replaced is None else os.path.join(place, "new")
    is_archive = stat.S_ISREG(mode) and path.lower().endswith(".npz")
    # A writer that writes nothing has the lock.
    writer = NpzWriter(path, "w") if is_archive else None
    try:
        if replaced is not None:
            os.mkdir(place, 0o700)
        yield temporary
        if replaced is None:
            # What is there now is another program's.
            _check_absent(path)
        # A link, which is not followed, has no permissions of its own.
        if replaced is not None and not stat.S_ISLNK(mode):
            take_after(temporary, path, replaced)
        if os.path.isdir(temporary):
            _replace_folder(temporary, path)
        else:
            if writer is not None and not disk.RENAMES_OPEN_FILES:
                writer.abort()
            disk.replace(temporary, path)
    except OSError as error:
        is_full = error.errno in _OF_WRITING and error.filename is None
        if error.errno and (is_full or os.path.basename(place) in str(error)):
            # Nobody knows that name. An error doubles the separators of Windows.
            raise OSError(error.errno, os.strerror(error.errno), path) from error
        raise
    finally:
        if writer is not None:
            writer.abort()
        _remove(place)


def _replaced(path: str) -> os.stat_result | None:
    """Return what is at a path, if anything; raise PermissionError if it may not be replaced."""
    with contextlib.suppress(FileNotFoundError):
        found = os.lstat(path)
        if stat.S_ISREG(found.st_mode) and not os.access(path, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return found
    return None


def _replace_folder(temporary: str, path: str) -> None:
    """Rename a folder to a path; systems do not replace a folder that is not empty."""
    if not os.path.lexists(path):
        disk.replace(temporary, path)
        return
    old = f"{temporary}.old"
    disk.replace(path, old)
    try:
        disk.replace(temporary, path)
    except BaseException:
        disk.replace(old, path)
        raise
    _remove(old)


def _remove(path: str) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    else:
        disk.unlink(path)


def path_within(folder: str, name: str) -> str:
    """Return the path in a folder that a name with slashes means.

    Raises
    ------
    UnsafeNameError
        The path leaves the folder, by its parts or by a symbolic link; or the
        name has characters that no file name should have.
    """
    try:
        check_key(name.removesuffix(SUFFIX))
        check_depth([name])
    except UnsafeNameError as error:
        error.what = error.what.replace("saved", "written as a file")
        # Who calls knows the key, which may end with the suffix too.
        error.key = None
        error.remedy = "Extract the others by their keys: " + Advice(
            "npzkit.extract(path, folder, keys).", "npzkit extract FILE KEYS."
        )
        raise
    path = os.path.join(folder, *name.split("/"))
    if leads_out(os.path.realpath(folder), os.path.dirname(path)):
        raise UnsafeNameError(
            "a symbolic link in its path leads out of the folder", path=folder, key=name,
            remedy="Remove the link, or write to another folder.",
        )  # fmt: skip
    return path


def same_files(keys: Mapping[str, str]) -> Iterator[UnsafeNameError]:
    """Yield an error for each key whose file would be that of another, or a folder of it.

    The keys are by the names of their files. Names that differ in case alone, or in how a
    letter is composed, are the same to some systems.
    """
    for name, other in find_collisions(keys):
        yield UnsafeNameError(
            f"this array and {shown_value(keys[other])} would be the same file, or one a folder "
            "of the other",
            key=keys[name], remedy="Extract only one of them.",
        )  # fmt: skip
