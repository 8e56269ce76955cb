"""Objects in every store that fsspec knows: S3, Google, Azure, memory, chains with caches.

Owns how one range of an object is asked for, so that it is of the version that
was opened. S3 takes the version with each request. Of other stores, the mark
of the object is compared after each request; in a chain, that of the outer files.

fsspec keeps one thread of its own for all stores of a process, which outlives
an archive. Its file objects are not used: they read ahead by megabytes. All requests of one
operation share a time limit (`npzkit.stores.time_limits`). Stores that have no event loop, such as
FTP, may go on after it, or after an interrupt, and nobody waits for them.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import difflib
import errno
import inspect
import os
import re
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping
from concurrent.futures import CancelledError
from functools import partial
from typing import Any, NamedTuple, cast

from npzkit.errors import Advice, NpzkitError, UnsupportedError, printable, shown_url
from npzkit.files.urls import Location
from npzkit.stores.hidden_secrets import hide_secrets, keep_quiet
from npzkit.stores.loop_tasks import follow, started_in_loop
from npzkit.stores.remote_source import Opened, Store
from npzkit.stores.retries import T, TransientError, tried
from npzkit.stores.time_limits import Calls, extend, is_limited, limited, timeout_in
from npzkit.stores.versions import Version, parse_content_range

_MARKS = (
    # Of the bytes, or of each version of them.
    "ETag", "etag", "generation", "version_id", "content_md5", "md5Hash", "Content-MD5", "Digest",
    "checksum", "content_hash", "sha", "hex",
    # Times. FTP has "modify", WebHDFS "modificationTime", WebDAV "modified".
    "mtime", "LastModified", "last_modified", "Last-Modified", "updated", "modify",
    "modificationTime", "modified", "modifiedTime", "created",
)  # fmt: skip
"""What stores call a value that changes with the object, the best ones first."""
_NO_SUFFIX_IN_S3 = (416, 501)
"""What servers of S3 answer that cannot count from the end, or that have an empty object."""
_RECEIVED_SIZE = 1 << 18
"""Bytes that are received before they are counted."""
_PASSING = re.compile("Timeout|Connection|Payload|Incomplete|Disconnected")
"""How errors of libraries are called that may pass: a lost connection, an answer cut short."""
_NO_BUCKET = re.compile("(bucket|container) does not exist", re.IGNORECASE)
"""What stores say of a bucket that does not exist."""
_CREDENTIALS = (
    ". Set AWS_PROFILE, or pass "
    + Advice("storage_options={'anon': True}", "--storage-option anon=true")
    + " if the data is public"
)
_UNKNOWN_OPTION = re.compile(r"unexpected keyword argument '(\w+)'")
_BLOCK_CACHES = ("blockcache", "cached")
_READ_AT_ONCE = frozenset({"zip", "tar", "libarchive"})
"""What may read all of a file when it is opened. What size that file has is asked for first."""
_LOCAL_MARKS = ("ino", "mtime", "created")
"""What tells a local file from another: its inode, and the times of its data and of its inode."""


class _Answer(NamedTuple):
    """An answer of S3: its bytes, if they are those that were asked for."""

    data: bytes | bytearray | None
    version: Version
    is_whole: bool


class FsspecStore(Store):
    """An object that fsspec finds by its URL.

    Parameters
    ----------
    url : str
        Also a chain, such as ``simplecache::https://...``.
    options : mapping
        As for `fsspec.filesystem`, and ``timeout``: the seconds that an operation may take
        beside the time for its bytes. None or 0 is no limit.

    Attributes
    ----------
    file_system : fsspec.AbstractFileSystem
    path : str
        Of the object in the file system.
    is_s3 : bool
    """

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        self.name = shown_url(url)
        self._url, self._options = url, dict(options)
        self._location = Location(url, self._options)
        self._timeout = timeout_in(self._options)
        self._calls = Calls()
        self._turn: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
        self.is_s3 = self._has_state = False
        self._connect()

    def _connect(self) -> None:
        """Find the file system. A forked child must have its own."""
        self._process = os.getpid()
        self._is_lost = False
        # A chain reads when it is opened. If it is opened again, that is a part of an attempt.
        find = partial(self.explained, self._find)
        self._fs, self.path = find() if is_limited() else tried(find, f"{self.name}, its opening")
        self.is_s3 = hasattr(self._fs, "call_s3")
        if self.is_s3:
            # Nobody waits for it: each request takes the same steps first.
            task = asyncio.wait_for(_report_unreachable(self._fs), self._timeout)
            with limited(self._timeout):
                asyncio.run_coroutine_threadsafe(task, self._fs.loop)
        # One that fsspec does not share has a state: the place in a file, or a connection of FTP
        # whose answers come in the order of its commands.
        chain = [self._fs, *(archive.fs for archive in _archives_in(self._fs))]
        self._has_state = not all(
            getattr(fs, "cachable", True) or getattr(fs, "async_impl", False) for fs in chain
        )
        self._turn = threading.Lock() if self._has_state else contextlib.nullcontext()
        # It downloaded one version for good, and does not ask the server again. It is asked for its
        # class, since in older versions of fsspec a cache has the attributes of what it caches.
        self._is_copy = any("simplecache" in type(fs).protocol for fs in chain)

    def _find(self) -> tuple[Any, str]:
        """Return the file system, and the path in it."""
        url, options = _with_safe_caches(self._url, self._options)
        self._is_chain = "::" in url
        try:
            from fsspec import get_filesystem_class
            from fsspec.core import url_to_fs

            schemes = [link.partition("://")[0] for link in url.split("::")]
            kinds = list(map(get_filesystem_class, schemes))
            keep_quiet()
            if any(getattr(kind, "async_impl", False) for kind in kinds):
                from fsspec.asyn import get_loop

                follow(get_loop())
            if self._is_chain or "timeout" not in inspect.signature(kinds[0].__init__).parameters:
                options.pop("timeout", None)
            if _READ_AT_ONCE.intersection(schemes):
                inner_options = options.get(schemes[-1], {})
                inner, path = self._wait(
                    partial(url_to_fs, url.rpartition("::")[2], **inner_options)
                )
                extend(self._wait(partial(inner.info, path)).get("size") or 0)
            found: tuple[Any, str] = self._wait(partial(url_to_fs, url, **options))
            return found
        except ImportError as error:
            raise UnsupportedError(
                f"{self._url.partition('://')[0]}:// needs a package that is not installed "
                f"({error.name or error})",
                path=self.name,
                remedy='Install it: python -m pip install "npzkit[remote]" for s3, gcsfs for gs, '
                "adlfs for az.",
            ) from None
        except ValueError as error:
            what = f"the URL or its storage options are not supported: {self._text(error)}"
            raise UnsupportedError(what, path=self.name) from None

    @property
    def file_system(self) -> Any:
        if self._process != os.getpid() or self._is_lost:
            self._connect()
        return self._fs

    def open(self, tail_size: int) -> Opened:
        return self.explained(self._open_s3 if self.is_s3 else self._open, tail_size)

    def readinto(self, offset: int, view: memoryview, version: Version) -> None:
        read = self._read_s3 if self.is_s3 else self._read
        data = self.explained(read, offset, len(view), version)
        if len(data) != len(view):
            raise TransientError(f"the answer has {len(data)} of {len(view)} bytes")
        view[:] = data
        if self.received is not None:
            self.received(len(data))

    def call(self, function: Any, *args: Any, **options: Any) -> Any:
        """Call a function of the file system, until `abort` or the end of the time limit."""

        def in_turn() -> Any:
            with self._turn:
                return function(*args, **options)

        return self._wait(in_turn)

    def _wait(self, function: Callable[[], T]) -> T:
        try:
            return self._calls.wait(started_in_loop(function))
        except (TimeoutError, CancelledError, KeyboardInterrupt):
            # Nobody knows what became of its state.
            self._is_lost = self._has_state
            raise

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the event loop of the file system, as `call`."""
        return self._calls.wait(asyncio.run_coroutine_threadsafe(coroutine, self.file_system.loop))

    def abort(self) -> None:
        self._calls.give_up()

    # -- S3 -----------------------------------------------------------------

    def _open_s3(self, tail_size: int) -> Opened:
        try:
            found = self._get_s3(
                lambda begin, end, size: end == size and begin == max(size - tail_size, 0),
                Range=f"bytes=-{tail_size}",
            )
        except OSError as error:
            if status_of(error) not in _NO_SUFFIX_IN_S3:
                raise
            found = _Answer(None, self.find_version(), False)
        size, data = found.version.size, found.data
        start = max(size - tail_size, 0)
        if data is None:
            # A server that counts only from the front. An empty object has no bytes to ask for.
            data = self._read_s3(start, size - start, found.version) if size else b""
        if len(data) != size - start:
            raise TransientError(f"the answer has {len(data)} of {size - start} bytes")
        return Opened(data, found.version)

    def _read_s3(self, offset: int, size: int, version: Version) -> bytes | bytearray:
        span = offset, offset + size, version.size
        try:
            found = self._get_s3(
                lambda *said: said == span,
                Range=f"bytes={offset}-{offset + size - 1}",
                **({"IfMatch": version.tag} if version.strong_tag else {}),
            )
        except OSError as error:
            if status_of(error) not in (412, 416):
                raise
            raise version.changed() from None
        # Some servers do not know the condition, and without a strong tag there was none.
        version.check(found.version)
        if found.data is None:
            if found.is_whole:
                raise self.no_ranges()
            raise OSError(f"{self.name}: the store sent another range than was asked for")
        return found.data

    def _get_s3(self, is_right: Callable[[int, int, int], bool], **options: Any) -> _Answer:
        """Make one request.

        If `is_right` returns false for where the bytes begin and end, and for the object's
        size, they are not received.
        """
        fs = self.file_system
        bucket, key, version_id = fs.split_path(self.path)
        if version_id:
            options["VersionId"] = version_id

        async def get() -> _Answer:
            answer = await fs._call_s3("get_object", Bucket=bucket, Key=key, **options)
            try:
                begin, end, size = self._range_in(answer)
                tag, modified = answer.get("ETag", ""), answer.get("LastModified", "")
                version = Version(size, str(tag), str(modified))
                is_whole = (begin, end) == (0, size)
                if not is_right(begin, end, size):
                    return _Answer(None, version, is_whole)
                return _Answer(await self._body(answer["Body"], end - begin), version, is_whole)
            finally:
                answer["Body"].close()

        return self.run(get())

    async def _body(self, body: Any, size: int) -> bytearray:
        """Return the bytes of an answer, each piece of which allows the time for the next ones."""
        data = bytearray()
        while piece := await body.read(_RECEIVED_SIZE):
            data += piece
            extend(len(piece))
            if len(data) > size:
                raise OSError(f"{self.name}: the store sent more than {size} bytes")
        return data

    def _range_in(self, answer: Mapping[str, Any]) -> tuple[int, int, int]:
        """Return where the bytes of an answer begin and end, and the object's size."""
        text = answer.get("ContentRange")
        if text is None:
            # An answer to no range has all bytes.
            size = int(answer["ContentLength"])
            return 0, size, size
        found = parse_content_range(str(text))
        if found is None:
            shown = str(text)[:80]
            raise OSError(f"{self.name}: the store sent bytes without saying which: {shown!r}")
        return found

    # -- any other store ----------------------------------------------------

    def _open(self, tail_size: int) -> Opened:
        version = self.find_version()
        if not version.size:
            # Some stores have no answer to a range without bytes.
            return Opened(b"", version)
        start = max(version.size - tail_size, 0)
        tail = self._cat(start, version.size, version)
        # Of another version, if the object was replaced between the two requests.
        found = self.find_version()
        if version.differs(found) or len(tail) != version.size - start:
            raise TransientError("the object is being replaced")
        return Opened(tail, version)

    def _read(self, offset: int, size: int, version: Version) -> bytes:
        try:
            data = self._cat(offset, offset + size, version)
        except Exception as error:
            if status_of(error) == 416:
                # A smaller object does not have the range.
                version.check(self.find_version())
            raise
        if not self._is_copy:
            version.check(self.find_version())
        return data

    def _cat(self, start: int, end: int, version: Version) -> bytes:
        """Return a range of bytes."""
        # A cache downloads all of the object, and an archive may read all that precedes.
        extend(version.size if self._is_chain else end - start)
        data: bytes = self.call(self.file_system.cat_file, self.path, start=start, end=end)
        if end - start < len(data) == version.size:
            raise self.no_ranges()
        if self._is_copy and len(data) != end - start:
            self._remove_incomplete_copy(version.size)
        return data

    def _remove_incomplete_copy(self, size: int) -> None:
        """Have a cache download a file again, of which it keeps a part after a failure."""
        with self.file_system.open(self.path, "rb") as file:
            path = getattr(file, "name", "")
        with contextlib.suppress(OSError):
            if os.path.getsize(path) != size:
                os.remove(path)

    def find_version(self) -> Version:
        info = self._info(self.file_system, self.path)
        if info.get("type") == "directory":
            raise IsADirectoryError(errno.EISDIR, "Is a directory", self.name)
        if info.get("size") is None:
            raise UnsupportedError(
                "the store does not say how large the object is", path=self.name,
                remedy="Download the file, and open the copy.",
            )  # fmt: skip
        version = version_in(info)
        # A member of an archive changes with it, but its list is the one of when it was opened.
        for archive in _archives_in(self.file_system):
            held = version_in(self._info(archive.fs, archive.path))
            version = Version(version.size, held.tag and f"{version.tag} in {held.size} {held.tag}")
        return version

    def _info(self, fs: Any, path: str) -> Mapping[str, Any]:
        """Return what a file system knows of an object now."""
        self.forget_list(fs, path)
        info: Mapping[str, Any] = self.call(fs.info, path)
        return info

    def forget_list(self, fs: Any, path: str) -> None:
        """Drop the list of an object's folder, which a file system may have from long ago."""
        # Another thread may drop it at the same time.
        with contextlib.suppress(KeyError):
            fs.invalidate_cache(fs._parent(path))

    # -- errors -------------------------------------------------------------

    def explained(self, request: Callable[..., T], *args: Any) -> T:
        """Call a request, in limited time; its errors name the URL and no secret."""
        try:
            with limited(self._timeout):
                return request(*args)
        except (NpzkitError, TransientError, IsADirectoryError, FileExistsError,
                MemoryError, RecursionError):  # fmt: skip
            raise
        except CancelledError:
            raise TransientError("the request was given up") from None
        except (TimeoutError, ConnectionError) as error:
            raise TransientError(self._text(error)) from None
        except Exception as error:
            # Each library has its own errors, most of them no OSError.
            lost = next(filter(_is_passing, _causes_of(error)), None)
            if lost is not None:
                shown = lost if isinstance(error, FileNotFoundError) else error
                raise TransientError(self._text(shown)) from None
            raise self._named(error) from None

    def _named(self, error: BaseException) -> OSError | UnsupportedError:
        """Return the error of a library as one that names the URL."""
        status = status_of(error)
        if status in (404, 410) or (isinstance(error, FileNotFoundError) and not status):
            is_there = _NO_BUCKET.search(self._text(error)) is None
            reason = "not found" if is_there else "the bucket does not exist"
            return FileNotFoundError(errno.ENOENT, reason, self.name)
        if isinstance(error, PermissionError) or status in (401, 403):
            reason = f"access was refused ({self._text(error)})"
            return PermissionError(errno.EACCES, reason, self.name)
        if "Credential" in type(error).__name__:
            reason = f"there are no credentials ({self._text(error)})"
            reason = reason + _CREDENTIALS if self.is_s3 else reason
            return PermissionError(errno.EACCES, reason, self.name)
        unknown = _UNKNOWN_OPTION.search(str(error)) if isinstance(error, TypeError) else None
        if unknown is not None and unknown[1] in self._options:
            return self._unknown(unknown[1])
        return OSError(f"{self.name}: {self._text(error)}")

    def _unknown(self, option: str) -> UnsupportedError:
        """Return the error for an option that the file system does not have."""
        from fsspec import get_filesystem_class

        names = inspect.signature(get_filesystem_class(self._location.scheme).__init__).parameters
        close = difflib.get_close_matches(option, names, 1)
        return UnsupportedError(
            f"unknown storage option {option!r} for {self._location.scheme}", path=self.name,
            remedy=f"Did you mean {close[0]}?" if close else None,
        )  # fmt: skip

    def _text(self, error: BaseException) -> str:
        # azure-core adds the answer's XML.
        text = " ".join(str(error).partition("\nContent: ")[0].split())
        text = text.removeprefix(f"{self.name}: ")
        if getattr(error, "errno", None) == errno.ECONNREFUSED:
            # aiohttp names only the address.
            text = f"{os.strerror(errno.ECONNREFUSED)}: {text}"
        return printable(hide_secrets(text or type(error).__name__, self._location)[:300])


