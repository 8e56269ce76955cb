"""What an error of the container says to do is done, and then the arrays are read."""

from __future__ import annotations

import io
import os
import pickle
import re
import shutil
import struct
import subprocess
import sys
import warnings
import zipfile

import npzkit
import numpy as np
import pytest
from archives import FIXTURES
from commits import last_end
from forge import Member, archive, npy
from npzkit.errors import ZipFormatError

X = np.arange(6.0)
DATA = npy(X)
END = b"PK\5\6" + bytes(18)


def plain(name="x.npy", data=DATA, **forged):
    return Member(name, data, **forged)


SOUND = archive(plain(), plain("y.npy"))


@pytest.fixture
def path(here):
    """The path of the archive, in a working directory of its own."""
    return here / "a.npz"


def saved(**options):
    """Return an archive by npzkit after its first commit, and after its second."""
    stream = io.BytesIO()
    npzkit.save(stream, {"x": X}, **options)
    first = stream.getvalue()
    with npzkit.NpzWriter(stream, "a", auto_repack=False) as w:
        w["y"] = X
    return first, stream.getvalue()


def refused(file, key="x", **options):
    """Return the error that opening the archive raises, or reading an array of it."""
    with pytest.raises(npzkit.NpzkitError) as caught, npzkit.open(file, **options) as npz:
        npz[key]
    return caught.value


def read(file, key="x", **options):
    with npzkit.open(file, **options) as npz:
        return npz[key].tolist()


@pytest.mark.remedy(
    "The file was copied as text: each line feed became CR LF.", "Or undo that: npzkit.repair(path, output)"
)  # fmt: skip
@pytest.mark.parametrize("save", [np.savez, np.savez_compressed, npzkit.save])
def test_a_file_that_was_copied_as_text(path, save, monkeypatch):
    """Opening and repair in place say so, and repair to another file undoes it, as checksums show."""
    monkeypatch.setattr("npzkit.maintenance.repair._STEP_SIZE", 1000)
    values = np.random.default_rng(0).integers(0, 256, 30_000).astype("u1")
    arrays = {"x": values.reshape(-1, 3)}
    save(path, **({"arrays": arrays} if save is npzkit.save else arrays))
    data = path.read_bytes()
    text = data.replace(b"\n", b"\r\n")
    for left in (text, text[:9_000]):
        path.write_bytes(left)
        for use in (npzkit.open, npzkit.repair):
            with pytest.raises(ZipFormatError, match=r"copied as text.* Copy it again, in binary"):
                use(path)
    assert [lost.key for lost in npzkit.repair(path, "b.npz", keep_partial="mask").lost] == [
        "x", "the end of the file",
    ]  # fmt: skip
    rows = npzkit.load("b.npz")["x"]
    assert 0 < len(rows) < 10_000
    assert np.array_equal(rows, arrays["x"][: len(rows)])
    path.write_bytes(text)
    report = npzkit.repair(path, "b.npz", overwrite=True)
    assert (report.kept, report.lost, report.uncertain) == (("x",), (), ())
    assert np.array_equal(npzkit.load("b.npz")["x"], arrays["x"])
    path.write_bytes(data)
    assert np.array_equal(npzkit.load(path)["x"], arrays["x"])


def test_a_npy_file_that_was_copied_as_text(here):
    """Its values are neither read nor saved: the first byte of the data is the header's line feed."""
    np.save("a.npy", X)
    with open("a.npy", "rb+") as file:
        data = file.read().replace(b"\n", b"\r\n")
        file.seek(0)
        file.write(data)
    with pytest.raises(npzkit.NpzkitError, match="Copy it again, in binary mode"):
        npzkit.load("a.npy")
    with pytest.raises(npzkit.NpzkitError, match="nothing can be saved"):
        npzkit.repair("a.npy", "b.npz", keep_partial="mask")


