"""PyTorchJob of Kubeflow's training operator, and ElasticJob of DLRover without parameter servers: one torch world."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dljob.convert.command import expand_references
from dljob.convert.meta import carry_number_or_switch, convert_metadata
from dljob.convert.pods import PodConventions
from dljob.convert.source import Draft, UnfitError
from dljob.convert.variables import RANK_DEPENDENT, SET_BY_PRIME_MASTER
from dljob.convert.world import PodSet, RoleDraft, build_role
from dljob.spec.text.tree import Loc
from dljob.spec.variables import is_reserved

PYTORCH_CONVENTIONS = PodConventions(
    ("pytorch",),
    rank_dependent=RANK_DEPENDENT,
    rendezvous_ports=("pytorchjob-port",),
    set_by_controller=("PET_NODE_RANK", "PET_NNODES"),
)
DLROVER_CONVENTIONS = PodConventions(
    ("main",), rank_dependent=RANK_DEPENDENT, set_by_controller=("NODE_RANK", "NODE_NUM", "WORKER_NUM")
)
_REPLICA_SPECS = ("spec", "pytorchReplicaSpecs")
_DEFAULT_MAX_RESTARTS = 10
"""Restarts of a rank where the manifest has no limit, as dljob's own default."""


def pytorch_job(draft: Draft, command: Sequence[str], workdir: str) -> None:
    """Convert a PyTorchJob."""
    source = draft.source
    convert_metadata(draft)
    source.note_counterpart(("spec",), ("spec",))
    pod_sets: list[PodSet] = []
    restart_policies: dict[Loc, str] = {}
    for name, at in source.fields(_REPLICA_SPECS):
        if name not in ("Master", "Worker"):
            continue
        pod_set = convert_replica_spec(draft, name.lower(), at, PYTORCH_CONVENTIONS)
        if not pod_set.pod_count:
            source.mark_harmless(at, "no pods")
            continue
        pod_sets.append(pod_set)
        restart_policies[*at, "restartPolicy"] = str(source.value((*at, "restartPolicy")) or "OnFailure")
    if not pod_sets:
        raise UnfitError(_REPLICA_SPECS, "has neither Master nor Worker", "describe its pods")
    role_draft = RoleDraft(("spec", "roles", 0), "worker", pod_sets, user_command=tuple(command), user_workdir=workdir)
    role_draft.controller_sets_nnodes = True
    # As in Kubeflow, nProcPerNode of elasticPolicy comes before nprocPerNode.
    for key, at in sorted(source.fields(("spec",)), reverse=True):
        if key == "runPolicy":
            never_restarts = set(restart_policies.values()) == {"Never"}
            convert_run_policy(draft, at, [] if never_restarts else [role_draft])
        elif key == "elasticPolicy":
            _convert_elastic_policy(draft, at, role_draft)
        elif key == "nprocPerNode" and (text := source.text(at)):
            role_draft.nproc_per_node = text
            source.mark_carried(at, (*role_draft.role_loc, "replicasPerGroup"))
    set_max_restarts(draft, role_draft, restart_policies)
    build_role(draft, role_draft)


def set_max_restarts(draft: Draft, role_draft: RoleDraft, restart_policies: Mapping[Loc, str]) -> None:
    """Set the restarts of a role by its pods' `restartPolicy`, place -> value, where the manifest has no limit."""
    restarting_policies = sorted({policy for policy in restart_policies.values() if policy != "Never"})
    if not restarting_policies:
        role_draft.max_restarts = role_draft.max_restarts or 0
        return
    for at, policy in restart_policies.items():
        if policy == "Never":
            words = f"ranks of one role have one policy, here {restarting_policies[0]}, that of the other pods"
            draft.source.mark_dropped(at, words)
    if role_draft.max_restarts is None:
        role_draft.max_restarts = _DEFAULT_MAX_RESTARTS
        words = f"ranks of {role_draft.name} restart {_DEFAULT_MAX_RESTARTS} times"
        reason = f"with {restarting_policies[0]} there was no limit; restartPolicy.maxRestarts is one"
        draft.remarks.append(f"{words}: {reason}")


def convert_replica_spec(
    draft: Draft, name: str, replica_spec: Loc, conventions: PodConventions, role_index: int = 0
) -> PodSet:
    """Return the pods of one entry of replica specs, which become the node group and the role of that index."""
    source = draft.source
    pod_count = source.number((*replica_spec, "replicas"))
    if source.value((*replica_spec, "replicas")) is not None:
        node_group_replicas = ("spec", "nodeGroups", role_index, "replicas")
        source.mark_carried((*replica_spec, "replicas"), node_group_replicas, "with all pods of its template")
    for key, at in source.fields(replica_spec):
        if key == "restartPolicy" and source.value(at) == "ExitCode":
            source.mark_dropped(at, "ranks restart after any exit code: write faultTolerance.rules for those below 128")
        elif key == "restartPolicy":
            to = ("spec", "roles", role_index, "restartPolicy")
            source.mark_carried(at, to, "Never: no restart; else ranks restart")
        elif key == "autoScale" and source.value(at) is True:
            source.mark_dropped(at, "the number of ranks changes within minReplicas and maxReplicas of the role only")
        elif key == "autoScale":
            source.mark_harmless(at, "off")
        elif key in ("restartTimeout", "priority", "BatchScheduler"):
            words = "DLRover's own way to queue pods: scheduling.queueName and priorityClassName have that"
            source.mark_dropped(at, words)
    return PodSet(name, (*replica_spec, "template"), 1 if pod_count is None else pod_count, conventions)


