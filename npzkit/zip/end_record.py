"""The end of central directory: which record counts, and what it says.

Owns the search from the end of the file, zip64's records, and where the
archive begins. Parses no entry.
"""

# Without `from __future__ import annotations`: see "The first call" in CONTRIBUTING.
import re
import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from npzkit.errors import (
    AS_MATLAB_7,
    GET_AGAIN,
    READ_DIFFERENTLY,
    SAVE_PARTIAL,
    SAVE_SOUND,
    TO_CONVERT,
    TORCH_TO_CONVERT,
    Advice,
    AmbiguousArchiveError,
    NotAnArchiveError,
    UnsupportedError,
    ZipFormatError,
)
from npzkit.files.source import BufferSource, Source
from npzkit.zip import records


class End(NamedTuple):
    """An end record with its zip64 values resolved, and where it is.

    Attributes
    ----------
    record : EndOfCentralDirectory
    records_offset : int
        Where the first of the end's records begins: zip64's, or its own.
    record_offset : int
        Where the end record itself begins.
    end_offset : int
        Where its comment ends.
    start_offset, base : int
        As `find_base` returns them; 0 before that is known.
    """

    record: records.EndOfCentralDirectory
    records_offset: int
    record_offset: int
    end_offset: int
    start_offset: int = 0
    base: int = 0

    @property
    def directory_offset(self) -> int:
        """Where the directory begins."""
        return self.records_offset - self.record.directory_size

    @property
    def archive_size(self) -> int:
        """Bytes from where the archive begins to where it ends."""
        return self.end_offset - self.start_offset


def read_tail(source: Source, end: int) -> bytes:
    """Return the bytes before `end` in which an end record may be."""
    low = max(end - records.END_SIZE - records.COMMENT_MAX_SIZE, 0)
    return source.read_at(low, end - low)


def claimed_ends(source: Source, before: int) -> dict[int, int]:
    """Return the offset of each end record that other programs may find, last first.

    And where its comment would end.
    """
    tail, ends = read_tail(source, before), {}
    position = len(tail) - records.END_SIZE + len(records.END_SIGNATURE)
    while (position := tail.rfind(records.END_SIGNATURE, 0, max(position, 0))) >= 0:
        end = position + records.END_SIZE
        comment_size = int.from_bytes(tail[end - 2 : end], "little")
        ends[before - len(tail) + position] = before - len(tail) + end + comment_size
        position += len(records.END_SIGNATURE) - 1
    return ends


def find_fitting(source: Source, end: int) -> list[int]:
    """Return the offsets of all end records whose comment ends at `end`, last first."""
    return [offset for offset, claimed in claimed_ends(source, end).items() if claimed == end]


def last_record(source: Source) -> int | None:
    """Return where the end record begins that other programs find first, the last one."""
    return next(iter(claimed_ends(source, source.size)), None)


def usual_end(source: Source, tail: bytes) -> End | None:
    """Return the end record of a file whose end is as most are; None if it needs a closer look.

    That is one record, without zip64's, which ends the file, and a directory right before
    it of an archive that begins where the file does.

    Parameters
    ----------
    tail : bytes
        The last bytes of the source.
    """
    place = tail.rfind(records.END_SIGNATURE)
    size = len(tail) - place
    if place < records.ZIP64_LOCATOR_SIZE or size < records.END_SIZE:
        return None
    _, *fields, comment_size = records.END.unpack_from(tail, place)
    comment, record_offset = tail[place + records.END_SIZE :], source.size - size
    # Of a named tuple, its own `__new__` is a function of Python.
    record = tuple.__new__(records.EndOfCentralDirectory, (*fields, comment))
    is_usual = (
        record.disk == record.directory_disk == 0
        and 0 < record.entry_count == record.disk_entry_count < records.SENTINEL_16
        and record.directory_offset + record.directory_size == record_offset < records.SENTINEL_32
        and comment_size == len(comment)
        # Backwards takes a third of the time.
        and tail.rfind(records.END_SIGNATURE, 0, place) < 0
        and not tail.startswith(records.ZIP64_LOCATOR_SIGNATURE, place - records.ZIP64_LOCATOR_SIZE)
        and (tail[:4] if len(tail) == source.size else source.at_hand(0, 4))
        in (records.LOCAL_HEADER_SIGNATURE, None)
    )
    found = (record, record_offset, record_offset, source.size, 0, 0)
    return tuple.__new__(End, found) if is_usual else None


