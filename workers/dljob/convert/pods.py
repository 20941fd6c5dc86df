"""Pod templates: what becomes a machine of the job, and what the process in it needs.

Most of a pod template is carried as `nodeGroups[].template`, since dljob merges that over the pods of the machines.
Amounts, image and command have typed fields.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from dljob.convert.command import expand_references, find_launcher, parse_words, reads_variable, refers_to_any
from dljob.convert.source import UNKNOWN_FIELD, Draft, SourceManifest, UnfitError
from dljob.spec.devices import KUBERNETES as RESOURCE_OF_KIND
from dljob.spec.quantity import CPU_PATTERN, MEMORY_PATTERN
from dljob.spec.rules.outside import inside as reserved_folder_of
from dljob.spec.rules.outside import is_ours as is_reserved_label
from dljob.spec.rules.templates import CONTAINER_FIELDS, POD_FIELDS
from dljob.spec.rules.templates import WORKER as RAY_CONTAINER
from dljob.spec.scalars import ENV_PATTERN
from dljob.spec.text.tree import Loc
from dljob.spec.text.words import did_you_mean, path_of

_DEFAULT_CONTAINER = "kubectl.kubernetes.io/default-container"
_DEFAULT_CONTAINER_ANNOTATION = ("metadata", "annotations", _DEFAULT_CONTAINER)
ARCH_LABELS = ("kubernetes.io/arch", "beta.kubernetes.io/arch")
SERVER_METADATA_FIELDS = (
    *("creationTimestamp", "uid", "resourceVersion", "generation", "managedFields", "selfLink", "ownerReferences"),
)
"""Fields of metadata that the API server writes."""
SET_BY_SERVER = "the API server writes it"
DRIVER_GROUP = "driver"
"""Node group of a RayJob's driver, made from headGroupSpec."""
SET_BY_RAY = ("RAY_IP", "FQ_RAY_IP", "RAY_ADDRESS", "RAY_PORT", "REDIS_PASSWORD")
_REFERENCE = re.compile(r"\$\(([A-Za-z_][A-Za-z0-9_.]*)\)")
_RESERVED_VOLUMES = re.compile(r"dljob(-.*)?")


@dataclass(frozen=True, slots=True)
class Devices:
    """Devices of a pod, which are all of one kind."""

    kind: str
    """Such as GPU, NPU or Neuron."""
    count: int


@dataclass(slots=True)
class ConvertedPod:
    """A converted pod template: its places, and what it says about the process in its main container."""

    container_loc: Loc
    """Place of the main container in the source."""
    group_loc: Loc
    """Place of its node group in the DLJob."""
    cpu: str | None = None
    devices: Devices | None = None
    plain_env: dict[str, str] = field(default_factory=dict[str, str])
    """Variables with a plain value, which become the role's."""
    pod_variables: set[str] = field(default_factory=set[str])
    """Variables that stay in the pod, whose values only a process there knows."""
    rank_dependent: dict[str, Loc] = field(default_factory=dict[str, Loc])
    """Variables of the manifest that depend on the rank, with their places: `variables` says what becomes of them."""
    workdir: str = ""
    probes: dict[str, Any] = field(default_factory=dict[str, Any])
    """Probes that a role can have."""


@dataclass(frozen=True, slots=True)
class PodConventions:
    """How pods of one kind of manifest differ from those of other kinds."""

    main_container_names: tuple[str, ...] = ()
    """Names of the main container, where neither an annotation nor its launcher or devices say which it is."""
    runs_ray: bool = False
    """Whether the pod runs Ray, so that command, probes and ports are those of `ray start`."""
    rank_dependent: tuple[str, ...] = ()
    """Variables that depend on the rank: PrimeMaster gives them to it, or its command sets them."""
    set_by_controller: tuple[str, ...] = ()
    """Variables that the controller of this kind sets in each pod, beside those of torch."""
    rendezvous_ports: tuple[str, ...] = ()
    """Names of ports of the rendezvous."""


