"""PyTorchJob of Kubeflow's training operator, and ElasticJob of DLRover without parameter servers: one torch world."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dljob.convert.command import expanded
from dljob.convert.meta import head, scalar
from dljob.convert.pods import Manner
from dljob.convert.source import Draft, UnfitError
from dljob.convert.variables import GIVEN, TORCH
from dljob.convert.world import PodSet, PodWorld, build
from dljob.spec.text.tree import Loc
from dljob.spec.variables import is_reserved

PYTORCH = Manner(("pytorch",), rank_variables=GIVEN, ports=("pytorchjob-port",), sets=("PET_NODE_RANK", "PET_NNODES"))
DLROVER = Manner(("main",), rank_variables=GIVEN, sets=("NODE_RANK", "NODE_NUM", "WORKER_NUM"))
_REPLICAS = ("spec", "pytorchReplicaSpecs")
RESTARTS = 10
"""Restarts of a rank where the manifest has no limit, as dljob's own default."""
_MEET = "PrimeMaster is the rendezvous"


def pytorch_job(draft: Draft, command: Sequence[str], workdir: str) -> None:
    """Convert a PyTorchJob."""
    source = draft.source
    head(draft)
    source.stands(("spec",), ("spec",))
    parts: list[PodSet] = []
    policies: dict[Loc, str] = {}
    for name, at in source.keys(_REPLICAS):
        if name not in ("Master", "Worker"):
            continue
        part = pod_set(draft, name.lower(), at, PYTORCH)
        if not part.pods:
            source.harmless(at, "no pods")
            continue
        parts.append(part)
        policies[*at, "restartPolicy"] = str(source.value((*at, "restartPolicy")) or "OnFailure")
    if not parts:
        raise UnfitError(_REPLICAS, "has neither Master nor Worker", "describe its pods")
    world = PodWorld(("spec", "roles", 0), "worker", parts, command=tuple(command), workdir=workdir)
    world.sized = True
    # As in Kubeflow, nProcPerNode of elasticPolicy comes before nprocPerNode.
    for key, at in sorted(source.keys(("spec",)), reverse=True):
        if key == "runPolicy":
            run_policy(draft, at, [] if set(policies.values()) == {"Never"} else [world])
        elif key == "elasticPolicy":
            _elastic(draft, at, world)
        elif key == "nprocPerNode" and (text := source.text(at)):
            world.nproc = text
            source.carry(at, (*world.role, "replicasPerGroup"))
    set_restarts(draft, world, policies)
    build(draft, world)


def set_restarts(draft: Draft, world: PodWorld, policies: Mapping[Loc, str]) -> None:
    """Set the restarts of a role by the policies of its pods, where the manifest has no limit of its own."""
    again = sorted({policy for policy in policies.values() if policy != "Never"})
    for at, policy in policies.items() if again else ():
        if policy == "Never":
            draft.source.drop(at, f"ranks of one role have one policy, here {again[0]}, that of the other pods")
    if world.restarts is None and again:
        words = f"ranks of {world.name} restart {RESTARTS} times: with {again[0]} there was no limit"
        draft.remarks.append(f"{words}; restartPolicy.maxRestarts is one")
    if world.restarts is None:
        world.restarts = RESTARTS if again else 0


def pod_set(draft: Draft, name: str, at: Loc, manner: Manner, number: int = 0) -> PodSet:
    """Return the pods of one kind of replicas, which become node group and role of that number."""
    source = draft.source
    pods = source.number((*at, "replicas"))
    if source.value((*at, "replicas")) is not None:
        source.carry((*at, "replicas"), ("spec", "nodeGroups", number, "replicas"), "with all pods of its template")
    for key, place in source.keys(at):
        if key == "restartPolicy" and source.value(place) == "ExitCode":
            source.drop(place, "ranks restart after any exit code: write faultTolerance.rules for those below 128")
        elif key == "restartPolicy":
            source.carry(place, ("spec", "roles", number, "restartPolicy"), "Never: no restart; else ranks restart")
        elif key == "autoScale" and source.value(place) is True:
            source.drop(place, "the number of ranks changes within minReplicas and maxReplicas of the role only")
        elif key == "autoScale":
            source.harmless(place, "off")
        elif key in ("restartTimeout", "priority", "BatchScheduler"):
            source.drop(place, "DLRover's own way to queue pods: scheduling.queueName and priorityClassName have that")
    return PodSet(name, (*at, "template"), 1 if pods is None else pods, manner)


