"""`dljob completion`: completion for a shell."""

from __future__ import annotations

from typing import Literal

from dljob.cli import output


def completion(shell: Literal["bash", "zsh", "fish"], /) -> None:
    """Print a shell's completion script for this command.

    For bash: `source <(dljob completion bash)`; for zsh: `dljob completion zsh > "${fpath[1]}/_dljob"`; for fish:
    `dljob completion fish | source`.

    Args:
        shell: bash, zsh or fish.
    """
    from dljob.cli.main import build

    output.data(build().generate_completion(shell=shell).rstrip("\n"))
