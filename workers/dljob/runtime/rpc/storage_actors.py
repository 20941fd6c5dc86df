"""Actors of a job that keep what ranks share: named, made by whoever first asks for one, gone with the job."""

from __future__ import annotations

import contextlib
import importlib
import threading
import time
from typing import Any

import ray

from dljob.runtime.process.guard import Lease, boottime
from dljob.runtime.process.messages import KEEPER, JobInfo

LOOKS = 6
"""So often in a lease's time it is asked whether PrimeMaster is still there."""
NODE_ID = "ray.io/node-id"
_HEAD = "node:__internal_head__"
_KINDS: dict[str, tuple[str, str, dict[str, float]]] = {
    "queue": ("dljob.runtime.queues.keeper", "QueueKeeper", {_HEAD: 0.001}),
    "weights": ("dljob.runtime.weights.keeper", "WeightsKeeper", {}),
}
"""Kind -> its class, and where it must be: a queue on the head, where its files are; else beside who first asks."""


def made(job: JobInfo, address: str) -> tuple[str, Any]:
    """The name and the handle of a keeper, which is made when there is none; `address` as in `:queue:samples`."""
    kind, _, name = address.removeprefix(KEEPER).partition(":")
    module, cls, resources = _KINDS[kind]
    actor = f"{job.uid[:8]}/{kind}/{name}"
    with contextlib.suppress(ValueError):
        return actor, ray.get_actor(actor, job.namespace)
    remote: Any = ray.remote
    options: dict[str, Any] = {
        "name": actor,
        "namespace": job.namespace,
        "lifetime": "detached",
        "get_if_exists": True,
        "max_restarts": 0,
        "max_concurrency": 10_000,
        "resources": resources,
    }
    if not resources:
        options["label_selector"] = {NODE_ID: ray.get_runtime_context().get_node_id()}
        options["fallback_strategy"] = [{"label_selector": {NODE_ID: "!none"}}]
    made = remote(num_cpus=0)(getattr(importlib.import_module(module), cls))
    return actor, made.options(**options).remote(job, name)


def follow_master(job: JobInfo, lease: Lease) -> None:
    """The lease runs while the job has a master, dead or alive; one that is gone for good has no name any more."""

    def follow() -> None:
        while True:
            with contextlib.suppress(Exception):  # no answer renews no lease, which is how it is told
                ray.get_actor(job.master, job.namespace)
                lease.renew(boottime())
            time.sleep(job.lease_s / LOOKS)

    threading.Thread(target=follow, name="dljob-master", daemon=True).start()
