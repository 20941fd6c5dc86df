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
    from dljob.calls.collect import register_collect
    from dljob.calls.dispatch import register_dispatch
    from dljob.calls.rows import register_rows, whole
    from dljob.errors import (
        CallError,
        CallTimeoutError,
        CheckpointError,
        CollectiveAbortedError,
        CollectiveError,
        DeadlineError,
        DLJobError,
        JobFailedError,
        JournalError,
        NotFoundError,
        PeerLostError,
        PlacementError,
        QueueClosedError,
        RemoteError,
        SpecError,
        UnreachableError,
        UsageError,
    )
    from dljob.runtime.batches import GlobalBatch, global_batches
    from dljob.runtime.checkpoint import checkpoint
    from dljob.runtime.collectives.group import CollectiveGroup
    from dljob.runtime.collectives.table import register_backends
    from dljob.runtime.context import WorkerContext, current_worker, progress
    from dljob.runtime.data_queue import DataQueue
    from dljob.runtime.futures import CallFuture, FutureSequence
    from dljob.runtime.relauncher import BadNode, NodeRelauncher
    from dljob.runtime.rpc import RoleGroup, rpc
    from dljob.runtime.shards import Shard, shards
    from dljob.runtime.sub_master import SubMaster
    from dljob.runtime.weights import WeightChannel
    from dljob.runtime.worker import Worker

_HOMES = {
    "dljob.api.builder": ("DLJobBuilder",),
    "dljob.api.handle": ("JobHandle",),
    "dljob.api.job": ("DLJob",),
    "dljob.api.rl": ("RLJobBuilder", "RLRoleType"),
    "dljob.calls.collect": ("register_collect",),
    "dljob.calls.dispatch": ("register_dispatch",),
    "dljob.calls.rows": ("register_rows", "whole"),
    "dljob.errors": (
        "CallError",
        "CallTimeoutError",
        "CheckpointError",
        "CollectiveAbortedError",
        "CollectiveError",
        "DLJobError",
        "DeadlineError",
        "JobFailedError",
        "JournalError",
        "NotFoundError",
        "PeerLostError",
        "PlacementError",
        "QueueClosedError",
        "RemoteError",
        "SpecError",
        "UnreachableError",
        "UsageError",
    ),
    "dljob.runtime.batches": ("GlobalBatch", "global_batches"),
    "dljob.runtime.checkpoint": ("checkpoint",),
    "dljob.runtime.collectives.group": ("CollectiveGroup",),
    "dljob.runtime.collectives.table": ("register_backends",),
    "dljob.runtime.context": ("WorkerContext", "current_worker", "progress"),
    "dljob.runtime.data_queue": ("DataQueue",),
    "dljob.runtime.futures": ("CallFuture", "FutureSequence"),
    "dljob.runtime.relauncher": ("BadNode", "NodeRelauncher"),
    "dljob.runtime.rpc": ("RoleGroup", "rpc"),
    "dljob.runtime.shards": ("Shard", "shards"),
    "dljob.runtime.sub_master": ("SubMaster",),
    "dljob.runtime.weights": ("WeightChannel",),
    "dljob.runtime.worker": ("Worker",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "BadNode",
    "CallError",
    "CallFuture",
    "CallTimeoutError",
    "CheckpointError",
    "CollectiveAbortedError",
    "CollectiveError",
    "CollectiveGroup",
    "DLJob",
    "DLJobBuilder",
    "DLJobError",
    "DataQueue",
    "DeadlineError",
    "FutureSequence",
    "GlobalBatch",
    "JobFailedError",
    "JobHandle",
    "JournalError",
    "NodeRelauncher",
    "NotFoundError",
    "PeerLostError",
    "PlacementError",
    "QueueClosedError",
    "RLJobBuilder",
    "RLRoleType",
    "RemoteError",
    "RoleGroup",
    "Shard",
    "SpecError",
    "SubMaster",
    "UnreachableError",
    "UsageError",
    "WeightChannel",
    "Worker",
    "WorkerContext",
    "checkpoint",
    "current_worker",
    "global_batches",
    "progress",
    "register_backends",
    "register_collect",
    "register_dispatch",
    "register_rows",
    "rpc",
    "shards",
    "whole",
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
