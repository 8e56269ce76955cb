"""What is known of an archive that is read from front to back, without its data.

Owns what is kept of such a stream: the NPY header of each member.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from typing import Any

from npzkit.archive.single_file import archive_facts
from npzkit.errors import NoDataError, NpzkitError
from npzkit.format.header import NpyHeader
from npzkit.limits import Limits
from npzkit.members.info import ArchiveInfo, ArrayInfo, describe
from npzkit.members.keys import member_of, missing
from npzkit.members.metadata import parse_attrs, parse_metadata
from npzkit.reading.member_headers import check_nbytes
from npzkit.reading.streaming import StreamedArchive, entries_by_key
from npzkit.zip.member_checks import data_offset
from npzkit.zip.sozip import find_index


class StreamListing:
    """The members of an archive in a stream, which is read to its end and not kept.

    It has the methods of `npzkit.NpzFile` that need no data: ``files``, ``info``,
    ``metadata``, ``archive_info`` and ``file_size``. The data is not checked.

    Parameters
    ----------
    stream : object with ``read``
    limits : Limits, optional

    Raises
    ------
    NpzkitError, OSError
        As `npzkit.iter_arrays`.

    Examples
    --------
    >>> import io, npzkit, numpy as np
    >>> stream = io.BytesIO()
    >>> npzkit.save(stream, {"x": np.arange(3), "y": np.eye(2)})
    >>> _ = stream.seek(0)
    >>> listing = npzkit.StreamListing(stream)
    >>> listing.files, listing.info("y").shape
    (['x', 'y'], (2, 2))
    """

    def __init__(self, stream: Any, limits: Limits | None = None) -> None:
        archive = StreamedArchive(stream, limits or Limits(), keeps_hidden=True)
        self._archive = archive
        self._headers: dict[int, NpyHeader | NpzkitError | None] = {}
        for _, member in archive:
            offset = member.entry.header_offset
            try:
                self._headers[offset] = archive.read_header(member)
            except NoDataError:
                break
            except NpzkitError as error:
                self._headers[offset] = error
        try:
            self._directory = archive.read_directory()
        except NpzkitError as error:
            raise error.locate(path=archive.path) from error.__cause__
        self._entries = entries_by_key(self._directory)

    @property
    def files(self) -> list[str]:
        """The keys, in the archive's order."""
        return list(self._entries)

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    @functools.cached_property
    def metadata(self) -> Mapping[str, Any]:
        """The archive's metadata."""
        limit = self._archive.limits.metadata_size
        return parse_metadata(self._directory.read_comment(self._archive.source, limit), limit)

    @property
    def file_size(self) -> int:
        """Bytes of the archive, of which the stream had as many."""
        return self._archive.source.file_size

    def info(self, key: str) -> ArrayInfo:
        """Return details of an array; see `npzkit.NpzFile.info`."""
        name = member_of(key, self._directory.entries)
        if name is None:
            raise missing(key, self.files, self._archive.path)
        try:
            return self._info(key, name)
        except NpzkitError as error:
            error.locate(path=self._archive.path, key=key)
            raise

    def _info(self, key: str, name: str) -> ArrayInfo:
        entry = self._directory.entries[name]
        header = self._headers.get(entry.header_offset)
        if isinstance(header, NpzkitError):
            raise header
        self._archive.check(entry)
        if header is not None:
            check_nbytes(header, entry)
        start = data_offset(self._archive.source, entry)
        indexed = find_index(self._archive.source, entry, start) is not None
        return describe(key, entry, header, start, parse_attrs(entry.extra), indexed=indexed)

    def archive_info(self) -> ArchiveInfo:
        """Return details of the archive as a file; see `npzkit.NpzFile.archive_info`."""
        return archive_facts(self._archive.path, self._archive.source, self._directory)
