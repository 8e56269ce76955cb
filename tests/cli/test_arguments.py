"""Any arguments at all: a command does its work, or says in a line what is wrong with them."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import zipfile

import click
import npzkit
import numpy as np
import pytest
from deep import amount
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from npzkit.cli import commands

of_text = pytest.mark.skipif(os.name == "nt", reason="names of files may have it on Windows")
EXAMPLES = amount(20 if os.name == "nt" else 50, 3000)
"""Command lines that are tried; ten thousand take a minute."""

NEVER = {"view"}
"""They run for as long as they are asked to; what they refuse is below."""


OF_MANY = {"diff", "ls", "repack", "repair", "verify"}
"""They say what is wrong with each of several files, or arrays."""


def make_files() -> dict[str, bytes]:
    """Return small files of every kind that a command reads, sound ones and others."""

    def made(save, *args, **options) -> bytes:
        stream = io.BytesIO()
        save(stream, *args, **options)
        return stream.getvalue()

    arrays = {
        "x": np.arange(6.0).reshape(2, 3), "a/b": np.zeros((0, 3), "i4"), "s": np.array("text"),
        "t": np.zeros(3, [("a", "i4"), ("b", "f8", 2)]), "c": np.ones((2, 2, 3), "c8"),
        "m": np.array(["2020", "NaT"], "M8[D]"), "größe": np.array([np.nan, np.inf]),
    }  # fmt: skip
    archive = made(npzkit.save, arrays, metadata={"step": 1})
    damaged = bytearray(archive)
    damaged[archive.index(np.float64(5).tobytes())] ^= 0x55
    text = io.BytesIO()
    with zipfile.ZipFile(text, "w") as other:
        other.writestr("readme.txt", "text")
    return {
        "a.npz": archive, "b.npz": made(np.savez_compressed, x=arrays["x"], y=arrays["c"]),
        "damaged.npz": bytes(damaged), "torn.npz": archive + b"torn", "cut.npz": archive[:700],
        "objects.npz": made(np.savez, o=np.array([None, {}])), "text.npz": text.getvalue(),
        "empty.npz": b"", "page.npz": b"<html>", "x.npy": made(np.save, arrays["x"]),
        "bad.npy": b"\x93NUMPY\x01\x00v\x00{", "t.csv": b"a,b\n1,2\n", "bad.csv": b"1,2\n3\n\xff",
        "a.safetensors": b"\x00" * 9, "a.h5": b"", "a.mat": b"MATLAB", "a.zarr": b"",
    }  # fmt: skip


FILES = make_files()
FOLDERS = "folder", "empty"
KEYS = "x", "a/b", "s", "t", "c", "m", "größe", "o", "readme.txt", "nothing", "x.npy"
SLICES = (
    "::0", "0", "-1", ":2", "::-1", "...", "...,...", "[0,1]", "[9]", "[", "a", "b,0", "'a'",
    "1:2:3:4", "0,0,0,0", f"{10**17}:", f":{-10**17}", "1" * 30, "[]", "[0],[1]", "a,b", ",", "0x1",
)  # fmt: skip
NUMBERS = "0", "1", "-1", "64", "65", "1e9", "nan", "inf", "1" * 400, "-0", "٣", " 1", "0.5", "1_0"
WORDS = (
    "", " ", "-", "--", "-x", "--nothing", "--json", "--help", "=", "x=", "=x.npy", "k=x.npy",
    "k=a.npz", "a.npy=x.npy", "../x=x.npy", "/x=x.npy", "k=-", "new.npz", "new.h5", "new.zarr",
    "new.mat", "new.safetensors", "new/", "new.png", "new.svg", "new.nothing", "no/such/new.npz",
    "\x1b[31m", "a\nb", "a\0b", "\udcff", "\u202e", "\ud800", "日本語", "*", "[", "$HOME", "%s%n", "{}",
    "CON", "x" * 300, "a.npz/x", "a.npz:x",
)  # fmt: skip
TEXT = st.text(st.characters(exclude_characters="/\\.~"), max_size=8)
WORD = st.sampled_from([*FILES, *FOLDERS, *KEYS, *SLICES, *NUMBERS, *WORDS]) | TEXT


def values(parameter: click.Parameter) -> st.SearchStrategy[str]:
    """Return what may be given for an argument or an option: mostly what it wants."""
    kind = parameter.type
    if isinstance(kind, click.Choice):
        return st.sampled_from([str(choice) for choice in kind.choices]) | WORD
    if isinstance(kind, (click.types.IntParamType, click.types.FloatParamType)):
        return st.sampled_from(NUMBERS) | WORD
    name = parameter.name or ""
    if name in ("file", "files", "a", "b", "src"):
        return st.sampled_from([*FILES]) | WORD
    if name in ("key", "keys", "old", "new"):
        return st.sampled_from(KEYS) | WORD
    return st.sampled_from(SLICES) | WORD if name == "slice_" else WORD


@st.composite
def command_lines(draw: st.DrawFn) -> list[str]:
    """Return a command and arguments that fit its parameters more or less."""
    group = commands.npzkit_command
    name = draw(st.sampled_from(sorted(set(group.list_commands(None)) - NEVER)))  # type: ignore[arg-type]
    command = group.get_command(None, name)  # type: ignore[attr-defined,arg-type]
    line = [name]
    for parameter in command.params:
        if isinstance(parameter, click.Argument):
            count = draw(st.integers(0, 2)) if parameter.nargs == -1 else 1
            line += [draw(values(parameter)) for _ in range(count)]
        elif draw(st.integers(0, 3)) == 0:
            line.append(draw(st.sampled_from([*parameter.opts, *parameter.secondary_opts])))
            if not parameter.is_flag:
                line.append(draw(values(parameter)))
    if draw(st.integers(0, 9)) == 0:
        line.insert(draw(st.integers(0, len(line))), draw(WORD))
    return line


def refill(folder) -> None:
    """Make the folder what it was."""
    for path in sorted(folder.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
    for name, data in FILES.items():
        (folder / name).write_bytes(data)
    for name in FOLDERS:
        (folder / name).mkdir()
    (folder / "folder" / "x.npy").write_bytes(FILES["x.npy"])
    (folder / "folder" / "note.txt").write_bytes(b"text")


def run(line: list[str]) -> tuple[int, str, str]:
    """Run a command line here; return the code, and what it wrote to both streams."""
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8") for _ in range(2))
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b""), "utf-8"))
        code = commands.run(line)
    for stream in (out, err):
        stream.flush()
    texts = (stream.buffer.getvalue().decode() for stream in (out, err))  # type: ignore[attr-defined]
    return (code, *texts)


def check(line: list[str]) -> None:
    """Hold what a command line does against what every one of them must do."""
    code, out, err = run(line)
    told = [text for text in err.splitlines() if not text.startswith("npzkit: warning: ")]
    assert code in (0, 1, 2), code
    assert all(text.startswith("npzkit: ") for text in told), err
    assert all(text.isprintable() for text in err.splitlines()), err
    assert "Traceback" not in out + err
    if code == 2 and line:
        noted = [text for text in told if "skipped" in text or "left out" in text]
        is_of_many = line[0] in OF_MANY
        assert told or (is_of_many and out), "nothing was said"
        assert is_of_many or len(told) == len(noted) + 1, err
    if code == 1:
        assert out or told, "nothing was said"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(line=command_lines())
def test_any_arguments(tmp_path, monkeypatch, line):
    """Every command and option takes whatever comes: no trace, and a line that says what is wrong."""
    refill(tmp_path)
    with monkeypatch.context() as patch:
        patch.chdir(tmp_path)
        check(line)


@pytest.mark.parametrize(
    "line", [["ls", ""], ["convert", "a.npz", ""], ["extract", "a.npz", "-o", ""]]
)
def test_an_empty_name_is_seen(tmp_path, monkeypatch, line):
    """A message about an empty name shows that it is empty."""
    refill(tmp_path)
    monkeypatch.chdir(tmp_path)
    code, _, err = run(line)
    assert code == 2
    assert "''" in err or "is empty" in err


@pytest.mark.parametrize("argument", ["a\0b", pytest.param("\ud800", marks=of_text)])
def test_characters_that_no_argument_can_have(argument):
    """An argument that is not valid text is refused with one line."""
    for line in (["ls", argument], ["show", "a.npz", argument], ["pack", argument, "x.npy"]):
        code, out, err = run(line)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert "has a character that is not allowed" in err


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "line",
    [
        ["nothing"],
        ["--nothing"],
        [""],
    ],
)
def test_wrong_arguments_of_what_is_not_tried_above(tmp_path, monkeypatch, line):
    """What takes long, or no command at all, refuses in a line as well."""
    refill(tmp_path)
    monkeypatch.chdir(tmp_path)
    check(line)
