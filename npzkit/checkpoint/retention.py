"""Removing steps that a policy does not keep.

Owns which steps are never removed, whatever the policy says: the newest sound step,
the step that was just saved, steps that this process is reading, steps that another writer
has saved again meanwhile, and damaged steps, from which a user may still want to rescue
arrays. Damaged steps do not count for the policy.

What is remembered of a step decides no removal: the disk may have damaged it since. So what a
removal rests on is read just then, and the policy is asked again, until it rests on nothing that
was not read. This is all of the newest sound step, and the metadata of the steps that stay because
of their metrics. What this save has written need not be read. Files that a step shares with older
ones need not be read either if those that are removed have the very same files, because then no
other copy of them goes.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

from npzkit.checkpoint.catalog import Catalog
from npzkit.checkpoint.frozen import Shared
from npzkit.checkpoint.policies import Policy
from npzkit.checkpoint.steps import StepIdentity, Steps, shown_steps
from npzkit.errors import StaleArchiveError, warn
from npzkit.members.keys import suggestion

_logger = logging.getLogger("npzkit.checkpoint")


class Readers:
    """The readers of the steps in one place.

    Attributes
    ----------
    lock : threading.RLock
        Held while a reader begins, and while a step is removed.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        # By the id of a reader: its step, and whether it still reads it.
        self._holders: dict[int, tuple[int, Callable[[], bool]]] = {}

    @contextlib.contextmanager
    def reading(self, step: int) -> Iterator[None]:
        """Count as a reader of a step for the time of the block."""
        reader = object()
        with self.lock:
            self._holders[id(reader)] = step, lambda: True
        try:
            yield
        finally:
            del self._holders[id(reader)]

    def hold(self, step: int, holder: Any, is_reading: Callable[[Any], bool]) -> None:
        """Count an object as a reader while it exists and `is_reading` says so."""
        number, holders = id(holder), self._holders
        found = weakref.ref(holder, lambda _: holders.pop(number, None))
        holders[number] = step, lambda: (one := found()) is not None and is_reading(one)

    def is_read(self, step: int) -> bool:
        """Return whether anyone reads a step now."""
        with self.lock:
            holders = list(self._holders.values())
            return any(held == step and is_reading() for held, is_reading in holders)


_known: weakref.WeakValueDictionary[str, Readers] = weakref.WeakValueDictionary()


def readers_of(path: str) -> Readers:
    """Return the readers of the steps at a path or URL, which all of its stores share."""
    place = path if "://" in path else os.path.realpath(path)
    readers = _known.get(place)
    if readers is None:
        readers = _known.setdefault(place, Readers())
    return readers


def _renew_locks() -> None:
    """In a forked child, no other thread is there to release a lock."""
    for readers in list(_known.values()):
        readers.lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_locks)


class _Choice(NamedTuple):
    """What a policy says now.

    Attributes
    ----------
    removed : tuple of int
        The steps to remove.
    newest : int or None
        The newest sound step, which must be on disk first.
    ranked : frozenset of int
        The steps that stay because of their metrics.
    newer : tuple of int
        The steps that are newer than the one just saved, and not known to be damaged.
    is_kept : bool
        Whether the policy keeps the step just saved.
    """

    removed: tuple[int, ...] = ()
    newest: int | None = None
    ranked: frozenset[int] = frozenset()
    newer: tuple[int, ...] = ()
    is_kept: bool = True


