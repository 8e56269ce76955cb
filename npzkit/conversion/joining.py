"""The arrays of many archives as one each.

Owns which arrays and files are joined, and what is noted of the others. How arrays are joined
is `npzkit.datasets`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from npzkit.archive.npzwriter import NpzWriter
from npzkit.codecs.coding import STORED, checked_method
from npzkit.conversion.arrays import HOLDS_OBJECTS, Array, Say, without_arrays
from npzkit.conversion.npz import write_array
from npzkit.conversion.output_paths import check_not_input
from npzkit.conversion.refusals import why_left_out
from npzkit.datasets.manyfiles import ManyFiles, join_files
from npzkit.datasets.skeleton import Arrays
from npzkit.display import blocks
from npzkit.errors import (
    SKIP,
    Advice,
    ConversionError,
    DifferentFilesError,
    NpzkitError,
    format_count,
    printable,
    shown_url,
    shown_value,
)
from npzkit.files.progress import Meter
from npzkit.members.metadata import TREE_KEY
from npzkit.trees.containers import without_note
from npzkit.trees.restoring import KeySelection

if TYPE_CHECKING:
    from npzkit.typing import Progress


def join_archives(
    file: Any,
    path: str | None,
    mode: Literal["w", "x"],
    inputs: Any,
    axis: int | None,
    keys: Iterable[str] | None,
    progress: Progress | None,
    *,
    skip: bool,
    storage_options: Mapping[str, Any] | None,
    **coding: Any,
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Write the arrays of many archives as one each; return their keys, and notes.

    Along `axis`, or stacked if it is None; the other arguments are as in `npzkit.pack`. `path`
    is None for a file object or a URL; `coding` has `compression` and `level`.
    """
    notes: dict[str, None] = {}
    keys = None if keys is None else [keys] if isinstance(keys, str) else list(keys)
    opened = partial(
        join_files, axis=axis, storage_options=storage_options,
        on_error="warn" if skip else "raise", is_wanted=_selection(keys),
        keys_left_out=partial(_keys_left_out, axis, keys, skip, notes.setdefault),
    )  # fmt: skip
    left_out: dict[str, str] = {}
    if skip:
        with opened(inputs) as many:
            left_out = {**many.left_out, **_damaged(many)}
            inputs = [name for name in many.paths if name not in left_out] or inputs
    with opened(inputs) as many:
        left_out |= many.left_out
        _check_files(many, path, len(left_out))
        joined = {key: many.lazy(key) for key in many}
        masks = _take_masks(many, joined, skip, notes.setdefault)
        meter = Meter(progress, sum(lazy.nbytes for lazy in joined.values()))
        first = _described(many, 0, joined)
        _note_others(many, first, notes.setdefault)
        is_compressed = checked_method(coding["compression"], coding["level"]) != STORED
        with NpzWriter(file, mode, metadata=first[None], masked="split", **coding) as writer:
            for key, lazy in joined.items():
                if key in masks:
                    # The fill value is the first file's.
                    whole = many._files.archive(0)._join(key, many.__getitem__)
                    writer.add(key, whole, attrs=first[key])
                else:
                    array = Array(key, lazy.shape, lazy.dtype, partial(many.lazy, key))
                    array = array.watched(meter.add)
                    write_array(writer, array, path, first[key], is_compressed=is_compressed)
        meter.finish()
        _note_left_out(many, left_out, notes.setdefault)
        written = {*joined, *masks.values()}
        return tuple(key for key in many if key in written), tuple(notes)


def _selection(keys: Iterable[str] | None) -> Callable[[str], bool] | None:
    """Return what says whether an array, or the mask of one, is chosen; None if all are."""
    if keys is None:
        return None
    chosen = KeySelection(keys, "keys")
    return lambda key: key in chosen or key.removesuffix(".mask") in chosen


def _damaged(many: ManyFiles) -> dict[str, str]:
    """Return the files whose arrays are damaged, and why; reads all that will be joined."""
    found = {}
    for number, name in enumerate(many.paths):
        try:
            npz = many._files.archive(number)
            for key in many:
                blocks.check_array(npz, key, lambda size: None)
        except (NpzkitError, OSError) as error:
            found[name] = why_left_out(error)
    return found


def _check_files(many: ManyFiles, path: str | None, left_count: int) -> None:
    """Raise if the archive to write is one of the files, or if no other fits the first one."""
    for other in many.paths:
        check_not_input(
            other, path,
            remedy="Write it to another folder, or give a pattern that it does not match.",
        )  # fmt: skip
    # Of two files, either may be the one to leave out.
    if len(many.paths) == 1 < left_count:
        raise DifferentFilesError(
            f"{format_count(left_count, 'other file')} cannot be joined with the first one",
            path=many.paths[0],
            remedy="It decides keys, shapes and dtypes: put another file first. Without " + SKIP
            + ", the error says why.",
        )  # fmt: skip


