"""TFJob of Kubeflow's training operator, and ElasticJob of DLRover with parameter servers: a role for each task."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from dljob.convert.kubeflow import (
    DLROVER_CONVENTIONS,
    carry_job_envs,
    convert_elastic_job_field,
    convert_replica_spec,
    convert_run_policy,
    set_max_restarts,
    set_restarts_by_restart_count,
)
from dljob.convert.meta import convert_metadata
from dljob.convert.pods import PodConventions
from dljob.convert.source import Draft, UnfitError
from dljob.convert.world import RoleDraft, build_role
from dljob.spec.text.tree import Loc

_TASKS = ("chief", "worker", "ps", "evaluator")
_TASK_ALIASES = {"master": "chief", "eval": "evaluator"}
_MASTER_NAMES = ("master", "dlrover-master")
_TF_CONVENTIONS = PodConventions(("tensorflow",), rank_dependent=("TF_CONFIG",), rendezvous_ports=("tfjob-port",))
_DLROVER_TF_CONVENTIONS = replace(
    DLROVER_CONVENTIONS, rank_dependent=(*DLROVER_CONVENTIONS.set_by_controller, "TF_CONFIG")
)


def tf_job(draft: Draft, command: Sequence[str], workdir: str) -> None:
    """Convert a TFJob."""
    source = draft.source
    specs: Loc = ("spec", "tfReplicaSpecs")
    convert_metadata(draft)
    source.note_counterpart(("spec",), ("spec",))
    role_drafts = _read_tasks(draft, specs, _TF_CONVENTIONS)
    for key, at in source.fields(("spec",)):
        if key == "runPolicy":
            restarting_roles = [task for task in role_drafts if "Never" not in _restart_policy(draft, task).values()]
            convert_run_policy(draft, at, restarting_roles)
        elif key == "successPolicy" and source.value(at) == "AllWorkers":
            source.mark_dropped(at, "the job ends with its chief, whether or not the workers have ended")
        elif key == "successPolicy":
            source.mark_harmless(at, "the job ends with its chief")
        elif key == "enableDynamicWorker":
            source.mark_dropped(at, "the number of tasks is fixed: suspend the job to change it")
    for role_draft in role_drafts:
        set_max_restarts(draft, role_draft, _restart_policy(draft, role_draft))
    _build_task_roles(draft, specs, role_drafts, command, workdir)


def _restart_policy(draft: Draft, role_draft: RoleDraft) -> dict[Loc, str]:
    """Return the place of the restart policy of a TFJob's task -> its value; without one its pods never restart."""
    at = (*role_draft.pod_sets[0].template_loc[:-1], "restartPolicy")
    return {at: str(draft.source.value(at) or "Never")}


def has_parameter_servers(draft: Draft) -> bool:
    """Whether an ElasticJob has replicas of a parameter-server job: ps, chief or evaluator."""
    specs: Loc = ("spec", "replicaSpecs")
    return any(name in ("ps", "chief", "evaluator") for name, _ in draft.source.fields(specs))


def elastic_job_with_servers(draft: Draft, command: Sequence[str], workdir: str) -> None:
    """Convert an ElasticJob with parameter servers."""
    source = draft.source
    specs: Loc = ("spec", "replicaSpecs")
    convert_metadata(draft)
    source.note_counterpart(("spec",), ("spec",))
    role_drafts = _read_tasks(draft, specs, _DLROVER_TF_CONVENTIONS, skipped_names=_MASTER_NAMES)
    for name, at in source.fields(specs):
        if name in _MASTER_NAMES:
            source.mark_harmless(at, "PrimeMaster is the master")
    for key, at in source.fields(("spec",)):
        convert_elastic_job_field(draft, key, at, "ParameterServerStrategy")
    _build_task_roles(draft, specs, role_drafts, command, workdir)
    for role_draft in role_drafts:
        carry_job_envs(draft, role_draft.role_loc)


def _read_tasks(
    draft: Draft, specs: Loc, conventions: PodConventions, *, skipped_names: Collection[str] = ()
) -> list[RoleDraft]:
    """Return the tasks of a manifest's replica specs, each as a role draft; those without pods are harmless."""
    source = draft.source
    role_drafts: list[RoleDraft] = []
    for name, at in source.fields(specs):
        task = _TASK_ALIASES.get(name.lower(), name.lower())
        if task not in _TASKS or name in skipped_names:
            continue
        role_index = len(role_drafts)
        pod_set = convert_replica_spec(draft, task, at, conventions, role_index)
        if not pod_set.pod_count:
            source.mark_harmless(at, "no pods")
            continue
        role_draft = RoleDraft(("spec", "roles", role_index), task, [pod_set], is_torch_world=False)
        if conventions is _DLROVER_TF_CONVENTIONS:
            set_restarts_by_restart_count(draft, at, role_draft)
        role_drafts.append(role_draft)
    if not role_drafts:
        raise UnfitError(specs, "has neither chief, worker nor ps", "describe its pods")
    return role_drafts


def _build_task_roles(
    draft: Draft, specs: Loc, role_drafts: Sequence[RoleDraft], command: Sequence[str], workdir: str
) -> None:
    """Make the roles: tasks of one cluster, or a single process, which needs no TF_CONFIG."""
    tasks = {role_draft.name for role_draft in role_drafts}
    lacking_tasks = [task for task in ("chief", "ps", "worker") if task not in tasks]
    is_single_process = sum(role_draft.pod_count for role_draft in role_drafts) == 1
    if lacking_tasks and not is_single_process:
        message = f"has no {' and no '.join(lacking_tasks)}"
        raise UnfitError(specs, message, "dljob has TF_CONFIG for chief, ps and workers")
    for role_draft in role_drafts:
        role_draft.user_command, role_draft.user_workdir = tuple(command), workdir
        build_role(draft, role_draft)
        if not lacking_tasks:
            draft.put((*role_draft.role_loc, "driver"), role_draft.name == "chief")
            draft.put((*role_draft.role_loc, "tf"), {"task": role_draft.name})
    if not lacking_tasks:
        draft.remarks.append("dljob writes TF_CONFIG: servers listen where it says, not at a fixed port")
