"""What commands say of errors: in a line, and in the terms of the command line.

Owns the remedies for errors of the system, and the exit codes. An `Advice` carries the words
of the command line; other advice that needs Python is removed.
"""

from __future__ import annotations

import contextlib
import difflib
import errno
import os
import re
import shlex
import subprocess
import sys
import warnings
from collections.abc import Iterable, Iterator
from typing import Any

import click

from npzkit.errors import MemberNotFoundError, NpzkitError, at_prompt, is_damage, printable, quoted
from npzkit.files.urls import local_path

_PYTHON = re.compile(
    r"\b[a-z_]+=[^=\s]|\w\(|\b(?:npzkit|npz|numpy|array|io)\.\w|\bnpz\[|\bLimits\b|\bNpz[A-Z]\w*"
    r"|\bmode ['\"]|\bfile object\b|\bwith block\b"
)
"""Matches text that is meant for Python."""
_COMMAND = re.compile(
    r"(?:npzkit \w+|(?:gzip|bzip2|xz|zstd) -dc|7z x|tar -xf)(?: (?:> )?(?:FILE|NEW\.npz|KEY)\b)+"
)
"""Matches commands on the file that a message is about."""
_GUESSES = {
    "check": "verify", "delete": "rm", "merge": "pack --join", "prune": "ckpt prune",
    "recover": "repair", "remove": "rm", "rename": "mv", "stats": "show --stats",
    "steps": "ckpt ls", "unpack": "extract",
}  # fmt: skip
"""What other programs call commands, and options that are another command's."""
_JOINTS = re.compile(r"(\. |; |, or )")
"""Separates pieces of advice that are independent of each other."""


def as_word(name: str) -> str:
    """Return a path as one word of a command."""
    return subprocess.list2cmdline([name]) if os.name == "nt" else shlex.quote(name)


def naming_file(text: str, path: str | os.PathLike[str] | None, key: str | None = None) -> str:
    """Return a text whose commands name a path that exists, a key, and a file that is new."""
    if path is None or not os.path.exists(path):
        return text
    name = os.fspath(path).rstrip("/" + os.sep)
    if name.endswith("."):
        # A full stop may follow, and the folder has no name here.
        name = os.path.abspath(name)
    stem = os.path.splitext(name)[0].removesuffix(".npz")
    new = f"{stem}.npz"
    while os.path.exists(new):
        new = f"{new.removesuffix('.npz')}.new.npz"
    words = {"FILE": as_word(name), "NEW.npz": as_word(new)}
    words["KEY"] = as_word(printable(key)) if key else "KEY"
    return _COMMAND.sub(
        lambda found: re.sub("FILE|NEW.npz|KEY", lambda word: words[word[0]], found[0]), text
    )


def advice_at_prompt(text: str) -> str:
    """Return the advice that can be followed at a prompt, or an empty string.

    Examples
    --------
    >>> advice_at_prompt("Download it again; npz.read(key, verify=False) skips the check.")
    'Download it again.'
    """
    text = at_prompt(text)
    if not is_python(text):
        return text
    parts = _JOINTS.split(text.removesuffix("."))
    pairs = zip(parts[::2], ["", *parts[1::2]], strict=True)
    kept = [(joint, part) for part, joint in pairs if part and not is_python(part)]
    if not kept:
        return ""
    first = kept[0][1]
    rest = "".join(joint + part for joint, part in kept[1:])
    return f"{first[0].upper()}{first[1:]}{rest}."


def is_python(text: str) -> bool:
    """Return whether a text has anything that only Python understands, and does not say so."""
    return _PYTHON.search(text) is not None and "in Python" not in text


def message_of(error: BaseException) -> str:
    """Return the message of an error, in the terms of the command line."""
    if not isinstance(error, NpzkitError):
        return str(error)
    # Not a copy: tblib, which dask.distributed imports, has copies share their attributes.
    shown = NpzkitError()
    vars(shown).update(vars(error))
    if isinstance(shown.found, bytes):
        # Bytes of a file help nobody at a prompt.
        shown.found = shown.expected = None
    shown.what = naming_file(at_prompt(error.what), error.path, error.key)
    shown.remedy = naming_file(advice_at_prompt(error.remedy or ""), error.path, error.key)
    return str(shown)


class Refusal(click.ClickException):
    """A request that cannot be fulfilled as it was made; the exit code is 2."""

    exit_code = 2


@contextlib.contextmanager
def refusing(more: str = "") -> Iterator[None]:
    """Raise Refusal for a file that already exists; `more` is what else to say of it.

    Invalid arguments, which raise ValueError, are wrong usage.
    """
    try:
        yield
    except FileExistsError as error:
        path = os.fsdecode(error.filename)
        text = f"{quoted(path)} already exists. Pass --overwrite to replace it."
        raise Refusal(f"{text} {more}".rstrip()) from error
    except ValueError as error:
        if isinstance(error, NpzkitError):
            raise
        raise click.UsageError(f"{at_prompt(error)}.") from error


