"""What an error says about an archive: path, key and offset, and the cause if the file changed.

Owns what is added to errors of the layers below, which know neither keys nor paths.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

from npzkit.archive.opened_archive import OpenedArchive
from npzkit.errors import ChecksumError, NpzkitError, StaleArchiveError
from npzkit.members.keys import key_of, member_of
from npzkit.zip.member_stream import MemberStream


class Explained:
    """A block of code that reads from an archive, and whose errors say where.

    Parameters
    ----------
    archive : OpenedArchive
    key : str or None
        The array that is read; None for the archive itself.
    """

    __slots__ = ("_archive", "_key")

    def __init__(self, archive: OpenedArchive, key: str | None) -> None:
        self._archive, self._key = archive, key

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, exc_type: type[BaseException] | None, error: BaseException | None, *_: object
    ) -> None:
        if isinstance(error, NpzkitError):
            explained = explain(self._archive, error, self._key)
            if explained is not error:
                raise explained from error.__cause__
            # How the layers below came to it is no use to whoever reads the message.
            error.__suppress_context__ = True


def explain(archive: OpenedArchive, error: NpzkitError, key: str | None) -> NpzkitError:
    """Return an error that says where it happened, and whether the file changed.

    Parameters
    ----------
    archive : OpenedArchive
    error : NpzkitError
        Is completed and returned, unless the file changed.
    key : str or None
        The array that was read, if `error` does not say.

    Returns
    -------
    NpzkitError
        To be raised ``from error.__cause__``.
    """
    if isinstance(error, ChecksumError) and archive.has_writable_maps:
        error.remedy = (
            'The archive has maps of mode "r+". If the array was changed through one, '
            "call npz.flush() first."
        )
    if error.is_damage and archive.is_open:
        error = _stale(archive, error, key) or error
    error.locate(path=archive.path, key=key)
    name = member_of(error.key, archive.entries)
    if name is not None:
        error.key = key_of(name, archive.entries)
        if not isinstance(error, StaleArchiveError):
            error.locate(offset=archive.entries[name].header_offset)
    return error


def _stale(archive: OpenedArchive, error: NpzkitError, key: str | None) -> StaleArchiveError | None:
    """Return the error of a file that changed, which is then the cause; None if it did not."""
    try:
        archive.check_unchanged()
        if isinstance(error, ChecksumError):
            archive.check_listed(error.key or key)
    except StaleArchiveError as stale:
        return stale
    return None


class LocatedStream(io.RawIOBase):
    """A member's stream whose errors say which archive and key it is."""

    def __init__(self, stream: MemberStream, explain: Callable[[NpzkitError], NpzkitError]) -> None:
        self._stream = stream
        self._explain = explain

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            return self._stream.readinto(buffer)
        except NpzkitError as error:
            raise self._explain(error) from error.__cause__
