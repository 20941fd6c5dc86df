"""Pods that run one program together, in a torch world or as independent processes: they become one role."""

from __future__ import annotations

import re
import shlex
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from dljob.api import torchrun, torchrun_line
from dljob.convert import command, variables
from dljob.convert.command import ContainerCommand, TorchrunCall
from dljob.convert.pods import ConvertedPod, PodConventions, carry_plain_env, convert_pod_template
from dljob.convert.source import Draft, UnfitError
from dljob.errors import UsageError
from dljob.spec.quantity import GRAIN as PARTS_OF_ONE
from dljob.spec.quantity import parse_cpu
from dljob.spec.text.tree import Loc
from dljob.telemetry.wording import counted

_ONLY_ENV_AND_ASSIGNMENTS = re.compile(r"((env|exec|[A-Za-z_]\w*=\S*)?\s+)+")


@dataclass(frozen=True, slots=True)
class PodSet:
    """Pods of one template."""

    name: str
    template_loc: Loc
    pod_count: int
    conventions: PodConventions


@dataclass(slots=True)
class RoleDraft:
    """A role in the making: which pods become it, and what their kind of manifest says about them."""

    role_loc: Loc
    """Place of the role in the DLJob."""
    name: str
    pod_sets: list[PodSet]
    nproc_per_node: str = "auto"
    """Ranks of each pod, where its torchrun call does not say them: a number, or what torchrun counts, such as gpu."""
    pod_bounds: tuple[int, int] | None = None
    """The fewest and the most pods, where their number may change."""
    max_restarts: int | None = None
    controller_sets_nnodes: bool = False
    """Whether the controller tells torchrun the number of pods, by PET_NNODES."""
    is_torch_world: bool = True
    """Whether ranks of a program without torchrun form a torch world."""
    user_command: tuple[str, ...] = ()
    user_workdir: str = ""
    equal_templates: list[Loc] = field(default_factory=list[Loc])
    """Templates that are equal to the first one."""
    pods_per_indexed_job: int = 0
    """Pods of each Indexed Job, in which Kubernetes numbers them; 0: it does not."""

    @property
    def pod_count(self) -> int:
        """Pods of all templates."""
        return sum(pod_set.pod_count for pod_set in self.pod_sets)


def build_role(draft: Draft, role_draft: RoleDraft) -> None:
    """Make the node groups and the role of a role draft."""
    role_loc = role_draft.role_loc
    draft.put((*role_loc, "name"), role_draft.name)
    pods = _convert_pod_templates(draft, role_draft)
    first_pod = pods[0]
    if len({pod.group_loc for pod in pods}) == 1:
        draft.put((*role_loc, "nodeGroup"), draft.get((*first_pod.group_loc, "name")))
    else:
        draft.remarks.append(f"ranks of {role_draft.name} run on any of the node groups")
    pod_command = _read_command(draft, role_draft, first_pod)
    for pod in pods[1:]:
        _drop_command_unless_equal(draft, role_draft, first_pod, pod)
    try:
        call = _find_torchrun(role_draft, first_pod, pod_command)
        if call is None:
            _build_plain_role(draft, role_draft, pods, pod_command)
        else:
            call = _prepend_exports_to_call(draft, role_draft, pods, pod_command, call)
            _build_torchrun_role(draft, role_draft, pods, call)
    except UsageError as error:
        raise UnfitError(first_pod.container_loc, f"torchrun: {error.message}", error.hint) from None
    carry_plain_env(draft, pods, role_loc)
    for probe_name, probe in first_pod.probes.items():
        draft.put((*role_loc, probe_name), probe)
        draft.source.mark_carried((*first_pod.container_loc, probe_name), (*role_loc, probe_name))
    for equal_template in role_draft.equal_templates:
        _copy_fates(draft, role_draft.pod_sets[0].template_loc, equal_template)