@contextlib.contextmanager
def running_objects(allow_pickle: bool) -> Iterator[None]:
    """Report whatever the code of Python objects raises, if it may run, in a line."""
    try:
        yield
    except (click.ClickException, NpzkitError, OSError, MemoryError):
        raise
    except Exception as error:
        if not allow_pickle:
            raise
        told = f"{type(error).__name__}: {error}"
        if isinstance(error, UnicodeError):
            told = "Python 2 may have written it: pass --encoding latin1"
        elif isinstance(error, ModuleNotFoundError):
            told = f"it needs the module {error.name}, which is not installed"
        raise Refusal(f"a Python object cannot be read: {told}.") from error


def print_notes(notes: Iterable[str]) -> list[str]:
    """Print each note of the library on a line, and return all in the command line's words."""
    found = [in_a_line(at_prompt(note)) for note in notes]
    for note in found:
        say(note)
    return found


def unknown(what: str, name: str, names: Iterable[str]) -> click.UsageError:
    """Return the error for a name that is none of these: it tells the one that is most like it."""
    guess = _GUESSES.get(name) if what == "command" else None
    close = [guess] if guess else difflib.get_close_matches(name, names, 1)
    told = f"Did you mean {close[0]!r}?" if close else f"There are {', '.join(sorted(names))}."
    return click.UsageError(f"No such {what}: {name!r}. {told}")


def in_a_line(text: str) -> str:
    """Return a message as one line that cannot control the terminal."""
    return printable(" ".join(text.split()))


def raise_final(error: Exception) -> None:
    """Raise an error that ends a command on many files: any with --debug, and a closed output."""
    is_debugging = click.get_current_context().find_root().obj.is_debugging
    if is_debugging or isinstance(error, BrokenPipeError):
        raise error


def report_failure(error: Exception) -> int:
    """Raise or report an error of one of several files; return the exit code."""
    raise_final(error)
    return report_error(error)


def report_error(error: BaseException) -> int:
    """Print an error as one line, and return the exit code."""
    text, code = error_text(error)
    say(text)
    return code


def say(text: str) -> None:
    """Print a line on the standard error stream, if that can be written."""
    try:
        click.echo(f"npzkit: {text}", err=True)
    except OSError:
        discard(sys.stderr)


