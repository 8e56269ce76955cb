"""Errors: one tree, readable messages, and attributes that survive pickling."""

from __future__ import annotations

import builtins
import errno
import gzip
import io
import os
import pickle
import re
import warnings
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

import npzkit
import numpy as np
import pytest
from forge import Member, archive, header, npy
from npzkit import errors
from npzkit.checkpoint import CheckpointStore

from tables import each_row

CLASSES = {name: value for name, value in vars(errors).items() if isinstance(value, type)}
ERRORS = [cls for cls in CLASSES.values() if issubclass(cls, errors.NpzkitError)]
WARNINGS = [cls for cls in CLASSES.values() if issubclass(cls, Warning)]

BASES = {
    "NpzkitError": Exception, "FormatError": ValueError, "NpyFormatError": errors.FormatError,
    "ZipFormatError": zipfile.BadZipFile, "ChecksumError": zipfile.BadZipFile,
    "AmbiguousArchiveError": ValueError, "UnsupportedError": NotImplementedError,
    "LimitExceededError": ValueError, "PickleRefusedError": ValueError, "UnsafeNameError": ValueError,
    "MemberNotFoundError": KeyError, "ClosedArchiveError": ValueError, "StaleArchiveError": ValueError,
    "NotMappableError": ValueError, "ArchiveLockedError": BlockingIOError,
    "NotAnArchiveError": errors.ZipFormatError, "KeyExistsError": errors.UnsafeNameError, "NotAnArrayError": TypeError, "NoDataError": EOFError,
    "ConversionError": ValueError, "NoCheckpointError": KeyError,
    "DamagedCheckpointError": ValueError, "TreeMismatchError": ValueError,
    "OutdatedArraysError": ValueError, "IndexFormatError": errors.FormatError,
    "MissingShardError": FileNotFoundError,
    "DifferentFilesError": ValueError,
}  # fmt: skip
TABLE = {
    name: (when, base)
    for name, when, base in re.findall(
        r"^`(\w+)` +(\S.*?)  +``([\w.]+)``$", errors.__doc__ or "", re.MULTILINE
    )
}

X = npy(np.arange(6.0))
OBJECTS = io.BytesIO()
np.save(OBJECTS, np.array([{}], dtype=object), allow_pickle=True)


def read(path, data, key="w", **options):
    path.write_bytes(data)
    with npzkit.open(path, **options) as npz:
        return npz[key]


def agreed(**fields):
    """Return an archive of one member with the same wrong fields in both headers."""
    return archive(Member("w.npy", X, local=fields, central=fields))


def read_metadata(path, data):
    path.write_bytes(data)
    with npzkit.open(path) as npz:
        return npz.metadata


def load_by_another_example(path):
    npzkit.save(path, {"a": {"x": np.zeros(2)}})
    npzkit.load_tree(path, like={"a": {"y": np.zeros(2)}})


def iterate_over_removed(path):
    npzkit.save(path, {"kept": np.zeros(2), "gone": np.zeros(1)})
    with npzkit.NpzWriter(path, "a", auto_repack=False) as w:
        del w["gone"]
    with open(path, "rb") as stream:
        list(npzkit.iter_arrays(stream))


def join_different(path):
    npzkit.save(path.parent / "first.npz", {"w": np.zeros(3)})
    npzkit.save(path, {"w": np.zeros(3, "i2")})
    npzkit.open_many([path.parent / "first.npz", path])


def read_closed(path):
    path.write_bytes(agreed())
    npz = npzkit.open(path)
    npz.close()
    return npz["w"]


def write_closed(path):
    npzkit.NpzWriter(path).close()
    writer = npzkit.NpzWriter(path)
    writer.close()
    writer["w"] = np.eye(2)


def write_sealed(path):
    with npzkit.NpzWriter(path) as writer:
        with writer.create("w", (2,), "f8") as created:
            created[:] = 1
        created[0] = 2


def unpickle_changed(path):
    path.write_bytes(agreed())
    with npzkit.open(path) as npz:
        pickled = pickle.dumps(npz)
    path.write_bytes(archive(Member("w.npy", X), Member("v.npy", X)))
    return len(pickle.loads(pickled))


