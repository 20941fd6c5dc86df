"""TFJob of Kubeflow's training operator, and ElasticJob of DLRover with parameter servers: a role for each task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dljob.convert.kubeflow import (
    DLROVER,
    by_restart_count,
    elastic_field,
    pod_set,
    run_policy,
    set_restarts,
    variables,
)
from dljob.convert.meta import head
from dljob.convert.pods import Manner
from dljob.convert.source import Draft, UnfitError
from dljob.convert.world import PodWorld, build
from dljob.spec.text.tree import Loc

_TASKS: Mapping[str, str] = {
    "chief": "chief",
    "master": "chief",
    "worker": "worker",
    "ps": "ps",
    "evaluator": "evaluator",
    "eval": "evaluator",
}
"""A manifest's name of replicas, in small letters -> TensorFlow's name of the task."""
_MASTERS = ("master", "dlrover-master")
TENSORFLOW = Manner(("tensorflow",), rank_variables=("TF_CONFIG",), ports=("tfjob-port",))
_DLROVER = Manner(DLROVER.main, rank_variables=(*DLROVER.sets, "TF_CONFIG"), sets=DLROVER.sets)


def tf_job(draft: Draft, command: Sequence[str], workdir: str) -> None:
    """Convert a TFJob."""
    source = draft.source
    specs: Loc = ("spec", "tfReplicaSpecs")
    head(draft)
    source.stands(("spec",), ("spec",))
    worlds = _worlds(draft, specs, TENSORFLOW, ())
    for key, at in source.keys(("spec",)):
        if key == "runPolicy":
            run_policy(draft, at, [world for world in worlds if _policy(draft, world)[1] != "Never"])
        elif key == "successPolicy" and source.value(at) == "AllWorkers":
            source.drop(at, "the job ends with its chief, whether or not the workers have ended")
        elif key == "successPolicy":
            source.harmless(at, "the job ends with its chief")
        elif key == "enableDynamicWorker":
            source.drop(at, "the number of tasks is fixed: suspend the job to change it")
    for world in worlds:
        set_restarts(draft, world, dict([_policy(draft, world)]))
    _build(draft, specs, worlds, command, workdir)


def _policy(draft: Draft, world: PodWorld) -> tuple[Loc, str]:
    """Return the place and the value of the restart policy of a TFJob's task; without one its pods never restart."""
    place = (*world.parts[0].template[:-1], "restartPolicy")
    return place, str(draft.source.value(place) or "Never")


def has_servers(draft: Draft) -> bool:
    """Whether an ElasticJob has parameter servers."""
    specs: Loc = ("spec", "replicaSpecs")
    return any(name in ("ps", "chief", "evaluator") for name, _ in draft.source.keys(specs))


def elastic_servers(draft: Draft, command: Sequence[str], workdir: str) -> None:
    """Convert an ElasticJob with parameter servers."""
    source = draft.source
    specs: Loc = ("spec", "replicaSpecs")
    head(draft)
    source.stands(("spec",), ("spec",))
    worlds = _worlds(draft, specs, _DLROVER, _MASTERS)
    for name, at in source.keys(specs):
        if name in _MASTERS:
            source.harmless(at, "PrimeMaster is the master")
    for key, at in source.keys(("spec",)):
        elastic_field(draft, key, at, "ParameterServerStrategy")
    _build(draft, specs, worlds, command, workdir)
    for world in worlds:
        variables(draft, world.role)


def _worlds(draft: Draft, specs: Loc, manner: Manner, without: Sequence[str]) -> list[PodWorld]:
    """Return the tasks of a manifest, each as a role."""
    source = draft.source
    worlds: list[PodWorld] = []
    for name, at in source.keys(specs):
        task = _TASKS.get(name.lower(), "")
        if not task or name in without:
            continue
        number = len(worlds)
        role: Loc = ("spec", "roles", number)
        part = pod_set(draft, task, at, manner, number)
        if not part.pods:
            source.harmless(at, "no pods")
            continue
        world = PodWorld(role, task, [part], torch=False)
        if manner is _DLROVER:
            by_restart_count(draft, at, world)
        worlds.append(world)
    if not worlds:
        raise UnfitError(specs, "has neither chief, worker nor ps", "describe its pods")
    return worlds


def _build(draft: Draft, specs: Loc, worlds: Sequence[PodWorld], command: Sequence[str], workdir: str) -> None:
    """Make the roles: tasks of one cluster, or a single process, which needs no TF_CONFIG."""
    tasks = {world.name for world in worlds}
    lacking = [task for task in ("chief", "ps", "worker") if task not in tasks]
    is_single_process = sum(part.pods for world in worlds for part in world.parts) == 1
    if lacking and not is_single_process:
        raise UnfitError(specs, f"has no {' and no '.join(lacking)}", "dljob has TF_CONFIG for chief, ps and workers")
    for world in worlds:
        world.command, world.workdir = tuple(command), workdir
        build(draft, world)
        if not lacking:
            draft.put((*world.role, "driver"), world.name == "chief")
            draft.put((*world.role, "tf"), {"task": world.name})
    if not lacking:
        draft.remarks.append("dljob writes TF_CONFIG: servers listen where it says, not at a fixed port")