def _convert_pod_templates(draft: Draft, role_draft: RoleDraft) -> list[ConvertedPod]:
    """Make a node group for each template and return their pods; templates equal to the first one share its group."""
    source, node_groups = draft.source, ("spec", "nodeGroups")
    first_set, *other_sets = role_draft.pod_sets
    different_sets = [first_set]
    for pod_set in other_sets:
        if source.value(pod_set.template_loc) == source.value(first_set.template_loc):
            role_draft.equal_templates.append(pod_set.template_loc)
        else:
            different_sets.append(pod_set)
    pods: list[ConvertedPod] = []
    for pod_set in different_sets:
        group_loc: Loc = (*node_groups, len(draft.list_at(node_groups)))
        group_name = role_draft.name if pod_set is first_set else pod_set.name
        used_names = {group["name"] for group in draft.list_at(node_groups)}
        draft.put((*group_loc, "name"), f"{group_name}-2" if group_name in used_names else group_name)
        draft.put((*group_loc, "replicas"), pod_set.pod_count)
        replica_spec = pod_set.template_loc[:-1]
        source.note_counterpart(replica_spec, group_loc)
        replicas = (*replica_spec, "replicas")
        if replicas in source.fates:
            source.mark_carried(replicas, (*group_loc, "replicas"), "with all pods of this template")
        pods.append(convert_pod_template(draft, pod_set.template_loc, group_loc, pod_set.conventions))
    pods_of_others = sum(pod_set.pod_count for pod_set in different_sets[1:])
    draft.put((*pods[0].group_loc, "replicas"), role_draft.pod_count - pods_of_others)
    return pods


def _set_machine_bounds(draft: Draft, role_draft: RoleDraft, group: Loc, pod_bounds: tuple[int, int]) -> None:
    """Let the machines of a node group be fewer or more while the job runs, where the bounds of all pods differ."""
    fewest_pods, most_pods = pod_bounds
    if fewest_pods < most_pods:
        pods_of_others = role_draft.pod_count - draft.get((*group, "replicas"))
        draft.put((*group, "minReplicas"), max(1, fewest_pods - pods_of_others))
        draft.put((*group, "maxReplicas"), max(1, most_pods - pods_of_others))


def _copy_fates(draft: Draft, first_template: Loc, equal_template: Loc) -> None:
    """Give the fields of an equal template the fates of the first one's."""
    source = draft.source
    for loc, fate in list(source.fates.items()):
        if loc[: len(first_template)] == first_template:
            source.fates[(*equal_template, *loc[len(first_template) :])] = fate


def _rendezvous_values(role_draft: RoleDraft) -> dict[str, str]:
    """Return variables of the rendezvous with their values on the first machine, as its torchrun call may read them."""
    pod_count = str(role_draft.pod_count)
    nnodes = ":".join(map(str, role_draft.pod_bounds)) if role_draft.pod_bounds else pod_count
    return {
        **dict.fromkeys(("RANK", "NODE_RANK", "PET_NODE_RANK", "GROUP_RANK", "JOB_COMPLETION_INDEX"), "0"),
        **dict.fromkeys(("NODE_NUM", "WORKER_NUM", "WORLD_SIZE", "GROUP_WORLD_SIZE"), pod_count),
        "PET_NNODES": nnodes,
        **dict.fromkeys(("MASTER_ADDR", "PET_MASTER_ADDR"), "127.0.0.1"),
        **dict.fromkeys(("MASTER_PORT", "PET_MASTER_PORT"), "29500"),
        "PET_NPROC_PER_NODE": role_draft.nproc_per_node,
    }


def _read_command(draft: Draft, role_draft: RoleDraft, pod: ConvertedPod) -> ContainerCommand:
    """Return the command of the ranks, from the container or the flag, and mark the fields that it consists of."""
    source, entrypoint = draft.source, (*role_draft.role_loc, "entrypoint")
    words = source.words((*pod.container_loc, "command"))
    args = source.words((*pod.container_loc, "args"))
    for key in ("command", "args", "workingDir"):
        if source.value((*pod.container_loc, key)) is not None:
            source.mark_carried((*pod.container_loc, key), entrypoint, "one command")
    if role_draft.user_workdir:
        source.mark_harmless((*pod.container_loc, "workingDir"), "--workdir takes its place")
    words = words or list(role_draft.user_command)
    if not words:
        message = "has no command: it runs that of its image"
        raise UnfitError(pod.container_loc, message, "add --command with the image's own")
    return command.parse_words([*words, *args])


def _variables_known_to_ranks(role_draft: RoleDraft, pod: ConvertedPod) -> dict[str, str]:
    """Return variables whose values only a rank has -> the variable in which its shell finds the value: the same."""
    set_by_controller = {name for pod_set in role_draft.pod_sets for name in pod_set.conventions.set_by_controller}
    names = {*variables.RANK_DEPENDENT, *pod.rank_dependent, *pod.pod_variables, *set_by_controller}
    return {name: name for name in names if name not in pod.plain_env}


