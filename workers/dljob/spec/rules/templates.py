"""The rules about templates of pods and RayCluster: the fields they may set, and those that dljob needs unchanged.

The API server drops unknown fields of a RayCluster silently. Templates are therefore checked, to the depth of a
container, against the fields that KubeRay 1.6.2 serves (ray-operator, config/crd/bases/ray.io_rayclusters.yaml).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias, cast

from dljob.spec.devices import KUBERNETES
from dljob.spec.model import DLJobSpec, NodeGroup
from dljob.spec.rules.findings import GROUP_NAMES, Check, Finding
from dljob.spec.rules.outside import inside, is_ours
from dljob.spec.text.tree import Loc
from dljob.spec.text.words import did_you_mean, one_of

Object: TypeAlias = Mapping[str, Any]

HEAD, WORKER = "ray-head", "ray-worker"
PORTS = {"gcs-server": 6379, "client": 10001, "dashboard": 8265, "metrics": 8080, "dljob": 8266}
_INIT_CONTAINERS = ("dljob-init", "dljob-image", "wait-gcs-ready")
"""dljob's init container, and the one that KubeRay adds to worker pods."""


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


def _by_kind(kinds: Mapping[str, str]) -> Mapping[str, str]:
    return {name: kind for kind, names in kinds.items() for name in names.split()}


def _list_of(kind: type) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(isinstance(item, kind) for item in cast("list[object]", value))


_KINDS: Mapping[str, Callable[[Any], bool]] = {
    "a mapping": lambda value: isinstance(value, dict),
    "a list": lambda value: isinstance(value, list),
    "a list of mappings": _list_of(dict),
    "a list of texts": _list_of(str),
    # A bool is an int to Python.
    "a whole number": lambda value: type(value) is int,
    "a whole number of seconds, at least 0 and without a unit": lambda value: type(value) is int and value >= 0,
    "true or false": lambda value: isinstance(value, bool),
    "a text": lambda value: isinstance(value, str),
}
"""Kind of value -> whether a value is of it."""
POD_FIELDS = _by_kind(
    {
        "a mapping": "affinity dnsConfig nodeSelector os overhead resources securityContext workloadRef",
        # `_Sheet.items` checks the items of these, which are merged by name.
        "a list": "containers imagePullSecrets initContainers volumes",
        "a list of mappings": "hostAliases readinessGates resourceClaims schedulingGates tolerations"
        " topologySpreadConstraints",
        "a whole number": "priority",
        "a whole number of seconds, at least 0 and without a unit": "activeDeadlineSeconds"
        " terminationGracePeriodSeconds",
        "true or false": "automountServiceAccountToken enableServiceLinks hostIPC hostNetwork hostPID hostUsers"
        " setHostnameAsFQDN shareProcessNamespace",
        "a text": "dnsPolicy hostname hostnameOverride nodeName preemptionPolicy priorityClassName restartPolicy"
        " runtimeClassName schedulerName serviceAccount serviceAccountName subdomain",
    }
)
"""Field of a pod -> the kind of its value."""
CONTAINER_FIELDS = _by_kind(
    {
        "a mapping": "lifecycle livenessProbe readinessProbe resources securityContext startupProbe",
        "a list": "env ports volumeMounts",
        "a list of mappings": "envFrom resizePolicy restartPolicyRules volumeDevices",
        "a list of texts": "args command",
        "true or false": "stdin stdinOnce tty",
        "a text": "image imagePullPolicy name restartPolicy terminationMessagePath terminationMessagePolicy workingDir",
    }
)
"""Field of a container -> the kind of its value."""
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
_TERMS = {_REQUIRED: "a list of mappings", _PREFERRED: "a list of mappings"}
_AFFINITY: Mapping[str, Mapping[str, str]] = {
    "nodeAffinity": {_REQUIRED: "a mapping", _PREFERRED: "a list of mappings"},
    "podAffinity": _TERMS,
    "podAntiAffinity": _TERMS,
}
"""Part of an affinity -> its fields, with the kind of each; dljob adds terms of its own."""
_SECURITY_CONTEXT = _by_kind(
    {
        "a mapping": "appArmorProfile capabilities seLinuxOptions seccompProfile windowsOptions",
        "a whole number": "fsGroup runAsGroup runAsUser",
        "true or false": "allowPrivilegeEscalation privileged readOnlyRootFilesystem runAsNonRoot",
        "a text": "fsGroupChangePolicy procMount seLinuxChangePolicy supplementalGroupsPolicy",
    }
)
"""Field of the securityContext of a pod or a container -> the kind of its value."""
_PROBE = _by_kind(
    {
        "a mapping": "exec grpc httpGet tcpSocket",
        "a whole number": "failureThreshold initialDelaySeconds periodSeconds successThreshold timeoutSeconds"
        " terminationGracePeriodSeconds",
    }
)
_CONTAINER_PARTS = {
    "securityContext": _SECURITY_CONTEXT,
    **dict.fromkeys(("livenessProbe", "readinessProbe", "startupProbe"), _PROBE),
}
_MOUNT = _by_kind({"true or false": "readOnly", "a text": "mountPath mountPropagation subPath subPathExpr"})
# Fields of a RayCluster that a template may set; `_SAID_ELSEWHERE` says why other fields are refused.
_CLUSTER = frozenset({"headGroupSpec", "headServiceAnnotations", "workerGroupSpecs"})
_HEAD_GROUP = frozenset({"enableIngress", "headService", "labels", "rayStartParams", "serviceType", "template"})
_WORKER_GROUP = frozenset({"groupName", "rayStartParams", "template"})
# Parameters of `ray start` that the renderer or KubeRay sets.
RAY_START_PARAMS = _names(
    "num-cpus num-gpus resources labels port dashboard-port dashboard-host dashboard-agent-listen-port"
    " metrics-export-port block head address"
)

