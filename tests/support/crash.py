"""What a crash may leave of a file: calls are recorded, and states rebuilt from them.

A `Recorder` stands in the place of `npzkit.files.disk.os`: it passes every call on
and keeps those that change a file, with their bytes. From that recording,
without the file system, `killed_states` makes what a path may hold when the
program is killed, and `power_loss_states` what it may hold when the machine is:

- killed: the calls up to one of them count, and of that one, if it is a write,
  any part from its front;
- power loss: what was synced counts. Of what was not, any part does, in any
  order, and a write may have reached the disk in parts; a name counts once its
  folder was synced, and may do so before, whatever is in the file by then.

What is written through maps (`mmap`) is not seen: the system writes their
pages when it likes. A created array is filled by maps before it is listed, and
a map of mode "r+" changes committed bytes on purpose. Knows nothing of zip, and
imports nothing of npzkit but the module it stands in for.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import stat
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pytest
from npzkit.files import disk, sync_before_rename

__all__ = [
    "RECORDED", "Call", "RecordedFile", "Recorder", "Recording", "State", "Unsynced",
    "killed_at_calls", "killed_states", "page_cuts", "power_loss_states", "recorded", "replay",
    "sector_cuts",
]  # fmt: skip

NEAR = 80
"""Bytes from either end of a write at each of which it is torn."""
SECTOR = 512
"""What a disk writes whole or not at all; blocks of 4,096 end where sectors do."""
PAGE = 4096
"""What the system copies whole, or not at all, from a program that is killed."""
EVERY_SUBSET = 8
"""Calls up to which every subset of them is tried; of more, those that are likely to matter."""

CONTENT = {"write", "truncate", "grow"}
NAMES = {"create", "link", "rename", "unlink", "make folder", "remove folder"}
FOLDER = -2
"""Stands for the number of a folder among names."""


class Call(NamedTuple):
    """One call that changed something, or a mark between them.

    Attributes
    ----------
    kind : str
        "write", "truncate", "grow" (room that was reserved), "sync", "close";
        "create", "link", "rename", "unlink", "make folder", "remove folder"; "sync folder",
        which is at `path`; "mark"; "meet", where this process has waited for the others.
    inode : int
        The file's number in the recording.
    offset : int
        Of a write; the size of a truncation.
    data : bytes
    path, target : str
        Of a name; `target` of a renamed one.
    allowed : tuple of int
        Of a mark: which of the contents a reader may find from now on.
    """

    kind: str
    inode: int = -1
    offset: int = 0
    data: bytes = b""
    path: str = ""
    target: str = ""
    allowed: tuple[int, ...] = ()


Tears = Callable[[Call], list[int]]
"""Returns how many of a write's bytes there may be when it was torn."""


class State(NamedTuple):
    """What a path may hold after a crash; None where it names nothing."""

    allowed: tuple[int, ...]
    content: bytes | None


class Recording:
    """Calls, and what was there before the first.

    Attributes
    ----------
    names : dict of str to int
        Paths of the files that were there, and the files' numbers.
    contents : dict of int to bytes
    calls : list of Call
    """

    def __init__(self) -> None:
        self.names: dict[str, int] = {}
        self.contents: dict[int, bytes] = {}
        self.calls: list[Call] = []

    def mark(self, *allowed: int) -> None:
        """Say which contents a reader may find from now on."""
        self.calls.append(Call("mark", allowed=allowed))

    def meet(self) -> None:
        """Say that processes have met: none does what follows before all have come so far."""
        self.calls.append(Call("meet"))


