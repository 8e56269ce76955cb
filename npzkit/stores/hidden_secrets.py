"""The secrets of a URL and its options, which no text of a library may show, and no log.

Owns which parts of them are secret, and whose logs are dropped while they work for npzkit: at the
level DEBUG, libraries log complete URLs, with passwords and signatures, and headers with tokens.
"""

from __future__ import annotations

import itertools
import logging
import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote, unquote

from npzkit.errors import shown_url
from npzkit.files.urls import Location
from npzkit.stores.time_limits import is_limited

_SECRET_OPTION = "(?i)key|secret|token|pass|auth|cred|sig|sas|header|cookie|connection"
_LIBRARIES = {
    "adlfs", "aiobotocore", "aiohttp", "azure", "botocore", "fsspec", "gcsfs", "google", "requests",
    "s3fs", "urllib3",
}  # fmt: skip


def hide_secrets(text: str, location: Location) -> str:
    """Return a library's text about a location as `shown_url` does, and without its secrets.

    These are user, password and query of the URL, and options whose names say so.

    Examples
    --------
    >>> hide_secrets("no bucket me:secret@b", Location("s3://me:secret@b/a", {"token": "x1"}))
    'no bucket ...@b'
    """
    forms = {
        form
        for found in _secrets_in(*location)
        for form in (found, unquote(found), quote(found, safe=""), repr(found)[1:-1])
    }
    secret = [False] * len(text)
    for form in filter(None, forms):
        # A user called "a" must not take all letters a away.
        pattern = re.escape(form) if len(form) > 3 else rf"(?<!\w){re.escape(form)}(?!\w)"
        for found in re.finditer(pattern, text):
            secret[found.start() : found.end()] = [True] * len(form)
    runs = itertools.groupby(zip(text, secret, strict=True), key=lambda pair: pair[1])
    return shown_url("".join("..." if hide else "".join(c for c, _ in run) for hide, run in runs))


def _secrets_in(url: str, options: Any) -> Iterator[str]:
    for begin in re.finditer("://", url):
        rest = url[begin.end() :]
        for at in re.finditer("@", rest):
            user = rest[: at.start()]
            if ":" in user or "/" not in user:
                # A library may show the piece of a password that it took for a port.
                yield from (user, *user.partition(":")[::2], *re.split(r"[:/?#\s]", user))
        query = re.search(r"[?#](.*)", rest, re.DOTALL)
        if query is not None:
            yield query[1]
            for pair in re.split("[?#&]", query[1]):
                value = pair.partition("=")[2] or pair
                yield from (value, *re.split("[@:/ ]", value))
    for name, value in options.items():
        if isinstance(value, Mapping) and not re.search(_SECRET_OPTION, str(name)):
            yield from _secrets_in("", value)
        elif isinstance(value, str) and "://" in value:
            yield from _secrets_in(value, {})
        elif re.search(_SECRET_OPTION, str(name)):
            yield from _texts_in(value)


def _texts_in(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        # Of "Bearer abc", a server may show the token alone.
        yield from (value, *value.split())
    elif isinstance(value, bytes):
        yield from _texts_in(value.decode("latin-1"))
    elif isinstance(value, Mapping):
        yield from _texts_in(list(value.values()))
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from _texts_in(each)


def _is_of_others(_: logging.LogRecord) -> bool:
    return not is_limited()


def keep_quiet() -> None:
    """Drop what loggers of the libraries that are imported by now say in npzkit's calls."""
    for name in list(logging.root.manager.loggerDict):
        if name.partition(".")[0] in _LIBRARIES:
            logging.getLogger(name).addFilter(_is_of_others)
