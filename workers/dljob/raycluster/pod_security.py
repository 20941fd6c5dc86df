"""Pod security of a job: what its pods may not ask of their node or of the cluster, by the operator's policy.

The levels are those of Kubernetes' Pod Security Standards (kubernetes.io, Pod Security Standards, v1.36). They are
checked on the rendered RayCluster with all templates merged, since several templates may be wrong only together; a
finding names the template that set the field.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, cast

from dljob.plan.model import MachineGroup
from dljob.raycluster.overlay import KEYS
from dljob.raycluster.render import preview_of
from dljob.spec.model import DLJobManifest
from dljob.spec.rules.findings import Finding
from dljob.spec.text.tree import Loc
from dljob.spec.text.words import path_of

Object: TypeAlias = Mapping[str, Any]
Level: TypeAlias = Literal["privileged", "baseline", "restricted"]
Allowed: TypeAlias = Callable[[object], bool]

LEVELS: tuple[Level, ...] = ("privileged", "baseline", "restricted")
DEFAULT_ACCOUNT = "default"
"""Service account of a pod that names none."""


@dataclass(frozen=True, slots=True)
class PodPolicy:
    """An operator's limits on the pods of jobs; each field is a value of its chart."""

    level: Level = "baseline"
    """jobs.podSecurity."""
    capabilities: tuple[str, ...] = ("IPC_LOCK",)
    """jobs.capabilities: what containers may add beyond the level. RDMA pins its memory with IPC_LOCK."""
    exempt: tuple[str, ...] = ()
    """jobs.exemptNamespaces: there neither level nor capabilities are checked."""
    accounts: tuple[str, ...] = ()
    """jobs.serviceAccounts: accounts that pods may use; empty for any of their namespace."""
    operator: str = ""
    """`namespace/name` of the operator's own service account, which no job may use; empty if unknown."""


@dataclass(frozen=True, slots=True)
class _Pod:
    """A pod template of the RayCluster, with the spec's templates that were merged into it, last one first."""

    template: Object
    written: tuple[tuple[Loc, Object], ...]
    home: Loc
    """The place in the spec that declares these pods, for fields that no template sets."""

    @property
    def spec(self) -> Object:
        return _mapping(self.template, "spec")

    def place(self, loc: Loc) -> Loc:
        """Return the place in the spec that sets `loc` of the pod (list items by name in `loc`); else the home."""
        for at, template in self.written:
            indexed = _indexed_location(template, loc)
            if indexed is not None:
                return (*at, *indexed)
        return self.home


def breaches(manifest: DLJobManifest, groups: Mapping[str, MachineGroup], policy: PodPolicy) -> tuple[Finding, ...]:
    """Return all that the pods of a job ask for and may not have; nothing for a job on an existing RayCluster.

    `groups` are the machines of its plan, or those that the spec declares where it has no plan.
    """
    findings: list[Finding] = []
    namespace = manifest.metadata.namespace or ""
    exempt = namespace in policy.exempt
    # Exempt namespaces keep the rule on accounts: the operator's own is never a job's (docs/adr/0068).
    # With the operator's init container, which most operators add: pods that only fit without it are no answer.
    for pod in _pods(manifest, preview_of(groups, manifest, init_image="dljob")):
        findings += _accounts(pod, namespace, policy)
        if not exempt:
            findings += (_of_level(pod.place(loc), wrong, remedy, policy) for loc, wrong, remedy in _level(pod, policy))
            findings += _capabilities(pod, policy)
    return tuple(findings)


def _of_level(loc: Loc, wrong: str, remedy: str, policy: PodPolicy) -> Finding:
    hint = f"{remedy}, or ask the operator's administrator for this namespace in jobs.exemptNamespaces"
    verb = "asks for" if " has no " in wrong or " does not " in wrong else "forbids"
    return Finding(loc, f"{wrong}, which the operator's jobs.podSecurity={policy.level} {verb}", hint)


