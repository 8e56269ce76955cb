"""What a URL is read and written with: what `npzkit.files.any_source` imports.

Owns the choice of a store, and which URLs cannot be written to.
"""

from __future__ import annotations

import io
import re
from typing import BinaryIO, cast

from npzkit.errors import UnsupportedError
from npzkit.files.source import SourceFile
from npzkit.files.urls import Location
from npzkit.stores.remote_source import RemoteSource
from npzkit.stores.upload_sink import UploadSink

_VERSION = re.compile(r"[?&](versionId|versionid|generation)=|^g(s|cs)://.*#[0-9]+$")
"""How S3, Azure and Google's store name a version in a URL."""


def open_source(location: Location) -> RemoteSource:
    """Return a source for an object; raises as `Store.open`."""
    if location.is_web:
        from npzkit.stores.http_store import HttpStore

        return RemoteSource(location, HttpStore(*location))
    from npzkit.stores.fsspec_store import FsspecStore

    return RemoteSource(location, FsspecStore(*location))


def open_stream(location: Location) -> BinaryIO:
    """Open an object of any kind, to be read from front to back; raises as `open_source`."""
    source = open_source(location)
    ahead = source.ahead([(0, source.size)])
    return cast(BinaryIO, io.BufferedReader(SourceFile(ahead, source.size, source)))


def open_sink(location: Location, *, exclusive: bool = False, tag: str = "") -> UploadSink:
    """Return a sink that makes an object in a store, in place of any, or of the one with this tag.

    With `exclusive`, only if there is none. FileExistsError and StaleArchiveError say that the
    condition is not fulfilled now, and UnsupportedError that nothing can be written there.
    """
    check_writable(location)
    from npzkit.stores.fsspec_store import FsspecStore

    store, older = FsspecStore(*location), None if exclusive else tag
    if store.is_s3:
        from npzkit.stores.s3_upload import S3Upload

        return UploadSink(S3Upload(store, older))
    from npzkit.stores.fsspec_upload import FsspecUpload

    return UploadSink(FsspecUpload(store, older))


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
    if _VERSION.search(location.url):
        raise UnsupportedError(
            "the URL names one version of an object, and versions are never changed",
            path=str(location),
            remedy="Write to the URL without the version: that makes a new one.",
        )
