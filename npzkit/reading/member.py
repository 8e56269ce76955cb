"""One member to an array, read in the way that suits its size and compression.

Owns the choice of how a member is read. Knows no keys. Five ways, of which the last takes
anything:

- a small stored member: one read, used in place (`npzkit.reading.small_member`);
- a small compressed member: one read, decoded in one call (`MemberReader.array_in`);
- a large stored member, or a large compressed one whose chunks are listed: these straight into
  the array, each CRC-32 computed while its bytes are in the cache (`MemberReader.begin`);
- a large deflated member without a list of its chunks: inflated in one call;
- any other, such as a pickle, or one that is described after its data: a `MemberStream`.

Each way to an array of plain values ends in `SmallReader._finished`. If a fast way finds anything
wrong or unusual, the member is read again as a stream, which reads it or says what is wrong.
"""

from __future__ import annotations

import copy
import functools
import io
import os
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from npzkit.codecs.checksum import crc32, crc32_combine
from npzkit.codecs.coding import CHUNKED, DEFLATED, STORED
from npzkit.codecs.decompressors import decode_chunk, decode_start, inflate_whole
from npzkit.errors import NpzkitError, ZipFormatError
from npzkit.files.source import Source
from npzkit.files.threads import run
from npzkit.format.array import array_bytes, read_growing, read_pickle, shaped
from npzkit.format.descr import AMBIGUOUS
from npzkit.format.header import PREFIX_SIZE, NpyHeader, warn_python2
from npzkit.limits import Limits, thread_count
from npzkit.members.metadata import parse_attrs
from npzkit.members.tensors import restore
from npzkit.reading.fetched_headers import FetchedHeaders, member_span
from npzkit.reading.member_headers import HEADS_SIZE, is_array, read_stream_header
from npzkit.reading.small_member import (
    SMALL_SIZE,
    Options,
    SmallReader,
    Window,
    check_form,
    is_plain,
    read_window,
)
from npzkit.zip.array_index import ChunkLists
from npzkit.zip.chunk_list import ChunkList, only_chunk, stored_chunks
from npzkit.zip.chunks import Chunks, Part, StoredChunks, new_memory, open_chunks
from npzkit.zip.entries import Entry
from npzkit.zip.kept_chunks import KeptChunks
from npzkit.zip.local_header import check_entry, data_offset, find_data
from npzkit.zip.member_stream import MemberStream
from npzkit.zip.records import FLAG_DESCRIPTOR

if TYPE_CHECKING:
    from npzkit.zip.directory import Directory

_KEPT_SIZE = 1 << 8
"""Extra fields of fewer bytes are remembered with their attributes."""

WHOLE_SIZE = 1 << 26
"""Compressed bytes that all threads together hold at once, to inflate members in one call."""
CHUNKED_SIZE = 1 << 20
"""The fewest bytes of a compressed member that is shared among threads: smaller
ones spend their time in Python, where threads wait for each other."""

NOTHING: np.ndarray[Any, Any] = np.empty(0, np.uint8)
"""Instead of an array that was only checked."""

Result = np.ndarray[Any, Any] | bytes


class Filling(NamedTuple):
    """A large array that is allocated, and the tasks that fill it.

    Attributes
    ----------
    header : NpyHeader
    array : numpy.ndarray
        Of the header's dtype.
    head : (int, int)
        CRC-32 and size of the member's bytes before those that the tasks read.
    tasks : sequence of callable
        Each returns the CRC-32 and the size of its bytes.
    """

    header: NpyHeader
    array: np.ndarray[Any, Any]
    head: Part
    tasks: Sequence[Callable[[], Part]]