def convert_run_policy(draft: Draft, run_policy: Loc, restarting_roles: Sequence[RoleDraft]) -> None:
    """Convert the runPolicy of a job of Kubeflow; its backoffLimit is for the roles whose pods restart."""
    source = draft.source
    for key, at in source.fields(run_policy):
        match key:
            case "cleanPodPolicy":
                keeps_pods = source.value(at) == "None"
                draft.move(at, ("spec", "cleanupPolicy"), "Retain" if keeps_pods else "DeleteCluster")
            case "ttlSecondsAfterFinished" | "activeDeadlineSeconds" | "suspend":
                carry_number_or_switch(draft, at, ("spec", key))
            case "backoffLimit":
                source.mark_harmless(at, "it counts restarts, and with restartPolicy Never there are none")
                for role_draft in restarting_roles:
                    _raise_max_restarts(draft, role_draft, at)
            case "managedBy":
                carry_managed_by(draft, at)
            case "schedulingPolicy":
                _convert_scheduling_policy(draft, at)
            case _:
                pass  # has no fate, and is reported as unknown


def _raise_max_restarts(draft: Draft, role_draft: RoleDraft, at: Loc) -> None:
    """Let ranks restart as often as a field says; of several fields the greatest number counts."""
    number = draft.source.number(at)
    if role_draft.max_restarts is None:
        role_draft.max_restarts = number
    else:
        role_draft.max_restarts = max(role_draft.max_restarts, number or 0)
    draft.source.mark_carried(at, (*role_draft.role_loc, "restartPolicy", "maxRestarts"))


_USUAL_CONTROLLERS = (
    *("ray.io/kuberay-operator", "kubeflow.org/training-operator", "trainer.kubeflow.org/trainjob-controller"),
    *("jobset.sigs.k8s.io/jobset-controller", "kubernetes.io/job-controller"),
)
"""Values of `managedBy` with which a kind's own controller runs it, as without the field."""


def carry_managed_by(draft: Draft, at: Loc) -> None:
    """Carry the field `managedBy` of MultiKueue; of a kind's own controller it is harmless."""
    source = draft.source
    if source.value(at) == "kueue.x-k8s.io/multikueue":
        draft.move(at, ("spec", "managedBy"))
    elif source.value(at) in _USUAL_CONTROLLERS:
        source.mark_harmless(at, "the operator of dljob runs the job")
    else:
        source.mark_dropped(at, "the operator of dljob runs the job at once, and not this controller")


def _convert_scheduling_policy(draft: Draft, policy: Loc) -> None:
    source = draft.source
    replica_specs = [loc for key, loc in source.fields(("spec",)) if key.endswith("ReplicaSpecs")]
    replicas = [source.number((*loc, "replicas")) for specs in replica_specs for _, loc in source.fields(specs)]
    pod_count = sum(1 if number is None else number for number in replicas)
    for key, at in source.fields(policy):
        if key in ("queue", "priorityClass") and (text := source.text(at)):
            label = "volcano.sh/queue-name" if key == "queue" else "ray.io/priority-class-name"
            draft.move(at, ("spec", "scheduling", "labels", label), text)
        elif key == "scheduleTimeoutSeconds":
            carry_number_or_switch(draft, at, ("spec", "preRunningDeadlineSeconds"))
        elif key == "minResources" or (key == "minAvailable" and (source.number(at) or 0) >= pod_count):
            source.mark_harmless(at, "the job starts when all its ranks have room")
        elif key == "minAvailable":
            words = f"the job starts when all its {pod_count} pods have room"
            source.mark_dropped(at, f"{words}: minReplicas lets it start with fewer")