def _convert_pod_metadata(draft: Draft, loc: Loc, to: Loc) -> None:
    source = draft.source
    for key, at in source.fields(loc):
        if key in ("labels", "annotations"):
            for name, label_loc in source.fields(at):
                if is_reserved_label(name) or name == "ray.io/is-ray-node":
                    source.mark_harmless(label_loc, "dljob and KubeRay set it")
                elif (text := source.text(label_loc)) is not None:
                    draft.move(label_loc, (*to, key, name), text)
        elif key in ("name", "namespace", "generateName"):
            source.mark_harmless(at, "KubeRay names the pods")
        elif key in SERVER_METADATA_FIELDS:
            source.mark_harmless(at, SET_BY_SERVER)


def convert_pod_template(draft: Draft, template: Loc, group: Loc, conventions: PodConventions) -> ConvertedPod:
    """Convert a pod template into the template of a node group, and return what it says about its process."""
    source, to = draft.source, (*group, "template")
    _convert_pod_metadata(draft, (*template, "metadata"), (*to, "metadata"))
    spec = (*template, "spec")
    source.note_counterpart(template, to)
    source.note_counterpart(spec, (*to, "spec"))
    pod = ConvertedPod(_choose_main_container(draft, template, conventions), group)
    annotation = _DEFAULT_CONTAINER_ANNOTATION
    annotated_name = source.value((*template, *annotation))
    if annotated_name is not None and annotated_name == source.value((*pod.container_loc, "name")):
        draft.move((*template, *annotation), (*to, *annotation), RAY_CONTAINER, "the program's container has this name")
    conversion = _PodConversion(draft, pod, (*to, "spec"), conventions)
    for key, at in source.fields(spec):
        _convert_pod_field(conversion, key, at)
    _drop_fields_that_read_missing_values(conversion, template)
    _copy_architecture_to_job_head(draft, spec)
    return pod


@dataclass(frozen=True, slots=True)
class _PodConversion:
    """A pod on its way into the template of a node group."""

    draft: Draft
    pod: ConvertedPod
    pod_spec_loc: Loc
    """Place of the pod's spec in the template of the DLJob."""
    conventions: PodConventions

    def ray_container_loc(self) -> Loc:
        """Return the place of Ray's container in the template, made where it is not there yet."""
        containers = (*self.pod_spec_loc, "containers")
        names = [container["name"] for container in self.draft.list_at(containers)]
        if RAY_CONTAINER not in names:
            self.draft.put((*containers, len(names), "name"), RAY_CONTAINER)
            return (*containers, len(names))
        return (*containers, names.index(RAY_CONTAINER))


def _convert_pod_field(conversion: _PodConversion, key: str, at: Loc) -> None:
    draft, source, to = conversion.draft, conversion.draft.source, (*conversion.pod_spec_loc, key)
    match key:
        case "containers" | "initContainers":
            for container in source.item_locs(at):
                if container == conversion.pod.container_loc:
                    _convert_main_container(conversion)
                else:
                    _carry_other_container(draft, container, to)
        case "volumes":
            for volume in source.item_locs(at):
                _carry_volume(draft, volume, to)
        case "imagePullSecrets":
            _carry_pull_secrets(draft, at)
        case "restartPolicy":
            source.mark_harmless(at, "ranks restart by restartPolicy of their role, and pods by KubeRay")
        case _ if key in POD_FIELDS:
            draft.move(at, to)
        case _:
            _suggest_known_field(source, at, key, POD_FIELDS)


def _suggest_known_field(source: SourceManifest, loc: Loc, key: str, known_keys: Collection[str]) -> None:
    """Drop an unknown field with the key that was meant; without a similar key it stays unknown, which drops it too."""
    if hint := did_you_mean(key, known_keys):
        source.mark_dropped(loc, f"unknown field. {hint}")


