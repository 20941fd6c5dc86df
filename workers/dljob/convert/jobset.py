"""JobSet and Job: each job becomes a role, with a torch world where its pods run torchrun."""

from __future__ import annotations

from collections.abc import Sequence

from dljob.api.torchrun import FOR_EVER
from dljob.convert.kubeflow import carry_managed_by
from dljob.convert.meta import carry_number_or_switch, convert_metadata
from dljob.convert.pods import PodConventions
from dljob.convert.source import Draft, UnfitError
from dljob.convert.variables import POD_INDEX, RANK_DEPENDENT
from dljob.convert.world import PodSet, RoleDraft, build_role
from dljob.spec.scalars import dns_name
from dljob.spec.text.tree import Loc

_JOB_CONVENTIONS = PodConventions(
    ("node", "pytorch", "trainer", "main"), rank_dependent=RANK_DEPENDENT, set_by_controller=(POD_INDEX,)
)
_DEFAULT_BACKOFF_LIMIT = 6
"""Default of a Job's `backoffLimit`, from Kubernetes."""
_TOPOLOGY_ANNOTATIONS = ("alpha.jobset.sigs.k8s.io/exclusive-topology", "alpha.jobset.sigs.k8s.io/node-selector")
_WRITE_TOPOLOGY = "write scheduling.dljob.io/topology-key or strategy as an annotation of the role"
_RESTART_BY_ROLE = "the pods are machines of a RayCluster: ranks restart by restartPolicy"
_WRITE_RULES = "write faultTolerance.rules, which look at exit codes and reasons"
_HARMLESS_JOB_FIELDS = {
    **dict.fromkeys(("podReplacementPolicy", "manualSelector", "selector"), _RESTART_BY_ROLE),
    "completionMode": "ranks have numbers anyway",
    "suspend": "the job is suspended as a whole",
    "ttlSecondsAfterFinished": "the job is deleted as a whole",
}


def job_set(draft: Draft, command: Sequence[str], workdir: str) -> None:
    """Convert a JobSet."""
    source = draft.source
    convert_metadata(draft)
    source.note_counterpart(("spec",), ("spec",))
    for name in _TOPOLOGY_ANNOTATIONS:
        at: Loc = ("metadata", "annotations", name)
        if source.value(at) is not None:
            annotations: dict[str, str] | None = draft.get(("metadata", "annotations"))
            (annotations or {}).pop(name, None)
            source.mark_dropped(at, _WRITE_TOPOLOGY)
    convert_job_set_spec(draft, ("spec",), command, workdir)


def batch_job(draft: Draft, command: Sequence[str], workdir: str) -> None:
    """Convert a Job of Kubernetes."""
    source, job_spec = draft.source, ("spec",)
    convert_metadata(draft)
    source.note_counterpart(job_spec, job_spec)
    role: Loc = ("spec", "roles", 0)
    pod_count = _carry_pods_per_job(draft, job_spec, role)
    role_draft = _role_of_job(draft, job_spec, role, "worker", all_pods=pod_count, pods_per_job=pod_count)
    role_draft.user_command, role_draft.user_workdir = tuple(command), workdir
    _convert_job_fields(draft, job_spec, role)
    build_role(draft, role_draft)
    _set_job_budget(draft, max_restarts=0)
    for key, at in source.fields(job_spec):
        if key in ("suspend", "ttlSecondsAfterFinished"):
            carry_number_or_switch(draft, at, ("spec", key))
        elif key == "managedBy":
            carry_managed_by(draft, at)


def convert_job_set_spec(
    draft: Draft, spec: Loc, command: Sequence[str], workdir: str, *, controller_sets_nnodes: bool = False
) -> None:
    """Convert the spec of a JobSet; `command` and `workdir` are the flags.

    `controller_sets_nnodes`: a controller tells torchrun the number of pods, and to start a rank for each device.
    """
    source = draft.source
    replicated_jobs = list(source.item_locs((*spec, "replicatedJobs")))
    if not replicated_jobs:
        raise UnfitError((*spec, "replicatedJobs"), "has no jobs", "describe its pods")
    for replicated_job in replicated_jobs:
        role_draft = _convert_replicated_job(draft, replicated_job)
        if controller_sets_nnodes:
            role_draft.controller_sets_nnodes, role_draft.nproc_per_node = True, "auto"
        role_draft.user_command, role_draft.user_workdir = tuple(command), workdir
        build_role(draft, role_draft)
    _set_job_budget(draft, source.number((*spec, "failurePolicy", "maxRestarts")) or 0)
    for key, at in source.fields(spec):
        _convert_job_set_field(draft, key, at, replicated_jobs)


