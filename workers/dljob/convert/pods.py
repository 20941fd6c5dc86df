"""Pod templates: what becomes a machine of the job, and what the process in it needs.

Most of a pod template is carried as `nodeGroups[].template`, since dljob merges that over the pods of the machines.
Amounts, image and command have typed fields.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from dljob.convert.command import expanded, launcher, mentions, of_words, refers
from dljob.convert.source import UNKNOWN, Draft, SourceManifest, UnfitError
from dljob.spec.devices import KUBERNETES
from dljob.spec.quantity import CPU_PATTERN, MEMORY_PATTERN
from dljob.spec.rules.outside import inside, is_ours
from dljob.spec.rules.templates import CONTAINER_FIELDS, POD_FIELDS, WORKER
from dljob.spec.scalars import ENV_PATTERN
from dljob.spec.text.tree import Loc
from dljob.spec.text.words import did_you_mean, path_of

DEFAULT_CONTAINER = "kubectl.kubernetes.io/default-container"
ARCH = ("kubernetes.io/arch", "beta.kubernetes.io/arch")
WRITTEN = ("creationTimestamp", "uid", "resourceVersion", "generation", "managedFields", "selfLink", "ownerReferences")
"""Fields of metadata that the API server writes."""
BY_SERVER = "the API server writes it"
DRIVER = "driver"
"""Node group of a RayJob's driver, made from headGroupSpec."""
BY_RAY = ("RAY_IP", "FQ_RAY_IP", "RAY_ADDRESS", "RAY_PORT", "REDIS_PASSWORD")
_EXPANDED = re.compile(r"\$\(([A-Za-z_][A-Za-z0-9_.]*)\)")
_RESERVED_VOLUMES = re.compile(r"dljob(-.*)?")


@dataclass(slots=True)
class ConvertedPod:
    """What a pod template says about its process."""

    loc: Loc
    """Place of the main container in the source."""
    group: Loc
    """Place of its machines in the DLJob."""
    cpu: str | None = None
    devices: tuple[str, int] | None = None
    """Kind and number of devices."""
    env: dict[str, str] = field(default_factory=dict[str, str])
    """Variables with a plain value."""
    inner: set[str] = field(default_factory=set[str])
    """Variables that stay in the pod, whose values only a process there knows."""
    rank_variables: dict[str, Loc] = field(default_factory=dict[str, Loc])
    """Variables of the manifest that depend on the rank, with their places: `variables` says what becomes of them."""
    workdir: str = ""
    probes: dict[str, Any] = field(default_factory=dict[str, Any])
    """Probes that a role can have."""


@dataclass(frozen=True, slots=True)
class Manner:
    """How the pods of a kind of manifest differ."""

    main: tuple[str, ...] = ()
    """Names of the main container, where neither an annotation nor its launcher or devices say which it is."""
    ray: bool = False
    """Whether the pod runs Ray, so that command, probes and ports are those of `ray start`."""
    rank_variables: tuple[str, ...] = ()
    """Variables that depend on the rank: PrimeMaster gives them to it, or its command sets them."""
    sets: tuple[str, ...] = ()
    """Variables that the controller of this kind sets in each pod, beside those of torch."""
    ports: tuple[str, ...] = ()
    """Names of ports of the rendezvous."""


def metadata(draft: Draft, loc: Loc, to: Loc) -> None:
    """Carry labels and annotations of a pod template."""
    source = draft.source
    for key, at in source.keys(loc):
        if key in ("labels", "annotations"):
            for name, place in source.keys(at):
                _label(draft, place, (*to, key, name), name)
        elif key in ("name", "namespace", "generateName"):
            source.harmless(at, "KubeRay names the pods")
        elif key in WRITTEN:
            source.harmless(at, BY_SERVER)


