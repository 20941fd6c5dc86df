"""A resolved role with default values, for tests of hosts."""

from __future__ import annotations

from typing import Any

from dljob.plan.role import HostKind, RolePlan


def role_plan(name: str, entrypoint: tuple[str, ...], **changes: Any) -> RolePlan:
    values: dict[str, Any] = {
        "name": name,
        "elastic": False,
        "host": HostKind.THREAD if entrypoint[0] == "class" else HostKind.FORK,
        "entrypoint": entrypoint,
        "args": (),
        "env": (),
        "config": {},
        "replicas": 1,
        "group_size": 1,
        "driver": False,
        "depends_on": (),
        "per_rank": (),
        "accelerator": None,
        "node_group": "",
        "restart_level": "Process",
        "max_restarts": 10,
        "comm_backend": None,
        "comm_timeout_s": 60,
        "init_process_group": False,
    }
    return RolePlan(**{**values, **changes})
