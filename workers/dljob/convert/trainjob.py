"""TrainJob of Kubeflow's trainer: its runtime is a JobSet, over which the job's own fields are laid."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from dljob.convert.jobset import convert_job_set_spec
from dljob.convert.kubeflow import carry_managed_by
from dljob.convert.meta import carry_number_or_switch, convert_metadata
from dljob.convert.source import Draft, SourceManifest, UnfitError, mistyped
from dljob.spec.text.tree import Document, Loc
from dljob.spec.text.words import path_of

_STEP_LABEL = "trainer.kubeflow.org/trainjob-ancestor-step"
_TRAINER_POD = {"containers": [{"name": "node", "image": "pytorch/pytorch:2.13.0-cuda13.0-cudnn9-runtime"}]}
_TRAINER_TEMPLATE = {"metadata": {"labels": {_STEP_LABEL: "trainer"}}, "spec": {"template": {"spec": _TRAINER_POD}}}
_DEFAULT_RUNTIME: Mapping[str, Any] = {
    "kind": "ClusterTrainingRuntime",
    "metadata": {"name": "torch-distributed"},
    "spec": {
        "mlPolicy": {"numNodes": 1, "torch": {}},
        "template": {"spec": {"replicatedJobs": [{"name": "node", "template": _TRAINER_TEMPLATE}]}},
    },
}
"""The runtime that Kubeflow's trainer 2.3 installs under this name."""


_RUNTIME_REF: Loc = ("spec", "runtimeRef")
_REPLICATED_JOBS: Loc = ("spec", "replicatedJobs")
_NO_FIELD: Loc = ("<env>",)
"""Source of a value that no field of the TrainJob has as it is."""


@dataclass(slots=True)
class _Overlay:
    """The JobSet of a runtime, with fields of a TrainJob laid over it."""

    job_set: dict[str, Any]
    trainjob_locs: dict[Loc, Loc] = field(default_factory=dict[Loc, Loc])
    """Place in the JobSet of a value from the TrainJob -> the field that has it there."""

    def view(self) -> SourceManifest:
        """Return the JobSet as a document, which shows later changes, too."""
        return SourceManifest(Document(self.job_set))

    def merge_in(self, to: Loc, value: object, trainjob_loc: Loc) -> None:
        """Merge a value into the JobSet: mappings by key, lists of named items by name, other items at the end."""
        present_value = self.view().value(to)
        # For Kubernetes, null is as good as nothing.
        if value is None:
            return
        for container_type in (dict, list):
            if isinstance(present_value, container_type) and not isinstance(value, container_type):
                raise mistyped(trainjob_loc, value, container_type)
        if isinstance(value, dict):
            if present_value is None:
                self.put(to, {})
            for key, item in cast("dict[str, Any]", value).items():
                self.merge_in((*to, key), item, (*trainjob_loc, key))
        elif isinstance(value, list) and to[-1] not in ("command", "args"):
            if present_value is None:
                self.put(to, [])
            for index, item in enumerate(cast("list[Any]", value)):
                self.merge_in((*to, self._index_of_same_name(to, item)), item, (*trainjob_loc, index))
        else:
            self.put(to, cast("object", value))
            self.trainjob_locs[to] = trainjob_loc

    def _index_of_same_name(self, to: Loc, item: object) -> int:
        """Return the index of the item of the same name in a list, or that behind its last one."""
        name = cast("dict[str, Any]", item).get("name") if isinstance(item, dict) else None
        view = self.view()
        names = [view.value((*item_loc, "name")) for item_loc in view.item_locs(to)]
        return names.index(name) if name is not None and name in names else len(names)

    def put(self, to: Loc, value: object) -> None:
        """Set a value of the JobSet."""
        Draft(SourceManifest(Document(None)), self.job_set).put(to, value)


