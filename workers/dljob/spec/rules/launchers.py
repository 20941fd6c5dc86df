"""Programs of roles that start ranks of their own, below the one that dljob starts and watches."""

from __future__ import annotations

import re
from collections.abc import Iterator

from dljob.spec.model import DLJobSpec, Role
from dljob.spec.rules.findings import Finding

LAUNCHERS = {
    "accelerate launch": re.compile(
        r"((^|[\s/])accelerate|\baccelerate\.commands\.accelerate_cli)\s+launch\b|\baccelerate\.commands\.launch\b"
    ),
    # Only as a program: it is also a value of other programs' options.
    "deepspeed": re.compile(r"(^|/|&&\s|;\s?|\bexec\s)deepspeed\s|\bdeepspeed\.launcher\.(runner|launch)\b"),
    "dlrover-run": re.compile(r"\bdlrover\.(python\.elastic_agent\.torch\.run|trainer\.torch\.elastic_run)\b"),
    "trl": re.compile(r"(^|[\s/])trl\s+(dpo|grpo|kto|reward|rloo|sft)\b|-m\s+trl(\.cli(\.main)?)?\s"),
    "torchrun": re.compile(r"(^|[\s/])torchrun\s|\btorch\.distributed\.(run|launch)\b"),
}
"""Launcher -> how it stands in a command line, by its name or as a module."""


def launcher_warnings(spec: DLJobSpec) -> Iterator[Finding]:
    """Yield the roles whose program is a launcher: of its ranks dljob sees none."""
    for index, role in enumerate(spec.roles):
        line = _command_line(role)
        # Of a shell's text or a launcher's arguments the first launcher is the one that starts the others.
        launchers = [(match.start(), name) for name, shape in LAUNCHERS.items() if (match := shape.search(line))]
        if launchers:
            launcher = min(launchers)[1]
            words = f"{launcher} starts ranks of its own: dljob sees one process of {role.name}, and restarts only it"
            hint = "name the script as entrypoint.module, with type: Elastic and its ranks as replicas"
            yield Finding(("spec", "roles", index, "entrypoint"), words, hint)


def _command_line(role: Role) -> str:
    program = role.entrypoint
    words = program.command or (("-m", program.module) if program.module else ())
    return " ".join((*words, *role.args, ""))
