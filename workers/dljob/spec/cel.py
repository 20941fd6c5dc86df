"""The rules between fields as CEL, which the API server evaluates; `rules` repeats them in Python, with equal messages.

So kubectl and `dljob validate` refuse a spec with the same words. Rules beyond CEL's cost budget (cycles, capacity,
group counts) are in `rules` only.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class CelRule(NamedTuple):
    """A CEL expression that must hold, and the message when it does not."""

    rule: str
    message: str


# A RayCluster is named after the job, with 8 characters of its uid and the attempt; its name is a label of its pods,
# and labels hold 63 characters.
NAME = CelRule(
    "self.metadata.name.size() <= 47 && self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
    "metadata.name: at most 47 characters, DNS-1035",
)
# The job ends when its drivers have ended: without one it never would.
DRIVER = CelRule("self.roles.exists(r, r.driver)", "at least one role must be a driver")
# A name of no role would be accepted and then do nothing (ADR 5).
COLLOCATED_ROLES = CelRule(
    "!has(self.collocations) || self.collocations.all(c, c.roles.all(n, self.roles.exists(r, r.name == n)))",
    "collocations[].roles must name roles",
)
# A role has units of its own, or those of one collocation.
ONE_COLLOCATION = CelRule(
    "!has(self.collocations) || self.roles.all(r, self.collocations.filter(c, r.name in c.roles).size() <= 1)",
    "a role may be in one collocation only",
)
# CEL adds shares as doubles: the tolerance is half of Ray's grain, 0.0001, so that ten shares of "0.1" are one device.
SHARES = CelRule(
    "!has(self.collocations) || self.collocations.all(c, c.level != 'Device' || self.roles.filter(r, r.name in c.roles"
    " && has(r.accelerator)).map(r, double(r.accelerator.count)).sum() <= 1.00005)",
    "Device collocation: the shares of one device must not exceed 1",
)
# A share is a part of a device, which a role without accelerator does not have.
SHARERS = CelRule(
    "!has(self.collocations) || self.collocations.all(c, c.level != 'Device'"
    " || self.roles.all(r, !(r.name in c.roles) || has(r.accelerator)))",
    "Device collocation: every role needs an accelerator",
)
# A cycle of several roles is beyond CEL's cost budget; `rules._cycles` finds it.
DEPENDS_ON = CelRule(
    "self.roles.all(r, !has(r.dependsOn)"
    " || r.dependsOn.all(d, d.role != r.name && self.roles.exists(x, x.name == d.role)))",
    "dependsOn must name other roles",
)
# A longer way back to the role itself is no mistake: roles that name each other restart together.
RESTART_WITH = CelRule(
    "self.roles.all(r, !has(r.restartPolicy) || !has(r.restartPolicy.with)"
    " || r.restartPolicy.with.all(n, n != r.name && self.roles.exists(x, x.name == n)))",
    "restartPolicy.with must name other roles",
)
GROUP_ROLES = CelRule(
    "!has(self.collectives) || !has(self.collectives.groups)"
    " || self.collectives.groups.all(g, g.roles.all(n, self.roles.exists(r, r.name == n)))",
    "collectives.groups[].roles must name roles",
)
NODE_GROUP = CelRule(
    "self.roles.all(r, !has(r.nodeGroup) || has(self.nodeGroups) && self.nodeGroups.exists(g, g.name == r.nodeGroup))",
    "nodeGroup must exist",
)
# Rules with `oldSelf` apply to updates only.
TYPE_IMMUTABLE = CelRule(
    "self.roles.all(r, oldSelf.roles.all(o, o.name != r.name || o.type == r.type))",
    "roles[].type is immutable",
)
MANAGED_BY = CelRule(
    "has(self.managedBy) == has(oldSelf.managedBy) && (!has(self.managedBy) || self.managedBy == oldSelf.managedBy)",
    "managedBy is immutable",
)
_MAY_CHANGE = (
    "oldSelf.spec.suspend || !has(oldSelf.status) || !has(oldSelf.status.submissionId)"
    " || has(oldSelf.status.completionTime)"
)
"""True where no attempt runs: the job is suspended or being suspended, not yet submitted, or ended."""
_SUSPEND_FIRST = "cannot change while the job runs; suspend it first"
# These rules stand at the root of the schema, since they read the status. Elastic roles may change `replicas`, which
# the running attempt follows.
ROLES_FIXED = CelRule(
    f"{_MAY_CHANGE} || self.spec.roles.size() == oldSelf.spec.roles.size()"
    " && self.spec.roles.all(r, oldSelf.spec.roles.exists(o, o.name == r.name && o.entrypoint == r.entrypoint"
    " && has(o.accelerator) == has(r.accelerator) && (!has(o.accelerator) || o.accelerator == r.accelerator)"
    " && (r.type == 'Elastic' || has(r.minReplicas) || has(r.maxReplicas) || o.replicas == r.replicas)))",
    "roles, their entrypoint, accelerator and replicas"
    f" {_SUSPEND_FIRST} (replicas of roles with bounds may; args, env and the rest wait for the next attempt)",
)
# CEL has no comparison of optional fields: presence and value are compared one after the other.
_SIZES = " && ".join(
    f"has(o.{name}) == has(g.{name}) && (!has(o.{name}) || o.{name} == g.{name})"
    for name in ("cpu", "memory", "sharedMemory", "accelerator", "image", "labels")
)
GROUPS_FIXED = CelRule(
    f"{_MAY_CHANGE} || has(self.spec.nodeGroups) == has(oldSelf.spec.nodeGroups) && (!has(self.spec.nodeGroups)"
    " || self.spec.nodeGroups.size() == oldSelf.spec.nodeGroups.size()"
    f" && self.spec.nodeGroups.all(g, oldSelf.spec.nodeGroups.exists(o, o.name == g.name && {_SIZES})))",
    f"nodeGroups, their sizes and images {_SUSPEND_FIRST} (replicas may; the rest waits for the next attempt)",
)
IMAGE_FIXED = CelRule(
    f"{_MAY_CHANGE} || has(self.spec.image) == has(oldSelf.spec.image)"
    " && (!has(self.spec.image) || self.spec.image == oldSelf.spec.image)",
    f"image {_SUSPEND_FIRST}",
)
# Commands use these names for other targets.
RESERVED_ROLE = CelRule("!(self.name in ['job', 'master', 'node'])", "reserved name")
# A role group lives on one host and restarts as a whole, so there are only whole groups.
GROUP_SIZE = CelRule("self.replicas % self.replicasPerGroup == 0", "replicasPerGroup must divide replicas")
# A driver that is given back has not done its work, and a quota is taken by a framework that dljob cannot ask for it.
BOUNDS_ELASTIC = CelRule(
    "self.type == 'Elastic' || !has(self.minReplicas) && !has(self.maxReplicas)"
    " || !self.driver && self.reserve != 'Quota'",
    "minReplicas and maxReplicas of an Actor role need driver: false and reserve: Placement",
)
# A role grows and shrinks by whole groups.
BOUNDS = CelRule(
    "(!has(self.minReplicas) || self.minReplicas <= self.replicas && self.minReplicas % self.replicasPerGroup == 0)"
    " && (!has(self.maxReplicas) || self.replicas <= self.maxReplicas"
    " && self.maxReplicas % self.replicasPerGroup == 0)",
    "minReplicas <= replicas <= maxReplicas, each a multiple of replicasPerGroup",
)
# As `BOUNDS`, but machines form no groups of a size.
MACHINE_BOUNDS = CelRule(
    "(!has(self.minReplicas) || self.minReplicas <= self.replicas)"
    " && (!has(self.maxReplicas) || self.replicas <= self.maxReplicas)",
    "minReplicas <= replicas <= maxReplicas",
)
# The ranks of an Actor role form no process group, so `comm` would do nothing (ADR 5).
COMM_ELASTIC = CelRule("self.type == 'Elastic' || !has(self.comm)", "comm is for Elastic roles")
# Survivors leave their process group and form a new one; a script's process cannot start again in place.
IN_PROCESS = CelRule(
    "!has(self.restartPolicy) || !has(self.restartPolicy.level) || self.restartPolicy.level != 'InProcess'"
    " || self.type == 'Elastic' && has(self.entrypoint.class)",
    "restarts in process need an Elastic role whose entrypoint is a class",
)
# The memory grows by a factor, which needs an amount to begin with.
OUT_OF_MEMORY = CelRule(
    "!has(self.restartPolicy) || !has(self.restartPolicy.outOfMemory)"
    " || has(self.resources) && has(self.resources.memory)",
    "outOfMemory needs resources.memory",
)
# A label alone would never replace a node, and a number alone has nothing to count by (ADR 5).
FAILURE_DOMAIN = CelRule(
    "has(self.failureDomainLabel) == has(self.domainFailures)",
    "failureDomainLabel and domainFailures need each other",
)
# What a witness asks for must be complete: a part of it would say nothing (ADR 5).
WITNESS = CelRule(
    "has(self.preset) || has(self.port) && has(self.metric) && has(self.means) && has(self.when) && has(self.value) || "
    "has(self.dump) && !self.act && ![has(self.port), has(self.metric), has(self.means), has(self.when), "
    "has(self.value)].exists(x, x)",
    "a witness without a preset needs port, metric, means, when and value; or a dump alone, which never acts",
)
# Each rank is a Ray driver that calls ray.init(), which an actor cannot do.
QUOTA = CelRule(
    "self.reserve != 'Quota' || self.type == 'Actor' && !has(self.entrypoint.class)",
    "reserve Quota is for Actor roles with a module or command",
)
# A server of TensorFlow ends with its process, and its ranks form no torch world.
TENSORFLOW = CelRule(
    "!has(self.tf) || self.type == 'Actor' && !has(self.entrypoint.class) && self.reserve != 'Quota'"
    " && !has(self.minReplicas) && !has(self.maxReplicas)",
    "tf is for Actor roles with a module or command and a fixed number of ranks",
)
# The chief ends the job: the servers of the other tasks never end by themselves.
TENSORFLOW_TASK = CelRule(
    "!has(self.tf) || (self.tf.task == 'chief' ? self.replicas == 1 : !self.driver)",
    "a TensorFlow cluster has one chief, and its other tasks need driver: false",
)
# A thread cannot be asked by a signal, and its host is killed at a restart.
DRAIN = CelRule("!has(self.drain) || !has(self.entrypoint.class)", "drain is for a module or command")
# A Service without a port does not exist.
SERVICE = CelRule("!self.service || has(self.ports) && self.ports.size() > 0", "service needs ports")
# Elastic roles restart for another size, which no load may decide.
AUTOSCALE = CelRule(
    "!has(self.autoscale) || self.type == 'Actor' && (has(self.minReplicas) || has(self.maxReplicas))",
    "autoscale needs an Actor role with minReplicas or maxReplicas",
)
AUTOSCALE_NAME = CelRule(
    "(self.by == 'calls') != has(self.name)", "by: queue and by: metric need a name; calls has none"
)
ENTRYPOINT = CelRule(
    "[has(self.class), has(self.module), has(self.command)].filter(x, x).size() == 1",
    "exactly one of class, module, command",
)
PROBE = CelRule(
    "[has(self.httpGet), has(self.tcpSocket), has(self.exec), has(self.grpc)].filter(x, x).size() == 1",
    "exactly one of httpGet, tcpSocket, exec, grpc",
)
WEIGHTS_LOAD = CelRule(
    "[has(self.httpPost), has(self.exec), has(self.method)].filter(x, x).size() == 1",
    "exactly one of httpPost, exec, method",
)
WEIGHTS_VERIFY = CelRule(
    "[has(self.httpGet), has(self.exec), has(self.method)].filter(x, x).size() == 1",
    "exactly one of httpGet, exec, method",
)
ENV_FROM = CelRule("has(self.configMapRef) != has(self.secretRef)", "exactly one of configMapRef, secretRef")
# A claim is mounted at the path.
CLAIM_PATH = CelRule("!has(self.claimName) || has(self.path)", "claimName needs path")
GCS_BACKEND = CelRule(
    "self.backend == 'Redis' ? has(self.redisAddress) && !has(self.claimName)"
    " : has(self.claimName) && !has(self.redisAddress) && !has(self.redisPasswordSecret)",
    "Redis needs redisAddress and excludes claimName; RocksDB needs claimName and excludes fields of Redis",
)
MASTER_JOURNAL = CelRule(
    "!has(self.placement) || self.placement != 'Worker' || !has(self.journal) || !has(self.journal.path)",
    "journal.path is a folder of the head: with placement Worker the journal is in Ray's own store",
)
# `count` may be a number or a text; `double` reads both.
COUNT = CelRule("double(self.count) > 0.0", "count must be above 0")
# The head has these names in Ray and KubeRay.
RESERVED_GROUP = CelRule("!(self.name in ['head', 'headgroup'])", "reserved name")
# dljob knows the resource names of the other kinds only (`devices.KUBERNETES`).
CUSTOM = CelRule(
    "!has(self.accelerator) || self.accelerator.type != 'Custom'"
    " || has(self.accelerator.resourceName) && has(self.accelerator.rayResource)",
    "Custom needs resourceName and rayResource",
)
# Without a number of attempts the escalation could never be reached (ADR 5).
ESCALATION = CelRule("!has(self.escalateTo) || has(self.maxAttempts)", "escalateTo needs maxAttempts")

REF_IMMUTABLE = CelRule(
    "has(self.rayClusterRef) == has(oldSelf.rayClusterRef)"
    " && (!has(self.rayClusterRef) || self.rayClusterRef == oldSelf.rayClusterRef)",
    "rayClusterRef is immutable",
)


def _forbidden_rule(path: str, reason: str) -> CelRule:
    """Return the rule that refuses a field beside rayClusterRef."""
    names = path.split(".")
    # Each parent as well: `has` is an error in CEL where a parent is absent.
    absent = [f"!has(self.{'.'.join(names[: count + 1])})" for count in range(len(names))]
    return CelRule(f"!has(self.rayClusterRef) || {' || '.join(absent)}", f"rayClusterRef excludes {path}: {reason}")


# Volumes, images and secrets are set where a pod is made.
_PODS = "the pods exist already"
BESIDE_REF = {
    path: _forbidden_rule(path, reason)
    for path, reason in {
        "nodeGroups": "the RayCluster has its machines",
        "rayClusterTemplate": "the operator does not change the RayCluster",
        "head": "the RayCluster has its head",
        "gcsFaultTolerance": "it must be set where the RayCluster is made",
        "image": "the pods have their image",
        "imagePullPolicy": _PODS,
        "imagePullSecrets": _PODS,
        "envFrom": _PODS,
        "scheduling": "the RayCluster has its own queue",
        "networkPolicy": "others may use the pods",
        "code.configMap": "nothing can be mounted into the pods; use runtimeEnv.working_dir, or their image",
        "checkpoint.claimName": "nothing can be mounted into the pods; name a path that is mounted there",
        "master.journal.claimName": "nothing can be mounted into the pods",
    }.items()
}
"""Path of a field -> the rule against it: these fields would create pods, or change those of the RayCluster."""
REF_SUSPEND = CelRule(
    "!has(self.rayClusterRef) || !self.suspend",
    "rayClusterRef excludes suspend: the operator cannot give the machines back; stop the job",
)
# The API server has filled in the defaults by then, so `has` cannot tell whether the user set these fields.
REF_MASTER = CelRule(
    "!has(self.rayClusterRef) || !has(self.master)"
    " || self.master.cpu == '500m' && self.master.memory == '1Gi' && self.master.placement != 'Worker'",
    "rayClusterRef excludes master.cpu, master.memory and placement Worker: the size of its head is fixed",
)
REF_SPARES = CelRule(
    "!has(self.rayClusterRef) || !has(self.faultTolerance) || !has(self.faultTolerance.spares)"
    " || self.faultTolerance.spares.nodes == 0",
    "rayClusterRef excludes faultTolerance.spares.nodes: machines are not added to it",
)

SPEC = (
    *(DRIVER, COLLOCATED_ROLES, ONE_COLLOCATION, SHARES, SHARERS, DEPENDS_ON, RESTART_WITH, GROUP_ROLES, NODE_GROUP),
    *(TYPE_IMMUTABLE, MANAGED_BY, REF_IMMUTABLE, *BESIDE_REF.values(), REF_SUSPEND, REF_MASTER, REF_SPARES),
)
ROOT = (NAME, ROLES_FIXED, GROUPS_FIXED, IMAGE_FIXED)
ROLE = (
    *(RESERVED_ROLE, GROUP_SIZE, BOUNDS_ELASTIC, BOUNDS, COMM_ELASTIC, IN_PROCESS, OUT_OF_MEMORY, QUOTA),
    *(DRAIN, SERVICE, AUTOSCALE, TENSORFLOW, TENSORFLOW_TASK),
)


def schema(*rules: CelRule) -> dict[str, Any]:
    """Return the rules in the form that a schema carries."""
    return {"x-kubernetes-validations": [rule._asdict() for rule in rules]}
