"""Which members an archive has while it is written.

Owns the listing: how a key finds its member, which key is free, and what a
change of the listing leaves behind. Writes nothing: a commit does.
"""

from __future__ import annotations

from collections.abc import Set
from itertools import repeat
from typing import Any

from npzkit.errors import KeyExistsError
from npzkit.members.keys import SUFFIX, keys_of, member_of, missing
from npzkit.writing.attributes import EditedAttributes
from npzkit.writing.prepared_array import Prepared
from npzkit.writing.small_arrays import SmallArrays
from npzkit.writing.unsealed_arrays import Unsealed
from npzkit.zip.writer import ZipWriter


class Contents:
    """The members of one archive, by key.

    Parameters
    ----------
    writer : ZipWriter
        Holds the listing.
    unsealed : Unsealed
    path : str
        For messages.

    Attributes
    ----------
    is_edited : bool
        Whether something was changed that added no bytes to the file.
    has_dead : bool
        Whether bytes of the file were given up. Looking for them takes as long
        as a small save.
    """

    def __init__(self, writer: ZipWriter, unsealed: Unsealed, path: str) -> None:
        self._zip, self._unsealed, self._path = writer, unsealed, path
        self._attributes = EditedAttributes()
        # Members that are no arrays: their names may collide with keys.
        self._has_bare = not all(map(str.endswith, writer.listed, repeat(SUFFIX)))
        self.is_edited = False
        self.has_dead = False

    @property
    def listed(self) -> dict[str, bytes]:
        """The directory's entries, by the members' names."""
        return self._zip.listed

    @property
    def keys(self) -> list[str]:
        return keys_of(self.listed.keys())

    def __len__(self) -> int:
        return len(self.listed)

    def __contains__(self, key: object) -> bool:
        return member_of(key, self.listed) is not None

    def find(self, key: str) -> str:
        """Return the name of the member that a key means, which must be sealed.

        Raises
        ------
        MemberNotFoundError, ValueError
            No such key, or the array is being created.
        """
        name = member_of(key, self.listed)
        if name is None:
            raise missing(key, self.keys, self._path)
        self._unsealed.check_sealed(key, name)
        return name

    def check_free(self, key: str, name: str, *, overwrite: bool = False) -> None:
        """Raise unless a member of this name can be written now.

        Raises
        ------
        KeyExistsError, ValueError
            The name is taken, or an array that is being created is in the way.
        """
        self._unsealed.check_none_grows("another is written")
        # Of two members that differ only in the suffix, readers find the bare one.
        if (key if name != key else key + SUFFIX) in self.listed:
            raise KeyExistsError(
                "the archive has a member of this name that is not an array; either would hide "
                "the other",
                path=self._path, key=key, remedy="Remove it first with del, or use another key.",
            )  # fmt: skip
        if name not in self.listed:
            return
        if not overwrite:
            raise KeyExistsError(
                "this key is already in the archive", path=self._path, key=key,
                remedy="Pass overwrite=True to add(), or use another key.",
            )  # fmt: skip
        self._unsealed.check_sealed(key, name)

    def check_all_free(self, member: Prepared | SmallArrays, *, overwrite: bool) -> None:
        """Raise unless a member, or each of several small ones, can be written now."""
        for name in member.names if isinstance(member, SmallArrays) else (member.name,):
            self.check_free(name.removesuffix(SUFFIX), name, overwrite=overwrite)

    def find_taken(self, arrays: SmallArrays, *, overwrite: bool) -> Set[str]:
        """Return the names of small arrays that replace members, once they may be written."""
        taken = self.listed.keys() & arrays.names
        if taken or self._unsealed.growing is not None or self._has_bare:
            self.check_all_free(arrays, overwrite=overwrite)
        return taken

    def give_way(self, name: str) -> None:
        """Forget what is known of a member that is replaced, if there is one of this name."""
        if name in self.listed:
            self._attributes.forget(name)
            self.has_dead = True

    def remove(self, name: str) -> None:
        """List a member no longer."""
        self.give_way(name)
        del self.listed[name]
        self.is_edited = True

    def move(self, old: str, new: str) -> None:
        """Put the last member, a copy of `old` with the name `new`, in the place of `old`."""
        record = self.listed.pop(new)
        self._zip.listed = {
            (new if name == old else name): (record if name == old else kept)
            for name, kept in self.listed.items()
        }
        self._attributes.forget(old)
        self.has_dead = True

    def attrs(self, name: str) -> dict[str, Any]:
        """Return a member's attributes as a dict to be changed, the same one each time."""
        return self._attributes.of(name, self.listed[name])

    def apply_attrs(self) -> None:
        """Replace the entries of members whose attributes were changed.

        Raises
        ------
        LimitExceededError, ValueError, TypeError
            Attributes that are too long, or that JSON cannot express.
        """
        changed = self._attributes.changed(self.listed)
        if changed:
            self.listed.update(changed)
            self.is_edited = True
