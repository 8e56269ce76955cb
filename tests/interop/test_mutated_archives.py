"""Damaged archives of several commits: what unzip and 7-Zip list is what npzkit lists."""

from __future__ import annotations

import random
import re
import shutil
import subprocess
import warnings

import npzkit
import pytest
from deep import amount
from differences import Case, explain
from mutate_bytes import mutate_bytes
from mutate_zip import mutate_zip
from seeds import seeds_of

COUNT = amount(20, 1500)
SEEDS = tuple(seed for seed in seeds_of("append") if seed.count(b"PK\5\6") > 1)


def by_unzip(path) -> list[str] | None:
    found = subprocess.run(["unzip", "-Z1", path], capture_output=True, check=False)
    # 1: there are bytes behind the end, and all else is well.
    return found.stdout.decode("latin1").splitlines() if found.returncode <= 1 else None


def by_7z(path) -> list[str] | None:
    command = ["7z", "l", "-ba", "-slt", "-tzip", path]
    found = subprocess.run(command, capture_output=True, check=False)
    if found.returncode:
        return None
    return re.findall("^Path = (.*)$", found.stdout.decode("latin1"), re.MULTILINE)


def mutated(rng: random.Random) -> bytes:
    data = rng.choice(SEEDS)
    if rng.random() < 0.5:
        size = rng.choice((30, 100, 200))
        return data[:-size] + mutate_bytes(data[-size:], rng, SEEDS)
    return mutate_zip(data, rng, SEEDS)


def is_plain(entry) -> bool:
    """Whether every program spells the name alike: none has its own ways with an odd or a second one."""
    return bool(re.fullmatch(r"[\w.-]+", entry.name, re.ASCII)) and b"up" not in entry.extra


@pytest.mark.slow
@pytest.mark.parametrize(("program", "read"), [("unzip", by_unzip), ("7z", by_7z)])
def test_what_is_opened_is_listed_alike(tmp_path, program, read):
    """An older state, or another archive, is never what npzkit reads where another program reads the newest."""
    if not shutil.which(program):
        pytest.skip(f"{program} is not installed")
    rng, path, compared = random.Random(7), tmp_path / "a.zip", 0
    while compared < COUNT:
        data = mutated(rng)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                npz = npzkit.open(data)
            except npzkit.NpzkitError:
                continue
        if not all(map(is_plain, npz._archive.entries.values())):
            continue
        path.write_bytes(data)
        theirs = read(path)
        compared += 1
        if theirs is None or set(theirs) == set(npz._archive.entries):
            continue
        # 7-Zip shows an old directory if the file's first member is not listed as its header says.
        # If it walks the local headers instead, it lists members that no directory lists.
        has_hidden = any(name.startswith(".npzkit") for name in theirs)
        is_old = program == "7z" and (has_hidden or _hides_first(npz, data))
        is_torn = npz._archive.directory.end_offset < len(data)
        if not is_old and not (is_torn and explain("torn", Case(data, npz, theirs))):
            pytest.fail(f"npzkit lists {list(npz._archive.entries)}, {program} {theirs} ({data!r})")


def _hides_first(npz: npzkit.NpzFile, data: bytes) -> bool:
    name = data[30 : 30 + int.from_bytes(data[26:28], "little")]
    entries = npz._archive.entries.values()
    listed = {e.header_offset: (e.raw_name, e.crc32, e.flags & 0xFFFF) for e in entries}
    crc, flags = (int.from_bytes(data[place], "little") for place in (slice(14, 18), slice(6, 8)))
    return listed.get(0) != (name, crc, flags)
