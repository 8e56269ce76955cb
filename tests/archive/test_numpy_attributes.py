"""npz.zip and npz.fid."""

from __future__ import annotations

import zipfile

import npzkit
import pytest
from archives import same


def test_own_fid(path):
    """own_fid closes the caller's file with the archive; by default it stays open."""
    for own in (True, False):
        with open(path, "rb") as file:
            npzkit.NpzFile(file, own_fid=own).close()
            assert file.closed == own


def test_zip_is_a_zipfile_onto_the_same_archive(path, arrays):
    """npz.zip lists and tests the same members."""
    with npzkit.open(path) as npz:
        assert isinstance(npz.zip, zipfile.ZipFile)
        assert npz.zip is npz.zip
        assert npz.zip.namelist() == [key + ".npy" for key in arrays]
        assert npz.zip.testzip() is None
        with npz.zip.open("fortran.npy") as member:
            assert same(npzkit.format.read_array(member), arrays["fortran"])


def test_zip_of_a_torn_archive(path):
    """npz.zip sees the archive that npz does, without what follows its end."""
    with pytest.warns(npzkit.errors.TornArchiveWarning):
        npz = npzkit.open(path.read_bytes() + b"!" * 100)
    assert npz.zip.testzip() is None