def _choose_main_container(draft: Draft, template: Loc, conventions: PodConventions) -> Loc:
    """Return the place of the container that runs the program; the report names it where that needs a choice.

    Raises:
        UnfitError: several containers may be the program.
    """
    source, containers = draft.source, (*template, "spec", "containers")
    first_container = (*containers, 0)
    names = {loc: source.value((*loc, "name")) for loc in source.item_locs(containers)}
    usually_main = [loc for loc, name in names.items() if name in conventions.main_container_names]
    if conventions.runs_ray or len(names) < 2:
        return (usually_main or list(names) or [first_container])[0]
    annotated_names = [source.value((*loc, *_DEFAULT_CONTAINER_ANNOTATION)) for loc in (template, ())]
    with_launcher = [loc for loc in names if _runs_launcher(source, loc)]
    trainers = [loc for loc in names if loc in with_launcher or _has_devices(source, loc)]
    for reason, candidates in (
        (f"{_DEFAULT_CONTAINER} names it", [loc for loc, name in names.items() if name in annotated_names]),
        ("it alone runs a launcher or has devices", trainers),
        ("it alone runs a launcher", with_launcher),
        ("its name is the usual one", [loc for loc in usually_main if loc in trainers or not trainers]),
    ):
        if len(candidates) == 1:
            if candidates[0] != first_container:
                _remark_main_container(draft, candidates[0], reason)
            return candidates[0]
    if trainers:
        words = f"{' and '.join(str(names[loc]) for loc in trainers)} may each be the program"
        raise UnfitError(containers, words, f"name it by the pods' annotation {_DEFAULT_CONTAINER}")
    reason = f"it is the first, and no annotation {_DEFAULT_CONTAINER} names another"
    _remark_main_container(draft, first_container, reason)
    return first_container


def _remark_main_container(draft: Draft, container: Loc, reason: str) -> None:
    source = draft.source
    remark = f"line {source.line(container)}, {path_of(container)}: {source.value((*container, 'name'))} is the program"
    draft.remarks.append(f"{remark}, and others run beside it: {reason}")


def _runs_launcher(source: SourceManifest, container: Loc) -> bool:
    words = [word for key in ("command", "args") for word in source.words((*container, key))]
    return bool(words) and bool(find_launcher(parse_words(words)))


def _has_devices(source: SourceManifest, container: Loc) -> bool:
    sections = [source.value((*container, "resources", section)) for section in ("limits", "requests")]
    return any(
        device_kind(name) and str(count) != "0"
        for amounts in sections
        if isinstance(amounts, dict)
        for name, count in cast("dict[str, object]", amounts).items()
    )


def _carry_other_container(draft: Draft, loc: Loc, to: Loc) -> None:
    """Carry a container beside the main one into a list of containers, as it is but for unknown fields."""
    source = draft.source
    name = source.value((*loc, "name"))
    if not isinstance(name, str) or not name:
        source.mark_dropped(loc, "a container without a name cannot be merged into the pod")
        return
    if name in (RAY_CONTAINER, "ray-head", "dljob-init", "wait-gcs-ready"):
        source.mark_dropped(loc, f"the name {name} is taken in pods of dljob: rename it")
        return
    draft.append(loc, to)
    unknown_fields = [(key, at) for key, at in source.fields(loc) if key not in CONTAINER_FIELDS]
    for key, at in unknown_fields:
        del draft.get(source.fates[loc].to)[key]
        source.mark_dropped(at, f"unknown field. {did_you_mean(key, CONTAINER_FIELDS)}".strip())


def _carry_volume(draft: Draft, loc: Loc, to: Loc) -> None:
    source = draft.source
    name = source.value((*loc, "name"))
    if not isinstance(name, str) or not name:
        source.mark_dropped(loc, "a volume without a name cannot be merged into the pod")
    elif _RESERVED_VOLUMES.fullmatch(name):
        source.mark_dropped(loc, f"the volume {name} is reserved for dljob: rename it")
    else:
        draft.append(loc, to)


def _carry_pull_secrets(draft: Draft, loc: Loc) -> None:
    source, to = draft.source, ("spec", "imagePullSecrets")
    for at in source.item_locs(loc):
        secrets = draft.list_at(to)
        if source.value(at) in secrets:
            source.mark_carried(at, (*to, secrets.index(source.value(at))))
        else:
            draft.append(at, to)


