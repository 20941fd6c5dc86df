"""Pods that run one program together: a torch world, or independent processes, as a role."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from dljob.api import torchrun, torchrun_line
from dljob.convert import command, variables
from dljob.convert.pods import ConvertedPod, Manner, machine, place_env
from dljob.convert.source import Draft, UnfitError
from dljob.errors import UsageError
from dljob.spec.quantity import GRAIN, parse_cpu
from dljob.spec.text.tree import Loc
from dljob.telemetry.wording import counted

_ASSIGNMENTS = re.compile(r"((env|exec|[A-Za-z_]\w*=\S*)?\s+)+")


@dataclass(frozen=True, slots=True)
class PodSet:
    """Pods of one template."""

    name: str
    template: Loc
    pods: int
    manner: Manner


@dataclass(slots=True)
class PodWorld:
    """What a kind of manifest says about pods that run together."""

    role: Loc
    """Place of the role in the DLJob."""
    name: str
    parts: list[PodSet]
    nproc: str = "auto"
    """Ranks of each pod, where its command line does not say them."""
    bounds: tuple[int, int] | None = None
    """The fewest and the most pods."""
    restarts: int | None = None
    sized: bool = False
    """Whether the controller tells torchrun the number of pods, by PET_NNODES."""
    torch: bool = True
    """Whether ranks of a plain program form a torch world."""
    options: list[str] = field(default_factory=list[str])
    command: tuple[str, ...] = ()
    workdir: str = ""
    same: list[Loc] = field(default_factory=list[Loc])
    """Templates that are equal to the first one."""
    indexed: int = 0
    """Pods of each Indexed Job, in which Kubernetes numbers them; 0: it does not."""


def build(draft: Draft, world: PodWorld) -> None:
    """Make node groups and role of a world."""
    draft.put((*world.role, "name"), world.name)
    pods = _machines(draft, world)
    first = pods[0]
    if len({pod.group for pod in pods}) == 1:
        draft.put((*world.role, "nodeGroup"), draft.get((*first.group, "name")))
    else:
        draft.remarks.append(f"ranks of {world.name} run on any of the node groups")
    line = _command(draft, world, first)
    for pod in pods[1:]:
        _same_command(draft, world, first, pod)
    try:
        call = _find_torchrun(world, first, line)
        if call is None:
            _plain(draft, world, pods, line)
        else:
            _torchrun(draft, world, pods, _set_around(draft, world, pods, line, call))
    except UsageError as error:
        raise UnfitError(first.loc, f"torchrun: {error.message}", error.hint) from None
    place_env(draft, pods, world.role)
    for name, value in first.probes.items():
        draft.put((*world.role, name), value)
        draft.source.carry((*first.loc, name), (*world.role, name))
    for template in world.same:
        _as_first(draft, world.parts[0].template, template)


def _machines(draft: Draft, world: PodWorld) -> list[ConvertedPod]:
    """Make a node group for each template; equal templates share one."""
    source = draft.source
    pods: list[ConvertedPod] = []
    first = world.parts[0]
    count = 0
    for part in world.parts:
        if part is not first and source.value(part.template) == source.value(first.template):
            world.same.append(part.template)
            count += part.pods
            continue
        at: Loc = ("spec", "nodeGroups", len(draft.items(("spec", "nodeGroups"))))
        group_name = world.name if part is first else part.name
        names = {group["name"] for group in draft.items(("spec", "nodeGroups"))}
        draft.put((*at, "name"), group_name if group_name not in names else f"{group_name}-2")
        draft.put((*at, "replicas"), part.pods)
        source.stands(part.template[:-1], at)
        replicas = (*part.template[:-1], "replicas")
        if replicas in source.fates:
            source.carry(replicas, (*at, "replicas"), "with all pods of this template")
        pods.append(machine(draft, part.template, at, part.manner))
    if count:
        draft.put((*pods[0].group, "replicas"), first.pods + count)
    return pods


def _bound_machines(draft: Draft, world: PodWorld, group: Loc, least: int, most: int) -> None:
    """Let the machines at `group` be fewer or more while the job runs; it starts with as many as there are pods."""
    others = _pods(world) - draft.get((*group, "replicas"))
    for key, number in (("minReplicas", least), ("maxReplicas", most)) if least < most else ():
        draft.put((*group, key), max(1, number - others))


def _as_first(draft: Draft, first: Loc, equal_template: Loc) -> None:
    """Give the fields of an equal template the fates of the first one's."""
    source = draft.source
    for loc, fate in list(source.fates.items()):
        if loc[: len(first)] == first:
            source.fates[(*equal_template, *loc[len(first) :])] = fate


