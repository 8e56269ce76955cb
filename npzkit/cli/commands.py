"""The group of commands, which imports each command when it is called, and the exit codes."""

from __future__ import annotations

import contextlib
import errno
import importlib
import io
import os
import sys
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import click

import npzkit
from npzkit.errors import at_prompt
from npzkit.files.urls import default_storage_options
from npzkit.stores.received_bytes import receiving

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

_GROUPS = {
    "Look": {
        "ls": ("listings", "List the arrays of FILEs, or the archives in folders."),
        "info": ("listings", "Show details of FILE or of one array."),
        "show": ("show", "Show the values of the array KEY, or a SLICE of it."),
        "view": ("pages", "Look at the arrays of FILEs in the browser."),
    },
    "Check": {
        "verify": ("maintaining", "Check FILEs for damage: headers, checksums, array sizes."),
        "diff": ("diff", "Show which arrays of A and B, or KEYS of them, differ."),
        "repair": ("maintaining", "Repair damaged FILEs, or save their sound arrays."),
    },
    "Change": {
        "add": ("editing", "Add arrays to the archive FILE, in place."),
        "mv": ("editing", "Rename the array OLD of the archive FILE to NEW, in place."),
        "rm": ("editing", "Remove arrays from the archive FILE, in place."),
        "repack": ("maintaining", "Rewrite FILEs: aligned, seekable, without dead space."),
    },
    "Convert": {
        "pack": ("editing", "Put arrays into a new archive OUT."),
        "extract": ("editing", "Write the arrays of FILE, or KEYS of them, to files."),
        "convert": (
            "editing",
            "Convert FILE to OUTPUT, in the format that its name says.",
        ),
    },
    "Training": {"ckpt": ("ckpt", "List, check and remove the checkpoints of a training run.")},
    "Learn": {
        "help": ("pages", "Show a page of the guide, or list its topics."),
    },
}
"""The groups of commands. For each command, the module of `npzkit.cli` with the function of the
same name, and the first sentence of its help. The list is printed without any import.
"""
_COMMANDS = {name: row for group in _GROUPS.values() for name, row in group.items()}
_NAME_WIDTH = max(map(len, _COMMANDS))


class Commands(click.Group):
    """Commands that are imported when they are called, for a fast start."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module = importlib.import_module(f"npzkit.cli.{_COMMANDS[cmd_name][0]}")
        command: click.Command = getattr(module, cmd_name)
        return command

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        if args[0] in _COMMANDS or args[0].startswith("-") or ctx.resilient_parsing:
            return super().resolve_command(ctx, args)
        from npzkit.cli.messages import unknown

        raise unknown("command", args[0], _COMMANDS)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for group, commands in _GROUPS.items():
            with formatter.section(group):
                # Complete sentences, which click would cut on a narrow terminal.
                formatter.write_dl(
                    [(name.ljust(_NAME_WIDTH), help) for name, (_, help) in commands.items()]
                )

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        names = [
            CompletionItem(name, help=help)
            for name, (_, help) in sorted(_COMMANDS.items())
            if name.startswith(incomplete)
        ]
        return names + click.Command.shell_complete(self, ctx, incomplete)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            # Its reader, such as head, has closed the pipe; click would report an error.
            return 0


@click.command(
    cls=Commands, name="npzkit", context_settings={"help_option_names": ["-h", "--help"]}
)
@click.version_option(npzkit.__version__, prog_name="npzkit")
def npzkit_command() -> None:
    """Inspect, compare, check, repair and edit .npz archives.

    Each command has --help with an example. Add --debug to any command to see
    the traceback of an error. Commands that look, check or convert take .npy
    files too. Commands that read take URLs: https://, s3://, gs://, az://. Add
    --storage-option KEY=VALUE for the store, such as --storage-option anon=true.
    """


class Run(NamedTuple):
    """The object of click's context.

    Attributes
    ----------
    is_debugging : bool
        Whether --debug was given.
    reception : npzkit.stores.received_bytes.Reception
        What URLs send.
    interrupts : list of BaseException
        Those that Python could not raise.
    """

    is_debugging: bool
    reception: Any
    interrupts: list[BaseException]


def run(arguments: list[str] | None = None) -> int:
    """Run a command and return the exit code.

    Parameters
    ----------
    arguments : list of str, optional
        By default those of the process.
    """
    try:
        return _run(list(sys.argv[1:] if arguments is None else arguments))
    finally:
        _flush()


def _run(arguments: list[str]) -> int:
    is_debugging = bool(_take(arguments, "--debug", has_value=False))
    _prepare_streams()
    try:
        _check_arguments(arguments)
        options = _storage_options(_take(arguments, "--storage-option", has_value=True))
        with (
            default_storage_options(options),
            receiving() as reception,
            _noting_interrupts(Run(is_debugging, reception, [])) as obj,
        ):
            code = npzkit_command.main(
                arguments or ["--help"], "npzkit", standalone_mode=False, obj=obj
            )
        sys.stdout.flush()
    except BrokenPipeError:
        return 0
    except _REPORTED as error:
        if is_debugging:
            raise
        if isinstance(error, click.BadOptionUsage) and error.ctx is None:
            # Of an option without its value, click does not say which command has it.
            error.ctx = _context_of(arguments)
        from npzkit.cli.messages import report_error

        return report_error(error)
    if not arguments:
        # Without a command, only the help was printed.
        return 2
    return code if isinstance(code, int) else 0


def _context_of(arguments: list[str]) -> click.Context:
    """Return the context of the command that was typed."""
    context = click.Context(npzkit_command, info_name="npzkit")
    for name in arguments:
        group = context.command
        found = group.get_command(context, name) if isinstance(group, click.Group) else None
        if found is None:
            break
        context = click.Context(found, context, name)
    return context


_REPORTED = (
    click.ClickException, click.Abort, npzkit.NpzkitError, OSError, MemoryError, KeyboardInterrupt,
)  # fmt: skip
"""Errors that are reported as one line."""


def _check_arguments(arguments: list[str]) -> None:
    """Raise UsageError for arguments that are not valid text, which Python callers may pass."""
    for argument in arguments:
        with contextlib.suppress(UnicodeEncodeError):
            if b"\0" not in os.fsencode(argument):
                continue
        raise click.UsageError(f"{argument!r} has a character that is not allowed.")


def _flush() -> None:
    """Write what streams still have. What cannot be written was reported, or has no reader."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            from npzkit.cli.messages import discard

            discard(stream)