def _pods(manifest: DLJobManifest, cluster: Object) -> Iterator[_Pod]:
    if not cluster:
        return
    spec, over = manifest.spec, _mapping(manifest.spec.ray_cluster_template, "spec")
    at: Loc = ("spec", "rayClusterTemplate", "spec")
    # The template that is merged last comes first: its value is the one that counts.
    head = (
        ((*at, "headGroupSpec", "template"), _mapping(over, "headGroupSpec", "template")),
        (("spec", "head", "template"), spec.head.template),
    )
    yield _Pod(_mapping(cluster, "spec", "headGroupSpec", "template"), head, ("spec", "head"))
    declared = {group.name: (number, group.template) for number, group in enumerate(spec.node_groups)}
    laid = {
        str(group_spec["groupName"]): (number, group_spec)
        for number, group_spec in enumerate(_items(over, "workerGroupSpecs"))
    }
    for group in _items(cluster, "spec", "workerGroupSpecs"):
        name = str(group["groupName"])
        written: list[tuple[Loc, Object]] = []
        if name in laid:
            number, group_spec = laid[name]
            written.append(((*at, "workerGroupSpecs", number, "template"), _mapping(group_spec, "template")))
        home: Loc = ("spec", "nodeGroups")  # for a group that the plan derived
        if name in declared:
            number, template = declared[name]
            home = (*home, number)
            written.append(((*home, "template"), template))
        yield _Pod(_mapping(group, "template"), tuple(written), home)


# -- the levels


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


def _off(value: object) -> bool:
    # Absent and null mean the default, which is off.
    return value is None or value is False


def _on(value: object) -> bool:
    return value is True


# Fields that are not known to be allowed are refused, whatever their type (docs/adr/0068).
def _one_of(*names: str) -> Allowed:
    return lambda value: value is None or value in names


_SECCOMP = ("RuntimeDefault", "Localhost")
_CONTAINER_T = ("", "container_t", "container_init_t", "container_kvm_t", "container_engine_t")
_POD: Mapping[Loc, Allowed] = {(name,): _off for name in ("hostNetwork", "hostPID", "hostIPC")}
_CONTEXT: Mapping[Loc, Allowed] = {
    ("securityContext", "windowsOptions", "hostProcess"): _off,
    ("securityContext", "appArmorProfile", "type"): _one_of("RuntimeDefault", "Localhost"),
    ("securityContext", "seLinuxOptions", "type"): _one_of(*_CONTAINER_T),
    ("securityContext", "seLinuxOptions", "user"): _one_of(""),
    ("securityContext", "seLinuxOptions", "role"): _one_of(""),
    ("securityContext", "seccompProfile", "type"): _one_of(*_SECCOMP),
}
"""Fields of a pod and of each container."""
_HOOKS: tuple[Loc, ...] = (
    *(
        (probe, way)
        for probe in ("livenessProbe", "readinessProbe", "startupProbe")
        for way in ("httpGet", "tcpSocket")
    ),
    *(("lifecycle", hook, way) for hook in ("postStart", "preStop") for way in ("httpGet", "tcpSocket")),
)
"""Probes and hooks that can make the kubelet send requests to any host."""
_CONTAINER: Mapping[Loc, Allowed] = {
    **_CONTEXT,
    ("securityContext", "privileged"): _off,
    ("securityContext", "procMount"): _one_of("Default"),
    **{(*hook, "host"): _one_of("") for hook in _HOOKS},
}
_SYSCTLS = _names(
    "kernel.shm_rmid_forced net.ipv4.ip_local_port_range net.ipv4.ip_unprivileged_port_start net.ipv4.tcp_syncookies"
    " net.ipv4.ping_group_range net.ipv4.ip_local_reserved_ports net.ipv4.tcp_keepalive_time net.ipv4.tcp_rmem"
    " net.ipv4.tcp_fin_timeout net.ipv4.tcp_keepalive_intvl net.ipv4.tcp_keepalive_probes net.ipv4.tcp_wmem"
)
_CAPABILITIES: Mapping[Level, frozenset[str]] = {
    "baseline": _names(
        "AUDIT_WRITE CHOWN DAC_OVERRIDE FOWNER FSETID KILL MKNOD NET_BIND_SERVICE SETFCAP SETGID SETPCAP SETUID"
        " SYS_CHROOT"
    ),
    "restricted": frozenset({"NET_BIND_SERVICE"}),
}
_VOLUMES = _names("name configMap csi downwardAPI emptyDir ephemeral image persistentVolumeClaim projected secret")
"""Kinds of volumes that `restricted` allows; source: k8s.io/pod-security-admission 0.36, check_restrictedVolumes.go."""
_APPARMOR = "container.apparmor.security.beta.kubernetes.io/"


