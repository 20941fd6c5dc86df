"""The rules about devices, node groups and collocations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations

from dljob.spec import cel
from dljob.spec.model import Collocation, DLJobSpec, NodeGroup, Role
from dljob.spec.quantity import GRAIN, parse_devices, show
from dljob.spec.rules.findings import GROUP_NAMES, ROLE_NAMES, Check, Finding, listed, one_each, repeated
from dljob.spec.text.tree import Loc
from dljob.spec.text.words import one_of
from dljob.telemetry.wording import counted

RESERVED_GROUPS = ("head", "headgroup")
WHOLE = ("TPU", "HPU", "Neuron")
"""Kinds of device that Ray assigns only whole. Source: ray 2.60, `ray/_private/accelerators`."""
TPU_CHIPS = (1, 2, 4, 8)
"""The numbers of chips per process that Ray supports. Source: ray 2.60, `ray/_private/accelerators/tpu.py`."""
SHOWN = ("GPU", "NPU", "HPU")
"""Kinds of device of which a process may see more than its own."""


def homes(spec: DLJobSpec, role: Role) -> list[NodeGroup]:
    """Return the declared node groups that a role may run on."""
    return [group for group in spec.node_groups if role.node_group in (None, group.name)]


def device_type(spec: DLJobSpec, role: Role) -> str:
    """Return the kind of device of a role with an accelerator: its own, else that of its node groups, else GPU."""
    if role.accelerator and role.accelerator.type:
        return role.accelerator.type
    kinds = {group.accelerator.type for group in homes(spec, role) if group.accelerator}
    return kinds.pop() if len(kinds) == 1 else "GPU"


def devices_per_group(size: int, share: int) -> int:
    """Return the devices that a group of `size` ranks needs on its host; `share` is one rank's, in ten-thousandths."""
    if share >= GRAIN:
        return size * share // GRAIN
    # A share never spans two devices, so what is left of a device after its last whole share stays unused.
    return -(-size // (GRAIN // share))


def _device_reads(spec: DLJobSpec, role: int) -> tuple[Loc, ...]:
    """Return the fields that decide which devices a role has, and which its machines have."""
    loc: Loc = ("spec", "roles", role)
    groups: list[Loc] = [("spec", "nodeGroups", index, "accelerator") for index in range(len(spec.node_groups))]
    return (
        *((*loc, key) for key in ("accelerator", "annotations", "nodeGroup")),
        *(groups or [("spec", "nodeGroups")]),
    )


def _node_groups(spec: DLJobSpec) -> Iterator[Finding]:
    loc: Loc = ("spec", "nodeGroups")
    yield from one_each(loc, [group.name for group in spec.node_groups], "node groups")
    for index, group in enumerate(spec.node_groups):
        group_loc = (*loc, index)
        if group.name in RESERVED_GROUPS:
            yield Finding((*group_loc, "name"), f"{cel.RESERVED_GROUP.message}: Ray's head has it", "call it workers")
        device = group.accelerator
        if device and device.type == "Custom" and not (device.resource_name and device.ray_resource):
            names = ((*group_loc, "accelerator", "resourceName"), (*group_loc, "accelerator", "rayResource"))
            yield Finding((*group_loc, "accelerator"), cel.CUSTOM.message, reads=names)


def _bound(spec: DLJobSpec) -> Iterator[Finding]:
    names = [group.name for group in spec.node_groups]
    for index, role in enumerate(spec.roles):
        if role.node_group is not None and role.node_group not in names:
            reason = f"there is no node group {role.node_group}" if names else "the job declares no nodeGroups"
            hint = one_of(role.node_group, names) if names else "declare it, or leave nodeGroup out"
            words = f"{cel.NODE_GROUP.message}: {reason}"
            loc: Loc = ("spec", "roles", index, "nodeGroup")
            yield Finding(loc, words, hint, (loc, GROUP_NAMES))


# A rank and a role group live on one host: what fits on none would wait for ever.
def _capacity(spec: DLJobSpec) -> Iterator[Finding]:
    for index, role in enumerate(spec.roles):
        groups = homes(spec, role)
        # `_bound` reports a node group that is not there.
        if role.accelerator is None or (role.node_group and not groups):
            continue
        loc: Loc = ("spec", "roles", index)
        reads = (*_device_reads(spec, index), (*loc, "replicasPerGroup"))
        kind = device_type(spec, role)
        if kind == "Custom" and not any(group.accelerator for group in groups):
            words = f"{cel.CUSTOM.message}, which only a node group can declare"
            yield Finding((*loc, "accelerator"), words, "declare a node group with accelerator type Custom", reads)
        elif groups:
            share = parse_devices(role.accelerator.count)
            yield from (replace(finding, reads=reads) for finding in _fits(loc, role, share, kind, groups))


def _fits(loc: Loc, role: Role, share: int, kind: str, groups: Sequence[NodeGroup]) -> Iterator[Finding]:
    """Check that one host of a node group has the devices of one rank, and of one role group."""
    has = {g.name: g.accelerator.count for g in groups if g.accelerator and g.accelerator.type == kind}
    if not has:
        owners = f"node group {groups[0].name} has" if len(groups) == 1 else "the node groups have"
        yield Finding((*loc, "accelerator"), f"{role.name} needs {kind}, {owners} none")
        return
    if role.reserve == "Quota":
        return  # its framework may spread one rank's devices over several hosts, which `plan` counts
    # The largest host decides: what fits there can be placed.
    most = max(has, key=lambda name: has[name])
    host_text = f"a host of {most} has {has[most]}"
    size = role.replicas_per_group
    rank, group_devices = -(-share // GRAIN), devices_per_group(size, share)
    if rank > has[most]:
        words = f"one rank of {role.name} needs {rank} {kind}, {host_text}"
        yield Finding((*loc, "accelerator", "count"), words, "a rank lives on one host")
    elif group_devices > has[most]:
        group_text = f"{group_devices} {kind} ({counted(size, 'rank')} of {show(share)})"
        words = f"one group of {role.name} needs {group_text}, {host_text}"
        yield Finding((*loc, "replicasPerGroup"), words, "a group lives on one host: lower replicasPerGroup")


def _kinds(spec: DLJobSpec) -> Iterator[Finding]:
    """Check limits of Ray and of the device's own runtime for a kind of device."""
    for index, role in enumerate(spec.roles):
        if role.accelerator is None:
            continue
        loc: Loc = ("spec", "roles", index, "accelerator")
        kind, amount = device_type(spec, role), parse_devices(role.accelerator.count)
        reads = (*_device_reads(spec, index), loc)
        if kind in WHOLE and amount % GRAIN:
            yield Finding((*loc, "count"), f"{kind} is assigned whole, not by {show(amount)}", "write count: 1", reads)
        elif kind == "TPU" and amount // GRAIN not in TPU_CHIPS:
            words = f"a rank takes {', '.join(map(str, TPU_CHIPS))} TPU chips, not {show(amount)}"
            yield Finding((*loc, "count"), words, "Ray supports no other number", reads)
        if role.accelerator.visibility == "Shared" and kind not in SHOWN:
            words = f"ranks on {kind} cannot see each other's devices, only those on {', '.join(SHOWN)} can"
            yield Finding((*loc, "visibility"), words, "leave it out", reads)
        yield from _places(role, loc, kind, reads)


def _places(role: Role, loc: Loc, kind: str, reads: tuple[Loc, ...]) -> Iterator[Finding]:
    """Check the fields that correspond to torchrun's device switches against what the role can have."""
    accelerator = role.accelerator
    if accelerator is not None and accelerator.numa_binding is not None:
        if kind not in SHOWN:
            words = f"torch knows no NUMA node of a {kind}, only of {', '.join(SHOWN)}"
            yield Finding((*loc, "numaBinding"), words, "leave it out", reads)
        if role.reserve == "Quota":
            words = f"{role.name} reserves Quota, so its ranks have no device of their own to bind to"
            yield Finding((*loc, "numaBinding"), words, "leave it out", (*reads, (*loc[:-1], "reserve")))
    if accelerator is not None and accelerator.memory_limit == "Share":
        yield from _memory_limit(role, loc, kind, reads)
    if accelerator is not None and accelerator.visibility == "Shared" and role.comm.virtual_local_rank:
        words = "Shared shows a rank its own device at LOCAL_RANK, which comm.virtualLocalRank makes 0 in every rank"
        yield Finding((*loc, "visibility"), words, "leave one of them out", (*reads, (*loc[:-1], "comm")))


def _memory_limit(role: Role, loc: Loc, kind: str, reads: tuple[Loc, ...]) -> Iterator[Finding]:
    """Check that the memory of ranks can be limited as the role asks for."""
    field = (*loc, "memoryLimit")
    if kind != "GPU":
        yield Finding(field, f"torch limits the memory of a GPU, not of {kind}", "leave it out", reads)
    elif role.reserve == "Quota":
        words = f"{role.name} reserves Quota, so its ranks have no share of a device"
        yield Finding(field, words, "leave it out", (*reads, (*loc[:-1], "reserve")))
    elif role.entrypoint.command is not None:
        words = f"{role.name} runs a command, and only in classes and modules can dljob tell torch of a limit"
        fix = "leave it out; newer torch reads PYTORCH_CUDA_ALLOC_CONF=per_process_memory_fraction:0.5"
        yield Finding(field, words, fix, (*reads, (*loc[:-1], "entrypoint")))


# torch would fail in `init_process_group`, after the machines were reserved.
def _comm_devices(spec: DLJobSpec) -> Iterator[Finding]:
    for index, role in enumerate(spec.roles):
        wants = {"nccl": "GPU", "hccl": "NPU"}.get(role.comm.backend)
        has = device_type(spec, role) if role.accelerator else "no accelerator"
        if wants and role.type == "Elastic" and has != wants:
            loc: Loc = ("spec", "roles", index)
            words = f"{role.comm.backend} works on {wants}, {role.name} has {has}"
            reads = (*_device_reads(spec, index), (*loc, "comm"), (*loc, "type"))
            yield Finding((*loc, "comm", "backend"), words, "Auto chooses the one that fits", reads)


def _members(spec: DLJobSpec) -> Iterator[Finding]:
    loc: Loc = ("spec", "collocations")
    yield from one_each(loc, [collocation.name for collocation in spec.collocations], "collocations")
    names = [role.name for role in spec.roles]
    first_collocation: dict[str, str] = {}
    for index, collocation in enumerate(spec.collocations):
        roles_loc = (*loc, index, "roles")
        for at, _, name in repeated(collocation.roles):
            yield Finding((*roles_loc, at), f"{name} is listed twice", "keep one")
        for at, name in enumerate(collocation.roles):
            if name not in names:
                words = f"{cel.COLLOCATED_ROLES.message}: there is no role {name}"
                yield Finding((*roles_loc, at), words, one_of(name, names), ((*roles_loc, at), ROLE_NAMES))
            # The first collocation of a role counts; each later one is reported.
            elif first_collocation.setdefault(name, collocation.name) != collocation.name:
                words = f"{cel.ONE_COLLOCATION.message}: {name} is in {first_collocation[name]} and {collocation.name}"
                yield Finding((*roles_loc, at), words)


def _sharing(spec: DLJobSpec) -> Iterator[Finding]:
    """Check that the roles of a Device or Host collocation have compatible groups, node groups and devices."""
    by_name = {role.name: (index, role) for index, role in enumerate(spec.roles)}
    for index, collocation in enumerate(spec.collocations):
        # `_members` reports names that are no role, or listed twice.
        members = dict(by_name[name] for name in dict.fromkeys(collocation.roles) if name in by_name)
        if collocation.level == "Separate" or len(members) < 2:
            continue
        collocation_loc: Loc = ("spec", "collocations", index)
        reads: tuple[Loc, ...] = tuple(("spec", "roles", at) for at in members)
        yield from _same_host(collocation_loc, list(members.values()), reads)
        if collocation.level == "Device":
            yield from _same_device(spec, collocation_loc, collocation, members)


# A unit holds whole groups of each of its roles, so one group count must divide the other.
def _same_host(collocation_loc: Loc, roles: Sequence[Role], reads: tuple[Loc, ...]) -> Iterator[Finding]:
    for a, b in combinations(roles, 2):
        # At least one: `_groups` reports a group size above the number of ranks.
        groups_a, groups_b = a.replicas // a.replicas_per_group or 1, b.replicas // b.replicas_per_group or 1
        if max(groups_a, groups_b) % min(groups_a, groups_b):
            words = f"group counts must be equal or one divide the other: {a.name} has {groups_a}, {b.name} {groups_b}"
            yield Finding((*collocation_loc, "roles"), words, "change replicas or replicasPerGroup of one", reads)
        if a.node_group and b.node_group and a.node_group != b.node_group:
            words = f"roles on one host need one node group: {a.name} is on {a.node_group}, {b.name} on {b.node_group}"
            yield Finding((*collocation_loc, "roles"), words, "", reads)


def _same_device(
    spec: DLJobSpec, collocation_loc: Loc, collocation: Collocation, members: dict[int, Role]
) -> Iterator[Finding]:
    reads: tuple[Loc, ...] = tuple(("spec", "roles", at, "accelerator") for at in members)
    sharers = [(role, parse_devices(role.accelerator.count)) for role in members.values() if role.accelerator]
    for at, role in members.items():
        if role.accelerator is None:
            words = f"{cel.SHARERS.message}: {role.name}, in {collocation.name}, has none"
            yield Finding(("spec", "roles", at), words, "give it a share, or use level Host", reads)
    # Shares are summed in ten-thousandths, so that 0.3 + 0.7 is exactly one device.
    total = sum(share for _, share in sharers)
    if total > GRAIN:
        terms = " + ".join(f"{role.name} {show(share)}" for role, share in sharers)
        words = f"{cel.SHARES.message}: {terms} = {show(total)}"
        yield Finding((*collocation_loc, "roles"), words, f"lower them by {show(total - GRAIN)}", reads)
    kinds = {role.name: device_type(spec, role) for role, _ in sharers}
    if len(set(kinds.values())) > 1:
        words = f"one device is of one kind: {listed(f'{name} needs {kind}' for name, kind in kinds.items())}"
        yield Finding((*collocation_loc, "roles"), words, "use level Host", reads)


MACHINE_RULES: tuple[Check, ...] = (_node_groups, _bound, _capacity, _kinds, _comm_devices, _members, _sharing)