def _copy_architecture_to_job_head(draft: Draft, spec: Loc) -> None:
    """Let the head run on machines of the architecture that a pod's spec demands: it has the same image."""
    source, head_spec = draft.source, ("spec", "head", "template", "spec")
    for label in ARCH_LABELS:
        arch = source.value((*spec, "nodeSelector", label)) or _sole_affinity_value(source, spec, label)
        if isinstance(arch, str) and draft.get((*head_spec, "nodeSelector", label)) is None:
            draft.put((*head_spec, "nodeSelector", label), arch)
            head_tolerations = draft.list_at((*head_spec, "tolerations"))
            for toleration_loc in source.item_locs((*spec, "tolerations")):
                if source.value(toleration_loc) not in head_tolerations:
                    head_tolerations = [*head_tolerations, source.value(toleration_loc)]
            if head_tolerations:
                draft.put((*head_spec, "tolerations"), head_tolerations)
            draft.remarks.append(f"{label}: {arch} also stands at the head, which has the same image")


def _sole_affinity_value(source: SourceManifest, spec: Loc, label: str) -> str | None:
    """Return the one value of a label that a pod's required affinity allows; None if there are more."""
    terms = (*spec, "affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution", "nodeSelectorTerms")
    allowed_values = set[str]()
    for term_index in range(_list_length(source, terms)):  # any of them
        expressions = (*terms, term_index, "matchExpressions")
        for expression_index in range(_list_length(source, expressions)):  # all of them
            expression = (*expressions, expression_index)
            values = (*expression, "values")
            if source.value((*expression, "key")) == label and source.value((*expression, "operator")) == "In":
                allowed_values |= {str(source.value((*values, i))) for i in range(_list_length(source, values))}
                break
        else:
            return None
    return allowed_values.pop() if len(allowed_values) == 1 else None


def _list_length(source: SourceManifest, loc: Loc) -> int:
    """Return the length of a list; 0 for a value of another type, which is not dropped."""
    value = source.value(loc)
    return len(cast("list[object]", value)) if isinstance(value, list) else 0


def _convert_main_container(conversion: _PodConversion) -> None:
    """Convert the fields of the main container; command and args of a program are left to its role."""
    source, runs_ray = conversion.draft.source, conversion.conventions.runs_ray
    for key, at in source.fields(conversion.pod.container_loc):
        if key in CONTAINER_FIELD_CONVERTERS:
            CONTAINER_FIELD_CONVERTERS[key](conversion, at)
        elif key in ("command", "args"):
            if runs_ray and _SHELL_WITHOUT_TEXT.fullmatch(" ".join(source.words(at))):
                source.mark_harmless(at, "dljob starts Ray")
            elif runs_ray:
                source.mark_dropped(at, "dljob starts Ray: write what runs before `ray start` into the image")
        elif key in CONTAINER_FIELDS:
            conversion.draft.move(at, (*conversion.ray_container_loc(), key))
        else:
            _suggest_known_field(source, at, key, CONTAINER_FIELDS)


_SHELL = r"(/bin/)?(ba)?sh -l?c( --)?"
_SHELL_WITHOUT_TEXT = re.compile(rf"({_SHELL})?")
_RAY_STOP = re.compile(rf"({_SHELL} )?ray stop( --force| -f)?")
_ROLE_PROBE_FIELDS = {
    *("httpGet", "tcpSocket", "exec", "initialDelaySeconds", "periodSeconds", "timeoutSeconds"),
    *("successThreshold", "failureThreshold"),
}


def _convert_probe(conversion: _PodConversion, at: Loc) -> None:
    """Keep a probe for the role; of a pod that runs Ray it is harmless."""
    source, probe_name = conversion.draft.source, str(at[-1])
    if conversion.conventions.runs_ray:
        source.mark_harmless(at, "KubeRay probes Ray")
        return
    has_known_fields = _ROLE_PROBE_FIELDS.issuperset(key for key, _ in source.fields(at))
    if has_known_fields and source.value((*at, "httpGet", "host")) is None:
        conversion.pod.probes[probe_name] = source.value(at)
    else:
        source.mark_dropped(at, f"roles[].{probe_name} has not all of its fields")