def train_job(draft: Draft, command: Sequence[str], workdir: str, runtimes: Sequence[Mapping[str, Any]]) -> None:
    """Convert a TrainJob."""
    source = draft.source
    convert_metadata(draft)
    source.note_counterpart(("spec",), ("spec",))
    runtime = _copy_runtime(draft, runtimes)
    policy = _mapping_or_empty(runtime["spec"].get("mlPolicy"))
    for framework in ("mpi", "jax", "xgboost", "flux"):
        if policy.get(framework) is not None:
            raise UnfitError(_RUNTIME_REF, f"a runtime of {framework} cannot be converted", "dljob has torch")
    overlay = _Overlay({"spec": dict(_mapping_or_empty(runtime["spec"]["template"].get("spec")))})
    try:
        _convert_with_runtime(draft, overlay, policy, command, workdir)
    except UnfitError as error:
        if source.value(error.loc) is not None:
            raise
        # The place is one of the JobSet, whose value is of the TrainJob or of its runtime.
        trainjob_locs = [
            trainjob_loc
            for to, trainjob_loc in overlay.trainjob_locs.items()
            if all(part == error_part for part, error_part in zip(to, error.loc, strict=False))
        ]
        trainjob_loc = next(iter(trainjob_locs), _RUNTIME_REF)
        words = f"with its runtime, {path_of(error.loc)}: {error.message}"
        raise UnfitError(trainjob_loc, words, error.hint) from None


def _convert_with_runtime(
    draft: Draft, overlay: _Overlay, policy: Mapping[str, Any], command: Sequence[str], workdir: str
) -> None:
    """Lay a TrainJob over the JobSet of its runtime and convert that; `policy` is the runtime's `mlPolicy`."""
    source = draft.source
    _turn_initializers_into_init_containers(draft, overlay)
    source.mark_harmless(_RUNTIME_REF, "the runtime's own fields are in the job")
    torch_policy = _mapping_or_empty(policy.get("torch"))
    unknown_keys = [key for key in policy if key not in ("numNodes", "torch")]
    unknown_keys += [f"torch.{key}" for key in torch_policy if key != "numProcPerNode"]
    for key in unknown_keys:
        source.mark_dropped(_RUNTIME_REF, f"of its runtime, mlPolicy.{key}: dljob convert does not know it")
    job_indices = {step: index for index, step in enumerate(_step_names(overlay))}
    if "trainer" not in job_indices:
        raise UnfitError(_RUNTIME_REF, "its runtime has no job of the trainer", f"label one {_STEP_LABEL}: trainer")
    trainer_index = job_indices["trainer"]
    for key, at in source.fields(("spec",)):
        _convert_trainjob_field(draft, key, at, overlay, trainer_index)
    node_count = source.number(("spec", "trainer", "numNodes")) or policy.get("numNodes") or 1
    for key in ("parallelism", "completions"):  # as the trainer sets both
        overlay.put((*_job_spec_loc(trainer_index), key), node_count)
    replicas = ("spec", "roles", trainer_index, "replicas")
    source.mark_carried(("spec", "trainer", "numNodes"), replicas, "times its ranks")
    nproc_per_node = source.value(("spec", "trainer", "numProcPerNode")) or torch_policy.get("numProcPerNode") or ""
    _set_nproc_variable(overlay, trainer_index, str(nproc_per_node))
    merged_draft = Draft(overlay.view(), draft.document, draft.remarks, draft.config_map_texts)
    convert_job_set_spec(merged_draft, ("spec",), command, workdir, controller_sets_nnodes=True)
    _copy_fates_from_job_set(draft, merged_draft.source, overlay)