class Retention:
    """Removes steps of one place that its policy does not keep.

    Parameters
    ----------
    storage : Steps
    catalog : Catalog
    readers : Readers
    policy : Policy or None
        None keeps every step.
    """

    def __init__(
        self, storage: Steps, catalog: Catalog, readers: Readers, policy: Policy | None
    ) -> None:
        self._storage, self._catalog, self._readers = storage, catalog, readers
        self._policy = policy
        self._unproven = frozenset() if policy is None else policy.metric_names
        self._has_saved = False

    def removable(self) -> tuple[int, ...]:
        """Return the steps that would be removed now."""
        return self._choose().removed

    def _choose(self, saved: int | None = None, shared: Shared | None = None) -> _Choice:
        """Return what to remove, which the step that was just saved is not.

        What that step shares with an older one was not written now.
        """
        if self._policy is None:
            if saved is None or self._has_saved:
                return _Choice()
            return _Choice(newer=tuple(self._sound(above=saved)))
        self._check_metrics()
        unsound: set[int] = set()
        read: set[tuple[int, bool]] = set()
        last = None
        while True:
            # What was read may be other than what was remembered, which changes what is kept.
            choice = self._chosen(self._policy, saved, unsound)
            needed = self._basis(choice, saved, shared) - read
            if not needed and choice == last:
                return choice
            unsound.update(
                step
                for step, is_whole in needed
                if not self._catalog.is_sound_now(step, is_whole=is_whole)
            )
            read |= needed
            last = choice

    def _basis(
        self, choice: _Choice, saved: int | None, shared: Shared | None
    ) -> set[tuple[int, bool]]:
        """Return the steps that a removal rests on, and whether on all of a step."""
        newest = choice.newest
        if newest is None or not choice.removed:
            return set()
        # To prune is worth reading all of the best steps, and to save is not.
        basis = {(step, saved is None) for step in choice.ranked - {newest, saved}}
        is_written = newest == saved and self._storage.have_shared(
            shared, (newest, *choice.removed)
        )
        return basis if is_written else {(newest, True), *basis}

    def _chosen(self, policy: Policy, saved: int | None, unsound: Collection[int]) -> _Choice:
        """Return what a policy says by what is known now."""
        sound = [step for step in self._sound() if step not in unsound]
        newest = max(sound, default=None)
        kept, ranked = {newest}, set()
        for rule in policy._rules:
            asked: list[int] = []
            found = set(rule.kept(sound, partial(self._metrics, asked)))
            kept |= found
            ranked |= found.intersection(sound) if asked else set()
        removed = (
            s for s in sound
            if s not in kept and s != saved and not self._readers.is_read(s)
        )  # fmt: skip
        newer = () if saved is None else tuple(step for step in sound if step > saved)
        return _Choice(tuple(removed), newest, frozenset(ranked), newer, saved in kept)

    def _sound(self, above: int = -1) -> list[int]:
        """Return the steps above one that are not known to be damaged."""
        steps = (step for step in self._storage.steps() if step > above)
        return [step for step in steps if not self._catalog.is_damaged(step)]

    def _metrics(self, asked: list[int], step: int) -> Mapping[str, Any]:
        asked.append(step)
        return self._catalog.metrics(step)

    def apply(self) -> tuple[int, ...]:
        """Remove steps, and return which.

        Raises
        ------
        OSError
            A step cannot be removed. The others are.
        """
        removed, failed = self._remove_all(self._choose())
        if failed:
            error = next(iter(failed.values()))
            error.add_note(
                f"Not removed: {shown_steps(failed)}. Removed: {shown_steps(removed) or 'none'}."
            )
            raise error
        return removed

    def _remove_all(self, choice: _Choice) -> tuple[tuple[int, ...], dict[int, OSError]]:
        """Return which steps were removed, and the errors of those that cannot be."""
        if choice.newest is not None and choice.removed:
            self._storage.settle(choice.newest)
        # A step is removed only if its file is still the one for which this was decided.
        seen = {step: self._catalog.seen(step) for step in choice.removed}
        removed, failed = [], {}
        for step in choice.removed:
            try:
                if self._remove(step, seen[step]):
                    removed.append(step)
            except OSError as error:
                failed[step] = error
        if removed:
            self._storage.settle_names()
            _logger.info("removed the steps %s of %s", removed, self._storage.path)
        return tuple(removed), failed

    def _remove(self, step: int, seen: StepIdentity | None) -> bool:
        """Remove a step unless a reader has begun or another writer has saved it again.

        Return whether it was removed.
        """
        with self._readers.lock:
            return not self._readers.is_read(step) and self._storage.remove(step, seen)

    def apply_after_commit(self, saved: int, shared: Shared | None) -> tuple[int, ...]:
        """Remove steps, and return which; warn if one cannot be removed.

        The step was saved: a program that trains has no reason to stop.
        """
        try:
            choice = self._choose(saved, shared)
            removed, failed = self._remove_all(choice)
        except (OSError, StaleArchiveError) as error:
            _warn_of("old checkpoints", error)
            return ()
        if failed:
            _warn_of(f"the checkpoints {shown_steps(failed)}", next(iter(failed.values())))
        is_first, self._has_saved = not self._has_saved, True
        newer = [step for step in choice.newer if step not in removed]
        if newer and (is_first or not choice.is_kept):
            lost = ", and the policy counts them" if self._policy else ""
            if not choice.is_kept:
                lost = f", and the policy will not keep step {saved}"
            warn(
                f"step {saved} was saved, but newer steps exist: {shown_steps(newer)}. "
                f"load() takes the newest{lost}. If the run goes on from here, remove the newer "
                "ones with store.delete(step). Another run needs a folder of its own.",
                RuntimeWarning,
            )
        return removed

    def _check_metrics(self) -> None:
        """Warn, the first time, if no step has a metric by which the policy ranks steps."""
        unproven, self._unproven = self._unproven, frozenset()
        names = self._catalog.metric_names(self._storage.steps()) if unproven else []
        for name in sorted(unproven.difference(names)):
            warn(
                f"no step has the metric {name!r}, by which the policy ranks steps: it keeps all "
                f"of them until one has it. {suggestion(name, names, 'metrics')}",
                RuntimeWarning,
            )


def _warn_of(steps: str, error: Exception) -> None:
    warn(f"{steps} could not be removed: {error}. The next save tries again.", RuntimeWarning)
