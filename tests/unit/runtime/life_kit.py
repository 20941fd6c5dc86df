"""Runs a Lifecycle in this process, on classes of a module made for the test."""

from __future__ import annotations

import logging
import sys
import types
from pathlib import Path
from typing import Any

from role_kit import role_plan

from dljob.master.state.views import Outcome
from dljob.plan.role import RolePlan
from dljob.runtime.process.context import install
from dljob.runtime.process.messages import JobInfo
from dljob.runtime.process.worker_context import ProgressCounter, Stopping, WorkerContext
from dljob.runtime.worker.lifecycle import Lifecycle


def info(folder: Path) -> JobInfo:
    """Return the JobInfo of a job with this folder, in its second attempt."""
    return JobInfo("0123456789abcdef" * 2, "j", str(folder), "dljob", "m", 30, 0.2, "", (("w", 1),), attempt=2)


def role_of(path: str, **changes: Any) -> RolePlan:
    return role_plan("w", ("class", path), **changes)


def context(**changes: Any) -> WorkerContext:
    values: dict[str, Any] = {
        "job_name": "j",
        "job_uid": "0" * 32,
        "job_dir": "/nowhere",
        "role": "w",
        "rank": 0,
        "local_rank": 0,
        "world_size": 1,
        "group": 0,
        "incarnation": 1,
        "restart_reason": "",
        "config": {},
        "peers": {"w": 1},
        "devices": {},
        "device_index": 0,
        "stopping": Stopping(),
        "log": logging.getLogger("test"),
        "calls": None,
        "report": ProgressCounter().put,
    }
    return WorkerContext(**{**values, **changes})


ROLE_FIELDS = ("driver", "comm_backend", "elastic", "group_size", "min_replicas", "max_replicas")
"""Changes of a `Life` that concern its role."""


class Life:
    """A rank's life with `target` as its entrypoint; `steps` records the order of events."""

    def __init__(self, target: Any, *, join: Any = None, leave: Any = None, **changes: Any) -> None:
        module = types.ModuleType("users_module")
        module.target = target
        sys.modules["users_module"] = module
        role = {k: changes.pop(k) for k in ROLE_FIELDS if k in changes}
        self.context = context(**changes)
        self.steps: list[str] = []
        install(self.context)
        self.lifecycle = Lifecycle(
            self.context,
            role_of("users_module.target", **role),
            "",
            ready=lambda _: self.steps.append("ready"),
            join=join,
            leave=leave,
        )

    def live(self) -> Outcome:
        try:
            return self.lifecycle.live()
        finally:
            install(None)
            del sys.modules["users_module"]