def write_half_of_each_row(path):
    with npzkit.ShardedWriter(path) as writer:
        writer.add("w", np.eye(2), [0, 0], [2, 4])
        writer.commit()


def read_without_a_shard(path):
    with npzkit.ShardedWriter(path) as writer:
        writer["w"] = np.eye(2)
        writer.commit()
    (path / writer.shards[0]).unlink()
    with npzkit.open(path) as npz:
        return npz["w"]


def write_twice(path):
    with npzkit.NpzWriter(path) as writer:
        writer["w"] = np.eye(2)
        writer["w"] = np.eye(3)


def write_beside_another(path):
    with npzkit.NpzWriter(path) as writer:
        writer["w"] = np.eye(2)
    with npzkit.NpzWriter(path, mode="a"), npzkit.NpzWriter(path, mode="a"):
        pass


def map_deflated(path):
    path.write_bytes(archive(Member("w.npy", X, method=8)))
    with npzkit.open(path) as npz:
        return npz.memmap("w")


def remove_missing(path):
    path.write_bytes(agreed())
    with npzkit.NpzWriter(path, mode="a") as writer:
        del writer["v"]


def convert_times(path):
    npzkit.save(path, {"w": np.array([1], "M8[s]")})
    npzkit.convert(path, path.with_suffix(".safetensors"))


def load_damaged_step(path):
    with CheckpointStore(path) as store:
        store.save(1, {"w": np.eye(2)})
        with open(store.path(1), "r+b") as file:
            file.truncate(200)
        with warnings.catch_warnings(action="ignore"):
            store.load()


class Case(NamedTuple):
    """A call that raises an error, and the attributes that the error must have."""

    cls: type[errors.NpzkitError]
    run: Any
    knows: str


