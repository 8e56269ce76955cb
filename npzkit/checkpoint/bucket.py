"""The steps of a checkpoint store in a store of objects: one object per step, under one URL.

Owns what two writers do to each other, leftovers of writers that were killed, and what is
remembered of a list of objects. A step is listed once its upload is complete.

There is no lock: stores of objects have none that ends with its holder. A step that is
new is written on the condition that there is none, and one that is saved again on the
condition that nobody changed it. So of two writers of one step, one gets an error. A policy
removes a step on the condition that nobody has saved it again.
"""

from __future__ import annotations

import errno
import os
import time
from typing import Any

from npzkit.archive.npzfile import NpzFile
from npzkit.archive.saving import PreparedArchive
from npzkit.checkpoint.background import outlive_pools
from npzkit.checkpoint.folder import (
    AS_SAVED,
    Identity,
    Listing,
    Status,
    is_step_name,
    name_of_folder,
    name_of_step,
    steps_in,
    steps_of_folders,
)
from npzkit.errors import ArchiveLockedError, StaleArchiveError
from npzkit.files.destinations import open_upload
from npzkit.files.objects import Found, StorePrefix
from npzkit.files.urls import Location

_FRESH_SECONDS = 1.0
"""How long a list of objects tells what a single one is. One request brings all."""


class Bucket:
    """Objects with one step each; a `npzkit.checkpoint.folder.Files`.

    Parameters
    ----------
    location : Location

    Raises
    ------
    UnsupportedError
        Nothing can be listed there.
    """

    def __init__(self, location: Location) -> None:
        self._objects = StorePrefix(location)
        self._objects.check_listable()
        self.path = self._objects.name
        self._listed: dict[str, Found] = {}
        self._list_time = -_FRESH_SECONDS
        self._has_cleaned = False
        outlive_pools()

    def path_of(self, step: int) -> str:
        """Return the URL of a step, without secrets."""
        return f"{self.path}/{name_of_step(step)}"

    # -- what there is ------------------------------------------------------

    def look(self) -> Listing:
        """List the objects once."""
        return Listing(steps_in(self._list()), steps_of_folders(self._objects.folders or ()))

    def has_folder(self, step: int) -> bool:
        """Return whether there is a prefix for a step, as of the last list of objects."""
        if self._objects.folders is None:
            self._list()
        return name_of_folder(step) in (self._objects.folders or ())

    def folder_of(self, step: int) -> Location:
        """Return where such a prefix is."""
        return self._objects.file(name_of_folder(step))

    def _list(self) -> dict[str, Found]:
        now = time.monotonic()
        self._listed = self._objects.listed()
        self._list_time = now
        return self._listed

    def _forget(self) -> None:
        self._list_time = -_FRESH_SECONDS

    def _of(self, step: int) -> Found:
        is_fresh = time.monotonic() - self._list_time < _FRESH_SECONDS
        found = (self._listed if is_fresh else self._list()).get(name_of_step(step))
        if found is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self.path_of(step))
        return found

    def identity(self, step: int) -> Identity:
        """Return the version of a step's object."""
        return self._of(step).mark

    def status(self, step: int) -> Status:
        """Return the size and the time of a step's object."""
        found = self._of(step)
        return Status(found.size, found.modified)

    def open(self, step: int, **options: Any) -> NpzFile:
        """Open a step's object; FileNotFoundError if it does not exist."""
        url, storage_options = self._objects.file(name_of_step(step))
        return NpzFile(url, storage_options=storage_options, **AS_SAVED, **options)

    # -- changes ------------------------------------------------------------

    def begin_writing(self) -> None:
        """Do nothing: there is no lock."""

    def commit(
        self, step: int, archive: PreparedArchive, metadata: bytes, is_synced: bool = False
    ) -> None:
        """Upload a step, which replaces an older one when it is complete.

        Raises
        ------
        ArchiveLockedError
            Another store saved or removed this step meanwhile.
        """
        if not self._has_cleaned:
            self._objects.end_uploads(is_step_name)
            self._has_cleaned = True
        name = name_of_step(step)
        condition = self._objects.unchanged(name)
        try:
            sink = open_upload(self._objects.file(name), condition)
            archive.write(sink, formatted=metadata)
        except (FileExistsError, StaleArchiveError) as error:
            raise ArchiveLockedError(
                f"another checkpoint store saved or removed step {step} at the same time",
                path=self.path, remedy="Let one store write to this URL at a time.",
            ) from error  # fmt: skip
        finally:
            self._forget()

    def remove(self, step: int, identity: Identity | None = None) -> bool:
        """Remove a step's object if it exists and is the one with this identity."""
        try:
            return self._objects.remove(name_of_step(step), identity)
        finally:
            self._forget()

    def settle(self, step: int) -> None:
        """Do nothing: what a store has, it keeps."""

    def settle_names(self, always: bool = False) -> None:
        """Do nothing, as `settle`."""

    def drop_cache(self, step: int) -> None:
        """Do nothing: each read is a request."""

    def close(self) -> None:
        """Do nothing: there is no lock."""
