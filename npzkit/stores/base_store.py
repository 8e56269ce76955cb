"""What a store of objects can do for an archive: answer requests for ranges, take uploads.

Owns the interfaces of a store and of an upload, the version that a request is pinned to, which
object an upload replaces, and how a request is tried again. Knows neither a protocol nor what
the bytes mean. `npzkit.stores.upload_sink` cuts an archive into parts.
"""

from __future__ import annotations

import abc
import errno
import random
import re
import time
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from npzkit.errors import StaleArchiveError, UnsupportedError, printable, shown_url
from npzkit.files.progress import Advance

ATTEMPTS = 4
"""Times that a request is made before it fails: three more after the first."""
MOST_SECONDS = 150.0
"""After so many since the first attempt, no other one begins."""
FIRST_DELAY = 0.1
"""Seconds before the second attempt. Each delay is three times the one before."""
_LONGEST_DELAY = 20.0
_CONTENT_RANGE = re.compile(r"bytes (\d{1,19})-(\d{1,19})/(\d{1,19})", re.ASCII)
_WEAK = "W/"
_NAP = 0.1
"""Seconds after which a thread that waits looks whether it is still wanted."""

T = TypeVar("T")


class TransientError(Exception):
    """A request failed in a way that may pass: it is made again.

    Parameters
    ----------
    reason : str
        Without secrets.
    delay : float, optional
        Seconds that the server asks to wait.
    """

    def __init__(self, reason: str, delay: float = 0.0) -> None:
        super().__init__(reason)
        self.delay = delay


class Version(NamedTuple):
    """What tells one state of an object from another.

    Attributes
    ----------
    size : int
        Bytes of the whole object.
    tag : str
        The ETag, or another mark that changes with the object; empty if there is none.
    modified : str
        When it was modified, as the store writes it; empty if that is not known.
    """

    size: int
    tag: str = ""
    modified: str = ""

    @property
    def is_known(self) -> bool:
        """Whether anything but the size tells this state from another."""
        return bool(self.tag or self.modified)

    @property
    def strong_tag(self) -> str:
        """The tag if it changes with every byte; empty if it is weak (RFC 9110, 8.8.1)."""
        return "" if self.tag.startswith(_WEAK) else self.tag

    def differs(self, found: Version) -> bool:
        """Return whether another answer is of another state, or does not say of which it is.

        A weak tag may stay when bytes change, so the time is compared too. A server may find
        out later that a weak tag is a strong one, as Apache does for a new file.
        """
        if self.size != found.size:
            return True
        if self.strong_tag:
            return self.tag != found.tag
        if self.tag.removeprefix(_WEAK) != found.tag.removeprefix(_WEAK) and self.tag:
            return True
        return bool(self.modified) and self.modified != found.modified

    def check(self, found: Version) -> None:
        """Raise StaleArchiveError if another answer differs."""
        if self.differs(found):
            raise self.changed(found)

    def changed(self, found: Version | None = None) -> StaleArchiveError:
        """Return the error for an object that was replaced, or that may have been."""
        what = "the object was replaced since it was opened"
        if found is not None and found.size == self.size and not found.is_known:
            what = "the store no longer says whether the object is the one that was opened"
        return StaleArchiveError(
            what,
            found=None if found is None else found._shown(),
            expected=self._shown(),
            remedy="Open it again.",
        )

    def _shown(self) -> str:
        marks = ("version", self.tag), ("modified", self.modified)
        known = [f"{name} {value[:80]}" for name, value in marks if value]
        return ", ".join([f"{self.size} bytes", *known])


class Opened(NamedTuple):
    """The answer to the first request.

    Attributes
    ----------
    tail : bytes-like
        The object's last bytes, or all.
    version : Version
    is_new : bool, default False
        Whether it was modified so lately that its time does not tell its versions apart yet.
    """

    tail: Any
    version: Version
    is_new: bool = False


class Store(abc.ABC):
    """One object in a store. Shared by threads, and by forked processes.

    Attributes
    ----------
    name : str
        The URL without secrets.
    received : callable or None
        Called by `readinto` with the number of bytes that came, as they come if possible.
    """

    name: str
    received: Advance | None = None

    @abc.abstractmethod
    def open(self, tail_size: int) -> Opened:
        """Return the last `tail_size` bytes of the object, and its version.

        Raises
        ------
        FileNotFoundError, PermissionError
            There is no such object, or it may not be read.
        OSError
            The store cannot be reached.
        UnsupportedError
            The server does not support ranges.
        """

    @abc.abstractmethod
    def readinto(self, offset: int, view: memoryview, version: Version) -> None:
        """Fill `view` with the bytes at `offset`, mostly by one request.

        Raises
        ------
        StaleArchiveError
            The object has another version.
        OSError, UnsupportedError
            As `open`.
        """

    def no_ranges(self) -> UnsupportedError:
        """Return the error for a store that sends the whole object instead of a range."""
        return UnsupportedError(
            "the server does not support ranges of bytes",
            path=self.name,
            found="all bytes of the object",
            expected="those of a range",
            remedy="Download the file, and open the copy, or read it from front to back with "
            "npzkit.iter_arrays(response).",
        )

    def abort(self) -> None:
        """Make requests of other threads end soon, because nobody waits for them any more."""

    def close(self) -> None:
        """Close connections. Requests of other threads are completed. May be called twice."""