def _pods(world: PodWorld) -> int:
    return sum(part.pods for part in world.parts)


def _known(world: PodWorld) -> dict[str, str]:
    """Return variables of the rendezvous as a torchrun line may read them: of the first of all machines."""
    pods = str(_pods(world))
    nodes = ":".join(map(str, world.bounds)) if world.bounds else pods
    return {
        **dict.fromkeys(("RANK", "NODE_RANK", "PET_NODE_RANK", "GROUP_RANK", "JOB_COMPLETION_INDEX"), "0"),
        **dict.fromkeys(("NODE_NUM", "WORKER_NUM", "WORLD_SIZE", "GROUP_WORLD_SIZE"), pods),
        "PET_NNODES": nodes,
        "MASTER_ADDR": "127.0.0.1",
        "PET_MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29500",
        "PET_MASTER_PORT": "29500",
        "PET_NPROC_PER_NODE": world.nproc,
    }


def _command(draft: Draft, world: PodWorld, pod: ConvertedPod) -> command.ContainerCommand:
    """Return the command of the ranks; the fields that say it are carried."""
    source, to = draft.source, (*world.role, "entrypoint")
    words = source.words((*pod.loc, "command"))
    behind = source.words((*pod.loc, "args"))
    for key in ("command", "args", "workingDir"):
        if source.value((*pod.loc, key)) is not None:
            source.carry((*pod.loc, key), to, "one command")
    if world.workdir:
        source.harmless((*pod.loc, "workingDir"), "--workdir takes its place")
    if not words:
        if not world.command:
            raise UnfitError(pod.loc, "has no command: it runs that of its image", "add --command with the image's own")
        words = list(world.command)
    return command.of_words([*words, *behind])


def _rank_variables(world: PodWorld, pod: ConvertedPod) -> dict[str, str]:
    """Return the variables that only a rank can replace in its command: name -> where it finds it."""
    kinds = {name for part in world.parts for name in part.manner.sets}
    names = {*variables.GIVEN, *pod.rank_variables, *pod.inner, *kinds}
    return {name: name for name in names if name not in pod.env}


def _find_torchrun(world: PodWorld, pod: ConvertedPod, line: command.ContainerCommand) -> command.Torchrun | None:
    """Return the torchrun line of a command; None where there is none."""
    known, rank_names = {**pod.env, **_known(world)}, _rank_variables(world, pod)
    if not line.shell:
        plain = command.ContainerCommand(tuple(command.expanded(word, known) for word in line.argv))
        if (call := command.find_torchrun(plain, known)) is None:
            return None
        behind = len(line.argv) - len(call.words) + torchrun_line.own(call.words, command.LINE)
        around = (*line.argv[: len(call.wrapper)], *line.argv[behind:])
        if not any(command.refers(word, rank_names) for word in around):
            return call
    # A word that only its rank knows needs a shell.
    return command.find_torchrun(command.resolved(line, pod.env, rank_names | variables.OF_MACHINE), known)


def _set_around(
    draft: Draft,
    world: PodWorld,
    pods: Sequence[ConvertedPod],
    line: command.ContainerCommand,
    call: command.Torchrun,
) -> command.Torchrun:
    """Let the text around a torchrun line set what it reads and its ranks do not have."""
    text = f"{call.before} {call.tail}"
    words = (*line.argv, line.shell, *line.behind)
    names = variables.of_torchrun(draft.source, pods, text, words)
    names += [name for name in _implicit(world) if name not in names and command.mentions(text, name)]
    set_ = variables.exports(pods, names, machine=True, index=_pods_per_job(world))
    return replace(call, before=command.exporting(set_) + call.before)


