"""How an array gets another key.

Owns the rename of one member. The member is copied, because its name is also
stored before its data, and committed bytes are never changed. If an array of
tied tensors is removed, it is renamed to the next key that has it.
"""

from __future__ import annotations

from collections.abc import Callable

from npzkit.archive.written_archive import WrittenArchive
from npzkit.errors import NpzkitError, UnsupportedError
from npzkit.files.sink import WrittenSource
from npzkit.members.keys import SUFFIX, check_key
from npzkit.writing.copy import check_copyable, copy_member, rename_entry
from npzkit.zip.entries import parse_entry


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
    old, new = old_name.removesuffix(SUFFIX), name.removesuffix(SUFFIX)
    tree, entry = archive.tree, None
    source = WrittenSource(archive.sink, archive.sink.position)
    try:
        member = parse_entry(contents.listed[old_name], source.size)
        check_copyable(source, member)
        if tree is not None:
            entry = tree.take(old)
        # After all others: it takes its place in the order below.
        with archive.state.giving_up():
            copy_member(source, member, archive.zip, renamed=rename_entry(member, name))
    except NpzkitError as error:
        raise error.locate(path=archive.path, key=old) from error.__cause__
    contents.move(old_name, name)
    if tree is not None:
        tree.move(old, new, entry)
        archive.drop_empty_note()


def hand_over(archive: WrittenArchive, is_going: Callable[[str], bool]) -> None:
    """Keep the arrays of tied tensors that go under one key, and stay under another.

    Parameters
    ----------
    archive : WrittenArchive
    is_going : callable
        Returns whether what is under a key is about to be removed or replaced.
    """
    contents = archive.contents
    tree = archive.tree
    for key, others in {} if tree is None else tree.tied().items():
        heirs = [other for other in others if not is_going(other) and other not in contents]
        if heirs and is_going(key) and key in contents:
            rename(archive, key, heirs[0], check_key(heirs[0]))
