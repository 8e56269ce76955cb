"""Where npzkit may answer otherwise than np.load, or one of its ways otherwise than another.

One table. A row applies where its stage, both outcomes and the error's text
fit and, above all, where `holds` finds the row's reason in the bytes, by code
that is not npzkit's. Whatever no row explains is a finding.
"""

from __future__ import annotations

import ast
import bz2
import io
import re
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import npzkit
import numpy as np
import plain_reader
from calls import archives_differ

__all__ = ["DIFFERENCES", "Case", "explain", "has_twin_ends"]


class Case(NamedTuple):
    """What is known where two readers disagree.

    Attributes
    ----------
    data : bytes
        The archive, or the NPY file.
    ours, theirs : object
        What each returned or raised.
    info : zipfile.ZipInfo or None
        The member, as zipfile lists it.
    archive : zipfile.ZipFile or None
        numpy's, where it opened it.
    npy : bytes or None
        The member's bytes as zipfile reads them; None where it does not.
    """

    data: bytes
    ours: Any
    theirs: Any
    info: zipfile.ZipInfo | None = None
    archive: Any = None
    npy: bytes | None = None


class Difference(NamedTuple):
    """One documented difference.

    Attributes
    ----------
    name : str
    reason : str
    stage : {"open", "torn", "member", "header", "ways"}
    ours : str
        A pattern for what npzkit did: ``"ErrorClass: what"``, or ``"read"``.
    theirs : str
        Likewise for the other reader.
    holds : callable
        Whether the reason is there.
    """

    name: str
    reason: str
    stage: str
    ours: str
    theirs: str
    holds: Callable[[Case], bool]


def told(outcome: Any) -> str:
    """Return an outcome as the table's patterns see it."""
    if isinstance(outcome, BaseException):
        return f"{type(outcome).__name__}: {getattr(outcome, 'what', outcome)}"
    return "read"


def explain(stage: str, case: Case) -> str | None:
    """Return the name of the row that allows this, or None."""
    ours, theirs = told(case.ours), told(case.theirs)
    for row in DIFFERENCES:
        if (
            row.stage == stage
            and re.match(row.ours, ours)
            and re.match(row.theirs, theirs)
            and row.holds(case)
        ):
            return row.name
    return None


# -- what is in the bytes --------------------------------------------------


def _local(case: Case) -> tuple[Any, ...] | None:
    """The local header's fields, name and extra field, where zipfile looks for it."""
    at = case.info.header_offset
    head = case.data[at : at + 30]
    if len(head) < 30:
        return None
    fields = struct.unpack("<4sHHHHHLLLHH", head)
    name_end = at + 30 + fields[9]
    return *fields, case.data[at + 30 : name_end], case.data[name_end : name_end + fields[10]]


def _local_differs(case: Case) -> bool:
    local, info = _local(case), case.info
    if local is None:
        return False
    found = local[2], local[3], local[6], local[7], local[8]
    attributes = [
        [block for identifier, block in _blocks(extra) if identifier == 0x564B]
        for extra in (local[-1], info.extra)
    ]
    return (all(attributes) and attributes[0] != attributes[1]) or found != (
        info.flag_bits,
        info.compress_type,
        info.CRC,
        info.compress_size,
        info.file_size,
    )


def _raw(case: Case) -> bytes:
    local = _local(case)
    start = case.info.header_offset + 30 + local[9] + local[10]
    return case.data[start : start + case.info.compress_size]


def _runs_over(case: Case) -> bool:
    """The member's data reaches into the next member, the directory or behind the file."""
    local, archive = _local(case), case.archive
    end = case.info.header_offset + 30 + local[9] + local[10] + case.info.compress_size
    others = [info.header_offset for info in archive.filelist]
    limit = min(
        [offset for offset in others if offset > case.info.header_offset] + [archive.start_dir]
    )
    return end > limit


def _is_inexact(case: Case) -> bool:
    """The compressed bytes are not one whole stream of the member's size, by other decoders."""
    raw, size = _raw(case), case.info.file_size
    method = case.info.compress_type
    try:
        if method == 8:
            decoder = zlib.decompressobj(-15)
            out = decoder.decompress(raw, size + 1)
            ends = decoder.eof and not decoder.unused_data and not decoder.unconsumed_tail
            return len(out) != size or not ends
        if method == 12:
            decoder = bz2.BZ2Decompressor()
            out = decoder.decompress(raw, size + 1)
            return len(out) != size or not decoder.eof or bool(decoder.unused_data)
    except (zlib.error, OSError, EOFError):
        return True
    # LZMA's end may be marked or not, which no other decoder here tells.
    return method == 14


