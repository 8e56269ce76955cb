"""Uploads to stores other than S3, by what fsspec's file systems have in common.

Owns how an object appears at once: a small one by one request, a larger one by the file
objects of fsspec that commit or discard. Such a file takes its parts in their order, and
its library tries again what fails.
"""

from __future__ import annotations

import contextlib
import threading
from typing import Any

from npzkit.errors import UnsupportedError
from npzkit.stores.fsspec_store import FsspecStore
from npzkit.stores.retries import TransientError
from npzkit.stores.time_limits import extend
from npzkit.stores.upload_sink import Upload, replaced

_LOOK_SECONDS = 0.25
"""Seconds between two looks whether the upload was stopped."""
_GATHERED_SIZE = 1 << 23
"""Bytes that a file object gathers before it sends them. adlfs would gather 50 MiB."""


class FsspecUpload(Upload):
    """One object that is being made.

    Parameters
    ----------
    store : FsspecStore
    older : str or None
        None is checked when the object appears by the stores of Google and Azure; by others,
        and any other mark, before the last request.
    """

    def __init__(self, store: FsspecStore, older: str | None) -> None:
        super().__init__(store.name, older)
        self._store = store
        self._file: Any = None
        self._turn = threading.Condition()
        self._next = 1
        self._is_stopped = False
        fs = store.file_system
        # In the memory of this process, files are visible when they are opened.
        self.has_parts = "memory" not in fs.protocol
        self.has_any_order = not self.has_parts
        # Of the others, only the stores of objects are known to make one at once.
        self._is_made_at_once = not self.has_parts or getattr(fs, "async_impl", False)

    def find_tag(self) -> str | None:
        with contextlib.suppress(FileNotFoundError):
            return str(self._store.explained(self._store.find_version).tag)
        return None

    def put(self, data: bytearray) -> None:
        if not self._is_made_at_once:
            self.begin()
            self.send(1, data)
            self.complete()
            return
        self.check()
        mode = "create" if self.older is None else "overwrite"
        fs, path = self._store.file_system, self._store.path
        self._call(fs.pipe_file, path, bytes(data), mode=mode, size=len(data))

    def begin(self) -> None:
        file = self._call(self._open)
        if not (hasattr(file, "commit") and hasattr(file, "discard")):
            raise UnsupportedError(
                "the store has no files that appear when they are complete", path=self.name,
                remedy="Write to a path, and upload the file.",
            )  # fmt: skip
        self._file = file

    def _open(self) -> Any:
        fs, path = self._store.file_system, self._store.path
        options = {"autocommit": False, "block_size": _GATHERED_SIZE}
        if self.older is None:
            with contextlib.suppress(NotImplementedError, ValueError):
                return fs._open(path, "xb", **options)
        return fs._open(path, "wb", **options)

    def send(self, number: int, data: bytearray) -> None:
        with self._turn:
            try:
                # `stop` tells nobody, and memory may have ended before an earlier part was tried.
                while not (self._next == number or self._is_stopped):
                    self._turn.wait(_LOOK_SECONDS)
                if self._is_stopped:
                    raise OSError(f"{self.name}: an earlier part could not be sent")
                # One block per part: Azure takes 50,000 blocks.
                self._file.blocksize = max(getattr(self._file, "blocksize", 0), len(data))
                self._call(self._file.write, data, size=len(data))
                self._next += 1
            except BaseException:
                self._is_stopped = True
                raise
            finally:
                self._turn.notify_all()

    def complete(self) -> None:
        self.check()
        self._call(self._file.close, size=getattr(self._file, "blocksize", 0))
        self._call(self._file.commit)
        self._file = None
        self._store.forget_list(self._store.file_system, self._store.path)

    def stop(self) -> None:
        # No lock: a thread may hold it while it sends.
        self._is_stopped = True
        self._store.abort()

    def abort(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            try:
                self._call(file.discard)
            finally:
                # Otherwise it would be completed when it is collected.
                with contextlib.suppress(AttributeError):
                    file.closed = True

    def _call(self, request: Any, *args: Any, size: int = 0, **options: Any) -> Any:
        """Make a request once: a file object that failed cannot take the same bytes again.

        `size` is how many bytes it sends.
        """

        def call() -> Any:
            extend(size)
            return self._store.call(request, *args, **options)

        try:
            return self._store.explained(call)
        except FileExistsError:
            raise replaced(self.name, None) from None
        except TransientError as error:
            raise OSError(f"{self.name}: {error}") from None