def _copy_runtime(draft: Draft, runtimes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return a copy of the runtime that a TrainJob names."""
    name = draft.source.text((*_RUNTIME_REF, "name"))
    candidates = [runtime for runtime in runtimes if _mapping_or_empty(runtime.get("metadata")).get("name") == name]
    if name == "torch-distributed":
        candidates.append(_DEFAULT_RUNTIME)
    runtime: Mapping[str, Any] = candidates[0] if candidates else {}
    if not isinstance(_mapping_or_empty(runtime.get("spec")).get("template"), dict):
        hint = "add --runtime FILE, or --kubernetes to read it from the cluster"
        raise UnfitError(_RUNTIME_REF, f"the runtime {name} is not here", hint)
    return cast("dict[str, Any]", json.loads(json.dumps(runtime)))


def _step_names(overlay: _Overlay) -> list[str]:
    """Return the step of each replicated job: trainer, dataset-initializer, model-initializer, or its name."""
    view = overlay.view()
    label: Loc = ("template", "metadata", "labels", _STEP_LABEL)
    names = [str(view.value((*at, *label)) or view.value((*at, "name"))) for at in view.item_locs(_REPLICATED_JOBS)]
    if len(names) == 1:
        return ["trainer"]
    return ["trainer" if name == "node" and "trainer" not in names else name for name in names]


def _job_spec_loc(job_index: int) -> Loc:
    return (*_REPLICATED_JOBS, job_index, "template", "spec")


def _main_container_loc(overlay: _Overlay, job_index: int) -> Loc:
    """Return the place of a replicated job's main container: that of the name `node`, else the first."""
    containers, view = (*_job_spec_loc(job_index), "template", "spec", "containers"), overlay.view()
    names = [view.value((*container, "name")) for container in view.item_locs(containers)]
    return (*containers, names.index("node") if "node" in names else 0)


def _convert_trainjob_field(draft: Draft, key: str, at: Loc, overlay: _Overlay, trainer_index: int) -> None:
    """Carry a field of a TrainJob's spec, or lay it over the runtime; the trainer is a replicated job of that index."""
    source = draft.source
    match key:
        case "suspend" | "activeDeadlineSeconds":
            carry_number_or_switch(draft, at, ("spec", key))
        case "managedBy":
            carry_managed_by(draft, at)
        case "trainer":
            _merge_trainer(draft, at, overlay, trainer_index)
        case "initializer":
            _merge_initializers(draft, at, overlay, trainer_index)
        case "runtimePatches":
            for patch in source.item_locs(at):
                _merge_runtime_patch(draft, patch, overlay)
        case "podTemplateOverrides" | "podSpecOverrides":
            for override in source.item_locs(at):
                _merge_pod_override(draft, override, overlay)
        case "labels" | "annotations":
            to = (*_job_spec_loc(trainer_index), "template", "metadata", key)
            overlay.merge_in(to, source.value(at), at)
        case _:
            pass  # has no fate, and is reported as unknown


def _merge_trainer(draft: Draft, trainer: Loc, overlay: _Overlay, trainer_index: int) -> None:
    source, container = draft.source, _main_container_loc(overlay, trainer_index)
    for key, at in source.fields(trainer):
        if key in ("image", "command", "args", "env"):
            overlay.merge_in((*container, key), source.value(at), at)
        elif key == "resourcesPerNode":
            overlay.merge_in((*container, "resources"), source.value(at), at)
        elif key == "numProcPerNode":
            source.mark_carried(at, ("spec", "roles", trainer_index, "replicasPerGroup"))


def _merge_initializers(draft: Draft, at: Loc, overlay: _Overlay, trainer_index: int) -> None:
    """Lay the fields of initializers over their containers, which run before Ray in each machine of the trainer."""
    source = draft.source
    init_containers = (*_job_spec_loc(trainer_index), "template", "spec", "initContainers")
    view = overlay.view()
    names = [view.value((*container, "name")) for container in view.item_locs(init_containers)]
    for key, initializer in source.fields(at):
        name = f"{key}-initializer"
        if name not in names:
            source.mark_dropped(initializer, "the runtime has no job for it")
            continue
        container = (*init_containers, names.index(name))
        for field_name, field_loc in source.fields(initializer):
            if field_name == "storageUri":
                variable = {"name": "STORAGE_URI", "value": source.text(field_loc)}
                overlay.merge_in((*container, "env"), [variable], _NO_FIELD)
            elif field_name == "env":
                overlay.merge_in((*container, "env"), source.value(field_loc), field_loc)
            elif field_name == "secretRef":
                overlay.merge_in((*container, "envFrom"), [{"secretRef": source.value(field_loc)}], _NO_FIELD)
            if field_name in ("storageUri", "secretRef"):
                source.mark_carried(field_loc, ("spec", "nodeGroups", 0, "template", "spec", "initContainers"))


def _turn_initializers_into_init_containers(draft: Draft, overlay: _Overlay) -> None:
    """Make init containers of the trainer's pods from the jobs of initializers: their images have no Ray."""
    view, steps = overlay.view(), _step_names(overlay)
    initializer_steps = [step for step in steps if step.endswith("-initializer")]
    if "trainer" not in steps or not initializer_steps:
        return
    trainer_pod = (*_job_spec_loc(steps.index("trainer")), "template", "spec")
    for job_index, step in enumerate(steps):
        if step not in initializer_steps:
            continue
        initializer_pod = (*_job_spec_loc(job_index), "template", "spec")
        containers = [_mapping_or_empty(view.value(at)) for at in view.item_locs((*initializer_pod, "containers"))]
        # As in Kubeflow, the container of the step's name is the initializer.
        candidates = [container for container in containers if container.get("name") == step] or containers
        if candidates:
            overlay.merge_in((*trainer_pod, "initContainers"), [{**candidates[0], "name": step}], _NO_FIELD)
        if len(containers) > 1:
            words = f"of its runtime, the job of {step}: one of its {len(containers)} containers runs"
            draft.source.mark_dropped(_RUNTIME_REF, words)
        volumes: list[Any] = view.value((*initializer_pod, "volumes")) or []
        overlay.merge_in((*trainer_pod, "volumes"), volumes, _NO_FIELD)
    _remove_jobs(overlay, [index for index, step in enumerate(steps) if step in initializer_steps])
    # All values here are the runtime's own, and none is of a field of the TrainJob.
    overlay.trainjob_locs.clear()


def _remove_jobs(overlay: _Overlay, job_indices: Sequence[int]) -> None:
    """Remove replicated jobs from a JobSet, and the dependencies of others on them."""
    jobs: list[Any] = overlay.job_set["spec"]["replicatedJobs"]
    removed_names = [_mapping_or_empty(jobs[index]).get("name") for index in job_indices]
    remaining_jobs = [job for job in jobs if _mapping_or_empty(job).get("name") not in removed_names]
    for job in remaining_jobs:
        if isinstance(_mapping_or_empty(job).get("dependsOn"), list):
            dependencies: list[Any] = job["dependsOn"]
            remaining = [entry for entry in dependencies if _mapping_or_empty(entry).get("name") not in removed_names]
            job["dependsOn"] = remaining
    overlay.job_set["spec"]["replicatedJobs"] = remaining_jobs


def _mapping_or_empty(value: object) -> Mapping[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _merge_runtime_patch(draft: Draft, patch: Loc, overlay: _Overlay) -> None:
    source = draft.source
    for key in ("manager", "time"):
        source.mark_harmless((*patch, key), "who wrote the patch")
    for key, at in source.fields((*patch, "trainingRuntimeSpec", "template")):
        if key == "metadata":
            source.mark_harmless(at, "labels of a JobSet, which is not made")
        elif key == "spec":
            overlay.merge_in(("spec",), source.value(at), at)
            for replicated_job in source.item_locs((*at, "replicatedJobs")):
                source.mark_harmless((*replicated_job, "name"), "it names the job to change")


def _merge_pod_override(draft: Draft, override: Loc, overlay: _Overlay) -> None:
    """Lay an override of older versions over the pods of the jobs that it names."""
    source, view = draft.source, overlay.view()
    target_names = [source.value((*target, "name")) for target in source.item_locs((*override, "targetJobs"))]
    source.mark_harmless((*override, "targetJobs"), "it names the jobs to change")
    for job_index, replicated_job in enumerate(view.item_locs(_REPLICATED_JOBS)):
        if view.value((*replicated_job, "name")) not in target_names:
            continue
        template = (*_job_spec_loc(job_index), "template")
        for key, at in source.fields(override):
            if key in ("metadata", "spec"):
                overlay.merge_in((*template, key), source.value(at), at)
            elif key != "targetJobs":
                overlay.merge_in((*template, "spec", key), source.value(at), at)


def _set_nproc_variable(overlay: _Overlay, trainer_index: int, nproc_per_node: str) -> None:
    """Give torchrun the number of ranks of a node by a variable, as the trainer does, unless it is to count them."""
    if nproc_per_node not in ("", "auto"):
        variable = {"name": "PET_NPROC_PER_NODE", "value": nproc_per_node}
        overlay.merge_in((*_main_container_loc(overlay, trainer_index), "env"), [variable], _NO_FIELD)


def _copy_fates_from_job_set(draft: Draft, job_set: SourceManifest, overlay: _Overlay) -> None:
    """Give fields of the TrainJob the fates of their places in the JobSet, and drop runtimeRef for the others lost."""
    source = draft.source
    for to, trainjob_loc in overlay.trainjob_locs.items():
        if source.value(trainjob_loc) is None:
            continue
        for leaf in source.leaves(trainjob_loc):
            source.fates[leaf] = job_set.fate((*to, *leaf[len(trainjob_loc) :]))
    for leaf in job_set.leaves():
        fate = job_set.fate(leaf)
        is_from_trainjob = any(leaf[: len(to)] == to for to in overlay.trainjob_locs)
        if fate.kind == "dropped" and not is_from_trainjob and leaf[-1] != "parallelism":
            source.mark_dropped(_RUNTIME_REF, f"of its runtime, {'.'.join(map(str, leaf))}: {fate.reason}")
