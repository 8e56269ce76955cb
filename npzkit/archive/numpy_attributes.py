"""The attributes that NumPy's ``NpzFile`` also has: ``npz.f``, ``npz.zip`` and ``npz.fid``.

Owns these objects. ``f`` has the arrays as attributes. ``zip`` and ``fid`` are
made on first use, and closed with the archive unless they are the caller's.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping
from typing import Any

from npzkit.errors import ClosedArchiveError
from npzkit.files.source import Source, SourceFile, duplicate


class Handles:
    """The handles on one archive.

    Parameters
    ----------
    source : Source
    given_zip : zipfile.ZipFile, optional
        The caller's, which the archive was opened from.
    given_file : file object, optional
        The caller's, which the archive owns.
    """

    def __init__(self, source: Source, given_zip: zipfile.ZipFile | None, given_file: Any) -> None:
        self._source = source
        self._zip = given_zip
        self._zip_stream: io.BufferedReader | None = None
        self._file = given_file

    def zip(self, end_offset: int) -> zipfile.ZipFile:
        """Return a ZipFile onto the same archive, which ends at `end_offset`."""
        if self._zip is None:
            self._zip_stream = io.BufferedReader(SourceFile(self._source, end_offset))
            self._zip = zipfile.ZipFile(self._zip_stream)
        return self._zip

    def file(self, *, is_open: bool) -> Any:
        """Return a file object, or None if the archive was opened from a file not its own."""
        # A separate one: the archive's own is open for as long as a read is under way.
        if self._file is None and self._source.path is not None and is_open:
            self._file = duplicate(self._source)
        return self._file

    def close(self) -> None:
        """Close what was made here."""
        if self._zip is not None and self._zip_stream is not None:
            self._zip.close()
            self._zip_stream.close()
        if self._file is not None and self._source.path is not None:
            self._file.close()


def file_of(archive: zipfile.ZipFile) -> Any:
    """Return the file object of a caller's ZipFile, which must be open for reading."""
    if archive.fp is None:
        raise ClosedArchiveError("the zipfile.ZipFile is closed", remedy="Open it again.")
    if archive.mode != "r":
        raise ValueError(f"the zipfile.ZipFile must be open for reading, not in mode "
                         f"{archive.mode!r}")  # fmt: skip
    return archive.fp


class ArrayAttributes:
    """The arrays of an archive as attributes."""

    def __init__(self, npz: Mapping[str, Any]) -> None:
        self._npz = npz

    def __getattribute__(self, name: str) -> Any:
        npz = object.__getattribute__(self, "_npz")
        try:
            return npz[name]
        except KeyError as error:
            raise AttributeError(str(error)) from None

    def __dir__(self) -> list[str]:
        npz: Mapping[str, Any] = object.__getattribute__(self, "_npz")
        return list(npz)
