"""RayJob and RayCluster: the driver becomes a role with a quota on a machine of its own."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, cast

from dljob.api.torchrun import FOR_EVER
from dljob.convert import command
from dljob.convert.kubeflow import carry_managed_by
from dljob.convert.meta import carry_number_or_switch, convert_metadata
from dljob.convert.pods import ConvertedPod
from dljob.convert.raycluster import convert_cluster_spec
from dljob.convert.source import UNKNOWN_FIELD, Draft, UnfitError, read_documents
from dljob.spec.quantity import GRAIN as PARTS_OF_ONE
from dljob.spec.quantity import parse_cpu
from dljob.spec.rules.outside import RUNTIME_ENV as RUNTIME_ENV_KEYS
from dljob.spec.rules.outside import is_uri
from dljob.spec.text.tree import Loc
from dljob.spec.variables import is_reserved
from dljob.telemetry.wording import counted

_RESTART_RULE = {"name": "backoff-limit", "onReasons": ["UserError", "ImportError"], "action": "RestartProcess"}
"""Restarts the driver after errors of its own, too: KubeRay starts it again, whatever the reason of its failure."""
_NO_SUBMITTER = "the operator submits the driver itself: there is no pod for that"
_HARMLESS_FIELDS = {
    "jobId": "dljob names its submissions itself",
    "metadata": "Ray's own table of jobs shows it, and nothing else reads it",
    **dict.fromkeys(("submitterPodTemplate", "submitterConfig", "submissionMode"), _NO_SUBMITTER),
    "entrypointNumCpus": "the driver has a machine of its own",
    "ttlSecondsAfterFinished": "the RayCluster is deleted as soon as the job has ended",
}
_KEEP_HINT = "cleanupPolicy: Retain keeps it"
_DELETED_AT_ONCE = f"the RayCluster is deleted as soon as the job has ended: {_KEEP_HINT}"
_DELETION_POLICIES_LOST = {
    "DeleteNone": f"the RayCluster is deleted after this end of the job, too: {_KEEP_HINT} after any",
    "DeleteWorkers": f"the head is deleted with the workers, as soon as the job has ended: {_KEEP_HINT}",
    "DeleteSelf": "the job's own object stays: ttlSecondsAfterFinished deletes it",
}


def ray_job(draft: Draft, argv: Sequence[str], workdir: str) -> None:
    """Convert a RayJob; `argv` and `workdir` are the flags --command and --workdir."""
    source, entrypoint = draft.source, ("spec", "entrypoint")
    convert_metadata(draft)
    source.note_counterpart(("spec",), ("spec",))
    text = source.text(entrypoint)
    if not text and not argv:
        if source.value(("spec", "submissionMode")) == "InteractiveMode":
            message = "InteractiveMode: the job has no program"
            raise UnfitError(("spec", "submissionMode"), message, "add --command")
        raise UnfitError(("spec",), "has no entrypoint", "add --command")
    driver_command = command.parse_words(argv) if argv else command.parse_text(text or "")
    role: Loc = ("spec", "roles", 0)
    draft.put(role, {"name": "driver", "reserve": "Quota"})
    for key, at in source.fields(("spec",)):
        _convert_ray_job_field(draft, key, at)
    has_own_cluster = draft.get(("spec", "rayClusterRef")) is None
    if has_own_cluster and draft.get(("spec", "cleanupPolicy")) is None:
        remark = "KubeRay keeps the RayCluster of a job that has ended, and dljob deletes it"
        draft.remarks.append(f"{remark}: {_KEEP_HINT}")
    driver_pod = convert_cluster_spec(draft, ("spec", "rayClusterSpec")) if has_own_cluster else None
    driver_folder = workdir or _find_driver_folder(draft, driver_pod, driver_command)
    if driver_pod:
        _set_driver_resources(draft, driver_pod, role)
    _set_driver_restarts(draft, role)
    draft.put((*role, "entrypoint", "command"), command.entrypoint_words(driver_command, driver_folder))
    if argv:
        source.mark_harmless(entrypoint, "--command takes its place")
    elif text:
        source.mark_carried(entrypoint, (*role, "entrypoint", "command"))


def _convert_ray_job_field(draft: Draft, key: str, at: Loc) -> None:
    source = draft.source
    match key:
        case "suspend" | "activeDeadlineSeconds" | "preRunningDeadlineSeconds":
            carry_number_or_switch(draft, at, ("spec", key))
        case "ttlSecondsAfterFinished" if source.number(at):
            source.mark_dropped(at, _DELETED_AT_ONCE)
        case "entrypointResources":
            source.mark_dropped(at, "machines have no resources of Ray's beyond CPU, memory and devices")
        case _ if key in _HARMLESS_FIELDS:
            source.mark_harmless(at, _HARMLESS_FIELDS[key])
        case _ if key in _FIELD_CONVERTERS:
            _FIELD_CONVERTERS[key](draft, at)
        case _:
            pass  # `_set_driver_restarts` reads backoffLimit; others have no fate, and are reported as unknown


def _set_driver_restarts(draft: Draft, role: Loc) -> None:
    """Start the driver as often as KubeRay does: once, and `backoffLimit` times more where it fails."""
    at: Loc = ("spec", "backoffLimit")
    backoff_limit = draft.source.number(at)
    if backoff_limit is not None:
        draft.source.mark_carried(at, (*role, "restartPolicy", "maxRestarts"))
    # The job has no budget of its own, in which restarts would begin anew once the role's is used up.
    fault_tolerance: dict[str, Any] = {"maxRestarts": 0, "maxClusterRestarts": backoff_limit or 0}
    if backoff_limit:
        draft.put((*role, "restartPolicy"), {"maxRestarts": backoff_limit})
        fault_tolerance |= {"windowSeconds": FOR_EVER, "rules": [_RESTART_RULE]}
        times = counted(backoff_limit, "time")
        draft.remarks.append(f"a driver that fails starts again, {times}; a lost RayCluster is replaced as often")
    else:
        # Never, and not only no budget: none is charged for a machine whose end was announced.
        draft.put((*role, "restartPolicy"), {"level": "Never", "maxRestarts": 0})
        draft.remarks.append("the driver starts once, as with KubeRay's backoffLimit of 0: its failure fails the job")
    draft.put(("spec", "faultTolerance"), fault_tolerance)


def _convert_shutdown_after_finish(draft: Draft, at: Loc) -> None:
    source = draft.source
    if source.value(("spec", "deletionStrategy")):
        source.mark_harmless(at, "KubeRay follows deletionStrategy")
    else:
        draft.move(at, ("spec", "cleanupPolicy"), "Retain" if source.value(at) is False else "DeleteCluster")


class _Deletion(NamedTuple):
    """A rule of a deletionStrategy: after an end of the job, SUCCEEDED or FAILED, by a policy like DeleteCluster."""

    loc: Loc
    job_status: str
    policy: str | None
    delay_s: int


def _convert_deletion_strategy(draft: Draft, at: Loc) -> None:
    """Carry a deletion strategy as far as `cleanupPolicy` has it: all at once after any end of the job, or nothing."""
    source, cleanup_policy = draft.source, ("spec", "cleanupPolicy")
    deletions = [
        _Deletion((*at, key), job_status, source.text((*at, key, "policy")), delay_s=0)
        for key, job_status in (("onSuccess", "SUCCEEDED"), ("onFailure", "FAILED"))
        if source.value((*at, key)) is not None
    ]
    for rule in source.item_locs((*at, "deletionRules")):
        condition, policy = (*rule, "condition"), source.text((*rule, "policy"))
        job_status = source.text((*condition, "jobStatus")) or source.text((*condition, "jobDeploymentStatus")) or ""
        delay_s = source.number((*condition, "ttlSeconds")) or 0
        deletions.append(_Deletion(rule, job_status.upper(), policy, delay_s))
    if not deletions:
        return
    keeps_all = all(deletion.policy == "DeleteNone" for deletion in deletions)
    deleting_policies = ("DeleteCluster", "DeleteSelf")
    deleted_after = {deletion.job_status for deletion in deletions if deletion.policy in deleting_policies}
    deletes_after_any_end = {"SUCCEEDED", "FAILED"} <= deleted_after
    draft.put(cleanup_policy, "Retain" if keeps_all else "DeleteCluster")
    for loc, _, policy, delay_s in deletions:
        if keeps_all or (policy == "DeleteCluster" and not delay_s and deletes_after_any_end):
            source.mark_carried((*loc, "policy"), cleanup_policy)
            source.mark_harmless((*loc, "condition"), "cleanupPolicy holds for any end of the job")
        elif policy == "DeleteCluster" and delay_s:
            source.mark_dropped(loc, _DELETED_AT_ONCE)
        elif policy == "DeleteCluster":
            source.mark_dropped(loc, f"the RayCluster is deleted after any end of the job: {_KEEP_HINT}")
        else:
            source.mark_dropped(loc, _DELETION_POLICIES_LOST.get(policy or "", UNKNOWN_FIELD))


def _convert_cluster_selector(draft: Draft, at: Loc) -> None:
    source, cluster_label = draft.source, (*at, "ray.io/cluster")
    if name := source.text(cluster_label):
        draft.move(cluster_label, ("spec", "rayClusterRef", "name"), name)
        draft.remarks.append(f"the image of RayCluster {name} must contain dljob")
        source.mark_harmless(("spec", "rayClusterSpec"), "KubeRay ignores it beside clusterSelector")


def _convert_driver_devices(draft: Draft, at: Loc) -> None:
    source, count = draft.source, draft.source.value(at)
    if not count:
        source.mark_harmless(at, "no devices")
    elif isinstance(count, int):
        draft.move(at, ("spec", "roles", 0, "accelerator", "count"), str(count))
    else:
        source.mark_dropped(at, "a driver gets whole devices")


def _convert_runtime_env(draft: Draft, at: Loc) -> None:
    """Carry the runtime environment, which is YAML within a text; a local working_dir is left to the driver."""
    source, runtime_env = draft.source, ("spec", "runtimeEnv")
    text = source.text(at)
    documents = read_documents(text) if text and text.strip() else []
    data = documents[0].data if documents else {}
    if (documents and documents[0].faults) or not isinstance(data, dict):
        source.mark_dropped(at, "is no YAML of a mapping")
        return
    dropped_keys: list[str] = []
    for key, value in data.items():
        if key == "working_dir" and not is_uri(value):
            draft.put((_LOCAL_WORKING_DIR,), value)
        elif key not in RUNTIME_ENV_KEYS or (key == "py_modules" and not _are_uris(value)):
            dropped_keys.append(key)
        elif key == "env_vars" and isinstance(value, dict):
            variables = {name: str(text) for name, text in value.items() if not is_reserved(name)}
            draft.put((*runtime_env, key), variables)
            if reserved_names := ", ".join(sorted(value.keys() - variables.keys())):
                source.mark_dropped(at, f"{reserved_names} is set by dljob")
        else:
            draft.put((*runtime_env, key), value)
    source.mark_carried(at, runtime_env)
    if dropped_keys:
        words = "only URIs that pods can reach, and what Ray 2.60 knows; the rest is carried"
        source.mark_dropped(at, f"{', '.join(dropped_keys)}: {words}")


_FIELD_CONVERTERS: Mapping[str, Callable[[Draft, Loc], None]] = {
    "shutdownAfterJobFinishes": _convert_shutdown_after_finish,
    "deletionStrategy": _convert_deletion_strategy,
    "managedBy": carry_managed_by,
    "clusterSelector": _convert_cluster_selector,
    "entrypointNumGpus": _convert_driver_devices,
    "runtimeEnvYAML": _convert_runtime_env,
}
_LOCAL_WORKING_DIR = "<workdir>"
"""Key in a draft for the runtime environment's working_dir, until `_find_driver_folder` removes it."""


