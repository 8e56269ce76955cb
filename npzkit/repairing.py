"""Making a damaged archive whole again.

Owns what is cut off, what is kept and what is said of it. Knows nothing of
arrays.
"""

from __future__ import annotations

import os
from typing import Any, NamedTuple

from npzkit.copying import copy_member
from npzkit.disk import File
from npzkit.errors import NpzkitError
from npzkit.keys import keys_of
from npzkit.limits import Limits
from npzkit.locking import check_timeout, lock_path
from npzkit.path_sink import open_sink
from npzkit.source import Source, open_source
from npzkit.zip.directory import Directory, read_directory
from npzkit.zip.writer import ZipWriter

__all__ = ["RepairReport", "repair"]


class RepairReport(NamedTuple):
    """What became of an archive.

    Attributes
    ----------
    output : str
        The path of the archive that is whole.
    kept : tuple of str
        The keys it has.
    cut_size : int
        Bytes of an append that was cut short, which are not in it.
    """

    output: str
    kept: tuple[str, ...]
    cut_size: int

    def __str__(self) -> str:
        count = f"{len(self.kept)} member{'' if len(self.kept) == 1 else 's'} kept"
        cut = f", {self.cut_size} bytes of an unfinished append cut off" if self.cut_size else ""
        return f"{self.output}: {count}{cut}"


def repair(
    path: str | os.PathLike[str],
    output: Any = None,
    *,
    lock_timeout: float | None = None,
) -> RepairReport:
    """Cut off what an interrupted append left behind an archive.

    Parameters
    ----------
    path : path
    output : path, optional
        Where the archive is to be written; None cuts the file itself. No byte
        that counts is touched then, and a file that is whole not at all.
    lock_timeout : float, optional
        Seconds to wait where another writer has the file.

    Returns
    -------
    RepairReport

    Raises
    ------
    ZipFormatError, AmbiguousArchiveError, UnsupportedError
        No archive is there, not even one that was committed before.
    ArchiveLockedError
        Another writer has the file: what it writes is no damage.
    OSError
        The file cannot be read or written.

    Examples
    --------
    >>> import os, tempfile, npzkit, numpy as np
    >>> path = os.path.join(tempfile.mkdtemp(), "a.npz")
    >>> npzkit.save(path, {"x": np.arange(3)})
    >>> with open(path, "ab") as file:
    ...     _ = file.write(b"half an array")
    >>> npzkit.repair(path).cut_size
    13
    >>> with npzkit.open(path) as npz:
    ...     npz["x"]
    array([0, 1, 2])
    """
    path = os.fsdecode(path)
    lock = lock_path(path, check_timeout(lock_timeout))
    try:
        source = open_source(path)
        try:
            size = source.size
            directory = read_directory(source, silent=True, limits=Limits())
            if output is None:
                output = path
                _cut(path, directory.end_offset)
            else:
                output = os.fsdecode(output)
                _copy(source, directory, output)
        finally:
            source.close()
    except NpzkitError as error:
        raise error.locate(path=path) from error.__cause__
    finally:
        lock.release()
    return RepairReport(
        output, tuple(keys_of(directory.entries.keys())), size - directory.end_offset
    )


def _cut(path: str, end_offset: int) -> None:
    file = File(path)
    try:
        if file.size > end_offset:
            file.truncate(end_offset)
            file.sync()
    finally:
        file.close()


def _copy(source: Source, directory: Directory, output: str) -> None:
    sink = open_sink(output)
    try:
        writer = ZipWriter(sink)
        for entry in directory.entries.values():
            copy_member(source, entry, writer, verify=False)
        writer.commit(directory.comment)
    except BaseException:
        sink.abort()
        raise
    sink.close()
