"""Ports and probes of a role, resolved: frozen data, and the names of their variables."""

from __future__ import annotations

from dataclasses import dataclass

HOST = "DLJOB_HOST"
"""Variable with the address on which a rank listens, where its role has ports."""


@dataclass(frozen=True, slots=True)
class ProbePlan:
    """A probe of a rank, with the numbers of Kubernetes."""

    kind: str
    """http | tcp."""
    port: str = ""
    """Name of a port of the role, or its number."""
    path: str = ""
    tls: bool = False
    headers: tuple[tuple[str, str], ...] = ()
    delay_s: int = 0
    period_s: int = 10
    timeout_s: int = 1
    successes: int = 1
    failures: int = 3


def port_variable(name: str) -> str:
    """Return the variable with the number of a rank's port: DLJOB_PORT_HTTP."""
    return f"DLJOB_PORT_{name.upper().replace('-', '_')}"