def _ends_of(data: bytes) -> list[int]:
    return [match.start() for match in re.finditer(rb"PK\x05\x06", data)]


def _claimed_ends(data: bytes) -> list[int]:
    """Where the comment of each end record ends."""
    return [
        at + 22 + int.from_bytes(data[at + 20 : at + 22], "little")
        for at in _ends_of(data)
        if at + 22 <= len(data)
    ]


def _footer(case: Case) -> bytes:
    """The footer of a record, right before the directory that zipfile finds; or nothing."""
    found = case.data[: case.archive.start_dir][-68:]
    # Zeros are the magic of the file's last footer: without it, the directory is another program's.
    is_own = found[64:] in (b"NPZX", bytes(4))
    return found if is_own and found[60:64] == struct.pack("<L", zlib.crc32(found[:60])) else b""


def _differs_from_checksum(case: Case) -> bool:
    """The directory has another size, count of entries or checksum than the footer says."""
    footer = _footer(case)
    if not footer:
        return False
    infos, start, masked = case.archive.filelist, case.archive.start_dir, b""
    for info in infos:
        size = 46 + len(_raw_name(info)) + len(info.extra) + len(info.comment)
        entry = case.data[start + len(masked) :][:size]
        masked += entry[:16] + bytes(4) + entry[20:]
    found = case.archive.start_dir, len(masked), len(infos), zlib.crc32(masked)
    offset, size, count, crc = struct.unpack("<2Q24x2L", footer[:48])
    return found != (offset, size, count, crc)


def _is_newer(case: Case) -> bool:
    footer = _footer(case)
    return bool(footer) and int.from_bytes(footer[58:60], "little") > 1


def has_twin_ends(data: bytes) -> bool:
    """Two end records whose comments end at the same place: the file's end, or a torn commit's."""
    ends = _claimed_ends(data)
    return len(set(ends)) < len(ends)


def _overlaps(case: Case) -> bool:
    """Members, by their sizes in the directory, share bytes; or one has none of its own."""
    archive = case.archive
    spans = sorted(
        (info.header_offset, info.header_offset + 30 + len(_raw_name(info)) + info.compress_size)
        for info in archive.filelist
    )
    starts = [start for start, _ in spans]
    return (
        any(
            end > limit
            for (_, end), limit in zip(spans, [*starts, archive.start_dir][1:], strict=True)
        )
        or starts != sorted(set(starts))
        or starts[0] < 0
    )


def _raw_name(info: zipfile.ZipInfo) -> bytes:
    return info.orig_filename.encode("utf-8" if info.flag_bits & 0x800 else "cp437")


class _End(NamedTuple):
    """What zipfile takes the end of central directory to say."""

    disk: int
    directory_disk: int
    here: int
    count: int
    size: int
    offset: int
    is_zip64: bool


def _end(data: bytes) -> _End:
    at = data.rfind(b"PK\5\6")
    has_locator = at >= 76 and data[at - 20 : at - 16] == b"PK\6\7"
    if has_locator and data[at - 76 : at - 72] == b"PK\6\6":
        return _End(*struct.unpack_from("<LLQQQQ", data, at - 76 + 16), True)
    return _End(*struct.unpack_from("<HHHHLL", data[at:].ljust(22, b"\0"), 4), False)


def _is_miscounted(case: Case) -> bool:
    """The entries that there are differ from those an end record counts."""
    infos, end = case.archive.filelist, _end(case.data)
    size = sum(46 + len(_raw_name(info)) + len(info.extra) + len(info.comment) for info in infos)
    return (end.count, end.size) != (len(infos), size)


def _has_locator(case: Case) -> bool:
    at = case.data.rfind(b"PK\5\6")
    return case.data[max(at - 20, 0) : max(at - 16, 0)] == b"PK\6\7"


def _is_split(case: Case) -> bool:
    """An end record names another disk, or fewer entries on this one than in all."""
    data = case.data.ljust(len(case.data) + 22)
    found = [struct.unpack_from("<HHHH", data, at + 4) for at in _ends_of(case.data)]
    end = _end(case.data)
    return any(any(disks) or here != count for *disks, here, count in [*found, end[:4]])