def check_alone(source: Source, end: End) -> None:
    """Raise AmbiguousArchiveError if other programs may take another end record.

    They search from the end of the file for the signature, and do not check
    where the comment of the record ends. So they take one that is within the
    record or in its comment.
    """
    offset = end.record_offset
    room = min(end.end_offset + len(records.END_SIGNATURE) - 1, source.size) - offset
    data = source.read_at(offset, room)
    place = data.rfind(
        records.END_SIGNATURE, 1, max(source.size - records.END_SIZE - offset, 0) + 4
    )
    if place > 0:
        raise AmbiguousArchiveError(
            "two end of central directory records fit the end of the file",
            offset=offset,
            found=f"records at {offset}, {offset + place}",
            expected="one",
            remedy=READ_DIFFERENTLY,
        )


def placed_ends(source: Source, offsets: Iterable[int], starts: Sequence[int]) -> Iterator[End]:
    """Yield those of the end records at `offsets` that lie where their directory ends."""
    for offset in offsets:
        try:
            yield place_end(source, offset, starts)
        except (ZipFormatError, UnsupportedError):
            continue


def place_end(source: Source, offset: int, starts: Sequence[int]) -> End:
    """Parse the end record at `offset`, and find where its archive starts."""
    end = resolve_end(source, offset)
    start, base = find_base(source, end, starts)
    return end._replace(start_offset=start, base=base)


def resolve_end(source: Source, offset: int) -> End:
    """Parse the end record at `offset` and the zip64 records before it."""
    head = source.read_within(offset, records.END_SIZE)
    comment_size = int.from_bytes(head[20:22], "little")
    if offset + records.END_SIZE + comment_size > source.size:
        raise ZipFormatError(
            "the end record extends past the end of the file",
            offset=offset,
            found=f"{source.size - offset} bytes",
            expected=f"{records.END_SIZE + comment_size} bytes",
        )
    record = records.END_LAYOUT.parse(
        head + source.read_at(offset + records.END_SIZE, comment_size)
    )
    end_offset = offset + records.END_SIZE + comment_size
    zip64 = _find_zip64(source, offset)
    if zip64 is not None:
        record64, records_offset = zip64
        record = _merge_zip64(record, record64, offset)
    else:
        records_offset = offset
    if (record.disk, record.directory_disk) != (0, 0) or record.disk_entry_count != (
        record.entry_count
    ):
        raise UnsupportedError(
            "the archive is split over several files",
            offset=offset,
            found=f"disk {record.disk}",
            # The command zip joins parts too, but loses those that lie within one member.
            remedy="Extract it with 7-Zip: 7z x split.zip. npzkit.pack(path, folder) makes an "
            "archive of its .npy files.",
            is_damage=True,
        )
    return End(record, records_offset, offset, end_offset)


def _find_zip64(
    source: Source, end_offset: int
) -> tuple[records.Zip64EndOfCentralDirectory, int] | None:
    """Return the zip64 end record that a locator announces, and its offset.

    The locator's offset counts from the archive's start, which is not known
    yet. So the record must be right before the locator, where every writer puts
    it. `find_base` later checks the locator's offset against that
    (CVE-2025-8291).
    """
    locator_offset = end_offset - records.ZIP64_LOCATOR_SIZE
    if locator_offset < records.ZIP64_END_SIZE:
        return None
    head = source.read_at(locator_offset, records.ZIP64_LOCATOR_SIZE)
    if not head.startswith(records.ZIP64_LOCATOR_SIGNATURE):
        return None
    locator = records.LOCATOR_LAYOUT.parse(head)
    record_offset = locator_offset - records.ZIP64_END_SIZE
    try:
        record = records.ZIP64_END_LAYOUT.parse(
            source.read_at(record_offset, records.ZIP64_END_SIZE)
        )
    except ZipFormatError as error:
        error.offset = record_offset
        raise
    base = record_offset - record.directory_size - record.directory_offset
    if (
        record.record_size != records.ZIP64_END_SIZE - 12
        or locator.disk != 0
        or locator.disk_count > 1
        or locator.record_offset + base != record_offset
    ):
        raise ZipFormatError(
            "the zip64 locator and the zip64 end record disagree",
            offset=locator_offset,
            found=f"{locator}, {record}",
            expected=f"a record at {record_offset - base}",
        )
    return record, record_offset


def _merge_zip64(
    record: records.EndOfCentralDirectory, zip64: records.Zip64EndOfCentralDirectory, offset: int
) -> records.EndOfCentralDirectory:
    """Take the zip64 values if the record agrees: same value or a sentinel."""
    values = zip64[3:]
    sentinels = (records.SENTINEL_16,) * 4 + (records.SENTINEL_32,) * 2
    for name, small, large, sentinel in zip(
        record._fields, record[:6], values, sentinels, strict=False
    ):
        if small not in (large, sentinel):
            raise ZipFormatError(
                f"the end record and the zip64 end record disagree on {name}",
                offset=offset,
                found=small,
                expected=f"{large} or {sentinel}",
            )
    return records.EndOfCentralDirectory(*values, record.comment)


