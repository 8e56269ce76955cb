"""Messages of the library in the terms of the command line: options instead of Python.

Owns the option or command for each Python expression. Advice that needs Python
is removed.
"""

from __future__ import annotations

import copy
import re

from npzkit.errors import NpzkitError

_WORDS = (
    (r"npzkit\.repair\([^()]*\), at a prompt npzkit repair FILE -o OTHER",
     "npzkit repair FILE -o OTHER"),
    (r"partial=True \(--partial\)", "--partial"),
    (r"npzkit\.repair\(path\)", "npzkit repair FILE"),
    (r"npzkit\.repair\b(\([^()]*\))?", "npzkit repair FILE -o OTHER"),
    (r"npzkit\.repack\([^()]*compression='stored'[^()]*\)", "npzkit repack FILE -c stored"),
    (r"npzkit\.repack\(url, path\)", "npzkit repack URL -o PATH"),
    (r"npzkit\.repack\(path, url\)", "npzkit repack PATH -o URL"),
    (r"npzkit\.repack\b(\([^()]*\))?", "npzkit repack FILE"),
    (r"npzkit\.verify\b(\([^()]*\))?", "npzkit verify FILE"),
    (r"compression=None, seekable=False", "--no-seekable without --compression"),
    (r"compression='(stored|deflated)'", r"--compression \1"),
    (r"when allow_pickle=False", "without --allow-pickle"),
    (r"allow_pickle=True", "--allow-pickle"),
    (r"overwrite=True to add\(\)", "--overwrite"),
    (r"(partial|uncommitted|overwrite)=True", r"--\1"),
    (r"seekable=False", "--no-seekable"),
    (r"Read it completely: npz\.read\(key\), with", "Show all of it, with"),
    (r"Remove it first with del", "Remove it first: npzkit rm FILE KEY"),
    (r'another key, NpzWriter\(path, "a"\)\.rename\(key, new\)',
     "another key by npzkit mv FILE KEY NEW"),
    (r"Save numpy\.lib\.recfunctions\.repack_fields\(array\), or each", "Save each"),
    (r"Read it with npzkit\.load or np\.load",
     "Make an archive of it: npzkit pack NEW.npz FILE"),
    (r"Read it with h5py", "Convert it: npzkit convert FILE NEW.npz"),
    (r"\bnp\.load\b", "NumPy"),
    (r"npzkit\.(convert|pack)\b", r"npzkit \1"),
    (r"a pair \(key, path\)", "KEY=PATH"),
    (r"skip=True", "--skip"),
    (r" To begin a new run, catch NoCheckpointError\.", ""),
    (r"npzkit\.checkpoint\.CheckpointStore\(path\)", "npzkit ckpt ls FOLDER"),
    (r"store\.steps lists them", "npzkit ckpt ls FOLDER lists them"),
    (r"format=\"npy\"", "--format npy"),
    (r"zarr_format=(\d)", r"--zarr-format \1"),
)  # fmt: skip
"""Patterns of Python expressions, each with its replacement at a prompt."""

_PYTHON = re.compile(
    r"\b[a-z_]+=[^=\s]|\w\(|\b(?:npzkit|npz|np|numpy|array|io)\.\w|\bnpz\[|\bLimits\b|\bNpz[A-Z]\w*"
    r"|\bmode ['\"]|\bfile object\b|\bwith block\b"
)
"""Matches text that is meant for Python."""
_JOINTS = re.compile(r"(\. |; |, or )")
"""Separates pieces of advice that are independent of each other."""


def at_prompt(text: str) -> str:
    """Return a text with options and commands instead of Python expressions.

    Examples
    --------
    >>> at_prompt("reading it needs allow_pickle=True")
    'reading it needs --allow-pickle'
    """
    for word, replacement in _WORDS:
        text = re.sub(word, replacement, text)
    return text


def advice_at_prompt(text: str) -> str:
    """Return the advice that can be followed at a prompt, or an empty string.

    Examples
    --------
    >>> advice_at_prompt("Pass allow_pickle=True only if you trust the file.")
    'Pass --allow-pickle only if you trust the file.'
    >>> advice_at_prompt("Download it again; npz.read(key, verify=False) skips the check.")
    'Download it again.'
    """
    text = at_prompt(text)
    if not is_python(text):
        return text
    parts = _JOINTS.split(text.removesuffix("."))
    pairs = zip(parts[::2], ["", *parts[1::2]], strict=True)
    kept = [(joint, part) for part, joint in pairs if not is_python(part)]
    if not kept:
        return ""
    first = kept[0][1]
    rest = "".join(joint + part for joint, part in kept[1:])
    return f"{first[0].upper()}{first[1:]}{rest}."


def is_python(text: str) -> bool:
    """Return whether a text has anything that only Python understands."""
    return _PYTHON.search(text) is not None


def message_of(error: Exception) -> str:
    """Return the message of an error, in the terms of the command line."""
    if not isinstance(error, NpzkitError):
        return str(error)
    shown = copy.copy(error)
    if isinstance(shown.found, bytes):
        # Bytes of a file help nobody at a prompt.
        shown.found = shown.expected = None
    shown.what = at_prompt(error.what)
    shown.remedy = advice_at_prompt(error.remedy or "")
    return str(shown)