_OUT = "leave it out"
_NOT_ROOT = "{runAsNonRoot: true, runAsUser: 1000}"


def _level(pod: _Pod, policy: PodPolicy) -> Iterator[tuple[Loc, str, str]]:
    """Yield (place in the pod template, violation, remedy) for the policy's level."""
    if policy.level == "privileged":
        return
    is_restricted = policy.level == "restricted"
    for loc, wrong in _baseline(pod):
        # Without a profile the next level would refuse the pod, too.
        needs_profile = is_restricted and loc[-2:] == ("seccompProfile", "type")
        yield loc, wrong, "write RuntimeDefault there" if needs_profile else _OUT
    if is_restricted:
        yield from _restricted(pod)


def _baseline(pod: _Pod) -> Iterator[tuple[Loc, str]]:
    spec, at = pod.spec, ("spec",)
    yield from _values(spec, at, {**_POD, **_CONTEXT})
    for volume in _items(spec, "volumes"):
        if "hostPath" in volume:
            yield (*at, "volumes", volume["name"], "hostPath"), "hostPath mounts a folder of the node"
    for sysctl in _items(spec, "securityContext", "sysctls"):
        if sysctl.get("name") not in _SYSCTLS:
            yield (*at, "securityContext", "sysctls"), f"sysctl {sysctl.get('name')} is of the whole node"
    # Annotations are the older way to set what `appArmorProfile` sets.
    for name, profile in _mapping(pod.template, "metadata", "annotations").items():
        allowed = profile == "runtime/default" or str(profile).startswith("localhost/")
        if name.startswith(_APPARMOR) and not allowed:
            yield ("metadata", "annotations", name), f"{name} is {profile}"
    for container_path, container in _containers(spec):
        yield from _values(container, container_path, _CONTAINER)
        for port in _items(container, "ports"):
            # 0 is the value of a port that is not on the host.
            if port.get("hostPort") not in (None, 0):
                yield (*container_path, "ports", port.get("name", ""), "hostPort"), f"hostPort is {port['hostPort']}"


def _restricted(pod: _Pod) -> Iterator[tuple[Loc, str, str]]:
    spec, at = pod.spec, ("spec",)
    # At the pod, it holds for the containers that dljob and KubeRay add, too.
    not_root = f"write template: {{spec: {{securityContext: {_NOT_ROOT}}}}} at {path_of(pod.home)}"
    for volume in _items(spec, "volumes"):
        # `_baseline` reports hostPath.
        for kind in sorted(volume.keys() - _VOLUMES - {"hostPath"}):
            yield (*at, "volumes", volume["name"], kind), f"volume {volume['name']} is of kind {kind}", _OUT
    for container_path, container in _containers(spec):
        context = _mapping(container, "securityContext")
        # A container inherits the pod's context, and overrides it field by field.
        merged_context = {**_mapping(spec, "securityContext"), **context}
        place, name = (*container_path, "securityContext"), f"container {container_path[-1]}"
        if not _on(merged_context.get("runAsNonRoot")):
            # A line at the pod changes nothing for a container that has its own.
            remedy = "write true there" if "runAsNonRoot" in context else not_root
            yield (*place, "runAsNonRoot"), f"{name} does not say runAsNonRoot: true", remedy
        if merged_context.get("runAsUser") == 0:
            user_place = place if "runAsUser" in context else (*at, "securityContext")
            yield (*user_place, "runAsUser"), f"{name} runs as user 0", _OUT
        if _at(merged_context, ("seccompProfile", "type")) is None:
            yield (*place, "seccompProfile"), f"{name} has no seccompProfile", "write {type: RuntimeDefault} there"
        # Only a container can have this field and capabilities, so there is nothing to inherit.
        if context.get("allowPrivilegeEscalation") is not False:
            yield (
                (*place, "allowPrivilegeEscalation"),
                f"{name} does not say allowPrivilegeEscalation: false",
                "write false there",
            )
        if "ALL" not in _texts(_at(context, ("capabilities", "drop"))):
            yield (
                (*place, "capabilities", "drop"),
                f"{name} does not drop ALL capabilities",
                "write [ALL] there",
            )


