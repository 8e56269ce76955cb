"""What an archive has while it is written: its members, and their attributes.

Owns the listing: how a key finds its member, which key is free, which arrays are created
and not sealed yet, and what the next commit writes of attributes that were changed. Writes
nothing: a commit does.
"""

from __future__ import annotations

from collections.abc import Set
from itertools import repeat
from typing import TYPE_CHECKING, Any

from npzkit.errors import REMOVE_FIRST, REPLACE, KeyExistsError, UnsupportedError, shown_value
from npzkit.members.keys import SUFFIX, keys_of, member_of, missing, taken
from npzkit.members.metadata import (
    PARTS_ATTRIBUTE,
    CheckedValues,
    check_attrs,
    format_attrs,
    other_suffixes,
    own_attrs,
    parse_attrs,
    user_attrs,
)
from npzkit.writing.array_members import SmallArrays
from npzkit.zip.extra_fields import CHANGED_NAME, KEY_VALUE_PAIRS_ID
from npzkit.zip.records import ENTRY_LAYOUT
from npzkit.zip.writer import ZipWriter
from npzkit.zip.written_header import with_block

if TYPE_CHECKING:
    from npzkit.writing.array_bytes import Prepared
    from npzkit.writing.created_array import CreatedArray


_REPLACE_ATTRS = (
    "To replace it: add(key, array, overwrite=True), with attrs=writer.attrs(key) to keep its "
    "attributes. Or use another key."
)


