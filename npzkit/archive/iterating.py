"""Reading an archive from front to back, from a stream that cannot seek.

Owns `iter_arrays`, and what becomes of arrays that the directory at the end of
the stream does not list.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from npzkit.errors import (
    AmbiguousArchiveError,
    AmbiguousArchiveWarning,
    ChecksumError,
    NoDataError,
    NpzkitError,
    OutdatedArraysError,
    shown_value,
    some_of,
    warn,
)
from npzkit.limits import DEFAULT_HEADER_SIZE, Limits, check_limits
from npzkit.reading.stream import Comparison, StreamedArchive

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from npzkit.typing import SupportsRead


def iter_arrays(
    file: SupportsRead,
    *,
    allow_pickle: bool = False,
    pickle_kwargs: Mapping[str, Any] | None = None,
    strict: bool = False,
    limits: Limits | None = None,
) -> Iterator[tuple[str, NDArray[Any]]]:
    """Yield the arrays of an archive from a stream, from front to back.

    The stream is never asked to seek: a pipe, ``sys.stdin.buffer``, a socket's
    ``makefile("rb")``, the body of an HTTP response, or any object with
    ``read``. Each array is yielded when it has arrived and its CRC-32 was
    checked. One array is in memory at a time.

    Parameters
    ----------
    file : object with ``read``
        Open in binary mode, positioned where the archive begins. It is read up
        to its end, and not closed.
    allow_pickle : bool, default False
        Whether arrays of Python objects may be read.
    pickle_kwargs : dict, optional
        Passed to `pickle.loads`.
    strict : bool, default False
        Raise an error for oddities that otherwise only cause a warning.
    limits : Limits, optional
        Upper bounds on sizes and counts. They also count arrays that were
        replaced or removed, because these come in the stream too.

    Yields
    ------
    key : str
    array : numpy.ndarray or bytes
        A new, writable array. Bytes if the member is not an array.

    Raises
    ------
    ChecksumError, NpyFormatError, PickleRefusedError, LimitExceededError
        As `NpzFile.read`, when the array comes. It is not yielded. In an archive
        that was appended to, the error comes at the end of the stream, because
        the append may not have been finished. So it does for an array without a
        CRC-32, which may have been given up while it was being created.
    UnsupportedError
        An array cannot be followed: it is not compressed, and its size comes
        after its data. ``np.savez`` to a pipe writes such arrays. Or its
        compression method is not supported.
    ZipFormatError
        The stream is not an archive, is damaged or ends early.
    OutdatedArraysError
        At the end: arrays were yielded that the archive does not have. See the
        notes.
    AmbiguousArchiveError
        Two archives follow one another.
    OSError
        The stream cannot be read.
    TypeError
        The object has no ``read``, or is a stream of text.

    Warns
    -----
    TornArchiveWarning
        Bytes follow the archive's end, as for `npzkit.open`.
    AmbiguousArchiveWarning
        An array was yielded more than once under one key. The last one is in
        the archive.

    Notes
    -----
    The list of arrays is at the end of an archive. If an archive was changed
    in place, the stream also has the arrays that were replaced, renamed or
    removed, and they are yielded before the list is known. At the end of the
    stream, all that was yielded is compared with the list:

    - If an array was replaced, both come under the same key, and the last one
      counts: ``dict(npzkit.iter_arrays(stream))`` is right. A warning says so.
    - If an array was removed or renamed, or was never committed,
      `OutdatedArraysError` names its key in ``keys``.

    `npzkit.repack` removes outdated arrays from an archive. If you stop before
    the end, nothing is compared.

    Masked arrays and strings that were saved in parts come in their parts, as
    from ``npz[key]``. Attributes and metadata are in the list at the end, and
    are not returned.

    Examples
    --------
    >>> import io, npzkit, numpy as np
    >>> stream = io.BytesIO()
    >>> npzkit.save(stream, {"weights": np.eye(2), "bias": np.zeros(2)})
    >>> _ = stream.seek(0)
    >>> for key, array in npzkit.iter_arrays(stream):
    ...     print(key, array.shape)
    weights (2, 2)
    bias (2,)
    """
    archive = StreamedArchive(
        file,
        check_limits(limits, DEFAULT_HEADER_SIZE),
        allow_pickle=allow_pickle,
        pickle_kwargs=pickle_kwargs,
    )
    return _iterate(archive, strict)


def _iterate(archive: StreamedArchive, strict: bool) -> Iterator[tuple[str, Any]]:
    try:
        for key, member in archive:
            try:
                array = archive.read(key, member)
            except NoDataError:
                break
            except NpzkitError as error:
                error.locate(key=key, offset=member.entry.header_offset)
                if not archive.pass_over(member, error):
                    raise
                continue
            yield key, array
            # Otherwise two arrays would be in memory while the next one is read.
            del array
        _report(archive.compare(strict=strict), strict)
    except NpzkitError as error:
        if isinstance(error, ChecksumError):
            error.remedy = (
                "Send it again; or save the stream to a file: npzkit.open(path)"
                ".read(key, verify=False) reads the array as it is."
            )
        error.__suppress_context__ = True
        error.locate(path=archive.path)
        raise


def _report(comparison: Comparison, strict: bool) -> None:
    """Raise or warn if what was yielded is not what the archive has."""
    if comparison.outdated or comparison.unread:
        raise OutdatedArraysError.of(comparison.outdated, comparison.unread)
    if not comparison.replaced:
        return
    names = some_of(comparison.replaced, shown_value)
    what = "arrays came more than once in the stream, because they were replaced"
    if strict:
        raise AmbiguousArchiveError(
            what,
            found=names,
            expected="one array per key",
            remedy="Read them without strict=True; the last array of a key is current.",
        )
    warn(f"{what}; the last array of each key is current: {names}", AmbiguousArchiveWarning)