_AUTOSCALER = "Ray's autoscaler stays off: it knows nothing of the job's ranks"
_REPLICAS = "set nodeGroups[].replicas"
_SAID_ELSEWHERE = {
    "rayVersion": "set spec.rayVersion",
    "gcsFaultToleranceOptions": "set spec.gcsFaultTolerance",
    "authOptions": "the operator makes the token",
    "upgradeStrategy": "pods are replaced one by one",
    "suspend": "a queue or the operator suspends",
    "managedBy": "KubeRay runs the RayCluster",
    "enableInTreeAutoscaling": _AUTOSCALER,
    "autoscalerOptions": _AUTOSCALER,
    "idleTimeoutSeconds": _AUTOSCALER,
    "replicas": _REPLICAS,
    "minReplicas": _REPLICAS,
    "maxReplicas": _REPLICAS,
    "numOfHosts": _REPLICAS,
    "labels": "set nodeGroups[].labels",
    "resources": "the plan sets what Ray counts",
    "scaleStrategy": "the operator replaces pods",
}
"""Field of a RayCluster that a template may not set -> the reason."""


@dataclass(slots=True)
class _Sheet:
    """The findings about one template, collected on the way down."""

    mounted: Mapping[str, str]
    """Path in Ray's container -> the field of the spec that mounts a volume there."""
    findings: list[Finding] = field(default_factory=list[Finding])

    def say(self, loc: Loc, message: str, hint: str = "", *, key: bool = False) -> None:
        """Add a finding."""
        self.findings.append(Finding(loc, message, hint, at_key=key))

    def mapping(self, loc: Loc, parent: Object, key: str) -> Object:
        """Return a part that must be a mapping; empty, with a finding, where it is none."""
        value: object = parent.get(key, {})
        if isinstance(value, dict):
            return cast("dict[str, Any]", value)
        self.say((*loc, key), "must be a mapping")
        return {}

    def items(self, loc: Loc, parent: Object, key: str, by: str = "name") -> Iterator[tuple[Loc, Object]]:
        """Return the items of a list that is merged by `by`; items without it are left out, with a finding."""
        value: object = parent.get(key, [])
        if not isinstance(value, list):
            self.say((*loc, key), "must be a list")
            return
        names: set[str] = set()
        for at, item in enumerate(cast("list[object]", value)):
            item_loc, name = (
                (*loc, key, at),
                cast("dict[str, object]", item).get(by) if isinstance(item, dict) else None,
            )
            # Without the key, an item cannot be merged with one of the rendered list.
            if not isinstance(name, str) or not name:
                self.say(item_loc, f"needs {by}, a text", f"it identifies the items of {key}")
            elif name in names:
                self.say((*item_loc, by), f"{name} is listed twice", "keep one")
            else:
                names.add(name)
                yield item_loc, cast("dict[str, Any]", item)

    def known(self, loc: Loc, value: Object, names: Iterable[str], hint: str = "") -> None:
        """Add a finding for each key that is not known."""
        for name in value:
            if name not in names:
                self.say((*loc, name), "unknown field", did_you_mean(name, names) or hint, key=True)

    def kinds(self, loc: Loc, value: Object, kinds: Mapping[str, str]) -> None:
        """Add a finding for each field whose value is of another kind; null takes a field out."""
        for name, field_value in value.items():
            if name in kinds and field_value is not None and not _KINDS[kinds[name]](field_value):
                self.say((*loc, name), f"must be {kinds[name]}")

    def kinds_below(self, loc: Loc, parent: Object, name: str, kinds: Mapping[str, str]) -> None:
        """Add a finding for each field of another kind in the mapping of that name, where there is one."""
        if isinstance(parent.get(name), dict):
            self.kinds((*loc, name), parent[name], kinds)

    def metadata(self, loc: Loc, parent: Object) -> None:
        """Check labels and annotations: values are texts, and no key is reserved by dljob."""
        metadata_loc = (*loc, "metadata")
        metadata = self.mapping(loc, parent, "metadata")
        self.known(metadata_loc, metadata, ("labels", "annotations"), "metadata may have labels and annotations")
        for section in ("labels", "annotations"):
            for name, text in self.mapping(metadata_loc, metadata, section).items():
                if is_ours(name):
                    self.say((*metadata_loc, section, name), f"{name} is set by dljob", "choose another", key=True)
                elif not isinstance(text, str):
                    self.say((*metadata_loc, section, name), "must be a text", "write it in quotes")


