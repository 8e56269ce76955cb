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
from npzkit.members.nesting import TREE_KEY, has_note, replace_note, with_note
from npzkit.writing.array_members import Member
from npzkit.zip.writer import Coding

__all__ = ["write_tree"]


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
    old = {name for name in contents.listed if is_within(name.removesuffix(SUFFIX), key)}
    noted = values.get(TREE_KEY)
    if not overwrite and (old or has_note(noted, key)):
        raise KeyExistsError(
            "this key is already in the archive", path=archive.path, key=key,
            remedy="Pass overwrite=True to add(), which replaces everything under this key.",
        )  # fmt: skip
    for name in old:
        archive.unsealed.check_sealed(name.removesuffix(SUFFIX), name)
    for member in members:
        contents.check_all_free(member, overwrite=True)
    hand_over(archive, lambda other: is_within(other, key))
    noted, old = values.get(TREE_KEY), old & contents.listed.keys()
    left = (name for name in reversed(contents.listed) if name not in old)
    last = next(left, "").removesuffix(SUFFIX).partition("/")[0] or None
    metadata = with_note(values, replace_note(noted, key, note, None if members else last))
    for name in old:
        contents.remove(name)
    archive.write(members, coding, overwrite)
    values.pop(TREE_KEY, None)
    values.update(metadata)