def _label(draft: Draft, loc: Loc, to: Loc, name: str) -> None:
    source = draft.source
    if is_ours(name) or name == "ray.io/is-ray-node":
        source.harmless(loc, "dljob and KubeRay set it")
    elif (text := source.text(loc)) is not None:
        draft.move(loc, to, text)


def machine(draft: Draft, template: Loc, group: Loc, manner: Manner) -> ConvertedPod:
    """Convert a pod template into the node group at `group`, and return what it says about its process.

    Args:
        draft: the DLJob in the making; the node group has its name already.
        template: place of the pod template.
        group: place of the node group.
        manner: how pods of this kind of manifest differ.
    """
    source, to = draft.source, (*group, "template")
    metadata(draft, (*template, "metadata"), (*to, "metadata"))
    spec = (*template, "spec")
    source.stands(template, to)
    source.stands(spec, (*to, "spec"))
    pod = ConvertedPod(_main(draft, template, manner), group)
    default = (*template, "metadata", "annotations", DEFAULT_CONTAINER)
    if source.value(default) is not None and source.value(default) == source.value((*pod.loc, "name")):
        draft.move(default, (*to, *default[len(template) :]), WORKER, "the program's container has this name")
    work = _Work(draft, pod, (*to, "spec"), manner)
    for key, at in source.keys(spec):
        _pod_field(work, key, at)
    _drop_reads(work, template)
    _architecture(draft, spec)
    return pod


@dataclass(frozen=True, slots=True)
class _Work:
    """A pod on its way into the template of a node group."""

    draft: Draft
    pod: ConvertedPod
    to: Loc
    """The pod's spec in the template."""
    manner: Manner

    def ray(self) -> Loc:
        """Return the place of Ray's container in the template, made where it is not there yet."""
        containers = self.draft.items((*self.to, "containers"))
        at = next((at for at, container in enumerate(containers) if container["name"] == WORKER), len(containers))
        if at == len(containers):
            self.draft.put((*self.to, "containers", at, "name"), WORKER)
        return (*self.to, "containers", at)


def _pod_field(work: _Work, key: str, at: Loc) -> None:
    draft, source, to = work.draft, work.draft.source, (*work.to, key)
    match key:
        case "containers" | "initContainers":
            for place in source.items(at):
                _container(work) if place == work.pod.loc else _sidecar(draft, place, to)
        case "volumes":
            for place in source.items(at):
                _volume(draft, place, to)
        case "imagePullSecrets":
            _pull_secrets(draft, at)
        case "restartPolicy":
            source.harmless(at, "ranks restart by restartPolicy of their role, and pods by KubeRay")
        case _ if key in POD_FIELDS:
            draft.move(at, to)
        case _:
            _unknown(source, at, key, POD_FIELDS)


def _unknown(source: SourceManifest, loc: Loc, key: str, known: Collection[str]) -> None:
    if hint := did_you_mean(key, known):
        source.drop(loc, f"unknown field. {hint}")


def _main(draft: Draft, template: Loc, manner: Manner) -> Loc:
    """Return the place of the container that runs the program; the report names it where that needs a choice.

    Raises:
        UnfitError: several containers may be the program.
    """
    source, containers = draft.source, (*template, "spec", "containers")
    names = {place: source.value((*place, "name")) for place in source.items(containers)}
    usual = [place for place, name in names.items() if name in manner.main]
    if manner.ray or len(names) < 2:
        return (usual or list(names) or [(*containers, 0)])[0]
    annotated = {source.value((*at, "metadata", "annotations", DEFAULT_CONTAINER)) for at in (template, ())}
    launching = [place for place in names if _launches(source, place)]
    busy = [place for place in names if place in launching or _has_devices(source, place)]
    for reason, places in (
        (f"{DEFAULT_CONTAINER} names it", [place for place, name in names.items() if name in annotated]),
        ("it alone runs a launcher or has devices", busy),
        ("it alone runs a launcher", launching),
        ("its name is the usual one", [place for place in usual if place in busy or not busy]),
    ):
        if len(places) == 1:
            if places[0] != (*containers, 0):
                _tell_program(draft, places[0], reason)
            return places[0]
    if busy:
        words = f"{' and '.join(str(names[place]) for place in busy)} may each be the program"
        raise UnfitError(containers, words, f"name it by the pods' annotation {DEFAULT_CONTAINER}")
    _tell_program(draft, (*containers, 0), f"it is the first, and no annotation {DEFAULT_CONTAINER} names another")
    return (*containers, 0)