def _implicit(world: PodWorld) -> list[str]:
    """Return the variables that a controller sets in each pod, and that torch's ranks do not have."""
    names = dict.fromkeys(name for part in world.parts for name in part.manner.sets)
    return [name for name in names if name != variables.INDEX or world.indexed]


def _pods_per_job(world: PodWorld) -> int:
    """Return the pods of each Job where a role has several; 0: it has one."""
    return world.indexed if 0 < world.indexed < _pods(world) else 0


def _same_command(draft: Draft, world: PodWorld, first: ConvertedPod, pod: ConvertedPod) -> None:
    """Carry command and folder of further pods where they are those of the first: one role has one command."""
    source = draft.source
    for key in ("command", "args", "workingDir"):
        at = (*pod.loc, key)
        if source.value(at) is None:
            continue
        if source.value(at) == source.value((*first.loc, key)):
            source.carry(at, (*world.role, "entrypoint"), "the same command")
        else:
            source.drop(at, "ranks of one role run one command in one folder, here those of the first pod")


def _share(pod: ConvertedPod, ranks_per_pod: int) -> str:
    """Return the devices of a rank as torchrun's --accelerator of dljob takes them."""
    if pod.devices is None:
        return "none"
    kind, count = pod.devices
    amount = count * GRAIN // ranks_per_pod
    devices, rest = divmod(amount, GRAIN)
    return f"{kind}={devices}" if devices and not rest else f"{kind}={devices or max(1, rest) / GRAIN:g}"


