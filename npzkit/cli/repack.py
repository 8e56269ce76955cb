"""The command that rewrites archives."""

from __future__ import annotations

import click

import npzkit
from npzkit.cli.archives import (
    Archive,
    Outcome,
    Outputs,
    files_argument,
    find_archives,
    folder_options,
    work_through,
)
from npzkit.cli.opening import file_size, named_file
from npzkit.cli.output import Report, json_option
from npzkit.cli.wording import at_prompt
from npzkit.errors import format_size, printable, shown_url


@click.command()
@files_argument
@click.option(
    "-o", "--output", type=named_file,
    help="Where to write the result: a file, or a folder for several FILEs. "
    "By default FILE is replaced.",
)  # fmt: skip
@click.option(
    "-c", "--compression", type=click.Choice(["stored", "deflated"]),
    help="Compression of all arrays. By default each keeps its own.",
)  # fmt: skip
@click.option("--level", type=click.IntRange(0, 9), help="Level of arrays that are deflated.")
@click.option(
    "--align", type=int, default=64, show_default=True, help="Alignment of stored data, in bytes."
)
@click.option(
    "--seekable/--no-seekable",
    default=True,
    help="Deflate arrays again if they have no seek index.",
)
@click.option("--durable", is_flag=True, help="Wait until the result is on disk.")
@folder_options
@click.option("--force", is_flag=True, help="Replace OUTPUT if it exists.")
@json_option
def repack(
    files: tuple[str, ...],
    output: str | None,
    compression: str | None,
    level: int | None,
    align: int,
    seekable: bool,
    durable: bool,
    recursive: bool,
    quiet: bool,
    force: bool,
    as_json: bool,
) -> None:
    """Rewrite FILEs: aligned, seekable, without dead space.

    Stored arrays can then be mapped, and parts of deflated arrays read quickly.

    Example: npzkit repack model.npz
    """
    archives = find_archives(files, recursive=recursive, output=output)
    outputs = Outputs(archives, output, force=force)

    def work(archive: Archive, report: Report) -> Outcome:
        before = archive.size
        target, overwrite = outputs.path_for(archive) or (archive.path, True)
        try:
            npzkit.repack(
                archive.path, target, compression, align, level=level, seekable=seekable,
                durable=durable, overwrite=overwrite, progress=report,
            )  # fmt: skip
        except ValueError as error:
            if isinstance(error, npzkit.NpzkitError):
                raise
            raise click.UsageError(f"{at_prompt(str(error))}.") from error
        after = file_size(target)
        document = {"path": shown_url(archive.path), "ok": True, "output": shown_url(target),
                    "size_before": before, "size": after}  # fmt: skip
        # The size of an archive at a URL is not known here.
        sizes = " -> ".join(format_size(size) for size in (before, after) if size)
        text = "" if quiet else f"{printable(shown_url(target))}: {sizes or 'repacked'}"
        return Outcome(document, text, "repacked")

    code = work_through("repack", archives, work, as_json=as_json, quiet=quiet)
    click.get_current_context().exit(code)
