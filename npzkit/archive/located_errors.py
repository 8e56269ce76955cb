"""Code that reads from an archive, and whose errors say from which, and which array.

Owns where errors are caught for that: in a block of code, or in a stream that users read. What is
said is `npzkit.archive.opened_archive`'s.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from npzkit.errors import NpzkitError

if TYPE_CHECKING:
    from npzkit.zip.member_stream import MemberStream

Explain = Callable[[NpzkitError, str | None], NpzkitError]


class Explained:
    """A block of code that reads from an archive, and whose errors say where.

    Parameters
    ----------
    explain : callable
        `OpenedArchive.explain`.
    key : str or None
        The array that is read; None for the archive itself.
    """

    __slots__ = ("_explain", "_key")

    def __init__(self, explain: Explain, key: str | None) -> None:
        self._explain, self._key = explain, key

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, exc_type: type[BaseException] | None, error: BaseException | None, *_: object
    ) -> None:
        if isinstance(error, NpzkitError):
            explained = self._explain(error, self._key)
            if explained is not error:
                raise explained from error.__cause__
            # How the layers below came to it is no use to whoever reads the message.
            error.__suppress_context__ = True


class LocatedStream(io.RawIOBase):
    """A member's stream whose errors say which archive and key it is."""

    def __init__(self, stream: MemberStream, explained: Explained) -> None:
        self._stream, self._explained = stream, explained

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        with self._explained:
            return self._stream.readinto(buffer)

    def readall(self) -> bytes:
        with self._explained:
            return self._stream.readall()