def _find_torchrun(role_draft: RoleDraft, pod: ConvertedPod, pod_command: ContainerCommand) -> TorchrunCall | None:
    """Return the call of torchrun in a command; None where there is none."""
    known_values = {**pod.plain_env, **_rendezvous_values(role_draft)}
    rank_variables = _variables_known_to_ranks(role_draft, pod)
    if not pod_command.shell_text:
        argv = pod_command.argv
        expanded_argv = tuple(command.expand_references(word, known_values) for word in argv)
        call = command.find_torchrun(ContainerCommand(expanded_argv), known_values)
        if call is None:
            return None
        script_begin = len(argv) - len(call.torchrun_args) + command.script_index(call.torchrun_args)
        words_around_call = (*argv[: len(call.words_before)], *argv[script_begin + 1 :])
        if not any(command.refers_to_any(word, rank_variables) for word in words_around_call):
            return call
    # A word that only its rank knows needs a shell.
    rank_variables |= variables.MACHINE_COUNTERPARTS
    return command.find_torchrun(command.resolve_references(pod_command, pod.plain_env, rank_variables), known_values)


def _prepend_exports_to_call(
    draft: Draft, role_draft: RoleDraft, pods: Sequence[ConvertedPod], pod_command: ContainerCommand, call: TorchrunCall
) -> TorchrunCall:
    """Let the text around a call of torchrun set the variables that it reads and ranks do not have."""
    text_around_call = f"{call.text_before} {call.text_from_script}"
    command_words = (*pod_command.argv, pod_command.shell_text, *pod_command.shell_args)
    names = variables.machine_variables_to_export(draft.source, pods, text_around_call, command_words)
    for name in _controller_variables(role_draft):
        if name not in names and command.reads_variable(text_around_call, name):
            names.append(name)
    values = variables.export_values(pods, names, by_machine=True, pods_per_job=_index_modulus(role_draft))
    return replace(call, text_before=command.export_statement(values) + call.text_before)


def _controller_variables(role_draft: RoleDraft) -> list[str]:
    """Return the variables that a controller sets in each pod, and that torch's ranks do not have."""
    names = dict.fromkeys(name for pod_set in role_draft.pod_sets for name in pod_set.conventions.set_by_controller)
    return [name for name in names if name != variables.POD_INDEX or role_draft.pods_per_indexed_job]


def _index_modulus(role_draft: RoleDraft) -> int:
    """Return the pods of each Job where a role has several Jobs, whose indices each begin at 0; else 0."""
    has_several_jobs = 0 < role_draft.pods_per_indexed_job < role_draft.pod_count
    return role_draft.pods_per_indexed_job if has_several_jobs else 0


def _drop_command_unless_equal(draft: Draft, role_draft: RoleDraft, first_pod: ConvertedPod, pod: ConvertedPod) -> None:
    """Carry command and folder of a further pod where they are those of the first: one role has one command."""
    source = draft.source
    for key in ("command", "args", "workingDir"):
        at = (*pod.container_loc, key)
        if source.value(at) is None:
            continue
        if source.value(at) == source.value((*first_pod.container_loc, key)):
            source.mark_carried(at, (*role_draft.role_loc, "entrypoint"), "the same command")
        else:
            source.mark_dropped(at, "ranks of one role run one command in one folder, here those of the first pod")