def _values(value: Object, at: Loc, table: Mapping[Loc, Allowed]) -> Iterator[tuple[Loc, str]]:
    for path, allowed in table.items():
        value_found = _at(value, path)
        if not allowed(value_found):
            yield (
                (*at, *path),
                f"{path[-1]} is {str(value_found).lower() if isinstance(value_found, bool) else value_found}",
            )


# -- capabilities and service accounts


def _capabilities(pod: _Pod, policy: PodPolicy) -> Iterator[Finding]:
    if policy.level == "privileged":
        return
    allowed = _CAPABILITIES[policy.level] | set(policy.capabilities)
    for container_path, container in _containers(pod.spec):
        loc = (*container_path, "securityContext", "capabilities", "add")
        for name in _texts(_at(container, loc[-3:])):
            if name not in allowed:
                wrong = f"capability {name} is none of {policy.level}, nor of the operator's jobs.capabilities"
                yield Finding(pod.place(loc), wrong, "leave it out, or ask the operator's administrator for it")


def _accounts(pod: _Pod, namespace: str, policy: PodPolicy) -> Iterator[Finding]:
    named = next((key for key in ("serviceAccountName", "serviceAccount") if pod.spec.get(key)), "")
    # A pod without a token cannot act as its account.
    used = str(pod.spec[named]) if named else DEFAULT_ACCOUNT if _has_token(pod.spec) else ""
    if not used:
        return
    loc = pod.place(("spec", named or "automountServiceAccountToken"))
    operator_namespace, _, operator_account = policy.operator.partition("/")
    if operator_account and (namespace, used) == (operator_namespace, operator_account):
        yield Finding(loc, f"service account {used} is the operator's own", "choose another")
    elif policy.accounts and used not in policy.accounts:
        wrong = f"service account {used} is none of the operator's jobs.serviceAccounts: {', '.join(policy.accounts)}"
        yield Finding(loc, wrong, "choose one of these, or ask the operator's administrator for it")


def _has_token(spec: Object) -> bool:
    """Return whether a pod can act as its service account. Pods that dljob renders cannot, whichever it is."""
    sources = (source for volume in _items(spec, "volumes") for source in _items(volume, "projected", "sources"))
    projected = any(source.get("serviceAccountToken") is not None for source in sources)
    # By default Kubernetes mounts a token.
    return projected or spec.get("automountServiceAccountToken") is not False


# -- reading templates


def _containers(spec: Object) -> Iterator[tuple[Loc, Object]]:
    for kind in ("initContainers", "containers"):
        for container in _items(spec, kind):
            yield ("spec", kind, container["name"]), container


def _at(value: object, path: Loc) -> object:
    for key in path:
        if not isinstance(value, Mapping):
            return None
        value = cast("Mapping[object, object]", value).get(key)
    return value


def _mapping(value: object, *path: str) -> Object:
    inner = _at(value, path)
    return cast("Object", inner) if isinstance(inner, Mapping) else {}


def _items(value: object, *path: str) -> Sequence[Object]:
    inner = _at(value, path)
    if not isinstance(inner, list | tuple):
        return ()
    return [cast("Object", item) for item in cast("Sequence[object]", inner) if isinstance(item, Mapping)]


def _texts(value: object) -> Sequence[str]:
    """Return the texts of a list; any other value as its one text, which no list of allowed names contains."""
    if value is None:
        return ()
    return [str(item) for item in cast("Sequence[object]", value)] if isinstance(value, list) else [str(value)]


def _indexed_location(template: object, loc: Loc) -> Loc | None:
    """Return a place with indices instead of names, if a template sets it; else None."""
    indexed_path: list[str | int] = []
    value, last = template, ""
    for key in loc:
        if isinstance(value, list):
            by = KEYS.get(last, "name")
            names = [_at(item, (by,)) for item in cast("list[object]", value)]
            if key not in names:
                return None
            indexed_path.append(names.index(key))
            value = cast("list[object]", value)[names.index(key)]
        elif isinstance(value, Mapping) and key in value:
            indexed_path.append(key)
            value = cast("Mapping[object, object]", value)[key]
        else:
            return None
        last = str(key)
    return tuple(indexed_path)