def _tell_program(draft: Draft, main: Loc, reason: str) -> None:
    """Name the container that is taken for the program of a pod in the report."""
    source = draft.source
    remark = f"line {source.line(main)}, {path_of(main)}: {source.value((*main, 'name'))} is the program"
    draft.remarks.append(f"{remark}, and others run beside it: {reason}")


def _launches(source: SourceManifest, container: Loc) -> bool:
    """Whether the command of a container starts ranks."""
    words = [word for key in ("command", "args") for word in source.words((*container, key))]
    return bool(words) and bool(launcher(of_words(words)))


def _has_devices(source: SourceManifest, container: Loc) -> bool:
    amounts = [source.value((*container, "resources", section)) for section in ("limits", "requests")]
    return any(
        device_kind(name) and str(count) != "0"
        for named in amounts
        if isinstance(named, dict)
        for name, count in cast("dict[str, object]", named).items()
    )


def _sidecar(draft: Draft, loc: Loc, to: Loc) -> None:
    """Carry another container as it is."""
    source = draft.source
    name = source.value((*loc, "name"))
    if not isinstance(name, str) or not name:
        source.drop(loc, "a container without a name cannot be merged into the pod")
        return
    if name in (WORKER, "ray-head", "dljob-init", "wait-gcs-ready"):
        source.drop(loc, f"the name {name} is taken in pods of dljob: rename it")
        return
    draft.append(loc, to)
    wrong = [(key, at) for key, at in source.keys(loc) if key not in CONTAINER_FIELDS]
    for key, at in wrong:
        del draft.get(source.fates[loc].to)[key]
        source.drop(at, f"unknown field. {did_you_mean(key, CONTAINER_FIELDS)}".strip())


def _volume(draft: Draft, loc: Loc, to: Loc) -> None:
    source = draft.source
    name = source.value((*loc, "name"))
    if not isinstance(name, str) or not name:
        source.drop(loc, "a volume without a name cannot be merged into the pod")
    elif _RESERVED_VOLUMES.fullmatch(name):
        source.drop(loc, f"the volume {name} is reserved for dljob: rename it")
    else:
        draft.append(loc, to)


def _pull_secrets(draft: Draft, loc: Loc) -> None:
    source, to = draft.source, ("spec", "imagePullSecrets")
    for at in source.items(loc):
        had = draft.items(to)
        if source.value(at) in had:
            source.carry(at, (*to, had.index(source.value(at))))
        else:
            draft.append(at, to)


def _architecture(draft: Draft, spec: Loc) -> None:
    """Let the head run on the same kind of machine: it has the same image."""
    source, to = draft.source, ("spec", "head", "template", "spec")
    for name in ARCH:
        arch = source.value((*spec, "nodeSelector", name)) or _only(source, spec, name)
        if isinstance(arch, str) and draft.get((*to, "nodeSelector", name)) is None:
            draft.put((*to, "nodeSelector", name), arch)
            if tolerations := source.value((*spec, "tolerations")):
                draft.put((*to, "tolerations"), tolerations)
            draft.remarks.append(f"{name}: {arch} also stands at the head, which has the same image")


