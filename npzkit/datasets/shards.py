"""The shards of an open archive: opened when they are needed, a few at a time.

Owns which are open, and that each is the one that the index names.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from functools import partial
from typing import Any

from npzkit.archive.npzfile import NpzFile
from npzkit.archive.reopening import Recent
from npzkit.datasets.index import Index
from npzkit.datasets.shard_records import version_of
from npzkit.datasets.sharding import read_index
from npzkit.errors import ClosedArchiveError, MissingShardError, NpzkitError, StaleArchiveError
from npzkit.files.ahead import REQUEST_COUNT
from npzkit.files.threads import run
from npzkit.stores.objects import Objects

_OPEN_COUNT = 64
"""Shards that are kept open at most."""
_DISTANT_COUNT = 512
"""Distant shards that are kept open: each has up to 64 KiB in memory, and no file."""


class OpenShards:
    """The shards of an archive. Threads may share it.

    Parameters
    ----------
    place : Objects
    index : Index
    data : bytes
        Of the index, which is compared if a shard is not what it should be.
    options : dict
        Of `NpzFile`.

    Attributes
    ----------
    is_open : bool
    path : str
        Of the folder, for messages.
    """

    def __init__(self, place: Objects, index: Index, data: bytes, options: dict[str, Any]) -> None:
        self._place, self._index, self._data, self._options = place, index, data, options
        self._open = Recent(_OPEN_COUNT if place.is_local else _DISTANT_COUNT, place.is_local)
        self._proven: set[int] = set()
        self.is_open = True
        self.path = place.name

    def get(self, number: int) -> NpzFile:
        """Return an open shard, which is closed when nobody uses it any more.

        Raises
        ------
        MissingShardError
            It does not exist.
        StaleArchiveError
            It was replaced since the index was written, or the archive was.
        ClosedArchiveError
            The archive is closed.
        """
        self.check_open()
        npz: NpzFile = self._open.get(number, partial(self._open_shard, number))
        if not self.is_open:
            # Closed meanwhile, by another thread.
            self._open.clear()
        return npz

    def _open_shard(self, number: int) -> NpzFile:
        row = self._index.shards[number]
        self._place.check_inside(row.name)
        try:
            npz = NpzFile(self._place.file(row.name), **self._options)
        except FileNotFoundError as error:
            raise self._explained(
                MissingShardError(
                    "a shard that the index names does not exist", path=self._place.name,
                    found=row.name, remedy="Restore the file, or write the archive again.",
                )
            ) from error  # fmt: skip
        except NpzkitError as error:
            raise self._explained(error) from error
        npz._closes_silently = True
        found = version_of(npz)
        if found != (row.size, row.crc32):
            npz.close()
            raise self._explained(
                StaleArchiveError(
                    f"the shard {row.name!r} was replaced since the index was written",
                    path=self._place.name, found="size {}, CRC-32 {:08x}".format(*found),
                    expected=f"size {row.size}, CRC-32 {row.crc32:08x}",
                    remedy="Write the archive again, or restore the file.", is_damage=True,
                )
            )  # fmt: skip
        self._proven.add(number)
        return npz

    def prove(self, numbers: Iterable[int]) -> None:
        """Check that shards exist as the index has them, unless they were opened before."""
        tasks = [partial(self.get, number) for number in numbers if number not in self._proven]
        run(tasks, 1 if self._place.is_local else REQUEST_COUNT)

    def _explained(self, error: NpzkitError) -> NpzkitError:
        """Return the error of an archive that was replaced, if that is the cause."""
        try:
            self.check_unchanged()
        except StaleArchiveError as stale:
            return stale
        except (OSError, NpzkitError):
            pass
        return error

    def check_unchanged(self) -> None:
        """Raise StaleArchiveError if the folder has another index now, or none."""
        with contextlib.suppress(FileNotFoundError):
            if read_index(self._place) == self._data:
                return
        raise StaleArchiveError(
            "the archive was replaced or removed since it was opened", path=self._place.name,
            remedy="Open it again.",
        )  # fmt: skip

    def check_open(self) -> None:
        """Raise ClosedArchiveError if the archive is closed."""
        if not self.is_open:
            raise ClosedArchiveError(
                "the archive is closed", path=self._place.name, remedy="Open it again."
            )

    def close(self) -> None:
        """Close all shards. Reads that other threads have begun are completed."""
        self.is_open = False
        self._open.clear()
