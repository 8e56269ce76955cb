"""Uploads to S3, and to servers that speak its protocol.

Owns the requests of an upload in parts, the conditions that S3 checks when an object
appears or is removed, and which leftovers are removed. Requests are sent by s3fs, whose
event loop and connections are those of `npzkit.stores.fsspec_store`.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from npzkit.stores.fsspec_store import FsspecStore, answer_of, status_of
from npzkit.stores.retries import TransientError
from npzkit.stores.time_limits import extend
from npzkit.stores.upload_sink import Upload, replaced

_MARK = "npzkit-upload"
"""Name of the metadata by which an upload knows its own object: a lost answer, and the
request that repeats it, look like those of another writer."""
_NOT_FOUND, _CONFLICT, _FAILED, _UNKNOWN = 404, 409, 412, 501


class S3Upload(Upload):
    """One object in a bucket that is being made.

    Parameters
    ----------
    store : FsspecStore
    older : str or None
        Checked by S3 at the instant when the object appears, and before that for servers
        that do not know such conditions.
    """

    has_any_order = True

    def __init__(self, store: FsspecStore, older: str | None) -> None:
        super().__init__(store.name, older)
        self._store = store
        bucket, key, _ = store.file_system.split_path(store.path)
        self._place = {"Bucket": bucket, "Key": key}
        self._metadata = {_MARK: secrets.token_hex(16)}
        self._upload_id = ""
        self._tags: dict[int, str] = {}

    def find_tag(self) -> str | None:
        found = self._head()
        if found is not None and self._is_own(found):
            # It is there already, by a request whose answer was lost.
            return self.older or None
        return None if found is None else str(found["ETag"])

    def put(self, data: bytearray) -> None:
        self._make("put_object", Body=data, Metadata=self._metadata)

    def begin(self) -> None:
        end_uploads(self._store, self._place["Key"], self._place["Key"].__eq__)
        answer = self._call("create_multipart_upload", Metadata=self._metadata)
        self._upload_id = answer["UploadId"]

    def send(self, number: int, data: bytearray) -> None:
        try:
            answer = self._call(
                "upload_part", UploadId=self._upload_id, PartNumber=number, Body=data
            )
        except FileNotFoundError:
            raise self._ended() from None
        self._tags[number] = answer["ETag"]

    def complete(self) -> None:
        # Some servers ignore the condition of this request.
        self.check()
        parts = [{"PartNumber": n, "ETag": tag} for n, tag in sorted(self._tags.items())]
        self._make(
            "complete_multipart_upload", UploadId=self._upload_id, MultipartUpload={"Parts": parts}
        )

    def _make(self, method: str, **options: Any) -> None:
        """Make the object appear, if the condition is fulfilled."""
        condition = {"IfNoneMatch": "*"}
        if self.older is not None:
            condition = {"IfMatch": self.older} if self.older else {}
        try:
            self._store.explained(self._make_or_explain, method, options, condition)
        finally:
            self._store.file_system.invalidate_cache(self._store.path)

    def _make_or_explain(
        self, method: str, options: Mapping[str, Any], condition: Mapping[str, str]
    ) -> None:
        try:
            _answer(self._store, method, {**self._place, **options, **condition})
        except OSError as error:
            status = status_of(error)
            if status == _UNKNOWN and condition:
                # A server that knows no conditions.
                self.check()
                self._make_or_explain(method, options, {})
                return
            if status == _CONFLICT:
                raise TransientError("another writer writes to this name") from None
            if status not in (_NOT_FOUND, _FAILED):
                raise
            if self.is_in_place():
                return
            if status == _FAILED or answer_of(error).get("Error", {}).get("Code") == "NoSuchKey":
                raise replaced(self.name, self.older) from None
            if self._upload_id:
                raise self._ended() from None
            raise

    def is_in_place(self) -> bool:
        found = self._head()
        return found is not None and self._is_own(found)

    def _is_own(self, found: Mapping[str, Any]) -> bool:
        return bool(found.get("Metadata", {}).get(_MARK) == self._metadata[_MARK])

    def _head(self) -> Mapping[str, Any] | None:
        try:
            answer: Mapping[str, Any] = self._call("head_object")
        except FileNotFoundError:
            return None
        return answer

    def abort(self) -> None:
        if self._upload_id:
            with contextlib.suppress(FileNotFoundError):
                self._call("abort_multipart_upload", UploadId=self._upload_id)
            self._upload_id = ""

    def stop(self) -> None:
        self._store.abort()

    def _ended(self) -> OSError:
        return OSError(
            f"{self.name}: the upload was ended by another program, such as a second writer "
            "to this name"
        )

    # -- requests -----------------------------------------------------------

    def _call(self, method: str, **options: Any) -> Any:
        """Make one request, which ends if its thread is interrupted, or by `stop`."""
        return self._store.explained(_answer, self._store, method, {**self._place, **options})


def remove_version(store: FsspecStore, path: str, tag: str) -> None:
    """Remove an object if it has this ETag; StaleArchiveError if another writer replaced it.

    Servers that do not know the condition, and versions of botocore before it, remove any.
    """
    bucket, key, _ = store.file_system.split_path(path)
    place = {"Bucket": bucket, "Key": key}
    try:
        _answer(store, "delete_object", {**place, "IfMatch": tag})
    except OSError as error:
        status = status_of(error)
        if status == _CONFLICT:
            raise TransientError("another writer writes to this name") from None
        if status == _FAILED:
            raise replaced(store.name, tag) from None
        if status != _UNKNOWN:
            raise
        _answer(store, "delete_object", place)
    finally:
        store.file_system.invalidate_cache(path)


def end_uploads(store: FsspecStore, prefix: str, is_ended: Callable[[str], bool]) -> None:
    """End uploads below a prefix that were not completed, and of whose key `is_ended` is true.

    That is as far as the server and its rights allow.
    """
    with contextlib.suppress(OSError, TransientError):
        store.explained(_end_uploads, store, prefix, is_ended)


def _end_uploads(store: FsspecStore, prefix: str, is_ended: Callable[[str], bool]) -> None:
    place = {"Bucket": store.file_system.split_path(store.path)[0]}
    for found in list(_uploads(store, {**place, "Prefix": prefix})):
        if is_ended(found["Key"]):
            options = {**place, "Key": found["Key"], "UploadId": found["UploadId"]}
            with contextlib.suppress(FileNotFoundError):
                _answer(store, "abort_multipart_upload", options)


def _uploads(store: FsspecStore, options: dict[str, str]) -> Iterator[Mapping[str, str]]:
    """Yield key and id of uploads under way, of which a server lists 1,000 at a time."""
    while True:
        answer = _answer(store, "list_multipart_uploads", options)
        yield from answer.get("Uploads") or ()
        if not answer.get("IsTruncated"):
            return
        options["KeyMarker"] = answer["NextKeyMarker"]
        options["UploadIdMarker"] = answer["NextUploadIdMarker"]


def _answer(store: FsspecStore, method: str, options: Mapping[str, Any]) -> Any:
    """Make a request in the event loop of s3fs."""
    extend(len(options.get("Body", b"")))
    return store.run(store.file_system._call_s3(method, **options))