def _pod(sheet: _Sheet, loc: Loc, template: Object, group: NodeGroup | None) -> None:
    """Find errors in a partial PodTemplateSpec for the machines of a group, or for the head."""
    ray = WORKER if group else HEAD
    _parts(sheet, loc, template)
    sheet.metadata(loc, template)
    spec_loc, spec = (*loc, "spec"), sheet.mapping(loc, template, "spec")
    sheet.known(spec_loc, spec, POD_FIELDS)
    sheet.kinds(spec_loc, spec, POD_FIELDS)
    sheet.kinds_below(spec_loc, spec, "securityContext", _SECURITY_CONTEXT)
    _affinity(sheet, (*spec_loc, "affinity"), spec.get("affinity"))
    _pod_lists(sheet, spec_loc, spec, group)
    for at, container in sheet.items(spec_loc, spec, "containers"):
        if container["name"] == ray:
            _container(sheet, at, container, platform=True, head=group is None)
            _resources(sheet, at, container, group)
            continue
        _container(sheet, at, container)
        if container["name"] in (HEAD, WORKER):
            sheet.say((*at, "name"), f"there is no {container['name']} in this pod", f"Ray's container is {ray} here")
        # Every other container is a sidecar of the user's, which nothing else gives an image.
        elif not container.get("image"):
            sheet.say(at, f"the container {container['name']} has no image", f"Ray's own container is called {ray}")


def _parts(sheet: _Sheet, loc: Loc, template: Object) -> None:
    for name in template:
        if name not in ("metadata", "spec"):
            hint = f"write spec: {{{name}: ...}}" if name in POD_FIELDS else "a template has metadata and spec"
            sheet.say((*loc, name), "unknown field", hint, key=True)


def _affinity(sheet: _Sheet, loc: Loc, affinity: object) -> None:
    if isinstance(affinity, dict):
        parts = cast("dict[str, Any]", affinity)
        sheet.kinds(loc, parts, dict.fromkeys(_AFFINITY, "a mapping"))
        for name, kinds in _AFFINITY.items():
            sheet.kinds_below(loc, parts, name, kinds)


