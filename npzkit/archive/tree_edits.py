"""Arrays that get other keys, and nested data in the place of what is under a key.

Owns what is done to several members, or to a member and the note of nested data, at once:
a rename, a tree that is added, an array of tied tensors that goes. A member is copied to be
renamed, because its name is also stored before its data, and committed bytes are never
changed. How nested data becomes arrays and a note is `npzkit.members.containers`'s.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from npzkit.archive.written_archive import WrittenArchive
from npzkit.codecs.coding import Coding
from npzkit.errors import KeyExistsError, NpzkitError, UnsupportedError
from npzkit.files.source import WrittenSource
from npzkit.members.keys import SUFFIX, check_key, is_within
from npzkit.members.metadata import FLAT, TREE_KEY, format_metadata
from npzkit.members.notes import listed
from npzkit.writing.array_members import Member
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
    old, new = old_name.removesuffix(SUFFIX), name.removesuffix(SUFFIX)
    places = {old_name: name}
    for other in listing.others_of(old_name):
        places[other] = check_key(new + other.removesuffix(SUFFIX).removeprefix(old))
    for place in places.values():
        listing.check_free(place.removesuffix(SUFFIX), place)
    if not archive.sink.can_read:
        raise UnsupportedError(
            "the file object cannot be read, which renaming needs",
            path=archive.path, key=old,
            remedy="Write the archive to a path.",
        )  # fmt: skip
    listing.apply_attrs()
    tree, entry = archive.tree, None
    source = WrittenSource(archive.sink, archive.sink.position)
    try:
        members = {part: parse_entry(listing.entries[part], source.size) for part in places}
        for member in members.values():
            check_copyable(source, member)
        if tree is not None:
            entry = tree.take(old)
        for part, member in members.items():
            # After all others: it takes its place in the order at once.
            with archive.state.giving_up():
                renamed = rename_entry(member, places[part])
                find_list = partial(archive.zip.find_list, source)
                copy_member(source, member, archive.zip, find_list, renamed=renamed)
            listing.move(part, places[part])
    except NpzkitError as error:
        raise error.locate(path=archive.path, key=old) from error.__cause__
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
    listing = archive.listing
    tree = archive.tree
    for key, others in {} if tree is None else tree.tied().items():
        heirs = [other for other in others if not is_going(other) and other not in listing]
        if heirs and is_going(key) and key in listing:
            rename(archive, key, heirs[0], check_key(heirs[0]))


def write_tree(
    archive: WrittenArchive,
    key: str,
    members: list[Member],
    note: Any,
    coding: Coding,
    overwrite: bool,
) -> None:
    """Write the arrays of a tree, and note its structure in the metadata.

    Parameters
    ----------
    archive : WrittenArchive
    key : str
        Of the tree.
    members : list of Member
        Its arrays.
    note : object
        Its structure.
    coding : Coding
    overwrite : bool
        Replace all that is under the key.
    """
    listing, values = archive.listing, archive.metadata.values
    if values.get(TREE_KEY) == FLAT:
        values[TREE_KEY] = listed(FLAT, listing.keys)
    old = {name for name in listing.entries if is_within(name.removesuffix(SUFFIX), key)}
    old.update(listing.others_of(key + SUFFIX))
    if not overwrite and (old or (archive.tree is not None and archive.tree.has(key))):
        raise KeyExistsError(
            "this key is already in the archive", path=archive.path, key=key,
            remedy="Pass overwrite=True to add(), which replaces everything under this key.",
        )  # fmt: skip
    for name in old:
        listing.check_sealed(name.removesuffix(SUFFIX), name)
    for member in members:
        listing.check_all_free(member, overwrite=True)
    # Raised before anything is written.
    format_metadata({TREE_KEY: note})
    hand_over(archive, lambda other: is_within(other, key))
    tree = archive.tree
    if tree is not None:
        tree.clear(key)
    for name in old & listing.entries.keys():
        listing.remove(name)
    last = next(reversed(listing.entries), "").removesuffix(SUFFIX)
    archive.write(members, coding, overwrite)
    if tree is None and note is not None:
        values[TREE_KEY] = {}
        tree = archive.tree
    if tree is not None:
        tree.put_tree(key, note, None if members or not last else last)
        archive.drop_empty_note()
