"""Removing steps that a policy does not keep.

Owns which steps are never removed, whatever the policy says: the newest sound step,
steps that this process is reading, steps that another writer has saved again meanwhile,
and damaged steps, from which a user may still want to rescue arrays. Damaged steps do
not count for the policy.
"""

from __future__ import annotations

import logging
import warnings

from npzkit.checkpoint.catalog import Catalog
from npzkit.checkpoint.folder import Identity, Storage
from npzkit.checkpoint.policies import Policy
from npzkit.checkpoint.readers import Readers

__all__ = ["Retention"]

_logger = logging.getLogger("npzkit.checkpoint")


class Retention:
    """Removes steps of one place that its policy does not keep.

    Parameters
    ----------
    storage : Storage
    catalog : Catalog
    readers : Readers
    policy : Policy or None
        None keeps every step.
    """

    def __init__(
        self, storage: Storage, catalog: Catalog, readers: Readers, policy: Policy | None
    ) -> None:
        self._storage, self._catalog, self._readers = storage, catalog, readers
        self._policy = policy

    def removable(self) -> tuple[int, ...]:
        """Return the steps that would be removed now."""
        return () if self._policy is None else self._choose(self._policy)[0]

    def _choose(self, policy: Policy) -> tuple[tuple[int, ...], int | None]:
        """Return the steps to remove, and the newest sound step, which must be on disk first."""
        if len(self._storage.steps()) < 2:
            return (), None
        newest = self._catalog.newest_sound()
        if newest is None:
            return (), None
        kept: set[int] = set()
        candidates: list[int] = []
        before = None
        # Reading metrics may show that a step is damaged, which changes what is kept.
        while candidates != before:
            before = candidates
            found = self._storage.steps()
            candidates = [step for step in found if not self._catalog.is_damaged(step)]
            kept = {newest, *policy.kept(candidates, self._catalog.metrics)}
        return (
            tuple(s for s in candidates if s not in kept and not self._readers.is_read(s)),
            newest,
        )

    def apply(self) -> tuple[int, ...]:
        """Remove steps, and return which.

        Raises
        ------
        OSError
            A step cannot be removed. Those before it are.
        """
        if self._policy is None:
            return ()
        steps, newest = self._choose(self._policy)
        if newest is not None and steps:
            self._storage.settle(newest)
        # What is known of a step, and is why it is not kept, is of the file that was seen.
        seen = {step: self._catalog.seen(step) for step in steps}
        removed = tuple(step for step in steps if self._remove(step, seen[step]))
        if removed:
            _logger.info("removed the steps %s of %s", list(removed), self._storage.path)
        return removed

    def _remove(self, step: int, seen: Identity | None) -> bool:
        """Remove a step unless a reader has begun or another writer has saved it again.

        Return whether it was removed.
        """
        with self._readers.lock:
            return not self._readers.is_read(step) and self._storage.remove(step, seen)

    def apply_after_commit(self) -> tuple[int, ...]:
        """Remove steps, and return which; warn if one cannot be removed.

        The step was saved: a program that trains has no reason to stop.
        """
        try:
            return self.apply()
        except OSError as error:
            warnings.warn(
                f"old checkpoints could not be removed: {error}. The next save tries again.",
                RuntimeWarning, stacklevel=2,
            )  # fmt: skip
            return ()
