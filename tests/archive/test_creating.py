"""Created arrays and the commits of their archive."""

from __future__ import annotations

import npzkit
import npzkit.archive.written_archive
import numpy as np
import pytest
from archives import NOISE, by_save, check_accepted
from npzkit.errors import ClosedArchiveError, UnsafeNameError
from systems import replaces_open_files


@pytest.fixture
def path(tmp_path):
    """Three arrays: x, y and z."""
    return by_save(tmp_path / "a.npz")


@pytest.mark.parametrize("mode", [pytest.param("w", marks=replaces_open_files), "a"])
def test_a_commit_leaves_out_what_is_not_sealed(path, mode):
    """An array that is being filled joins with the commit after it was sealed."""
    with npzkit.NpzWriter(path, mode) as w:
        dst = w.create("big", (1000, 3), "f8")
        mapped = dst.memmap()
        mapped[0] = 1
        dst[1] = 2
        w["small"] = np.arange(3)
        w.commit()
        with npzkit.open(path, strict=True) as npz:
            assert "big" not in npz
            assert "small" in npz
        # The file was closed and opened again in between.
        dst[2] = 3
        mapped[3] = 4
        for use in (
            lambda: w.add("big", [1], overwrite=True),
            lambda: w.__delitem__("big"),
            lambda: w.attrs("big"),
            lambda: w.rename("big", "other"),
        ):
            with pytest.raises(ValueError, match="being created"):
                use()
        with pytest.raises(UnsafeNameError):
            w.rename("small", "big")
        dst.close()
        w.attrs("big")["unit"] = "m"
    with npzkit.open(path) as npz:
        assert npz["big"][:5, 0].tolist() == [1, 2, 3, 4, 0]
        assert npz.files[-2:] == ["big", "small"]
        assert npz.info("big").attrs == {"unit": "m"}
    check_accepted(path)


@pytest.mark.parametrize("compression", ["stored", "deflated"])
def test_an_array_that_grows_behind_an_archive(path, compression):
    """Rows are appended in mode "a"; until they are sealed nothing else is written."""
    before = path.read_bytes()
    with npzkit.NpzWriter(path, "a", compression=compression) as w:
        with w.create("log", (None, 2), "i8") as dst:
            for start in range(0, 60_000, 20_000):
                dst.append(NOISE[start : start + 20_000].reshape(-1, 2))
            for use in (
                w.commit,
                lambda: w.add("other", [1]),
                lambda: w.rename("x", "other"),
                lambda: w.create("other", 3, "i4"),
            ):
                with pytest.raises(ValueError, match="still growing"):
                    use()
            assert w.files[-1] == "log"
            with pytest.raises(ValueError, match="being created"):
                del w["log"]
        w.commit()
    assert path.read_bytes().startswith(before)
    check_accepted(path, log=NOISE.reshape(-1, 2))


def test_a_created_array_that_is_given_up(path):
    """An exception in its block discards what was not committed, and the rest stays."""
    w = npzkit.NpzWriter(path, "a")
    w["one"] = np.arange(3)
    w.commit()
    before = path.read_bytes()
    w["two"] = np.arange(3)
    with pytest.raises(KeyError), w.create("big", (100_000,), "f8") as dst:
        dst[5:9] = 1
        raise KeyError
    assert path.read_bytes() == before
    with pytest.raises(ClosedArchiveError, match="given up"):
        w.commit()
    check_accepted(path, one=np.arange(3))


@pytest.mark.parametrize("mode", ["w", "a"])
@pytest.mark.parametrize("ending", ["aborted", "failed"])
def test_an_array_whose_writer_gave_up_takes_nothing(path, mode, ending, monkeypatch):
    """No byte of a created array is written once its writer was aborted, or failed."""
    w = npzkit.NpzWriter(path, mode)
    w["kept"] = np.arange(3)
    w.commit()
    before = path.read_bytes()
    filled = w.create("filled", (100, 2), "f8")
    if ending == "aborted":
        w.abort()
    else:
        monkeypatch.setattr(npzkit.zip.writer.ZipWriter, "write_small", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            w["new"] = np.arange(3)
    for use in (
        lambda: filled.__setitem__(5, 1),
        lambda: filled.append(np.ones((2, 2))),
        filled.memmap,
        lambda: filled[5],
    ):
        with pytest.raises(ClosedArchiveError):
            use()
    filled.close()
    assert path.read_bytes() == before