def _pod_lists(sheet: _Sheet, spec_loc: Loc, spec: Object, group: NodeGroup | None) -> None:
    """Check volumes, secrets and init containers: dljob's own may not be changed."""
    for at, volume in sheet.items(spec_loc, spec, "volumes"):
        name = str(volume["name"])
        # `shm` is dljob's volume only where sharedMemory asks for one.
        if name == "dljob" or name.startswith("dljob-") or (name == "shm" and group and group.shared_memory):
            sheet.say((*at, "name"), f"the volume {name} is reserved for dljob", "choose another name")
        sheet.kinds(at, volume, dict.fromkeys(volume.keys() - {"name"}, "a mapping"))
    for _ in sheet.items(spec_loc, spec, "imagePullSecrets"):
        pass  # the iteration itself finds items without a name, and repeated ones
    for at, container in sheet.items(spec_loc, spec, "initContainers"):
        if container["name"] in _INIT_CONTAINERS:
            sheet.say((*at, "name"), f"the container {container['name']} is reserved for dljob", "choose another name")
        _container(sheet, at, container)


def _container(sheet: _Sheet, loc: Loc, container: Object, *, platform: bool = False, head: bool = False) -> None:
    """Find errors in a container; `platform` marks the container that runs Ray."""
    _container_kinds(sheet, loc, container)
    for at, mount in sheet.items(loc, container, "volumeMounts", "mountPath"):
        sheet.kinds(at, mount, _MOUNT)
        path = str(mount["mountPath"])
        place = inside(path)
        if place:
            sheet.say((*at, "mountPath"), f"{path} lies in {place}, which is reserved for dljob", "mount it elsewhere")
        elif platform and path.rstrip("/") in sheet.mounted:
            sheet.say((*at, "mountPath"), f"{path} is mounted already", sheet.mounted[path.rstrip("/")])
    for at, variable in sheet.items(loc, container, "env"):
        name = str(variable["name"])
        if platform and (name.startswith(("DLJOB_", "RAY_AUTH_")) or name == "POD_NAME"):
            sheet.say((*at, "name"), f"{name} is set by dljob", "choose another name")
        # dljob appends its folder to the value, which it cannot do to a `valueFrom`.
        elif platform and name == "PYTHONPATH" and not isinstance(variable.get("value"), str):
            sheet.say(at, "PYTHONPATH needs a value, to which dljob adds a folder", 'write value: "..."')
    for at, port in sheet.items(loc, container, "ports"):
        name, number = port["name"], port.get("containerPort")
        # The same name or the same number, but not both: one port would displace the other.
        displaced_port = next((n for n, p in PORTS.items() if (n == name) != (p == number)), "")
        if head and displaced_port:
            sheet.say(
                at, f"{name} at {number} is in the way of {displaced_port} at {PORTS[displaced_port]}", "choose another"
            )
    if platform and "ray start" in f"{container.get('command')} {container.get('args')}":
        sheet.say(loc, "dljob starts Ray", "leave ray start out: your command runs before it")


def _container_kinds(sheet: _Sheet, loc: Loc, container: Object) -> None:
    sheet.known(loc, container, CONTAINER_FIELDS)
    sheet.kinds(loc, container, CONTAINER_FIELDS)
    for part, kinds in _CONTAINER_PARTS.items():
        sheet.kinds_below(loc, container, part, kinds)


def _resources(sheet: _Sheet, loc: Loc, container: Object, group: NodeGroup | None) -> None:
    """Check that a template of Ray's container does not set values that have typed fields."""
    resources_loc, resources = (*loc, "resources"), sheet.mapping(loc, container, "resources")
    for section in ("requests", "limits"):
        for name in sheet.mapping(resources_loc, resources, section):
            owner = _owner(section, name, group)
            if owner:
                sheet.say((*resources_loc, section, name), f"{owner} sets it", "set it there", key=True)


