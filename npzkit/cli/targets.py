"""What commands refuse: a request that cannot be done, with exit code 2.

Owns how a refusal names the option that allows it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import click

from npzkit.cli.wording import message_of
from npzkit.errors import NpzkitError, UnsafeNameError
from npzkit.members.keys import check_key

__all__ = ["Refusal", "check_absent", "check_new_key", "refusing"]


class Refusal(click.ClickException):
    """A request that cannot be fulfilled as it was made; the exit code is 2."""

    exit_code = 2


def check_absent(path: str, *, force: bool) -> None:
    """Check that nothing is at `path`, unless it is to be replaced."""
    if not force and os.path.lexists(path):
        raise _exists(path)


def _exists(path: str) -> Refusal:
    return Refusal(f"{path!r} already exists. Pass --force to replace it.")


@contextlib.contextmanager
def refusing(*kinds: type[NpzkitError]) -> Iterator[None]:
    """Raise a refusal for errors of some kinds, and for a file that already exists."""
    try:
        yield
    except FileExistsError as error:
        raise _exists(os.fsdecode(error.filename)) from error
    except kinds as error:
        raise Refusal(message_of(error)) from error


def check_new_key(key: str) -> None:
    """Check that an array can be saved under a key that was asked for."""
    with refusing(UnsafeNameError):
        check_key(key)
