"""Runs a Lifecycle in this process, on classes of a module made for the test."""

from __future__ import annotations

import logging
import sys
import types
from typing import Any

from role_kit import role_plan

from dljob.master.views import Outcome
from dljob.plan.role import RolePlan
from dljob.runtime.context import Progress, Stopping, WorkerContext, install
from dljob.runtime.lifecycle import Lifecycle


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
        "report": Progress().put,
    }
    return WorkerContext(**{**values, **changes})


class Life:
    """A rank's life with `target` as its entrypoint; `steps` tells in which order things happened."""

    def __init__(self, target: Any, *, join: Any = None, leave: Any = None, **changes: Any) -> None:
        module = types.ModuleType("users_module")
        module.target = target
        sys.modules["users_module"] = module
        role = {k: changes.pop(k) for k in ("driver", "comm_backend", "elastic") if k in changes}
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
