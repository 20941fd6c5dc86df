"""From a spec to a plan: pure, and the same for the same spec wherever it runs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict

from dljob.plan.collectives import with_collectives
from dljob.plan.model import JobPlan, MachineGroup, Series, UnitTable
from dljob.plan.nodes import build_node_groups
from dljob.plan.role import RolePlan
from dljob.plan.roles import resolve_role
from dljob.plan.units import build_units
from dljob.spec.model import DLJobManifest
from dljob.spec.rules.annotations import spoken

DIGEST_LENGTH = 16
_LATER = (
    *("min_replicas", "max_replicas", "bounds", "sub_master", "quota", "shared_sight"),
    *("topology_key", "spread", "domains", "numa_binding", "virtual_local_rank"),
)


def plan(manifest: DLJobManifest) -> JobPlan:
    """The whole job, resolved.

    Raises:
        PlacementError: It cannot be placed; the message names the smallest set that conflicts, with its numbers.
    """
    spec = spoken(manifest.spec)
    roles = with_collectives(spec, {role.name: resolve_role(spec, role) for role in spec.roles})
    units = build_units(spec, roles)
    groups = build_node_groups(spec, units, roles)
    digest = _digest(manifest.metadata.name, roles, units, groups)
    return JobPlan(manifest.metadata.name, roles, units, groups, digest)


def _digest(
    name: str,
    roles: Mapping[str, RolePlan],
    units: UnitTable,
    groups: Mapping[str, MachineGroup],
) -> str:
    """16 hex digits of what runs where, as canonical JSON: sorted keys, no spaces.

    The RayCluster is no part of it: a journal stays good when only the pods' dress changed.
    """
    whole = {
        "name": name,
        "roles": {role.name: _told(role) for role in roles.values()},
        "units": [_told(series) for series in units.series],
        "nodeGroups": {group.name: _told(group) for group in groups.values()},
    }
    text = json.dumps(whole, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:DIGEST_LENGTH]


def _told(of: RolePlan | Series | MachineGroup) -> dict[str, object]:
    """Its fields; those that came later only where they say something, so that a job without them keeps its digest."""
    return {key: value for key, value in asdict(of).items() if value or key not in _LATER}