def _carry_to_job_or_container(conversion: _PodConversion, loc: Loc) -> None:
    """Carry an image or its pull policy to the whole job; where pods differ, to Ray's container of this pod."""
    draft, source, key = conversion.draft, conversion.draft.source, str(loc[-1])
    text = source.text(loc)
    if not text:
        return
    if draft.get(("spec", key)) is None:
        draft.put(("spec", key), text)
    if draft.get(("spec", key)) == text:
        source.mark_carried(loc, ("spec", key))
    else:
        draft.move(loc, (*conversion.ray_container_loc(), key))


def _convert_workdir(conversion: _PodConversion, loc: Loc) -> None:
    """Keep the folder for the role; of a pod that runs Ray only the driver's is needed."""
    draft, source = conversion.draft, conversion.draft.source
    conversion.pod.workdir = source.text(loc) or ""
    if not conversion.conventions.runs_ray:
        return
    if draft.get(("spec", "runtimeEnv", "working_dir")):
        source.mark_harmless(loc, "runtimeEnv.working_dir takes its place")
    elif draft.get((*conversion.pod.group_loc, "name")) != DRIVER_GROUP:
        source.mark_dropped(loc, "tasks of Ray start in the job's folder")


def _convert_volume_mounts(conversion: _PodConversion, loc: Loc) -> None:
    source, mounted_paths = conversion.draft.source, set[str]()
    for at in source.item_locs(loc):
        path = source.value((*at, "mountPath"))
        if not isinstance(path, str) or not path:
            source.mark_dropped(at, "a mount without mountPath cannot be merged into the pod")
        elif reserved_folder_of(path):
            source.mark_dropped(at, f"{path} lies in {reserved_folder_of(path)}, which is reserved for dljob")
        elif path in mounted_paths:
            source.mark_dropped(at, f"{path} is mounted twice")
        else:
            mounted_paths.add(path)
            conversion.draft.append(at, (*conversion.ray_container_loc(), "volumeMounts"))


_RAY_PORTS = (6379, 10001, 8265, 8080, 8000, 52365, 44217, 44227)


def _convert_ports(conversion: _PodConversion, loc: Loc) -> None:
    """Carry named ports into the pod; those of Ray, of the rendezvous and without a name are harmless."""
    source, conventions = conversion.draft.source, conversion.conventions
    for at in source.item_locs(loc):
        name, number = source.value((*at, "name")), source.value((*at, "containerPort"))
        if conventions.runs_ray and number in _RAY_PORTS:
            source.mark_harmless(at, "dljob and KubeRay open Ray's ports")
        elif name in conventions.rendezvous_ports or (not conventions.runs_ray and not name):
            reason = "PrimeMaster takes a free port for the rendezvous; other ports need no declaration"
            source.mark_harmless(at, reason)
        elif not isinstance(name, str):
            source.mark_harmless(at, "a port needs no declaration")
        else:
            conversion.draft.append(at, (*conversion.ray_container_loc(), "ports"))


def _drop_lifecycle(conversion: _PodConversion, loc: Loc) -> None:
    """Drop hooks of a container, but for a preStop that stops Ray, which is harmless."""
    source = conversion.draft.source
    if _RAY_STOP.fullmatch(" ".join(source.words((*loc, "preStop", "exec", "command")))):
        source.mark_harmless((*loc, "preStop"), "dljob has a preStop of its own, which saves checkpoints first")
    for key, at in source.fields(loc):
        if at not in source.fates:
            source.mark_dropped(at, f"{key} would take the place of dljob's own, which saves checkpoints")


