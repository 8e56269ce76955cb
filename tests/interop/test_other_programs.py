"""Other programs read what npzkit writes, and npzkit what they write."""

from __future__ import annotations

import io
import shutil
import subprocess
import zipfile

import npzkit
import numpy as np
import pytest

COMPRESSIONS = ["stored", "deflated"]


@pytest.fixture(params=COMPRESSIONS)
def written(request, tmp_path, arrays):
    """An archive with attributes, metadata and a name beyond ASCII."""
    path = tmp_path / "written.npz"
    with npzkit.NpzWriter(path, compression=request.param, metadata={"step": 7}) as w:
        for key, array in arrays.items():
            w.add(key, array, attrs={"unit": "m"})
        w["größe"] = np.arange(3)
    return path


@pytest.mark.parametrize(
    "command",
    [["unzip", "-t"], ["7z", "t"], ["zip", "-T"], ["zipinfo", "-v"], ["jar", "tf"]],
    ids=" ".join,
)
def test_zip_programs(command, written):
    """unzip, 7-Zip, zip, zipinfo and jar find nothing wrong."""
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed")
    found = subprocess.run(
        [*command, str(written)], capture_output=True, text=True, errors="replace", timeout=60
    )
    assert found.returncode == 0, found.stdout + found.stderr
    assert "warning" not in (found.stdout + found.stderr).lower()


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
        assert theirs.files == [*arrays, "größe"]
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
    """A megabyte compressed by each program in each method is read and checked."""
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed")
    array = np.cumsum(np.random.default_rng(0).integers(-3, 4, 150_000))
    np.save(tmp_path / "x.npy", array)
    words = [word.format(**{"out": "out.npz.zip", "in": "x.npy"}) for word in command]
    subprocess.run(words, cwd=tmp_path, check=True, capture_output=True, timeout=60)
    with npzkit.open(tmp_path / "out.npz.zip") as npz:
        assert npz.info("x").method == method
        assert np.array_equal(npz["x"], array)
        assert np.array_equal(npz.load_all()["x"], array)
