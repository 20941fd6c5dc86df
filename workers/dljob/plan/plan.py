"""The plan of a spec: a pure function, with the same result for the same spec wherever it runs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict

from dljob.plan.collectives import with_collectives
from dljob.plan.model import JobPlan, MachineGroup, UnitTable
from dljob.plan.nodes import build_node_groups
from dljob.plan.role import RolePlan
from dljob.plan.roles import resolve_role
from dljob.plan.units import build_units
from dljob.plan.witnesses import resolve
from dljob.spec.model import DLJobManifest
from dljob.spec.rules.annotations import spoken

DIGEST_LENGTH = 16
"""Hex digits of a plan's digest."""


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
    witnesses = tuple(resolve(witness) for witness in spec.fault_tolerance.witnesses)
    return JobPlan(manifest.metadata.name, roles, units, groups, digest, witnesses, spec.master.standby)


def _digest(
    name: str,
    roles: Mapping[str, RolePlan],
    units: UnitTable,
    groups: Mapping[str, MachineGroup],
) -> str:
    """Return 16 hex digits over what runs where, as canonical JSON: sorted keys, no spaces.

    The RayCluster is not part of it: a journal stays valid when only the rendering of pods changed.
    """
    document = {
        "name": name,
        "roles": {role.name: asdict(role) for role in roles.values()},
        "units": [asdict(series) for series in units.series],
        "nodeGroups": {group.name: asdict(group) for group in groups.values()},
    }
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:DIGEST_LENGTH]
