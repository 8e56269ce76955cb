"""Refusals: requests that cannot be fulfilled, with exit code 2.

Owns the messages that name the option to use instead.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import click

from npzkit.cli.wording import message_of
from npzkit.errors import NpzkitError


class Refusal(click.ClickException):
    """A request that cannot be fulfilled as it was made; the exit code is 2."""

    exit_code = 2


@contextlib.contextmanager
def refusing(*kinds: type[NpzkitError]) -> Iterator[None]:
    """Raise Refusal for errors of these kinds, and for a file that already exists."""
    try:
        yield
    except FileExistsError as error:
        path = os.fsdecode(error.filename)
        raise Refusal(f"{path!r} already exists. Pass --force to replace it.") from error
    except kinds as error:
        raise Refusal(message_of(error)) from error
