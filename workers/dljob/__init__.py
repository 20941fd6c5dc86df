"""DLJob: deep-learning jobs of different processes on Ray, kept running when any part fails.

Importing this package loads neither Ray nor torch: names come when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dljob.api.builder import DLJobBuilder
    from dljob.api.handle import JobHandle
    from dljob.api.job import DLJob
    from dljob.api.rl import RLJobBuilder, RLRoleType
    from dljob.errors import (
        CallError,
        CallTimeoutError,
        CheckpointError,
        DeadlineError,
        DLJobError,
        JobFailedError,
        JournalError,
        NotFoundError,
        PeerLostError,
        PlacementError,
        RemoteError,
        SpecError,
        UnreachableError,
        UsageError,
    )
    from dljob.runtime.checkpoint import checkpoint
    from dljob.runtime.context import WorkerContext, current_worker, progress
    from dljob.runtime.rpc import CallFuture, RoleGroup, rpc
    from dljob.runtime.shards import Shard, shards
    from dljob.runtime.worker import Worker

_HOMES = {
    "dljob.api.builder": ("DLJobBuilder",),
    "dljob.api.handle": ("JobHandle",),
    "dljob.api.job": ("DLJob",),
    "dljob.api.rl": ("RLJobBuilder", "RLRoleType"),
    "dljob.errors": (
        "CallError",
        "CallTimeoutError",
        "CheckpointError",
        "DLJobError",
        "DeadlineError",
        "JobFailedError",
        "JournalError",
        "NotFoundError",
        "PeerLostError",
        "PlacementError",
        "RemoteError",
        "SpecError",
        "UnreachableError",
        "UsageError",
    ),
    "dljob.runtime.checkpoint": ("checkpoint",),
    "dljob.runtime.context": ("WorkerContext", "current_worker", "progress"),
    "dljob.runtime.rpc": ("CallFuture", "RoleGroup", "rpc"),
    "dljob.runtime.shards": ("Shard", "shards"),
    "dljob.runtime.worker": ("Worker",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "CallError",
    "CallFuture",
    "CallTimeoutError",
    "CheckpointError",
    "DLJob",
    "DLJobBuilder",
    "DLJobError",
    "DeadlineError",
    "JobFailedError",
    "JobHandle",
    "JournalError",
    "NotFoundError",
    "PeerLostError",
    "PlacementError",
    "RLJobBuilder",
    "RLRoleType",
    "RemoteError",
    "RoleGroup",
    "Shard",
    "SpecError",
    "UnreachableError",
    "UsageError",
    "Worker",
    "WorkerContext",
    "checkpoint",
    "current_worker",
    "progress",
    "rpc",
    "shards",
]


def __getattr__(name: str) -> object:
    """PEP 562: the first use of a name imports its module, and keeps it."""
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'dljob' has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