def find_base(
    source: Source, end: End, starts: Sequence[int], *, certain: bool = False
) -> tuple[int, int]:
    """Return where the archive starts, and what its offsets count from.

    If that takes a request and is not to be `certain`, a start is believed
    that fits all numbers.
    """
    record = end.record
    base = end.directory_offset - record.directory_offset
    for start in starts:
        size = min(4, max(source.size - start, 0))
        first = source.read_at(start, size) if certain else source.at_hand(start, size)
        is_empty = record.entry_count == 0 and (
            start == end.directory_offset or first == records.END_SIGNATURE
        )
        if base in (start, 0) and (first in (records.LOCAL_HEADER_SIGNATURE, None) or is_empty):
            return start, base
    if base == 0 or (base > 0 and source.read_at(base, 4) == records.LOCAL_HEADER_SIGNATURE):
        place = f", byte {base}" if base else ""
        damage = "" if base else ", or it is damaged"
        raise ZipFormatError(
            f"bytes precede the first local header{damage}",
            offset=0,
            found=source.read_within(0, 16),
            expected=records.LOCAL_HEADER_SIGNATURE,
            remedy="Save the arrays: " + SAVE_SOUND + "; or pass a file object at the archive's "
            f"beginning{place}.",
        )
    raise ZipFormatError(
        "the central directory is not where the end record says",
        offset=end.records_offset,
        found=f"a directory of {record.directory_size} bytes at {record.directory_offset}",
        expected=f"one that ends at {end.records_offset}",
    )


PICKLE = "it seems to be a pickle"
_NO_PATH = "Bytes are contents. If these are a path, pass os.fsdecode(path)."
UNKNOWN = "npzkit does not know this kind of file, or it is only a part of one"
_AS_TEXT = "Read a table with numpy.loadtxt or pandas, and save its columns."
_AS_PICTURE = "Read it with a library for pictures, and save the array."
_DOWNLOAD = "Download it again."
_TAR_MAGIC_OFFSET = 257
_MATLAB_LAST_KIND = 52
"""Version 4: little-endian, bytes, sparse."""


class OtherFile(NamedTuple):
    """How files begin that are no archives, what they seem to be, and what to do about them.

    And whether this kind of file means that an archive is damaged; and the suffix of its format,
    if `npzkit.convert` reads it.
    """

    beginning: bytes
    meaning: str
    remedy: str
    is_damage: bool = False
    suffix: str = ""


def _decompress(program: str) -> Advice:
    return Advice("Decompress it first.", f"Decompress it first: {program} -dc FILE > NEW.npz.")


_OTHER_FILES = (
    OtherFile(
        b"\x93NUMPY", "it is a bare .npy file",
        remedy=Advice(
            "Read it with npzkit.load or np.load.",
            "Make an archive of it: npzkit pack NEW.npz FILE.",
        ),
    ),
    OtherFile(
        b"version https://git-lfs", "it is a git-lfs pointer",
        remedy="Download the real file: git lfs pull.",
    ),
    OtherFile(b"\x1f\x8b", "it is gzip", remedy=_decompress("gzip")),
    OtherFile(b"\x89HDF", "it begins as an HDF5 file", remedy=TO_CONVERT, suffix=".h5"),
    OtherFile(b"MATLAB 5.0 MAT-f", "it is a MATLAB file", remedy=TO_CONVERT, suffix=".mat"),
    OtherFile(b"MATLAB 7.3 MAT-f", "it is a MATLAB file of version 7.3", remedy=AS_MATLAB_7),
    OtherFile(b"BZh", "it is bzip2", remedy=_decompress("bzip2")),
    OtherFile(b"\xfd7zXZ", "it is xz", remedy=_decompress("xz")),
    OtherFile(b"\x28\xb5\x2f\xfd", "it is Zstandard", remedy=_decompress("zstd")),
    OtherFile(
        b"7z\xbc\xaf", "it is a 7-Zip archive",
        remedy=Advice("Extract it first.", "Extract it first: 7z x FILE."),
    ),
    *(
        OtherFile(beginning, "it is a picture or a PDF", remedy=_AS_PICTURE)
        for beginning in (b"\x89PNG", b"\xff\xd8\xff", b"II*\0", b"MM\0*", b"%PDF")
    ),
    OtherFile(b"PAR1", "it is a Parquet file", remedy="Read it with pandas, and save its columns."),
    # The pickle of torch.save's magic number, before PyTorch 1.6.
    OtherFile(
        b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.", "it is a file of torch.save",
        remedy=TORCH_TO_CONVERT, suffix=".pt",
    ),
    OtherFile(
        b"\x80", PICKLE,
        remedy=Advice(
            "npzkit.load reads those with allow_pickle=True: pass that only if you trust the file.",
            "Loading a pickle can run code. If you trust the file, load it in Python, and save its "
            "arrays.",
        ),
    ),
)  # fmt: skip