def _are_uris(value: object) -> bool:
    items = cast("list[object]", value) if isinstance(value, list) else []
    return bool(items) and all(map(is_uri, items))


def _find_driver_folder(draft: Draft, driver_pod: ConvertedPod | None, driver_command: command.ContainerCommand) -> str:
    """Return the folder in which the driver starts under Ray; empty where it does not matter or is unknown."""
    source, runtime_env_yaml = draft.source, ("spec", "runtimeEnvYAML")
    local_folder = draft.document.pop(_LOCAL_WORKING_DIR, None)
    if isinstance(local_folder, str) and local_folder.startswith("/"):
        has_runtime_env = bool(draft.get(("spec", "runtimeEnv")))
        source.mark_carried(runtime_env_yaml, ("spec", "runtimeEnv") if has_runtime_env else ("spec", "roles", 0))
        words = "is a folder of the image: the driver starts there, and nothing is packed"
        draft.remarks.append(f"working_dir {local_folder} {words}")
        return local_folder
    if local_folder is not None:
        words = "is a folder of the machine that submits: use `dljob submit`, or an archive's URI"
        source.mark_dropped(runtime_env_yaml, f"working_dir {local_folder} {words}")
    if draft.get(("spec", "runtimeEnv", "working_dir")):
        return ""
    if driver_pod and driver_pod.workdir:
        entrypoint_command = ("spec", "roles", 0, "entrypoint", "command")
        source.mark_carried((*driver_pod.container_loc, "workingDir"), entrypoint_command)
        return driver_pod.workdir
    files = command.find_relative_files(driver_command)
    if not files:
        return ""
    if re.search(r"(^|/)(rayproject/)?ray(-ml|-llm)?:", str(draft.get(("spec", "image")))):
        return "/home/ray"
    words = "lies in the image's WORKDIR, which only the image knows: add --workdir"
    source.mark_dropped(("spec", "entrypoint"), f"{files[0]} {words}")
    return ""