def _convert_elastic_policy(draft: Draft, policy: Loc, role_draft: RoleDraft) -> None:
    source, pod_count = draft.source, role_draft.pod_count
    fewest_pods, most_pods = source.number((*policy, "minReplicas")), source.number((*policy, "maxReplicas"))
    role_draft.pod_bounds = (min(fewest_pods or pod_count, pod_count), max(most_pods or pod_count, pod_count))
    for key, at in source.fields(policy):
        match key:
            case "minReplicas" | "maxReplicas" if role_draft.pod_bounds == (pod_count, pod_count):
                source.mark_harmless(at, "the number of pods does not change")
            case "minReplicas" | "maxReplicas":
                source.mark_carried(at, (*role_draft.role_loc, key), "times the ranks of a pod")
            case "nProcPerNode":
                role_draft.nproc_per_node = source.text(at) or role_draft.nproc_per_node
                source.mark_carried(at, (*role_draft.role_loc, "replicasPerGroup"))
            case "maxRestarts":
                _raise_max_restarts(draft, role_draft, at)
            case "rdzvBackend" | "rdzvHost" | "rdzvPort" | "rdzvId" | "rdzvConf" | "standalone":
                source.mark_harmless(at, "PrimeMaster is the rendezvous")
            case "metrics":
                source.mark_dropped(at, "no metric scales a role: `dljob scale`, or minReplicas and maxReplicas, do")
            case _:
                pass  # has no fate, and is reported as unknown


def elastic_job(draft: Draft, command: Sequence[str], workdir: str) -> None:
    """Convert an ElasticJob of DLRover without parameter servers."""
    source = draft.source
    convert_metadata(draft)
    source.note_counterpart(("spec",), ("spec",))
    specs: Loc = ("spec", "replicaSpecs")
    if source.value((*specs, "worker")) is None:
        raise UnfitError(specs, "has no worker", "describe its pods")
    pod_set = convert_replica_spec(draft, "worker", (*specs, "worker"), DLROVER_CONVENTIONS)
    role_draft = RoleDraft(("spec", "roles", 0), "worker", [pod_set], user_command=tuple(command), user_workdir=workdir)
    role_draft.nproc_per_node = "1"  # dlrover-run's default; Kubeflow's operators set PET_NPROC_PER_NODE=auto
    set_restarts_by_restart_count(draft, (*specs, "worker"), role_draft)
    for name, at in source.fields(specs):
        if name in ("master", "dlrover-master"):
            source.mark_harmless(at, "PrimeMaster is the master")
    for key, at in source.fields(("spec",)):
        convert_elastic_job_field(draft, key, at)
    build_role(draft, role_draft)
    carry_job_envs(draft, role_draft.role_loc)


def set_restarts_by_restart_count(draft: Draft, at: Loc, role_draft: RoleDraft) -> None:
    """Set the restarts of a role of DLRover, whose master restarts pods, whatever their restartPolicy says."""
    source, restart_count = draft.source, (*at, "restartCount")
    source.mark_harmless((*at, "restartPolicy"), "DLRover's master restarts pods by restartCount")
    role_draft.max_restarts = source.number(restart_count)
    if role_draft.max_restarts is None:
        role_draft.max_restarts = _DEFAULT_MAX_RESTARTS
    else:
        source.mark_carried(restart_count, (*role_draft.role_loc, "restartPolicy", "maxRestarts"))


def carry_job_envs(draft: Draft, role: Loc) -> None:
    """Give a role the variables of `spec.envs` of an ElasticJob, which are for all pods."""
    source, env = draft.source, (*role, "env")
    for name, at in source.fields(("spec", "envs")):
        value = source.text((*at, "value"))
        if value is None:
            source.mark_dropped(at, "only plain values: write it as nodeGroups[].template")
        elif is_reserved(name) or name in SET_BY_PRIME_MASTER:
            source.mark_dropped(at, f"{name} is set by dljob")
        elif name in RANK_DEPENDENT:
            source.mark_dropped(at, f"{name} differs from pod to pod: read RANK or GROUP_RANK")
        else:
            variable, variables = {"name": name, "value": expand_references(value, {})}, draft.list_at(env)
            if variable in variables:
                source.mark_carried(at, (*env, variables.index(variable)))
            elif any(other_variable["name"] == name for other_variable in variables):
                source.mark_dropped(at, f"{name} has another value in the pods, or by an option of torchrun")
            else:
                draft.append(at, env, variable)


def convert_elastic_job_field(draft: Draft, key: str, at: Loc, strategy: str = "AllreduceStrategy") -> None:
    """Convert a field of an ElasticJob whose replicas are those of this `distributionStrategy`."""
    source = draft.source
    match key:
        case "distributionStrategy":
            if source.value(at) != strategy:
                raise UnfitError(at, f"{source.value(at)} does not fit its replicas", f"here they are for {strategy}")
            source.mark_harmless(at, "the roles say it")
        case "optimizeMode" | "brainService" | "enableElasticScheduling" | "enableDynamicSharding":
            source.mark_harmless(at, "PrimeMaster decides; shards of data are served to every job")
        case "resourceLimits":
            source.mark_harmless(at, "a bound for DLRover's own scaling, which dljob has not")
        case "suspend":
            carry_number_or_switch(draft, at, ("spec", "suspend"))
        case _:
            pass  # has no fate, and is reported as unknown