def _set_job_budget(draft: Draft, max_restarts: int) -> None:
    """Set the restarts of the whole job, after the roles, whose torchrun lines have budgets too."""
    draft.put(("spec", "faultTolerance", "maxRestarts"), max_restarts)
    # Neither Jobs nor JobSets have a window.
    draft.put(("spec", "faultTolerance", "windowSeconds"), FOR_EVER)


def _role_name(draft: Draft, replicated_job: Loc) -> str:
    """Return the name of the role that a replicated job becomes."""
    name = dns_name(draft.source.text((*replicated_job, "name")) or "worker", 20, "role")
    return f"{name}s" if name in ("job", "master", "node", "head", "headgroup") else name


def _convert_replicated_job(draft: Draft, replicated_job: Loc) -> RoleDraft:
    """Convert the fields of a replicated job around its pods, and return the role that it becomes."""
    source = draft.source
    role: Loc = ("spec", "roles", len(draft.list_at(("spec", "roles"))))
    name = _role_name(draft, replicated_job)
    source.note_counterpart(replicated_job, role)
    source.mark_carried((*replicated_job, "name"), (*role, "name"))
    job_spec = (*replicated_job, "template", "spec")
    pods_per_job = _carry_pods_per_job(draft, job_spec, role)
    all_pods = pods_per_job * (source.number((*replicated_job, "replicas")) or 1)
    role_draft = _role_of_job(draft, job_spec, role, name, all_pods=all_pods, pods_per_job=pods_per_job)
    for key, at in source.fields(replicated_job):
        if key == "replicas":
            source.mark_carried(at, (*role, "replicas"), "times the pods of each job")
        elif key == "groupName":
            source.mark_harmless(at, "it only names jobs for success and failure policies")
        elif key == "dependsOn":
            _carry_depends_on(draft, at, role)
    for key, at in source.fields((*replicated_job, "template", "metadata")):
        source.mark_harmless(at, "Jobs are not made: the pods' own labels are carried")
        for annotation in _TOPOLOGY_ANNOTATIONS if key == "annotations" else ():
            if source.value((*at, annotation)) is not None:
                source.mark_dropped((*at, annotation), _WRITE_TOPOLOGY)
    _convert_job_fields(draft, job_spec, role)
    return role_draft


def _role_of_job(draft: Draft, job_spec: Loc, role: Loc, name: str, *, all_pods: int, pods_per_job: int) -> RoleDraft:
    """Return the role of the pods of one Job, or of several equal ones, by the spec of the Job."""
    source = draft.source
    backoff_limit = source.number((*job_spec, "backoffLimit"))
    is_indexed = source.value((*job_spec, "completionMode")) != "NonIndexed"
    return RoleDraft(
        role,
        name,
        [PodSet(name, (*job_spec, "template"), all_pods, _JOB_CONVENTIONS)],
        max_restarts=_DEFAULT_BACKOFF_LIMIT if backoff_limit is None else backoff_limit,
        nproc_per_node="1",
        pods_per_indexed_job=pods_per_job if is_indexed else 0,
        is_torch_world=_has_rendezvous_variables(draft, (*job_spec, "template")),
    )


def _carry_pods_per_job(draft: Draft, job_spec: Loc, role: Loc) -> int:
    """Return the pods of a Job: one for each completion, since each of them does a part of the work."""
    source = draft.source
    parallelism = source.number((*job_spec, "parallelism"))
    completions = source.number((*job_spec, "completions"))
    pod_count = completions or parallelism or 1
    for key, number in (("parallelism", parallelism), ("completions", completions)):
        if number is not None:
            source.mark_carried((*job_spec, key), (*role, "replicas"), "times the replicas of its job")
    at, all_at_once = (*job_spec, "parallelism"), f"all {pod_count} ranks run at once, on as many machines"
    if parallelism is not None and parallelism > pod_count:
        source.mark_harmless(at, "Kubernetes runs no more pods than completions, either")
    elif parallelism is not None and parallelism < pod_count:
        source.mark_dropped(at, f"{all_at_once}; Kubernetes runs {parallelism} at a time")
    elif parallelism is None and pod_count > 1:
        draft.remarks.append(f"{all_at_once}; Kubernetes runs one at a time")
    return pod_count


def _convert_job_fields(draft: Draft, job_spec: Loc, role: Loc) -> None:
    """Convert the fields of a Job's spec around the pods."""
    source = draft.source
    for key, at in source.fields(job_spec):
        if key in _HARMLESS_JOB_FIELDS:
            source.mark_harmless(at, _HARMLESS_JOB_FIELDS[key])
        elif key == "backoffLimit":
            source.mark_carried(at, (*role, "restartPolicy", "maxRestarts"))
        elif key in ("backoffLimitPerIndex", "maxFailedIndexes"):
            source.mark_dropped(at, "restartPolicy.maxRestarts counts the restarts of all ranks of a role together")
        elif key == "activeDeadlineSeconds":
            carry_number_or_switch(draft, at, ("spec", key), "of the whole job")
        elif key in ("podFailurePolicy", "successPolicy"):
            source.mark_dropped(at, _WRITE_RULES)


