"""Collectives resolved: the backend of each group, as JSON in the environment of every rank of the job."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace

from dljob.plan.env import COLLECTIVES
from dljob.plan.role import RolePlan
from dljob.spec.collectives import GroupSpec
from dljob.spec.model import DLJobSpec
from dljob.spec.quantity import parse_devices

_BY_DEVICE = {"GPU": "nccl", "NPU": "hccl"}
_WHOLE = parse_devices("1")


def with_collectives(spec: DLJobSpec, roles: Mapping[str, RolePlan]) -> dict[str, RolePlan]:
    """Return the roles with the job's collectives in their environment; unchanged without any."""
    collectives = spec.collectives
    if not collectives.backends and not collectives.groups:
        return dict(roles)
    payload = {
        "backends": {backend.name.upper(): backend.class_ for backend in collectives.backends},
        "groups": {
            group.name: {
                "backend": chosen(group, roles).upper(),
                "roles": group.roles,
                "timeout_s": group.timeout_seconds,
                "recreate": group.on_restart == "Recreate",
            }
            for group in collectives.groups
        },
    }
    # Sorted, since the environment is part of the plan's digest.
    text = json.dumps(payload, sort_keys=True)
    # In every role, so that processes that user code starts inherit it too.
    return {name: replace(role, env=(*role.env, (COLLECTIVES, text))) for name, role in roles.items()}


def chosen(group: GroupSpec, roles: Mapping[str, RolePlan]) -> str:
    """Return the backend of a group.

    Auto gives the library that connects the devices of its ranks, if each rank has a whole one; else gloo. NCCL and
    HCCL refuse two ranks on one device; nothing connects devices of other kinds here.
    """
    if group.backend != "Auto":
        return group.backend
    accelerators = [roles[name].accelerator for name in group.roles]
    kinds = {device[0] for device in accelerators if device is not None and device[1] >= _WHOLE}
    alike = len(kinds) == 1 and all(device is not None and device[1] >= _WHOLE for device in accelerators)
    return _BY_DEVICE.get(kinds.pop(), "gloo") if alike else "gloo"