class Upload(abc.ABC):
    """One object that is being made. Shared by threads.

    Nothing is visible in the store until `put` or `complete` returns.

    Attributes
    ----------
    name : str
        The URL without secrets.
    older : str or None
        What must be at the name for the object to appear there: the object with this ETag, or
        other mark of a `Version`. None is no object; if it is empty, any object or none.
    has_parts : bool
        Whether the store takes parts. Otherwise, the object is made of all bytes at once.
    has_any_order : bool
        Whether parts may be sent in any order, or there are none.

    Notes
    -----
    Each method raises TransientError if it may be called again, and
    PermissionError, FileNotFoundError (no such bucket) or another OSError if not.
    """

    has_parts: bool = True
    has_any_order: bool = False

    def __init__(self, name: str, older: str | None) -> None:
        self.name, self.older = name, older

    def check(self) -> None:
        """Raise FileExistsError or StaleArchiveError if another object is at the name now."""
        if self.older != "" and self.find_tag() != self.older:
            raise replaced(self.name, self.older)

    @abc.abstractmethod
    def find_tag(self) -> str | None:
        """Return what tells the object at the name from others; None if there is none."""

    @abc.abstractmethod
    def put(self, data: bytearray) -> None:
        """Make the object of these bytes.

        Raises
        ------
        FileExistsError, StaleArchiveError
            Another object is at the name.
        """

    @abc.abstractmethod
    def begin(self) -> None:
        """Begin to take parts. Remove what killed writers left under this name."""

    @abc.abstractmethod
    def send(self, number: int, data: bytearray) -> None:
        """Send one part. Parts are counted from 1."""

    @abc.abstractmethod
    def complete(self) -> None:
        """Make the object of all parts.

        Raises
        ------
        FileExistsError, StaleArchiveError
            Another object is at the name.
        """

    def is_in_place(self) -> bool:
        """Return whether the object is known to be this one, after an answer was lost."""
        return False

    def stop(self) -> None:
        """Make requests of other threads end soon, because nobody waits for them any more."""

    @abc.abstractmethod
    def abort(self) -> None:
        """Remove the parts, unless the object is complete. May be called twice."""


def replaced(name: str, older: str | None) -> OSError | StaleArchiveError:
    """Return the error for an object that is not the one to be replaced."""
    if older is None:
        return FileExistsError(errno.EEXIST, "already exists", name)
    return StaleArchiveError(
        "another writer replaced or removed the object meanwhile", path=name,
        remedy="The object of the other writer is kept. To replace it, write the archive again.",
    )  # fmt: skip


def tried(request: Callable[[], T], what: str, is_wanted: Callable[[], bool] = lambda: True) -> T:
    """Make a request, and make it again after a failure that may pass.

    Parameters
    ----------
    request : callable
        Raises TransientError, TimeoutError or ConnectionError if it may be made again.
    what : str
        The request, for messages: URL and range.
    is_wanted : callable, optional
        Returns whether anybody still waits for the answer.

    Raises
    ------
    OSError
        All attempts failed.
    """
    delay = FIRST_DELAY
    end = time.monotonic() + MOST_SECONDS
    reason = "nobody waits for it any more"
    for attempt in range(1, ATTEMPTS + 1):
        if not is_wanted():
            raise OSError(f"{what}: given up: {printable(shown_url(reason))}")
        try:
            return request()
        except (TransientError, TimeoutError, ConnectionError) as error:
            reason, asked = str(error) or type(error).__name__, getattr(error, "delay", 0.0)
        if time.monotonic() > end:
            break
        if attempt < ATTEMPTS:
            # Jitter, so that many clients do not come back at the same moment.
            pause = delay * random.uniform(0.5, 1.5)  # noqa: S311 - not for secrets
            _sleep(min(max(pause, asked), _LONGEST_DELAY), is_wanted)
            delay *= 3
    reason = printable(shown_url(reason))
    raise OSError(f"{what}: failed after {attempt} attempt{'s' * (attempt > 1)}: {reason}")


def _sleep(seconds: float, is_wanted: Callable[[], bool]) -> None:
    end = time.monotonic() + seconds
    while is_wanted() and (left := end - time.monotonic()) > 0:
        time.sleep(min(left, _NAP))


def parse_content_range(text: str) -> tuple[int, int, int] | None:
    """Return where the bytes of an answer begin and end, and the object's size; None if invalid.

    Examples
    --------
    >>> parse_content_range("bytes 5-9/10"), parse_content_range("bytes 5-9/*")
    ((5, 10, 10), None)
    """
    found = _CONTENT_RANGE.fullmatch(text)
    begin, last, size = map(int, found.groups()) if found else (0, -1, 0)
    return (begin, last + 1, size) if begin <= last < size else None