def _has_control(case: Case) -> bool:
    name = case.info.orig_filename
    return re.search("[\x00-\x1f\x7f]", name) is not None or _has_unicode_path(case)


def _has_unicode_path(case: Case) -> bool:
    return b"up" in case.info.extra


def _has_name_of_no_unicode(case: Case) -> bool:
    """Some entry's name is not UTF-8, and its flags say that it is."""
    for found in re.finditer(b"PK\1\2", case.data):
        flags, size = struct.unpack_from(
            "<H18xH", case.data.ljust(found.start() + 46), found.start() + 8
        )
        name = case.data[found.start() + 46 :][:size]
        if flags & 0x800 and name.decode("utf-8", "replace").encode() != name:
            return True
    return False


def _blocks(extra: bytes) -> list[tuple[int, bytes]]:
    found, at = [], 0
    while at + 4 <= len(extra):
        identifier, size = struct.unpack_from("<HH", extra, at)
        found.append((identifier, extra[at + 4 : at + 4 + size]))
        at += 4 + size
    return found


def _has_zip64(case: Case) -> bool:
    extras = [info.extra for info in case.archive.filelist]
    return any(identifier == 1 for extra in extras for identifier, _ in _blocks(extra))


def _has_odd_extra(case: Case) -> bool:
    """The directory's extra field of the member has attributes, or a block that runs over."""
    extra = case.info.extra
    return any(identifier == 0x564B for identifier, _ in _blocks(extra)) or _is_cut(extra)


def _is_cut(extra: bytes) -> bool:
    at = 0
    while at + 4 <= len(extra):
        at += 4 + int.from_bytes(extra[at + 2 : at + 4], "little")
    return at > len(extra)


def _extras(data: bytes) -> Iterator[bytes]:
    """The extra fields of all that looks like an entry of a directory."""
    for found in re.finditer(b"PK\1\2", data):
        at = found.start()
        name_size, extra_size = struct.unpack_from("<HH", data.ljust(at + 46), at + 28)
        yield data[at + 46 + name_size :][:extra_size]


def _has_cut_extra(case: Case) -> bool:
    """Some entry's extra field has a block that runs over, behind its zip64 block."""
    return any(map(_is_cut, _extras(case.data)))


def _has_two_zip64(case: Case) -> bool:
    """Some entry has two zip64 blocks."""
    return any([kind for kind, _ in _blocks(extra)].count(1) > 1 for extra in _extras(case.data))


def _directory_runs_over(case: Case) -> bool:
    """Names, extra fields and comments claim more than the directory has."""
    size = _end(case.data).size
    directory = case.data[case.archive.start_dir :][:size]
    at = 0
    while at + 46 <= len(directory):
        at += 46 + sum(struct.unpack_from("<HHH", directory, at + 28))
    return at != len(directory)


def _lacks_zip64(case: Case) -> bool:
    sizes = _local(case)[7:9].count(0xFFFFFFFF)
    return any(
        identifier == 1 and len(payload) < 8 * sizes
        for identifier, payload in _blocks(_local(case)[-1])
    )


# -- headers ---------------------------------------------------------------

_STRING = re.compile(r"""[uU]?('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")""")
_LONG = re.compile(r"\b([0-9]+)\s*L\b")


def _header(case: Case) -> tuple[tuple[int, int], str] | None:
    npy = case.data if case.npy is None else case.npy
    if npy[:6] != b"\x93NUMPY" or len(npy) < 10:
        return None
    size = 2 if npy[6] == 1 else 4
    length = int.from_bytes(npy[8 : 8 + size], "little")
    raw = npy[8 + size : 8 + size + length]
    return (npy[6], npy[7]), raw.decode("utf-8" if npy[6] == 3 else "latin1", "replace")


def _is_no_plain_literal(case: Case) -> bool:
    """The text is not what Python prints for its value; blanks, quotes and last commas aside.

    Or there are over 100 brackets, or over 20 digits, or words but True and False.
    """
    found = _header(case)
    if found is None:
        return False
    text = re.sub(r"(?<=[0-9])L\b", "", found[1]) if found[0] <= (2, 0) else found[1]
    outside = re.sub("True|False", "", _STRING.sub("", text))
    return (
        re.search(r"[^][(){}:,\- \t\n\r0-9]|[0-9]{21}", outside) is not None
        or len(re.findall(r"[\[({]", outside)) > 100
        or _bare(text) != _bare(repr(_value(case)))
    )