NEGATIVE = header("{'descr': '<f8', 'fortran_order': False, 'shape': (-1,)}")
TWICE = archive(Member("w.npy", X), Member("w.npy", X))
CASES = {
    "no array": Case(
        errors.NpyFormatError, lambda path: read(path, archive(Member("w.npy", b"no array at all"))),
        "path key offset found expected remedy",
    ),
    "array header": Case(
        errors.NpyFormatError, lambda path: read(path, archive(Member("w.npy", NEGATIVE))),
        "path key offset found expected remedy",
    ),
    "array cut": Case(
        errors.NpyFormatError, lambda path: read(path, archive(Member("w.npy", X[:-1]))),
        "path key offset found expected remedy",
    ),
    "bare array cut": Case(
        errors.NpyFormatError, lambda path: (path.write_bytes(X[:-1]), npzkit.load(path)),
        "path found expected remedy",
    ),
    "no archive": Case(
        errors.NotAnArchiveError, lambda path: read(path, b"<html>404 Not Found</html>"),
        "path found expected remedy",
    ),
    "local header": Case(
        errors.ZipFormatError, lambda path: read(path, archive(Member("w.npy", X, local={"method": 8}))),
        "path key offset found expected remedy",
    ),
    "stream": Case(
        errors.ZipFormatError, lambda path: read(path, archive(Member("w.npy", X, method=8, raw=b"\xff" * 50))),
        "path key offset remedy",
    ),
    "checksum": Case(
        errors.ChecksumError, lambda path: read(path, agreed(crc=1)),
        "path key offset found expected remedy",
    ),
    "two end records": Case(
        errors.AmbiguousArchiveError,
        lambda path: read(path, archive(Member("w.npy", X), comment=b"PK\5\6" + bytes(18))),
        "path offset found expected remedy",
    ),
    "a name twice": Case(
        errors.AmbiguousArchiveError, lambda path: read(path, TWICE, strict=True),
        "path key found expected remedy",
    ),
    "method": Case(
        errors.UnsupportedError, lambda path: read(path, agreed(method=97)),
        "path key offset found expected remedy",
    ),
    "encrypted": Case(
        errors.UnsupportedError, lambda path: read(path, agreed(flags=1)),
        "path key offset found remedy",
    ),
    "mask": Case(
        errors.UnsupportedError, lambda path: npzkit.save(path, {"w": np.ma.array([1], mask=[1])}),
        "key remedy",
    ),
    "member size": Case(
        errors.LimitExceededError, lambda path: read(path, agreed(), limits=npzkit.Limits(member_size=10)),
        "path key offset found expected remedy",
    ),
    "header size": Case(
        errors.LimitExceededError, lambda path: read(path, agreed(), limits=npzkit.Limits(header_size=10)),
        "path key offset found expected remedy",
    ),
    "metadata": Case(
        errors.ZipFormatError,
        lambda path: read_metadata(
            path, archive(Member("w.npy", X), comment=b'{"npzkit.metadata":[0,90,1]}')
        ),
        "path offset found expected remedy",
    ),
    "unpickling": Case(
        errors.PickleRefusedError, lambda path: read(path, archive(Member("w.npy", OBJECTS.getvalue()))),
        "path key offset remedy",
    ),
    "pickling": Case(
        errors.PickleRefusedError, lambda path: npzkit.save(path, {"w": np.array([{}])}),
        "key found remedy",
    ),
    "unsafe key": Case(
        errors.UnsafeNameError, lambda path: npzkit.save(path, {"../w": np.eye(2)}),
        "key remedy",
    ),
    "a key twice": Case(errors.KeyExistsError, write_twice, "path key remedy"),
    "an object that is no array": Case(
        errors.NotAnArrayError, lambda path: npzkit.save(path, {"w": [1, [2, 3]]}),
        "key found remedy",
    ),
    "no place for an array": Case(errors.ConversionError, convert_times, "path key remedy"),
    "no data": Case(
        errors.NoDataError, lambda path: (path.touch(), npzkit.load(path)), "path remedy"
    ),
    "missing": Case(
        errors.MemberNotFoundError, lambda path: read(path, agreed(), "v"), "path key remedy"
    ),
    "missing to verify": Case(
        errors.MemberNotFoundError,
        lambda path: (path.write_bytes(agreed()), npzkit.verify(path, keys=["v"])),
        "path key remedy",
    ),
    "missing to remove": Case(
        errors.MemberNotFoundError,
        remove_missing, "path key remedy",
    ),
    "a gap between parts": Case(
        errors.IndexFormatError, write_half_of_each_row, "path key found expected remedy"
    ),
    "a file of many is missing": Case(
        errors.MissingShardError, read_without_a_shard, "path remedy"
    ),
    "closed": Case(errors.ClosedArchiveError, read_closed, "path remedy"),
    "closed writer": Case(errors.ClosedArchiveError, write_closed, "path key remedy"),
    "sealed array": Case(errors.ClosedArchiveError, write_sealed, "key remedy"),
    "changed": Case(errors.StaleArchiveError, unpickle_changed, "path found expected remedy"),
    "removed, but in the stream": Case(
        errors.OutdatedArraysError, iterate_over_removed, "path remedy"
    ),
    "not to be mapped": Case(errors.NotMappableError, map_deflated, "path key remedy"),
    "no step": Case(
        errors.NoCheckpointError, lambda path: CheckpointStore(path).load(), "path remedy"
    ),
    "a damaged step": Case(
        errors.DamagedCheckpointError, load_damaged_step, "path found expected remedy"
    ),
    "another tree": Case(errors.TreeMismatchError, load_by_another_example, "path remedy"),
    "files that do not fit": Case(
        errors.DifferentFilesError, join_different, "path key found expected remedy"
    ),
    "locked": Case(errors.ArchiveLockedError, write_beside_another, "path remedy"),
}  # fmt: skip


@each_row("case", CASES)
def test_every_error_says_what_where_and_what_to_do(case, tmp_path):
    """Each error has path, key, offset, found, expected and remedy if known, and its message shows them."""
    path = tmp_path / "a.npz"
    with pytest.raises(errors.NpzkitError) as caught:
        CASES[case].run(path)
    error, text = caught.value, str(caught.value)
    assert type(error) is CASES[case].cls
    assert text.startswith(error.what)
    assert len(text.splitlines()) == 1
    parts = {
        "path": repr(str(path)), "key": f"key {error.key!r}", "offset": f" byte {error.offset}",
        "found": f"found {errors.shown_value(error.found)}",
        "expected": f"expected {errors.shown_value(error.expected)}", "remedy": f". {error.remedy}",
    }  # fmt: skip
    for name in CASES[case].knows.split():
        assert getattr(error, name) is not None, name
        assert parts[name] in text
    if error.path is not None:
        assert os.fspath(error.path) == os.fspath(path)
    if error.key is not None:
        assert error.key.removesuffix(".npy") in {"w", "v", "../w"}
    if error.remedy is not None:
        assert error.remedy.endswith(".")
    # If dask.distributed is imported, causes are pickled too, and isal's cannot be.
    error.__cause__ = error.__context__ = None
    other = pickle.loads(pickle.dumps(error))
    assert type(other) is type(error)
    assert (str(other), vars(other)) == (text, vars(error))


