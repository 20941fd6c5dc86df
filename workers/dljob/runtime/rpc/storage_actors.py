"""Storage actors of a job by address: the first process that asks for one creates it; they end with the job."""

from __future__ import annotations

import contextlib
import importlib
import threading
import time
from typing import Any

import ray

from dljob.runtime.backend.masters import find_master
from dljob.runtime.process.guard import Lease, boottime
from dljob.runtime.process.messages import KEEPER, JobInfo

LOOKS = 6
"""Checks of PrimeMaster's name within one lease, so that one failed check costs no lease."""
NODE_ID = "ray.io/node-id"
_HEAD = "node:__internal_head__"
_KINDS: dict[str, tuple[str, str, dict[str, float]]] = {
    "queue": ("dljob.runtime.queues.keeper", "QueueKeeper", {_HEAD: 0.001}),
    "weights": ("dljob.runtime.weights.keeper", "WeightsKeeper", {}),
}
"""Kind -> module, class, resources. A queue runs on the head, where its files are; a weight channel on the node of the
rank that first asks, which holds the weights."""


def storage_actor(job: JobInfo, address: str) -> tuple[str, Any]:
    """Name and handle of the storage actor at an address (`:queue:samples`); creates it if there is none."""
    kind, _, name = address.removeprefix(KEEPER).partition(":")
    module, cls, resources = _KINDS[kind]
    actor = f"{job.uid[:8]}/{kind}/{name}"
    # By name first: only one of a job's processes creates it, the others look it up.
    with contextlib.suppress(ValueError):
        return actor, ray.get_actor(actor, job.namespace)
    remote: Any = ray.remote
    options: dict[str, Any] = {
        "name": actor,
        "namespace": job.namespace,
        "lifetime": "detached",
        # Two ranks may ask at once: the second gets the first one's actor.
        "get_if_exists": True,
        # Not restarted by Ray: the next caller creates it anew.
        "max_restarts": 0,
        "max_concurrency": 10_000,
        "resources": resources,
    }
    if not resources:
        # The asking rank holds the weights; where its node cannot take the actor any other node will do.
        options["label_selector"] = {NODE_ID: ray.get_runtime_context().get_node_id()}
        options["fallback_strategy"] = [{"label_selector": {NODE_ID: "!none"}}]
    actor_class = remote(num_cpus=0)(getattr(importlib.import_module(module), cls))
    return actor, actor_class.options(**options).remote(job, name)


def follow_master(job: JobInfo, lease: Lease) -> None:
    """Renew a lease while PrimeMaster's name is registered, which Ray drops only when no restart of it is left."""

    def follow() -> None:
        while True:
            with contextlib.suppress(Exception):  # silent: a lease without an answer is not renewed, and ends the actor
                find_master(job)
                lease.renew(boottime())
            time.sleep(job.lease_s / LOOKS)

    threading.Thread(target=follow, name="dljob-master", daemon=True).start()
