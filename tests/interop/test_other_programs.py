"""Other programs read what npzkit writes, and npzkit what they write.

`test_readers.py` has what every reader must find in every archive.
"""

from __future__ import annotations

import io
import re
import shutil
import subprocess
import zipfile

import npzkit
import numpy as np
import pytest
from commits import unfinished
from deep import extent

COMPRESSIONS = ["stored", "deflated"]


@pytest.fixture(params=COMPRESSIONS)
def written(request, tmp_path, arrays):
    """An archive with attributes, metadata and a name beyond ASCII."""
    path = tmp_path / "written.npz"
    with npzkit.NpzWriter(path, compression=request.param, metadata={"step": 7}) as w:
        for key, array in arrays.items():
            w.add(key, array, attrs={"unit": "m"})
        w["größe"] = np.arange(3)
        w["large"] = np.arange(100_000)
    return path


def edit(path, change, **options):
    with npzkit.NpzWriter(path, "a", auto_repack=False, **options) as w:
        change(w)


def one_commit(path):
    npzkit.save(path, {"x": np.arange(9), "y": np.ones((2, 3))})


def emptied(path):
    npzkit.save(path, {"x": np.arange(3)})
    edit(path, lambda w: w.__delitem__("x"))


LISTINGS = {
    "unzip": (["unzip", "-Z1"], "^(.+)$"),
    "7z": (["7z", "l", "-ba", "-slt", "-tzip"], "^Path = (.+)$"),
    "jar": (["jar", "tf"], "^(.+)$"),
}


def listed(program, path, *, may_fail=False):
    """Return the members that a program lists."""
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed")
    command, pattern = LISTINGS[program]
    found = subprocess.run(
        [*command, path], capture_output=True, text=True, check=False, timeout=60
    )
    assert may_fail or found.returncode == 0, found.stdout + found.stderr
    return re.findall(pattern, found.stdout, re.MULTILINE)


@pytest.mark.slow
@pytest.mark.parametrize("program", ["7z", "jar"])
def test_an_archive_that_was_emptied(program, tmp_path):
    """jar lists nothing; 7-Zip lists what was removed, and ends with an error."""
    path = tmp_path / "a.zip"
    emptied(path)
    assert np.load(path).files == []
    assert listed(program, path, may_fail=program == "7z")[:1] == (
        [] if program == "jar" else ["x.npy"]
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [
        lambda w: w.rename("x", "new"),
        lambda w: w.__delitem__("x"),
        lambda w: w.add("x", np.ones(4), overwrite=True),
    ],
    ids=["renamed", "removed", "replaced"],
)
def test_an_old_first_member(change, tmp_path):
    """7-Zip shows the old contents, and an error, if the first member is not listed; auto_repack
    prevents it.
    """
    path = tmp_path / "a.zip"
    for auto_repack in (False, True):
        npzkit.save(path, {"x": np.arange(9), "y": np.ones(3)})
        with npzkit.NpzWriter(path, "a", auto_repack=auto_repack) as w:
            change(w)
        with np.load(path) as theirs:
            names = theirs.zip.namelist()
        if auto_repack:
            assert sorted(listed("7z", path)) == sorted(names)
        else:
            assert listed("7z", path, may_fail=True) == ["x.npy", "y.npy"]
    assert sorted(listed("jar", path)) == sorted(names)


@pytest.mark.slow
@pytest.mark.parametrize("program", LISTINGS)
def test_a_commit_that_lacks_its_seal(program, tmp_path):
    """Other programs list the commit before it, and npzkit does, with a warning."""
    path = tmp_path / "a.zip"
    one_commit(path)
    edit(path, lambda w: w.add("z", np.arange(5)))
    path.write_bytes(unfinished(path.read_bytes()))
    with pytest.warns(npzkit.errors.TornArchiveWarning), npzkit.open(path) as npz:
        assert npz.files == ["x", "y"]
    if program != "unzip":
        # unzip notes the bytes behind the end in its exit status.
        assert sorted(listed(program, path)) == ["x.npy", "y.npy"]
    with pytest.warns(npzkit.errors.TornArchiveWarning):
        edit(path, lambda w: w.add("u", np.arange(5)))
    assert sorted(listed(program, path)) == ["u.npy", "x.npy", "y.npy"]


def test_zipfile(written, arrays):
    """Python's zipfile tests every member and reads numpy's bytes from each."""
    with zipfile.ZipFile(written) as archive:
        assert archive.testzip() is None
        for key, array in arrays.items():
            found = np.lib.format.read_array(io.BytesIO(archive.read(key + ".npy")))
            assert found.tobytes() == np.asanyarray(array).tobytes()


def test_numpy(written, arrays):
    """np.load finds the same keys and arrays, and nothing else."""
    with np.load(written) as theirs:
        assert theirs.files == [*arrays, "größe", "large"]
        for key, array in arrays.items():
            assert np.array_equal(theirs[key], np.asanyarray(array))


@pytest.mark.parametrize("compressed", [True, False])
def test_scipy(tmp_path, compressed, fixtures):
    """Sparse matrices go both ways between npzkit and scipy."""
    sparse = pytest.importorskip("scipy.sparse")
    matrix = sparse.csr_array(np.diag(np.arange(50.0))[::3])
    theirs, ours = tmp_path / "theirs.npz", tmp_path / "ours.npz"
    sparse.save_npz(theirs, matrix, compressed=compressed)
    with npzkit.open(theirs) as npz:
        arrays = npz.load_all()
    npzkit.save(ours, arrays, compression="deflated" if compressed else "stored")
    assert (sparse.load_npz(ours) != matrix).nnz == 0
    with npzkit.open(fixtures / "scipy_sparse.npz") as npz:
        npzkit.save(ours, npz.load_all())
    assert np.array_equal(sparse.load_npz(ours).toarray(), np.eye(10)[::3])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "method"),
    [
        (["zip", "-q", "-X", "{out}", "{in}"], "deflated"),
        (["zip", "-q", "-0", "{out}", "{in}"], "stored"),
        (["7z", "a", "-bd", "-tzip", "{out}", "{in}"], "deflated"),
        (["7z", "a", "-bd", "-tzip", "-mm=Deflate64", "{out}", "{in}"], "deflate64"),
        (["7z", "a", "-bd", "-tzip", "-mm=BZip2", "{out}", "{in}"], "bzip2"),
        (["7z", "a", "-bd", "-tzip", "-mm=LZMA", "{out}", "{in}"], "lzma"),
        (["jar", "cfM", "{out}", "{in}"], "deflated"),
    ],
    ids=lambda value: value if isinstance(value, str) else value[0],
)
def test_archives_made_here(command, method, tmp_path):
    """Data compressed by each program in each method is read and checked."""
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed")
    array = np.cumsum(np.random.default_rng(0).integers(-3, 4, extent(30_000, 150_000)))
    np.save(tmp_path / "x.npy", array)
    words = [word.format(**{"out": "out.npz.zip", "in": "x.npy"}) for word in command]
    subprocess.run(words, cwd=tmp_path, check=True, capture_output=True, timeout=60)
    with npzkit.open(tmp_path / "out.npz.zip") as npz:
        assert npz.info("x").method == method
        assert np.array_equal(npz["x"], array)
        assert np.array_equal(npz.load_all()["x"], array)