def _only(source: SourceManifest, spec: Loc, name: str) -> str | None:
    """Return the one value of a label that a pod's required affinity allows; None if there are more."""
    required = (*spec, "affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution")
    allowed = set[str]()
    for number in range(_length(source, terms := (*required, "nodeSelectorTerms"))):  # any of them
        expressions = (*terms, number, "matchExpressions")
        for place in range(_length(source, expressions)):  # all of them
            key, operator = (source.value((*expressions, place, field)) for field in ("key", "operator"))
            if (key, operator) == (name, "In"):
                values = (*expressions, place, "values")
                allowed |= {str(source.value((*values, at))) for at in range(_length(source, values))}
                break
        else:
            return None
    return allowed.pop() if len(allowed) == 1 else None


def _length(source: SourceManifest, loc: Loc) -> int:
    value = source.value(loc)
    return len(cast("list[object]", value)) if isinstance(value, list) else 0


def _container(work: _Work) -> None:
    """Convert the main container."""
    source = work.draft.source
    for key, at in source.keys(work.pod.loc):
        if key in _HANDLERS:
            _HANDLERS[key](work, at)
        elif key in ("command", "args"):
            if work.manner.ray and _SHELL_ALONE.fullmatch(" ".join(source.words(at))):
                source.harmless(at, "dljob starts Ray")
            elif work.manner.ray:
                source.drop(at, "dljob starts Ray: write what runs before `ray start` into the image")
        elif key in CONTAINER_FIELDS:
            work.draft.move(at, (*work.ray(), key))
        else:
            _unknown(source, at, key, CONTAINER_FIELDS)


_SHELL = r"(/bin/)?(ba)?sh -l?c( --)?"
_SHELL_ALONE = re.compile(rf"({_SHELL})?")
_RAY_STOP = re.compile(rf"({_SHELL} )?ray stop( --force| -f)?")
_PROBE = frozenset(
    (
        "httpGet",
        "tcpSocket",
        "exec",
        "initialDelaySeconds",
        "periodSeconds",
        "timeoutSeconds",
        "successThreshold",
        "failureThreshold",
    )
)


def _container_name(work: _Work, at: Loc) -> None:
    work.draft.source.harmless(at, f"Ray's container is {WORKER}")


def _probe(work: _Work, at: Loc) -> None:
    source = work.draft.source
    if work.manner.ray:
        source.harmless(at, "KubeRay probes Ray")
    elif _PROBE.issuperset(key for key, _ in source.keys(at)) and source.value((*at, "httpGet", "host")) is None:
        work.pod.probes[str(at[-1])] = source.value(at)
    else:
        source.drop(at, f"roles[].{at[-1]} has not all of its fields")


def _shared(work: _Work, loc: Loc) -> None:
    """Carry a field of the whole job; where pods differ, into the template."""
    draft, source, key = work.draft, work.draft.source, str(loc[-1])
    value = source.text(loc)
    if not value:
        return
    had = draft.get(("spec", key))
    if had is None:
        draft.put(("spec", key), value)
    if had in (None, value):
        source.carry(loc, ("spec", key))
    else:
        draft.move(loc, (*work.ray(), key))


def _workdir(work: _Work, loc: Loc) -> None:
    draft, source = work.draft, work.draft.source
    work.pod.workdir = source.text(loc) or ""
    if not work.manner.ray:
        return
    if draft.get(("spec", "runtimeEnv", "working_dir")):
        source.harmless(loc, "runtimeEnv.working_dir takes its place")
    elif draft.get((*work.pod.group, "name")) != DRIVER:  # its folder becomes the driver's
        source.drop(loc, "tasks of Ray start in the job's folder")


def _mounts(work: _Work, loc: Loc) -> None:
    source, mounted_paths = work.draft.source, set[str]()
    for at in source.items(loc):
        path = source.value((*at, "mountPath"))
        if not isinstance(path, str) or not path:
            source.drop(at, "a mount without mountPath cannot be merged into the pod")
        elif inside(path):
            source.drop(at, f"{path} lies in {inside(path)}, which is reserved for dljob")
        elif path in mounted_paths:
            source.drop(at, f"{path} is mounted twice")
        else:
            mounted_paths.add(path)
            work.draft.append(at, (*work.ray(), "volumeMounts"))


