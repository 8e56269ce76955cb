"""The steps of a checkpoint store in a store of objects: under one URL.

Owns what two writers do to each other, leftovers of writers that were killed, and what is
remembered of a list of objects. A step is listed once its upload is complete.

There is no lock: stores of objects have none that ends with its holder. A step that is
new is written on the condition that there is none, and one that is saved again on the
condition that nobody changed it. So of two writers of one step, one gets an error. A policy
removes a step on the condition that nobody has saved it again.
"""

from __future__ import annotations

import time

from npzkit.checkpoint.background import outlive_pools
from npzkit.checkpoint.steps import (
    Listing,
    NewStep,
    StepIdentity,
    Steps,
    name_of_step,
    steps_in,
    steps_of_folders,
)
from npzkit.errors import StaleArchiveError
from npzkit.files.urls import Location
from npzkit.stores.objects import Found, StorePrefix

_FRESH_SECONDS = 1.0
"""How long a list of objects tells what a single one is. One request brings all."""


class Bucket(Steps):
    """The steps under a URL.

    Parameters
    ----------
    location : Location

    Raises
    ------
    UnsupportedError
        Nothing can be listed there.
    """

    def __init__(self, location: Location) -> None:
        self._here: StorePrefix = StorePrefix(location)
        self._here.check_listable()
        self.path = self._here.name
        self._durable = True
        self._listed: dict[str, Found] = {}
        self._list_time = -_FRESH_SECONDS
        self._has_cleaned = False
        outlive_pools()

    def look(self) -> Listing:
        """List the objects once."""
        now = time.monotonic()
        self._listed = self._here.listed()
        self._list_time = now
        return Listing(steps_in(self._listed), steps_of_folders(self._here.folders or ()))

    def _forget(self) -> None:
        self._list_time = -_FRESH_SECONDS

    def _find_file(self, step: int) -> Found | None:
        if time.monotonic() - self._list_time >= _FRESH_SECONDS:
            self.look()
        return self._listed.get(name_of_step(step))

    def begin_writing(self) -> None:
        """Do nothing: there is no lock."""

    def _identity(self, step: int) -> StepIdentity | None:
        found = super()._identity(step)
        if found is None:
            # The list may be older than the step.
            self._forget()
            found = super()._identity(step)
        return found

    def commit(self, new: NewStep) -> None:
        """Upload a step, which replaces an older one when it is complete."""
        if not self._has_cleaned:
            self._here.end_uploads(lambda name: bool(steps_in((name,))))
            self._has_cleaned = True
        name = name_of_step(new.step)
        tag = self._here.tag_of(name)
        try:
            threads = new.options["threads"]
            new.archive.write(self._here.upload(name, tag), formatted=new.metadata, threads=threads)
        except (FileExistsError, StaleArchiveError) as error:
            raise self._overtaken(new.step) from error
        finally:
            self._forget()

    def _remove_file(self, step: int, found: Found | None) -> bool:
        try:
            return self._here.remove(name_of_step(step), found and found.mark)
        finally:
            self._forget()
