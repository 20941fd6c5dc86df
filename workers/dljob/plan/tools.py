"""Roles whose ranks run modules of the wheel dljob-tools, which the pods of a job have only where it is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # pydantic and the model take a fifth of a second, which launchers of the gateway need not pay
    from dljob.spec.model import DLJobSpec
    from dljob.spec.rank import Entrypoint

TOOLS_PACKAGE = "dljob.compat"
"""The package of dljob-tools that ranks run: `dljob dlrover-run` and DLRover's builder start users' programs by it."""


def roles_with_tools(spec: DLJobSpec) -> list[str]:
    """Return the names of these roles."""
    return [role.name for role in spec.roles if _runs_tools(role.entrypoint)]


def _runs_tools(entrypoint: Entrypoint) -> bool:
    words = (entrypoint.class_, entrypoint.module, *(entrypoint.command or ()))
    return any(word == TOOLS_PACKAGE or (word or "").startswith(f"{TOOLS_PACKAGE}.") for word in words)
