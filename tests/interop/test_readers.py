"""Programs in many languages find in npzkit's files what was saved: all of it and nothing else.

Each program is started once, for all files. Those in other languages are in `readers`: they get the
files as arguments and print a line for each member. A program that is not
installed is skipped. The first table of `npzkit/guide/format-programs.md` names them all.
"""

from __future__ import annotations

import functools
import io
import itertools
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

import npzkit
import numpy as np
import pytest
from forge import npy
from npzkit import checkpoint

from tables import each_row

READERS_FOLDER = Path(__file__).parent / "readers"
ARRAYS = {
    "x": np.arange(9),
    "größe": np.asfortranarray(np.linspace(0, 1, 6, dtype="f4").reshape(2, 3)),
    "a/b": np.ones((4, 1), "u1"),
    "large": np.cumsum(np.random.default_rng(0).integers(-3, 4, 100_000)),  # several chunks
}
LONG = {"long": "m" * 200_000}

# -- archives ------------------------------------------------------------------------------
# Each function writes files to a folder and returns what the last commit has, as keys and arrays.
# Where that is another one than the first commit, both are returned.


def of_numpy(folder):
    np.savez(folder / "a.npz", **ARRAYS)
    return ARRAYS.items()


def stored(folder):
    npzkit.save(folder / "a.npz", ARRAYS, metadata={"step": 7})
    return ARRAYS.items()


def deflated(folder):
    npzkit.save(folder / "a.npz", ARRAYS, compression="deflated", metadata={"step": 7})
    return ARRAYS.items()


def zstd(folder):
    npzkit.save(folder / "a.npz", ARRAYS, compression="zstd")
    return ARRAYS.items()


def one_array(folder):
    npzkit.save(folder / "a.npz", {"x": ARRAYS["x"]})
    return [("x", ARRAYS["x"])]


def three_hundred_arrays(folder):
    arrays = {f"k{number}": np.full(number % 7, number) for number in range(300)}
    npzkit.save(folder / "a.npz", arrays)
    return arrays.items()


def attributes(folder):
    with npzkit.NpzWriter(folder / "a.npz", compression="deflated") as w:
        for key, array in ARRAYS.items():
            w.add(key, array, attrs={"unit": "m", "text": "ü" * 500})
    return ARRAYS.items()


def long_metadata(folder):
    npzkit.save(folder / "a.npz", ARRAYS, metadata=LONG)
    return ARRAYS.items()


def savez(folder):
    npzkit.savez(folder / "a.npz", **ARRAYS)
    return ARRAYS.items()


def savez_compressed(folder):
    npzkit.savez_compressed(folder / "a.npz", **ARRAYS)
    return ARRAYS.items()


def filled_by_parts(folder):
    rows = np.arange(80_000.0).reshape(-1, 8)
    with npzkit.NpzWriter(folder / "a.npz", compression="deflated") as w:
        with w.create("known", rows.shape, rows.dtype, compression="stored") as dst:
            dst[5000:] = rows[5000:]
            dst[:5000] = rows[:5000]
        with w.create("unknown", (None, 8), rows.dtype) as dst:
            dst.append(rows[:5000])
            dst.append(rows[5000:])
    return [("known", rows), ("unknown", rows)]


def changed_through_a_map(folder):
    npzkit.save(folder / "a.npz", ARRAYS)
    with npzkit.open(folder / "a.npz") as npz:
        mapped = npz.memmap("large", mode="r+")
        mapped[:] += 1
        mapped.flush()
    return (ARRAYS | {"large": ARRAYS["large"] + 1}).items()


def tree(folder):
    npzkit.save(folder / "a.npz", {"model": {"w": ARRAYS["large"]}, "all": [None, 0.1, np.ones(3)]})
    return [("model/w", ARRAYS["large"]), ("all/2", np.ones(3))]


def shards(folder):
    large = ARRAYS["large"]
    for begin in (0, 50_000):
        with npzkit.ShardedWriter(folder / "shards", attempt="1") as w:
            part = large[begin : begin + 50_000]
            w.add("large", part, offset=(begin,), global_shape=large.shape)
    npzkit.ShardedWriter(folder / "shards", attempt="1", metadata=LONG).commit()
    return [("large", large[:50_000]), ("large", large[50_000:])]


def checkpoints(folder):
    tree = {"frozen": {"w": ARRAYS["large"]}, "head": [np.ones(3), 0.1]}
    for name, options in (("file", {}), ("folder", {"frozen": "frozen/*"})):
        with checkpoint.CheckpointStore(folder / name, **options) as store:
            store.save(1, tree, metrics={"loss": 0.3})
    return 2 * [("frozen/w", ARRAYS["large"]), ("head/0", np.ones(3))]