def _bare(text: str) -> str:
    return re.sub(r"\s|[uU](?=['\"])|,(?=\s*[])}])", "", text).replace('"', "'")


def _value(case: Case, *, joined: bool = False) -> Any:
    """The header's dict, as numpy reads it, Python 2's integers among it; or None.

    With `joined`, all blanks are single spaces.
    """
    found = _header(case)
    try:
        text = " ".join(found[1].split()) if joined else found[1].strip()
        if found[0] <= (2, 0):
            text = _LONG.sub(r"\1", text)
        return ast.literal_eval(text)
    except (SyntaxError, ValueError, TypeError, MemoryError, RecursionError):
        return None


def _is_foreign_descr(case: Case) -> bool:
    """numpy, asked to write the dtype that it read, writes another descr."""
    value = _value(case)
    if not isinstance(value, dict):
        return False
    descr = value.get("descr")
    try:
        dtype = np.lib.format.descr_to_dtype(descr)
        hash(dtype)
        return (
            not _is_same(np.lib.format.dtype_to_descr(dtype), descr) or dtype.subdtype is not None
        )
    except Exception:
        return True


def _is_same(left: Any, right: Any) -> bool:
    """Equal, and of the same types: True is no 1 here."""
    if type(left) is not type(right):
        return False
    if isinstance(left, (list, tuple)):
        return len(left) == len(right) and all(map(_is_same, left, right))
    return left == right


def _has_odd_shape(case: Case) -> bool:
    value = _value(case)
    shape = value.get("shape") if isinstance(value, dict) else None
    return not isinstance(shape, tuple) or any(
        type(n) is not int or not 0 <= n < 2**63 for n in shape
    )


def _is_long_in_bytes(case: Case) -> bool:
    npy = case.data if case.npy is None else case.npy
    return npy[6] == 3 and int.from_bytes(npy[8:12], "little") > 10_000


def _has_blank_lines(case: Case) -> bool:
    return isinstance(_value(case, joined=True), dict)


def _is_longer(case: Case) -> bool:
    """The member goes on where numpy's array ends."""
    if case.npy is None:
        # Nor is the CRC right, which zipfile looks at in reading on.
        return case.info.file_size > case.theirs.nbytes + 10
    size = 2 if case.npy[6] == 1 else 4
    start = 8 + size + int.from_bytes(case.npy[8 : 8 + size], "little")
    return isinstance(case.theirs, np.ndarray) and case.info.file_size > start + case.theirs.nbytes


def _is_unreachable(case: Case) -> bool:
    info = case.info
    return (info.compress_type == 8 and info.file_size > 1032 * info.compress_size) or (
        info.compress_size == 0 < info.file_size
    )


def _ends_where_others_look(case: Case) -> bool:
    """An end signature with room for a record is behind the first end record that fits."""
    ends = [at for at in _ends_of(case.data) if at + 22 <= len(case.data)]
    return len(ends) > 1


def _is_unfit(case: Case) -> bool:
    """The end record that zipfile takes does not lie where its own numbers say."""
    end, at = _end(case.data), case.data.rfind(b"PK\5\6")
    if end.is_zip64:
        at -= 76
    return end.size + end.offset != at or end.here != end.count or any(end[:2])


def _is_unfinished(case: Case) -> bool:
    """What follows the last commit is an append, as far as it was written, or lost sectors.

    What zipfile finds is within that append, behind its intent or the zeros of that; or a newer
    state of the same archive; or a far copy, which does not fit this one; or anything, if the
    intent is whole. The commit is what np.load reads if the append is cut off.
    """
    data, at = case.data, case.ours._archive.directory.end_offset
    stop = plain_reader.members_begin(at)
    begin = stop - plain_reader.INTENT_SIZE
    right = plain_reader.piece(bytes(28))[:57]
    is_append = not data[at:begin].strip(b"\0") and all(
        byte in (0, expected) for byte, expected in zip(data[begin:], right, strict=False)
    )
    is_lost = not data[at : stop - plain_reader.MARK_SIZE].strip(b"\0")
    end, place = _end(data), data.rfind(b"PK\5\6")
    base = place - 76 * end.is_zip64 - end.size - end.offset
    is_own = base == 0 or _is_begun(data, at)
    is_behind = is_lost or is_own or bool(data[at : max(base, at)].strip(b"\0"))
    return (_is_copy(case) or (is_append and is_behind)) and _is_read(case, data[:at])


