"""The command that prints a completion script for a shell."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from npzkit.cli.opening import COMPLETE_VARIABLE


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the script that completes commands and keys in SHELL.

    For bash, put eval "$(npzkit completion bash)" into ~/.bashrc. For zsh, put
    eval "$(npzkit completion zsh)" into ~/.zshrc. For fish, save the output as
    ~/.config/fish/completions/npzkit.fish.

    Example: npzkit completion bash
    """
    kind = get_completion_class(shell)
    if kind is None:
        raise click.ClickException(f"this version of click does not support completion for {shell}")
    group = click.get_current_context().find_root().command
    click.echo(kind(group, {}, "npzkit", COMPLETE_VARIABLE).source())