def repacked(folder):
    appended(folder)
    npzkit.repack(folder / "a.npz")
    return (ARRAYS | {"new": np.arange(5)}).items()


def converted(folder):
    with npzkit.ShardedWriter(folder / "shards", attempt="1") as w:
        w.add("large", ARRAYS["large"])
    npzkit.ShardedWriter(folder / "shards", attempt="1").commit()
    npzkit.convert(folder / "shards", folder / "a.npz", compression="deflated")
    shutil.rmtree(folder / "shards")
    return [("large", ARRAYS["large"])]


def edited_before_the_first_commit(folder):
    """Arrays are removed, renamed and replaced."""
    with npzkit.NpzWriter(folder / "a.npz") as w:
        for key in ("removed", "old", "x"):
            w[key] = np.zeros(9)
        del w["removed"]
        w.rename("old", "new")
        w.add("x", ARRAYS["x"], overwrite=True)
        w["last"] = np.ones(2)
    return [("new", np.zeros(9)), ("x", ARRAYS["x"]), ("last", np.ones(2))]


# An append leaves the first commit where it was: what goes from front to back reads that one.


def appended(folder):
    npzkit.save(folder / "a.npz", ARRAYS)
    edit(folder / "a.npz", lambda w: w.add("new", np.arange(5)))
    return ARRAYS.items(), (ARRAYS | {"new": np.arange(5)}).items()


def three_appends(folder):
    """Deflated, with long metadata; arrays are replaced, removed and renamed."""
    path = folder / "a.npz"
    npzkit.save(path, ARRAYS, compression="deflated")
    edit(path, lambda w: (w.add("a/b", np.ones(4), overwrite=True), w.metadata.update(LONG)))
    edit(path, lambda w: w.add("new", ARRAYS["large"], compression="deflated"))
    edit(path, lambda w: (w.rename("a/b", "b"), w.__delitem__("größe")))
    last = {key: ARRAYS[key] for key in ("x", "large")}
    return ARRAYS.items(), (last | {"new": ARRAYS["large"], "b": np.ones(4)}).items()


def appended_after_padding(folder):
    """The end of the first commit is so close to the end of its sector that zeros follow."""
    path = folder / "a.npz"
    for count in itertools.count(1):
        arrays = {"x": np.arange(count, dtype="u1"), "y": np.ones(3)}
        npzkit.save(path, arrays)
        if 0 < -path.stat().st_size % 512 < 100:
            break
    edit(path, lambda w: w.add("new", np.arange(5)))
    edit(path, lambda w: w.metadata.update(n=1))
    return arrays.items(), (arrays | {"new": np.arange(5)}).items()


def appended_to_many(folder):
    arrays = {f"k{number}": np.full(3, number) for number in range(70)}
    npzkit.save(folder / "a.npz", arrays)
    edit(folder / "a.npz", lambda w: w.add("k5", np.zeros(2), overwrite=True))
    return arrays.items(), (arrays | {"k5": np.zeros(2)}).items()


def appended_to_numpys(folder):
    np.savez(folder / "a.npz", **ARRAYS)
    edit(folder / "a.npz", lambda w: w.add("new", np.arange(5)))
    return ARRAYS.items(), (ARRAYS | {"new": np.arange(5)}).items()


def edit(path, change):
    with npzkit.NpzWriter(path, "a", auto_repack=False) as w:
        change(w)


ARCHIVES = [
    of_numpy, stored, deflated, zstd, one_array, three_hundred_arrays, attributes, long_metadata,
    savez, savez_compressed, filled_by_parts, changed_through_a_map, tree, shards, checkpoints,
    repacked, converted, edited_before_the_first_commit, appended, three_appends,
    appended_after_padding, appended_to_many, appended_to_numpys,
]  # fmt: skip


class Made(NamedTuple):
    """The files of all archives: where, what each archive has first and last, and which files."""

    root: Path
    commits: dict[str, tuple[Any, Any]]
    files: dict[str, list[str]]


@pytest.fixture(scope="session")
def made(tmp_path_factory) -> Made:
    made = Made(tmp_path_factory.mktemp("archives"), {}, {})
    for make in ARCHIVES:
        name = make.__name__
        folder = made.root / name
        folder.mkdir()
        commits = make(folder)
        made.commits[name] = commits if isinstance(commits, tuple) else (commits, commits)
        # The index of sharded archives has arrays of its own.
        paths = [path for path in sorted(folder.rglob("*.npz")) if path.name != "index.npz"]
        made.files[name] = [path.relative_to(made.root).as_posix() for path in paths]
    return made


# -- readers in Python, and programs with one command --------------------------------------
# Each function gets a file and yields names and bytes; programs that only list yield names and None.


