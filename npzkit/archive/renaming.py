"""How an array gets another key.

Owns the rename of one member. Its name also stands before its data, where
committed bytes are never changed: the member is copied.
"""

from __future__ import annotations

from npzkit.archive.written_archive import WrittenArchive
from npzkit.errors import NpzkitError, UnsupportedError
from npzkit.files.sink import WrittenSource
from npzkit.members.keys import SUFFIX
from npzkit.writing.copy import check_copyable, copy_member, rename_entry
from npzkit.zip.entry_records import entry_of

__all__ = ["rename"]


def rename(archive: WrittenArchive, old: str, new: str, name: str) -> None:
    """Give the array `old` the key `new`, in its place; see `NpzWriter.rename`.

    Parameters
    ----------
    archive : WrittenArchive
    old, new : str
    name : str
        The member name for the key `new`.
    """
    contents = archive.contents
    old_name = contents.find(old)
    if not old_name.endswith(SUFFIX):
        # A member that is not an array keeps a name without the suffix.
        name = new
    if name == old_name:
        return
    contents.check_free(new, name)
    if not archive.sink.can_read:
        raise UnsupportedError(
            "the file object cannot be read, which renaming needs",
            path=archive.path, key=old,
            remedy="Write the archive to a path.",
        )  # fmt: skip
    contents.apply_attrs()
    try:
        _copy(archive, old_name, name)
    except NpzkitError as error:
        raise error.locate(path=archive.path, key=old) from error.__cause__
    contents.move(old_name, name)


def _copy(archive: WrittenArchive, old_name: str, name: str) -> None:
    """Write a copy of a member under another name, behind all others."""
    source = WrittenSource(archive.sink, archive.sink.position)
    entry = entry_of(archive.contents.listed[old_name], source.size)
    check_copyable(source, entry)
    with archive.state.giving_up():
        copy_member(source, entry, archive.zip, renamed=rename_entry(entry, name))
