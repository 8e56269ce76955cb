"""Nested data in an archive that is being written: what its arrays go through, the note does.

Owns what the writer of an archive calls: `TreeEdits`, once its metadata has a note, and
`write_tree`. What an edit does to the note alone is `npzkit.trees.note_edits`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from typing import Any, cast

from npzkit.archive.renaming import rename
from npzkit.archive.written_archive import WrittenArchive
from npzkit.codecs.coding import Coding
from npzkit.errors import (
    REPLACE,
    Advice,
    ChecksumError,
    FormatError,
    ZipFormatError,
    shown_value,
    some_of,
)
from npzkit.members.keys import SUFFIX, check_key, is_within, taken
from npzkit.members.metadata import FLAT, TREE_KEY, check_tree_version, format_metadata
from npzkit.trees.note_edits import EditedNote, moved
from npzkit.trees.notes import items_of, kind_of, listed, needs_no_array, nodes_of, values_of

_NAMED_COUNT = 5
"""Most keys that a text about what is left out names."""


class TreeEdits:
    """What follows the edits of an archive whose metadata has a note."""

    def __init__(self, archive: WrittenArchive) -> None:
        self._archive = archive
        self._edited: EditedNote | None = None

    @property
    def note(self) -> EditedNote:
        """The note, to be asked and edited."""
        values, edited = self._archive.metadata.values, self._edited
        if edited is None or edited.note is not values[TREE_KEY]:
            # Users may have put another one in its place.
            edited = EditedNote(values[TREE_KEY], self._archive.listing.__contains__)
            self._edited, values[TREE_KEY] = edited, edited.note
        return edited

    def check_free(self, key: str, remedy: str = REPLACE) -> None:
        """Raise KeyExistsError if a key has a value, or a tied tensor, which has no array."""
        if self.note.has_value(key):
            raise taken(key, self._archive.path, remedy)

    def removed(self, key: str) -> None:
        """Note that an array is about to be removed, unless a tensor tied to it gets it."""
        self.hand_over(key.__eq__)
        self.note.take(key)
        self.drop_empty()

    def values_in(self, key: str) -> list[str]:
        """Return the keys of the values and empty containers at a key and below it."""
        return [at for at, note in self.note.items_in(key) if at and needs_no_array(note)]

    def removed_values(self, key: str) -> bool:
        """Remove what has no array at a key or below it, if no array is; return whether it did."""
        is_value = self.note.has_value(key)
        if not is_value and any(is_within(array, key) for array in self._archive.listing.keys):
            return False
        values = [key] if is_value else self.values_in(key)
        for value in values:
            self.note.take(value)
        self.drop_empty()
        return bool(values)

    def renamed(self, old: str, new: str, entry: Any) -> None:
        """Note that an array was renamed, whose entry was taken before."""
        self.note.move(old, new, entry)
        self.drop_empty()

    def hand_over(self, is_going: Callable[[str], bool]) -> None:
        """Keep the arrays of tied tensors that go under one key, and stay under another.

        Parameters
        ----------
        is_going : callable
            Returns whether what is under a key is about to be removed or replaced.
        """
        listing, note = self._archive.listing, self.note
        for key in [key for key in note.tied if is_going(key) and key in listing]:
            tied = note.tied_to(key)
            heirs = [other for other in tied if not is_going(other) and other not in listing]
            if heirs:
                try:
                    rename(self._archive, key, heirs[0], check_key(heirs[0]))
                except (ChecksumError, FormatError) as error:
                    error.remedy = (
                        f"Remove what is tied to it first: {some_of(heirs, shown_value)}."
                    )
                    raise

    def clear(self, key: str) -> None:
        """Note that all that is under a key is about to be removed."""
        self.hand_over(lambda other: is_within(other, key))
        self.note.clear(key)

    def drop_empty(self) -> None:
        """Remove a note that says nothing."""
        if self._archive.metadata.values.get(TREE_KEY) == {}:
            del self._archive.metadata.values[TREE_KEY]


def spell_out(archive: WrittenArchive) -> None:
    """List the keys of the arrays in a note that means all of them, before others are added."""
    values = archive.metadata.values
    if values.get(TREE_KEY) == FLAT:
        values[TREE_KEY] = listed(FLAT, archive.listing.keys)


def write_tree(
    archive: WrittenArchive,
    key: str,
    members: list[Any],
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
    spell_out(archive)
    old = {name for name in listing.entries if is_within(name.removesuffix(SUFFIX), key)}
    old.update(listing.others_of(key + SUFFIX))
    if not overwrite and (old or (archive.tree is not None and archive.tree.note.has(key))):
        raise taken(
            key, archive.path, remedy="Pass " + Advice("overwrite=True to add()", "--overwrite")
            + ", which replaces everything under this key.",
        )  # fmt: skip
    for name in old:
        listing.check_sealed(name.removesuffix(SUFFIX), name)
    for member in members:
        listing.check_all_free(member, overwrite=True)
    # Raised before anything is written.
    format_metadata({TREE_KEY: note})
    if archive.tree is not None:
        archive.tree.clear(key)
    for name in old & listing.entries.keys():
        listing.remove(name)
    last = next(reversed(listing.entries), "").removesuffix(SUFFIX)
    archive.write(members, coding, overwrite)
    if note is not None:
        values.setdefault(TREE_KEY, {})
    if archive.tree is not None:
        archive.tree.note.put_tree(key, note, None if members or not last else last)
        archive.tree.drop_empty()


def add_note(
    archive: WrittenArchive,
    note: Any,
    keys: Sequence[str],
    prefix: str,
    before: Set[str],
    *,
    overwrite: bool,
) -> str:
    """Add the note of another archive, whose arrays were just written; say what is left out.

    Each item of its root is added as a whole, or, if something else here is under its key,
    not at all: its arrays are plain ones then.

    Parameters
    ----------
    archive : WrittenArchive
    note : object
        Of the other archive.
    keys : sequence of str
        Of all arrays in the other archive.
    prefix : str
        What is before these keys here.
    before : set of str
        The keys of all other arrays that were here before, and of the folders that they are in,
        as `npzkit.members.keys.with_folders` names them.
    overwrite : bool
        Replace values that are here already.

    Returns
    -------
    str
        Which items are left out, with which values that need no array; empty if none.

    Raises
    ------
    UnsupportedError, ZipFormatError
        A newer npzkit wrote the note, or it is damaged.
    """
    check_tree_version(note)
    if note != FLAT and any(kind_of(one) is None for _, one in nodes_of(note)):
        raise ZipFormatError("the structure of the nested data is damaged")
    values = archive.metadata.values
    if not (TREE_KEY in values or before or prefix):
        values[TREE_KEY] = note
        return ""
    spell_out(archive)
    values.setdefault(TREE_KEY, {})
    tree = cast(TreeEdits, archive.tree)
    note = moved(listed(note, keys), prefix)
    items = {prefix[:-1]: note} if prefix else items_of(note)
    left = []
    for key in items:
        has_arrays = key in before or f"{key}/" in before
        if overwrite and not has_arrays:
            tree.note.clear(key)
        if has_arrays or tree.note.has(key):
            left.append(key)
    if prefix and not left:
        tree.note.put_tree(prefix[:-1], note, None)
    else:
        tree.note.put_items({key: item for key, item in items.items() if key not in left})
    tree.drop_empty()
    return _left_out({key: items[key] for key in left})


def _left_out(items: dict[str, Any]) -> str:
    """Return a text about items that are left out; empty if keys say all that their notes do."""
    told = {
        key: note for key, note in items.items()
        if any(kind_of(one) not in ("array", "mapping") for _, one in nodes_of(note))
    }  # fmt: skip
    if not told:
        return ""
    values = [below for key, note in told.items() for below in values_of(note, key)]
    without = f", without {some_of(values, shown_value, _NAMED_COUNT)}" if values else ""
    return f"nested data becomes plain keys{without}: the new archive has other data at " + some_of(
        [*told], shown_value, _NAMED_COUNT
    )