@pytest.mark.parametrize(
    ("cls", "data"),
    [
        (errors.TornArchiveWarning, agreed() + b"tail"),
        (errors.AmbiguousArchiveWarning, TWICE),
    ],
)
def test_what_is_read_with_a_warning(cls, data):
    """An archive that strict=True refuses is read with a warning that points to the caller's line."""
    with pytest.warns(cls) as caught:
        npzkit.open(data)
    assert [warning.filename for warning in caught] == [__file__]
    assert {warning.category for warning in caught} <= set(WARNINGS)
    with pytest.raises(errors.NpzkitError):
        npzkit.open(data, strict=True)


def test_no_class_is_missing_from_the_tests_and_the_table():
    """Every class of npzkit.errors is raised in these tests, is public, and is in the table."""
    raised = {case.cls for case in CASES.values()}
    # What is only raised as one of its kinds.
    kinds = {errors.NpzkitError, errors.FormatError}
    assert raised | kinds == set(ERRORS)
    assert set(WARNINGS) == {
        errors.TornArchiveWarning,
        errors.AmbiguousArchiveWarning,
        errors.DamagedCheckpointWarning,
        errors.TreeMismatchWarning,
        errors.MadeUpDimensionsWarning,
        errors.UnversionedFileWarning,
    }
    names = {cls.__name__ for cls in [*ERRORS, *WARNINGS]}
    assert set(TABLE) == names <= set(errors.__all__)
    assert all(getattr(npzkit, name) is CLASSES[name] for name in names if hasattr(npzkit, name))


@each_row("name", TABLE)
def test_what_the_table_says_each_is(name):
    """Each class has the base class that the table shows, and a docstring."""
    when, base = TABLE[name]
    known = {"zipfile.BadZipFile": zipfile.BadZipFile}
    assert issubclass(CLASSES[name], known.get(base) or getattr(builtins, base))
    assert when
    assert CLASSES[name].__doc__


@each_row("cls", ERRORS)
def test_messages_attributes_and_pickling(cls):
    """Every error shows what, where, found, expected and remedy, and survives pickling."""
    error = cls(
        "it is wrong", path="a.npz", key="w", offset=7, found=b"x", expected=3, remedy="Repair it."
    )
    where = "in the data from" if cls is errors.ChecksumError else "at"
    text = f"it is wrong (in 'a.npz', key 'w', {where} byte 7): found b'x', expected 3. Repair it."
    assert str(error) == text
    other = pickle.loads(pickle.dumps(error))
    assert type(other) is cls
    assert (str(other), vars(other)) == (text, vars(error))


def test_advice_keeps_its_command():
    """What a remedy says at a prompt survives text around it, pickling, and a clause in front."""
    error = errors.NpzkitError("it is so", remedy="Pass " + errors.SKIP + ".")
    errors.explain(error, "nothing was written")
    other = pickle.loads(pickle.dumps(error))
    assert other.remedy == "Nothing was written. Pass skip=True."
    assert errors.at_prompt(other.remedy) == "Nothing was written. Pass --skip."
    both = errors.REPAIR + " or " + errors.REPACK
    assert errors.at_prompt(both) == "npzkit repair FILE or npzkit repack FILE"
    assert errors.at_prompt(ValueError(both)) == errors.at_prompt(UserWarning(both)) == both.command
    assert errors.at_prompt(KeyError("x")) == "'x'"


@each_row(("name", "base"), BASES.items())
def test_the_tree(name, base):
    """Each error has the base class that callers of NumPy and zipfile catch."""
    assert issubclass(getattr(errors, name), base)
    assert issubclass(getattr(errors, name), errors.NpzkitError)
    assert set(BASES) == {cls.__name__ for cls in ERRORS}