def not_an_archive(source: Source) -> ZipFormatError:
    """Return the error for a file without an end record, which says what it seems to be."""
    head = source.read_within(0, 512)
    if head.startswith(b"PK") and not _is_safetensors(head, source.size):
        from npzkit.zip.member_search import least_end

        return cut_off(source, least_end(source))
    kind = kind_of(head, source.size, source.shown_path)
    is_short = isinstance(source, BufferSource) and source.size <= len(head)
    is_named_npy = str(source.shown_path).lower().endswith(".npy") and kind not in _OTHER_FILES[:1]
    # A path as bytes is a text too.
    remedy = _NO_PATH if is_short and kind.remedy in ("", _AS_TEXT) else kind.remedy or None
    error = NotAnArchiveError(
        f"not a {'.npy file' if is_named_npy else 'zip archive'}: {kind.meaning}",
        found=head[:16],
        expected="an end of central directory record",
        remedy=remedy,
    )
    return error if kind.is_damage else error._as_foreign(kind.suffix)


def is_copied_as_text(source: Source) -> bool:
    """Return whether an archive seems to be copied as text: each line feed follows a CR."""
    head = source.read_within(0, records.COMMENT_MAX_SIZE)
    count, least = head.count(b"\r\n"), 1 if b"\x93NUMPY" in head else 3
    return head.startswith(b"PK") and count >= least and count == head.count(b"\n")


def cut_off(source: Source, end: int) -> ZipFormatError:
    """Return the error for an archive without its end, which was at `end`, or later.

    If that is in the file, it is not known whether the end is missing or damaged. How much was
    appended later is never known.
    """
    count = end - source.size
    what, expected = "the archive is cut off, or its end is damaged", "an end record"
    if count > 0:
        missing = "byte is" if count == 1 else f"{count:,} bytes are"
        what = f"the archive is cut off: at least its last {missing} missing"
        expected = f"at least {end:,} bytes"
    return ZipFormatError(
        what, offset=source.size, found=f"{source.size:,} bytes", expected=expected,
        remedy="Download or copy it again, or save the arrays that are there: "
        + SAVE_PARTIAL + ".",
    )  # fmt: skip


def _is_safetensors(head: bytes, size: int) -> bool:
    return head[8:9] == b"{" and int.from_bytes(head[:8], "little") <= size - 8


def _is_matlab_4(head: bytes) -> bool:
    """Return whether a file seems to begin with a variable of MATLAB's version 4: no magic does."""
    kind, _, _, is_complex, size = struct.unpack("<5I", head[:20].ljust(20, b"\xff"))
    name = head[20 : 20 + min(size, 64)]
    is_name = name.endswith(b"\0") and name[:-1].decode("latin1").isidentifier()
    return kind <= _MATLAB_LAST_KIND and is_complex <= 1 and len(name) == size and is_name


def kind_of(head: bytes, size: int, path: object) -> OtherFile:
    """Return what a file that is no archive seems to be, by its first 512 bytes.

    What to do about it depends on whether it is at a path or at a URL.
    """
    if not head:
        return OtherFile(head, "the file is empty", remedy=f"{GET_AGAIN}.", is_damage=True)
    if _is_safetensors(head, size):
        return OtherFile(
            head, "it is a safetensors file", remedy=TO_CONVERT, suffix=".safetensors"
        )  # fmt: skip
    for kind in _OTHER_FILES:
        if head.startswith(kind.beginning):
            return kind
    if head.startswith(b"ustar", _TAR_MAGIC_OFFSET):
        extract = Advice("Extract it first.", "Extract it first: tar -xf FILE.")
        return OtherFile(head, "it is a tar archive", remedy=extract)
    if _is_matlab_4(head):
        return OtherFile(head, "it is a MATLAB file", remedy=TO_CONVERT, suffix=".mat")
    if re.match(rb"\s*(<!doctype|<html|<\?xml)", head, re.IGNORECASE):
        meaning = "it is an HTML or XML page, perhaps an error page saved by a download"
        remedy = "Check its URL: that of a sharded folder ends with /."
        remedy = remedy if "://" in str(path) else _DOWNLOAD
        return OtherFile(head, meaning, remedy, is_damage=True)
    if not head.strip(b"\0"):
        return OtherFile(
            head, "it begins with zeros, as a broken download may", remedy=_DOWNLOAD, is_damage=True
        )
    if re.fullmatch(rb"[\t\n\r\x20-\x7e]+", head):
        return OtherFile(head, "it seems to be a text", remedy=_AS_TEXT)
    return OtherFile(head, UNKNOWN, remedy="", is_damage=True)
