"""Nested data added to an archive under one key.

Owns that a tree is written in the place of what is under its key: all of it, or
nothing. How nested data becomes arrays and a note is `npzkit.members.nesting`'s.
"""

from __future__ import annotations

from typing import Any

from npzkit.archive.renaming import hand_over
from npzkit.archive.written_archive import WrittenArchive
from npzkit.errors import KeyExistsError
from npzkit.members.containers import is_within
from npzkit.members.keys import SUFFIX
from npzkit.members.metadata import TREE_KEY, format_metadata
from npzkit.members.notes import FLAT, listed
from npzkit.writing.array_members import Member
from npzkit.zip.member_writer import Coding


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
    contents, values = archive.contents, archive.metadata.values
    if values.get(TREE_KEY) == FLAT:
        values[TREE_KEY] = listed(FLAT, contents.keys)
    old = {name for name in contents.listed if is_within(name.removesuffix(SUFFIX), key)}
    if not overwrite and (old or (archive.tree is not None and archive.tree.has(key))):
        raise KeyExistsError(
            "this key is already in the archive", path=archive.path, key=key,
            remedy="Pass overwrite=True to add(), which replaces everything under this key.",
        )  # fmt: skip
    for name in old:
        archive.unsealed.check_sealed(name.removesuffix(SUFFIX), name)
    for member in members:
        contents.check_all_free(member, overwrite=True)
    # Raised before anything is written.
    format_metadata({TREE_KEY: note})
    hand_over(archive, lambda other: is_within(other, key))
    tree = archive.tree
    if tree is not None:
        tree.clear(key)
    for name in old & contents.listed.keys():
        contents.remove(name)
    last = next(reversed(contents.listed), "").removesuffix(SUFFIX)
    archive.write(members, coding, overwrite)
    if tree is None and note is not None:
        values[TREE_KEY] = {}
        tree = archive.tree
    if tree is not None:
        tree.put_tree(key, note, None if members or not last else last)
        archive.drop_empty_note()
