"""A folder of checkpoints: what users can do with one.

Owns `CheckpointStore`: what its calls take, check and promise, and their order. The
work is done by other modules: `steps`, `folder` and `bucket` for files and objects at URLs,
`loading` for reading, `background` for threads, `retention` for what may be removed.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Self, get_args

from npzkit.archive.npzfile import NpzFile
from npzkit.archive.save import PreparedArchive
from npzkit.checkpoint.background import Background, Saving
from npzkit.checkpoint.bucket import Bucket
from npzkit.checkpoint.catalog import Catalog, StoreReport
from npzkit.checkpoint.folder import Folder
from npzkit.checkpoint.frozen import Shared, find_shared
from npzkit.checkpoint.loading import Checkpoint, Loader, Request
from npzkit.checkpoint.policies import Mode, Policy, check_count, ranked, ranking_mode
from npzkit.checkpoint.retention import Retention, readers_of
from npzkit.checkpoint.snapshot import Snapshot
from npzkit.checkpoint.step_metadata import (
    Record,
    check_metadata,
    check_metrics,
    check_step,
    format_record,
    record_of,
)
from npzkit.checkpoint.steps import NewStep, Steps, looks_at
from npzkit.datasets.part_checks import Seen
from npzkit.datasets.shardedwriter import ShardedWriter
from npzkit.datasets.sharding import parse_size
from npzkit.errors import (
    ArchiveLockedError,
    ClosedArchiveError,
    NoCheckpointError,
    NpzkitError,
    UnsupportedError,
)
from npzkit.files.urls import Location, find_location
from npzkit.jax import agreement_of, joint_save
from npzkit.jax.agreement import Agreement
from npzkit.limits import thread_count
from npzkit.maintenance.findings import VerifyReport
from npzkit.stores.objects import Found
from npzkit.trees.containers import flatten
from npzkit.trees.notes import links
from npzkit.trees.restoring import KeySelection

if TYPE_CHECKING:
    from npzkit.jax.processes import JointSave
    from npzkit.typing import Compression

WhenBusy = Literal["wait", "skip", "raise"]


class CheckpointStore:
    """Checkpoints of a training run: one file per step, in one folder or under one URL.

    Each step is a file ``step_00000100.npz`` that `numpy.load` opens. A step is
    there when its file is complete, and no program that is killed can leave a
    part of one under that name. `load` compares every checksum. If the first step is a
    folder of several files (`shard_size`, `frozen`), all steps are.

    One store at a time writes to a folder, from its first `save` to `close`. Any
    number of stores, in any process, read it meanwhile.

    Parameters
    ----------
    folder : path or URL
        A folder is made by the first `save` if it does not exist. URLs lead to
        stores of objects, such as ``s3://bucket/run``.
    keep : Policy, optional
        Which steps to keep after each save: `latest`, `every` and `best`, joined
        by ``|``. By default nothing is removed.
    background : bool, default False
        Whether `save` returns as soon as it has a copy of what may change, and
        writes in a thread.
    when_busy : {"wait", "skip", "raise"}, default "wait"
        What `save` does while another save is under way: wait for it, do nothing
        and return a `Saving` that says so, or raise ArchiveLockedError.
    compression, level
        As in `npzkit.save`.
    durable : bool, default True
        Wait for the disk, so that a step that was saved survives a power failure.
        Stores of objects always do so.
    frozen : str or iterable of str, optional
        As in `save`, for all steps.
    max_memory : int, optional
        Most bytes to copy for a save in the background. A larger tree is written
        before `save` returns. By default, copies may have any size.
    threads : int, optional
        Number of threads that write and read a step; by default one per processor.
    storage_options : dict, optional
        For the store of a URL; see `npzkit.open`.

    Attributes
    ----------
    folder : str
        The absolute path, or the URL without secrets.

    Raises
    ------
    TypeError, ValueError
        An argument is not as described.
    UnsupportedError
        The URL is that of a web server or a chain, or its library is not installed.

    Notes
    -----
    Stores of objects have no locks. If two stores save the same step at the same
    time, one of them gets ArchiveLockedError. S3 checks that when the step appears.
    Google and Azure do so for a step that is new. For others, it is checked just before.
    A policy does not remove a step that another store has saved again meanwhile. S3 checks
    that when the step is removed; for other stores, it is checked just before.
    The first `save` ends the uploads to S3 that killed writers have left there.
    It would also end those of another store that is saving. What `metrics` returns,
    and what is known of a step, may be a second old.

    Nothing of a tree is pickled. In a forked child, a store can read; the saves
    under way are its parent's.

    Close a store at a URL before the program ends. At its end, Python 3.12 and
    versions without `threading`'s private hooks start no thread, which the first
    request to a store may need. The save then fails with a warning.

    If an array of JAX is spread over processes, all of them call `save` with the same
    tree, and `load` with ``like=``. Each one writes the parts that it has, and the first one
    completes the step, which is a folder then, and removes old steps. If one process fails,
    all of them raise an error. If one finds a step to be damaged, all load an older one.
    Nothing of such a tree can be frozen.

    The background does not copy an array that cannot change: one that is read-only
    together with all that it is a view of. Do not write to such an array's memory
    through a view that was made while it was writable. Memory maps are copied, because
    a change of the file changes them. Arrays of JAX are copied, because they may use
    memory of NumPy or PyTorch.

    Examples
    --------
    >>> import tempfile, numpy as np
    >>> from npzkit.checkpoint import CheckpointStore, best, latest
    >>> with CheckpointStore(tempfile.mkdtemp(), keep=latest(2) | best("loss")) as store:
    ...     for step, loss in enumerate([0.9, 0.1, 0.4, 0.3, 0.2]):
    ...         saving = store.save(step, {"w": np.full(3, step)}, metrics={"loss": loss})
    ...     store.steps, store.best("loss")
    ...     store.load().tree
    ((1, 3, 4), 1)
    {'w': array([4, 4, 4])}
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        keep: Policy | None = None,
        *,
        background: bool = False,
        when_busy: WhenBusy = "wait",
        compression: Compression = "stored",
        level: int | None = None,
        durable: bool = True,
        frozen: str | Iterable[str] | None = None,
        max_memory: int | None = None,
        threads: int | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        if keep is not None and not isinstance(keep, Policy):
            raise TypeError(
                f"keep must be a policy, such as latest(3) | best('loss'), not {keep!r}"
            )
        if when_busy not in get_args(WhenBusy):
            raise ValueError(f"when_busy must be 'wait', 'skip' or 'raise', not {when_busy!r}")
        if max_memory is not None and (isinstance(max_memory, bool) or not max_memory >= 0):
            raise ValueError(f"max_memory must be a number of bytes, not {max_memory!r}")
        PreparedArchive({}, compression, level)
        self._is_background, self._when_busy = bool(background), when_busy
        self._coding: dict[str, Any] = {"compression": compression, "level": level}
        self._threads = thread_count(threads)
        self._max_memory = math.inf if max_memory is None else max_memory
        self._keep, self._frozen = keep, _selection(frozen)
        place: Any = find_location(folder, storage_options)
        self._storage: Steps = (
            Bucket(place) if isinstance(place, Location) else Folder(place, durable=durable)
        )
        self._readers = readers_of(self._storage.path)
        self._catalog = Catalog(self._storage)
        self._loader = Loader(self._storage, self._catalog, self._readers, self._threads)
        self._retention = Retention(self._storage, self._catalog, self._readers, keep)
        self._background = Background()
        self._is_open = True

    @property
    def folder(self) -> str:
        return self._storage.path

    # -- what there is ------------------------------------------------------

    @property
    def steps(self) -> tuple[int, ...]:
        """The steps that are saved, ascending, once the save under way has ended.

        Only file names are read.
        """
        self._background.wait_for_end()
        return self._storage.steps()

    @property
    def latest(self) -> int | None:
        """The highest step, or None if there is none. It is not checked."""
        return max(self.steps, default=None)

    def best(self, metric: str, mode: Mode | None = None) -> int | None:
        """Return the step with the best value of a metric.

        Parameters
        ----------
        metric : str
        mode : {"min", "max"}, optional
            Whether a lower or a higher value is better; by default as `keep` ranks this
            metric, or else "min".

        Returns
        -------
        int or None
            Of equal values, the newer step. None if there is no step. NaN is no
            candidate, and no step whose metrics are damaged, or that this store has
            found to be damaged. No array is read. The save under way counts too: it is
            waited for.

        Raises
        ------
        NoCheckpointError
            There are steps, and none of them has the metric.
        """
        mode = ranking_mode(metric, self._keep) if mode is None else mode
        steps: tuple[int, ...] = ()
        for steps in looks_at(lambda: self.steps, self.folder):
            candidates = [step for step in steps if not self._catalog.is_damaged(step)]
            found = ranked(metric, candidates, self._catalog.metrics, mode)
            if found:
                return found[0]
        if steps:
            raise self._loader.without_metric(metric, self._catalog.metric_names(steps))
        return None

    def metrics(self, step: int) -> dict[str, Any]:
        """Return the metrics of a step, after the save under way. No array is read.

        Raises
        ------
        NoCheckpointError, DamagedCheckpointError
            There is no such step, or its metadata are damaged.
        """
        return dict(self._record(step).metrics)

    def metadata(self, step: int) -> dict[str, Any]:
        """Return the metadata that a step was saved with, as `metrics` does.

        Raises
        ------
        NoCheckpointError, DamagedCheckpointError
            As `metrics`.
        """
        return dict(self._record(step).metadata)

    def _record(self, step: int) -> Record:
        step = check_step(step)
        with self._there(step):
            return self._catalog.record(step)

    def _there(self, step: int) -> AbstractContextManager[None]:
        """Wait for the save under way, and return a block whose errors say if a step is missing."""
        self._background.wait_for_end()
        return self._loader.explained(step)

    def path(self, step: int) -> str:
        """Return the path or URL of a step's file, whether it exists or not."""
        return self._storage.path_of(check_step(step))

    def _files(self, step: int) -> list[Found]:
        """Return the files of a step, also shared ones; the first says when it was saved."""
        step = check_step(step)
        with self._there(step):
            return self._storage.files(step)

    def __len__(self) -> int:
        return len(self.steps)

    def __bool__(self) -> bool:
        # A store without steps is no less a store.
        return True

    def __contains__(self, step: object) -> bool:
        return step in self.steps

    def __iter__(self) -> Iterator[int]:
        return iter(self.steps)

    def __getitem__(self, step: int) -> NpzFile:
        """Open a step as a lazy archive, to be closed. It is not removed while it is open."""
        step = check_step(step)
        with self._there(step), self._readers.reading(step), contextlib.ExitStack() as on_error:
            npz = on_error.enter_context(self._storage.open(step))
            # Its names, attributes and metadata match their checksums.
            record_of(npz, step)
            self._readers.hold(step, npz, lambda npz: npz._archive.is_open)
            on_error.pop_all()
        return npz

    def __repr__(self) -> str:
        steps = self._storage.steps()
        newest = f", the newest is {steps[-1]}" if steps else ""
        return f"<CheckpointStore {self.folder!r}: {len(steps)} steps{newest}>"

    # -- saving -------------------------------------------------------------

    def save(
        self,
        step: int,
        tree: Any,
        metrics: Mapping[str, Any] | None = None,
        metadata: Mapping[str, Any] | None = None,
        *,
        verify: Literal["after"] | None = None,
        shard_size: int | str | None = None,
        frozen: str | Iterable[str] | None = None,
        check: bool = True,
        refresh: int | None = None,
    ) -> Saving:
        """Save a tree as a step, then remove the steps that the policy does not keep.

        A step that already exists is replaced when the new file is complete.

        Parameters
        ----------
        step : int
            From 0 on. Steps are ordered by their number.
        tree : mapping, list, tuple, namedtuple, dataclass, pytree of JAX, or array
            Nested dicts, lists and tuples of arrays, numbers, strings and None, as for
            `npzkit.save`.
        metrics : mapping of str to number, optional
            What `best` compares, such as a loss.
        metadata : mapping of str to object, optional
            Anything that JSON can represent, and NaN and infinity.
        verify : {None, "after"}, default None
            "after" reads the step back from the disk, and compares it with the
            checksums of what was in memory. No step is removed before that.
        shard_size : int or str, optional
            Split the step into several files of about this many bytes, such as
            ``"5GB"``, for file systems and stores that want no larger ones. The
            step is then a folder, which `npzkit.open` opens too. An array stays
            in one file. By default, a step is one file, or a folder if the first step is.
        frozen : str or iterable of str, optional
            Keys or patterns of arrays that do not change from step to step, such as
            ``"backbone/*"``; by default those of the store, and ``()`` for none. The
            step is a folder, and they have files of their own. If they are the same
            as in the newest step, its files are linked: they take no room and no time.
            Stores of objects copy them, and nothing is uploaded. Each step stays complete.
        check : bool, default True
            Compare the CRC-32s of frozen arrays with those of the newest step. If an
            array has changed, it is written, with a warning. False compares only shapes
            and dtypes: what has changed is then lost.
        refresh : int, optional
            Write the frozen arrays again every so many steps, because damage to a
            linked file is damage to all steps that have it. By default never.

        Returns
        -------
        Saving
            With ``background=True`` the save may still be under way. What reads the
            store waits for it: `load`, `steps`, `best`, `metrics` and others. Its
            failure is raised by `Saving.wait`, by the next call of `save`, `load`,
            `wait`, `verify`, `delete` or `prune`, or by `close`. Without, it is done.

        Raises
        ------
        TypeError, ValueError, NpzkitError
            An argument cannot be saved, or a pattern of `frozen` matches no array; no file
            was changed.
        UnsupportedError
            The step would be a folder, and the steps of the store are files.
        ArchiveLockedError
            Another store writes to the folder, or wrote this step meanwhile; or a
            save is under way, with ``when_busy="raise"``.
        OSError
            The file cannot be written. The older file of this step, if there is
            one, is as it was. Or an earlier save failed in the background: the message
            names both steps. Neither is saved.
        DamagedCheckpointError
            With ``verify="after"``: the disk does not have what was written.

        Warns
        -----
        RuntimeWarning
            An old step cannot be removed; the others are. Or newer steps exist, at the
            first save of this store, or if the policy will not keep this step. Or no step has a
            metric that the policy needs. Or a frozen array has changed, or files cannot be linked
            and are copied.

        Notes
        -----
        Do not change a linked file in place, as mode ``"a"`` of `npzkit.NpzWriter` and maps
        of mode ``"r+"`` do: that changes all steps that have it.
        """
        step = check_step(step)
        if verify not in (None, "after"):
            raise ValueError(f"verify must be None or 'after', not {verify!r}")
        refresh = None if refresh is None else check_count(refresh, "refresh")
        size = {} if shard_size is None else {"shard_size": parse_size(shard_size)}
        arrays, structure = flatten(tree)
        joint = joint_save(arrays)
        fixed = self._frozen_in(arrays, structure, frozen, joint)
        with self._background.turn:
            # All processes decide this together, before one may raise an earlier failure.
            if self._is_refused(step, joint):
                return Saving(step, self._storage.path_of(step), skipped=True)
            self._settle(step)
            record = Record(step, check_metrics(metrics), check_metadata(metadata), structure)
            if joint is None:
                self._storage.begin_writing()
            reasons = {"shard_size": shard_size, "frozen": fixed, "spread arrays": joint}
            is_folder = self._is_folder(step, [name for name in reasons if reasons[name]], joint)
            parts = joint.arrays if joint else arrays
            new, is_copied = self._new_step(record, parts, fixed, size, check, refresh)
            saving = Saving(step, self._storage.path_of(step, is_folder=is_folder))
            work = self._work(new, joint, is_folder=is_folder, is_read_back=verify is not None)
            if is_copied:
                self._background.start(saving, work)
            else:
                saving._finish(work())
            return saving

    def _new_step(
        self,
        record: Record,
        arrays: Mapping[str, Any],
        fixed: list[str],
        size: dict[str, int],
        check: bool,
        refresh: int | None,
    ) -> tuple[NewStep, bool]:
        """Return what is to be written, and whether a thread may write it."""
        shared = self._shared(record.step, {key: arrays[key] for key in fixed}, check, refresh)
        held = shared.keys if shared else ()
        written = {key: array for key, array in arrays.items() if key not in held}
        snapshot = Snapshot(written) if self._is_background else None
        if snapshot is not None and snapshot.size > self._max_memory:
            snapshot = None
        if snapshot is not None:
            written = snapshot.take()
        archive = PreparedArchive(written, **self._coding)
        text = format_record(record, shared.age if shared else 0, is_sealed=bool(arrays))
        options = {**self._coding, "threads": self._threads, **size}
        return NewStep(
            record.step, archive, written, text, fixed, shared, list(arrays), options
        ), snapshot is not None

    def _frozen_in(
        self,
        arrays: Mapping[str, Any],
        structure: Any,
        patterns: str | Iterable[str] | None,
        joint: Agreement | None,
    ) -> list[str]:
        """Return the keys of frozen arrays, which are none only if nothing is declared frozen.

        Raises
        ------
        MemberNotFoundError
            A pattern matches no array.
        UnsupportedError
            The arrays are spread over processes.
        """
        selection = self._frozen if patterns is None else _selection(patterns)
        if selection is None:
            return []
        if joint is not None:
            raise UnsupportedError(
                "arrays that are spread over processes cannot be linked to older ones",
                path=self.folder, remedy="Pass frozen=() for this step. Save what does not change "
                "once, in a store of its own.",
            )  # fmt: skip
        keys = list(arrays)
        found = selection.keys(keys)
        selection.check_used(keys, self.folder, is_empty=not found, tied=links(structure))
        return found

    def _is_folder(self, step: int, reasons: list[str], joint: Agreement | None) -> bool:
        """Return whether a step is to be a folder: for reasons, or as the store's steps are.

        Raises
        ------
        UnsupportedError
            There are reasons, and the store's steps are files.
        """
        agreement = joint or Agreement()
        known = agreement.first(partial(self._storage.is_written_as_folder, step))
        if reasons and known is False:
            raise UnsupportedError(
                f"step {step} would be a folder, and the steps of this store are files",
                path=self.folder, found=f"a folder, for {' and '.join(reasons)}",
                expected="a file, as the first step is",
                remedy="Save to a store in another folder.",
            )  # fmt: skip
        # The first step of a store with frozen arrays, without any: those that follow have some.
        return bool(reasons or (self._frozen if known is None else known))

    def _shared(
        self, step: int, arrays: Mapping[str, Any], check: bool, refresh: int | None
    ) -> Shared | None:
        """Return what a step shares with the newest.

        An older step that is replaced may have the only good copy: it shares the files that it
        has already, or nothing.
        """
        steps = self._storage.steps() if arrays else ()
        newest = max(steps, default=None)
        if newest is None or self._catalog.is_damaged(newest):
            return None
        # A step that is a file, or damaged, shares nothing.
        with contextlib.suppress(NpzkitError, FileNotFoundError):
            place, index = self._storage.index_of(newest)
            shared = find_shared(place, index, arrays, newest, check=check, refresh=refresh)
            if step not in steps or step == newest or self._storage.have_shared(shared, (step,)):
                return shared
        return None

    def _is_refused(self, step: int, joint: Agreement | None = None) -> bool:
        """Return whether a save is to be skipped; raise ArchiveLockedError if it is to fail."""
        if self._when_busy == "wait":
            return False
        if joint is not None:
            return bool(joint.first(partial(self._is_refused, step)))
        under_way = self._background.under_way
        if under_way is None:
            return False
        if self._when_busy == "raise":
            raise ArchiveLockedError(
                f"step {step} cannot be saved while step {under_way.step} is being saved",
                path=self.folder, remedy='Wait for it, or pass when_busy="wait".',
            )  # fmt: skip
        return True

    def _work(
        self, new: NewStep, joint: JointSave | None, *, is_folder: bool, is_read_back: bool
    ) -> Callable[[], tuple[int, ...]]:
        """Return what writes a step, and returns the steps that the policy removed then."""
        commit = partial(self._commit, new, is_folder=is_folder, is_read_back=is_read_back)
        if joint is None:
            return commit
        # Only the process that commits takes the lock.
        return partial(joint.save, new.arrays, partial(self._storage.shard_writer, new), commit)

    def _commit(
        self,
        new: NewStep,
        fill: Callable[[ShardedWriter], list[str]] | None = None,
        *,
        is_folder: bool,
        is_read_back: bool,
    ) -> tuple[int, ...]:
        self._storage.begin_writing()
        if is_folder:
            self._storage.commit_folder(new, fill)
        else:
            self._storage.commit(new)
        if is_read_back:
            self._storage.drop_cache(new.step)
            for row in self._catalog.verify(new.step).rows:
                if row.severity == "error":
                    error = NpzkitError(row.what, key=row.key, offset=row.where)
                    raise self._loader.damaged(new.step, error)
        return self._retention.apply_after_commit(new.step, new.shared)

    def wait(self, timeout: float | None = None) -> None:
        """Wait until the save under way has ended.

        Raises
        ------
        TimeoutError
            It is still under way after `timeout` seconds.
        NpzkitError, OSError
            The save failed.
        """
        self._background.wait(timeout)

    # -- loading ------------------------------------------------------------

    def load(
        self,
        step: int | None = None,
        like: Any = None,
        only: str | Iterable[str] | None = None,
        *,
        verify: bool = True,
        mmap_mode: Literal["r", "c"] | None = None,
        into: Any = None,
        strict: bool = True,
    ) -> Checkpoint:
        """Load a step: the one asked for, or the newest that is sound.

        Waits for the save under way.

        Parameters
        ----------
        step : int, optional
            By default the newest step whose data match their checksums. Damaged
            steps are skipped with a warning.
        like : object, optional
            An example with the structure and the types to load: classes of
            namedtuples and dataclasses, tensors with their devices and dtypes. It
            is not changed; see `npzkit.load_tree`.
        only : str or iterable of str, optional
            Keys or patterns, such as ``"model/*"``: the parts of the tree to load.
            No other array is read. ``*`` matches any text, also slashes. A list or
            tuple that loses items becomes a dict by index. With an example, all
            else keeps the example's value.
        verify : bool, default True
            Compare the CRC-32 of all that is read. False returns damaged data as
            they are.
        mmap_mode : {None, "r", "c"}, optional
            Map arrays instead of reading them, read-only or with changes that stay
            in memory. The step must be saved stored. With ``verify=True`` each map
            is read once.
        into : object, optional
            As `like`, but its arrays, tensors, dicts and lists are filled in place.
            Nothing is changed if an error is raised.
        strict : bool, default True
            Raise an error if the step does not fit the example. If False, a warning
            names the keys, and what does not fit keeps the example's value, unless
            nothing fits.

        Returns
        -------
        Checkpoint
            With `step`, `tree`, `metrics` and `metadata`.

        Raises
        ------
        NoCheckpointError
            There is no such step, or no step at all.
        DamagedCheckpointError
            The step is damaged, or there are steps and none is sound.
        TreeMismatchError
            The step does not fit the example. The error names all keys that are
            missing, left over, or of another shape or dtype.
        MemberNotFoundError
            The step has nothing that one of `only` matches.
        NotMappableError
            An array is compressed, and `mmap_mode` is given.
        UnsupportedError
            The steps are at a URL, and `mmap_mode` is given.
        ValueError
            `like` and `into` are both given, or an array or a tensor in `into`
            cannot be written to.

        Warns
        -----
        DamagedCheckpointWarning
            For each damaged step that was skipped.
        TreeMismatchWarning
            With ``strict=False``.
        """
        if mmap_mode not in (None, "r", "c"):
            raise ValueError(f"mmap_mode must be None, 'r' or 'c', not {mmap_mode!r}")
        if like is not None and into is not None:
            raise ValueError("like and into are both examples; pass one of them")
        # Several steps may be tried, each with all patterns.
        only = only if only is None or isinstance(only, str) else list(only)
        agreement = agreement_of(like if into is None else into)
        request = Request(only, like, into, strict, bool(verify), mmap_mode, agreement)
        number = None if step is None else check_step(step)
        self._settle()
        return (
            self._loader.newest(request) if number is None else self._loader.step(number, request)
        )

    # -- maintenance --------------------------------------------------------

    def verify(self, step: int | None = None) -> StoreReport:
        """Check every byte of a step, or of all steps.

        A file that several steps share is read once. If it is damaged, all of these steps
        are, and the first one says how.

        Returns
        -------
        StoreReport
            With `ok`, and in `steps` a `VerifyReport` with `ok` per step.

        Raises
        ------
        NoCheckpointError
            There is no such step, or no step at all.
        """
        self._settle()
        if step is not None:
            step = check_step(step)
            return StoreReport(self.folder, {step: self._verified(step)})
        reports: dict[int, VerifyReport] = {}
        seen: Seen = {}
        for steps in looks_at(self._storage.steps, self.folder):
            for number in steps:
                # Another process may have removed it.
                with contextlib.suppress(NoCheckpointError):
                    reports[number] = self._verified(number, seen)
            if reports:
                return StoreReport(self.folder, reports)
        raise self._loader.empty()

    def _verified(self, step: int, seen: Seen | None = None) -> VerifyReport:
        with self._loader.explained(step), self._readers.reading(step):
            return self._catalog.verify(step, seen)

    def delete(self, step: int) -> None:
        """Remove a step, even if the policy keeps it or it is the only sound one.

        Raises
        ------
        NoCheckpointError
            There is no such step.
        ArchiveLockedError
            Another store writes to the folder.
        OSError
            The file cannot be removed.
        """
        step = check_step(step)
        with self._background.turn:
            self._settle()
            if step not in self.steps:
                raise self._loader.missing(step)
            self._storage.begin_writing()
            self._storage.remove(step)
            # Otherwise it could come back after a power failure, as the newest one.
            self._storage.settle_names()

    def prune(self, dry_run: bool = False) -> tuple[int, ...]:
        """Remove the steps that the policy does not keep, as after each save.

        The newest sound step stays, and so do steps that this process is reading
        and steps that are known to be damaged. If something is to be removed, the newest
        step is read and checked first, and older ones until one is sound. So are the metrics
        of the steps that stay because of them.

        Parameters
        ----------
        dry_run : bool, default False
            Remove nothing.

        Returns
        -------
        tuple of int
            The steps that were removed, or would be.

        Raises
        ------
        ArchiveLockedError
            Another store writes to the folder.
        OSError
            A file cannot be removed. The others are. Or a step cannot be read now: then
            nothing is removed.

        Warns
        -----
        RuntimeWarning
            No step has a metric that the policy needs.
        """
        with self._background.turn:
            self._settle()
            if dry_run:
                return self._retention.removable()
            self._storage.begin_writing()
            return self._retention.apply()

    # -- the end ------------------------------------------------------------

    def _settle(self, unsaved: int | None = None) -> None:
        """Check that the store is open, and wait until what was saved is there.

        A failure of an earlier save is raised; its message names the step `unsaved`.
        """
        if not self._is_open:
            raise ClosedArchiveError(
                "the checkpoint store is closed", path=self.folder, remedy="Make a new one."
            )
        self._background.wait(unsaved=unsaved)

    def close(self) -> None:
        """Wait for the save under way, and let other stores write to the folder.

        Raises
        ------
        NpzkitError, OSError
            A save failed, and the error was not raised before.
        """
        with self._background.turn:
            self._is_open = False
            try:
                self._background.wait()
            finally:
                self._storage.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, exc_type: object, error: BaseException | None, *_: object) -> None:
        try:
            self.close()
        except Exception as failure:
            if error is None:
                raise
            # The error that ended the block is the one to be raised.
            error.add_note(f"Besides, a checkpoint was not saved: {failure}")


def _selection(patterns: str | Iterable[str] | None) -> KeySelection | None:
    """Return what is declared frozen, or None."""
    if patterns is None or patterns == "":
        return None
    patterns = [patterns] if isinstance(patterns, str) else list(patterns)
    return KeySelection(patterns, "frozen") if patterns else None