def test_those_of_bad_values_are_value_errors():
    """All errors but those for missing keys and shards, locks, empty files and unsupported input are ValueErrors."""
    others = {cls.__name__ for cls in ERRORS if not issubclass(cls, ValueError)}
    assert others == {
        "NpzkitError",
        "UnsupportedError",
        "MemberNotFoundError",
        "ArchiveLockedError",
        "NoDataError",
        "NoCheckpointError",
        "MissingShardError",
    }


def test_errors_of_the_system_and_of_calls_pass_through(tmp_path):
    """A missing file and a wrong argument raise Python's own errors."""
    for error, call in [
        (FileNotFoundError, lambda: npzkit.open(tmp_path / "none.npz")),
        (IsADirectoryError, lambda: npzkit.open(tmp_path)),
        (FileExistsError, lambda: npzkit.NpzWriter(Path(__file__), mode="x")),
        (TypeError, lambda: npzkit.open(3.5)),
        (ValueError, lambda: npzkit.save(io.BytesIO(), {}, compression="best")),
    ]:
        with pytest.raises(error) as caught:
            call()
        assert not isinstance(caught.value, errors.NpzkitError)


@pytest.mark.parametrize("name", ["\x9b31m.npy", "\u202ex.npy", "a" * 65_000 + ".npy"])
def test_keys_of_a_file_do_not_control_messages(name, tmp_path):
    """Messages quote and cut the keys of an archive."""
    path = tmp_path / "a.npz"
    path.write_bytes(archive(Member(name, X), Member(name, X)))
    texts = []
    with pytest.warns(errors.AmbiguousArchiveWarning) as caught:
        with npzkit.open(path) as npz, npzkit.NpzWriter(path, mode="a") as writer:
            for look in (
                lambda: npz["x" * 50],
                lambda: writer.rename("x" * 50, "y"),
                lambda: npz.verify(keys=["x" * 50]),
            ):
                with pytest.raises(errors.MemberNotFoundError) as missing:
                    look()
                texts.append(str(missing.value))
        texts += [str(warning.message) for warning in caught]
    assert all(text.isprintable() and len(text) < 1000 for text in texts)


HOSTILE = ["a\x9b31mb", "\u202egpj.x", "a\u2028b", "\u200fx", "\u2066x", "a\x85b"]


@pytest.mark.parametrize("key", HOSTILE)
def test_names_are_shown_in_one_way(key, tmp_path):
    """Every report, table, error and repr escapes keys and paths in the same way."""
    path = tmp_path / f"{key}.npz"
    bad = {"crc": 1}
    path.write_bytes(
        archive(Member(f"{key}.npy", X), Member(f"{key}/b.npy", X, central=bad, local=bad))
    )
    with npzkit.open(path) as npz:
        texts = [repr(npz), npz.summary(), repr(npz.lazy(key)), str(npz.verify())]
        for read_or_look in (npz.read, npz.info):
            with pytest.raises(errors.NpzkitError) as caught:
                read_or_look(f"{key}/{'b' if read_or_look == npz.read else 'c'}")
            texts.append(str(caught.value))
    texts += [str(npzkit.verify(path)), str(npzkit.repair(path))]
    with npzkit.NpzWriter(path, "a") as w:
        texts.append(repr(w))
    for text in texts:
        assert all(line.isprintable() for line in text.split("\n"))
        assert ascii(key)[1:-1] in text


@pytest.mark.parametrize("key", ["a\x80", "\x9bm", "a\x85b", "x\u2028y", "x\u2029"])
def test_control_characters_are_no_part_of_new_keys(key, tmp_path):
    """C1 control characters and line separators are refused in new keys, and nothing is written."""
    path = tmp_path / "a.npz"
    with pytest.raises(errors.UnsafeNameError, match=r"control character|separator"):
        npzkit.save(path, {key: np.eye(2)})
    assert not path.exists()


@pytest.mark.parametrize("key", ["\u05d0\u200f", "\u202bx\u202c", "\u2067x\u2069"])
def test_marks_of_direction_are_part_of_keys(key, tmp_path):
    """Keys in Arabic and Hebrew may have the marks that these scripts need, and are read back."""
    npzkit.save(tmp_path / "a.npz", {key: np.eye(2)})
    with npzkit.open(tmp_path / "a.npz") as npz:
        assert npz.files == [key]
        assert npz[key].shape == (2, 2)


