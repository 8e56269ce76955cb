"""What npzkit, np.load and a stream read after other programs have edited an archive.

First after one edit by each program: the table of editors in `npzkit/guide/format-programs.md`.
Then after edits in turn, by npzkit, zipfile, zip and 7-Zip.
"""

from __future__ import annotations

import io
import random
import shutil
import subprocess
import zipfile

import npzkit
import numpy as np
import pytest
from deep import amount
from forge import npy
from npzkit.errors import ZipFormatError

from tables import each_row

COUNT = amount(8, 430)

# -- one edit ----------------------------------------------------------------


def by_zipfile(path):
    with zipfile.ZipFile(path, "a") as z:
        z.write(path.parent / "new.npy", "new.npy")


def by(*command):
    """Return the edit by a command."""

    def edit(path):
        if shutil.which(command[0]) is None:
            pytest.skip(f"{command[0]} is not installed")
        _run(path, *command)

    return edit


def fixed_by_zip(option):
    """Return the edit by which zip writes another file, with what it finds in this one."""

    def edit(path):
        by("zip", option, path.name, "--out", "fixed.npz")(path)
        path.with_name("fixed.npz").replace(path)

    return edit


EDITORS = {
    "zip -d": (by("zip", "-q", "-d", "a.npz", "small.npy"), ["large"]),
    "zip": (by("zip", "-q", "a.npz", "new.npy"), ["small", "large", "new"]),
    "zip -g": (by("zip", "-q", "-g", "a.npz", "new.npy"), ["small", "large", "new"]),
    "zip -F": (fixed_by_zip("-F"), ["small", "large"]),
    "zip -FF": (fixed_by_zip("-FF"), ["small", "large"]),
    "zip -A": (by("zip", "-q", "-A", "a.npz"), ["small", "large"]),
    "7z u": (by("7z", "u", "-bd", "-tzip", "a.npz", "new.npy"), ["large", "new", "small"]),
    "7z d": (by("7z", "d", "-bd", "-tzip", "a.npz", "small.npy"), ["large"]),
    "jar u": (by("jar", "ufM", "a.npz", "new.npy"), ["small", "large", "new"]),
    "zipfile a": (by_zipfile, ["small", "large", "new"]),
}
"""Of each program, its edit, and the keys afterwards."""
IN_PLACE = {"zip -g", "zipfile a"}
"""They write new members behind the record. The others write the file again, without the record."""


def edited(editor, folder, **options):
    """Return an archive after one edit, and what it has then."""
    arrays = {"small": np.arange(9), "large": np.arange(100_000), "new": np.ones(3)}
    path = folder / "a.npz"
    with npzkit.NpzWriter(path, **options) as w:
        w["small"] = arrays["small"]
        w.add("large", arrays["large"], attrs={"unit": "m"})
    np.save(folder / "new.npy", arrays["new"])
    edit, keys = EDITORS[editor]
    edit(path)
    return path, {key: arrays[key] for key in keys}


class Stream:
    """A stream that only reads forward."""

    def __init__(self, data):
        self._file = io.BytesIO(data)

    def read(self, size=-1):
        return self._file.read(size)


@pytest.mark.slow
@each_row("compression", ["stored", "deflated"])
@each_row("editor", EDITORS)
def test_arrays_after_an_edit(editor, compression, tmp_path):
    """np.load, npzkit and npzkit's stream read the same arrays: all that the program left."""
    path, arrays = edited(editor, tmp_path, compression=compression)
    with np.load(path) as theirs, npzkit.open(path) as npz:
        assert theirs.files == npz.files == list(arrays)
        streamed = dict(npzkit.iter_arrays(Stream(path.read_bytes())))
        assert list(streamed) == list(arrays)
        for found in (theirs, npz, streamed):
            assert all(np.array_equal(found[key], array) for key, array in arrays.items())
        assert npz.lazy("large")[70_000] == 70_000
        assert npz.info("large").attrs == {"unit": "m"}


@pytest.mark.slow
@each_row("editor", EDITORS)
def test_the_record_after_an_edit(editor, tmp_path):
    """It does not count any more: `verify` says so, and `repack` writes it again."""
    path, _ = edited(editor, tmp_path, compression="deflated")
    has_record = b".npzkit" in path.read_bytes()
    assert has_record == (editor in IN_PLACE)
    report = npzkit.verify(path)
    assert report.ok
    assert any("repack" in row.what for row in report.rows)
    npzkit.repack(path)
    assert npzkit.verify(path).rows == ()


