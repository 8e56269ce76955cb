"""The members of an archive as commands list them, including unreadable ones.

Owns how unreadable members are shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import npzkit
from npzkit.cli.output import in_a_line, progress, say
from npzkit.cli.wording import message_of

if TYPE_CHECKING:
    from npzkit.cli.opening import Listing

_STEP = 1000
"""Members between two updates of the progress bar."""


class Member(NamedTuple):
    """A key with the description of its member, or with the error in reading it."""

    key: str
    info: npzkit.ArrayInfo | None
    error: str


def members_of(npz: Listing, keys: Sequence[str]) -> list[Member]:
    members: list[Member] = []
    with progress("read headers", in_bytes=False) as tell:
        for count in range(0, len(keys), _STEP):
            tell(count, len(keys))
            members += [_member(npz, key) for key in keys[count : count + _STEP]]
    return members


def _member(npz: Listing, key: str) -> Member:
    try:
        return Member(key, npz.info(key), "")
    except (npzkit.errors.StaleArchiveError, npzkit.errors.MemberNotFoundError):
        raise
    except npzkit.NpzkitError as error:
        return Member(key, None, in_a_line(message_of(error)))


def tell_unreadable(count: int, members: Sequence[Member]) -> None:
    """Print the error of an unreadable member, or the count and the first error of several."""
    first = next(member.error for member in members if member.info is None)
    text = first if count == 1 else f"{count} members cannot be read. The first error: {first}"
    say(text)