class Recorder(Recording):
    """Stands in for `os`: what changes files in `folder` is recorded, all else passed on."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder
        # Held while a call is made, so that calls stand in the order they took effect.
        self._lock = threading.RLock()
        self._numbers: dict[tuple[int, int], int] = {}
        self._next = itertools.count()
        self._folders: dict[int, str] = {}
        for path in sorted(folder.rglob("*")):
            if path.is_dir():
                self.names[str(path)] = FOLDER
                continue
            number = self._number(os.stat(path))
            self.names[str(path)] = number
            self.contents[number] = path.read_bytes()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle what was recorded, without what records it."""
        recorded = {name: vars(self)[name] for name in ("names", "contents", "calls")}
        return Recording, (), recorded

    def __getattr__(self, name: str) -> Any:
        # What os lacks is lacking here too: the library asks by hasattr.
        real = getattr(os, name)
        record = RECORDED.get(name)
        return real if record is None else partial(self._alone, record, real)

    def _alone(self, record: Any, real: Any, *args: Any, **options: Any) -> Any:
        with self._lock:
            return record(self, partial(real, **options), *args)

    def _number(self, found: os.stat_result, *, is_new: bool = False) -> int:
        """Return a file's number; the system gives a removed file's to a new one."""
        identity = found.st_dev, found.st_ino
        if is_new or identity not in self._numbers:
            self._numbers[identity] = next(self._next)
        return self._numbers[identity]

    def _of(self, descriptor: int) -> int:
        return self._number(os.fstat(descriptor))

    def _add(self, kind: str, inode: int = -1, **fields: Any) -> None:
        self.calls.append(Call(kind, inode, **fields))

    def _open(self, real: Any, path: str, flags: int, *mode: int) -> int:
        is_new = bool(flags & os.O_CREAT) and not os.path.lexists(path)
        descriptor: int = real(path, flags, *mode)
        if is_new:
            number = self._number(os.fstat(descriptor), is_new=True)
            self._add("create", number, path=os.path.abspath(path))
        self._folders[descriptor] = os.path.abspath(path)
        return descriptor

    def _pwrite(self, real: Any, descriptor: int, data: Any, offset: int) -> int:
        written: int = real(descriptor, data, offset)
        self._add("write", self._of(descriptor), offset=offset, data=bytes(data[:written]))
        return written

    def _write(self, real: Any, descriptor: int, data: Any) -> int:
        offset = os.lseek(descriptor, 0, os.SEEK_CUR)
        written: int = real(descriptor, data)
        self._add("write", self._of(descriptor), offset=offset, data=bytes(data[:written]))
        return written

    def _ftruncate(self, real: Any, descriptor: int, size: int) -> None:
        real(descriptor, size)
        self._add("truncate", self._of(descriptor), offset=size)

    def _posix_fallocate(self, real: Any, descriptor: int, offset: int, size: int) -> None:
        real(descriptor, offset, size)
        self._add("grow", self._of(descriptor), offset=offset + size)

    def _sync(self, real: Any, descriptor: int) -> None:
        real(descriptor)
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            self._add("sync folder", path=self._folders[descriptor])
        else:
            self._add("sync", self._of(descriptor))

    def _close(self, real: Any, descriptor: int) -> None:
        is_file = stat.S_ISREG(os.fstat(descriptor).st_mode)
        number = self._of(descriptor) if is_file else -1
        real(descriptor)
        if is_file:
            self._add("close", number)

    def _replace(self, real: Any, source: str, target: str) -> None:
        number = self._number(os.stat(source))
        real(source, target)
        paths = os.path.abspath(source), os.path.abspath(target)
        self._add("rename", number, path=paths[0], target=paths[1])

    def _link(self, real: Any, source: str, target: str) -> None:
        real(source, target)
        self._add("link", self._number(os.stat(target)), path=os.path.abspath(target))

    def _unlink(self, real: Any, path: str) -> None:
        real(path)
        self._add("unlink", path=os.path.abspath(path))

    def _makedirs(self, real: Any, path: str) -> None:
        is_new = not os.path.exists(path)
        real(path)
        if is_new:
            self._add("make folder", FOLDER, path=os.path.abspath(path))

    def _rmdir(self, real: Any, path: str) -> None:
        real(path)
        self._add("remove folder", path=os.path.abspath(path))


RECORDED: dict[str, Any] = {
    "open": Recorder._open,
    "pwrite": Recorder._pwrite,
    "write": Recorder._write,
    "ftruncate": Recorder._ftruncate,
    "posix_fallocate": Recorder._posix_fallocate,
    "fsync": Recorder._sync,
    "fdatasync": Recorder._sync,
    "close": Recorder._close,
    "replace": Recorder._replace,
    "link": Recorder._link,
    "unlink": Recorder._unlink,
    "makedirs": Recorder._makedirs,
    "rmdir": Recorder._rmdir,
}
"""Calls of `os` that change a file, or say when it is safe, and who records them."""


@contextlib.contextmanager
def recorded(folder: Path, *, writes_first: bool = False) -> Iterator[Recorder]:
    """Record what npzkit does to the files in a folder.

    If the file system `writes_first` what will be renamed, this is recorded as a sync, but may
    not be the call.
    """
    recorder = Recorder(folder)

    def write_first(file: disk.File) -> bool:
        if writes_first:
            recorder._add("sync", recorder._of(file.descriptor))
        return writes_first

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(disk, "os", recorder)
        patched.setattr(sync_before_rename, "write_first", write_first)
        # macOS's own sync is no call of os; the one it stands for is seen.
        patched.setattr(disk, "_sync_fully", lambda descriptor: False)
        yield recorder