@pytest.mark.slow
@each_row("is_long", [False, True])
@each_row("editor", EDITORS)
def test_metadata_after_an_edit(editor, is_long, tmp_path):
    """jar drops all metadata; what rewrites the file drops long ones, which is an error.

    The error names `repair`.
    """
    metadata = {"step": 7, "long": "m" * 200_000 if is_long else ""}
    path, arrays = edited(editor, tmp_path, metadata=metadata)
    with npzkit.open(path) as npz:
        assert np.array_equal(npz["large"], arrays["large"])
        if editor == "jar u":
            assert npz.metadata == {}
        elif is_long and editor not in IN_PLACE:
            with pytest.raises(ZipFormatError, match=r"metadata.*npzkit\.repair"):
                dict(npz.metadata)
            assert not npz.verify().ok
        else:
            assert npz.metadata == metadata


# -- edits in turn -----------------------------------------------------------


def append(path, rng):
    """npzkit adds, replaces, removes or renames an array, or changes metadata."""
    with npzkit.NpzWriter(path, "a", auto_repack=rng.random() < 0.2) as w:
        kind = rng.randrange(5)
        if kind == 0 and w.files:
            del w[rng.choice(w.files)]
        elif kind == 1 and w.files:
            w.rename(rng.choice(w.files), f"renamed{rng.randrange(10**6)}")
        elif kind == 2:
            w.metadata["n"] = "m" * rng.randrange(40)
        else:
            w.add(rng.choice("abcdef"), np.arange(rng.randrange(200)), overwrite=True)
            w.commit()
            w.add(rng.choice("abcdef"), np.ones(3) * rng.random(), overwrite=True)


def change_comment(path, rng):
    """zipfile gives it a shorter or a longer comment, or none."""
    with zipfile.ZipFile(path, "a") as z:
        size = len(z.comment)
        # Never the size again that npzkit wrote: see test_a_comment_of_the_same_size.
        z.comment = b"c" * rng.choice((0, max(size - 1, 0), size + 100))


def change_nothing(path, rng):
    """zipfile opens it for appending."""
    with zipfile.ZipFile(path, "a"):
        pass


def write_directory_again(path, rng):
    """zipfile writes the directory again, in the same place, with the comment that it had."""
    with zipfile.ZipFile(path, "a") as z:
        z.comment = z.comment


def add_by_zipfile(path, rng):
    """zipfile adds members, over the directory."""
    with zipfile.ZipFile(path, "a", rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))) as z:
        for _ in range(rng.randrange(1, 3)):
            z.writestr(f"z{rng.randrange(10**6)}.npy", npy(np.arange(rng.randrange(50))))


def _run(path, *command, stdin=None):
    before = path.read_bytes()
    done = subprocess.run(
        command, cwd=path.parent, input=stdin, capture_output=True, check=False, timeout=60
    )
    # zip answers 12 if there is nothing to do. 7-Zip answers 2 if the first member is one that is
    # no longer listed: it edits nothing.
    assert done.returncode in (0, 2, 12), (command, done.stdout, done.stderr)
    assert done.returncode != 2 or (command[0] == "7z" and path.read_bytes() == before), done


def _file(path, rng):
    name = f"{rng.choice('abcdef')}.npy"
    np.save(path.parent / name, np.full(rng.randrange(1, 60), rng.random()))
    return name


def zip_comment(path, rng):
    _run(path, "zip", "-q", "-z", path.name, stdin=b"x" * rng.randrange(40) + b"\n.\n")


def zip_delete(path, rng):
    _run(path, "zip", "-q", "-d", path.name, f"{rng.choice('abcdef')}.npy")


def zip_adjust(path, rng):
    _run(path, "zip", "-q", "-A", path.name)


def zip_update(path, rng):
    _run(path, "zip", "-q", rng.choice(("-u", "-g", "-0")), path.name, _file(path, rng))


def seven_add(path, rng):
    _run(path, "7z", rng.choice("au"), "-bd", "-tzip", path.name, _file(path, rng))


