"""JobSet and Job: each job becomes a role, with a torch world where its pods run torchrun."""

from __future__ import annotations

from collections.abc import Sequence

from dljob.api.torchrun import FOR_EVER
from dljob.convert.kubeflow import managed
from dljob.convert.meta import head, scalar
from dljob.convert.pods import Manner
from dljob.convert.source import Draft, UnfitError
from dljob.convert.variables import GIVEN, INDEX
from dljob.convert.world import PodSet, PodWorld, build
from dljob.spec.scalars import dns_name
from dljob.spec.text.tree import Loc

MANNER = Manner(("node", "pytorch", "trainer", "main"), rank_variables=GIVEN, sets=(INDEX,))
BACKOFF_LIMIT = 6
"""Default of a Job's `backoffLimit`, from Kubernetes."""
_TOPOLOGY = ("alpha.jobset.sigs.k8s.io/exclusive-topology", "alpha.jobset.sigs.k8s.io/node-selector")
_TOPOLOGY_LOST = "write scheduling.dljob.io/topology-key or strategy as an annotation of the role"
_PODS = "the pods are machines of a RayCluster: ranks restart by restartPolicy"
_JOB_FIELDS = {
    "podReplacementPolicy": _PODS,
    "completionMode": "ranks have numbers anyway",
    "suspend": "the job is suspended as a whole",
    "ttlSecondsAfterFinished": "the job is deleted as a whole",
    "manualSelector": _PODS,
    "selector": _PODS,
}


def job_set(draft: Draft, command: Sequence[str], workdir: str) -> None:
    """Convert a JobSet."""
    source = draft.source
    head(draft)
    source.stands(("spec",), ("spec",))
    for name in _TOPOLOGY:
        at: Loc = ("metadata", "annotations", name)
        if source.value(at) is not None:
            annotations: dict[str, str] | None = draft.get(("metadata", "annotations"))
            (annotations or {}).pop(name, None)
            source.drop(at, _TOPOLOGY_LOST)
    jobs(draft, (), command, workdir)


def batch_job(draft: Draft, program: Sequence[str], workdir: str) -> None:
    """Convert a Job of Kubernetes."""
    source, at = draft.source, ("spec",)
    head(draft)
    source.stands(at, at)
    role: Loc = ("spec", "roles", 0)
    pods = _pods(draft, at, role)
    world = _world(draft, at, role, "worker", pods, pods)
    world.command, world.workdir = tuple(program), workdir
    _job_fields(draft, at, role)
    build(draft, world)
    _budget(draft, 0)
    for key, place in source.keys(at):
        if key in ("suspend", "ttlSecondsAfterFinished"):
            scalar(draft, place, ("spec", key))
        elif key == "managedBy":
            managed(draft, place)


def jobs(draft: Draft, loc: Loc, command: Sequence[str], workdir: str, *, sized: bool = False) -> None:
    """Convert the spec of a JobSet, which lies in the document at `loc`.

    `sized`: a controller tells torchrun the number of pods, and to start as many ranks as a pod has devices.
    """
    source, spec = draft.source, (*loc, "spec")
    places = list(source.items((*spec, "replicatedJobs")))
    if not places:
        raise UnfitError((*spec, "replicatedJobs"), "has no jobs", "describe its pods")
    for at in places:
        _replicated(draft, at, command, workdir, sized=sized)
    _budget(draft, source.number((*spec, "failurePolicy", "maxRestarts")) or 0)
    for key, at in source.keys(spec):
        _field(draft, key, at, places)


def _budget(draft: Draft, restarts: int) -> None:
    """Set the restarts of the whole job, after the roles, whose torchrun lines have budgets too."""
    # Neither Jobs nor JobSets have a window.
    for name, number in (("maxRestarts", restarts), ("windowSeconds", FOR_EVER)):
        draft.put(("spec", "faultTolerance", name), number)


def role_name(draft: Draft, at: Loc) -> str:
    """Return the role of a replicated job."""
    name = dns_name(draft.source.text((*at, "name")) or "worker", 20, "role")
    return f"{name}s" if name in ("job", "master", "node", "head", "headgroup") else name


def _replicated(draft: Draft, at: Loc, command: Sequence[str], workdir: str, *, sized: bool) -> None:
    source = draft.source
    role: Loc = ("spec", "roles", len(draft.items(("spec", "roles"))))
    name = role_name(draft, at)
    source.stands(at, role)
    source.carry((*at, "name"), (*role, "name"))
    job = (*at, "template", "spec")
    pods = _pods(draft, job, role)
    world = _world(draft, job, role, name, pods * (source.number((*at, "replicas")) or 1), pods)
    world.nproc, world.sized = "auto" if sized else "1", sized
    world.command, world.workdir = tuple(command), workdir
    _around(draft, at, job, role)
    build(draft, world)


def _world(draft: Draft, job: Loc, role: Loc, name: str, pods: int, indexed: int) -> PodWorld:  # noqa: PLR0917 - a Job
    """Return what the spec of a Job says about its pods, which each Job numbers from 0 to `indexed`."""
    source = draft.source
    restarts = source.number((*job, "backoffLimit"))
    return PodWorld(
        role,
        name,
        [PodSet(name, (*job, "template"), pods, MANNER)],
        restarts=BACKOFF_LIMIT if restarts is None else restarts,
        nproc="1",
        indexed=0 if source.value((*job, "completionMode")) == "NonIndexed" else indexed,
        torch=_meets(draft, (*job, "template")),
    )