def _convert_env(conversion: _PodConversion, loc: Loc) -> None:
    """Keep plain variables for the role (`plain_env`), and carry the others into the pod."""
    source, pod, conventions = conversion.draft.source, conversion.pod, conversion.conventions
    # A variable that others of the pod refer to must be in the pod as well.
    texts = [str(source.value((*at, "value"))) for at in source.item_locs(loc)]
    referenced_names = {name for text in texts for name in _REFERENCE.findall(text)}
    for at in source.item_locs(loc):
        name, text = source.value((*at, "name")), str(source.value((*at, "value")))
        # Tasks of Ray need it, others refer to it, or Kubernetes expands it.
        is_needed_in_pod = conventions.runs_ray or str(name) in referenced_names or _REFERENCE.search(text)
        if not isinstance(name, str) or not name:
            source.mark_dropped(at, "a variable without a name")
        elif name in conventions.rank_dependent or (conventions.rank_dependent and _is_pod_index(source, at)):
            pod.rank_dependent[name] = at
            source.mark_harmless(at, "PrimeMaster gives it to each rank")
        elif conventions.runs_ray and (name in SET_BY_RAY or name.startswith("RAY_AUTH_")):
            source.mark_harmless(at, "KubeRay and dljob set it")
        elif name.startswith(("DLJOB_", "RAY_AUTH_")) or name == "POD_NAME":
            source.mark_dropped(at, f"{name} is set by dljob")
        elif is_needed_in_pod or source.value((*at, "valueFrom")) is not None or not re.fullmatch(ENV_PATTERN, name):
            _carry_variable_to_pod(conversion, at, name)
        else:
            pod.plain_env[name] = expand_references(source.text((*at, "value")) or "", {})
            carry_variable_to_role(source, at, name)


ENV_OF_UNKNOWN_ROLE: Loc = ("<env>",)
"""Stand-in for the place of a variable until its role is known (`carry_plain_env`)."""


def carry_variable_to_role(source: SourceManifest, loc: Loc, name: str) -> None:
    """Carry a plain variable to a role that is not known yet."""
    source.mark_carried(loc, (*ENV_OF_UNKNOWN_ROLE, name))
    for key, at in source.fields(loc):
        if key not in ("name", "value"):
            source.mark_dropped(at, UNKNOWN_FIELD)


def _is_pod_index(source: SourceManifest, loc: Loc) -> bool:
    """Whether a variable is the index of the pod in an Indexed Job, which pods of a RayCluster have not."""
    path = str(source.value((*loc, "valueFrom", "fieldRef", "fieldPath")))
    return path.endswith("['batch.kubernetes.io/job-completion-index']")


_METADATA_FIELD_PATH = re.compile(r"metadata\.(?P<section>label|annotation)s\['(?P<name>.+)'\]")
_CONTROLLER_LABEL = re.compile(
    r"(batch\.kubernetes\.io|jobset\.sigs\.k8s\.io|(training|trainer)\.kubeflow\.org)/.+|job-name|controller-uid"
)
"""Labels that controllers of jobs give to their pods."""


def _drop_fields_that_read_missing_values(conversion: _PodConversion, template: Loc) -> None:
    """Drop carried fields of a pod that read labels or variables which only the manifest's own controller sets."""
    source, spec = conversion.draft.source, (*template, "spec")
    for leaf in source.leaves(spec):
        if source.fate(leaf).kind != "carried":
            continue
        text, path_in_spec = str(source.value(leaf)), leaf[len(spec) :]
        missing: list[str] = []
        if leaf[-1] == "fieldPath" and (match := _METADATA_FIELD_PATH.fullmatch(text)):
            missing += _missing_metadata(conversion, template, match["section"], [match["name"]])
        elif path_in_spec[0] in ("affinity", "topologySpreadConstraints"):
            texts = [str(part) for part in (*path_in_spec, text)]
            labels = [part for part in texts if _CONTROLLER_LABEL.fullmatch(part)]
            missing += _missing_metadata(conversion, template, "label", labels)
        if path_in_spec[0] in ("containers", "initContainers"):
            container = (*spec, *path_in_spec[:2])
            is_command = "command" in path_in_spec or "args" in path_in_spec
            missing += _missing_variables(conversion, container, text, is_command=is_command)
        if missing:
            words = f"pods of a RayCluster have no {missing[0]}; a rank has DLJOB_RANK, GROUP_RANK and LOCAL_RANK"
            source.mark_dropped(leaf, words)


