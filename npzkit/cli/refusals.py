"""Refusals: requests that cannot be fulfilled, with exit code 2.

Owns the messages that name the option to use instead.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import click

from npzkit.cli.wording import message_of
from npzkit.errors import NpzkitError, UnsafeNameError
from npzkit.files.urls import Location, find_location
from npzkit.members.keys import check_key


class Refusal(click.ClickException):
    """A request that cannot be fulfilled as it was made; the exit code is 2."""

    exit_code = 2


def check_absent(path: str, *, force: bool) -> None:
    """Raise Refusal if `path`, which may be a URL, exists, unless `force` is true."""
    if force:
        return
    location = find_location(path)
    if isinstance(location, Location):
        from npzkit.files.destinations import open_destination

        with refusing():
            open_destination(location, exclusive=True)
    elif os.path.lexists(location):
        raise _exists(path)


def _exists(path: str) -> Refusal:
    return Refusal(f"{path!r} already exists. Pass --force to replace it.")


@contextlib.contextmanager
def refusing(*kinds: type[NpzkitError]) -> Iterator[None]:
    """Raise Refusal for errors of these kinds, and for a file that already exists."""
    try:
        yield
    except FileExistsError as error:
        raise _exists(os.fsdecode(error.filename)) from error
    except kinds as error:
        raise Refusal(message_of(error)) from error


def check_new_key(key: str) -> None:
    """Raise Refusal if a key cannot be saved."""
    with refusing(UnsafeNameError):
        check_key(key)