SAME_IN_BOTH = {"usize": 1 << 30}
DAMAGED = {
    "the directory is elsewhere": archive(plain(), offset=7),
    "members overlap": archive(plain(), plain("y.npy", central={"offset": 0})),
    "zip64's end is not where it says": archive(plain(), zip64={"signature": b"PK\6\0"}),
    "a claim": archive(plain(method=8, local=SAME_IN_BOTH, central=SAME_IN_BOTH)),
}


@pytest.mark.remedy("a faulty program wrote it. Download it, create it again or restore a backup.")
@pytest.mark.parametrize("case", DAMAGED)
def test_a_damaged_file_is_downloaded_again(path, case):
    """The sound file in its place is read."""
    path.write_bytes(DAMAGED[case])
    assert refused(path).is_damage
    path.write_bytes(SOUND)
    assert read(path) == X.tolist()


@pytest.mark.remedy(
    "restore a backup. npzkit.repair(path, output) saves the members that are sound."
)
@pytest.mark.parametrize(
    "data",
    [
        DAMAGED["the directory is elsewhere"],
        DAMAGED["members overlap"],
        DAMAGED["zip64's end is not where it says"],
        archive(plain(central={"nlen": 263})),
    ],
    ids=["elsewhere", "overlap", "zip64", "an entry"],
)
def test_sound_members_of_a_file_with_a_damaged_end(path, data):
    """repair saves them in another file."""
    path.write_bytes(data)
    refused(path)
    npzkit.repair(path, "b.npz")
    assert read("b.npz") == X.tolist()


def test_the_sizes_of_members_that_overlap_compare(path):
    """What a member needs, with its header, is more than the room that it has."""
    path.write_bytes(archive(plain(), plain("y.npy", central={"offset": 200})))
    found = refused(path)
    sizes = [int(re.search(r"\d+", text)[0]) for text in (found.found, found.expected)]
    assert sizes[0] > sizes[1]


@pytest.mark.remedy("Programs would read different data from this file. Create it again, or use")
@pytest.mark.remedy("npzkit.repair(path, output), which saves the members that are sound.")
@pytest.mark.parametrize(
    "data",
    [
        archive(plain(), comment=END), archive(plain(local={"method": 8})),
        archive(plain(local={"name": b"w.npy"})),
    ],
    ids=["two ends", "two headers", "two names"],
)  # fmt: skip
def test_a_file_that_programs_read_differently_is_created_again(path, data):
    """What npzkit saves in its place is read by npzkit and NumPy alike; repair saves the array."""
    path.write_bytes(data)
    assert refused(path).is_damage
    assert "repair(path, output), which saves" in npzkit.verify(path).rows[0].remedy
    npzkit.repair(path, "b.npz")
    assert read("b.npz") == X.tolist()
    npzkit.save(path, {"x": X})
    with np.load(path) as theirs:
        assert theirs["x"].tolist() == read(path, strict=True) == X.tolist()


@pytest.mark.remedy(
    "Save the arrays: npzkit.repair(path, output); or pass a file object at the archive's beginning"
)
@pytest.mark.parametrize(
    ("lead", "base", "told"), [(b"#!/bin/sh\n", 0, "."), (b"#!/bin/sh\n", 10, ", byte 10.")]
)
def test_bytes_in_front_of_an_archive(path, lead, base, told):
    """repair saves the arrays; a file object behind these bytes is read."""
    path.write_bytes(archive(plain(), prefix=lead, base=base))
    assert refused(path).remedy.endswith(f"beginning{told}")
    npzkit.repair(path, "b.npz")
    assert read("b.npz") == X.tolist()
    with open(path, "rb") as file:
        file.seek(len(lead))
        assert read(file) == X.tolist()


@pytest.mark.remedy("Save the arrays: npzkit.repair(path, output)")
@pytest.mark.parametrize("place", [0, 2])
@pytest.mark.parametrize("data", [SOUND, saved()[0]], ids=["another program's", "npzkit's"])
def test_a_damaged_first_signature(path, data, place):
    """A file that begins with other bytes may be damaged there: repair saves the arrays."""
    path.write_bytes(data[:place] + b"!" + data[place + 1 :])
    assert "or it is damaged" in refused(path).what
    npzkit.repair(path, "b.npz")
    assert read("b.npz") == X.tolist()