_RAY_PORTS = (6379, 10001, 8265, 8080, 8000, 52365, 44217, 44227)


def _ports(work: _Work, loc: Loc) -> None:
    source, manner = work.draft.source, work.manner
    for at in source.items(loc):
        name, number = source.value((*at, "name")), source.value((*at, "containerPort"))
        if manner.ray and number in _RAY_PORTS:
            source.harmless(at, "dljob and KubeRay open Ray's ports")
        elif name in manner.ports or (not manner.ray and not name):
            source.harmless(at, "PrimeMaster takes a free port for the rendezvous; other ports need no declaration")
        elif not isinstance(name, str):
            source.harmless(at, "a port needs no declaration")
        else:
            work.draft.append(at, (*work.ray(), "ports"))


def _lifecycle(work: _Work, loc: Loc) -> None:
    source = work.draft.source
    if _RAY_STOP.fullmatch(" ".join(source.words((*loc, "preStop", "exec", "command")))):
        source.harmless((*loc, "preStop"), "dljob has a preStop of its own, which saves checkpoints first")
    for key, at in source.keys(loc):
        if at not in source.fates:
            source.drop(at, f"{key} would take the place of dljob's own, which saves checkpoints")


def _env(work: _Work, loc: Loc) -> None:
    """Carry variables: plain ones to the role later (`Pod.env`), the others into the pod."""
    source, manner = work.draft.source, work.manner
    # A variable that others of the pod refer to must be in the pod as well.
    texts = [str(source.value((*at, "value"))) for at in source.items(loc)]
    referred = {name for text in texts for name in _EXPANDED.findall(text)}
    for at in source.items(loc):
        name, value = source.value((*at, "name")), source.value((*at, "value"))
        if not isinstance(name, str) or not name:
            source.drop(at, "a variable without a name")
        elif name in manner.rank_variables or (manner.rank_variables and _is_index(source, at)):
            work.pod.rank_variables[name] = at
            source.harmless(at, "PrimeMaster gives it to each rank")
        elif manner.ray and (name in BY_RAY or name.startswith("RAY_AUTH_")):
            source.harmless(at, "KubeRay and dljob set it")
        elif name.startswith(("DLJOB_", "RAY_AUTH_")) or name == "POD_NAME":
            source.drop(at, f"{name} is set by dljob")
        elif source.value((*at, "valueFrom")) is not None or _in_pod(name, value, referred, manner):
            _pod_variable(work, at, name)
        else:
            work.pod.env[name] = expanded(source.text((*at, "value")) or "", {})
            plain_variable(source, at, name)


PENDING_ENV: Loc = ("<env>",)
"""Stand-in for the place of a variable until its role is known (`place_env`)."""


def plain_variable(source: SourceManifest, loc: Loc, name: str) -> None:
    """Carry a plain variable to a role that is not known yet."""
    source.carry(loc, (*PENDING_ENV, name))
    for key, at in source.keys(loc):
        if key not in ("name", "value"):
            source.drop(at, UNKNOWN)


def _is_index(source: SourceManifest, loc: Loc) -> bool:
    """Whether a variable is the index of the pod in an Indexed Job, which pods of a RayCluster have not."""
    path = str(source.value((*loc, "valueFrom", "fieldRef", "fieldPath")))
    return path.endswith("['batch.kubernetes.io/job-completion-index']")


_FIELD = re.compile(r"metadata\.(label|annotation)s\['(.+)'\]")
_SELECTED = re.compile(
    r"(batch\.kubernetes\.io|jobset\.sigs\.k8s\.io|(training|trainer)\.kubeflow\.org)/.+|job-name|controller-uid"
)
"""Labels that controllers of jobs give to their pods."""