def _has_rendezvous_variables(draft: Draft, template: Loc) -> bool:
    """Whether a container of a pod template has variables of torch's rendezvous."""
    source = draft.source
    names = {
        str(source.value((*variable, "name")))
        for container in source.item_locs((*template, "spec", "containers"))
        for variable in source.item_locs((*container, "env"))
    }
    return bool(names & {"MASTER_ADDR", "RANK", "WORLD_SIZE"})


def _carry_depends_on(draft: Draft, at: Loc, role: Loc) -> None:
    """Carry the jobs on which a replicated job depends as roles, with status Complete or Ready as condition."""
    source, depends_on = draft.source, (*role, "dependsOn")
    for dependency in source.item_locs(at):
        to = (*depends_on, len(draft.list_at(depends_on)))
        draft.put(to, {"role": _role_name(draft, dependency), "condition": "Ready"})
        source.mark_carried((*dependency, "name"), (*to, "role"))
        status = source.value((*dependency, "status"))
        if status is not None:
            draft.move((*dependency, "status"), (*to, "condition"), "Complete" if status == "Complete" else "Ready")


def _convert_job_set_field(draft: Draft, key: str, at: Loc, replicated_jobs: Sequence[Loc]) -> None:
    """Convert a field of a JobSet's spec beside its replicated jobs, which are roles already."""
    source = draft.source
    match key:
        case "suspend" | "ttlSecondsAfterFinished":
            carry_number_or_switch(draft, at, ("spec", key))
        case "managedBy":
            carry_managed_by(draft, at)
        case "network" | "coordinator":
            source.mark_harmless(at, "PrimeMaster tells the ranks of each other")
        case "failurePolicy":
            source.mark_carried((*at, "maxRestarts"), ("spec", "faultTolerance", "maxRestarts"))
            source.mark_harmless((*at, "restartStrategy"), "PrimeMaster restarts what has to restart")
            if source.value((*at, "rules")):
                source.mark_dropped((*at, "rules"), _WRITE_RULES)
        case "successPolicy":
            _convert_success_policy(draft, at, replicated_jobs)
        case "startupPolicy":
            _convert_startup_policy(draft, at, role_count=len(replicated_jobs))
        case "volumeClaimPolicies":
            source.mark_dropped(at, "make the claims yourself, and name them in the pods' volumes")
        case _:
            pass  # has no fate, and is reported as unknown


def _convert_success_policy(draft: Draft, policy: Loc, replicated_jobs: Sequence[Loc]) -> None:
    """Let the job wait for the roles that decide about success."""
    source = draft.source
    names = [source.text((*replicated_job, "name")) for replicated_job in replicated_jobs]
    target_names = source.words((*policy, "targetReplicatedJobs"))
    deciding_names = target_names or names
    deciding_pods = 0
    for index, name in enumerate(names):
        role: Loc = ("spec", "roles", index)
        if name in deciding_names:
            deciding_pods += draft.get((*role, "replicas")) or 1
        else:
            draft.put((*role, "driver"), value=False)
    if source.value((*policy, "operator")) == "Any" and deciding_pods > 1:
        source.mark_dropped(policy, "the job ends when all its driver roles have ended, not with the first of them")
    else:
        reason = "driver: false for jobs that do not decide"
        source.mark_carried((*policy, "targetReplicatedJobs"), ("spec", "roles"), reason)
        source.mark_harmless((*policy, "operator"), "the job ends when all its driver roles have ended")


def _convert_startup_policy(draft: Draft, policy: Loc, role_count: int) -> None:
    """Let each role wait for the one before it, where the order says so."""
    source = draft.source
    if source.value((*policy, "startupPolicyOrder")) == "InOrder":
        for index in range(1, role_count):
            previous_name = draft.get(("spec", "roles", index - 1, "name"))
            depends_on: Loc = ("spec", "roles", index, "dependsOn")
            dependencies = draft.list_at(depends_on)
            if all(dependency["role"] != previous_name for dependency in dependencies):
                draft.put((*depends_on, len(dependencies)), {"role": previous_name, "condition": "Ready"})
        source.mark_carried((*policy, "startupPolicyOrder"), ("spec", "roles"), "dependsOn: Ready")
    else:
        source.mark_harmless(policy, "roles start together")
