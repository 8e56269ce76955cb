"""Which names are URLs, and what their schemes mean.

Owns what counts as a URL, and the storage options that apply where none were passed. Opens
nothing. How a URL is shown is `npzkit.errors.shown_url`'s; which parts of what a library says
are secret, `npzkit.stores.hidden_secrets`'.
"""

# Without `from __future__ import annotations`: see "The first call" in CONTRIBUTING.
import contextlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

from npzkit.errors import UnsupportedError, shown_url

_URL = "[A-Za-z][A-Za-z0-9+.-]+(::[A-Za-z][A-Za-z0-9+.-]+)*://"
_LOCAL = ("file", "local")

_DEFAULT: ContextVar[Mapping[str, Any] | None] = ContextVar("storage options", default=None)


class Location(NamedTuple):
    """Where an archive is that is not on a local disk.

    Attributes
    ----------
    url : str
        With its secrets. `shown_url` removes them.
    options : dict of str to object
        For the store.
    """

    url: str
    options: dict[str, Any]

    @property
    def scheme(self) -> str:
        """What stands before ``://``, in lower case: ``s3``, or a chain such as ``zip::s3``."""
        return self.url.partition("://")[0].lower()

    @property
    def is_web(self) -> bool:
        """Whether a web server has it."""
        return self.scheme in ("http", "https")

    @property
    def is_chain(self) -> bool:
        """Whether one file system reads it through another."""
        return "::" in self.scheme

    @property
    def file_name(self) -> str:
        """The last part of the path.

        Examples
        --------
        >>> Location("https://host/a/my%20b.npy?token=1", {}).file_name
        'my b.npy'
        >>> Location("s3://bucket/100%/b.npy", {}).file_name
        'b.npy'
        """
        if "http" in self.scheme:
            return unquote(re.split("[?#]", self.url, maxsplit=1)[0].rpartition("/")[2])
        return self.url.rpartition("/")[2]

    def __repr__(self) -> str:
        return f"Location({shown_url(self.url)!r})"

    def __str__(self) -> str:
        return shown_url(self.url)


def find_location(file: Any, storage_options: Mapping[str, Any] | None = None) -> Any:
    """Return a `Location` for a URL or a remote `UPath`; a path for a local one.

    Anything else is returned as it is.

    Parameters
    ----------
    file : object
    storage_options : mapping, optional
        For the store. They come before those of a `UPath`, and before
        `default_storage_options`.

    Raises
    ------
    TypeError
        `storage_options` is not a mapping.
    ValueError
        `storage_options` were given for something that is not a URL.

    Examples
    --------
    >>> find_location("data.npz"), find_location("file:///tmp/a%20b.npz")
    ('data.npz', '/tmp/a b.npz')
    >>> find_location("https://me:secret@host/a.npz?token=1")
    Location('https://host/a.npz?...')
    """
    if storage_options is None and type(file) is str and "://" not in file:
        return file
    if storage_options is not None and not isinstance(storage_options, Mapping):
        raise TypeError(
            f"storage_options must be a dict or None, not {type(storage_options).__name__}"
        )
    options = {**(_DEFAULT.get() or {}), **(storage_options or {})}
    url = file
    if isinstance(file, Location):
        return Location(file.url, {**file.options, **(storage_options or {})})
    if getattr(file, "protocol", "") not in ("", *_LOCAL) and hasattr(file, "storage_options"):
        url, options = str(file), {**file.storage_options, **options}
    if isinstance(url, str) and "://" in url and (found := re.match(_URL, url.strip())):
        # A space that was copied with it would make it the path of a file, shown with its secrets.
        url = url.strip()
        if found.group()[:-3].lower() not in _LOCAL:
            return Location(url, options)
        file = _local_path(url)
    if storage_options:
        raise ValueError("storage_options are for URLs; this is not a URL")
    return file


def find_locations(files: Iterable[Any], storage_options: Mapping[str, Any] | None) -> list[Any]:
    """Return `find_location` of each; the options are for those that are URLs.

    Raises
    ------
    TypeError, ValueError
        As of `find_location`; none of them is a URL, and `storage_options` are given.
    """
    found = [find_location(file) for file in files]
    urls = [isinstance(location, Location) for location in found]
    if not any(urls):
        find_location(None, storage_options)
    return [
        find_location(file, storage_options) if is_url else location
        for file, location, is_url in zip(files, found, urls, strict=True)
    ]


def local_path(file: str | os.PathLike[str]) -> str | None:
    """Return the path of a local file, or None for the URL of a store or a server."""
    found = find_location(file)
    return None if isinstance(found, Location) else os.fspath(found)


def _local_path(url: str) -> str:
    """Return the path in a URL of a local file."""
    rest = url[url.index("://") + 3 :]
    path = (
        unquote(urlsplit(f"file://{rest}").path) if rest.startswith(("/", "localhost/")) else rest
    )
    # file:///C:/folder on Windows.
    return path[1:] if os.name == "nt" and re.match(r"/[A-Za-z]:", path) else path


def check_local(file: Any, what: str, remedy: str) -> None:
    """Raise UnsupportedError if `file` is a URL, for what needs a local file."""
    location = find_location(file)
    if isinstance(location, Location):
        raise UnsupportedError(what, path=str(location), remedy=remedy)


@contextlib.contextmanager
def default_storage_options(options: Mapping[str, Any]) -> Iterator[None]:
    """Use these storage options for all URLs in a ``with`` block, unless others are passed."""
    token = _DEFAULT.set(options)
    try:
        yield
    finally:
        _DEFAULT.reset(token)
