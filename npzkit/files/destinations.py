"""Opening a sink wherever an archive goes: to a path, a URL, a file object.

Owns the choice between them, and which URLs cannot be written to.
"""

from __future__ import annotations

import os
import re
import stat
from typing import TYPE_CHECKING, Any

from npzkit.errors import UnsupportedError
from npzkit.files.disk import check_binary
from npzkit.files.file_objects import can_write
from npzkit.files.path_sink import PathSink
from npzkit.files.sink import FileSink, Sink
from npzkit.files.uploads import ANY, Condition
from npzkit.files.urls import Location

if TYPE_CHECKING:
    from npzkit.files.upload_sink import UploadSink

_VERSION = r"[?&](versionId|versionid|generation)=|^g(s|cs)://.*#[0-9]+$"
"""How S3, Azure and Google's store name a version in a URL."""


def open_destination(
    file: Any, *, exclusive: bool = False, durable: bool = False, lock_timeout: float = 0.0
) -> Sink:
    """Return a sink for a new archive at a path, in a store, or in a file object with ``write``.

    Devices and pipes are written to directly, without a temporary file.

    Parameters
    ----------
    file : Location, Sink, path or file object
        A sink is returned as it is.
    exclusive : bool
        Raise FileExistsError if the file or object exists.
    durable, lock_timeout
        For paths; see `npzkit.files.path_sink.PathSink`.

    Raises
    ------
    FileExistsError
        `exclusive` is true, and the path already exists.
    ArchiveLockedError
        Another writer has the existing file open.
    OSError
        The temporary file cannot be created: no such directory, no permission.
    """
    if isinstance(file, Sink):
        return file
    if isinstance(file, Location):
        return open_upload(file, Condition(is_absent=exclusive))
    if can_write(file):
        check_binary(file, "wb")
        return FileSink(file)
    path = os.fspath(file)
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        if not os.path.basename(path):
            # The path is empty or ends with a slash, and names no file.
            raise
        mode = stat.S_IFREG
    if not stat.S_ISREG(mode) and not exclusive:
        return FileSink(open(path, "wb", buffering=0), owned=True)
    return PathSink(path, exclusive=exclusive, durable=durable, lock_timeout=lock_timeout)


def check_writable(location: Location) -> None:
    """Raise UnsupportedError if nothing can be written to such a URL. Makes no request."""
    if location.is_web:
        raise UnsupportedError(
            "archives cannot be written to web servers", path=str(location),
            remedy="Write to a path, and upload the file; or use the URL of a store, "
            "such as s3://bucket/a.npz.",
        )  # fmt: skip
    if location.is_chain:
        raise UnsupportedError(
            "archives cannot be written through a chain of URLs", path=str(location),
            remedy="Write to the URL of the store itself, such as s3://bucket/a.npz.",
        )  # fmt: skip
    # Compiled on first use, so that the first save is fast.
    if re.search(_VERSION, location.url):
        raise UnsupportedError(
            "the URL names one version of an object, and versions are never changed",
            path=str(location),
            remedy="Write to the URL without the version: that makes a new one.",
        )


def open_upload(location: Location, condition: Condition = ANY) -> UploadSink:
    """Return a sink that makes an object in a store.

    Raises
    ------
    UnsupportedError
        As `check_writable`, or the store's library is not installed.
    FileExistsError, StaleArchiveError
        The condition is not fulfilled now.
    """
    check_writable(location)
    from npzkit.files.fsspec_store import FsspecStore
    from npzkit.files.upload_sink import UploadSink

    store = FsspecStore(location.url, location.options)
    if store.is_s3:
        from npzkit.files.s3_upload import S3Upload

        return UploadSink(S3Upload(store, condition))
    from npzkit.files.fsspec_upload import FsspecUpload, MemoryUpload

    is_memory = "memory" in store.file_system.protocol
    return UploadSink((MemoryUpload if is_memory else FsspecUpload)(store, condition))