class RecordedFile(io.BytesIO, Recording):
    """A file object whose writes are recorded: the file at `path`, from its first byte."""

    def __init__(self, content: bytes, path: str) -> None:
        io.BytesIO.__init__(self, content)
        Recording.__init__(self)
        self.names, self.contents = {path: 0}, {0: content}

    def write(self, data: Any) -> int:
        self.calls.append(Call("write", 0, self.tell(), bytes(data)))
        return super().write(data)

    def truncate(self, size: int | None = None) -> int:
        size = self.tell() if size is None else size
        self.calls.append(Call("truncate", 0, size))
        return super().truncate(size)


# -- rebuilding ---------------------------------------------------------------


def replay(content: bytes, calls: Sequence[Call]) -> bytes:
    """Return a file's content after these calls; what was never written is zeros."""
    now = bytearray(content)
    for call in calls:
        if len(now) < call.offset:
            now += bytes(call.offset - len(now))
        if call.kind == "write":
            now[call.offset : call.offset + len(call.data)] = call.data
        elif call.kind == "truncate":
            del now[call.offset :]
    return bytes(now)


def renamed(names: dict[str, int], calls: Sequence[Call]) -> dict[str, int]:
    """Return a folder's names after these calls."""
    now = dict(names)
    for call in calls:
        if call.kind in ("unlink", "remove folder"):
            now.pop(call.path, None)
        elif call.kind == "rename":
            now.pop(call.path, None)
            now[call.target] = call.inode
        else:
            now[call.path] = call.inode
    return now


def cuts(call: Call) -> list[int]:
    """Return how many of a write's bytes may have been written when it was torn."""
    size = len(call.data)
    near = {*range(1, min(NEAR + 1, size)), *range(max(size - NEAR, 1), size)}
    return sorted(near.union(sector_cuts(call)))


def front(call: Call, cut: int) -> Call:
    return call._replace(data=call.data[:cut])


def back(call: Call, cut: int) -> Call:
    return call._replace(offset=call.offset + cut, data=call.data[cut:])


def page_cuts(call: Call) -> list[int]:
    """Return how many of a write's bytes may have been written: it is torn between pages alone."""
    return [*range(PAGE - call.offset % PAGE, len(call.data), PAGE)]


def sector_cuts(call: Call) -> list[int]:
    """Return how many of a write's bytes may be on a disk that writes a sector whole, or not at all."""
    return [*range(SECTOR - call.offset % SECTOR, len(call.data), SECTOR)]


def killed_states(recording: Recording, path: str) -> Iterator[State]:
    """Yield what `path` may hold when the program is killed: at each call, and within each write."""
    for _, state in killed_at_calls(recording, path, cuts):
        yield state


def killed_at_calls(recording: Recording, path: str, tears: Tears) -> Iterator[tuple[Call, State]]:
    """Yield the same with the call, each write torn where `tears` says."""
    names, contents = recording.names, dict(recording.contents)
    allowed: tuple[int, ...] = ()
    for call in recording.calls:
        inode = names.get(path)
        if call.kind == "mark":
            allowed = call.allowed
        elif call.kind in NAMES:
            names = renamed(names, [call])
            if call.kind == "create":
                contents[call.inode] = b""
            inode = names.get(path)
        elif call.kind in CONTENT:
            before = contents[call.inode]
            if call.inode == inode and call.kind == "write":
                for cut in tears(call):
                    yield call, State(allowed, replay(before, [front(call, cut)]))
            contents[call.inode] = replay(before, [call])
        else:
            continue
        if inode is None or call.inode in (-1, inode):
            yield call, State(allowed, None if inode is None else contents[inode])


class Unsynced:
    """A disk on which calls are followed, and what a loss of power may take of them.

    Attributes
    ----------
    names : dict of str to int
        The files and folders by their paths, as far as the folders above them were synced.
    contents : dict of int to bytes
        What was synced of each file.
    named : list of Call
        Changes of names that were not synced.
    pending : dict of int to list of Call
        Changes of each file that were not synced.
    """

    def __init__(self, recording: Recording) -> None:
        if os.name == "nt":
            pytest.skip("Windows has no call that waits for the names in a folder")
        self.names, self.contents = dict(recording.names), dict(recording.contents)
        self.named: list[Call] = []
        self.pending: dict[int, list[Call]] = {inode: [] for inode in self.contents}

    def follow(self, call: Call) -> None:
        """Note a call; marks change nothing."""
        inode = call.inode
        if call.kind == "sync":
            self.contents[inode] = replay(self.contents[inode], self.pending[inode])
            self.pending[inode] = []
        elif call.kind == "sync folder":
            synced = [each for each in self.named if os.path.dirname(each.path) == call.path]
            self.named = [each for each in self.named if each not in synced]
            self.names = renamed(self.names, synced)
        elif call.kind in NAMES:
            self.named.append(call)
            if call.kind == "create":
                self.contents[inode], self.pending[inode] = b"", []
        elif call.kind in CONTENT:
            self.pending[inode].append(call)

    def possible_names(self) -> list[dict[str, int]]:
        """Return each set of names that may be left: any of the changes may be lost."""
        return [
            renamed(self.names, subset)
            for size in range(len(self.named) + 1)
            for subset in itertools.combinations(self.named, size)
        ]


