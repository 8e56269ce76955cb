"""How an archive is opened to be written: a new one, or an existing one to be appended to.

Owns which files may be appended to, which are refused unchanged, and what is
then known of the archive: its sink, its entries, its comment. Writes nothing
but what the last commit lacks.
"""

from __future__ import annotations

import os
from typing import Any, NamedTuple

from npzkit.codecs.checksum import crc32
from npzkit.errors import Advice, NpzkitError, UnsupportedError
from npzkit.files.any_sink import open_any_sink
from npzkit.files.append import appended_file
from npzkit.files.file_objects import can_write, check_regular
from npzkit.files.path_sink import PathSink
from npzkit.files.sink import FileSink, Sink
from npzkit.files.source import Source, WrittenSource, open_source
from npzkit.files.urls import Location
from npzkit.format.header import npy_header_size
from npzkit.zip.array_index import Notes, read_notes
from npzkit.zip.commit import LongComment, find_long_comment
from npzkit.zip.directory import Directory, check_last, comment_of, completion, read_directory
from npzkit.zip.writer import ZipWriter


class Resumed(NamedTuple):
    """An archive to write to.

    Attributes
    ----------
    sink : Sink
        At the end of the archive.
    listed : dict of str to bytes
        Its entries, by the members' names.
    notes : Notes
        What its array index keeps of them.
    comment : bytes
        Of any size.
    long_comment : LongComment or None
        Where it is, if its end record cannot hold it.
    directory, end : bytes
        Its entries, and its end: zip64's records, the end record, its comment.
    """

    sink: Sink
    listed: dict[str, bytes]
    notes: Notes
    comment: bytes
    long_comment: LongComment | None = None
    directory: bytes = b""
    end: bytes = b""

    def writer(self) -> ZipWriter:
        """Return what writes behind it; see `ZipWriter`."""
        long = None if self.long_comment is None else (self.comment, self.long_comment)
        return ZipWriter(
            self.sink, self.listed, self.notes, long, directory=self.directory, end=self.end,
            head_size=npy_header_size,
        )  # fmt: skip


def open_archive(file: Any, mode: str, *, durable: bool, lock_timeout: float) -> Resumed:
    """Open an archive to be written, in mode "w", "x" or "a"; see `npzkit.NpzWriter`."""
    if mode == "a":
        return _resume(file, durable=durable, lock_timeout=lock_timeout)
    return _begin(file, exclusive=mode == "x", durable=durable, lock_timeout=lock_timeout)


def _begin(file: Any, *, exclusive: bool, durable: bool, lock_timeout: float) -> Resumed:
    """Begin a new archive; see `npzkit.files.any_sink.open_any_sink`."""
    # Before there is a lock, which an interrupt would have to let go.
    notes = Notes()
    sink = open_any_sink(file, exclusive=exclusive, durable=durable, lock_timeout=lock_timeout)
    return Resumed(sink, {}, notes, b"")


def _resume(file: Any, *, durable: bool, lock_timeout: float) -> Resumed:
    """Open an archive to append to it; a new one if there is no file.

    Parameters
    ----------
    file : str, file object or Location
        A file object holds one archive from its first byte on, or nothing.
    durable, lock_timeout
        As of `npzkit.files.append.AppendedFile`.

    Raises
    ------
    ZipFormatError, AmbiguousArchiveError, UnsupportedError
        The file is not an archive, or is damaged. It is not changed.
    ArchiveLockedError
        Another writer has the file.
    OSError
        The path cannot be opened for writing.
    """
    if isinstance(file, Location):
        raise UnsupportedError(
            "an archive in a store cannot be added to", path=str(file),
            remedy="Copy it to a path with "
            + Advice("npzkit.repack(url, path)", "npzkit repack URL -o PATH")
            + ", add to that file, and upload it with "
            + Advice("npzkit.repack(path, url).", "npzkit repack PATH -o URL."),
        )  # fmt: skip
    if can_write(file):
        return _resume_file(file)
    try:
        check_regular(file)
    except FileNotFoundError:
        # For a link that leads nowhere, the file it names.
        new = os.path.realpath(file) if os.path.islink(file) else file
        return _begin(new, exclusive=True, durable=durable, lock_timeout=lock_timeout)
    opened = appended_file(file, durable=durable, lock_timeout=lock_timeout)
    sink = PathSink(opened)
    try:
        if not opened.size:
            sink.start_over()
            return Resumed(sink, {}, Notes(), b"")
        source = WrittenSource(opened.file, opened.size)
        directory, resumed = _read(source, sink)
        end = _complete(sink, directory, source)
        size = directory.end_offset - directory.directory_offset
        sink.resume(directory.end_offset, size, crc32(end, crc32(directory.data)))
        return resumed._replace(directory=directory.data, end=end)
    except BaseException as error:
        sink.abort()
        if isinstance(error, NpzkitError):
            error.locate(path=file)
        raise


def _complete(sink: Sink, directory: Directory, source: Source) -> bytes:
    """Write the mark of the last commit, if it is missing; return the bytes of its end."""
    for patch in completion(directory, source):
        sink.patch(*patch)
    behind = directory.directory_offset + directory.size
    return source.read_at(behind, directory.end_offset - behind)


def _resume_file(file: Any) -> Resumed:
    """Open an archive in a file object, which must be able to read, write and seek."""
    sink = FileSink(file, committed_size=0)
    if not sink.can_read:
        raise UnsupportedError(
            "only a plain file that reads, writes and seeks can be appended to",
            remedy="Pass the path, or an io.BytesIO; a file is opened with mode 'r+b'.",
        )
    source = open_source(file)
    if not source.size:
        return Resumed(sink, {}, Notes(), b"")
    directory, resumed = _read(source, sink)
    end = _complete(sink, directory, source)
    sink = FileSink(file, committed_size=directory.end_offset)
    return resumed._replace(sink=sink, directory=directory.data, end=end)


def _read(source: Source, sink: Sink) -> tuple[Directory, Resumed]:
    """Return the directory, and what is known of the archive."""
    directory = read_directory(source)
    check_last(directory, source)
    comment, long = comment_of(directory, source), find_long_comment(directory.comment)
    listed, notes = directory.listed_records(), read_notes(source, directory)
    return directory, Resumed(sink, listed, notes, comment, long)
