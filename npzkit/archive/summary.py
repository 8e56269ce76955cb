"""What is known of an archive and its members without reading data.

Owns where these facts are found. Their records, and the table of them, are
`npzkit.members.info`'s.
"""

from __future__ import annotations

from npzkit.archive.opened_archive import Explained, OpenedArchive
from npzkit.errors import ClosedArchiveError, NpzkitError, StaleArchiveError
from npzkit.files.source import Source
from npzkit.members.info import ArchiveInfo, ArrayInfo, describe, format_summary
from npzkit.members.metadata import parse_attrs
from npzkit.zip.directory import Directory
from npzkit.zip.sozip import find_index


def member_info(archive: OpenedArchive, key: str) -> ArrayInfo:
    """Return what is known of a member; see `npzkit.NpzFile.info`."""
    entry = archive.entry(key)
    with Explained(archive, key):
        known = archive.read_index().info(archive.listed_key(entry), entry, archive.keys)
    return read_info(archive, key) if known is None else known


def read_info(archive: OpenedArchive, key: str) -> ArrayInfo:
    """Return what is known of a member by its own headers."""
    entry = archive.entry(key)
    with Explained(archive, key):
        header, start = archive.reader.header(entry)
        attrs = parse_attrs(entry.extra)
        indexed = find_index(archive.reader.ends_of(entry), entry, start) is not None
    return describe(archive.listed_key(entry), entry, header, start, attrs, indexed=indexed)


def info_or_blank(archive: OpenedArchive, key: str) -> ArrayInfo:
    """Return what is known of a member; without shape and dtype if it cannot be read."""
    try:
        return archive.known_info(key) or member_info(archive, key)
    except (StaleArchiveError, ClosedArchiveError):
        raise
    except NpzkitError:
        entry = archive.entry(key)
        return describe(key, entry, None, entry.header_offset, {})


def archive_info(archive: OpenedArchive) -> ArchiveInfo:
    """Return what is known of the archive as a file; see `npzkit.NpzFile.archive_info`."""
    archive.check_open()
    with Explained(archive, None):
        return archive_facts(archive.path, archive.source, archive.directory)


def archive_facts(path: str | None, source: Source, directory: Directory) -> ArchiveInfo:
    """Return what a directory and its source say of an archive."""
    from npzkit.zip.dead_space import dead_size

    compressed_size, uncompressed_size = directory.sizes()
    return ArchiveInfo(
        path=path,
        size=source.file_size,
        member_count=len(directory.entries),
        start_offset=directory.start_offset,
        directory_offset=directory.directory_offset,
        directory_size=directory.size,
        end_offset=directory.end_offset,
        dead_size=dead_size(source, directory),
        torn_size=max(source.file_size - directory.end_offset, 0),
        comment=directory.comment,
        compressed_size=compressed_size,
        uncompressed_size=uncompressed_size,
    )


def format_archive(archive: OpenedArchive) -> str:
    """Return a table of the members as text."""
    with Explained(archive, None):
        archive.read_index().describe_all(archive.keys)
    infos = (info_or_blank(archive, key) for key in archive.keys)
    return format_summary(f"NpzFile {archive.source.name!r}", infos)