def _is_begun(data: bytes, at: int) -> bool:
    """The whole intent of an append, without a mark, is behind an end that ends at `at`."""
    return any(plain_reader.behind(data, end) == "begun" for end in plain_reader.ends_at(data, at))


def _has_damaged_commit(case: Case) -> bool:
    """Behind the end that zipfile finds is an append that was complete, or whose intent is damaged."""
    data = case.data[case.archive.start_dir - _end(case.data).offset :]
    try:
        kind = plain_reader.behind(data, plain_reader.read_end(data, data.rfind(b"PK\5\6")))
    except plain_reader.RefusedError:
        return False
    return kind in ("complete", "damaged")


def _is_copy(case: Case) -> bool:
    """The end that zipfile finds is that of a far copy, by its comment or by what precedes it."""
    end, place = _end(case.data), case.data.rfind(b"PK\5\6")
    start = place - 76 * end.is_zip64 - end.size
    is_far = case.data[max(start - 4, 0) : max(start, 0)] == b"NPZF"
    return is_far or case.data[place + 22 :] == plain_reader.FAR_COMMENT


def _is_read(case: Case, data: bytes) -> bool:
    """Whether np.load reads from `data` what npzkit read, or npzkit if np.load lacks what it takes."""
    try:
        theirs = np.load(io.BytesIO(data))
    except NotImplementedError:
        theirs = npzkit.open(data)
    except (ValueError, OSError, zipfile.BadZipFile):
        return False
    return archives_differ(case.ours, theirs) is None