def _set_driver_resources(draft: Draft, driver_pod: ConvertedPod, role: Loc) -> None:
    """Place the driver on a node group with the devices that it wants, else on its pod's, with all CPUs and devices."""
    if draft.get((*role, "accelerator", "count")) is not None:
        for group in draft.list_at(("spec", "nodeGroups")):
            if group.get("accelerator"):
                draft.put((*role, "nodeGroup"), group["name"])
                return
        draft.source.mark_dropped(("spec", "entrypointNumGpus"), "no machine has devices")
        draft.get(role).pop("accelerator")
    draft.put((*role, "nodeGroup"), draft.get((*driver_pod.group_loc, "name")))
    if driver_pod.cpu:
        whole_cpus = parse_cpu(driver_pod.cpu) // PARTS_OF_ONE
        draft.put((*role, "resources", "cpu"), str(whole_cpus) if whole_cpus else driver_pod.cpu)
    devices = driver_pod.devices
    if devices:
        draft.put((*role, "accelerator"), {"type": devices.kind, "count": str(devices.count)})


def ray_cluster(draft: Draft, argv: Sequence[str], workdir: str) -> None:
    """Convert a RayCluster and the command that is to run on it; these are the flags --command and --workdir."""
    if not argv:
        raise UnfitError(("kind",), "a RayCluster runs nothing by itself", "add --command 'python train.py'")
    convert_metadata(draft)
    role: Loc = ("spec", "roles", 0)
    draft.put(role, {"name": "driver", "reserve": "Quota"})
    driver_pod = convert_cluster_spec(draft, ("spec",))
    driver_command = command.parse_words(argv)
    _set_driver_resources(draft, driver_pod, role)
    folder = workdir or driver_pod.workdir
    if folder and not workdir:
        draft.source.mark_carried((*driver_pod.container_loc, "workingDir"), (*role, "entrypoint", "command"))
    if not folder and command.find_relative_files(driver_command):
        folder = "/home/ray" if "rayproject/ray" in str(draft.get(("spec", "image"))) else ""
    draft.put((*role, "entrypoint", "command"), command.entrypoint_words(driver_command, folder))
