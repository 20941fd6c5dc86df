"""Variables that dljob sets in ranks: `dljob.plan.env` sets no others, and no `env` of a spec may set one of them."""

from __future__ import annotations

from typing import Literal

PREFIX = "DLJOB_"
"""How the names begin that only dljob sets, those of ports and endpoints among them."""
TRACE_CALLS = "DLJOB_TRACE_CALLS"
"""Variable of a role's `env` that switches the recording of calls on; `--trace-calls` sets it for all roles."""
PRELOAD = "DLJOB_PRELOAD"
"""Variable in a role's `env`: with 0 the fork server imports torch alone."""
DLROVER = "DLJOB_DLROVER"
"""Variable of all roles of a job of DLRover's builders: that job in its own terms, as JSON."""
SWITCHES = (TRACE_CALLS, PRELOAD, DLROVER)
"""Names with the prefix that an `env` may have."""


def is_reserved(name: str) -> bool:
    """Whether a name is one of dljob's own, which no `env` may have."""
    return name.startswith(PREFIX) and name not in SWITCHES


RankVariable = Literal[
    "DLJOB_NAME",
    "DLJOB_UID",
    "DLJOB_ROLE",
    "DLJOB_RANK",
    "DLJOB_REPLICAS",
    "DLJOB_LOCAL_RANK",
    "DLJOB_DIR",
    "DLJOB_INCARNATION",
    "DLJOB_RESTART_REASON",
]
"""Variables of every rank."""
TorchVariable = Literal[
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "GROUP_WORLD_SIZE",
    "ROLE_RANK",
    "ROLE_WORLD_SIZE",
    "TORCHELASTIC_RESTART_COUNT",
    "TORCHELASTIC_MAX_RESTARTS",
    "TORCHELASTIC_ERROR_FILE",
]
"""Variables of a rank of an Elastic role, as torchrun sets them whatever its `env` says."""
StoreVariable = Literal["MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_USE_AGENT_STORE"]
"""Variables by which ranks of an Elastic role meet, where they have a process group."""