def _pods(draft: Draft, job: Loc, role: Loc) -> int:
    """Return the pods of a Job: one for each completion, since each of them does a part of the work."""
    source = draft.source
    at_once, parts = (source.number((*job, key)) for key in ("parallelism", "completions"))
    pods = parts or at_once or 1
    for key, number in (("parallelism", at_once), ("completions", parts)):
        if number is not None:
            source.carry((*job, key), (*role, "replicas"), "times the replicas of its job")
    place = (*job, "parallelism")
    if at_once is not None and at_once > pods:
        source.harmless(place, "Kubernetes runs no more pods than completions, either")
    elif at_once is not None and at_once < pods:
        source.drop(place, f"all {pods} ranks run at once, on as many machines; Kubernetes runs {at_once} at a time")
    elif at_once is None and pods > 1:
        draft.remarks.append(f"all {pods} ranks run at once, on as many machines; Kubernetes runs one at a time")
    return pods


def _around(draft: Draft, at: Loc, job: Loc, role: Loc) -> None:
    """Convert the fields around the pods of a replicated job."""
    source = draft.source
    for key, place in source.keys(at):
        if key == "replicas":
            source.carry(place, (*role, "replicas"), "times the pods of each job")
        elif key == "groupName":
            source.harmless(place, "it only names jobs for success and failure policies")
        elif key == "dependsOn":
            _depends(draft, place, role)
    for key, place in source.keys((*at, "template", "metadata")):
        source.harmless(place, "Jobs are not made: the pods' own labels are carried")
        for name in _TOPOLOGY if key == "annotations" else ():
            if source.value((*place, name)) is not None:
                source.drop((*place, name), _TOPOLOGY_LOST)
    _job_fields(draft, job, role)


def _job_fields(draft: Draft, job: Loc, role: Loc) -> None:
    """Convert the fields of a Job's spec around the pods."""
    source = draft.source
    for key, place in source.keys(job):
        if key in _JOB_FIELDS:
            source.harmless(place, _JOB_FIELDS[key])
        elif key == "backoffLimit":
            source.carry(place, (*role, "restartPolicy", "maxRestarts"))
        elif key in ("backoffLimitPerIndex", "maxFailedIndexes"):
            source.drop(place, "restartPolicy.maxRestarts counts the restarts of all ranks of a role together")
        elif key == "activeDeadlineSeconds":
            scalar(draft, place, ("spec", key), "of the whole job")
        elif key in ("podFailurePolicy", "successPolicy"):
            source.drop(place, "write faultTolerance.rules, which look at exit codes and reasons")


def _meets(draft: Draft, template: Loc) -> bool:
    """Whether pods have the variables of a rendezvous."""
    source = draft.source
    names = {
        str(source.value((*env, "name")))
        for container in source.items((*template, "spec", "containers"))
        for env in source.items((*container, "env"))
    }
    return bool(names & {"MASTER_ADDR", "RANK", "WORLD_SIZE"})


def _depends(draft: Draft, at: Loc, role: Loc) -> None:
    source = draft.source
    for place in source.items(at):
        to = (*role, "dependsOn", len(draft.items((*role, "dependsOn"))))
        draft.put(to, {"role": role_name(draft, place), "condition": "Ready"})
        source.carry((*place, "name"), (*to, "role"))
        if source.value((*place, "status")) is not None:
            complete = source.value((*place, "status")) == "Complete"
            draft.move((*place, "status"), (*to, "condition"), "Complete" if complete else "Ready")


def _field(draft: Draft, key: str, at: Loc, places: Sequence[Loc]) -> None:
    source = draft.source
    match key:
        case "suspend" | "ttlSecondsAfterFinished":
            scalar(draft, at, ("spec", key))
        case "managedBy":
            managed(draft, at)
        case "network" | "coordinator":
            source.harmless(at, "PrimeMaster tells the ranks of each other")
        case "failurePolicy":
            source.carry((*at, "maxRestarts"), ("spec", "faultTolerance", "maxRestarts"))
            source.harmless((*at, "restartStrategy"), "PrimeMaster restarts what has to restart")
            if source.value((*at, "rules")):
                source.drop((*at, "rules"), "write faultTolerance.rules, which look at exit codes and reasons")
        case "successPolicy":
            _success(draft, at, places)
        case "startupPolicy":
            _startup(draft, at, places)
        case "volumeClaimPolicies":
            source.drop(at, "make the claims yourself, and name them in the pods' volumes")
        case _:
            pass


def _success(draft: Draft, at: Loc, places: Sequence[Loc]) -> None:
    """Let the job wait for the roles that decide about success."""
    source = draft.source
    targets = source.words((*at, "targetReplicatedJobs"))
    names = [source.text((*place, "name")) for place in places]
    for number, name in enumerate(names):
        if targets and name not in targets:
            draft.put(("spec", "roles", number, "driver"), value=False)
    deciding = targets or names
    pods = sum(draft.get(("spec", "roles", n, "replicas")) or 1 for n, name in enumerate(names) if name in deciding)
    if source.value((*at, "operator")) == "Any" and pods > 1:
        source.drop(at, "the job ends when all its driver roles have ended, not with the first of them")
    else:
        source.carry((*at, "targetReplicatedJobs"), ("spec", "roles"), "driver: false for jobs that do not decide")
        source.harmless((*at, "operator"), "the job ends when all its driver roles have ended")


def _startup(draft: Draft, at: Loc, places: Sequence[Loc]) -> None:
    source = draft.source
    if source.value((*at, "startupPolicyOrder")) == "InOrder":
        for number in range(1, len(places)):
            role: Loc = ("spec", "roles", number)
            before = draft.get(("spec", "roles", number - 1, "name"))
            draft.put((*role, "dependsOn"), [{"role": before, "condition": "Ready"}])
        source.carry((*at, "startupPolicyOrder"), ("spec", "roles"), "dependsOn: Ready")
    else:
        source.harmless(at, "roles start together")
