"""What belongs to a directory's commit beside its entries: the comment, the intent and its mark.

Owns what the commit lacks of them after a crash, and whether they are damaged.
"""

from __future__ import annotations

from npzkit.codecs.checksum import crc32
from npzkit.errors import ZipFormatError
from npzkit.files.source import Source
from npzkit.zip.commit_marks import (
    INTENT_SIZE,
    MARK_OFFSET,
    Mark,
    format_mark,
    is_intent,
    parse_mark,
    read_comment,
)
from npzkit.zip.directory import Directory
from npzkit.zip.last_commit import another_archive
from npzkit.zip.records import END_SIGNATURE


def comment_of(directory: Directory, source: Source, size_limit: int | None = None) -> bytes:
    """Return the archive's comment, also one that its end record cannot hold.

    Raises
    ------
    ZipFormatError
        It does not fit its checksum in the array index.
    ZipFormatError, LimitExceededError
        As `npzkit.zip.commit_marks.read_comment`.
    """
    comment, footer = directory.comment, directory.footer
    if footer is not None and not footer.fits_comment(comment):
        raise ZipFormatError(
            "the archive's metadata is damaged: the comment does not fit its CRC-32",
            offset=directory.end_offset - len(comment),
            found=f"{crc32(comment):#010x}",
            expected=f"{footer.comment_crc32:#010x}",
            remedy="npzkit.repair(path, output) saves the arrays without it.",
        )
    bounds = directory.start_offset, directory.directory_offset
    return read_comment(source, comment, *bounds, size_limit)


def completion(directory: Directory, source: Source) -> list[tuple[int, bytes]]:
    """Return what the commit lacks, and where: seals, and the mark of its intent."""
    patches = [(offset, END_SIGNATURE) for offset in directory.unsealed]
    found = read_intent(directory, source)
    if found is None:
        return patches
    offset, intent = found
    start, records_offset = directory.start_offset, directory.directory_offset + directory.size
    end = bytearray(source.read_at(records_offset, directory.end_offset - records_offset))
    for place, seal in patches[-1:]:
        end[place - records_offset : place - records_offset + len(seal)] = seal
    mark = Mark(
        directory.directory_offset - start, records_offset - start, directory.end_offset - start,
        crc32(end),
    )  # fmt: skip
    if is_intent(intent) and parse_mark(intent) != mark:
        patches.append((offset + MARK_OFFSET, format_mark(intent, mark)))
    return patches


def check_last(directory: Directory, source: Source) -> None:
    """Raise AmbiguousArchiveError if what follows the archive must not be cut off."""
    if directory.is_joined:
        raise another_archive(source, directory.end_offset, "the first archive")


def read_intent(directory: Directory, source: Source) -> tuple[int, bytes] | None:
    """Return where the intent of the commit is, and its bytes; None if there is none."""
    footer = directory.footer
    room = directory.directory_offset - directory.start_offset - INTENT_SIZE
    if footer is None or not 0 < footer.intent_offset <= room:
        return None
    offset = directory.start_offset + footer.intent_offset
    return offset, source.read_at(offset, INTENT_SIZE)