def power_loss_states(
    recording: Recording, path: str, random: Random, limit: int, tears: Tears = cuts
) -> Iterator[State]:
    """Yield what `path` may hold when the machine loses power.

    Parameters
    ----------
    recording : Recording
    path : str
    random : Random
        Chooses among what is too much to try.
    limit : int
        Torn states of one stretch between two syncs.
    tears : callable
        Returns where a write may be torn.
    """
    unsynced = Unsynced(recording)
    allowed: tuple[int, ...] = ()
    done = set()

    def states() -> Iterator[State]:
        if not allowed:
            return
        for inode in {names.get(path) for names in unsynced.possible_names()}:
            if inode is None:
                yield State(allowed, None)
                continue
            content, pending = unsynced.contents[inode], unsynced.pending[inode]
            key = inode, content, len(pending), allowed
            if key not in done:
                done.add(key)
                for left in _after_loss(content, pending, random, limit, tears):
                    yield State(allowed, left)

    for call in recording.calls:
        if call.kind in ("sync", "sync folder", "mark"):
            # What is pending is a part of what is pending now: the most is enough.
            yield from states()
        if call.kind == "mark":
            allowed = call.allowed
        unsynced.follow(call)
        if call.kind in NAMES:
            yield from states()
    yield from states()


def _after_loss(
    content: bytes, pending: list[Call], random: Random, limit: int, tears: Tears
) -> Iterator[bytes]:
    """Yield what may be in a file of which `pending` was not synced."""
    for subset in _subsets(pending, random):
        yield replay(content, subset)
        for order in _orders(subset, random):
            yield replay(content, order)
    torn = [
        (index, cut)
        for index, call in enumerate(pending)
        if call.kind == "write"
        for cut in tears(call)
    ]
    if len(torn) > limit // 4:
        torn = random.sample(torn, limit // 4)
    for index, cut in torn:
        for part in (front(pending[index], cut), back(pending[index], cut)):
            yield replay(content, [*pending[:index], part, *pending[index + 1 :]])
            yield replay(content, [part])
    sectors = [piece for call in pending for piece in _sectors(call)]
    if len(sectors) > len(pending):
        for _ in range(min(limit // 10, 1 << len(sectors))):
            share = random.random()
            yield replay(content, [piece for piece in sectors if random.random() < share])


def _subsets(pending: list[Call], random: Random) -> Iterator[list[Call]]:
    """Yield parts of `pending`, in their order: every one where they are few."""
    count = len(pending)
    if count <= EVERY_SUBSET:
        for size in range(count + 1):
            yield from map(list, itertools.combinations(pending, size))
        return
    for index in range(count + 1):
        yield pending[:index]
        yield pending[index:]
        yield pending[index : index + 1]
        yield pending[:index] + pending[index + 1 :]
    for _ in range(1 << EVERY_SUBSET):
        share = random.random()
        yield [call for call in pending if random.random() < share]


def _orders(calls: list[Call], random: Random) -> Iterator[list[Call]]:
    """Yield other orders of calls, where that makes a difference: every one of four calls."""
    if not any(_conflict(*pair) for pair in itertools.combinations(calls, 2)):
        return
    if len(calls) <= 4:
        yield from map(list, itertools.permutations(calls))
        return
    yield calls[::-1]
    for _ in range(8):
        yield random.sample(calls, len(calls))


def _conflict(first: Call, second: Call) -> bool:
    """Whether two calls leave something else in the other order."""
    if first.kind != "write" or second.kind != "write":
        return "truncate" in (first.kind, second.kind)
    ends = first.offset + len(first.data), second.offset + len(second.data)
    return max(first.offset, second.offset) < min(ends)


def _sectors(call: Call) -> Iterator[Call]:
    """Yield a write cut where sectors end; of another call, the call."""
    if call.kind != "write":
        yield call
        return
    edges = [0, *sector_cuts(call), len(call.data)]
    for start, stop in itertools.pairwise(edges):
        yield call._replace(offset=call.offset + start, data=call.data[start:stop])