class MemberListing:
    """The members of one archive, by key.

    Parameters
    ----------
    writer : ZipWriter
        Holds the listing.
    path : str
        For messages.

    Attributes
    ----------
    is_edited : bool
        Whether something was changed that added no bytes to the file.
    has_dead : bool
        Whether bytes of the file were given up. Looking for them takes as long
        as a small save.
    growing : CreatedArray or None
        The created array that grows: nothing else can be written until it is sealed.
    """

    def __init__(self, writer: ZipWriter, path: str) -> None:
        self._zip, self._path = writer, path
        self._attrs: dict[str, dict[str, Any]] = {}
        self._created: list[CreatedArray] = []
        # Members that are no arrays: their names may collide with keys.
        self._has_bare = not all(map(str.endswith, writer.listed, repeat(SUFFIX)))
        self.is_edited = False
        self.has_dead = False
        self.growing: CreatedArray | None = None

    @property
    def entries(self) -> dict[str, bytes]:
        """The directory's entries, by the members' names."""
        return self._zip.listed

    @property
    def keys(self) -> list[str]:
        return keys_of(self.entries.keys())

    def __len__(self) -> int:
        return len(self.entries)

    def __contains__(self, key: object) -> bool:
        return member_of(key, self.entries) is not None

    def find(self, key: str) -> str:
        """Return the name of the member that a key means, which must be sealed.

        Raises
        ------
        MemberNotFoundError, ValueError
            No such key, or the array is being created.
        """
        name = member_of(key, self.entries)
        if name is None:
            raise missing(key, self.keys, self._path)
        self.check_sealed(key, name)
        return name

    def others_of(self, name: str) -> list[str]:
        """Return the names of the members that an array has besides its first one, `name`.

        Raises
        ------
        ValueError
            One of them is being created.
        """
        record = self.entries.get(name, b"")
        if PARTS_ATTRIBUTE.encode() not in record:
            return []
        key = name.removesuffix(SUFFIX)
        keys = [key + suffix for suffix in other_suffixes(_attrs_in(record))]
        return [self.find(other) for other in keys if other + SUFFIX in self.entries]

    def check_whole(self, name: str) -> None:
        """Raise UnsupportedError for a part of an array other than its first one."""
        key = name.removesuffix(SUFFIX)
        owner = key.rpartition(".")[0]
        if owner and name in self.others_of(owner + SUFFIX):
            raise UnsupportedError(
                "this is a part of an array that is saved in several", path=self._path, key=key,
                remedy=f"Rename or remove {shown_value(owner)}, which takes its parts along.",
            )  # fmt: skip

    # -- places -------------------------------------------------------------

    def check_free(
        self, key: str, name: str, *, overwrite: bool = False, remedy: str | None = None
    ) -> None:
        """Raise unless a member of this name can be written now.

        Raises
        ------
        KeyExistsError, ValueError
            The name is taken, or an array that is being created is in the way.
        """
        self.check_none_grows("another is written")
        # Of two members that differ only in the suffix, readers find the bare one.
        if (key if name != key else key + SUFFIX) in self.entries:
            raise KeyExistsError(
                "the archive has a member of this name that is not an array; either would hide "
                "the other",
                path=self._path, key=key, remedy=REMOVE_FIRST,
            )  # fmt: skip
        if name not in self.entries:
            return
        if not overwrite:
            usual_remedy = _REPLACE_ATTRS if self._has_attrs(name) else REPLACE
            raise taken(key, self._path, remedy=remedy or usual_remedy)
        self.check_sealed(key, name)

    def check_all_free(self, member: Prepared | SmallArrays, *, overwrite: bool) -> None:
        """Raise unless a member, or each of several small ones, can be written now."""
        for name in member.names if isinstance(member, SmallArrays) else (member.name,):
            self.check_free(name.removesuffix(SUFFIX), name, overwrite=overwrite)

    def find_taken(self, arrays: SmallArrays, *, overwrite: bool) -> Set[str]:
        """Return the names of small arrays that replace members, once they may be written."""
        taken = self.entries.keys() & arrays.names
        if taken or self.growing is not None or self._has_bare:
            self.check_all_free(arrays, overwrite=overwrite)
        return taken

    def give_way(self, name: str) -> None:
        """Forget what is known of a member that is replaced, if there is one of this name."""
        if name in self.entries:
            self._attrs.pop(name, None)
            self.has_dead = True

    def remove(self, name: str) -> None:
        """List a member no longer."""
        self.give_way(name)
        del self.entries[name]
        self.is_edited = True

    def move(self, old: str, new: str) -> None:
        """Put the last member, a copy of `old` with the name `new`, in the place of `old`."""
        record = self.entries.pop(new)
        self._zip.listed = {
            (new if name == old else name): (record if name == old else kept)
            for name, kept in self.entries.items()
        }
        self._attrs.pop(old, None)
        self.has_dead = True

    # -- created arrays -----------------------------------------------------

    def begin(self, created: CreatedArray, *, grows: bool) -> None:
        """Note that an array was begun."""
        self._created.append(created)
        if grows:
            self.growing = created

    def sealed(self, created: CreatedArray) -> None:
        """Note that an array is complete."""
        self._created.remove(created)
        if created is self.growing:
            self.growing = None
        # Its place may lie before the last commit already.
        self.is_edited = True

    def seal_all(self) -> None:
        for created in list(self._created):
            created.close()

    @property
    def can_move(self) -> bool:
        """Whether members may get other places: no array is being created."""
        return not self._created

    def unmap_created(self) -> None:
        """Have the arrays that are being created map the file again when they need it."""
        for created in self._created:
            created._unmap()

    def forget_created(self) -> None:
        """Let no array accept more data: the archive is complete or discarded."""
        for created in self._created:
            created._forget()
        self._created.clear()
        self.growing = None

    def check_none_grows(self, action: str) -> None:
        """Raise ValueError if an array is still growing; `action` is what must wait for it."""
        if self.growing is not None:
            raise ValueError(
                f"the array {self.growing.key!r} is still growing; close it before {action}"
            )

    def check_sealed(self, key: str, name: str) -> None:
        """Raise ValueError if the member of this name is being created."""
        if any(created.key + SUFFIX == name for created in self._created):
            raise ValueError(f"the array {key!r} is being created; close it first")

    # -- attributes ---------------------------------------------------------

    def attrs(self, name: str) -> dict[str, Any]:
        """Return a member's attributes as a dict to be changed, the same one each time."""
        if name not in self._attrs:
            found = user_attrs(_attrs_in(self.entries[name]))
            self._attrs[name] = CheckedValues(found, "attributes")
        return self._attrs[name]

    def _has_attrs(self, name: str) -> bool:
        """Return whether a member has attributes; one that is being created has no entry yet."""
        record = self.entries[name]
        return bool(self._attrs.get(name) or (record and user_attrs(_attrs_in(record))))

    def apply_attrs(self) -> None:
        """Replace the entries of members whose attributes were changed.

        Raises
        ------
        LimitExceededError, ValueError, TypeError
            Attributes that are too long, or that JSON cannot express.
        """
        changed = {}
        for name, attrs in self._attrs.items():
            record = self.entries[name]
            before = _attrs_in(record)
            if attrs != user_attrs(before):
                check_attrs(attrs)
                block = format_attrs({**attrs, **own_attrs(before), CHANGED_NAME: ""})
                changed[name] = with_block(record, KEY_VALUE_PAIRS_ID, block)
        if changed:
            self.entries.update(changed)
            self.is_edited = True


def _attrs_in(record: bytes) -> dict[str, Any]:
    return parse_attrs(ENTRY_LAYOUT.parse(record).extra)
