"""Ports and probes of a role, resolved: frozen data, and the names of their variables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

HOST = "DLJOB_HOST"
"""Variable with the address on which a rank listens, where its role has ports."""

ENDPOINTS = "DLJOB_ENDPOINTS"
"""Variable with the path of the file that has the endpoints of all roles, as JSON."""

LOWEST_PORT, HIGHEST_PORT = 20_000, 65_535
"""Free ports are chosen from these; Ray's workers listen on 10002 to 19999."""

FIRST_OFFERED = 80
"""Number that a Service offers for the first port of a role whose own number is free."""


@dataclass(frozen=True, slots=True)
class ProbePlan:
    """A probe of a rank, with the numbers of Kubernetes."""

    kind: str
    """http | tcp | exec | grpc; post for the request of a drain or load; method, named by `path`, for a class's
    weights."""
    port: str = ""
    """Name of a port of the role, or its number."""
    path: str = ""
    """Path of a request; for grpc the name of the service."""
    tls: bool = False
    headers: tuple[tuple[str, str], ...] = ()
    command: tuple[str, ...] = ()
    delay_s: int = 0
    period_s: int = 10
    timeout_s: int = 1
    successes: int = 1
    failures: int = 3


@dataclass(frozen=True, slots=True)
class DrainPlan:
    """What comes before SIGTERM when a rank is ended in order."""

    timeout_s: int
    signal: str = ""
    post: ProbePlan | None = None


@dataclass(frozen=True, slots=True)
class WeightsPlan:
    """The weights that dljob loads into the ranks of a role."""

    channels: tuple[str, ...]
    """Names of weight channels; a version counts once all have it."""
    max_lag: int
    """Most versions that a rank may be behind the newest and still get requests."""
    min_ready: int
    """Number of ranks that loads leave in the endpoints."""
    load: ProbePlan
    """The order to load: a post, a command, or a method, which stands in `path`."""
    verify: ProbePlan | None = None
    """Returns a checksum of what the rank holds after a load; None: nothing is compared."""


def port_variable(name: str) -> str:
    """Return the variable with the number of a rank's port: DLJOB_PORT_HTTP."""
    return f"DLJOB_PORT_{name.upper().replace('-', '_')}"


def endpoints_variable(role: str) -> str:
    """Return the variable with the endpoints of a role: DLJOB_ENDPOINTS_ROLLOUT."""
    return f"{ENDPOINTS}_{role.upper().replace('-', '_')}"


def offered(ports: Sequence[tuple[str, int]]) -> dict[str, int]:
    """Return port name -> the number under which a Service offers it."""
    used_numbers = {number for _, number in ports if number}
    free = (at for at in range(FIRST_OFFERED, 65536) if at not in used_numbers)
    return {name: number or next(free) for name, number in ports}