def _ranks(pod: ConvertedPod, nproc: str) -> int:
    """Return the ranks of a pod: a number, or what torchrun would count there."""
    if nproc.isdecimal() and int(nproc):
        return int(nproc)
    if pod.devices and nproc != "cpu":
        return pod.devices[1]
    return max(1, parse_cpu(pod.cpu) // GRAIN) if pod.cpu else 1


def _torchrun(draft: Draft, world: PodWorld, pods: Sequence[ConvertedPod], call: command.Torchrun) -> None:
    pod = pods[0]
    environ = {name: pod.env.pop(name) for name in list(pod.env) if name.startswith("PET_")}
    # What the line says comes before the variable, also where it says torchrun's default.
    beside = environ.get("PET_NPROC_PER_NODE", world.nproc)
    line = torchrun_line.read(call.words, {**environ, "PET_NPROC_PER_NODE": beside}, command.LINE)
    ranks_per_pod = _ranks(pod, line.nproc_per_node)
    if line.nproc_per_node != world.nproc:
        _drop_nproc(draft, world, f"--nproc-per-node={line.nproc_per_node} comes first")
    _tell_numbers(draft, world, pod, line)
    least, most = _bounds(world, line.nnodes)
    _bound_machines(draft, world, pods[-1].group, least, most)
    options = [
        *("--to", "kubernetes", "--no-upload", "--name", "x", "--accelerator", _share(pod, ranks_per_pod)),
        *(f"--nnodes={least}:{most}", f"--nproc-per-node={ranks_per_pod}", f"--role={world.name}", *world.options),
    ]
    converted = command.torch_role(call, options, environ, world.workdir or pod.workdir)
    role: dict[str, Any] = {**converted.role, "name": world.name, "replicas": _pods(world) * ranks_per_pod}
    if line.node_check or line.network_check or line.precheck not in (None, "0"):
        role["comm"] = {**role.get("comm", {}), "preCheck": True}
    if world.restarts is not None:
        role["restartPolicy"] = {"maxRestarts": max(world.restarts, line.max_restarts)}
        if 0 < world.restarts < line.max_restarts:
            words = f"ranks of {world.name} restart {counted(line.max_restarts, 'time')}, as torchrun's own line says"
            draft.remarks.append(f"{words}, and not {world.restarts}")
    _merge(draft, world, pod, role, ranks_per_pod)
    for key in ("faultTolerance", "preRunningDeadlineSeconds"):
        if key in converted.spec and draft.get(("spec", key)) is None:
            draft.put(("spec", key), converted.spec[key])
    draft.remarks += [note for note in converted.notes if "no rank gets a device" not in note]
    _tell_around(draft, pod, call, line)
    _relative(draft, world, pod, [line.training_script], call.before)


def _tell_around(draft: Draft, pod: ConvertedPod, call: command.Torchrun, line: argparse.Namespace) -> None:
    """Name what each rank runs around a torchrun line, and the argument that its script gets no more."""
    if call.adds_local_rank and not line.use_env:
        words = "torch.distributed.launch gives --local-rank=N to the script, which has LOCAL_RANK here"
        draft.source.drop(_place(draft, pod), f"{words}: let it read that, and add --use-env")
    if not _ASSIGNMENTS.fullmatch(f"{shlex.join(call.wrapper)} {call.before} "):
        draft.remarks.append("each rank runs what stands before torchrun, and not once for each machine")
    if again := command.launcher(command.ContainerCommand((), call.tail)) if call.tail else "":
        draft.source.drop(_place(draft, pod), f"{again} stands behind torchrun: each rank would start it")
    elif call.later:
        text = " ".join(call.later.split())
        reason = "each rank runs it for itself, and not once for each machine"
        draft.source.drop(_place(draft, pod), f"'{text[:60]}' stands behind torchrun: {reason}")


def _bounds(world: PodWorld, nnodes: str) -> tuple[int, int]:
    """Return the fewest and the most pods: of the kind, else of a range on the line, else as many as there are."""
    pods = _pods(world)
    if world.bounds:
        return world.bounds
    matched = re.fullmatch(r"(\d+):(\d+)", nnodes)
    if not matched or int(matched[2]) < 2 or int(matched[1]) >= int(matched[2]):
        return pods, pods
    return min(int(matched[1]), pods), max(int(matched[2]), pods)


def _tell_numbers(draft: Draft, world: PodWorld, pod: ConvertedPod, line: argparse.Namespace) -> None:
    """Name the numbers of machines and ranks on a torchrun line that are unknown, or other ones than the pods'."""
    source, at, pods = draft.source, _place(draft, pod), _pods(world)
    is_given = "nnodes" in torchrun_line.given_arguments(line)
    matched = re.fullmatch(r"(\d+)(?::(\d+))?", line.nnodes)
    least, most = (int(matched[1]), int(matched[2] or matched[1])) if matched else (0, 0)
    text = f"--nnodes={line.nnodes}"
    if not matched:
        source.drop(at, f"{text}: its value is not in the manifest; one world of all {counted(pods, 'pod')} is taken")
    elif world.bounds and is_given and (least, most) != world.bounds:
        draft.remarks.append(
            f"{text} is not elastic as elasticPolicy is: {world.name} gets the bounds of elasticPolicy"
        )
    elif is_given and not world.bounds and not least <= pods <= most:
        source.drop(at, f"{text}, and there {'is' if pods == 1 else 'are'} {counted(pods, 'pod')}: they form one world")
    elif not is_given and not world.sized and pods > 1:
        draft.remarks.append(f"all {pods} pods of {world.name} form one world: torchrun's own --nnodes is 1")
    if not line.nproc_per_node.isdecimal() and line.nproc_per_node not in torchrun.COUNTED:
        ranks = counted(_ranks(pod, line.nproc_per_node), "rank")
        source.drop(
            at, f"--nproc-per-node={line.nproc_per_node}: its value is not in the manifest; each pod has {ranks}"
        )


def _drop_nproc(draft: Draft, world: PodWorld, reason: str) -> None:
    """Drop the fields that say how many ranks torchrun starts in each pod, where it does not read them."""
    for loc, fate in list(draft.source.fates.items()):
        if fate.to == (*world.role, "replicasPerGroup"):
            draft.source.drop(loc, reason)


def _plain(draft: Draft, world: PodWorld, pods: Sequence[ConvertedPod], line: command.ContainerCommand) -> None:
    """Make a role of a program that starts no ranks: one rank for each pod."""
    pod = pods[0]
    _drop_nproc(draft, world, "each pod is one rank: its command has no torchrun line that reads it")
    listed = variables.of_ranks(draft, pods, torch=world.torch)
    line = command.resolved(line, pod.env, _rank_variables(world, pod))
    if name := command.launcher(line, pod.env):
        draft.source.drop(
            _place(draft, pod),
            f"{name} starts ranks itself, of which dljob sees nothing: write the script as torchrun would start it",
        )
    for script in command.shell_scripts(line):
        _tell_script(draft, world, pod, script)
    least, most = world.bounds or (_pods(world), _pods(world))
    device = _share(pod, 1)
    workdir = world.workdir or pod.workdir
    _bound_machines(draft, world, pods[-1].group, least, most)
    role: dict[str, Any] = {"name": world.name, "replicas": _pods(world)}
    if world.torch:
        role["type"] = "Elastic"
        role |= {"minReplicas": least, "maxReplicas": most} if least < most else {}
    role["entrypoint"] = {"command": command.argv(_set_before(world, pods, line, listed), workdir)}
    if device != "none":
        kind, _, count = device.partition("=")
        role["accelerator"] = {"type": kind, "count": count}
    if world.restarts is not None:
        role["restartPolicy"] = {"maxRestarts": world.restarts}
        if not world.restarts:
            # Where a role has no restart left the job restarts, and that would be 10 times by default.
            draft.put(("spec", "faultTolerance", "maxRestarts"), 0)
    _merge(draft, world, pod, role, 1)
    if not workdir:
        _relative(draft, world, pod, command.relative_files(line), "")


def _tell_script(draft: Draft, world: PodWorld, pod: ConvertedPod, script: str) -> None:
    """Say what a shell script hides that a command runs: it is read where a ConfigMap of the file holds it."""
    text = draft.scripts.get(script.rpartition("/")[2])
    if text is None:
        draft.remarks.append(
            f"{script} is not read: {world.name} is one rank for each pod; where it starts torchrun, write that line "
            "as the command"
        )
    elif name := command.launcher(command.ContainerCommand(("sh", "-c"), text)):
        words = f"{script} starts ranks by {name}, of which dljob sees nothing: write that line as the command"
        draft.source.drop(_place(draft, pod), words)


def _place(draft: Draft, pod: ConvertedPod) -> Loc:
    """Return the field that says the command."""
    key = "command" if draft.source.value((*pod.loc, "command")) is not None else "args"
    return (*pod.loc, key)


def _set_before(
    world: PodWorld, pods: Sequence[ConvertedPod], line: command.ContainerCommand, listed: Sequence[str]
) -> command.ContainerCommand:
    """Let a command set what its pods had and its ranks do not have."""
    # Of a Job's index nothing need be said in a manifest: a program reads it in any case.
    implicit = [name for name in _implicit(world) if name == variables.INDEX or command.mentions(line.shell, name)]
    names = dict.fromkeys((*listed, *implicit))
    return command.with_exports(line, variables.exports(pods, names, index=_pods_per_job(world)))


def _relative(draft: Draft, world: PodWorld, pod: ConvertedPod, files: Sequence[str], before: str) -> None:
    """Tell of a file that the image's WORKDIR has, which is unknown here."""
    named = [word for word in files if command.relative_files(command.ContainerCommand((word,)))]
    if named and not world.workdir and not pod.workdir and not re.search(r"(^|[\s;&|])(cd|git)\s", before):
        words = f"{named[0]} lies in the WORKDIR of the image, unknown here: add --workdir"
        draft.source.drop(_place(draft, pod), words)


def _merge(draft: Draft, world: PodWorld, pod: ConvertedPod, role: Mapping[str, Any], ranks_per_pod: int) -> None:
    for key, value in role.items():
        draft.put((*world.role, key), value)
    if pod.cpu:
        amount = parse_cpu(pod.cpu) // ranks_per_pod
        thousandths = amount * 1000 // GRAIN
        text = f"{thousandths}m" if thousandths % 1000 else str(thousandths // 1000)
        draft.put((*world.role, "resources", "cpu"), text)