def _drop_reads(work: _Work, template: Loc) -> None:
    """Drop what is carried into a pod and reads there what only the manifest's own controller gives to pods."""
    source, spec = work.draft.source, (*template, "spec")
    for leaf in source.leaves(spec):
        if source.fate(leaf).kind != "carried":
            continue
        text, inner = str(source.value(leaf)), leaf[len(spec) :]
        if match := _FIELD.fullmatch(text) if leaf[-1] == "fieldPath" else None:
            labels = [(match[1], match[2])]
        elif inner[0] in ("affinity", "topologySpreadConstraints"):
            labels = [("label", str(part)) for part in (*inner, text) if _SELECTED.fullmatch(str(part))]
        else:
            labels = []
        missing = [f"{kind} {key}" for kind, key in labels if _is_missing(work, template, kind, key)]
        if inner[0] in ("containers", "initContainers"):
            missing += _missing_variables(work, (*spec, *inner[:2]), inner, text)
        if missing:
            words = f"pods of a RayCluster have no {missing[0]}; a rank has DLJOB_RANK, GROUP_RANK and LOCAL_RANK"
            source.drop(leaf, words)


def _is_missing(work: _Work, template: Loc, kind: str, key: str) -> bool:
    """Whether neither the manifest nor KubeRay gives a label or annotation to the pods."""
    metadata = work.draft.source.value((*template, "metadata", f"{kind}s"))
    is_own = isinstance(metadata, dict) and key in metadata
    return not is_own and not (work.manner.ray and key.startswith("ray.io/"))


def _missing_variables(work: _Work, container: Loc, inner: Loc, text: str) -> list[str]:
    """Return the variables of a rank that a field of a container reads, where the container does not set them."""
    source = work.draft.source
    names = {*work.manner.rank_variables, *work.manner.sets}
    if container == work.pod.loc:
        names |= work.pod.rank_variables.keys()
    else:
        names -= {source.value((*at, "name")) for at in source.items((*container, "env"))}
    is_shell = "command" in inner or "args" in inner
    return [
        name
        for name in sorted(names)
        if refers(text, (name,)) or (is_shell and mentions(text, name) and f"{name}=" not in text)
    ]


def _in_pod(name: str, value: object, referred: set[str], manner: Manner) -> bool:
    """Whether a plain variable belongs into the pod: Kubernetes expands it, or tasks of Ray need it."""
    return manner.ray or name in referred or bool(_EXPANDED.search(str(value))) or not re.fullmatch(ENV_PATTERN, name)


def _pod_variable(work: _Work, loc: Loc, name: str) -> None:
    draft, source, to = work.draft, work.draft.source, (*work.ray(), "env")
    if any(variable["name"] == name for variable in draft.items(to)):
        source.drop(loc, f"{name} is listed twice")
    elif name == "PYTHONPATH" and not isinstance(source.value((*loc, "value")), str):
        source.drop(loc, "PYTHONPATH needs a value, to which dljob adds a folder")
    else:
        value: dict[str, Any] = dict(source.value(loc))
        if "value" in value:
            value["value"] = source.text((*loc, "value")) or ""
        work.pod.inner.add(name)
        draft.append(loc, to, value)


def place_env(draft: Draft, pods: list[ConvertedPod], role: Loc) -> None:
    """Put the plain variables of pods into the role that their processes become; the first value of a name counts."""
    source = draft.source
    names: list[str] = []
    for pod in pods:
        for name, value in pod.env.items():
            if name not in names:
                names.append(name)
                draft.put((*role, "env", len(names) - 1), {"name": name, "value": value})
    for loc, fate in list(source.fates.items()):
        if fate.kind != "carried" or fate.to[:1] != PENDING_ENV or not any(_below(loc, pod.loc) for pod in pods):
            continue
        name = str(fate.to[1])
        if name not in names:
            source.harmless(loc, "it is an option of torchrun, which the role has")
            continue
        at = names.index(name)
        other_value = source.text((*loc, "value"))
        if other_value is not None and expanded(other_value, {}) != draft.get((*role, "env", at, "value")):
            source.drop(loc, f"{name} has another value in other pods of the role")
        else:
            source.carry(loc, (*role, "env", at))


