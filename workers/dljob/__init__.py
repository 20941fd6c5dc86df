"""DLJob: deep-learning jobs made of different processes, which run on Ray and recover when any part fails.

Importing this package loads neither Ray nor torch: a name's module is imported at its first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dljob.api.any_job import AnyJob
    from dljob.api.builder import DLJobBuilder, RoleBuilder
    from dljob.api.find import job, jobs
    from dljob.api.handle import JobHandle
    from dljob.api.job import DLJob
    from dljob.api.kubernetes.handle import KubernetesJob
    from dljob.api.local.session import local
    from dljob.api.rl import RLJobBuilder, RLRoleType
    from dljob.api.views import JobEvent, JobStatus, Suspension
    from dljob.api.workload import Workload
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
        JobEndingError,
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
    from dljob.runtime.checkpoint.checkpoints import checkpoint
    from dljob.runtime.collectives.group import CollectiveGroup
    from dljob.runtime.collectives.table import register_backends
    from dljob.runtime.controller.relauncher import BadNode, NodeRelauncher
    from dljob.runtime.data.batches import GlobalBatch, global_batches
    from dljob.runtime.data.shards import Shard, shards
    from dljob.runtime.data.source import EventBatch, EventSource, source
    from dljob.runtime.data.source_reader import Extent, SourceError, SourceEvent, SourceReader
    from dljob.runtime.process.context import current_worker, progress
    from dljob.runtime.process.worker_context import WorkerContext
    from dljob.runtime.queues.data_queue import DataQueue
    from dljob.runtime.rpc.futures import CallFuture, FutureSequence
    from dljob.runtime.rpc.mapped import MappedFuture
    from dljob.runtime.rpc.streams import Stream
    from dljob.runtime.serving.completion_stream import CompletionStream
    from dljob.runtime.serving.endpoints import Endpoint, Endpoints, endpoints
    from dljob.runtime.serving.http_transport import AsyncHttpTransport, HttpTransport
    from dljob.runtime.weights.channel import WeightChannel
    from dljob.runtime.weights.transport import WeightTransport
    from dljob.runtime.worker.sub_master import SubMaster
    from dljob.runtime.worker.typed import TypedRoleGroup as RoleGroup
    from dljob.runtime.worker.typed import TypedWorker as Worker
    from dljob.runtime.worker.typed import rpc

# The home of each public name. A static table, since reading it from the modules would import them.
_HOMES = {
    "dljob.api.any_job": ("AnyJob",),
    "dljob.api.builder": ("DLJobBuilder", "RoleBuilder"),
    "dljob.api.find": ("job", "jobs"),
    "dljob.api.handle": ("JobHandle",),
    "dljob.api.job": ("DLJob",),
    "dljob.api.workload": ("Workload",),
    "dljob.api.kubernetes.handle": ("KubernetesJob",),
    "dljob.api.local.session": ("local",),
    "dljob.api.rl": ("RLJobBuilder", "RLRoleType"),
    "dljob.api.views": ("JobEvent", "JobStatus", "Suspension"),
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
        "JobEndingError",
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
    "dljob.runtime.data.batches": ("GlobalBatch", "global_batches"),
    "dljob.runtime.checkpoint.checkpoints": ("checkpoint",),
    "dljob.runtime.collectives.group": ("CollectiveGroup",),
    "dljob.runtime.collectives.table": ("register_backends",),
    "dljob.runtime.process.context": ("current_worker", "progress"),
    "dljob.runtime.process.worker_context": ("WorkerContext",),
    "dljob.runtime.queues.data_queue": ("DataQueue",),
    "dljob.runtime.rpc.futures": ("CallFuture", "FutureSequence"),
    "dljob.runtime.rpc.mapped": ("MappedFuture",),
    "dljob.runtime.controller.relauncher": ("BadNode", "NodeRelauncher"),
    "dljob.runtime.rpc.rpc": ("RoleGroup", "rpc"),
    "dljob.runtime.data.shards": ("Shard", "shards"),
    "dljob.runtime.data.source": ("EventBatch", "EventSource", "source"),
    "dljob.runtime.data.source_reader": ("SourceEvent", "Extent", "SourceError", "SourceReader"),
    "dljob.runtime.rpc.streams": ("Stream",),
    "dljob.runtime.serving.completion_stream": ("CompletionStream",),
    "dljob.runtime.serving.endpoints": ("Endpoint", "Endpoints", "endpoints"),
    "dljob.runtime.serving.http_transport": ("AsyncHttpTransport", "HttpTransport"),
    "dljob.runtime.worker.sub_master": ("SubMaster",),
    "dljob.runtime.weights.channel": ("WeightChannel",),
    "dljob.runtime.weights.transport": ("WeightTransport",),
    "dljob.runtime.worker.worker": ("Worker",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "AnyJob",
    "AsyncHttpTransport",
    "BadNode",
    "CallError",
    "CallFuture",
    "CallTimeoutError",
    "CheckpointError",
    "CollectiveAbortedError",
    "CollectiveError",
    "CollectiveGroup",
    "CompletionStream",
    "DLJob",
    "DLJobBuilder",
    "DLJobError",
    "DataQueue",
    "DeadlineError",
    "Endpoint",
    "Endpoints",
    "EventBatch",
    "EventSource",
    "Extent",
    "FutureSequence",
    "GlobalBatch",
    "HttpTransport",
    "JobEndingError",
    "JobEvent",
    "JobFailedError",
    "JobHandle",
    "JobStatus",
    "JournalError",
    "KubernetesJob",
    "MappedFuture",
    "NodeRelauncher",
    "NotFoundError",
    "PeerLostError",
    "PlacementError",
    "QueueClosedError",
    "RLJobBuilder",
    "RLRoleType",
    "RemoteError",
    "RoleBuilder",
    "RoleGroup",
    "Shard",
    "SourceError",
    "SourceEvent",
    "SourceReader",
    "SpecError",
    "Stream",
    "SubMaster",
    "Suspension",
    "UnreachableError",
    "UsageError",
    "WeightChannel",
    "WeightTransport",
    "Worker",
    "WorkerContext",
    "Workload",
    "checkpoint",
    "current_worker",
    "endpoints",
    "global_batches",
    "job",
    "jobs",
    "local",
    "progress",
    "register_backends",
    "register_collect",
    "register_dispatch",
    "register_rows",
    "rpc",
    "shards",
    "source",
    "whole",
]


def __getattr__(name: str) -> object:
    """Import the module of a public name at its first use (PEP 562), and keep the name here."""
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'dljob' has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