def discard(stream: Any) -> None:
    """Send what a stream still has, and further output, nowhere, so that Python's end is quiet."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, stream.fileno())
    os.close(null)


def error_text(error: BaseException) -> tuple[str, int]:
    """Return the message of an error as one line, and the exit code."""
    if isinstance(error, (click.Abort, KeyboardInterrupt)):
        return "interrupted", 130
    lacks_memory = isinstance(error, MemoryError) or getattr(error, "errno", 0) == errno.ENOMEM
    code = 1 if isinstance(error, NpzkitError) and is_damage(error) and not lacks_memory else 2
    if isinstance(error, click.UsageError):
        where = error.ctx.command_path if error.ctx else "npzkit"
        message = error.format_message().rstrip()
        end = "" if message.endswith((".", "?", "!")) else "."
        if isinstance(error, click.NoSuchOption):
            guess = _GUESSES.get(error.option_name.lstrip("-"))
            if guess:
                message = f"No such option {error.option_name!r}. Did you mean 'npzkit {guess}'?"
                end = ""
            elif not error.possibilities:
                end += " Put -- before names that begin with a dash."
        elif message.startswith("Got unexpected extra argument"):
            # A shell's pattern may be several files.
            end += f" {_SEVERAL_FILES}"
        text = f"{message}{end} Try: {where} --help"
    elif isinstance(error, click.ClickException):
        text, code = error.format_message(), error.exit_code
    elif lacks_memory:
        # NumPy says how much it asked for.
        needed = f": {error}" if isinstance(error, MemoryError) and str(error) else ""
        text = f"There is too little memory{needed}. Close other programs, or read less at once."
    elif isinstance(error, OSError) and not isinstance(error, NpzkitError):
        text = _os_text(error)
    else:
        text = message_of(error)
        if isinstance(error, MemberNotFoundError) and error.key and os.path.isfile(error.key):
            text += f" {error.key!r} is a file, but was used as a key here{_ONE_FILE}."
    return in_a_line(text), code


def error_facts(error: BaseException) -> dict[str, Any]:
    """Return what JSON says of an error."""
    return {"error": error_text(error)[0], "is_damage": getattr(error, "is_damage", False)}


_ONE_FILE = (
    ": a command with KEYS takes one FILE, and diff two. Of several, a shell takes one after the "
    'other: for f in FILES; do npzkit COMMAND "$f" KEYS; done'
)
_SEVERAL_FILES = (
    "ls, verify and pack take several files, most other commands one; npzkit.open_many in Python "
    "reads an array of several."
)
_PATTERN = "No file matches the pattern, or it is in quotes. " + _SEVERAL_FILES
_OS_REMEDIES = {
    errno.ENOENT: "Check the name, and whether its folder exists",
    errno.EISDIR: "Pass an archive, or two to diff. npzkit ls FOLDER lists those in it, and "
    "npzkit pack NEW.npz FOLDER makes one of its .npy files; npzkit pack NEW.npz FOLDER/*.npz, "
    "of archives and shards",
    errno.EACCES: "Check the permissions of the file and its folder",
    errno.EPERM: "Check the permissions of the file and its folder",
    errno.EROFS: "Write to another folder",
    errno.ENOSPC: "Free some space, or write to another disk",
    errno.ENAMETOOLONG: "Choose a shorter name",
}
"""The remedies for errors of the system."""
_URL_REMEDIES = {
    errno.ENOENT: "Check the URL",
    errno.EACCES: "Check the credentials and their permissions",
}
"""Those for URLs."""


def _use_of_key(name: str) -> str:
    """Return what to do with a key that was given as a file, if the command takes keys by -k."""
    context = click.get_current_context(silent=True)
    has_option = context is not None and any("-k" in one.opts for one in context.command.params)
    if local_path(name) is None:
        return ""
    is_pattern = bool(re.search(r"[*?[]", name))
    if context is None or not has_option:
        return _PATTERN if is_pattern else ""
    if is_pattern:
        return "If it is a pattern of keys, it comes after -k."
    from npzkit.datasets.opening import open_any
    from npzkit.members.metadata import TREE_KEY
    from npzkit.trees.notes import nodes_of

    for file in context.params.get("files", ()):
        if not (os.path.isfile(file) or os.path.isdir(file)):
            continue
        with (
            contextlib.suppress(NpzkitError, OSError),
            warnings.catch_warnings(action="ignore"),
            open_any(file) as npz,
        ):
            if any(key.startswith((f"{name}/", f"{name}.")) or key == name for key in npz):
                return f"If it is a key of {quoted(file)}, it comes after -k."
            if name in dict(nodes_of(npz.metadata.get(TREE_KEY))):
                return f"If it is a key, see its value: npzkit show {as_word(file)} {as_word(name)}"
    return ""


def newest_step(path: str) -> str | None:
    """Return the name of the newest step in a folder of checkpoints; None of anything else."""
    if not os.path.isdir(path):
        return None
    from npzkit.checkpoint.steps import steps_in, steps_of_folders

    steps = [one for one in os.listdir(path) if steps_in([one]) or steps_of_folders([one])]
    return max(steps, default=None)


def _os_text(error: OSError) -> str:
    name: Any = error.filename
    text = at_prompt(error.strerror or str(error))
    if isinstance(name, (str, bytes)):
        path = os.fsdecode(name)
        text = f"{path or repr('')}: {text}"
        if os.path.isdir(path) and error.errno in (errno.EISDIR, errno.ENOENT):
            from npzkit.datasets.opening import holds_index

            if step := newest_step(path):
                newest = as_word(os.path.join(path, step))
                return (
                    f"{path}: this is a folder of checkpoints. npzkit ckpt ls {as_word(path)} "
                    f"lists them. Pass one of its files, such as {newest}."
                )
            if holds_index(path):
                one = f"npzkit convert {as_word(path)} FILE.npz makes one file of it"
                adds = f'npzkit.ShardedWriter({path!r}, mode="a") in Python adds to it'
                return f"{path}: this is a sharded archive. {one}; {adds}."
    # Windows allows no such name.
    is_missing = error.errno in (errno.ENOENT, errno.EINVAL)
    if isinstance(name, str) and is_missing and (use := _use_of_key(name)):
        return f"{text}. {use}"
    is_url = isinstance(name, str) and local_path(name) is None
    remedy = (_URL_REMEDIES if is_url else _OS_REMEDIES).get(error.errno or 0)
    if is_missing and re.match(r"https?:[^?]*/index\.npz(\?|$)", name if is_url else ""):
        remedy = "Pass the URL of a file: web servers do not list those in a folder"
    # A server of HTTP lists nothing.
    is_pattern = is_url and re.search(r"^(?!https?:)[^?]*[*[]", name)
    if is_pattern and isinstance(error, FileNotFoundError):
        folder = re.split(r"[*[]", name, maxsplit=1)[0].rpartition("/")[0]
        remedy = f"Patterns are for npzkit.open_many; npzkit ls {folder}/ lists the files"
    if text.endswith("then commit"):
        return f"{text}."
    if is_url and ". " in (error.strerror or ""):
        remedy = None
    return f"{text}. {remedy}." if remedy else text
