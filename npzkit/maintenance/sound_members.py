"""Small stored members that are found sound many at once.

Owns no rule. It accepts what the rules of `npzkit.maintenance.verify_rules` accept without a word,
and leaves all else to them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from npzkit.errors import NpzkitError
from npzkit.files.progress import Advance
from npzkit.format.descr import AMBIGUOUS
from npzkit.reading.adjacent_members import Sound, Sweep, spans_of
from npzkit.reading.load_all import small_neighbours
from npzkit.reading.member import MemberReader
from npzkit.reading.small_member import Window, read_between
from npzkit.zip.entries import BAD_NAME, Entry
from npzkit.zip.entry_columns import Bools, Columns, Ints
from npzkit.zip.records import LOCAL_HEADER_SIZE

_COUNT = 256
"""Members that are checked together."""


def find_sound(
    reader: MemberReader, columns: Columns, wanted: Mapping[str, Entry], advance: Advance
) -> set[str]:
    """Return the keys of members with which nothing is wrong; others may be sound, too.

    Parameters
    ----------
    reader : MemberReader
    columns : Columns
        Of all members.
    wanted : mapping of str to Entry
        By key.
    advance : callable
        Called with the bytes that were checked.
    """
    names = [entry.name for entry in wanted.values()]
    rows, keys, _ = small_neighbours(columns, list(wanted), names)
    sweep = Sweep(columns, reader.header_limit, reader.size_limit, verify=True)
    sound: set[str] = set()
    for part in _parts(spans_of(columns.header_offset[rows], columns.compressed_size[rows])):
        near = rows[part]
        # A file that was cut off is for the rules.
        with contextlib.suppress(NpzkitError):
            window = read_between(reader, *columns.entries(near[[0, -1]]))
            found = sweep.find(window, near)
            chosen = found.chosen[_says_nothing(reader, columns, near, window, found)]
            sound.update(map(keys[part].__getitem__, chosen.tolist()))
            advance(int(columns.uncompressed_size[near[chosen]].sum()))
    return sound


def _parts(spans: Iterable[slice]) -> Iterator[slice]:
    """Yield spans in parts, between which progress is reported."""
    for span in spans:
        for start in range(span.start, span.stop, _COUNT):
            yield slice(start, min(start + _COUNT, span.stop))


def _says_nothing(
    reader: MemberReader, columns: Columns, near: Ints, window: Window, found: Sound
) -> Bools:
    """Return of which members neither a name, an attribute, a dtype nor the index is to be told."""
    rows, index = near[found.chosen], reader.lists.index
    is_plain = np.array([one.dtype.char not in AMBIGUOUS for one in found.headers], np.bool_)
    silent: Bools = is_plain[found.kinds] & (columns.extra_size[rows] == 0)
    silent &= columns.flags[rows] & BAD_NAME == 0
    if index is not None:
        extra_sizes = found.member_starts + window[2] - columns.header_offset[rows]
        extra_sizes -= LOCAL_HEADER_SIZE + columns.name_size[rows]
        silent &= (index.extra_sizes[rows] == extra_sizes) & ~index.are_listed[rows]
        pairs = list(zip(index.numbers[rows].tolist(), found.kinds.tolist(), strict=True))
        heads, seen = index.heads, found.heads
        same = {(one, kind): not one or heads[one] == seen[kind] for one, kind in set(pairs)}
        silent &= np.array(list(map(same.__getitem__, pairs)), np.bool_)
    return silent