@pytest.mark.remedy(
    "npzkit.repair(path) writes the directory again from the members' own headers; "
    "npzkit.repair(path, output) saves the members that are sound."
)
@pytest.mark.parametrize("output", [None, "b.npz"])
def test_a_damaged_directory(path, output):
    """repair writes it again in its place, and in another file."""
    data, _ = saved()
    place = data.rindex(b"x.npy")
    path.write_bytes(data[:place] + b"w" + data[place + 1 :])
    refused(path)
    npzkit.repair(path, output)
    assert read(output or path, strict=True) == X.tolist()


@pytest.mark.remedy(
    "npzkit.repair(path, output) saves the newest state; "
    "npzkit.repair(path) writes its directory again, at the end of the file."
)
@pytest.mark.parametrize("output", [None, "b.npz"])
def test_a_damaged_last_commit(path, output):
    """repair has the newest state, in its place and in another file."""
    _, data = saved()
    _, end, _ = last_end(data)
    path.write_bytes(data[: end + 8] + b"\7" + data[end + 9 :])
    refused(path)
    npzkit.repair(path, output)
    with npzkit.open(output or path, strict=True) as npz:
        assert npz.files == ["x", "y"]
        assert npz["y"].tolist() == X.tolist()


@pytest.mark.remedy(
    "save the arrays that are there: npzkit.repair(path, output, keep_partial='mask')."
)
def test_an_archive_that_was_cut_off(path):
    """repair saves what is there of it; the whole file is read."""
    path.write_bytes(SOUND[: SOUND.index(b"y.npy") + 150])
    refused(path)
    npzkit.repair(path, "b.npz", keep_partial="mask")
    assert read("b.npz") == X.tolist()
    path.write_bytes(SOUND)
    assert read(path, "y") == X.tolist()


@pytest.mark.remedy(
    "Programs would read different members from it. npzkit.repair(path, output) saves"
)
@pytest.mark.parametrize(
    ("between", "told", "keys"),
    [
        (
            b"",
            "the arrays of both archives; if both have a key, the second one's.",
            {"x", "y", "z"},
        ),
        (bytes(700), "the first archive.", {"x", "y"}),
    ],
)
def test_an_archive_behind_another(path, between, told, keys):
    """repair saves the arrays that it said it would."""
    first = archive(plain(), plain("y.npy"), plain("z.npy", npy(-X)))
    path.write_bytes((SOUND if between else first) + between + archive(plain("z.npy")))
    with (
        warnings.catch_warnings(action="ignore"),
        pytest.raises(npzkit.errors.AmbiguousArchiveError) as caught,
    ):
        npzkit.NpzWriter(path, "a")
    assert caught.value.remedy.endswith(told)
    npzkit.repair(path, "b.npz")
    with npzkit.open("b.npz", strict=True) as npz:
        assert keys <= set(npz)
        assert {key: npz[key].tolist() for key in keys} == dict.fromkeys(keys, X.tolist())


@pytest.mark.remedy("Extract it with 7-Zip: 7z x split.zip. npzkit.pack(path, folder) makes an")
def test_a_split_archive(path):
    """The command that the error names extracts what Info-ZIP split, which is packed again."""
    refused(archive(plain(), disk=1, directory_disk=1))
    if shutil.which("zip") is None or shutil.which("7z") is None:
        pytest.skip("zip or 7z is not installed")
    array = np.random.default_rng(0).random(20_000)
    np.save("x.npy", array)
    subprocess.run(["zip", "-q", "-s", "64k", "split.zip", "x.npy"], check=True)
    assert os.path.exists("split.z02")
    (command,) = re.findall("7z x split.zip", refused("split.zip").remedy)
    subprocess.run([*command.split(), "-bd", "-ofolder"], check=True, stdout=subprocess.DEVNULL)
    npzkit.pack(path, "folder")
    assert read(path) == array.tolist()


