"""Messages at a prompt name options and commands, not Python."""

from __future__ import annotations

import copyreg
import os
import pickle
import zlib
from pathlib import Path

import npzkit
import numpy as np
import pytest
from npzkit.cli.messages import advice_at_prompt, is_python, message_of
from npzkit.errors import ALLOW_PICKLE, MemberNotFoundError, NpzkitError
from remedies import given_as_finding, given_as_remedy


@pytest.mark.slow
def test_no_advice_is_python():
    """Whatever the library advises, at a prompt it is a sentence without Python, or nothing."""
    advice = given_as_remedy(at_prompt=True)
    assert len(advice) > 120
    assert len([text for text in given_as_remedy() if is_python(text)]) > 60
    for text in advice:
        told = advice_at_prompt(text)
        assert not is_python(told), text
        assert "=True" not in told, text
        assert not told or told == text or (told[0].isupper() and told.endswith(".")), text
    # It is not left out because nobody said what it is called there.
    carried = ["skip=True", "npzkit.repair(path", "pass allow_pickle"]
    assert not [text for text in advice if any(words in text for words in carried)]


def test_no_finding_is_python():
    """What is reported and raised names options."""
    findings = given_as_finding()
    assert len(findings) > 8
    assert not [text for text in findings if is_python(text)]


def test_a_message_keeps_what_comes_from_a_file():
    """Keys, paths and values are shown as they are, and the error itself is not changed."""
    error = NpzkitError(
        "reading it needs " + ALLOW_PICKLE, path="npzkit.repair", key="allow_pickle=True",
        found="allow_pickle=True", remedy="Pass " + ALLOW_PICKLE + "; npz.read(key) reads it.",
    )  # fmt: skip
    assert message_of(error) == (
        "reading it needs --allow-pickle (in 'npzkit.repair', key 'allow_pickle=True'): "
        "found 'allow_pickle=True'. Pass --allow-pickle."
    )
    assert error.remedy.startswith("Pass allow_pickle=True")


def test_a_message_keeps_an_error_whose_copies_share_its_attributes(monkeypatch):
    """tblib registers such copies for every error once dask.distributed is imported."""

    error = NpzkitError("reading it needs " + ALLOW_PICKLE, remedy="Pass " + ALLOW_PICKLE + ".")
    twin = NpzkitError()
    twin.__dict__ = vars(error)
    monkeypatch.setitem(
        copyreg.dispatch_table, NpzkitError, lambda error: (twin.with_traceback, (None,))
    )
    assert message_of(error) == "reading it needs --allow-pickle. Pass --allow-pickle."
    assert error.remedy == "Pass allow_pickle=True."


@pytest.mark.parametrize("kind", [npzkit.errors.ArchiveLockedError, MemberNotFoundError])
def test_errors_of_two_kinds(kind):
    """Errors that are one of Python's too are told like others."""
    assert message_of(kind("it is so", path="a.npz", remedy="Wait.")) == (
        "it is so (in 'a.npz'). Wait."
    )


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_what_commands_print(cli, tmp_path, monkeypatch):
    """Damaged and strange files give messages of the command line, whatever command meets them."""
    monkeypatch.chdir(tmp_path)
    npzkit.save("a.npz", {"x": np.arange(1000), "y": np.arange(3)})
    whole = Path("a.npz").read_bytes()
    Path("cut.npz").write_bytes(whole[:-30])
    Path("half.npz").write_bytes(whole[:400])
    Path("torn.npz").write_bytes(whole + b"torn")
    Path("flipped.npz").write_bytes(whole[:500] + b"\xff" + whole[501:])
    Path("directory.npz").write_bytes(whole[:-60] + b"\xff" * 8 + whole[-52:])
    Path("page.npz").write_bytes(b"<html>")
    Path("pickle.npz").write_bytes(pickle.dumps([1]))
    np.save("x.npz.npy", np.arange(3))
    os.rename("x.npz.npy", "bare.npz")
    npzkit.save("objects.npz", {"x": np.array([1, "a"], object)}, allow_pickle=True)
    np.savez("plain.npz", x=np.arange(3))
    # As a flush of a map leaves it that was killed between two writes.
    flush = bytearray(whole)
    flush[400] ^= 1
    with npzkit.open("a.npz") as npz:
        start, end = 64, 64 + npz.info("x").nbytes + 128
    flush[14:18] = zlib.crc32(flush[start:end]).to_bytes(4, "little")
    Path("flush.npz").write_bytes(flush)
    np.save("objects.npy", np.array([{}], object))
    printed = []
    for path in sorted(Path().glob("*.npz")):
        for arguments in (
            ["ls", path], ["info", path], ["show", path, "x"], ["verify", "-v", path],
            ["diff", path, "a.npz"], ["repair", path], ["repair", path, "-o", "out/", "--overwrite"],
            ["repack", path, "-o", "out/", "--overwrite"], ["extract", path, "-o", "out"],
            ["add", path, "x=objects.npy"], ["rm", path, "no"], ["mv", path, "x", "y"],
            ["convert", path, "out.safetensors"],
        ):  # fmt: skip
            found = cli(*arguments)
            printed += [(arguments, line) for line in (found.out + found.err).splitlines()]
    assert not [(arguments, line) for arguments, line in printed if is_python(line)]
    assert any("--allow-pickle" in line for _, line in printed)
    assert any("npzkit repair half.npz -o OTHER --keep-partial mask" in line for _, line in printed)