def by_numpy(path):
    with np.load(path) as npz:
        for key in npz.files:
            yield f"{key}.npy", npy(npz[key])


def by_zipfile(path, module=zipfile):
    with module.ZipFile(path) as archive:
        for name in archive.namelist():
            yield name, archive.read(name)


def by_zipfile_of_3_14(path):
    return by_zipfile(path, pytest.importorskip("backports.zstd.zipfile"))


def by_stream_unzip(path):
    stream_unzip = pytest.importorskip("stream_unzip").stream_unzip
    with path.open("rb") as file:
        for name, _, parts in stream_unzip(iter(lambda: file.read(50_000), b"")):
            yield name.decode(), b"".join(parts)


def like_cnpy(path):
    """Read local header after local header until something else comes, each member an array."""
    with path.open("rb") as file:
        while (header := file.read(30)).startswith(b"PK\3\4"):
            method, compressed_size, _, name_size, extra_size = struct.unpack("<8xH8xIIHH", header)
            name = file.read(name_size).decode()
            file.read(extra_size)
            array = file
            if method == zipfile.ZIP_DEFLATED:
                inflate = zlib.decompressobj(-zlib.MAX_WBITS)
                array = io.BytesIO(inflate.decompress(file.read(compressed_size)))
                assert inflate.eof and not inflate.unused_data
            yield name, npy(np.lib.format.read_array(array))


def output_of(*command, **options):
    """Return what a program prints, to its standard output and otherwise; it may not fail."""
    environment = {**os.environ, "LC_ALL": "C.UTF-8"}
    options = {"input": b"", "capture_output": True, "env": environment, **options}
    done = subprocess.run(command, timeout=300, check=False, **options)
    told = done.stderr.decode(errors="replace")
    assert done.returncode == 0, told
    return done.stdout.decode(), told


def quiet_output_of(program, *arguments, **options):
    """Return what a program prints; it may not warn."""
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed")
    printed, told = output_of(program, *arguments, **options)
    assert "warning" not in (printed + told).lower(), printed + told
    return printed


def extracted(*command, by_pipe=False):
    """Return the reader that extracts with a command, to which the file or a pipe is added."""

    def read(path):
        with tempfile.TemporaryDirectory() as folder:
            if by_pipe:
                quiet_output_of(*command, cwd=folder, input=path.read_bytes())
            else:
                quiet_output_of(*command, str(path), cwd=folder)
            for file in filter(Path.is_file, Path(folder).rglob("*")):
                yield file.relative_to(folder).as_posix(), file.read_bytes()

    return read


def by_zip(path):
    """Test with zip, and list."""
    assert quiet_output_of("zip", "-T", str(path)).endswith("OK\n")
    for name in re.findall("^  (.+)$", quiet_output_of("zip", "-sf", str(path)), re.MULTILINE):
        yield re.sub("#U(....)", lambda found: chr(int(found[1], 16)), name), None


# -- all readers ---------------------------------------------------------------------------


class Reader(NamedTuple):
    """A program that reads zip archives: a function of a file, or the name of a source file.

    The source file, in the folder `readers`, has the code of one reader or several.
    """

    read: Callable[[Path], Iterator[tuple[str, bytes | None]]] | str
    finds: Literal["last", "first", "each"] = "last"
    """The commits that it sees: what goes from front to back sees the first, or each of them."""
    knows_zstd: bool = False


COMMANDS = {
    "Reader.java": ("javac", ["java", "{source}"]),
    "reader.cpp": ("c++", ["{folder}/reader"]),
    "read.mjs": ("node", ["node", "{source}"]),
    "reader.go": ("go", ["go", "run", "{source}"]),
    "reader.php": ("php", ["php", "{source}"]),
    "reader.pl": ("perl", ["perl", "{source}"]),
}
"""Of each source file, the program that must be installed, and the command."""
IS_NEW = sys.version_info >= (3, 14)
READERS = {
    "np.load": Reader(by_numpy, knows_zstd=IS_NEW),
    "zipfile": Reader(by_zipfile, knows_zstd=IS_NEW),
    "zipfile of 3.14": Reader(by_zipfile_of_3_14, knows_zstd=True),
    "stream-unzip": Reader(by_stream_unzip, finds="first"),
    "like cnpy": Reader(like_cnpy, finds="first"),
    "like cnpy, in C++": Reader("reader.cpp", finds="first"),
    "unzip": Reader(extracted("unzip", "-q")),
    "zip -T": Reader(by_zip),
    "7z": Reader(extracted("7z", "x", "-bd"), knows_zstd=True),
    "bsdtar": Reader(extracted("bsdtar", "-xf"), knows_zstd=True),
    "bsdtar, pipe": Reader(extracted("bsdtar", "-xf", "-", by_pipe=True), "first", knows_zstd=True),
    "jar": Reader("Reader.java"),
    "Java ZipFile": Reader("Reader.java"),
    "Java ZipInputStream": Reader("Reader.java", finds="first"),
    "fflate": Reader("read.mjs"),
    "fflate stream": Reader("read.mjs", finds="each"),
    "JSZip": Reader("read.mjs"),
    "adm-zip": Reader("read.mjs"),
    "yauzl": Reader("read.mjs"),
    "unzipper": Reader("read.mjs"),
    "unzipper stream": Reader("read.mjs", finds="first"),
    "zip.js strict": Reader("read.mjs"),
    "Go archive/zip": Reader("reader.go"),
    "PHP ZipArchive": Reader("reader.php"),
    "Perl Archive::Zip": Reader("reader.pl"),
    "Perl IO::Uncompress::Unzip": Reader("reader.pl", finds="first"),
}