@pytest.mark.remedy("npz.read(key, verify=False) reads it as it is.")
@pytest.mark.parametrize("wrong", [["local", "central"], ["local"]])
@pytest.mark.parametrize("method", [0, 8])
def test_a_wrong_checksum(path, wrong, method):
    """Without the check it is read as it is; the sound file in its place is read with it."""
    path.write_bytes(archive(plain(method=method, **{name: {"crc": 1} for name in wrong})))
    refused(path)
    with npzkit.open(path) as npz:
        assert npz.read("x", verify=False).tolist() == X.tolist()
    path.write_bytes(SOUND)
    assert read(path) == X.tolist()


@pytest.mark.remedy("Download it, create it again or restore a backup")
def test_a_damaged_array(path):
    """It can be looked at; the sound file in its place is read."""
    path.write_bytes(SOUND.replace(DATA, DATA[:-1] + b"\1", 1))
    refused(path)
    with npzkit.open(path) as npz:
        assert npz.read("x", verify=False)[:5].tolist() == X[:5].tolist()
    path.write_bytes(SOUND)
    assert read(path) == X.tolist()


@pytest.mark.remedy(
    "Extract it with its password, by 7z; then npzkit.pack(path, folder) makes an archive"
)
def test_an_encrypted_member(path):
    """Whatever meets it says so; another program extracts it, and the files are packed."""
    fixture = FIXTURES / "infozip_encrypted.npz"
    remedy = refused(fixture).remedy
    assert [row.remedy for row in npzkit.verify(fixture).rows if row.severity == "error"] == [
        remedy
    ]
    for partial in (None, "mask"):
        with pytest.raises(npzkit.errors.UnsupportedError, match="is encrypted") as caught:
            npzkit.repair(fixture, "b.npz", keep_partial=partial)
        assert caught.value.remedy == remedy
    with zipfile.ZipFile(fixture) as theirs:
        theirs.extractall("folder", pwd=b"secret")
    npzkit.pack(path, "folder")
    assert read(path) == np.load("folder/x.npy").tolist()


@pytest.mark.remedy("Another program filled it. Save the array again to remove that.")
def test_an_extra_field_without_room(path):
    """The array is read and saved again, and has the attribute then."""
    path.write_bytes(archive(plain(extra=struct.pack("<HH", 0xCAFE, 65_000) + bytes(65_000))))
    with pytest.raises(npzkit.errors.LimitExceededError), npzkit.NpzWriter(path, "a") as w:
        w.attrs("x")["note"] = "n" * 600
    with npzkit.open(path) as npz:
        array = npz["x"]
    with npzkit.NpzWriter(path, "a") as w:
        w.add("x", array, overwrite=True)
        w.attrs("x")["note"] = "n" * 600
    with npzkit.open(path) as npz:
        assert npz["x"].tolist() == X.tolist()
        assert npz.info("x").attrs == {"note": "n" * 600}


@pytest.mark.remedy("Save what is large as an array.")
@pytest.mark.parametrize("attrs", [{"a": "n" * 70_000}, {"a": "n" * 40_000, "b": "n" * 40_000}])
def test_attributes_that_are_too_long(path, attrs):
    """As arrays, the same texts are saved."""
    with pytest.raises(npzkit.errors.LimitExceededError), npzkit.NpzWriter(path) as w:
        w.add("x", X, attrs=attrs)
    npzkit.save(path, {"x": X, **attrs})
    with npzkit.open(path) as npz:
        assert {key: npz[key].item() for key in attrs} == attrs


# -- files of other kinds ----------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(
            b"", marks=pytest.mark.remedy("Download it, create it again or restore a backup.")
        ),
        pytest.param(b"<html>404</html>", marks=pytest.mark.remedy("Download it again.")),
        pytest.param(bytes(3000), marks=pytest.mark.remedy("Download it again.")),
        pytest.param(
            b"version https://git-lfs.github.com/spec/v1\noid sha256:00\n",
            marks=pytest.mark.remedy("Download the real file: git lfs pull."),
        ),
    ],
    ids=["nothing", "a page", "zeros", "git-lfs"],
)
def test_what_was_saved_in_the_place_of_an_archive(path, data):
    """The archive itself, once it is there, is read."""
    path.write_bytes(data)
    assert "URL" not in refused(path).remedy
    path.write_bytes(SOUND)
    assert read(path) == X.tolist()