def _missing_metadata(conversion: _PodConversion, template: Loc, section: str, names: list[str]) -> list[str]:
    """Return the labels or annotations, as `section` says, that neither the manifest nor KubeRay gives the pods."""
    entries = conversion.draft.source.value((*template, "metadata", f"{section}s"))
    known_names = set(cast("dict[str, str]", entries) if isinstance(entries, dict) else ())
    if conversion.conventions.runs_ray:
        known_names |= {name for name in names if name.startswith("ray.io/")}
    return [f"{section} {name}" for name in names if name not in known_names]


def _missing_variables(conversion: _PodConversion, container: Loc, text: str, *, is_command: bool) -> list[str]:
    """Return the variables of a rank that a text of a container reads, and that the container does not set."""
    source = conversion.draft.source
    names = {*conversion.conventions.rank_dependent, *conversion.conventions.set_by_controller}
    if container == conversion.pod.container_loc:
        names |= conversion.pod.rank_dependent.keys()
    else:
        names -= {str(source.value((*at, "name"))) for at in source.item_locs((*container, "env"))}
    return [
        name
        for name in sorted(names)
        if refers_to_any(text, (name,)) or (is_command and reads_variable(text, name) and f"{name}=" not in text)
    ]


def _carry_variable_to_pod(conversion: _PodConversion, loc: Loc, name: str) -> None:
    draft, source, to = conversion.draft, conversion.draft.source, (*conversion.ray_container_loc(), "env")
    if any(variable["name"] == name for variable in draft.list_at(to)):
        source.mark_dropped(loc, f"{name} is listed twice")
    elif name == "PYTHONPATH" and not isinstance(source.value((*loc, "value")), str):
        source.mark_dropped(loc, "PYTHONPATH needs a value, to which dljob adds a folder")
    else:
        variable: dict[str, Any] = dict(source.value(loc))
        if "value" in variable:
            variable["value"] = source.text((*loc, "value")) or ""
        conversion.pod.pod_variables.add(name)
        draft.append(loc, to, variable)


def carry_plain_env(draft: Draft, pods: list[ConvertedPod], role: Loc) -> None:
    """Add the plain variables of pods to the role that their processes become; the first value of a name counts."""
    source, env = draft.source, (*role, "env")
    # Options of torchrun are variables of the role already.
    option_values: dict[str, str] = {variable["name"]: variable["value"] for variable in draft.list_at(env)}
    values = dict(option_values)
    for pod in pods:
        for name, value in pod.plain_env.items():
            values.setdefault(name, value)
    for index, (name, value) in enumerate(values.items()):
        draft.put((*env, index), {"name": name, "value": value})
    for loc, fate in list(source.fates.items()):
        in_pods = any(loc[: len(pod.container_loc)] == pod.container_loc for pod in pods)
        if fate.kind != "carried" or fate.to[:1] != ENV_OF_UNKNOWN_ROLE or not in_pods:
            continue
        name = str(fate.to[1])
        text = source.text((*loc, "value"))
        if name not in values:
            source.mark_harmless(loc, "it is an option of torchrun, which the role has")
        elif text is not None and expand_references(text, {}) != values[name]:
            rival = "by an option of torchrun" if name in option_values else "in other pods of the role"
            source.mark_dropped(loc, f"{name} has another value {rival}")
        else:
            source.mark_carried(loc, (*env, list(values).index(name)))