def run_policy(draft: Draft, at: Loc, worlds: Sequence[PodWorld]) -> None:
    """Convert the policies of a whole job of Kubeflow, of whose pods those of `worlds` restart."""
    source = draft.source
    for key, place in source.keys(at):
        match key:
            case "cleanPodPolicy":
                keeps_pods = source.value(place) == "None"
                draft.move(place, ("spec", "cleanupPolicy"), "Retain" if keeps_pods else "DeleteCluster")
            case "ttlSecondsAfterFinished" | "activeDeadlineSeconds" | "suspend":
                scalar(draft, place, ("spec", key))
            case "backoffLimit":
                source.harmless(place, "it counts restarts, and with restartPolicy Never there are none")
                for world in worlds:
                    _restart(draft, world, place)
            case "managedBy":
                managed(draft, place)
            case "schedulingPolicy":
                _scheduling(draft, place)
            case _:
                pass


def _restart(draft: Draft, world: PodWorld, at: Loc) -> None:
    """Let ranks restart as often as a field says; of several fields the greatest number counts."""
    number = draft.source.number(at)
    world.restarts = number if world.restarts is None else max(world.restarts, number or 0)
    draft.source.carry(at, (*world.role, "restartPolicy", "maxRestarts"))


_CONTROLLERS = (
    *("ray.io/kuberay-operator", "kubeflow.org/training-operator", "trainer.kubeflow.org/trainjob-controller"),
    *("jobset.sigs.k8s.io/jobset-controller", "kubernetes.io/job-controller"),
)
"""Values of `managedBy` with which a kind's own controller runs it, as without the field."""


def managed(draft: Draft, at: Loc) -> None:
    """Carry the controller of a job."""
    source = draft.source
    if source.value(at) == "kueue.x-k8s.io/multikueue":
        draft.move(at, ("spec", "managedBy"))
    elif source.value(at) in _CONTROLLERS:
        source.harmless(at, "the operator of dljob runs the job")
    else:
        source.drop(at, "the operator of dljob runs the job at once, and not this controller")


def _scheduling(draft: Draft, at: Loc) -> None:
    source = draft.source
    specs = [place for key, place in source.keys(("spec",)) if key.endswith("ReplicaSpecs")]
    counts = [source.number((*place, "replicas")) for loc in specs for _, place in source.keys(loc)]
    pods = sum(1 if count is None else count for count in counts)
    for key, place in source.keys(at):
        if key in ("queue", "priorityClass") and (text := source.text(place)):
            label = "volcano.sh/queue-name" if key == "queue" else "ray.io/priority-class-name"
            draft.move(place, ("spec", "scheduling", "labels", label), text)
        elif key == "scheduleTimeoutSeconds":
            scalar(draft, place, ("spec", "preRunningDeadlineSeconds"))
        elif key == "minResources" or (key == "minAvailable" and (source.number(place) or 0) >= pods):
            source.harmless(place, "the job starts when all its ranks have room")
        elif key == "minAvailable":
            source.drop(
                place, f"the job starts when all its {pods} pods have room: minReplicas lets it start with fewer"
            )