def _accelerator_option(pod: ConvertedPod, ranks_per_pod: int) -> str:
    """Return a rank's share of the pod's devices for --accelerator of `dljob torchrun`: GPU, GPU=2, GPU=0.5, none."""
    if pod.devices is None:
        return "none"
    if pod.devices.count >= ranks_per_pod:
        return f"{pod.devices.kind}={pod.devices.count // ranks_per_pod}"
    share = max(1, pod.devices.count * PARTS_OF_ONE // ranks_per_pod)
    return f"{pod.devices.kind}={share / PARTS_OF_ONE:g}"


def _ranks_per_pod(pod: ConvertedPod, nproc_per_node: str) -> int:
    """Return the ranks of a pod: the number, or for `auto` and `gpu` its devices, else its whole CPUs, at least 1."""
    if nproc_per_node.isdecimal() and int(nproc_per_node):
        return int(nproc_per_node)
    if pod.devices and nproc_per_node != "cpu":
        return pod.devices.count
    return max(1, parse_cpu(pod.cpu) // PARTS_OF_ONE) if pod.cpu else 1


def _build_torchrun_role(draft: Draft, role_draft: RoleDraft, pods: Sequence[ConvertedPod], call: TorchrunCall) -> None:
    """Make a role of the ranks that torchrun starts in each pod."""
    pod, name = pods[0], role_draft.name
    environ = {key: pod.plain_env.pop(key) for key in list(pod.plain_env) if key.startswith("PET_")}
    # An argument wins over the variable, also where it is torchrun's default.
    nproc_per_node = environ.get("PET_NPROC_PER_NODE", role_draft.nproc_per_node)
    environ_with_nproc = {**environ, "PET_NPROC_PER_NODE": nproc_per_node}
    torchrun_args = torchrun_line.read(call.torchrun_args, environ_with_nproc, command.TORCHRUN_PARSER)
    ranks_per_pod = _ranks_per_pod(pod, torchrun_args.nproc_per_node)
    if torchrun_args.nproc_per_node != role_draft.nproc_per_node:
        _drop_nproc_fields(draft, role_draft, f"--nproc-per-node={torchrun_args.nproc_per_node} comes first")
    _report_other_pod_counts(draft, role_draft, pod, torchrun_args)
    if torchrun_args.standalone:
        _drop_bounds(draft, role_draft, f"{torchrun_line.spelled(torchrun_args, 'standalone')} is one machine")
    fewest_pods, most_pods = _bounds_of_call(role_draft, torchrun_args)
    _set_machine_bounds(draft, role_draft, pods[-1].group_loc, (fewest_pods, most_pods))
    options = [
        *("--to", "kubernetes", "--no-upload", "--name", "x"),
        *("--accelerator", _accelerator_option(pod, ranks_per_pod), f"--role={name}"),
        *(f"--nnodes={fewest_pods}:{most_pods}", f"--nproc-per-node={ranks_per_pod}"),
    ]
    converted = command.torch_role(call, options, environ, role_draft.user_workdir or pod.workdir)
    role: dict[str, Any] = {**converted.role, "name": name, "replicas": role_draft.pod_count * ranks_per_pod}
    if torchrun_args.node_check or torchrun_args.network_check or torchrun_args.precheck not in (None, "0"):
        role["comm"] = {**role.get("comm", {}), "preCheck": True}
    if role_draft.max_restarts is not None:
        role["restartPolicy"] = {"maxRestarts": max(role_draft.max_restarts, torchrun_args.max_restarts)}
        if 0 < role_draft.max_restarts < torchrun_args.max_restarts:
            times = counted(torchrun_args.max_restarts, "time")
            words = f"ranks of {name} restart {times}, as torchrun's own line says"
            draft.remarks.append(f"{words}, and not {role_draft.max_restarts}")
    _put_role(draft, role_draft, pod, role, ranks_per_pod)
    # Another role may have set some of the fields.
    fault_tolerance = ("spec", "faultTolerance")
    draft.put(fault_tolerance, converted.spec["faultTolerance"] | (draft.get(fault_tolerance) or {}))
    deadline_key = "preRunningDeadlineSeconds"
    if deadline_key in converted.spec and draft.get(("spec", deadline_key)) is None:
        draft.put(("spec", deadline_key), converted.spec[deadline_key])
    draft.remarks += [remark for remark in converted.remarks if "no rank gets a device" not in remark]
    _report_commands_around_call(draft, pod, call, torchrun_args)
    if not re.search(r"(^|[\s;&|])(cd|git)\s", call.text_before):
        _report_file_in_image_workdir(draft, role_draft, pod, [torchrun_args.training_script])


def _report_commands_around_call(draft: Draft, pod: ConvertedPod, call: TorchrunCall, torchrun_args: Namespace) -> None:
    """Report commands around a call of torchrun, which each rank runs now, and an argument that its script lacks."""
    source, command_field = draft.source, _command_field(draft, pod)
    if call.adds_local_rank and not torchrun_args.use_env:
        words = "torch.distributed.launch gives --local-rank=N to the script, which has LOCAL_RANK here"
        source.mark_dropped(command_field, f"{words}: let it read that, and add --use-env")
    if not _ONLY_ENV_AND_ASSIGNMENTS.fullmatch(f"{shlex.join(call.words_before)} {call.text_before} "):
        draft.remarks.append("each rank runs what stands before torchrun, and not once for each machine")
    second_launcher = ""
    if call.text_from_script:
        second_launcher = command.find_launcher(ContainerCommand((), shell_text=call.text_from_script))
    if second_launcher:
        source.mark_dropped(command_field, f"{second_launcher} stands behind torchrun: each rank would start it")
    elif call.text_after_call:
        text = " ".join(call.text_after_call.split())
        reason = "each rank runs it for itself, and not once for each machine"
        source.mark_dropped(command_field, f"'{text[:60]}' stands behind torchrun: {reason}")


def _bounds_of_call(role_draft: RoleDraft, torchrun_args: Namespace) -> tuple[int, int]:
    """Return the fewest and the most pods: of the kind, else of a range in --nnodes, else as many as there are."""
    pod_count = role_draft.pod_count
    if torchrun_args.standalone:
        return pod_count, pod_count
    if role_draft.pod_bounds:
        return role_draft.pod_bounds
    nnodes_range = re.fullmatch(r"(\d+):(\d+)", torchrun_args.nnodes)
    if nnodes_range:
        fewest, most = int(nnodes_range[1]), int(nnodes_range[2])
        if most >= 2 and fewest < most:
            return min(fewest, pod_count), max(most, pod_count)
    return pod_count, pod_count


def _report_other_pod_counts(draft: Draft, role_draft: RoleDraft, pod: ConvertedPod, torchrun_args: Namespace) -> None:
    """Report numbers of machines and ranks in a call of torchrun that are unknown, or other ones than the pods'."""
    source, command_field, pod_count = draft.source, _command_field(draft, pod), role_draft.pod_count
    has_nnodes = "nnodes" in torchrun_line.given_arguments(torchrun_args)
    nnodes = re.fullmatch(r"(\d+)(?::(\d+))?", torchrun_args.nnodes)
    fewest, most = (int(nnodes[1]), int(nnodes[2] or nnodes[1])) if nnodes else (0, 0)
    option = f"--nnodes={torchrun_args.nnodes}"
    if not nnodes:
        words = f"its value is not in the manifest; one world of all {counted(pod_count, 'pod')} is taken"
        source.mark_dropped(command_field, f"{option}: {words}")
    elif role_draft.pod_bounds and has_nnodes and (fewest, most) != role_draft.pod_bounds:
        words = f"{role_draft.name} gets the bounds of elasticPolicy"
        draft.remarks.append(f"{option} is not elastic as elasticPolicy is: {words}")
    elif has_nnodes and not role_draft.pod_bounds and not fewest <= pod_count <= most:
        words = f"and there {'is' if pod_count == 1 else 'are'} {counted(pod_count, 'pod')}: they form one world"
        source.mark_dropped(command_field, f"{option}, {words}")
    elif not has_nnodes and not role_draft.controller_sets_nnodes and pod_count > 1:
        words = f"all {pod_count} pods of {role_draft.name} form one world"
        draft.remarks.append(f"{words}: torchrun's own --nnodes is 1")
    nproc_per_node = torchrun_args.nproc_per_node
    if not nproc_per_node.isdecimal() and nproc_per_node not in torchrun.COUNTED:
        ranks = counted(_ranks_per_pod(pod, nproc_per_node), "rank")
        words = f"its value is not in the manifest; each pod has {ranks}"
        source.mark_dropped(command_field, f"--nproc-per-node={nproc_per_node}: {words}")


def _drop_bounds(draft: Draft, role_draft: RoleDraft, reason: str) -> None:
    """Drop the fields with the fewest and the most pods, where torchrun's own line has one machine."""
    bounds = [(*role_draft.role_loc, key) for key in ("minReplicas", "maxReplicas")]
    for loc, fate in list(draft.source.fates.items()):
        if fate.to in bounds:
            draft.source.mark_dropped(loc, reason)


def _drop_nproc_fields(draft: Draft, role_draft: RoleDraft, reason: str) -> None:
    """Drop the fields that say how many ranks torchrun starts in each pod, where it does not read them."""
    for loc, fate in list(draft.source.fates.items()):
        if fate.to == (*role_draft.role_loc, "replicasPerGroup"):
            draft.source.mark_dropped(loc, reason)


def _build_plain_role(
    draft: Draft, role_draft: RoleDraft, pods: Sequence[ConvertedPod], pod_command: ContainerCommand
) -> None:
    """Make a role of a program without torchrun: one rank for each pod."""
    pod, name, pod_count = pods[0], role_draft.name, role_draft.pod_count
    _drop_nproc_fields(draft, role_draft, "each pod is one rank: its command has no torchrun line that reads it")
    exported_names = variables.rank_variables_to_export(draft, pods, in_torch_world=role_draft.is_torch_world)
    rank_variables = _variables_known_to_ranks(role_draft, pod)
    pod_command = command.resolve_references(pod_command, pod.plain_env, rank_variables)
    _report_hidden_launchers(draft, name, pod, pod_command)
    fewest_pods, most_pods = role_draft.pod_bounds or (pod_count, pod_count)
    _set_machine_bounds(draft, role_draft, pods[-1].group_loc, (fewest_pods, most_pods))
    role: dict[str, Any] = {"name": name, "replicas": pod_count}
    if role_draft.is_torch_world:
        role["type"] = "Elastic"
        if fewest_pods < most_pods:
            role |= {"minReplicas": fewest_pods, "maxReplicas": most_pods}
    workdir = role_draft.user_workdir or pod.workdir
    rank_command = _prepend_exports(role_draft, pods, pod_command, exported_names)
    role["entrypoint"] = {"command": command.entrypoint_words(rank_command, workdir)}
    if pod.devices:
        role["accelerator"] = {"type": pod.devices.kind, "count": str(pod.devices.count)}
    if role_draft.max_restarts is not None:
        role["restartPolicy"] = {"maxRestarts": role_draft.max_restarts}
        if not role_draft.max_restarts:
            # Where a role has no restart left the job restarts, and that would be 10 times by default.
            draft.put(("spec", "faultTolerance", "maxRestarts"), 0)
    _put_role(draft, role_draft, pod, role, ranks_per_pod=1)
    _report_file_in_image_workdir(draft, role_draft, pod, command.find_relative_files(pod_command))


def _report_hidden_launchers(draft: Draft, role_name: str, pod: ConvertedPod, pod_command: ContainerCommand) -> None:
    """Drop a command that starts ranks by a launcher, itself or by a script of a ConfigMap; name unread scripts."""
    command_field = _command_field(draft, pod)
    if launcher := command.find_launcher(pod_command, pod.plain_env):
        words = "of which dljob sees nothing: write the script as torchrun would start it"
        draft.source.mark_dropped(command_field, f"{launcher} starts ranks itself, {words}")
    for script in command.find_shell_scripts(pod_command):
        text = draft.config_map_texts.get(script.rpartition("/")[2])
        if text is None:
            words = f"{role_name} is one rank for each pod; where it starts torchrun, write that line as the command"
            draft.remarks.append(f"{script} is not read: {words}")
        elif launcher := command.find_launcher(ContainerCommand(("sh", "-c"), shell_text=text)):
            words = "of which dljob sees nothing: write that line as the command"
            draft.source.mark_dropped(command_field, f"{script} starts ranks by {launcher}, {words}")


def _command_field(draft: Draft, pod: ConvertedPod) -> Loc:
    """Return the place of the container's command, or of its args where it has no command."""
    has_command = draft.source.value((*pod.container_loc, "command")) is not None
    return (*pod.container_loc, "command" if has_command else "args")


def _prepend_exports(
    role_draft: RoleDraft, pods: Sequence[ConvertedPod], pod_command: ContainerCommand, exported_names: Sequence[str]
) -> ContainerCommand:
    """Let a command set variables by names, and those that its pods had from a controller and its ranks do not have."""
    # A program may read a Job's index although no manifest mentions it.
    controller_names = [
        name
        for name in _controller_variables(role_draft)
        if name == variables.POD_INDEX or command.reads_variable(pod_command.shell_text, name)
    ]
    names = dict.fromkeys((*exported_names, *controller_names))
    values = variables.export_values(pods, names, pods_per_job=_index_modulus(role_draft))
    return command.prepend_exports(pod_command, values)


def _report_file_in_image_workdir(draft: Draft, role_draft: RoleDraft, pod: ConvertedPod, words: Sequence[str]) -> None:
    """Drop a command whose words name a relative file, where only the image says in which folder it starts."""
    files = [word for word in words if command.find_relative_files(ContainerCommand((word,)))]
    if files and not role_draft.user_workdir and not pod.workdir:
        reason = f"{files[0]} lies in the WORKDIR of the image, unknown here: add --workdir"
        draft.source.mark_dropped(_command_field(draft, pod), reason)


def _put_role(draft: Draft, role_draft: RoleDraft, pod: ConvertedPod, role: dict[str, Any], ranks_per_pod: int) -> None:
    """Put the fields of a role into the DLJob, with a rank's share of the pod's CPUs."""
    for key, value in role.items():
        draft.put((*role_draft.role_loc, key), value)
    if pod.cpu:
        millicpus = parse_cpu(pod.cpu) // ranks_per_pod * 1000 // PARTS_OF_ONE
        cpu = f"{millicpus}m" if millicpus % 1000 else str(millicpus // 1000)
        draft.put((*role_draft.role_loc, "resources", "cpu"), cpu)