def _convert_resources(conversion: _PodConversion, loc: Loc) -> None:
    """Carry CPUs, memory and devices to the node group, and other resources into the pod."""
    draft, source, pod = conversion.draft, conversion.draft.source, conversion.pod
    for key, at in source.fields(loc):
        if key not in ("limits", "requests"):
            draft.move(at, (*conversion.ray_container_loc(), "resources", key))
    for name, pattern in (("cpu", CPU_PATTERN), ("memory", MEMORY_PATTERN)):
        _carry_amount(conversion, loc, name, pattern)
    pod.cpu = draft.get((*pod.group_loc, "cpu"))
    for section in ("limits", "requests"):
        for name, at in source.fields((*loc, section)):
            if name in ("cpu", "memory"):
                continue
            kind = device_kind(name)
            if kind:
                _carry_devices(conversion, at, name, kind)
            else:
                draft.move(at, (*conversion.ray_container_loc(), "resources", section, name))


def _carry_amount(conversion: _PodConversion, loc: Loc, name: str, pattern: str) -> None:
    """Carry CPUs or memory: the limit, else the request; a smaller request stays in the template."""
    draft, source, to = conversion.draft, conversion.draft.source, (*conversion.pod.group_loc, name)
    carried_text = ""
    for section in ("limits", "requests"):
        at = (*loc, section, name)
        text = source.text(at)
        if text is None:
            continue
        if not re.fullmatch(pattern, text):
            example = "2 or 500m" if name == "cpu" else "8Gi"
            source.mark_dropped(at, f"{text} is no amount that dljob reads: write it as {example}")
        elif not carried_text:
            carried_text = text
            draft.move(at, to, text, "" if section == "limits" else "the machine's limit as well")
        elif text == carried_text:
            source.mark_carried(at, to)
        else:
            draft.move(at, (*conversion.ray_container_loc(), "resources", "requests", name), text)


def device_kind(resource: str) -> str:
    """Return dljob's kind of device for an extended resource of Kubernetes; empty for others, such as rdma/hca."""
    for kind, usual_resource in RESOURCE_OF_KIND.items():
        if resource == usual_resource:
            return kind
    domain, _, name = resource.partition("/")
    if name.endswith("gpu") or name.startswith("mig-") or (domain == "gpu.intel.com" and name in ("xe", "i915")):
        return "GPU"
    if domain == "huawei.com" and name.startswith("Ascend"):
        return "NPU"
    return "Neuron" if domain == "aws.amazon.com" and name.startswith("neuron") else ""


def _carry_devices(conversion: _PodConversion, loc: Loc, resource: str, kind: str) -> None:
    """Carry a number of devices to the node group, which has one kind of device."""
    draft, source, pod = conversion.draft, conversion.draft.source, conversion.pod
    to, count = (*pod.group_loc, "accelerator"), source.number(loc)
    if count is None:
        return
    if not count:
        source.mark_harmless(loc, "no devices")
    elif pod.devices is None:
        pod.devices = Devices(kind, count)
        accelerator: dict[str, Any] = {"type": kind, "count": count}
        if resource != RESOURCE_OF_KIND[kind]:
            accelerator["resourceName"] = resource
        draft.put(to, accelerator)
        source.mark_carried(loc, (*to, "count"))
    elif draft.get((*to, "resourceName")) in (None, resource) and pod.devices == Devices(kind, count):
        source.mark_carried(loc, (*to, "count"))
    else:
        source.mark_dropped(loc, f"a machine has one kind of device here, and that is {pod.devices.kind}")


CONTAINER_FIELD_CONVERTERS: Mapping[str, Callable[[_PodConversion, Loc], None]] = {
    "name": lambda conversion, at: conversion.draft.source.mark_harmless(at, f"Ray's container is {RAY_CONTAINER}"),
    "image": _carry_to_job_or_container,
    "imagePullPolicy": _carry_to_job_or_container,
    "resources": _convert_resources,
    "env": _convert_env,
    "volumeMounts": _convert_volume_mounts,
    "ports": _convert_ports,
    "lifecycle": _drop_lifecycle,
    "workingDir": _convert_workdir,
    **dict.fromkeys(("livenessProbe", "readinessProbe", "startupProbe"), _convert_probe),
}
"""Fields of the main container that are not carried as they are."""
