"""The plan of a spec: a pure function, with the same result for the same spec wherever it runs."""

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
"""Hex digits of a plan's digest."""
_LATER = (
    *("min_replicas", "max_replicas", "bounds", "sub_master", "quota", "shared_sight"),
    *("topology_key", "spread", "domains", "numa_binding", "virtual_local_rank"),
)
"""Fields that were added later: they enter the digest only with a value, so that old journals stay valid."""


def plan(manifest: DLJobManifest) -> JobPlan:
    """Resolve the whole job.

    Raises:
        PlacementError: It cannot be placed; the message names the smallest conflicting set, with its numbers.
    """
    # First annotations: everything below reads typed fields only.
    spec = spoken(manifest.spec)
    roles = with_collectives(spec, {role.name: resolve_role(spec, role) for role in spec.roles})
    # Each step needs the one before: roles, units of their ranks, machines for the units.
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
    """Return 16 hex digits over what runs where, as canonical JSON: sorted keys, no spaces.

    The RayCluster is not part of it: a journal stays valid when only the rendering of pods changed.
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
    """Return the fields that enter the digest; later ones only with a value, so that jobs without them keep theirs."""
    return {key: value for key, value in asdict(of).items() if value or key not in _LATER}
