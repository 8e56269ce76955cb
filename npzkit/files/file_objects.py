"""What callers pass as a file: its name and position, and how its bytes can be reached.

Owns the questions that are asked of a file object before it is read or written, that only a
regular file is opened by its path, the wait for streams that do not block, copies of those
that cannot seek, and the value that everybody compares who asks whether a file on a disk is
still the same. Of an object in a store, that is `npzkit.stores.versions.Version`.
"""

# Without `from __future__ import annotations`: see "The first call" in CONTRIBUTING.
import contextlib
import errno
import io
import os
import stat
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, cast

from npzkit.errors import Advice, FormatError, NpzkitError, check_limit
from npzkit.files.disk import OPEN_FLAGS, Buffer, Descriptor

_PAUSE = 0.01
"""Seconds to wait if a stream that does not block has no data yet."""
_COPIED_SIZE = 1 << 20
_HEADERS_SIZE = 1 << 26
"""Bytes that a stream may have beside its arrays, whatever their size."""
_TOO_LONG = "the stream has more bytes than arrays of the allowed size can have"
UNNAMED = "object"
"""The name that NumPy shows for a file object without a name."""
_FLAGS = os.O_RDONLY | OPEN_FLAGS | getattr(os, "O_NONBLOCK", 0)
_KINDS = (
    (stat.S_ISFIFO, "a named pipe (FIFO)"), (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"), (stat.S_ISBLK, "a device"),
)  # fmt: skip


def can_read(file: Any) -> bool:
    """Return whether `file` is a file object to read from.

    An ``os.PathLike`` is a path, also if it has methods to read and write, as
    ``py.path.local`` does. An open archive reads arrays.
    """
    return hasattr(file, "read") and not (hasattr(file, "__fspath__") or is_archive(file))


def can_write(file: Any) -> bool:
    """Return whether `file` is a file object to write to, and not a path."""
    return hasattr(file, "write") and not hasattr(file, "__fspath__")


def as_path(file: Any) -> str:
    """Return the path of what is written, as text.

    Raises
    ------
    TypeError
        It is bytes, which are the contents of an archive wherever one is read.
    """
    if isinstance(file, bytes):
        raise TypeError(
            "bytes are the contents of an archive, not its path: pass os.fsdecode(path)"
        )
    return os.fsdecode(file)


def is_archive(file: Any) -> bool:
    """Return whether `file` is an open archive, whose source can be used."""
    return hasattr(file, "_lend_source")


def cannot_seek(file: Any) -> bool:
    """Return whether `file` is a stream that can only be read from front to back."""
    if not can_read(file):
        return False
    answer = getattr(file, "seekable", None)
    return not hasattr(file, "seek") if answer is None else not answer()


def patiently(read: Callable[[Any], Any], argument: Any) -> Any:
    """Call a function of a stream until it has data, or the stream is at its end."""
    while True:
        try:
            found = read(argument)
        except BlockingIOError:
            found = None
        if found is not None:
            return found
        time.sleep(_PAUSE)


def write_all(file: Any, data: Buffer) -> None:
    """Write all of `data` to a file object, even if it accepts a part per call.

    Raises
    ------
    BlockingIOError
        A non-blocking file accepts no more bytes now.
    """
    view = memoryview(data)
    while view:
        written = file.write(view if len(view) < len(data) else data)
        if written == len(view):
            return
        if written is None and isinstance(file, io.RawIOBase):
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        if not isinstance(written, int):
            return
        if written == 0:
            raise OSError(errno.EIO, "the file object accepts no more bytes")
        view = view[written:]


def known_name(file: Any) -> str | None:
    """Return a file object's name, if it has one; the number of a descriptor is not a name."""
    name = getattr(file, "name", None)
    return name if isinstance(name, str) else None


def name_of(file: Any) -> str:
    """Return a file object's name for messages."""
    return known_name(file) or UNNAMED


def position_of(file: Any) -> int:
    """Return the current position of a file object that may lack ``tell``."""
    if hasattr(file, "tell"):
        return cast(int, file.tell())
    return cast(int, file.seek(0, os.SEEK_CUR))


def unwrapped(file: Any) -> Any:
    """Return the plain file inside a NamedTemporaryFile, or `file` itself."""
    return getattr(file, "file", file) if type(file).__module__ == "tempfile" else file


def is_plain_file(file: Any) -> bool:
    """Return whether the descriptor of a file object has the same bytes as the object.

    This is not so for a GzipFile, whose descriptor leads to compressed bytes,
    or for a subclass that changes ``read``. Only a ``FileIO``, with or without
    a buffer of `io`, is read by its descriptor.
    """
    if type(file) not in (io.FileIO, Descriptor, io.BufferedReader, io.BufferedRandom):
        return False
    raw = getattr(file, "raw", file)
    if type(raw) not in (io.FileIO, Descriptor) or raw.closed or not raw.readable():
        return False
    return stat.S_ISREG(os.fstat(raw.fileno()).st_mode)


def check_regular(path: str, found: os.stat_result | None = None) -> None:
    """Raise unless a path leads to a regular file. The file is not opened.

    Parameters
    ----------
    path : str
    found : os.stat_result, optional
        What the system says of it, if it was asked already.

    Raises
    ------
    FormatError
        It is a FIFO, a socket or a device.
    IsADirectoryError, FileNotFoundError, OSError
        It is a folder, or the system cannot say what it is.
    """
    mode = (os.stat(path) if found is None else found).st_mode
    if stat.S_ISREG(mode):
        return
    if stat.S_ISDIR(mode):
        told = os.strerror(errno.EISDIR)
        advice = (
            "Pass a file. npzkit.pack(output, folder) makes one of the .npy files in it; of a "
            "sharded archive, npzkit.convert(folder, output) makes one, and "
            "npzkit.ShardedWriter(folder, mode='a') adds to it"
        )
        raise IsADirectoryError(errno.EISDIR, Advice(f"{told}. {advice}", told), path)
    kind = next((kind for is_kind, kind in _KINDS if is_kind(mode)), "something else")
    raise FormatError(
        f"not a file, but {kind}", path=path, remedy="Copy its contents to a file, or read an "
        'archive from front to back: npzkit.iter_arrays(open(path, "rb")).',
    )  # fmt: skip


def open_regular(path: str) -> Descriptor:
    """Open a regular file for reading; see `check_regular` for anything else.

    It never waits, as the opening of a FIFO would.
    """
    check_regular(path)
    try:
        # One call in C, as in `npzkit.files.disk.duplicated`.
        file = next(map(Descriptor, map(os.open, (path,), (_FLAGS,)), ("rb",)))
    except BlockingIOError:
        # Another program holds a lease on the file, which it gives back if it is waited for.
        file = Descriptor(path, "rb")
    try:
        # Another one may have taken its place.
        check_regular(path, os.fstat(file.fileno()))
    except BaseException:
        file.close()
        raise
    return file


@contextlib.contextmanager
def seekable(file: Any, most: int | None = None) -> Iterator[Any]:
    """Yield an archive as it was given; of a stream that cannot seek, a copy in a temporary file.

    Errors in the block name the stream. If there are more bytes than `most` by half,
    LimitExceededError is raised before they are all copied.
    """
    if not cannot_seek(file):
        yield file
        return
    import tempfile

    with tempfile.TemporaryFile() as copy:
        while data := patiently(file.read, _COPIED_SIZE):
            copy.write(data)
            if most is not None:
                check_limit(copy.tell(), most + most // 2 + _HEADERS_SIZE, "total_size", _TOO_LONG)
        copy.seek(0)
        try:
            yield copy
        except NpzkitError as error:
            raise error.locate(path=known_name(file)) from error.__cause__


# -- is it still the same? --------------------------------------------------


class Identity(NamedTuple):
    """The state of a file when it was looked at.

    If two are equal, the file is the same and has not changed. If they differ, its contents
    may still be the same: `chmod` and a hard link change `changed_ns`, and a copy has another
    `inode`. An open archive then compares its directory.

    Attributes
    ----------
    size : int
        Bytes.
    modified_ns : int
        Modification time, which programs can set: ``rsync -t`` and ``cp -p`` do.
    changed_ns : int
        Time of the last change of the contents or the inode, which no program can set. On
        Windows, the time of creation.
    inode : int
        0 on file systems of Windows that have none.
    device : int
        Differs between hosts that share a file system, and may differ after a boot.
    """

    size: int
    modified_ns: int
    changed_ns: int
    inode: int
    device: int


def identity_of(found: os.stat_result) -> Identity:
    """Return the identity of a file that the system was asked for."""
    return Identity(
        found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino, found.st_dev
    )  # fmt: skip


def take_after(place: str | int, path: str, other: os.stat_result) -> None:
    """Give a file or folder the owner, permissions and extended attributes of another one.

    `place` is its path or descriptor, and `path` that of the other. As far as the system
    allows: FAT and some network shares have none.
    """
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            for name in os.listxattr(path):
                # Others belong to the system, such as a security label.
                if name.startswith("user."):
                    os.setxattr(place, name, os.getxattr(path, name))
    if not hasattr(os, "chown"):
        return
    mode = other.st_mode & 0o777
    with contextlib.suppress(OSError):
        if not _take_owner(place, other):
            # The file has another group, which must not get the old group's rights.
            mode &= 0o707 | (mode & 0o007) << 3
        os.chmod(place, mode)


def _take_owner(place: str | int, other: os.stat_result) -> bool:
    """Copy the owner and the group, and return whether the group could be set."""
    own = os.stat(place)
    is_same_group = own.st_gid == other.st_gid
    if not is_same_group:
        with contextlib.suppress(OSError):
            os.chown(place, -1, other.st_gid)
            is_same_group = True
    if own.st_uid != other.st_uid:
        # Only root can give files to another user.
        with contextlib.suppress(OSError):
            os.chown(place, other.st_uid, -1)
    return is_same_group
