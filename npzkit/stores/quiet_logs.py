"""What other libraries log while they work for npzkit: nothing, because it has secrets.

Owns which libraries these are. At the level DEBUG they log complete URLs, with passwords
and signatures, and headers with tokens.
"""

from __future__ import annotations

import logging

from npzkit.stores.calls import is_limited

_LIBRARIES = {
    "adlfs", "aiobotocore", "aiohttp", "azure", "botocore", "fsspec", "gcsfs", "google", "requests",
    "s3fs", "urllib3",
}  # fmt: skip


def _is_of_others(_: logging.LogRecord) -> bool:
    return not is_limited()


def keep_quiet() -> None:
    """Drop what loggers of the libraries that are imported by now say in npzkit's calls."""
    for name in list(logging.root.manager.loggerDict):
        if name.partition(".")[0] in _LIBRARIES:
            logging.getLogger(name).addFilter(_is_of_others)