def _owner(section: str, resource: str, group: NodeGroup | None) -> str:
    """Return the typed field for the amount of a resource of Ray's container, which Ray and the plan count by."""
    if group is None:
        # The head's requests are typed fields; its limits are left to the user.
        return f"spec.head.{resource}" if section == "requests" and resource in ("cpu", "memory") else ""
    if section == "limits" and resource in ("cpu", "memory"):
        return f"nodeGroups[].{resource}"
    device = group.accelerator
    if device and resource == (device.resource_name or KUBERNETES.get(device.type)):
        return "nodeGroups[].accelerator"
    return ""


def _ray_start(sheet: _Sheet, loc: Loc, group: Object) -> None:
    for name, value in sheet.mapping(loc, group, "rayStartParams").items():
        param_loc = (*loc, "rayStartParams", name)
        if name in RAY_START_PARAMS:
            sheet.say(param_loc, f"{name} is set by dljob", "leave it out", key=True)
        # KubeRay's rayStartParams hold texts only.
        elif not isinstance(value, str):
            sheet.say(param_loc, "must be a text", "write it in quotes")


def _refuse_unknown(sheet: _Sheet, loc: Loc, value: Object, names: frozenset[str]) -> None:
    """Refuse keys that are not in `names`, with the reason for fields of a RayCluster."""
    # Fields with a reason of their own are left to the loop below.
    sheet.known(loc, {name: 0 for name in value if name in names or name not in _SAID_ELSEWHERE}, names)
    for name in value:
        if name not in names and name in _SAID_ELSEWHERE:
            sheet.say((*loc, name), "cannot be set in a template", _SAID_ELSEWHERE[name], key=True)


def _cluster(sheet: _Sheet, loc: Loc, job: DLJobSpec) -> None:
    """Find errors in a partial RayCluster."""
    template = job.ray_cluster_template
    _parts(sheet, loc, template)
    sheet.metadata(loc, template)
    spec_loc, spec = (*loc, "spec"), sheet.mapping(loc, template, "spec")
    _refuse_unknown(sheet, spec_loc, spec, _CLUSTER)
    head, at_head = sheet.mapping(spec_loc, spec, "headGroupSpec"), (*spec_loc, "headGroupSpec")
    _refuse_unknown(sheet, at_head, head, _HEAD_GROUP)
    _ray_start(sheet, at_head, head)
    _pod(sheet, (*at_head, "template"), sheet.mapping(at_head, head, "template"), None)
    groups = {group.name: group for group in job.node_groups}
    for at, group in sheet.items(spec_loc, spec, "workerGroupSpecs", "groupName"):
        name = str(group["groupName"])
        if name not in groups:
            # Worker groups are made from nodeGroups; a template only changes them.
            hint = one_of(name, list(groups)) if groups else "declare it in nodeGroups"
            reads = ((*at, "groupName"), GROUP_NAMES)
            sheet.findings.append(Finding(reads[0], f"there is no node group {name}", hint, reads))
            continue
        _refuse_unknown(sheet, at, group, _WORKER_GROUP)
        _ray_start(sheet, at, group)
        _pod(sheet, (*at, "template"), sheet.mapping(at, group, "template"), groups[name])


def _mounted(spec: DLJobSpec) -> Iterator[tuple[str, str]]:
    if spec.checkpoint and spec.checkpoint.claim_name and spec.checkpoint.path:
        yield spec.checkpoint.path.rstrip("/"), "spec.checkpoint mounts it"
    if spec.master.journal.claim_name and spec.master.journal.path:
        yield spec.master.journal.path.rstrip("/"), "spec.master.journal mounts it"


def _templates(spec: DLJobSpec) -> Iterator[Finding]:
    sheet = _Sheet(dict(_mounted(spec)))
    _pod(sheet, ("spec", "head", "template"), spec.head.template, None)
    for index, group in enumerate(spec.node_groups):
        _pod(sheet, ("spec", "nodeGroups", index, "template"), group.template, group)
    _cluster(sheet, ("spec", "rayClusterTemplate"), spec)
    # A value of a wrong kind may be found as one of its fields and as one that is merged.
    yield from dict.fromkeys(sheet.findings)


TEMPLATE_RULES: tuple[Check, ...] = (_templates,)
