"""`dljob completion`: completion for a shell."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

from dljob.cli import output

OF_JOBS = (
    *("status", "top", "describe", "why", "ledger", "report", "advise", "replay", "open", "trace", "logs", "events"),
    *("stack", "restart", "scale", "stop", "chaos", "delete"),
)
"""Commands whose first argument is a job."""
OF_ROLES = {"logs": "", "stack": "", "restart": "", "scale": "="}
"""Commands whose further arguments name roles, and what follows a role's name there."""
_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]*")
"""A name that is safe in a shell, which expands the words of a completion: a rank can write another one."""
NAMES = {
    "bash": """
_dljob_with_names() {
  _dljob
  local cur="${COMP_WORDS[COMP_CWORD]}"
  [[ ${#COMPREPLY[@]} -gt 0 || $cur == -* ]] && return
  COMPREPLY=($(compgen -W "$(dljob completion names -- "${COMP_WORDS[@]:1:COMP_CWORD-1}" 2>/dev/null)" -- "$cur"))
  [[ ${COMPREPLY[0]} == *= ]] && compopt -o nospace
}
complete -o default -F _dljob_with_names dljob
""",
    "zsh": """
_dljob_with_names() {
  local -a names
  [[ $PREFIX == -* ]] || names=(${(f)"$(dljob completion names -- ${words[2,CURRENT-1]} 2>/dev/null)"})
  if (( ! $#names )); then _cyclopts_dljob "$@"
  elif [[ $names[1] == *= ]]; then compadd -S '' -- $names
  else compadd -- $names
  fi
}
compdef _dljob_with_names dljob
[[ $funcstack[1] == _dljob ]] && _dljob_with_names "$@"
""",
    "fish": """
function __fish_dljob_names
    dljob completion names -- (commandline -opc)[2..] 2>/dev/null
end
complete -c dljob -n '__fish_seen_subcommand_from {of_jobs}' -f -a '(__fish_dljob_names)'
""",
}
"""Shell -> the end of its script, which asks for names of jobs and roles where the rest of it knows no word."""


def completion(shell: Literal["bash", "zsh", "fish", "names"], /, *words: str) -> None:
    """Print a shell's completion script for this command.

    It completes names of this machine's jobs and of their roles, too.

    For bash: `source <(dljob completion bash)`; for zsh: `dljob completion zsh > "${fpath[1]}/_dljob"`; for fish:
    `dljob completion fish | source`.

    Args:
        shell: bash, zsh or fish; or names, by which the scripts ask for the names that may follow WORDS.
        words: the words of a command so far.
    """
    if shell == "names":
        output.document("\n".join(names_after(words)))
        return
    from dljob.cli import extensions
    from dljob.cli.main import TOOLS, build

    missing = {*TOOLS} - extensions.names(extensions.COMMANDS)
    script = build(without=missing).generate_completion(shell=shell)
    output.document(f"{script.rstrip()}\n{NAMES[shell].rstrip()}".replace("{of_jobs}", " ".join(OF_JOBS)))


def names_after(words: Sequence[str]) -> list[str]:
    """Return the names of jobs, or of a job's roles, that may follow the words of a command."""
    from dljob.api import registry
    from dljob.api.views import entries
    from dljob.errors import DLJobError

    if not words or words[0] not in OF_JOBS:
        return []
    before = words[-1]
    arguments = [word for word in words[1:] if not word.startswith("-")]
    if not arguments or words[0] == "delete":
        names = (record.name for record in reversed(registry.records()))
        return list(dict.fromkeys(filter(_PLAIN.fullmatch, names)))
    if before != "--role" and (words[0] not in OF_ROLES or before.startswith("-")):
        return []
    try:
        roles = entries(registry.find(arguments[0]).status(), "roles")
    except DLJobError:  # a job of the cluster, or none
        return []
    end = "" if before == "--role" else OF_ROLES[words[0]]
    return [f"{name}{end}" for role in roles if _PLAIN.fullmatch(name := str(role.get("name") or ""))]