class _Output(io.FileIO):
    """The standard output on Windows, which says "invalid argument" where nobody reads on."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE)) from error


def _prepare_streams() -> None:
    """Escape characters that an encoding lacks, and show warnings as one line.

    Closed streams are replaced, so that no other file gets their number.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            stream = open(os.devnull, mode, encoding="utf-8")  # noqa: SIM115 - until the end
            setattr(sys, name, stream)
    raw = getattr(getattr(sys.stdout, "buffer", None), "raw", None)
    if os.name == "nt" and type(raw) is io.FileIO:
        output = io.BufferedWriter(_Output(raw.fileno(), "w", closefd=False))
        sys.stdout = io.TextIOWrapper(output, encoding=sys.stdout.encoding)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    warnings.showwarning = _show_warning


def _show_warning(message: Warning | str, *args: Any, **options: Any) -> None:
    from npzkit.cli.messages import in_a_line, say

    say(f"warning: {in_a_line(at_prompt(message))}")


@contextlib.contextmanager
def _noting_interrupts(run: Run) -> Iterator[Run]:
    """Note interrupts that Python cannot raise, as in a destructor, without its message."""
    usual = sys.unraisablehook

    def note(found: Any) -> None:
        if isinstance(found.exc_value, KeyboardInterrupt):
            run.interrupts.append(found.exc_value)
        if run.is_debugging or not isinstance(found.exc_value, KeyboardInterrupt):
            usual(found)

    sys.unraisablehook = note
    try:
        yield run
    finally:
        sys.unraisablehook = usual


def _take(arguments: list[str], name: str, *, has_value: bool) -> list[str]:
    """Remove an option, which may be anywhere before ``--``, and return its values."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    kept, values, before = [], [], iter(arguments[:end])
    for argument in before:
        if argument == name:
            values.append(next(before, "") if has_value else "")
        elif has_value and argument.startswith(f"{name}="):
            values.append(argument[len(name) + 1 :])
        else:
            kept.append(argument)
    arguments[:end] = kept
    return values


def _storage_options(texts: list[str]) -> dict[str, Any]:
    """Return the options for stores: each value is JSON, or text."""
    options: dict[str, Any] = {}
    for text in texts:
        import json

        key, equals, value = text.partition("=")
        if not key or not equals:
            raise click.UsageError("--storage-option needs KEY=VALUE.")
        options[key] = value
        with contextlib.suppress(ValueError):
            options[key] = json.loads(value)
    return options