def test_values_from_a_file_are_shown_short():
    """A header of a megabyte does not make a message of a megabyte."""
    error = errors.NpyFormatError(
        "bad", key="k" * 10**6, found=b"x" * 10**6, expected=["y" * 10**6]
    )
    assert len(str(error)) < 1000


def test_the_first_place_named_stays():
    """locate fills in missing attributes and never overwrites others."""
    error = errors.NpzkitError("bad", key="inner")
    assert error.locate(path="a.npz", key="outer") is error
    assert (error.path, error.key) == ("a.npz", "inner")


def test_the_module_shows_errors_and_warnings_alone():
    """What messages are made with is not public."""
    kinds = [getattr(errors, name) for name in dir(errors)]
    assert dir(errors) == sorted(errors.__all__)
    assert all(issubclass(kind, (errors.NpzkitError, UserWarning)) for kind in kinds)


@each_row(
    ("found", "limit", "name", "text"),
    [
        (3 << 20, 2048, "total_size", "found '3.0 MiB', expected 'at most 2.0 KiB'"),
        (2049, 2048, "member_size", "found '2,049 B', expected 'at most 2,048 B'"),
        (3000, 2048, "member_count", "found '3,000', expected 'at most 2,048'"),
    ],
)
def test_a_limit_on_bytes_has_a_unit(found, limit, name, text):
    """A message about a limit shows sizes with a unit, as far as they differ, and counts without."""
    with pytest.raises(errors.LimitExceededError, match=text):
        errors.check_limit(found, limit, name, "it is too large")


def test_a_message_names_the_first_of_many_keys():
    """The message of a tree that does not fit is short; the attributes have all keys."""
    keys = [f"layer/{number}" for number in range(40)]
    error = errors.TreeMismatchError.of(keys, keys[:5], dict.fromkeys(keys, ("a", "b")))
    assert "missing: 'layer/0', " in str(error)
    assert str(error).count("'layer/4'") == 3
    assert str(error).count(" and 35 more") == 2
    assert (len(error.missing), len(error.differing)) == (40, 40)


DAMAGE = {
    "FormatError", "NpyFormatError", "IndexFormatError", "ZipFormatError", "NotAnArchiveError",
    "ChecksumError", "AmbiguousArchiveError", "NoDataError", "MissingShardError", "DamagedCheckpointError",
}  # fmt: skip


@each_row("cls", ERRORS)
def test_an_error_says_whether_it_means_damage(cls):
    """Each class has a default, and whoever raises an error can say otherwise."""
    assert cls("bad").is_damage == errors.is_damage(cls("bad")) == (cls.__name__ in DAMAGE)
    for said in (True, False):
        error = cls("bad", is_damage=said)
        assert error.is_damage == pickle.loads(pickle.dumps(error)).is_damage == said


def test_an_error_of_the_system_means_no_damage():
    """What cannot be read now may be right; only a folder in the place of a file is damage."""
    assert errors.is_damage(IsADirectoryError(errno.EISDIR, "Is a directory"))
    for code in (errno.EIO, errno.ENOENT, errno.EACCES, errno.ESTALE):
        assert not errors.is_damage(OSError(code, "no"))
    for other in (MemoryError(), ValueError("bad")):
        assert not errors.is_damage(other)


CLAIMS = {
    "encrypted": (archive(Member("x.npy", npy(np.ones(2)), central={"flags": 1})), {}, False),
    "patched": (archive(Member("x.npy", npy(np.ones(2)), central={"flags": 32})), {}, True),
    "method": (archive(Member("x.npy", npy(np.ones(2)), method=99)), {}, True),
    "long header": (archive(Member("x.npy", header("x" * 20_000))), {}, False),
    "large member": (archive(Member("x.npy", npy(np.ones(9)))), {"member_size": 100}, False),
    "objects": (archive(Member("x.npy", OBJECTS.getvalue())), {}, False),
}