DIFFERENCES = (
    # -- opening ------------------------------------------------------------
    Difference(
        "two end records", "programs would read different members",
        "open", "AmbiguousArchiveError: two end of central directory", "read",
        lambda case: has_twin_ends(case.data),
    ),
    Difference(
        "end record in an unfinished append", "zipfile takes the last signature, and that is in an array's data",
        "torn", "read", "read", _is_unfinished,
    ),
    Difference(
        "another end record", "programs that take the first, or look at its comment's size, read other members",
        "open", "AmbiguousArchiveError: (another|two) end", "read", _ends_where_others_look,
    ),
    Difference(
        "damaged end record", "zipfile takes what is missing or too much for bytes before the archive",
        "open", "ZipFormatError: ", "read", _is_unfit,
    ),
    Difference(
        "an end record begins the file", "behind an archive without members zipfile reads another one",
        "open", "ZipFormatError: ", "read", lambda case: case.data[:4] == b"PK\5\6" and case.data.rfind(b"PK\5\6") > 0,
    ),
    Difference(
        "damaged commit", "zipfile finds the end before it; npzkit shows no older state than one that was complete",
        "open", "(ZipFormatError: the (archive is cut off|end record or the directory of the last commit is damaged)"
        "|UnsupportedError: the archive is split)", "read", _has_damaged_commit,
    ),
    Difference(
        "far copy", "zipfile finds the copy; npzkit reads the directory itself, which is damaged",
        "open", "ZipFormatError: ", "read", _is_copy,
    ),
    Difference(
        "end record's comment", "its comment does not end where the file does, and no other one is whole",
        "open", "ZipFormatError: (not a zip archive|the archive is cut off|the end record or the directory of the last commit is damaged)", "read",
        lambda case: len(case.data) not in _claimed_ends(case.data),
    ),
    Difference(
        "members overlap", "bytes that belong to two members make zip bombs (CVE-2024-0450)",
        "open", "ZipFormatError: members overlap", "read", _overlaps,
    ),
    Difference(
        "miscounted", "zipfile does not look at the count, nor behind the last entry",
        "open", "ZipFormatError: the central directory does not hold the entries", "read", _is_miscounted,
    ),
    Difference(
        "more members counted than the limit", "zipfile does not look at the count",
        "open", "LimitExceededError: the archive has too many members", "read", _is_miscounted,
    ),
    Difference(
        "directory's checksum", "zipfile does not know that the footer has it",
        "open", "ZipFormatError: the directory is damaged: it does not fit its checksum", "read", _differs_from_checksum,
    ),
    Difference(
        "newer index", "it may say what this npzkit does not know; the arrays are still np.load's",
        "open", "UnsupportedError: a newer npzkit wrote the archive", "read", _is_newer,
    ),
    Difference(
        "directory runs over", "its last entry is not whole",
        "open", "ZipFormatError: names or extra fields of the central directory entry", "read", _directory_runs_over,
    ),
    Difference(
        "two zip64 blocks", "zipfile takes values of both, one after the other",
        "open", "ZipFormatError: members overlap", "read",
        _has_two_zip64,
    ),
    Difference(
        "extra field behind the zip64 block", "a block runs over, behind the only one that opening needs",
        "open", "read", "BadZipFile: Corrupt extra field", _has_cut_extra,
    ),
    Difference(
        "second zip64 block", "zipfile looks for values in each; the first one has them",
        "open", "read", "BadZipFile: Corrupt zip64 extra field", _has_two_zip64,
    ),
    Difference(
        "bytes before the archive", "offsets fit neither the file's start nor a position that was asked for",
        "open", "ZipFormatError: (bytes precede|the central directory is not where)", "read",
        lambda case: case.archive.start_dir != _end(case.data).offset
        or not case.data.startswith(b"PK\3\4"),
    ),
    Difference(
        "zip64 records", "locator, zip64 end record and end record must agree (CVE-2025-8291)",
        "open", "ZipFormatError: the (zip64 locator|end record|zip64 end|end of central directory)", "read", _has_locator,
    ),
    Difference(
        "split archive", "zipfile ignores the numbers of disks",
        "open", "UnsupportedError: the archive is split", "read", _is_split,
    ),
    Difference(
        "not UTF-8", "the other members are read",
        "open", "read", "UnicodeDecodeError: ", _has_name_of_no_unicode,
    ),
    Difference(
        "control characters", "a NUL ends a name for zipfile; others forge listings",
        "member", "ZipFormatError: a member's name contains a control character", "read", _has_control,
    ),
    Difference(
        "zip64 extra field", "values that deny the 32-bit ones, or are missing",
        "open", "ZipFormatError: the zip64 extra field", "read", _has_zip64,
    ),
    Difference(
        "Unicode path", "programs see another name; zipfile before 3.13 does not look at it",
        "member", "ZipFormatError: a (Unicode path is not UTF-8|member's Unicode path differs)", "read", _has_unicode_path,
    ),
    Difference(
        "second name", "zipfile from 3.13 on compares Info-ZIP's, and must be able to read it",
        "open", "read", "BadZipFile: Corrupt unicode path", lambda case: b"up" in case.data,
    ),
    Difference(
        "empty zip64 archive", "np.load knows an archive by its first bytes, and not these",
        "open", "read", "ValueError: (This file contains|Cannot load file containing) pickled", lambda case: case.data.startswith(b"PK\6\6"),
    ),
    Difference(
        "version needed", "zipfile refuses a number; npzkit reads what it can",
        "open", "read", "NotImplementedError: zip file version", lambda case: True,
    ),
    # -- members ------------------------------------------------------------
    Difference(
        "local header", "programs that read front to back would see another member",
        "member", "(ZipFormat|Checksum)Error: the local header and the central directory disagree", "read", _local_differs,
    ),
    Difference(
        "local extra field", "sizes are looked for in a field whose blocks run over",
        "member", "ZipFormatError: extra field .* extends past its end", "read", lambda case: _is_cut(_local(case)[-1]) or _runs_over(case),
    ),
    Difference(
        "local zip64 block", "it lacks a size that the header leaves to it",
        "member", "ZipFormatError: the zip64 extra field lacks values", "read", _lacks_zip64,
    ),
    Difference(
        "data descriptor", "zipfile does not look at it",
        "member", "ZipFormatError: the data descriptor", "read", lambda case: bool(case.info.flag_bits & 8),
    ),
    Difference(
        "data runs over", "the local extra field pushes the data onto what comes behind",
        "member", "ZipFormatError: the member's data overlaps", "read", _runs_over,
    ),
    Difference(
        "two sizes of a stored member", "zipfile takes one of them",
        "member", "ZipFormatError: a stored member has two", "read",
        lambda case: case.info.compress_type == 0 and case.info.file_size != case.info.compress_size,
    ),
    Difference(
        "unreachable size", "more than deflate can make of these bytes; np.load reads what the array needs",
        "member", "ZipFormatError: the member claims more", "read", _is_unreachable,
    ),
    Difference(
        "refused flags", "patched or masked data, other disks: zipfile ignores some of them",
        "member", "UnsupportedError: the member is (encrypted|patched)", "read",
        lambda case: bool(case.info.flag_bits & 0x2061 or case.info.volume),
    ),
    Difference(
        "no array", "a .npy member that is no array comes back as bytes from np.load",
        "member", "NpyFormatError: (the magic string|EOF: reading magic string)", "read",
        lambda case: isinstance(case.theirs, bytes)
        and (case.info.filename.endswith(".npy") or _has_unicode_path(case)),
    ),
    Difference(
        "bytes behind the array", "np.load does not look at them, and then not at the CRC",
        "member", "NpyFormatError: bytes follow the array", "read", _is_longer,
    ),
    Difference(
        "inexact stream", "bytes left, no end mark, or more data than the member's size; zipfile stops at that",
        "member", "ZipFormatError: (the compressed stream|the .* stream ends early|the LZMA properties|.*damaged)", "read", _is_inexact,
    ),
    Difference(
        "name of the dtype", "a void array whose attributes are damaged may be one of ml_dtypes",
        "member", "ZipFormatError: (a key-value|extra field .* extends past)", "read",
        lambda case: getattr(case.theirs, "dtype", np.dtype("u1")).type is np.void and _has_odd_extra(case),
    ),
    Difference(
        "method", "Deflate64 and Zstandard are nothing this zipfile reads",
        "member", "read", "NotImplementedError: That compression method", lambda case: True,
    ),
    Difference(
        "LZMA's dictionary", "zipfile makes it as large as the properties claim",
        "member", "read", "MemoryError", lambda case: case.info.compress_type == 14,
    ),
    Difference(
        "name's encoding", "zipfile compares names as decoded by each header's own flag, npzkit as bytes",
        "member", "read", "(BadZipFile: File name in directory|UnicodeDecodeError)",
        lambda case: bool((_local(case)[2] ^ case.info.flag_bits) & 0x800),
    ),
    # -- NPY headers, bare or in a member ------------------------------------
    Difference(
        "no plain literal", "text that numpy never writes and Python evaluates",
        "header", "NpyFormatError: (Cannot parse header|Header is not|Header does not)", "read", _is_no_plain_literal,
    ),
    Difference(
        "foreign descr", "np.dtype's own language beyond what numpy writes",
        "header", "NpyFormatError: (descr is not|a subarray can only)", "read", _is_foreign_descr,
    ),
    Difference(
        "odd shape", "booleans are integers for numpy, and negative lengths may cancel out",
        "header", "NpyFormatError: shape is not valid", "read", _has_odd_shape,
    ),
    Difference(
        "giant nothing", "items without bytes: no file backs their number",
        "header", "LimitExceededError: the array claims", "read",
        lambda case: case.theirs.itemsize == 0 and case.theirs.size > 2**24,
    ),
    Difference(
        "extent of nothing", "bounded as if its items had a byte, for all ways to handle it alike",
        "header", "NpyFormatError: shape is too large", "read", lambda case: case.theirs.itemsize == 0,
    ),
    Difference(
        "header limit in bytes", "numpy counts the characters of UTF-8",
        "header", "LimitExceededError: Header info length", "read", _is_long_in_bytes,
    ),
    Difference(
        "blanks", "Python's parser counts those at a line's beginning as indentation",
        "header", "read", "ValueError: (Cannot parse header|start )", _has_blank_lines,
    ),
    Difference(
        "old name of bytes", "numpy up to 2.4 knew S as a, too, and files may have it",
        "header", "read", "ValueError: descr is not a valid",
        lambda case: re.search(r"'[<>|=]?a[0-9]+'", _header(case)[1]) is not None,
    ),
    # -- npzkit's own ways ----------------------------------------------------
    Difference(
        "attributes", "damaged attributes keep a member from being described, not its data from being read",
        "ways", "ZipFormatError: (a key-value|extra field .* extends past)", "read", _has_odd_extra,
    ),
)  # fmt: skip
