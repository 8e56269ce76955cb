"""The members of an archive as commands list them: those that cannot be read among them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import click

import npzkit
from npzkit.cli.output import in_a_line

__all__ = ["Member", "members_of", "tell_unreadable"]


class Member(NamedTuple):
    """A key, and what is known of it, or what is wrong with it."""

    key: str
    info: npzkit.ArrayInfo | None
    error: str


def members_of(npz: npzkit.NpzFile, keys: Iterable[str]) -> Iterator[Member]:
    for key in keys:
        try:
            yield Member(key, npz.info(key), "")
        except npzkit.errors.StaleArchiveError:
            raise
        except npzkit.NpzkitError as error:
            yield Member(key, None, in_a_line(str(error)))


def tell_unreadable(count: int, members: Sequence[Member]) -> None:
    """Say what is wrong with one member, or how to find out about many."""
    first = next(member.error for member in members if member.info is None)
    text = first if count == 1 else f"{count} members cannot be read, the first: {first}"
    click.echo(f"npzkit: {text}", err=True)