@pytest.mark.parametrize(("data", "limits", "is_damage"), CLAIMS.values(), ids=CLAIMS)
def test_what_a_file_claims_can_be_damage(data, limits, is_damage):
    """A claim that no sound file makes is damage; a large array and a pickle are none."""
    with (
        npzkit.open(io.BytesIO(data), limits=npzkit.Limits(**limits)) as npz,
        pytest.raises(errors.NpzkitError) as caught,
    ):
        npz["x"]
    assert not isinstance(caught.value, errors.FormatError)
    assert caught.value.is_damage == is_damage


@each_row(
    ("data", "is_damage"),
    [
        (npy(np.ones(2)), False), (b"\x89HDF\r\n\x1a\n", False), (gzip.compress(b""), False),
        (pickle.dumps([1]), False), (b"MATLAB 5.0 MAT-file", False),
        ((2).to_bytes(8, "little") + b"{}", False),
        (b"", True), (bytes(100), True), (b"<html>", True), (b"hello\0", True), (b"hello", False), (b"\x89PNG\r", False), (b"PK\3\4", True),
    ],
)  # fmt: skip
def test_a_file_of_another_format_is_no_damage(data, is_damage):
    """A program that removes what is damaged keeps files that are sound, but no archives.

    A part of an archive is no file of another kind.
    """
    with pytest.raises(errors.ZipFormatError) as caught:
        npzkit.open(data)
    assert isinstance(caught.value, errors.NotAnArchiveError) == (data != b"PK\3\4")
    assert caught.value.is_damage == is_damage
    assert pickle.loads(pickle.dumps(caught.value)).is_damage == is_damage


@each_row("data", [b"\x89HDF\r\n\x1a\n", CLAIMS["encrypted"][0]])
def test_a_store_passes_over_a_step_of_another_format(tmp_path, data):
    """The newest step that npzkit wrote is loaded, with a warning."""
    store = CheckpointStore(tmp_path)
    store.save(1, {"x": np.ones(2)})
    store.save(2, {"x": np.ones(2)})
    max(tmp_path.glob("step_*")).write_bytes(data)
    with pytest.warns(errors.DamagedCheckpointWarning):
        assert CheckpointStore(tmp_path).load().step == 1


def test_metadata_above_their_limit_are_no_damage(tmp_path):
    """Metadata of an archive, or an index, that are larger than a limit are not damaged."""
    npzkit.save(tmp_path / "a.npz", {"x": np.ones(3)}, metadata={"text": "x" * 100_000})
    limits = npzkit.Limits(metadata_size=50_000)
    with npzkit.open(tmp_path / "a.npz", limits=limits) as npz:
        with pytest.raises(errors.LimitExceededError, match="too long") as caught:
            npz.metadata
        assert not caught.value.is_damage
    with npzkit.ShardedWriter(tmp_path / "shards", attempt="a") as w:
        w.add("x", np.ones(3))
    npzkit.ShardedWriter(tmp_path / "shards", attempt="a").commit()
    with pytest.raises(errors.LimitExceededError, match="too much memory") as caught:
        npzkit.open(tmp_path / "shards", limits=npzkit.Limits(metadata_size=5_000))
    assert not caught.value.is_damage


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 4])
def test_a_warning_of_a_thread_points_to_the_call(tmp_path, threads):
    """What a thread of npzkit warns about names the line that called npzkit, not npzkit's."""
    stream = io.BytesIO()
    np.lib.format.write_array(stream, np.arange(60_000), (1, 0))
    data = stream.getvalue().replace(b"(60000,)", b"(60000L,)").replace(b" \n", b"\n", 1)
    with zipfile.ZipFile(tmp_path / "a.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        for number in range(6):
            archive.writestr(f"x{number}.npy", data)
    with npzkit.open(tmp_path / "a.npz") as npz, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        npz.load_all(threads=threads)
    assert len(caught) == 6
    assert {warning.filename for warning in caught} == {__file__}


@each_row("cls", [cls for cls in ERRORS if issubclass(cls, OSError)])
def test_the_attributes_of_system_errors_can_be_set(cls):
    """As tblib does, which dask.distributed imports, when such an error comes from a worker."""
    error = cls("it is wrong", path="a.npz")
    before = dict(vars(error))
    for name in ("errno", "strerror", "filename", "filename2"):
        setattr(error, name, getattr(error, name))
    assert (vars(error), "it is wrong" in str(error)) == (before, True)