@pytest.fixture(scope="session")
def lines(made, tmp_path_factory) -> Callable[[str], list[list[str]] | str]:
    """Call with a source file: the lines that its program prints of all files, or why not."""

    @functools.cache
    def lines(source):
        program, command = COMMANDS[source]
        if shutil.which(program) is None:
            return f"{program} is not installed"
        names = {"source": str(READERS_FOLDER / source), "folder": tmp_path_factory.mktemp("built")}
        if source == "reader.cpp":
            build = ["c++", "-O1", names["source"], "-o", f"{names['folder']}/reader", "-lz"]
            built = subprocess.run(build, capture_output=True, text=True, check=False)
            if "zlib.h" in built.stderr:
                return "zlib's header is not installed"
            assert built.returncode == 0, built.stderr
        words = [word.format(**names) for word in command]
        printed, _ = output_of(*words, *itertools.chain(*made.files.values()), cwd=made.root)
        return [line.split("\t") for line in printed.splitlines()]

    return lines


def rows(name, files, made, lines):
    """Return name, size and CRC-32 of each member that a reader finds in files."""
    read = READERS[name].read
    if not isinstance(read, str):
        found = itertools.chain.from_iterable(read(made.root / file) for file in files)
        return [row(*member) for member in found]
    printed = lines(read)
    if isinstance(printed, str):
        pytest.skip(printed)
    if [name, "missing"] in printed:
        pytest.skip(f"{name} is not installed")
    found = [values[2:] for values in printed if values[0] == name and values[1] in files]
    assert all(len(values) == 3 for values in found), found
    return [(name, size and int(size), crc and int(crc)) for name, size, crc in found]


def row(name, data):
    return (name, None, None) if data is None else (name, len(data), zlib.crc32(data))


@pytest.mark.slow
@each_row("archive", [make.__name__ for make in ARCHIVES])
@pytest.mark.parametrize("name", READERS)
def test_each_reader_finds_what_was_saved(name, archive, made, lines):
    """It finds the arrays that were saved, all of them and nothing else."""
    if archive == "zstd" and not READERS[name].knows_zstd:
        pytest.skip("it does not know Zstandard")
    found = rows(name, made.files[archive], made, lines)
    first, last = (
        sorted(row(f"{key}.npy", npy(array)) for key, array in arrays)
        for arrays in made.commits[archive]
    )
    if READERS[name].finds == "each" and first != last:
        # Also what was written in between.
        assert set(found) >= {*first, *last}
    elif not any(size for _, size, _ in found):
        # It only lists.
        assert sorted(name for name, *_ in found) == [name for name, *_ in last]
    else:
        assert sorted(found) == (last if READERS[name].finds == "last" else first)


@pytest.mark.parametrize("metadata", [{}, {"step": 7}, LONG], ids=["none", "short", "long"])
def test_no_arrays(metadata, tmp_path):
    """np.load and zipfile read a file without arrays, whatever metadata it has."""
    npzkit.save(tmp_path / "a.npz", {}, metadata=metadata)
    assert [*by_numpy(tmp_path / "a.npz"), *by_zipfile(tmp_path / "a.npz")] == []
    with npzkit.open(tmp_path / "a.npz") as npz:
        assert npz.metadata == metadata


def test_the_page_names_each_reader():
    """The guide's table of readers has each, in the row of what it finds."""
    page = (Path(npzkit.__file__).parent / "guide" / "format-programs.md").read_text(
        encoding="utf-8"
    )
    rows = re.findall(r"^\| (last|first|each) commit.*? \| (.*) \|$", page, re.MULTILINE)
    listed = {
        name: finds for finds, names in rows for name in re.findall(r"(?:^|; )(.*?) \(", names)
    }
    assert listed == {name: reader.finds for name, reader in READERS.items()}