def _below(loc: Loc, parent: Loc) -> bool:
    return loc[: len(parent)] == parent


# -- amounts


def _resources(work: _Work, loc: Loc) -> None:
    draft, source, pod = work.draft, work.draft.source, work.pod
    for key, at in source.keys(loc):
        if key not in ("limits", "requests"):
            draft.move(at, (*work.ray(), "resources", key))
    for name, pattern in (("cpu", CPU_PATTERN), ("memory", MEMORY_PATTERN)):
        _amount(work, loc, name, pattern)
    pod.cpu = draft.get((*pod.group, "cpu"))
    for section in ("limits", "requests"):
        for name, at in source.keys((*loc, section)):
            if name in ("cpu", "memory"):
                continue
            kind = device_kind(name)
            if kind:
                _devices(draft, pod, at, name, kind)
            else:
                draft.move(at, (*work.ray(), "resources", section, name))


def _amount(work: _Work, loc: Loc, name: str, pattern: str) -> None:
    """Carry CPUs or memory: the limit, else the request; a smaller request stays in the template."""
    draft, source, to = work.draft, work.draft.source, (*work.pod.group, name)
    chosen = ""
    for section in ("limits", "requests"):
        at = (*loc, section, name)
        text = source.text(at)
        if text is None:
            continue
        if not re.fullmatch(pattern, text):
            form = "2 or 500m" if name == "cpu" else "8Gi"
            source.drop(at, f"{text} is no amount that dljob reads: write it as {form}")
        elif not chosen:
            chosen = text
            reason = "" if section == "limits" else "the machine's limit as well"
            draft.move(at, to, text, reason)
        elif text == chosen:
            source.carry(at, to)
        else:
            draft.move(at, (*work.ray(), "resources", "requests", name), text)


def device_kind(resource: str) -> str:
    """Return dljob's kind of device for an extended resource of Kubernetes; empty for others, such as rdma/hca."""
    for kind, usual in KUBERNETES.items():
        if resource == usual:
            return kind
    domain, _, name = resource.partition("/")
    if name.endswith("gpu") or name.startswith("mig-") or (domain == "gpu.intel.com" and name in ("xe", "i915")):
        return "GPU"
    if domain == "huawei.com" and name.startswith("Ascend"):
        return "NPU"
    return "Neuron" if domain == "aws.amazon.com" and name.startswith("neuron") else ""


def _devices(draft: Draft, pod: ConvertedPod, loc: Loc, name: str, kind: str) -> None:
    source, to = draft.source, (*pod.group, "accelerator")
    count = source.number(loc)
    if count is None:
        return
    if not count:
        source.harmless(loc, "no devices")
    elif pod.devices is None:
        pod.devices = (kind, count)
        accelerator: dict[str, Any] = {"type": kind, "count": count}
        if name != KUBERNETES[kind]:
            accelerator["resourceName"] = name
        draft.put(to, accelerator)
        source.carry(loc, (*to, "count"))
    elif draft.get((*to, "resourceName")) in (None, name) and pod.devices == (kind, count):
        source.carry(loc, (*to, "count"))
    else:
        source.drop(loc, f"a machine has one kind of device here, and that is {pod.devices[0]}")


_HANDLERS: Mapping[str, Callable[[_Work, Loc], None]] = {
    "name": _container_name,
    "image": _shared,
    "imagePullPolicy": _shared,
    "resources": _resources,
    "env": _env,
    "volumeMounts": _mounts,
    "ports": _ports,
    "lifecycle": _lifecycle,
    "workingDir": _workdir,
    **dict.fromkeys(("livenessProbe", "readinessProbe", "startupProbe"), _probe),
}
"""Fields of the main container that are not carried as they are."""
