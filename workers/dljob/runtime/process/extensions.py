"""What others add to the control of a job, found by entry point: SubMasters, and who replaces nodes.

A backend is one too (`backend.py`). A package says so in its pyproject.toml:

    [project.entry-points."dljob.submasters"]
    ring = "ringmaster:RingMaster"
"""

from __future__ import annotations

import sys
from importlib.metadata import EntryPoint, distributions
from typing import Any

from dljob.errors import UsageError
from dljob.spec.model import DLJobSpec

SUB_MASTERS = "dljob.submasters"
RELAUNCHERS = "dljob.noderelaunchers"


def installed(group: str, code_dir: str = "") -> dict[str, EntryPoint]:
    """The entry points of a group by name: of packages in the folder of user code, then of those installed."""
    path = [code_dir, *sys.path] if code_dir else sys.path
    points = [p for found in distributions(path=path) for p in found.entry_points if p.group == group]
    return {point.name: point for point in reversed(points)}


def check(spec: DLJobSpec, code_dir: str) -> None:
    """Whether all extensions that a job names are there, before anything of it starts.

    Raises:
        UsageError: one is not; with those that are.
    """
    for role in spec.roles:
        if role.comm.sub_master:
            _there(SUB_MASTERS, role.comm.sub_master, f"role {role.name}: the SubMaster", code_dir)
    if spec.fault_tolerance.node.relauncher:
        _there(RELAUNCHERS, spec.fault_tolerance.node.relauncher, "the relauncher", "")


def load(group: str, name: str, whose: str, code_dir: str = "") -> Any:
    """What an entry point names.

    Raises:
        UsageError: there is none of that name.
        ImportError, AttributeError: it cannot be loaded.
    """
    return _there(group, name, whose, code_dir).load()


def _there(group: str, name: str, whose: str, code_dir: str) -> EntryPoint:
    points = installed(group, code_dir)
    if name not in points:
        raise UsageError(
            f"{whose} {name!r} is not installed; installed: {', '.join(sorted(points)) or 'none'}",
            hint=f"install the package whose entry point in {group} is {name!r}, on every machine of the job",
        )
    return points[name]
