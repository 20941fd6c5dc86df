"""What a role sets for the process of each of its ranks, whether that is forked or the host's own.

The host collects the settings, and the rank's process applies them before it imports any module of the user.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from dljob.linux.priority import PriorityError, rank_niceness
from dljob.master.state.actions import RankStart
from dljob.plan.role import RolePlan
from dljob.runtime.process import environment
from dljob.runtime.worker import device_memory, numa

REFUSED = (numa.BindingError, PriorityError)
"""Errors of settings that this machine does not allow: the rank's end, and so would be that of its next incarnation."""


def settings_of(role: RolePlan, start: RankStart, cores: numa.Cores) -> dict[str, Any]:
    """Return the settings of a rank, as JSON carries them to a forked one."""
    kind = role.accelerator[0] if role.accelerator else ""
    return {
        "near": cores.of(start, kind),
        "memory": (role.memory_share, environment.device_index(kind, start, role)),
        "nice": role.nice,
    }


def apply(settings: Mapping[str, Any]) -> None:
    """Apply settings to this process; a restart in the same process says them again.

    Raises:
        BindingError: It cannot be bound to the cores near its device.
        PriorityError: It cannot have its priority.
    """
    rank_niceness.add(settings["nice"])
    if settings["near"]:
        print(f"[dljob] {numa.bind(settings['near'])}", file=sys.stderr, flush=True)  # noqa: T201 - into the rank's log
    device_memory.limit.hold(*settings["memory"])