@pytest.mark.remedy("Decompress it first.")
@pytest.mark.parametrize("name", ["gzip", "bz2", "lzma", "zstd"])
def test_a_compressed_archive(path, name):
    """Decompressed, it is read."""
    zstd = "compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd"
    module = pytest.importorskip(zstd if name == "zstd" else name)
    path.write_bytes(module.compress(SOUND))
    refused(path)
    path.write_bytes(module.decompress(path.read_bytes()))
    assert read(path) == X.tolist()


@pytest.mark.remedy("Extract it first.")
def test_an_archive_of_7_zip(path):
    """What is extracted from it is read."""
    path.write_bytes(b"7z\xbc\xaf\x27\x1c" + bytes(100))
    refused(path)
    if shutil.which("7z") is None:
        pytest.skip("7z is not installed")
    path.write_bytes(SOUND)
    subprocess.run(["7z", "a", "-bd", "a.7z", "a.npz"], check=True, stdout=subprocess.DEVNULL)
    path.unlink()
    refused("a.7z")
    subprocess.run(["7z", "x", "-bd", "a.7z"], check=True, stdout=subprocess.DEVNULL)
    assert read(path) == X.tolist()


@pytest.mark.remedy("Read a table with numpy.loadtxt or pandas, and save its columns.")
def test_a_table_of_numbers(path):
    """Its columns are saved as arrays. A file of another format is not called damaged."""
    np.savetxt(path, np.stack([X, X], axis=1), delimiter=",")
    assert not refused(path).is_damage
    npzkit.save(path, {"x": np.loadtxt(path, delimiter=",")[:, 0]})
    assert read(path) == X.tolist()


@pytest.mark.remedy("Read it with a library for pictures, and save the array.")
def test_a_picture(path):
    """The array that matplotlib reads from it is saved."""
    image = pytest.importorskip("matplotlib.image", reason="matplotlib is not installed")
    image.imsave(path, np.eye(3), format="png")
    assert not refused(path).is_damage
    npzkit.save(path, {"x": image.imread(path, format="png")[:, 0, 0]})
    assert len(read(path)) == 3


@pytest.mark.remedy("Read it with pandas, and save its columns.")
def test_a_parquet_file(path):
    """Its columns are saved as arrays."""
    path.write_bytes(b"PAR1" + bytes(100) + b"PAR1")
    refused(path)
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    pandas.DataFrame({"x": X}).to_parquet(path)
    refused(path)
    npzkit.save(
        path, {name: column.to_numpy() for name, column in pandas.read_parquet(path).items()}
    )
    assert read(path) == X.tolist()


@pytest.mark.parametrize(
    ("data", "options"),
    [
        pytest.param(
            DATA, {}, marks=pytest.mark.remedy("Read it with npzkit.load or np.load.")
        ),
        pytest.param(
            pickle.dumps(X.tolist()), {"allow_pickle": True},
            marks=pytest.mark.remedy("npzkit.load reads those with allow_pickle=True"),
        ),
    ],
    ids=[".npy", "pickle"],
)  # fmt: skip
def test_what_load_reads(path, data, options):
    """npzkit.load and np.load give what is in the file."""
    path.write_bytes(data)
    refused(path)
    for load in (npzkit.load, np.load):
        assert list(load(path, **options)) == X.tolist()


@pytest.mark.remedy("Bytes are contents. If these are a path, pass os.fsdecode(path).")
def test_a_path_in_bytes(path):
    """Bytes are contents everywhere but in drop-ins; the text of a path is a path."""
    path.write_bytes(SOUND)
    with pytest.raises(ZipFormatError, match="Bytes are contents"):
        npzkit.open(b"a.npz")
    with npzkit.open(os.fsdecode(b"a.npz")) as npz:
        assert np.array_equal(npz["x"], X)
