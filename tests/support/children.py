"""Forked children that say what they do: warm interpreters, in milliseconds."""

from __future__ import annotations

import contextlib
import os
import signal
import traceback
from collections.abc import Callable, Iterator, Sequence

__all__ = ["all_forked", "forked", "read_rest"]

_SECONDS = 300
"""A child that hangs, or is forgotten, ends."""


@contextlib.contextmanager
def forked(work: Callable[[int], object]) -> Iterator[tuple[int, int]]:
    """Run `work` in a forked child, with a pipe to write to.

    Yields the child's number and the pipe's other end; an exception arrives
    there as a traceback. The child is killed at the end of the block.
    """
    receiving, sending = os.pipe()
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            try:
                os.close(receiving)
                signal.alarm(_SECONDS)
                work(sending)
            except BaseException:
                os.write(sending, traceback.format_exc().encode())
        # Nothing of the test's may run twice.
        os._exit(0)
    os.close(sending)
    try:
        yield child, receiving
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(receiving)


@contextlib.contextmanager
def all_forked(works: Sequence[Callable[[int], object]]) -> Iterator[list[int]]:
    """Run each work in a forked child, all at the same time, and yield the pipes' other ends."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(forked(work))[1] for work in works]


def read_rest(pipe: int) -> bytes:
    """Read what a child says until it ends."""
    parts = []
    while part := os.read(pipe, 1 << 16):
        parts.append(part)
    return b"".join(parts)