class MemberReader(SmallReader):
    """Reads the members of one open archive.

    Parameters
    ----------
    source : Source
    limits : Limits
    directory : Directory, optional
        Whose record has the lists of the members' chunks.
    allow_pickle : bool
    pickle_kwargs : mapping, optional
        Passed on to `pickle.load`.

    Attributes
    ----------
    lists : ChunkLists
    has_checksums : bool
        Whether entries have CRC-32s, which all members of archives have.
    """

    has_checksums = True

    def __init__(
        self,
        source: Source,
        limits: Limits,
        directory: Directory | None = None,
        *,
        allow_pickle: bool,
        pickle_kwargs: Mapping[str, Any] | None,
    ) -> None:
        super().__init__(source, limits, allow_pickle=allow_pickle)
        self.lists = ChunkLists(source, directory)
        self._pickle_kwargs = dict(pickle_kwargs or {}) if allow_pickle else None
        self._chunks: dict[tuple[str, int, bool], Chunks] = {}
        self._kept = KeptChunks()
        self._process = os.getpid()
        self.headers_ahead = FetchedHeaders(source, self.lists)
        # Compressed bytes that each thread holds. Nobody waits here, so it needs no lock.
        self._held: dict[object, int] = {}

    def read(self, entry: Entry, options: Options) -> Result:
        """Return a member's array, or its bytes if it is none."""
        check_entry(entry, self.size_limit)
        out = options.out
        if out is not None and not self._fits(self.find_header(entry)[0], entry, options):
            out[...] = self.read(entry, options._replace(out=None))
            return out
        if is_plain(entry):
            return self._read(entry, options, entry.compressed_size < self._window_size)
        return self.ahead([entry])._read(entry, options, is_small(entry))

    def _read(self, entry: Entry, options: Options, is_brief: bool) -> Result:
        """Read a member, in one call if it is `is_brief`."""
        if is_brief:
            window = read_window(self.source, entry.header_offset, self.extent(entry))
            return self.read_in(window, entry, options)
        filling = self.begin(entry, options)
        if filling is not None:
            parts = run(filling.tasks, thread_count(options.threads))
            return self.finish(filling, parts, entry, options)
        found = self._read_whole(entry, options)
        return self._read_stream(entry, options) if found is None else found

    def ahead(
        self,
        entries: Sequence[Entry],
        *,
        at_once: bool | None = None,
        others: bool = False,
        ticket: object = None,
    ) -> MemberReader:
        """Return a reader that has few requests to make for these members.

        This one, unless its source is distant.

        Parameters
        ----------
        entries : sequence of Entry
        at_once : bool, optional
            As of `Source.ahead`. By default true for what fits in memory.
        others, ticket
            As of `Source.ahead`.
        """
        if not self.source.is_distant:
            return self
        spans = list(map(member_span, entries))
        if at_once is None:
            at_once = sum(end - begin for begin, end in spans) <= WHOLE_SIZE
        nearer = copy.copy(self)
        nearer.source = self.source.ahead(spans, at_once=at_once, others=others, ticket=ticket)
        nearer._chunks, nearer.headers_ahead = {}, FetchedHeaders(nearer.source, self.lists)
        nearer._window_size = self._window_size if others else SMALL_SIZE
        return nearer

    # -- in memory ----------------------------------------------------------

    def read_in(self, window: Window, entry: Entry, options: Options) -> Result:
        """Read a small member that lies in `window`, and that `check_entry` accepts."""
        found = self.array_in(window, entry, options)
        return self._read_stream(entry, options) if found is None else found

    def array_in(
        self, window: Window, entry: Entry, options: Options
    ) -> np.ndarray[Any, Any] | None:
        """Return what `SmallReader.array_in` does, also of a compressed member.

        That takes 10 microseconds. A stream takes 30.
        """
        if entry.method == STORED:
            return super().array_in(window, entry, options)
        _, view, offset = window
        position = entry.header_offset - offset
        start = find_data(bytes(view[position : position + HEADS_SIZE]), entry, options.verify)
        if start is None or entry.flags & FLAG_DESCRIPTOR:
            return None
        start += position
        data = _inflated(view[start : start + entry.compressed_size], entry)
        return self._array_of(data, entry, options)

    def read_held(self, data: bytes, entry: Entry) -> np.ndarray[Any, Any] | None:
        """Return the array of a small member, stored or in chunks, whose bytes are `data`.

        None if it is not a sound array of plain values.
        """
        held = bytearray(data) if entry.method == STORED else _inflated(memoryview(data), entry)
        return self._array_of(held, entry, Options())

    def _array_of(
        self, data: bytearray | memoryview | None, entry: Entry, options: Options
    ) -> np.ndarray[Any, Any] | None:
        """Return the array that is in a member's uncompressed bytes; None as `read_held`."""
        if data is None or len(data) != entry.uncompressed_size:
            return None
        header = self._headers.parse(data, 0, entry)
        if header is None:
            return None
        crc = crc32(data) if options.verify else entry.crc32
        array = shaped(header, data, header.data_offset)
        return self._finished(header, array, crc, entry, options)

    # -- where the data goes ------------------------------------------------

    def _fits(self, header: NpyHeader | None, entry: Entry, options: Options) -> bool:
        """Check `out`; return whether its memory has the member's order, if that matters."""
        out = options.out
        if out is None:
            return True
        dtype = header and self._restored(np.ndarray((0,), header.dtype), entry).dtype
        check_form(out, header and header.shape, dtype)
        flags, is_fortran = out.flags, header is not None and header.fortran_order
        return not options.keeps or (flags.f_contiguous if is_fortran else flags.c_contiguous)

    def _restored(self, array: np.ndarray[Any, Any], entry: Entry) -> np.ndarray[Any, Any]:
        extra = entry.extra
        if extra and array.dtype.char in AMBIGUOUS:
            attrs = _attrs_of(extra) if len(extra) < _KEPT_SIZE else parse_attrs(extra)
            return restore(array, attrs)
        return array

    # -- by tasks -----------------------------------------------------------

    def begin(
        self, entry: Entry, options: Options, memory: np.ndarray[Any, Any] | None = None
    ) -> Filling | None:
        """Check a large member's headers and make its array, in `memory` if it fits there.

        None if it cannot be filled by tasks: compressed without a list of chunks, no array, or a
        pickle.
        """
        check_entry(entry, self.size_limit)
        located = self._locate(entry, options)
        if located is None or not self._fits(located[0], entry, options):
            return None
        header, start, head, listed = located
        array, view = _target(header, options, memory)
        # The whole is compared, and not each chunk.
        chunks = open_chunks(self.source, entry, start, listed, verify=False)
        kept = None if array is NOTHING else view
        count = thread_count(options.threads)
        tasks = chunks.tasks(header.data_offset, kept, count, verify=options.verify)
        if listed is not None:
            tasks = [functools.partial(_decoded_part, task) for task in tasks]
        return Filling(header, array, (crc32(head), len(head)), tasks)

    def _locate(
        self, entry: Entry, options: Options
    ) -> tuple[NpyHeader, int, bytes, ChunkList | None] | None:
        """Return the NPY header of a member that tasks can read, and where its data begins.

        Then come the bytes of the header that they do not read, and the list of the chunks. None
        for another member.
        """
        if is_plain(entry):
            near = self._find_near(entry, options.verify)
            if near is not None:
                header, position, head = near
                head = head[position : position + header.data_offset]
                return header, entry.header_offset + position, head, None
            found, start = self._find_in_stream(entry, options.verify)
            if found is None or found.dtype.hasobject:
                return None
            return found, start, self.source.read_at(start, found.data_offset), None
        if entry.method not in CHUNKED or entry.uncompressed_size < CHUNKED_SIZE:
            return None
        start = data_offset(self.source, entry, verify=options.verify)
        listed = self.lists.find_near(entry)
        found = None if listed is None else self.find_header(entry)[0]
        return None if found is None or found.dtype.hasobject else (found, start, b"", listed)

    def finish(
        self, filling: Filling, parts: Sequence[Part], entry: Entry, options: Options
    ) -> Result:
        """Return an array whose tasks returned `parts`."""
        crc, size = filling.head
        for part_crc, part_size in parts:
            crc = crc32_combine(crc, part_crc, part_size)
            size += part_size
        if not options.verify:
            crc = entry.crc32
        found = None
        if size == entry.uncompressed_size:
            found = self._finished(filling.header, filling.array, crc, entry, options)
        return self._read_stream(entry, options) if found is None else found

    def _read_whole(self, entry: Entry, options: Options) -> Result | None:
        """Read a large deflated member in one call, into the memory that its array keeps.

        None for any other member, and if it has to be read as a stream: `_inflate_whole` gives
        nothing, or not a sound array. Only `npzkit.verify` reports bytes after the stream.
        """
        is_usual = entry.method == DEFLATED and not entry.flags & FLAG_DESCRIPTOR
        is_new = options.out is None and options.keeps
        if not is_usual or not is_new or entry.uncompressed_size < CHUNKED_SIZE:
            return None
        # The header first: it may describe a few bytes of a member that inflates to gigabytes.
        header, start = self.find_header(entry, verify=options.verify)
        if header is None or header.dtype.hasobject:
            return None
        return self._array_of(self._inflate_whole(entry, start), entry, options)

    def _inflate_whole(self, entry: Entry, start: int) -> memoryview | bytearray | None:
        """Return a member's bytes; None while threads hold too many compressed ones, or if the
        library is missing or finds another stream.
        """
        own = object()
        self._held[own] = entry.compressed_size
        try:
            if sum(list(self._held.values())) > WHOLE_SIZE:
                return None
            compressed = new_memory(entry.compressed_size)
            self.source.readinto_at(start, compressed)
            return inflate_whole(compressed, entry.uncompressed_size, new_memory)
        finally:
            del self._held[own]

    # -- as a stream --------------------------------------------------------

    def open_stream(self, entry: Entry, *, verify: bool = True) -> MemberStream:
        """Return the member's uncompressed bytes as a stream."""
        check_entry(entry, self.size_limit)
        source = self.ahead([entry], at_once=False).source
        start = data_offset(source, entry, verify=verify)
        return MemberStream(source, entry, start, verify=verify)

    def chunks(
        self,
        entry: Entry,
        data_start: int | None = None,
        check: Callable[[], object] = lambda: None,
        *,
        verify: bool = True,
        checked: bool = False,
    ) -> Chunks:
        """Return the archive's one access to a member's bytes, which it keeps.

        With `verify`, it compares the CRC-32 of each chunk where that is known. If these should
        be there (`checked`), but are damaged or out of date, all of the member is compared once:
        what damaged them may have damaged its end, too.

        If it is known where a stored member's data probably begins, its headers and its first
        bytes are fetched together, and `check` is called with these.
        A forked child makes its own, because another thread may have had a lock when it forked.
        """
        if self._process != os.getpid():
            self._chunks, self._kept, self._process = {}, KeptChunks(), os.getpid()
            self.headers_ahead = FetchedHeaders(self.source, self.lists)
        # A map may have changed its CRC-32.
        kept = entry.name, entry.crc32, verify
        chunks = self._chunks.get(kept)
        if chunks is None:
            check_entry(entry, self.size_limit)
            if data_start is None:
                chunks = self._open_chunks(entry, verify, checked)
            else:
                chunks = self._foreseen_chunks(entry, data_start, check, verify, checked)
            # If two threads get here, both use the first one's object.
            chunks = self._chunks.setdefault(kept, chunks)
        return chunks

    def _open_chunks(self, entry: Entry, verify: bool, checked: bool) -> Chunks:
        """Return access to a member, after its own headers were read."""
        source = self.headers_ahead.of(entry)
        start = data_offset(source, entry, verify=False)
        listed = None
        if verify or entry.method != STORED:
            listed = self.lists.find(entry, source)
        chunks = open_chunks(source, entry, start, listed, verify=verify, kept=self._kept)
        if verify and checked and not chunks.is_checked:
            self.read(entry, Options(keeps=False))
        return chunks

    def _foreseen_chunks(
        self,
        entry: Entry,
        data_start: int,
        check: Callable[[], object],
        verify: bool,
        checked: bool,
    ) -> Chunks:
        """Return access to a stored member whose own headers are read with its first bytes."""

        def find() -> StoredChunks:
            check()
            return cast(StoredChunks, self._open_chunks(entry, verify, checked))

        listed = only_chunk(entry)
        if listed is None and checked:
            listed = stored_chunks((), entry.uncompressed_size)
        source = self.headers_ahead.of(entry)
        return StoredChunks(source, entry, data_start, listed if verify else None, find)

    def _read_stream(self, entry: Entry, options: Options) -> Result:
        return self.read_stream(self.open_stream(entry, verify=options.verify), entry, options)

    def read_stream(self, stream: MemberStream, entry: Entry, options: Options) -> Result:
        """Read a member from a stream that is at its beginning."""
        prefix = stream.read_up_to(PREFIX_SIZE)
        if not is_array(prefix, entry):
            return prefix + stream.read_rest()
        header = read_stream_header(stream, prefix, entry, self.header_limit)
        if header.dtype.hasobject:
            warn_python2(header)
            return self._read_pickled(stream, entry)
        if options.out is None and options.keeps and not stream.is_backed:
            # The size is only claimed: grow with the bytes that are decoded.
            array = shaped(header, read_growing(stream, header, stream.read_some))
        else:
            array, view = _target(header, options)
            stream.read_exactly(view)
            if array is NOTHING:
                stream.drain()
        # Compares the CRC-32 too.
        stream.finish()
        return cast(Result, self._finished(header, array, entry.crc32, entry, options))

    def _read_pickled(self, stream: MemberStream, entry: Entry) -> np.ndarray[Any, Any]:
        """Compare the CRC-32 of the bytes after the header, and unpickle them."""
        kwargs = self._pickle_kwargs
        if kwargs is None:
            # Raises before the pickle is read.
            read_pickle(stream, allow_pickle=False, pickle_kwargs=None)
        data = io.BytesIO(stream.read_rest())
        try:
            array: np.ndarray[Any, Any] = read_pickle(data, allow_pickle=True, pickle_kwargs=kwargs)
        except Exception as error:
            error.add_note(f"raised by the pickle of {entry.name!r}, in {self.source.shown_path}")
            raise
        if data.read(1):
            raise ZipFormatError("bytes follow the pickled array in its member")
        return array

    def checked_chunks(self, entry: Entry) -> Chunks | None:
        """Return the chunks of a member; None if the CRC-32 of each is not known."""
        source = self.ahead([entry]).source
        try:
            check_entry(entry, self.size_limit)
            listed = self.lists.find(entry, source)
            return listed and open_chunks(source, entry, data_offset(source, entry), listed)
        except NpzkitError:
            return None

    # -- headers ------------------------------------------------------------

    def header(self, entry: Entry) -> tuple[NpyHeader | None, int]:
        """Return a member's NPY header, and where its data begins in the file.

        None for a member that is no array. Inflates no more than the header.
        """
        header, start = self.find_header(entry)
        if header is not None:
            warn_python2(header)
        return header, start

    def find_header(self, entry: Entry, *, verify: bool = False) -> tuple[NpyHeader | None, int]:
        """Return what `header` does, without a warning for a header of Python 2.

        `verify` compares the CRCs of the member's two headers, not the data's.
        """
        check_entry(entry, self.size_limit)
        found = self._find_near(entry, verify)
        if found is not None:
            return found[0], found[1] + entry.header_offset
        return self._find_in_stream(entry, verify)

    def _find_near(self, entry: Entry, verify: bool) -> tuple[NpyHeader, int, bytes] | None:
        """Return a member's NPY header, where its data begins, and the bytes in which both are.

        The bytes begin with the local header. None for a member that a stream has to look at.
        """
        if entry.method not in (STORED, *CHUNKED) or entry.flags & FLAG_DESCRIPTOR:
            return None
        room = entry.end_offset - entry.header_offset
        source = self.headers_ahead.of(entry) if self.source.is_distant else self.source
        head = source.read_at(entry.header_offset, min(HEADS_SIZE, room))
        if entry.method == STORED:
            found = self._headers.find(head, entry, verify)
        else:
            found = self._find_compressed(head, entry, verify)
        return found and (*found, head)

    def _find_compressed(
        self, head: bytes, entry: Entry, verify: bool
    ) -> tuple[NpyHeader, int] | None:
        """Return what `HeaderFinder.find` does of a compressed member."""
        start = find_data(head, entry, verify)
        if start is None:
            return None
        try:
            compressed = head[start : start + entry.compressed_size]
            data = decode_start(entry.method, compressed, HEADS_SIZE)
        except ZipFormatError:
            return None
        header = self._headers.parse(data, 0, entry)
        return header and (header, start)

    def _find_in_stream(self, entry: Entry, verify: bool) -> tuple[NpyHeader | None, int]:
        stream = self.open_stream(entry, verify=verify)
        prefix = stream.read_up_to(PREFIX_SIZE)
        if not is_array(prefix, entry):
            return None, stream.start
        return read_stream_header(stream, prefix, entry, self.header_limit), stream.start