def seven_delete(path, rng):
    _run(path, "7z", "d", "-bd", "-tzip", path.name, f"{rng.choice('abcdef')}.npy")


def seven_rename(path, rng):
    name = f"r{rng.randrange(10**6)}.npy"
    _run(path, "7z", "rn", "-bd", "-tzip", path.name, f"{rng.choice('abcdef')}.npy", name)


EDITS = {
    None: [
        append, append, append, change_comment, change_nothing, write_directory_again,
        add_by_zipfile,
    ],
    "zip": [zip_comment, zip_delete, zip_adjust, zip_update],
    "7z": [seven_add, seven_delete, seven_rename],
}  # fmt: skip


def begin(path, rng):
    arrays = {key: np.arange(rng.randrange(1, 300)) for key in rng.sample("abcdef", 3)}
    kind = rng.randrange(4)
    if kind == 0:
        np.savez(path, **arrays)
    elif kind == 1:
        npzkit.save(path, arrays, metadata={"step": rng.randrange(1000)})
    else:
        npzkit.save(path, arrays, compression=rng.choice(("stored", "deflated")))


# -- what must hold ----------------------------------------------------------


def check(path, told):
    """Both have the same keys and arrays, and npzkit finds no fault."""
    with npzkit.open(path) as npz, np.load(path) as theirs:
        assert npz.files == theirs.files, told
        assert npz.verify().ok, told
        dict(npz.metadata)
        for key in npz.files:
            assert np.array_equal(npz[key], theirs[key]), told


@pytest.mark.slow
@pytest.mark.parametrize("program", EDITS)
def test_edits_in_turn(tmp_path, program):
    """After each edit, by whichever program, both show the same; npzkit appends to all of them."""
    if program is not None and shutil.which(program) is None:
        pytest.skip(f"{program} is not installed")
    edits = EDITS[None] if program is None else [append, append, *EDITS[program], add_by_zipfile]
    for seed in range(COUNT):
        rng, path = random.Random(seed), tmp_path / f"{seed}.npz"
        begin(path, rng)
        told = [f"seed {seed}"]
        for edit in rng.choices(edits, k=rng.randrange(2, 6)):
            with np.load(path) as npz:
                is_empty = not npz.files
            # Programs delete the file, or refuse it, if it has no members.
            if is_empty and edit is not append:
                continue
            before = path.read_bytes()
            edit(path, rng)
            told.append(edit.__name__)
            if not path.exists():
                path.write_bytes(before)
            check(path, told)
        append(path, rng)
        check(path, [*told, "append"])
        path.unlink()


def test_a_comment_of_the_same_size(tmp_path):
    """A comment that another program changed to one of the same size cannot be told from damage.

    The arrays are read. The metadata is an error that names repair, and a writer refuses the file.
    """
    path = tmp_path / "a.npz"
    npzkit.save(path, {"x": np.arange(3)}, metadata={"step": 1})
    with zipfile.ZipFile(path, "a") as z:
        z.comment = z.comment.replace(b"1", b"2")
    before = path.read_bytes()
    with npzkit.open(path) as npz, np.load(path) as theirs:
        assert npz.files == theirs.files
        assert np.array_equal(npz["x"], theirs["x"])
        with pytest.raises(ZipFormatError, match=r"metadata is damaged.*npzkit\.repair"):
            dict(npz.metadata)
        assert not npz.verify().ok
    with pytest.raises(ZipFormatError, match="metadata is damaged"):
        npzkit.NpzWriter(path, "a")
    assert path.read_bytes() == before


def test_a_directory_entry_of_the_same_size(tmp_path):
    """Likewise an entry that another program changed in its place: repair saves the arrays."""
    path, output = tmp_path / "a.npz", tmp_path / "b.npz"
    npzkit.save(path, {"x": np.arange(3)})
    with zipfile.ZipFile(path, "a") as z:
        z.infolist()[0].external_attr = 0o640 << 16
        z.comment = z.comment
    with pytest.raises(ZipFormatError, match=r"directory is damaged.*npzkit\.repair"):
        npzkit.open(path)
    npzkit.repair(path, output)
    with npzkit.open(output) as npz, np.load(path) as theirs:
        assert npz.files == theirs.files == ["x"]
        assert np.array_equal(npz["x"], np.arange(3))
