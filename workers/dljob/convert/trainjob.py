"""TrainJob of Kubeflow's trainer: its runtime is a JobSet, over which the job's own fields are laid."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from dljob.convert.jobset import jobs
from dljob.convert.kubeflow import managed
from dljob.convert.meta import head, scalar
from dljob.convert.source import Draft, FieldFate, SourceManifest, UnfitError
from dljob.spec.text.tree import Document, Loc

STEP = "trainer.kubeflow.org/trainjob-ancestor-step"
DEFAULT: Mapping[str, Any] = {
    "kind": "ClusterTrainingRuntime",
    "metadata": {"name": "torch-distributed"},
    "spec": {
        "mlPolicy": {"numNodes": 1, "torch": {}},
        "template": {
            "spec": {
                "replicatedJobs": [
                    {
                        "name": "node",
                        "template": {
                            "metadata": {"labels": {STEP: "trainer"}},
                            "spec": {
                                "template": {
                                    "spec": {
                                        "containers": [
                                            {"name": "node", "image": "pytorch/pytorch:2.13.0-cuda13.0-cudnn9-runtime"}
                                        ]
                                    }
                                }
                            },
                        },
                    }
                ]
            }
        },
    },
}
"""The runtime that Kubeflow's trainer 2.3 installs under this name."""


@dataclass(slots=True)
class _Overlay:
    """A runtime with fields of a TrainJob laid over it, and where each of them came from."""

    data: dict[str, Any]
    origin: dict[Loc, Loc] = field(default_factory=dict[Loc, Loc])

    def lay(self, to: Loc, value: object, loc: Loc) -> None:
        """Lay a value over the runtime: mappings key by key, lists of named items by name, other items behind."""
        have = SourceManifest(Document(self.data)).value(to)
        # A value of another type cannot be laid over it, and stays a field of which nobody said anything.
        same = all(isinstance(have, kind) == isinstance(value, kind) for kind in (dict, list))
        if have is not None and not same:
            return
        if isinstance(value, dict):
            if have is None:
                self.put(to, {})
            for key, item in cast("dict[str, Any]", value).items():
                self.lay((*to, key), item, (*loc, key))
        elif isinstance(value, list) and to[-1] not in ("command", "args"):
            if have is None:
                self.put(to, [])
            for at, item in enumerate(cast("list[Any]", value)):
                self.lay((*to, self._index(to, item)), item, (*loc, at))
        else:
            self.put(to, cast("object", value))
            self.origin[to] = loc

    def _index(self, to: Loc, item: object) -> int:
        """Return the index of the item of the same name, or that behind the last one."""
        name = cast("dict[str, Any]", item).get("name") if isinstance(item, dict) else None
        source = SourceManifest(Document(self.data))
        names = [source.value((*at, "name")) for at in source.items(to)]
        return names.index(name) if name is not None and name in names else len(names)

    def put(self, to: Loc, value: object) -> None:
        """Set a value."""
        Draft(SourceManifest(Document(None)), self.data).put(to, value)


def train_job(draft: Draft, command: Sequence[str], workdir: str, runtimes: Sequence[Mapping[str, Any]]) -> None:
    """Convert a TrainJob."""
    source = draft.source
    head(draft)
    source.stands(("spec",), ("spec",))
    runtime = _runtime(draft, runtimes)
    policy = _mapping(runtime["spec"].get("mlPolicy"))
    for name in ("mpi", "jax", "xgboost", "flux"):
        if policy.get(name) is not None:
            raise UnfitError(("spec", "runtimeRef"), f"a runtime of {name} cannot be converted", "dljob has torch")
    overlay = _Overlay({"spec": dict(_mapping(runtime["spec"]["template"].get("spec")))})
    _before(draft, overlay)
    source.harmless(("spec", "runtimeRef"), "the runtime's own fields are in the job")
    torch = _mapping(policy.get("torch"))
    unread = [*(key for key in policy if key not in ("numNodes", "torch")), *(f"torch.{key}" for key in torch)]
    for key in unread:
        if key != "torch.numProcPerNode":
            source.drop(("spec", "runtimeRef"), f"of its runtime, mlPolicy.{key}: dljob convert does not know it")
    nodes, ranks_per_node = policy.get("numNodes") or 1, torch.get("numProcPerNode")
    steps = {name: at for at, name in enumerate(_steps(overlay))}
    if "trainer" not in steps:
        raise UnfitError(("spec", "runtimeRef"), "its runtime has no job of the trainer", f"label one {STEP}: trainer")
    for key, at in source.keys(("spec",)):
        _field(draft, key, at, overlay, steps)
    node_count = source.number(("spec", "trainer", "numNodes"))
    for key in ("parallelism", "completions"):  # as the trainer sets both
        overlay.put((*_job(steps["trainer"]), key), node_count or nodes)
    source.carry(("spec", "trainer", "numNodes"), ("spec", "roles", steps["trainer"], "replicas"), "times its ranks")
    nproc = source.value(("spec", "trainer", "numProcPerNode")) or ranks_per_node or ""
    _environment(overlay, steps["trainer"], str(nproc))
    merged = Draft(SourceManifest(Document(overlay.data)), draft.document, draft.remarks, draft.scripts)
    try:
        jobs(merged, (), command, workdir, sized=True)
    except UnfitError as error:
        at = next((loc for to, loc in overlay.origin.items() if to[: len(error.loc)] == error.loc), ("spec",))
        raise UnfitError(at, f"with its runtime {error.message}", error.hint) from None
    _tell(draft, merged, overlay)


