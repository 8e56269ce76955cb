"""The command that prints what makes a shell complete commands, options and keys."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from npzkit.cli.opening import COMPLETE_VARIABLE

__all__ = ["completion"]


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print what makes a SHELL complete commands and keys.

    For bash, eval "$(npzkit completion bash)" goes into ~/.bashrc, for zsh the
    same with zsh into ~/.zshrc. For fish the output goes into
    ~/.config/fish/completions/npzkit.fish.

    Example: npzkit completion bash
    """
    kind = get_completion_class(shell)
    if kind is None:
        raise click.ClickException(f"this version of click has no completion for {shell}")
    group = click.get_current_context().find_root().command
    click.echo(kind(group, {}, "npzkit", COMPLETE_VARIABLE).source())
