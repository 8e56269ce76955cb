"""An array that gets another key.

Owns the copy of its members under their new names, and their place in the order. A member is
copied to be renamed, because its name is also stored before its data, and committed bytes are
never changed.
"""

from __future__ import annotations

from functools import partial

from npzkit.archive.written_archive import WrittenArchive
from npzkit.errors import REMOVE_FIRST, NpzkitError, UnsupportedError
from npzkit.files.source import WrittenSource
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
    listing = archive.listing
    old_name = listing.find(old)
    if not old_name.endswith(SUFFIX):
        # A member that is not an array keeps a name without the suffix.
        name = new
    if name == old_name:
        return
    listing.check_whole(old_name)
    old, new = old_name.removesuffix(SUFFIX), name.removesuffix(SUFFIX)
    places = {old_name: name}
    for other in listing.others_of(old_name):
        places[other] = check_key(new + other.removesuffix(SUFFIX).removeprefix(old))
    for place in places.values():
        listing.check_free(place.removesuffix(SUFFIX), place, remedy=REMOVE_FIRST)
    # A tensor that is tied to it gets its array.
    if archive.tree is not None and new not in archive.tree.note.tied_to(old):
        archive.tree.check_free(new, REMOVE_FIRST)
    if not archive.sink.can_read:
        raise UnsupportedError(
            "the file object cannot be read, which renaming needs",
            path=archive.path, key=old,
            remedy="Write the archive to a path.",
        )  # fmt: skip
    listing.apply_attrs()
    entry = None
    source = WrittenSource(archive.sink, archive.sink.position)
    try:
        members = {part: parse_entry(listing.entries[part], source.size) for part in places}
        for member in members.values():
            check_copyable(source, member)
        if archive.tree is not None:
            entry = archive.tree.note.take(old)
        for part, member in members.items():
            # After all others: it takes its place in the order at once.
            with archive.state.giving_up():
                renamed = rename_entry(member, places[part])
                find_list = partial(archive.zip.find_list, source)
                copy_member(source, member, archive.zip, find_list, renamed=renamed)
            listing.move(part, places[part])
    except NpzkitError as error:
        raise error.locate(path=archive.path, key=old) from error.__cause__
    if archive.tree is not None:
        archive.tree.renamed(old, new, entry)
