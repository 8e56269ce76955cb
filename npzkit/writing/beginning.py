"""How a new archive is begun.

Owns what is known of an archive that is opened to be written, by this module or by
`npzkit.writing.append`: its sink, its entries, its comment. Writes nothing.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from npzkit.files.destinations import open_destination
from npzkit.files.sink import Sink
from npzkit.format.header import npy_header_size
from npzkit.zip.commit_marks import LongComment
from npzkit.zip.index_notes import Notes
from npzkit.zip.writer import ZipWriter


class Resumed(NamedTuple):
    """An archive to write to.

    Attributes
    ----------
    sink : Sink
        At the end of the archive.
    listed : dict of str to bytes
        Its entries, by the members' names.
    notes : Notes
        What its array index keeps of them.
    comment : bytes
        Of any size.
    long_comment : LongComment or None
        Where it is, if its end record cannot hold it.
    end : bytes
        Its end: zip64's records, the end record, its comment.
    """

    sink: Sink
    listed: dict[str, bytes]
    notes: Notes
    comment: bytes
    long_comment: LongComment | None = None
    end: bytes = b""

    def writer(self) -> ZipWriter:
        """Return what writes behind it; see `ZipWriter`."""
        long = None if self.long_comment is None else (self.comment, self.long_comment)
        return ZipWriter(
            self.sink, self.listed, self.notes, long, end=self.end, head_size=npy_header_size
        )


def begin(file: Any, *, exclusive: bool, durable: bool, lock_timeout: float) -> Resumed:
    """Begin a new archive; see `npzkit.files.destinations.open_destination`."""
    # Before there is a lock, which an interrupt would have to let go.
    notes = Notes()
    sink = open_destination(file, exclusive=exclusive, durable=durable, lock_timeout=lock_timeout)
    return Resumed(sink, {}, notes, b"")
