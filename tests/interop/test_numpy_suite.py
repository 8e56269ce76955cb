"""numpy's own tests of npy and npz, from the installed wheel, run against npzkit.

Their source is taken as it is, with `numpy.lib.format` replaced by
`npzkit.format`, and `np.load`, `np.savez`, `np.savez_compressed` and numpy's
NpzFile by npzkit's. What is not run is listed below with its reason, and a
test sees to it that nothing is missing without one.
"""

from __future__ import annotations

import re
import types
import warnings
from pathlib import Path

import numpy as np
import pytest
from deep import needs_deep

pytestmark = [
    pytest.mark.filterwarnings("default"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    # NumPy gives none of headers that are long.
    pytest.mark.filterwarnings("ignore:the header of this array"),
]

FOLDER = Path(np.lib.__file__).parent / "tests"
TEXT = "reads or writes text files, which npzkit does not"
NOT_RUN = {
    "TestSaveTxt": TEXT, "LoadTxtBase": TEXT, "TestLoadTxt": TEXT, "Testfromregex": TEXT, "TestFromTxt": TEXT,
    "test_gzip_loadtxt": TEXT, "test_gzip_loadtxt_from_string": TEXT,
    "TestPathUsage.test_loadtxt": TEXT, "TestPathUsage.test_genfromtxt": TEXT,
    "TestPathUsage.test_recfromtxt": TEXT, "TestPathUsage.test_recfromcsv": TEXT,
    # Defined inside TestSaveTxt, though it saves an archive.
    "TestSaveTxt.test_large_zip": "takes 7 GB and minutes; archives beyond 4 GiB are in test_npzwriter.py",
}  # fmt: skip

GIGABYTES = ["test_large_archive", "TestSavezLoad.test_big_arrays"]
"""Run with NPZKIT_DEEP=1 alone; by default sparse files stand in for them, in test_npzwriter.py."""

REPLACED = [
    (r"^from numpy\.lib import format$", "from npzkit import format"),
    (r"\bnp\.(load|savez_compressed|savez)\b(?!txt)", r"npzkit.\1"),
    (r"\bnp\.lib\.npyio\.NpzFile\b", "npzkit.NpzFile"),
]


REPLACED_COUNT = dict.fromkeys((pattern for pattern, _ in REPLACED), 0)


def load(name: str) -> types.ModuleType:
    """Return numpy's test module, its source replaced as said above."""
    path = FOLDER / name
    source = path.read_text(encoding="utf-8")
    for pattern, replacement in REPLACED:
        source, count = re.subn(pattern, replacement, source, flags=re.MULTILINE)
        REPLACED_COUNT[pattern] += count
    module = types.ModuleType(f"numpy_suite_{path.stem}")
    module.__file__ = str(path)
    exec(compile("import npzkit\n" + source, str(path), "exec"), module.__dict__)
    return module


def collect(module: types.ModuleType) -> dict[str, object]:
    return {
        name: value
        for name, value in vars(module).items()
        if name.startswith(("test", "Test"))
        and getattr(value, "__module__", module.__name__) == module.__name__
    }


RUN: dict[str, object] = {}
if FOLDER.is_dir():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for file_name in ("test_format.py", "test_io.py"):
            for test_name, test in collect(load(file_name)).items():
                if test_name in NOT_RUN:
                    continue
                for method in (
                    [m for m in vars(test) if f"{test_name}.{m}" in NOT_RUN]
                    if isinstance(test, type)
                    else []
                ):
                    delattr(test, method)
                RUN[test_name] = test
    globals().update(RUN)
    for test_name in GIGABYTES:
        owner, _, method = test_name.rpartition(".")
        if owner:
            setattr(RUN[owner], method, needs_deep(getattr(RUN[owner], method)))
        else:
            globals()[method] = RUN[method] = needs_deep(RUN[method])


@pytest.mark.skipif(not FOLDER.is_dir(), reason="this numpy came without its tests")
def test_what_concerns_npy_and_npz_is_run():
    """The tests that the contract names are among those run above."""
    names = set(RUN) | {f"{c}.{m}" for c, v in RUN.items() if isinstance(v, type) for m in dir(v)}
    expected = {
        "test_roundtrip", "test_roundtrip_randsize", "test_roundtrip_truncated", "test_file_truncated",
        "test_memmap_roundtrip", "test_load_padded_dtype", "test_pickle_python2_python3", "test_pickle_disallow",
        "test_descr_to_dtype", "test_version_2_0", "test_huge_header", "test_huge_header_npz", "test_write_version",
        "test_read_magic", "test_bad_magic_args", "test_large_header", "test_read_array_header_1_0", "test_bad_header",
        "test_large_archive", "test_empty_npz", "test_unicode_field_names", "test_header_growth_axis",
        "test_metadata_dtype", "test_gzip_load", "test_ducktyping", "test_npzfile_dict", "test_load_refcount",
        "test_load_multiple_arrays_until_eof", "test_savez_nopickle", "TestSavezLoad.test_load_non_npy",
        "TestSavezLoad.test_big_arrays", "TestSavezLoad.test_BagObj", "TestSavezLoad.test_closing_fid",
        "TestSavezLoad.test_closing_zipfile_after_load", "TestSavezLoad.test_repr_lists_keys",
        "TestSavezLoad.test_tuple_getitem_raises", "TestSavezLoad.test_savez_filename_clashes",
        "TestSavezLoad.test_not_closing_opened_fid", "TestPathUsage.test_savez_load",
    }  # fmt: skip
    if np.lib.NumpyVersion(np.__version__) < "2.1.0":
        # Tests that NumPy 2.0 does not have yet.
        expected -= {
            "test_file_truncated", "test_savez_nopickle", "TestSavezLoad.test_load_non_npy",
        }  # fmt: skip
    assert expected <= names


@pytest.mark.skipif(not FOLDER.is_dir(), reason="this numpy came without its tests")
def test_every_omission_has_a_reason():
    """Each test of numpy's two files is run, or listed with the reason why not."""
    for file_name in ("test_format.py", "test_io.py"):
        for name in re.findall(
            r"^(?:def|class) ([tT]est\w*|LoadTxtBase)", (FOLDER / file_name).read_text(), re.M
        ):
            assert name in RUN or NOT_RUN[name]
    assert all(REPLACED_COUNT.values())
