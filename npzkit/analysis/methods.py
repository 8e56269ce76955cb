"""What an archive would take by each compression method, tried on samples of its arrays.

Owns which arrays are sampled, and what is measured.
"""

from __future__ import annotations

import io
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from npzkit.archive.npzfile import NpzFile
from npzkit.archive.save import save
from npzkit.datasets.opening import open, opened
from npzkit.display.sampling import BUDGET, box_of, reachable, spread_parts
from npzkit.errors import UnsupportedError
from npzkit.members.info import ArrayInfo
from npzkit.typing import ArchiveLike

_METHODS = ("stored", "deflated", "zstd")
_SAMPLED_COUNT = 64
"""The most arrays of which samples are read: the largest ones."""
_LEAST_SIZE = 1 << 16
"""Bytes of the sample of one array."""
_REPEATS = 3


class MethodTrial(NamedTuple):
    """What `compare_methods` found for one compression method.

    Attributes
    ----------
    method : str
        As ``compression=`` takes it: ``"stored"``, ``"deflated"`` or ``"zstd"``.
    nbytes : int
        Of all arrays in memory.
    size : int
        Bytes of their data in an archive. Estimated, unless all arrays were tried completely.
    save_speed, load_speed : float
        Bytes of arrays per second, in memory, with all processors.
    """

    method: str
    nbytes: int
    size: int
    save_speed: float
    load_speed: float


def compare_methods(
    file: ArchiveLike, *, storage_options: Mapping[str, Any] | None = None
) -> list[MethodTrial]:
    """Save samples of an archive's arrays by each compression method, and compare.

    About 16 MiB are read, of the largest arrays. They are saved and loaded in memory, with the
    default level of each method.

    Parameters
    ----------
    file : path, URL, bytes-like, file object or NpzFile
    storage_options : dict, optional
        For the store of a URL; see `npzkit.open`.

    Returns
    -------
    list of MethodTrial
        Without ``"zstd"``, if its library is not installed. Empty, if there is no array with
        values.

    Raises
    ------
    OSError, NpzkitError
        As `npzkit.open` and `NpzFile.lazy`.

    Examples
    --------
    >>> import io, npzkit, numpy as np
    >>> stream = io.BytesIO()
    >>> npzkit.save(stream, {"zeros": np.zeros(10_000)})
    >>> stored, deflated, *_ = npzkit.compare_methods(stream)
    >>> stored.size > 100 * deflated.size
    True
    """
    with opened(file, storage_options=storage_options) as npz:
        infos = [npz.info(key) for key in npz]
        infos = [info for info in infos if info.dtype and not info.dtype.hasobject and info.nbytes]
        total = sum(info.nbytes for info in infos)
        chosen = sorted(infos, key=lambda info: -info.nbytes)[:_SAMPLED_COUNT]
        samples = {
            str(number): _sample(npz, info, max(BUDGET * info.nbytes // total, _LEAST_SIZE))
            for number, info in enumerate(chosen)
        }
    trials = []
    for method in _METHODS if chosen else ():
        try:
            sizes, seconds = _tried(samples, method)
        except UnsupportedError:
            continue
        size = sum(
            compressed * info.nbytes / sample.nbytes
            for compressed, info, sample in zip(sizes, chosen, samples.values(), strict=True)
        )
        share = total / sum(info.nbytes for info in chosen)
        speeds = (sum(sample.nbytes for sample in samples.values()) / each for each in seconds)
        trials.append(MethodTrial(method, total, round(size * share), *speeds))
    return trials


def _sample(npz: NpzFile, info: ArrayInfo, size: int) -> np.ndarray[Any, Any]:
    """Return about `size` bytes of an array, in the order in which they are stored."""
    source = reachable(npz.lazy(info.key))
    parts, _ = spread_parts(box_of(source, ()), size)
    return np.concatenate([np.asarray(source[part]).ravel("K") for part in parts])


def _tried(samples: dict[str, np.ndarray[Any, Any]], method: Any) -> tuple[list[int], list[float]]:
    """Return the compressed size of each sample, and the seconds to save and to load them."""
    seconds = []
    for _ in range(_REPEATS):
        stream = io.BytesIO()
        begin = time.perf_counter()
        save(stream, samples, compression=method)
        saved = time.perf_counter()
        with open(stream) as npz:
            npz.load_all()
            seconds.append((saved - begin, time.perf_counter() - saved))
            sizes = [npz.info(key).compressed_size for key in samples]
    return sizes, list(map(min, zip(*seconds, strict=True)))