def _target(
    header: NpyHeader,
    options: Options,
    memory: np.ndarray[Any, Any] | None = None,
) -> tuple[np.ndarray[Any, Any], memoryview]:
    """Return the array to fill, and its memory in file order."""
    if memory is not None and not 0 < header.nbytes <= len(memory):
        memory = None
    array = NOTHING if not options.keeps else options.out
    if array is None:
        array = shaped(header, memory)
    return array, array_bytes(array)


@functools.lru_cache(256)
def _attrs_of(extra: bytes) -> Mapping[str, Any]:
    """Return what `parse_attrs` does. Many arrays have the same dtype, and no other attributes."""
    return MappingProxyType(parse_attrs(extra))


def _inflated(data: memoryview, entry: Entry) -> bytearray | None:
    """Return a whole compressed member; None if its stream is not what the entry says."""
    try:
        return bytearray(decode_chunk(entry.method, data, entry.uncompressed_size, final=True))
    except ZipFormatError:
        return None


def _decoded_part(task: Callable[[], Part]) -> Part:
    """Decode chunks. If one is damaged, this returns no bytes, and the member is read as a stream,
    which says what is wrong.
    """
    try:
        return task()
    except ZipFormatError:
        return 0, 0


def is_small(entry: Entry) -> bool:
    """Whether a member is compressed, and `array_in` reads it faster than a stream."""
    return (
        entry.method in CHUNKED
        and entry.compressed_size < SMALL_SIZE
        and entry.uncompressed_size < CHUNKED_SIZE
    )