def _note_left_out(many: ManyFiles, left_out: Mapping[str, str], say: Say) -> None:
    """Note values that are no arrays, the files that could not be joined, and how many could."""
    for number in range(len(many.paths)):
        note = many._files.archive(number).metadata.get(TREE_KEY)
        for values in without_arrays(note):
            say(f"left out {values}")
    for name, reason in left_out.items():
        say("left out " + printable(name) + ": " + reason)
    if left_out:
        count, first = len(many.paths), printable(shown_url(many.paths[0]))
        total = count + len(left_out)
        say(f"joined {count:,} of {total:,} files: those that fit the first one, {first}")


def _take_masks(many: ManyFiles, joined: dict[str, Any], skip: bool, say: Say) -> dict[str, str]:
    """Take the masks out of what is joined, and return them by the keys of their arrays.

    Strings of any length, whose parts cannot be joined, are left out, or are an error.
    """
    masks = {}
    for key in list(joined):
        info = many._files.archive(0).info(key)
        parts = info.split_into
        if not parts or not set(parts) <= joined.keys():
            continue
        if info.is_masked:
            if not _have_masks(many, key, parts[0]):
                continue
            masks[key] = parts[0]
        elif skip:
            say(f"left out {printable(key)!r}: the parts of strings cannot be joined")
            del joined[key]
        else:
            raise ConversionError(
                "the parts of strings of any length cannot be joined", key=key,
                remedy="Leave such arrays out with " + SKIP + ".",
            )  # fmt: skip
        for part in parts:
            del joined[part]
    return masks


def _have_masks(many: ManyFiles, key: str, mask: str) -> bool:
    """Return whether an array has its mask, of its own shape, in each file."""
    files = [many._files.archive(number) for number in range(len(many.paths))]
    return all(
        npz.info(key).is_masked and npz.info(mask).shape == npz.info(key).shape for npz in files
    )


def _keys_left_out(
    axis: int | None,
    keys: Iterable[str] | None,
    skip: bool,
    say: Say,
    arrays: Arrays,
    others: Collection[str],
) -> set[str]:
    """Return which arrays are not joined: not wanted, or, with a note, not possible; or raise.

    `others` are the keys that the first file lacks.
    """
    wanted, unwanted = list(arrays), set[str]()
    if keys is not None:
        chosen = KeySelection(keys, "keys")
        wanted = chosen.keys(list(arrays))
        chosen.check_used(list(arrays), None, is_empty=False)
        # The mask of a masked array comes with it.
        masks = {f"{key}.mask" for key in wanted}
        wanted += masks & arrays.keys() - {*wanted}
        unwanted = set(others) - masks - set(chosen.keys(list(others)))
    unfit = {}
    for key in wanted:
        shape, dtype = arrays[key]
        if dtype.hasobject and skip:
            unfit[key] = HOLDS_OBJECTS
        elif axis is not None and not -len(shape) <= axis < len(shape):
            unfit[key] = f"it has no axis {axis}"
            if not skip:
                raise ConversionError(
                    f"the array has no axis {axis}, because it has "
                    f"{format_count(len(shape), 'dimension')}", key=key,
                    remedy="Stack the files with " + Advice('join="stack"', "--stack")
                    + ", or leave out such arrays, and files that do not fit, with " + SKIP + ".",
                )  # fmt: skip
    for key, reason in unfit.items():
        say(f"left out {printable(key)!r}: {reason}")
    return unwanted | {key for key in arrays if key in unfit or key not in wanted}


def _described(
    many: ManyFiles, number: int, keys: Iterable[str]
) -> dict[str | None, Mapping[str, Any]]:
    """Return the attributes of a file's arrays by their keys, and its metadata by None."""
    npz = many._files.archive(number)
    metadata, _ = without_note(npz.metadata)
    return {None: metadata, **{key: npz.info(key).attrs for key in keys}}


def _note_others(many: ManyFiles, first: dict[str | None, Mapping[str, Any]], say: Say) -> None:
    """Note metadata and attributes of which other files have other values than the first."""
    told = set()
    for number in range(1, len(many.paths)):
        keys = [key for key in first if key is not None]
        for key, values in _described(many, number, keys).items():
            kept = first[key]
            for name in {**kept, **values}:
                if kept.get(name) == values.get(name) or (key, name) in told:
                    continue
                told.add((key, name))
                what = f"the metadata {printable(name)!r}"
                if key is not None:
                    what = f"the attribute {printable(name)!r} of {printable(key)!r}"
                where = f"that of {printable(shown_url(many.paths[number]))} is "
                where += shown_value(values[name]) if name in values else "missing"
                if name in kept:
                    say(f"{what} is {shown_value(kept[name])}, from the first file; {where}")
                else:
                    say(f"{what} is not kept, because the first file does not have it")