def _elastic(draft: Draft, at: Loc, world: PodWorld) -> None:
    source = draft.source
    pods = sum(part.pods for part in world.parts)
    least, most = source.number((*at, "minReplicas")), source.number((*at, "maxReplicas"))
    world.bounds = (min(least or pods, pods), max(most or pods, pods))
    for key, place in source.keys(at):
        match key:
            case "minReplicas" | "maxReplicas" if world.bounds == (pods, pods):
                source.harmless(place, "the number of pods does not change")
            case "minReplicas" | "maxReplicas":
                source.carry(place, (*world.role, key), "times the ranks of a pod")
            case "nProcPerNode":
                world.nproc = source.text(place) or world.nproc
                source.carry(place, (*world.role, "replicasPerGroup"))
            case "maxRestarts":
                _restart(draft, world, place)
            case "rdzvBackend" | "rdzvHost" | "rdzvPort" | "rdzvId" | "rdzvConf" | "standalone":
                source.harmless(place, _MEET)
            case "metrics":
                source.drop(place, "no metric scales a role: `dljob scale`, or minReplicas and maxReplicas, do")
            case _:
                pass


def elastic_job(draft: Draft, command: Sequence[str], workdir: str) -> None:
    """Convert an ElasticJob of DLRover without parameter servers."""
    source = draft.source
    head(draft)
    source.stands(("spec",), ("spec",))
    specs: Loc = ("spec", "replicaSpecs")
    if source.value((*specs, "worker")) is None:
        raise UnfitError(specs, "has no worker", "describe its pods")
    part = pod_set(draft, "worker", (*specs, "worker"), DLROVER)
    world = PodWorld(("spec", "roles", 0), "worker", [part], command=tuple(command), workdir=workdir)
    world.nproc = "1"  # dlrover-run's default; Kubeflow's operators set PET_NPROC_PER_NODE=auto
    by_restart_count(draft, (*specs, "worker"), world)
    for name, at in source.keys(specs):
        if name in ("master", "dlrover-master"):
            source.harmless(at, "PrimeMaster is the master")
    for key, at in source.keys(("spec",)):
        elastic_field(draft, key, at)
    build(draft, world)
    variables(draft, world.role)


def by_restart_count(draft: Draft, at: Loc, world: PodWorld) -> None:
    """Set the restarts of a role of DLRover, whose master restarts pods, whatever their restartPolicy says."""
    source, place = draft.source, (*at, "restartCount")
    source.harmless((*at, "restartPolicy"), "DLRover's master restarts pods by restartCount")
    world.restarts = source.number(place)
    if world.restarts is not None:
        source.carry(place, (*world.role, "restartPolicy", "maxRestarts"))
    else:
        world.restarts = RESTARTS


def variables(draft: Draft, role: Loc) -> None:
    """Give a role the variables of all pods of an ElasticJob."""
    source = draft.source
    for name, at in source.keys(("spec", "envs")):
        value = source.text((*at, "value"))
        if value is None:
            source.drop(at, "only plain values: write it as nodeGroups[].template")
        elif is_reserved(name) or name in TORCH:
            source.drop(at, f"{name} is set by dljob")
        elif name in GIVEN:
            source.drop(at, f"{name} differs from pod to pod: read RANK or GROUP_RANK")
        else:
            draft.append(at, (*role, "env"), {"name": name, "value": expanded(value, {})})


def elastic_field(draft: Draft, key: str, at: Loc, strategy: str = "AllreduceStrategy") -> None:
    """Convert a field of an ElasticJob with this strategy."""
    source = draft.source
    match key:
        case "distributionStrategy":
            if source.value(at) != strategy:
                raise UnfitError(at, f"{source.value(at)} does not fit its replicas", f"here they are for {strategy}")
            source.harmless(at, "the roles say it")
        case "optimizeMode" | "brainService" | "enableElasticScheduling" | "enableDynamicSharding":
            source.harmless(at, "PrimeMaster decides; shards of data are served to every job")
        case "resourceLimits":
            source.harmless(at, "a bound for DLRover's own scaling, which dljob has not")
        case "suspend":
            scalar(draft, at, ("spec", "suspend"))
        case _:
            pass