async def _report_unreachable(fs: Any) -> None:
    """Have s3fs report at once that a host is unknown or refuses connections.

    botocore alone repeats such requests for half a minute, in silence; `tried` repeats them too.
    """

    def check(caught_exception: BaseException | None = None, **_: Any) -> None:
        if type(caught_exception).__name__ == "EndpointConnectionError":
            raise cast(BaseException, caught_exception)

    client = await fs.set_session()
    client.meta.events.register_first("needs-retry.s3", check, unique_id="npzkit")


def _with_safe_caches(url: str, options: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return a URL and its options so that no cache of fsspec gives bytes of an older version.

    A cache of blocks joins those of two versions, so it is left out of the chain. A cache of
    files would use an older file for a week, so its option to compare versions is set.
    """
    links = url.split("::")
    kept = [link for link in links if link not in _BLOCK_CACHES]
    found = dict(options)
    if kept[0] != links[0]:
        # The others are those of the cache.
        schemes = {link.partition("://")[0] for link in kept}
        found = {name: value for name, value in options.items() if name in schemes}
    if "filecache" in kept:
        found["filecache"] = {"check_files": True, **found.get("filecache", {})}
    return "::".join(kept), found


def _archives_in(fs: Any) -> Iterator[Any]:
    """Yield the archives, from the innermost on, in which a chain of file systems finds a file.

    Each has the file system `fs` that it is in, and its `path` there.
    """
    archive: Any = getattr(fs, "of", None)
    while hasattr(archive, "fs"):
        yield archive
        archive = getattr(archive.fs, "of", None)


def version_in(info: Mapping[str, Any]) -> Version:
    """Return the version in what a file system knows of an object, whose size is known."""
    if all(name in info for name in _LOCAL_MARKS):
        return Version(int(info["size"]), " ".join(str(info[name]) for name in _LOCAL_MARKS))
    mark = next((info[name] for name in _MARKS if info.get(name) not in (None, "")), "")
    if isinstance(mark, datetime.datetime):
        # What one call returns as a time, another one may return as a number.
        mark = mark.timestamp()
    return Version(int(info["size"]), str(mark))


def _causes_of(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error, and those that it came of: fsspec calls a lost connection "not found"."""
    while error is not None:
        yield error
        error = error.__cause__


def _is_passing(error: BaseException) -> bool:
    """Return whether an error, apart from those it came of, may pass."""
    names = " ".join(kind.__name__ for kind in type(error).__mro__)
    if _status_in(_answer_in(error)) >= 500:
        return True
    return _PASSING.search(names) is not None and "Certificate" not in names


def status_of(error: BaseException) -> int:
    """Return the HTTP status in an error, or in one that it came of; 0 if there is none."""
    return _status_in(answer_of(error))


def answer_of(error: BaseException) -> Mapping[str, Any]:
    """Return what botocore keeps of a server's answer, or what others do in this form."""
    return next(filter(None, map(_answer_in, _causes_of(error))), {})


def _answer_in(error: BaseException) -> Mapping[str, Any]:
    answer = getattr(error, "response", None)
    if isinstance(answer, dict):
        return answer
    # Of azure-core, aiohttp and gcsfs.
    found = (getattr(error, name, None) for name in ("status_code", "status", "code"))
    status = next((value for value in found if isinstance(value, int)), None)
    return {} if status is None else {"ResponseMetadata": {"HTTPStatusCode": status}}


def _status_in(answer: Mapping[str, Any]) -> int:
    return int(answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
