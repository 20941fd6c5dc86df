"""The rules between fields, as CEL for the API server; `rules` says them again in Python, in the same words.

What CEL cannot say within its budget (cycles, capacity, group counts) is in `rules` only.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class Rule(NamedTuple):
    """A CEL expression that must hold and the words when it does not."""

    rule: str
    message: str


NAME = Rule(
    "self.metadata.name.size() <= 47 && self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
    "metadata.name: at most 47 characters, DNS-1035",
)
DRIVER = Rule("self.roles.exists(r, r.driver)", "at least one role must be a driver")
COLLOCATED_ROLES = Rule(
    "!has(self.collocations) || self.collocations.all(c, c.roles.all(n, self.roles.exists(r, r.name == n)))",
    "collocations[].roles must name roles",
)
ONE_COLLOCATION = Rule(
    "!has(self.collocations) || self.roles.all(r, self.collocations.filter(c, r.name in c.roles).size() <= 1)",
    "a role may be in one collocation only",
)
SHARES = Rule(
    "!has(self.collocations) || self.collocations.all(c, c.level != 'Device' || self.roles.filter(r, r.name in c.roles"
    " && has(r.accelerator)).map(r, double(r.accelerator.count)).sum() <= 1.00005)",
    "Device collocation: the shares of one device must not exceed 1",
)
SHARERS = Rule(
    "!has(self.collocations) || self.collocations.all(c, c.level != 'Device'"
    " || self.roles.all(r, !(r.name in c.roles) || has(r.accelerator)))",
    "Device collocation: every role needs an accelerator",
)
DEPENDS_ON = Rule(
    "self.roles.all(r, !has(r.dependsOn)"
    " || r.dependsOn.all(d, d.role != r.name && self.roles.exists(x, x.name == d.role)))",
    "dependsOn must name other roles",
)
NODE_GROUP = Rule(
    "self.roles.all(r, !has(r.nodeGroup) || has(self.nodeGroups) && self.nodeGroups.exists(g, g.name == r.nodeGroup))",
    "nodeGroup must exist",
)
TYPE_IMMUTABLE = Rule(
    "self.roles.all(r, oldSelf.roles.all(o, o.name != r.name || o.type == r.type))",
    "roles[].type is immutable",
)
MANAGED_BY = Rule(
    "has(self.managedBy) == has(oldSelf.managedBy) && (!has(self.managedBy) || self.managedBy == oldSelf.managedBy)",
    "managedBy is immutable",
)
RESERVED_ROLE = Rule("!(self.name in ['job', 'master', 'node'])", "reserved name")
GROUP_SIZE = Rule("self.replicas % self.replicasPerGroup == 0", "replicasPerGroup must divide replicas")
COMM_ELASTIC = Rule("self.type == 'Elastic' || !has(self.comm)", "comm is for Elastic roles")
IN_PROCESS = Rule(
    "!has(self.restartPolicy) || !has(self.restartPolicy.level) || self.restartPolicy.level != 'InProcess'"
    " || self.type == 'Elastic' && has(self.entrypoint.class)",
    "in process only Elastic roles with a class as entrypoint restart",
)
OUT_OF_MEMORY = Rule(
    "!has(self.restartPolicy) || !has(self.restartPolicy.outOfMemory)"
    " || has(self.resources) && has(self.resources.memory)",
    "outOfMemory needs resources.memory",
)
ENTRYPOINT = Rule(
    "[has(self.class), has(self.module), has(self.command)].filter(x, x).size() == 1",
    "exactly one of class, module, command",
)
ENV_FROM = Rule("has(self.configMapRef) != has(self.secretRef)", "exactly one of configMapRef, secretRef")
JOURNAL = Rule("!has(self.claimName) || has(self.path)", "claimName needs path")
COUNT = Rule("double(self.count) > 0.0", "count must be above 0")
RESERVED_GROUP = Rule("!(self.name in ['head', 'headgroup'])", "reserved name")
CUSTOM = Rule(
    "!has(self.accelerator) || self.accelerator.type != 'Custom'"
    " || has(self.accelerator.resourceName) && has(self.accelerator.rayResource)",
    "Custom needs resourceName and rayResource",
)
ESCALATION = Rule("!has(self.escalateTo) || has(self.maxAttempts)", "escalateTo needs maxAttempts")

REF_IMMUTABLE = Rule(
    "has(self.rayClusterRef) == has(oldSelf.rayClusterRef)"
    " && (!has(self.rayClusterRef) || self.rayClusterRef == oldSelf.rayClusterRef)",
    "rayClusterRef is immutable",
)


def _left_out(path: str, why: str) -> Rule:
    """What may not be there beside rayClusterRef."""
    names = path.split(".")
    absent = [f"!has(self.{'.'.join(names[: count + 1])})" for count in range(len(names))]
    return Rule(f"!has(self.rayClusterRef) || {' || '.join(absent)}", f"rayClusterRef excludes {path}: {why}")


_PODS = "its pods are there already"
BESIDE_REF = {
    path: _left_out(path, why)
    for path, why in {
        "nodeGroups": "its machines are what it has",
        "rayClusterTemplate": "it is left as it is",
        "head": "it has its head",
        "image": "its pods have their image",
        "imagePullPolicy": _PODS,
        "imagePullSecrets": _PODS,
        "envFrom": _PODS,
        "scheduling": "its queue is its own",
        "code.configMap": "nothing can be mounted into its pods; use runtimeEnv.working_dir, or its image",
        "checkpoint.claimName": "nothing can be mounted into its pods; name a path that is mounted there",
        "master.journal.claimName": "nothing can be mounted into its pods",
    }.items()
}
"""What would make pods of ours, or change others'."""
REF_MASTER = Rule(
    "!has(self.rayClusterRef) || !has(self.master) || self.master.cpu == '500m' && self.master.memory == '1Gi'",
    "rayClusterRef excludes master.cpu and master.memory: its head is as large as it is",
)
REF_SPARES = Rule(
    "!has(self.rayClusterRef) || !has(self.faultTolerance) || !has(self.faultTolerance.spares)"
    " || self.faultTolerance.spares.nodes == 0",
    "rayClusterRef excludes faultTolerance.spares.nodes: machines are not added to it",
)

SPEC = (
    *(DRIVER, COLLOCATED_ROLES, ONE_COLLOCATION, SHARES, SHARERS, DEPENDS_ON, NODE_GROUP),
    *(TYPE_IMMUTABLE, MANAGED_BY, REF_IMMUTABLE, *BESIDE_REF.values(), REF_MASTER, REF_SPARES),
)
ROLE = (RESERVED_ROLE, GROUP_SIZE, COMM_ELASTIC, IN_PROCESS, OUT_OF_MEMORY)


def schema(*rules: Rule) -> dict[str, Any]:
    """The rules as a schema carries them."""
    return {"x-kubernetes-validations": [rule._asdict() for rule in rules]}
