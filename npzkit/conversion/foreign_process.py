"""Another library's reading in a process of its own, which a file may crash or stop.

Owns both ends of the pipes, and when the child is given up. Knows no format: the child imports
the format's module, and the parent does not. Nothing that the child sends is unpickled.

The parent writes lines of JSON: first what to read, then one line for each part of an array. The
child answers with frames: the lengths of a text of JSON and of the bytes behind it, then both.
Shape, dtype and order of an array are bytes too, those of an NPY header.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import io
import json
import math
import os
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any, cast

import numpy as np

from npzkit import errors
from npzkit.conversion.arrays import Array, Contents, Each, Say
from npzkit.conversion.refusals import Claims
from npzkit.errors import ConversionError, NpzkitError, UnsupportedError, check_limit
from npzkit.format.array import array_bytes, npy_header, read_header
from npzkit.limits import Limits, parsed_size
from npzkit.members.tensors import DTYPE_ATTRIBUTE, extension_name, restored_dtype

TIME = 60
"""Seconds without a byte from the child after which it is killed; more for a large file."""
_RATE = 10 << 20
"""Bytes of the file for which the child has a second more."""
_GRACE = 10
"""Seconds after which the child ends itself, should the parent be dead."""
_ROOM = 2 << 30
"""Bytes of memory of the child, beyond twice those that the arrays may have."""
_HEADER_SIZE = 1 << 20
_FREE_MEMORY = 2048
"""Bytes of memory that any array takes in the list."""
_PIPE_SIZE = 1 << 20
_FRAME = struct.Struct("<QQ")
_PLUGINS = ("hdf5plugin",)
"""Packages that the child imports, too, if the parent has: they teach a library more files."""
_START = (
    "import json, sys; job = json.loads(sys.stdin.buffer.readline()); sys.path[:] = job.pop('path')"
    "; from npzkit.conversion.foreign_process import serve; serve(**job)"
)
_REMEDY = (
    "The file is damaged, or was made to do this. Check it with the program that made it, or "
    "make it again."
)


_BUILT_IN = {"OSError": OSError, "MemoryError": MemoryError, "ImportError": ImportError}
"""Errors of Python that the child passes on."""


class LibraryError(Exception):
    """What a library raised while it read; the text is its own."""


@contextlib.contextmanager
def read(module: str, library: str, path: str, say: Say, claims: Claims) -> Iterator[Contents]:
    """Open a file with the ``read`` of a module of `npzkit.conversion`, in a new process.

    Raises
    ------
    ConversionError
        The library crashed, or did not answer in time.
    ImportError
        The library is not installed.
    """
    with contextlib.closing(_Child(module, library, path, claims)) as child:
        yield child.contents(say, claims)


class _Child:
    """The process, as the parent sees it."""

    def __init__(self, module: str, library: str, path: str, claims: Claims) -> None:
        self._path, self._library = path, library
        # For ever while the library is imported, which may be slow and is no matter of the file.
        self._seconds = math.inf
        self._reading_seconds = TIME + (claims.size or 0) // _RATE
        self._is_waiting, self._silence, self._end = False, 0, threading.Event()
        if getattr(sys, "frozen", False) or not sys.executable:
            raise UnsupportedError(
                "this format is read in a process of its own, and no Python is found to start it",
                path=path, remedy="Convert the file with an ordinary installation of Python.",
            )  # fmt: skip
        # A session of its own: Ctrl-C reaches the parent, which kills the child.
        self._process = subprocess.Popen(  # noqa: S603 - no shell, and no text from outside
            [sys.executable, "-I", "-c", _START],
            bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            start_new_session=True, creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),
        )  # fmt: skip
        self._input: Any = self._process.stdin
        self._output: Any = self._process.stdout
        _widen(self._output)
        self._watch = threading.Thread(target=self._watching, daemon=True)
        self._watch.start()
        folders = [*map(str, sys.path), os.path.dirname(os.path.dirname(errors.__file__))]
        job = {
            # The folder of the process, which an empty text means, may be that of the file.
            "path": [folder for folder in folders if folder],
            "module": module, "file": path, "limits": list(claims.limits),
            "size": claims.size, "seconds": self._reading_seconds + _GRACE,
            "plugins": [name for name in _PLUGINS if name in sys.modules],
        }  # fmt: skip
        self._write(job)

    def close(self) -> None:
        """End the process."""
        self._end.set()
        # It only reads, so that nothing is left to be finished.
        self._process.kill()
        self._process.wait()
        self._input.close()
        self._output.close()
        self._watch.join()

    def _watching(self) -> None:
        """Kill the child if it is silent; a stopped parent counts no seconds."""
        while not self._end.wait(1):
            self._silence += self._is_waiting
            if self._silence > self._seconds:
                self._process.kill()
                return

    def contents(self, say: Say, claims: Claims) -> Contents:
        """Return what the child lists, whose arrays are read through it."""
        arrays, listed, most = list[Array](), 0, claims.limits.metadata_size
        self._receive(_HEADER_SIZE, 0)
        self._seconds = self._reading_seconds
        while True:
            size, head, data = self._receive(most, _HEADER_SIZE)
            listed += size + len(data)
            check_limit(listed, most, "metadata_size", "the list of arrays is too long")
            if "note" in head:
                say(head["note"])
            elif "metadata" in head:
                return Contents(head["metadata"], arrays)
            else:
                array = self._array(len(arrays), data, **head)
                claims.add(array.key, 0 if array.problem else array.nbytes)
                arrays.append(array)

    def _array(
        self, number: int, header: bytearray, key: str, attrs: dict[str, Any], least: Any,
        problem: str, name: str | None,
    ) -> Array:  # fmt: skip
        found = read_header(io.BytesIO(header), _HEADER_SIZE)
        shape, order = found.shape, found.fortran_order
        dtype = restored_dtype(found.dtype, {DTYPE_ATTRIBUTE: name})
        part = partial(self._part, number, dtype, fortran_order=order)
        least = None if least is None else tuple(least)
        # np.s_ returns the index itself.
        parts = Each(np.s_, part)
        return Array(key, shape, dtype, lambda: parts, attrs, least, order, problem)

    def _part(
        self, number: int, dtype: np.dtype[Any], index: tuple[slice, ...], *, fortran_order: bool
    ) -> np.ndarray[Any, Any]:
        self._write([number, [[part.start, part.stop] for part in index]])
        shape = tuple(part.stop - part.start for part in index)
        size = math.prod(shape) * dtype.itemsize
        _, _, data = self._receive(_HEADER_SIZE, size)
        if len(data) != size:
            raise self._error(f"gave {len(data)} bytes of {size}")
        found = np.frombuffer(data, "u1").view(dtype) if dtype.itemsize else np.empty(shape, dtype)
        return found.reshape(shape, order="F" if fortran_order else "C")

    def _write(self, message: Any) -> None:
        # If it has ended, reading says so.
        with contextlib.suppress(BrokenPipeError):
            self._input.write(json.dumps(message).encode() + b"\n")

    def _receive(self, head_limit: int | None, data_limit: int) -> tuple[int, Any, bytearray]:
        """Return the next frame, with the memory that its text takes."""
        head_size, data_size = _FRAME.unpack(self._bytes(_FRAME.size))
        check_limit(head_size, head_limit, "metadata_size", "the list of arrays is too long")
        if data_size > data_limit:
            raise self._error(f"gave {data_size} bytes of {data_limit}")
        # Not more than there is.
        starts = range(0, head_size, _PIPE_SIZE)
        text = b"".join(self._bytes(min(_PIPE_SIZE, head_size - start)) for start in starts)
        memory = max(parsed_size(text, 0) - _FREE_MEMORY, head_size)
        check_limit(memory, head_limit, "metadata_size", "the list of arrays is too long")
        head = json.loads(text)
        if "error" in head:
            raise _error_of(head["error"])
        return memory, head, self._bytes(data_size)

    def _bytes(self, size: int) -> bytearray:
        """Return the next bytes of the pipe."""
        found = bytearray(size)
        view, done = memoryview(found), 0
        self._silence, self._is_waiting = 0, True
        while done < size:
            count = self._output.readinto(view[done:])
            if not count:
                raise self._ended()
            done, self._silence = done + count, 0
        self._is_waiting = False
        return found

    def _ended(self) -> ConversionError:
        """Return the error for a child that has ended, or was killed."""
        if self._silence > self._seconds:
            return self._error(f"did not answer for {self._seconds} s")
        status = self._process.wait()
        name = f"exit status {status}"
        with contextlib.suppress(ValueError):
            name = f"signal {-status}, {signal.Signals(-status).name}"
        return self._error(f"crashed while it read the file ({name})")

    def _error(self, what: str) -> ConversionError:
        return ConversionError(
            f"{self._library} {what}", path=self._path, remedy=_REMEDY, is_damage=True
        )


def _widen(pipe: Any) -> None:
    """Give a pipe more room on Linux, so that the processes take fewer turns: twice as fast."""
    with contextlib.suppress(ImportError, AttributeError, OSError):
        import fcntl

        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, _PIPE_SIZE)


def _error_of(noted: dict[str, Any]) -> Exception:
    """Return the error that `_note_of` noted."""
    kind, args = noted.pop("kind"), noted.pop("args")
    found: Any = _BUILT_IN.get(kind) or getattr(errors, kind, None)
    if found is OSError and len(args) == 1:
        # Without a number it is not the system's, but h5py's for a file that HDF5 does not open.
        return LibraryError(*args)
    if isinstance(found, type) and issubclass(found, (*_BUILT_IN.values(), NpzkitError)):
        return cast(Exception, found(*args, **noted))
    return LibraryError(*args)


def _note_of(error: BaseException) -> dict[str, Any]:
    """Return an error as JSON has it."""
    if isinstance(error, NpzkitError):
        fields = ("path", "key", "offset", "found", "expected", "remedy")
        noted = {name: _plain(getattr(error, name)) for name in fields}
        noted |= {"kind": type(error).__name__, "args": [error.what]}
        return {**noted, "is_damage": error.is_damage}
    if isinstance(error, RecursionError):
        # The child's stack was empty.
        return {"kind": "FormatError", "args": ["what the file holds is nested too deeply"]}
    if isinstance(error, MemoryError):
        return {"kind": "MemoryError", "args": ["too little memory to read the file"]}
    args: list[Any] = [str(error) or type(error).__name__]
    if isinstance(error, ImportError):
        return {"kind": "ImportError", "args": args, "name": error.name}
    if isinstance(error, OSError):
        args = [error.errno, error.strerror, error.filename] if error.errno else args
        return {"kind": "OSError", "args": args}
    return {"kind": "", "args": args}


def _plain(value: Any) -> Any:
    return value if isinstance(value, (str, int, type(None))) else errors.shown_value(value)


def serve(
    module: str, file: str, limits: list[int | None], size: int | None, seconds: int,
    plugins: list[str],
) -> None:  # fmt: skip
    """Read a file for the parent; only in the child.

    Parameters
    ----------
    module : str
        Of `npzkit.conversion`.
    file : str
    limits : list
        The fields of `Limits`.
    size : int or None
        As of `Claims`.
    seconds : int
        After which this process ends itself if it has nothing to send.
    plugins : list of str
        Packages to import.
    """
    pipe = _private_output()
    # A thread of C, which a library that holds the interpreter does not stop.
    arm = partial(faulthandler.dump_traceback_later, seconds, exit=True)
    send = partial(_send, pipe, arm)
    try:
        for name in plugins:
            importlib.import_module(name)
        reader = importlib.import_module(f"npzkit.conversion.{module}")
        send({})
        claims = Claims(Limits(*limits), size)
        _limit_memory(claims)
        notes: dict[str, None] = {}

        def say(note: str) -> None:
            if note not in notes:
                notes[note] = None
                send({"note": note})

        with reader.read(file, say, claims) as contents:
            arrays = []
            for array in contents.arrays:
                arrays.append(array)
                send(*_listed(array))
            send({"metadata": contents.metadata})
            _serve_parts(arrays, send, arm)
    except Exception as error:
        send({"error": _note_of(error)})


def _serve_parts(arrays: list[Array], send: Any, arm: Any) -> None:
    """Send the parts that the parent asks for, until it closes the pipe."""
    # No time passes while the parent asks for nothing.
    faulthandler.cancel_dump_traceback_later()
    last, opened = -1, None  # type: int, Any
    for line in sys.stdin.buffer:
        arm()
        number, index = json.loads(line)
        array = arrays[number]
        if number != last:
            # Not kept while the next one is opened.
            opened = None
            last, opened = number, array.open()
        part = np.asarray(opened[tuple(slice(*ends) for ends in index)], array.dtype)
        send({}, array_bytes(np.ascontiguousarray(part.T if array.fortran_order else part)))
        faulthandler.cancel_dump_traceback_later()
        del part


def _listed(array: Array) -> tuple[dict[str, Any], bytes]:
    head = {
        "key": array.key, "attrs": dict(array.attrs), "problem": array.problem,
        "least": None if array.least is None else tuple(map(int, array.least)),
        "name": extension_name(array.dtype),
    }  # fmt: skip
    shape = tuple(map(int, array.shape))
    return head, npy_header(array.stored().dtype, shape, array.fortran_order, (3, 0))


def _private_output() -> Any:
    """Return the pipe to the parent; what libraries print goes nowhere."""
    pipe = os.fdopen(os.dup(1), "wb", buffering=0)
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), 1)
    return pipe


def _send(pipe: Any, arm: Any, head: dict[str, Any], data: Any = b"") -> None:
    """Write a frame. While the parent does not read, no time passes."""
    text = json.dumps(head).encode()
    faulthandler.cancel_dump_traceback_later()
    for piece in (_FRAME.pack(len(text), len(data)), text, data):
        view = memoryview(piece)
        while view:
            view = view[pipe.write(view) :]
    arm()


def _limit_memory(claims: Claims) -> None:
    """Limit the memory of this process, where the system can, and make no core file."""
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        # Should memory end nevertheless, Linux ends this process and not the parent.
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("1000")
        with open("/proc/self/statm") as file:
            pages = int(file.read().split()[0])
        page, there = os.sysconf("SC_PAGE_SIZE"), os.sysconf("SC_PHYS_PAGES")
        room = min(_ROOM + 2 * (claims.total_size or 0), there * page) + (claims.size or 0)
        _, most = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (pages * page + room, most))