def _runtime(draft: Draft, runtimes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return a copy of the runtime that a TrainJob names."""
    source = draft.source
    name = source.text(("spec", "runtimeRef", "name"))
    chosen = next((runtime for runtime in runtimes if _mapping(runtime.get("metadata")).get("name") == name), None)
    if chosen is None and name == "torch-distributed":
        chosen = DEFAULT
    template = SourceManifest(Document(cast("Any", chosen or {}))).value(("spec", "template"))
    if chosen is None or not isinstance(template, dict):
        hint = "add --runtime FILE, or --kubernetes to read it from the cluster"
        raise UnfitError(("spec", "runtimeRef"), f"the runtime {name} is not here", hint)
    return cast("dict[str, Any]", json.loads(json.dumps(chosen)))


def _steps(overlay: _Overlay) -> list[str]:
    """Return the step of each replicated job: trainer, dataset-initializer, model-initializer, or its name."""
    source = SourceManifest(Document(overlay.data))
    places = list(source.items(("spec", "replicatedJobs")))
    label: Loc = ("template", "metadata", "labels", STEP)
    names = [str(source.value((*at, *label)) or source.value((*at, "name"))) for at in places]
    return ["trainer" if len(names) == 1 or (name == "node" and "trainer" not in names) else name for name in names]


def _job(at: int) -> Loc:
    return ("spec", "replicatedJobs", at, "template", "spec")


def _container(overlay: _Overlay, at: int) -> Loc:
    """Return the main container of a replicated job."""
    place = (*_job(at), "template", "spec", "containers")
    source = SourceManifest(Document(overlay.data))
    names = [source.value((*container, "name")) for container in source.items(place)]
    return (*place, names.index("node") if "node" in names else 0)


def _field(draft: Draft, key: str, at: Loc, overlay: _Overlay, steps: Mapping[str, int]) -> None:
    source = draft.source
    match key:
        case "suspend" | "activeDeadlineSeconds":
            scalar(draft, at, ("spec", key))
        case "managedBy":
            managed(draft, at)
        case "trainer":
            _trainer(draft, at, overlay, steps["trainer"])
        case "initializer":
            _initializers(draft, at, overlay, steps["trainer"])
        case "runtimePatches":
            _patches(draft, at, overlay)
        case "podTemplateOverrides" | "podSpecOverrides":
            _overrides(draft, at, overlay)
        case "labels" | "annotations":
            overlay.lay((*_job(steps["trainer"]), "template", "metadata", key), source.value(at), at)
        case _:
            pass


def _trainer(draft: Draft, at: Loc, overlay: _Overlay, number: int) -> None:
    source, to = draft.source, _container(overlay, number)
    for key, place in source.keys(at):
        if key in ("image", "command", "args", "env"):
            overlay.lay((*to, key), source.value(place), place)
        elif key == "resourcesPerNode":
            overlay.lay((*to, "resources"), source.value(place), place)
        elif key == "numProcPerNode":
            source.carry(place, ("spec", "roles", number, "replicasPerGroup"))


def _initializers(draft: Draft, at: Loc, overlay: _Overlay, number: int) -> None:
    """Lay the fields of initializers over their containers, which run before Ray in each machine of the trainer."""
    source = draft.source
    place = (*_job(number), "template", "spec", "initContainers")
    names = [container.get("name") for container in SourceManifest(Document(overlay.data)).value(place) or ()]
    for key, part in source.keys(at):
        name = f"{key}-initializer"
        if name not in names:
            source.drop(part, "the runtime has no job for it")
            continue
        _initializer(draft, part, overlay, (*place, names.index(name)))


def _initializer(draft: Draft, at: Loc, overlay: _Overlay, to: Loc) -> None:
    source = draft.source
    for key, place in source.keys(at):
        if key == "storageUri":
            overlay.lay((*to, "env"), [{"name": "STORAGE_URI", "value": source.text(place)}], ("<env>",))
        elif key == "env":
            overlay.lay((*to, "env"), source.value(place), place)
        elif key == "secretRef":
            overlay.lay((*to, "envFrom"), [{"secretRef": source.value(place)}], ("<env>",))
        if key in ("storageUri", "secretRef"):
            source.carry(place, ("spec", "nodeGroups", 0, "template", "spec", "initContainers"))


def _before(draft: Draft, overlay: _Overlay) -> None:
    """Make init containers of the trainer's pods from the jobs of initializers: their images have no Ray."""
    source = SourceManifest(Document(overlay.data))
    steps = _steps(overlay)
    if "trainer" not in steps or all(not step.endswith("-initializer") for step in steps):
        return
    pod = (*_job(steps.index("trainer")), "template", "spec")
    for number, step in enumerate(steps):
        if not step.endswith("-initializer"):
            continue
        pod_spec = (*_job(number), "template", "spec")
        containers = [_mapping(source.value(at)) for at in source.items((*pod_spec, "containers"))]
        # As in Kubeflow, the container of the step's name is the initializer.
        for container in sorted(containers, key=lambda container: container.get("name") != step)[:1]:
            overlay.lay((*pod, "initContainers"), [{**container, "name": step}], ("<runtime>",))
        if len(containers) > 1:
            words = f"of its runtime, the job of {step}: one of its {len(containers)} containers runs"
            draft.source.drop(("spec", "runtimeRef"), words)
        overlay.lay((*pod, "volumes"), source.value((*pod_spec, "volumes")) or [], ("<runtime>",))
    names = [source.value((*at, "name")) for at in source.items(("spec", "replicatedJobs"))]
    dropped = {name for name, step in zip(names, steps, strict=True) if step.endswith("-initializer")}
    jobs: list[dict[str, Any]] = overlay.data["spec"]["replicatedJobs"]
    overlay.data["spec"]["replicatedJobs"] = main_jobs = [job for job in jobs if job.get("name") not in dropped]
    for number, job in enumerate(main_jobs):
        waits = source.value(("spec", "replicatedJobs", number, "dependsOn"))
        if isinstance(waits, list):
            job["dependsOn"] = [wait for wait in cast("list[Any]", waits) if _mapping(wait).get("name") not in dropped]
    # What is laid here is the runtime's own, and no field of the TrainJob.
    overlay.origin.clear()


def _mapping(value: object) -> Mapping[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _patches(draft: Draft, at: Loc, overlay: _Overlay) -> None:
    for place in draft.source.items(at):
        _patch(draft, place, overlay)


def _patch(draft: Draft, at: Loc, overlay: _Overlay) -> None:
    """Lay a runtime patch over the runtime."""
    source = draft.source
    for key in ("manager", "time"):
        source.harmless((*at, key), "who wrote the patch")
    template = (*at, "trainingRuntimeSpec", "template")
    for key, place in source.keys(template):
        if key == "metadata":
            source.harmless(place, "labels of a JobSet, which is not made")
        elif key == "spec":
            overlay.lay(("spec",), source.value(place), place)
            for job in source.items((*place, "replicatedJobs")):
                source.harmless((*job, "name"), "it names the job to change")


def _overrides(draft: Draft, at: Loc, overlay: _Overlay) -> None:
    for place in draft.source.items(at):
        _override(draft, place, overlay)


def _override(draft: Draft, at: Loc, overlay: _Overlay) -> None:
    """Lay an override of older versions over the pods of the jobs that it names."""
    source = draft.source
    job_names = [source.value((*target, "name")) for target in source.items((*at, "targetJobs"))]
    source.harmless((*at, "targetJobs"), "it names the jobs to change")
    merged = SourceManifest(Document(overlay.data))
    for number, place in enumerate(merged.items(("spec", "replicatedJobs"))):
        if merged.value((*place, "name")) in job_names:
            for key, part in source.keys(at):
                if key in ("metadata", "spec"):
                    overlay.lay((*_job(number), "template", key), source.value(part), part)
                elif key != "targetJobs":
                    overlay.lay((*_job(number), "template", "spec", key), source.value(part), part)


def _environment(overlay: _Overlay, number: int, nproc: str) -> None:
    """Give torchrun the number of ranks of a node, as the trainer does by a variable."""
    if nproc and nproc != "auto":
        name = {"name": "PET_NPROC_PER_NODE", "value": nproc}
        overlay.lay((*_container(overlay, number), "env"), [name], ("<env>",))


def _tell(draft: Draft, merged: Draft, overlay: _Overlay) -> None:
    """Give fields of the TrainJob the fates of their places in the runtime, and name what the runtime loses."""
    source, merged_source = draft.source, merged.source
    for to, loc in overlay.origin.items():
        for leaf in source.leaves(loc) if source.value(loc) is not None else ():
            source.fates[leaf] = merged_source.fate((*to, *leaf[len(loc) :]))
    for leaf in merged_source.leaves():
        fate = merged_source.fate(leaf)
        from_trainjob = any(leaf[: len(to)] == to for to in overlay.origin)
        if fate.kind == "dropped" and not from_trainjob and leaf[-1] != "parallelism":
            words = f"of its runtime, {'.'.join(map(str, leaf))}: {fate.reason}"
            had = source.fates.get(("spec", "runtimeRef"))
            reason = f"{had.reason}; {words}" if had and had.kind == "dropped" else words
            source.fates["spec", "runtimeRef"] = FieldFate("dropped", reason)
