"""Errors: one tree, readable messages, attributes that travel."""

from __future__ import annotations

import pickle
import zipfile

import pytest
from npzkit import errors

ERRORS = [
    cls
    for cls in vars(errors).values()
    if isinstance(cls, type) and issubclass(cls, errors.NpzkitError)
]

BASES = {
    "FormatError": ValueError, "NpyFormatError": errors.FormatError, "ZipFormatError": zipfile.BadZipFile,
    "ChecksumError": zipfile.BadZipFile, "AmbiguousArchiveError": ValueError, "UnsupportedError": NotImplementedError,
    "LimitExceededError": ValueError, "PickleRefusedError": ValueError, "UnsafeNameError": ValueError,
    "MemberNotFoundError": KeyError, "ClosedArchiveError": ValueError, "StaleArchiveError": ValueError,
    "NotMappableError": ValueError, "ArchiveLockedError": BlockingIOError,
}  # fmt: skip


@pytest.mark.parametrize("cls", ERRORS, ids=lambda cls: cls.__name__)
def test_messages_attributes_and_pickling(cls):
    """Every error shows what, where, found, expected and remedy, and survives pickling."""
    error = cls(
        "it is wrong", path="a.npz", key="w", offset=7, found=b"x", expected=3, remedy="Mend it."
    )
    text = "it is wrong (in 'a.npz', key 'w', at byte 7): found b'x', expected 3. Mend it."
    assert str(error) == text
    other = pickle.loads(pickle.dumps(error))
    assert type(other) is cls
    assert str(other) == text
    assert (other.path, other.key, other.offset, other.found, other.expected) == (
        "a.npz",
        "w",
        7,
        b"x",
        3,
    )
    assert cls.__name__ in errors.__doc__ or cls is errors.NpzkitError


@pytest.mark.parametrize(("name", "base"), BASES.items())
def test_the_tree(name, base):
    """Each error is also what callers of numpy and zipfile catch."""
    assert issubclass(getattr(errors, name), base)
    assert issubclass(getattr(errors, name), errors.NpzkitError)


def test_the_table_is_complete():
    """No error is missing from the tests above or from __all__."""
    assert {cls.__name__ for cls in ERRORS} - {"NpzkitError"} == set(BASES)
    assert {cls.__name__ for cls in ERRORS} <= set(errors.__all__)


def test_values_from_a_file_are_shown_short():
    """A megabyte of hostile header does not become a megabyte of message."""
    error = errors.NpyFormatError(
        "bad", key="k" * 10**6, found=b"x" * 10**6, expected=["y" * 10**6]
    )
    assert len(str(error)) < 1000


def test_the_first_place_named_stays():
    """locate fills in what is not known yet, and overrides nothing."""
    error = errors.NpzkitError("bad", key="inner")
    assert error.locate(path="a.npz", key="outer") is error
    assert (error.path, error.key) == ("a.npz", "inner")
