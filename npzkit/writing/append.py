"""How an archive that is there is opened to be written behind.

Owns what may be appended to and what is refused untouched, and what is known
of the archive then: its sink, its entries, its comment. Writes nothing.
"""

from __future__ import annotations

import os
from typing import Any, NamedTuple

from npzkit.errors import NpzkitError, UnsupportedError
from npzkit.files.path_sink import PathSink, open_sink
from npzkit.files.sink import FileSink, Sink, WrittenSource
from npzkit.files.source import Source, open_source
from npzkit.limits import Limits
from npzkit.zip.directory import Directory, read_directory
from npzkit.zip.raw_entries import read_listed

__all__ = ["Resumed", "begin", "resume"]


class Resumed(NamedTuple):
    """An archive to write to.

    Attributes
    ----------
    sink : Sink
        Behind the archive's last byte.
    listed : dict of str to bytes
        Its entries, by the members' names.
    comment : bytes
    """

    sink: Sink
    listed: dict[str, bytes]
    comment: bytes


def begin(file: Any, *, exclusive: bool, durable: bool, lock_timeout: float) -> Resumed:
    """Begin a new archive; see `npzkit.files.path_sink.open_sink`."""
    sink = open_sink(file, exclusive=exclusive, durable=durable, lock_timeout=lock_timeout)
    return Resumed(sink, {}, b"")


def resume(file: Any, *, durable: bool, lock_timeout: float) -> Resumed:
    """Open an archive to write behind it; a new one where there is no file.

    Parameters
    ----------
    file : str or file object
        A file object holds one archive from its first byte on, or nothing.
    durable, lock_timeout
        As of `PathSink`.

    Raises
    ------
    ZipFormatError, AmbiguousArchiveError, UnsupportedError
        What is there is no archive, or a damaged one. It is not touched.
    ArchiveLockedError
        Another writer has it.
    OSError
        The path cannot be opened for writing.
    """
    if hasattr(file, "write"):
        return _resume_file(file)
    if not os.path.exists(file):
        # Of a link that leads nowhere, the file it names.
        new = os.path.realpath(file) if os.path.islink(file) else file
        return begin(new, exclusive=True, durable=durable, lock_timeout=lock_timeout)
    sink = PathSink(file, resume=True, durable=durable, lock_timeout=lock_timeout)
    try:
        source = WrittenSource(sink, os.fstat(sink.descriptor).st_size)
        directory, listed = _read(source)
        if listed or directory.directory_offset:
            sink.resume(directory.end_offset, directory.end_offset - directory.directory_offset)
    except BaseException as error:
        sink.close()
        if isinstance(error, NpzkitError):
            error.locate(path=file)
        raise
    if not listed and not directory.directory_offset:
        # A first member behind an end record is nothing that np.load reads.
        sink.close()
        sink = PathSink(file, durable=durable, lock_timeout=lock_timeout)
    return Resumed(sink, listed, directory.comment)


def _resume_file(file: Any) -> Resumed:
    """Open an archive in a file object, which must read, write and seek."""
    sink = FileSink(file, committed_size=0)
    if not sink.can_read:
        raise UnsupportedError(
            "only a plain file that reads, writes and seeks can be appended to",
            remedy="Pass the path, or an io.BytesIO; a file is opened with mode 'r+b'.",
        )
    source = open_source(file)
    if not source.size:
        return Resumed(sink, {}, b"")
    directory, listed = _read(source)
    size = directory.end_offset if listed or directory.directory_offset else 0
    return Resumed(FileSink(file, committed_size=size), listed, directory.comment)


def _read(source: Source) -> tuple[Directory, dict[str, bytes]]:
    directory = read_directory(source, limits=Limits())
    return directory, read_listed(source, directory)
