"""Kind of each cause of a failure, and what a user does about it: data for `dljob why` and its exit code.

Reasons are those of `lastFault.reason` (why a process ended) and of `status.reason` (why a job waits or ended).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import IntEnum
from typing import NamedTuple

from dljob.telemetry import reasons


class CauseKind(IntEnum):
    """Kind of a first cause. Its value is the exit code of `dljob why`."""

    NOTHING = 0
    """Nothing failed."""
    USER_CODE = 10
    MEMORY = 11
    """Memory of the machine or of the device."""
    DEVICE = 12
    NODE = 13
    """A node, its disk or the network."""
    STOPPED = 14
    """Stopped, suspended or preempted: a person, a program or a cloud ordered it."""
    SPEC = 15
    """The spec asks for what is invalid, does not exist or does not fit."""
    UNKNOWN = 19


class Remedy(NamedTuple):
    """Kind of a cause, and the advice to the user."""

    kind: CauseKind
    advice: str = ""
    without_kubernetes: str = ""
    """The advice for a job on no Kubernetes; empty: the same."""
    without_checkpoint: str = ""
    """The advice for a job that has no checkpoint; empty: the same."""


FAULTS: Mapping[str, Remedy] = {
    "UserError": Remedy(
        CauseKind.USER_CODE, "correct the code at the place that the error names, then run the job again"
    ),
    "ImportError": Remedy(CauseKind.USER_CODE, "see that the image, runtimeEnv or code folder has that module"),
    "OOMKilled": Remedy(
        CauseKind.MEMORY, "raise resources.memory of the role, or use less: smaller batches, fewer loaders"
    ),
    "DeviceError": Remedy(
        CauseKind.DEVICE, "drain the node and check its device; nvidia-smi -q or npu-smi info names faults"
    ),
    "DriverMismatch": Remedy(
        CauseKind.SPEC,
        "use an image whose torch and CUDA fit that node's driver and GPU (nvidia-smi there), or update the driver: "
        "a newer one also serves older CUDA",
    ),
    "NodeLost": Remedy(
        CauseKind.NODE,
        "look at the pod and its node: kubectl describe pod POD, kubectl logs --previous POD, kubectl describe node"
        " NODE",
        "see who ended it: the machine's kernel log (dmesg) or its other users; on the Ray of dljob run another raylet"
        " takes its place where ranks need it",
    ),
    "NodeFrozen": Remedy(
        CauseKind.NODE,
        "look at the node: its load, its disk and its network",
        "resume what is stopped (kill -CONT PID), or look at the machine: its load, its disk and its network",
    ),
    "Network": Remedy(
        CauseKind.NODE, "check the network between the nodes of these ranks; dljob doctor tests this machine"
    ),
    "Disk": Remedy(
        CauseKind.NODE, "free space on the disk that the error names, or write elsewhere: df -h and df -i on its node"
    ),
    "PortTaken": Remedy(
        CauseKind.NODE,
        "see which process of its node has the port (ss -ltnp), or bind port 0, so that the machine chooses one",
    ),
    "ProcessLimit": Remedy(
        CauseKind.NODE,
        "raise the limit that the error names (ulimit -u; a container: --pids-limit; a pod: podPidsLimit), "
        "or start fewer processes and threads",
    ),
    "Preempted": Remedy(CauseKind.STOPPED, "no error of the job: it goes on elsewhere when there is room"),
    "ImagePull": Remedy(CauseKind.SPEC, "correct the image's name, or its pull secret"),
    "Hang": Remedy(
        CauseKind.UNKNOWN, "read the stacks in the file that the evidence names; docs/hangs.md explains them"
    ),
    "Straggler": Remedy(
        CauseKind.UNKNOWN, "compare the node of the slow rank with others: clocks, temperature, neighbours"
    ),
    "SilentCorruption": Remedy(
        CauseKind.DEVICE, "test the devices of its node before they are used again: dcgmi diag -r 3, or npu-smi info"
    ),
    "Unhealthy": Remedy(
        CauseKind.USER_CODE, "read the probe's last answer in the evidence, and the end of the rank's log"
    ),
    "Killed": Remedy(
        CauseKind.UNKNOWN, "the signal came from outside the job: ask the node's kernel log and its other users"
    ),
    "Unknown": Remedy(CauseKind.UNKNOWN, "read the last lines of the rank's log, and the kernel log of its node"),
}
"""Reason of a fault -> its remedy."""

DEVICE_MEMORY = Remedy(
    CauseKind.MEMORY, "the device's memory is full: smaller batches, sharding, or activation checkpointing"
)
LOST_PEER = Remedy(
    CauseKind.UNKNOWN,
    "no rank, node or network is known to have failed: read the end of every rank's log of this role (dljob logs)",
)
EARLY_END = Remedy(
    CauseKind.USER_CODE,
    "see why that rank ended first: uneven data (torch's Join, drop_last), sys.exit(0), or a handler of SIGTERM",
)
HOST_MEMORY = Remedy(
    CauseKind.MEMORY, "its machine had no memory for that: smaller batches, fewer loaders, or more resources.memory"
)
RULES: Mapping[str, Remedy] = {
    **dict.fromkeys(("cuda-oom", "npu-oom", "xla-oom"), DEVICE_MEMORY),
    "host-oom": HOST_MEMORY,
    "name-resolution": Remedy(
        CauseKind.NODE, "see that the name is right and resolves on its node: getent hosts NAME; a restart tries again"
    ),
    "unreachable": Remedy(
        CauseKind.NODE, "see that its node reaches the address that the error names: routes, firewalls, proxies"
    ),
    "child-killed": Remedy(
        CauseKind.UNKNOWN,
        "a process that it had started was ended by SIGKILL: ask the kernel log of its node (dmesg) whether memory ran "
        "out; fewer workers, or more resources.memory",
    ),
    # It may have been ended by a signal, by its own crash, or by the kernel: its parent does not tell.
    "child-lost": Remedy(
        CauseKind.UNKNOWN,
        "a process that it had started ended without a word: read the rank's log, and its node's kernel log (dmesg)",
    ),
    "bus-error": Remedy(
        CauseKind.UNKNOWN,
        "a file that is mapped into memory has no room (df -h; /dev/shm: a container's --shm-size) or was cut off; "
        "else its memory is broken: the node's kernel log (dmesg)",
    ),
    "pod-removed": Remedy(
        CauseKind.NODE,
        "no error of the job, which goes on in another pod: see who deletes its pods by force (audit log of the API "
        "server)",
    ),
    # The user's line is not at fault.
    "checkpoint-newer": Remedy(
        CauseKind.SPEC, "run it with the dljob that wrote the checkpoint, or move that away to go on without it"
    ),
    "checkpoint-unloaded": Remedy(
        CauseKind.NODE, "see what is on that disk: dljob checkpoint ls, with the job or a folder"
    ),
    "collective-mismatch": Remedy(
        CauseKind.USER_CODE,
        "ranks called different collectives, or the same with different sizes: compare what each calls{place}; "
        "TORCH_DISTRIBUTED_DEBUG=DETAIL names both",
    ),
}
"""Rule of evidence -> its remedy, where the reason alone does not tell; `{place}` is the place that the error names."""
UNNAMED = (
    "no line of the code is named: read the end of the rank's log, and look for what ends with that exit code or signal"
)
"""Advice for an error of the user's code without a place."""
_PLACE = re.compile(r" at (\S+:\d+ in [\w<>.]+)|\(at ([^()]*?:\d+ in [\w<>.]+)\)")

ENDS_WITHOUT_FAILURE = (
    *(reasons.STOPPED, reasons.SUSPENDED, reasons.DEADLINE_EXCEEDED, reasons.PRE_RUNNING_DEADLINE),
    *(reasons.RUNNER_KILLED, reasons.MACHINE_RESTARTED),
)
"""Reasons of ends that no failure brings about: one from which the job had not recovered by then did not end it."""
VERDICTS: Mapping[str, Remedy] = {
    reasons.STOPPED: Remedy(
        CauseKind.STOPPED,
        "the job was stopped, and did not fail; with checkpoint.path, dljob resume goes on from its last checkpoint",
        "the job was stopped, and did not fail; the same dljob run with --resume goes on from its last checkpoint",
        "the job was stopped, and did not fail; it has no checkpoint: run it again, from its start",
    ),
    reasons.SUSPENDED: Remedy(
        CauseKind.STOPPED,
        "dljob resume continues it from its last checkpoint",
        without_checkpoint="it has no checkpoint: dljob resume begins at its start",
    ),
    reasons.NO_ROOM: Remedy(
        CauseKind.SPEC, "free machines, add some, or ask for less; dljob plan shows what each rank takes"
    ),
    reasons.NEVER_FITS: Remedy(
        CauseKind.SPEC, "ask for less, or add larger machines; dljob plan shows what each rank takes"
    ),
    reasons.NO_ROOM_FOR_LOST_UNITS: Remedy(
        CauseKind.NODE, "add a spare node, or make the role Elastic, so that fewer nodes do"
    ),
    reasons.DEADLINE_EXCEEDED: Remedy(
        CauseKind.SPEC, "raise activeDeadlineSeconds, or find out why the job is slow: dljob events"
    ),
    reasons.PRE_RUNNING_DEADLINE: Remedy(
        CauseKind.SPEC, "raise preRunningDeadlineSeconds, or see what it waited for: dljob events"
    ),
    reasons.RESTART_TIMED_OUT: Remedy(CauseKind.UNKNOWN, "see which ranks did not come back: dljob events"),
    reasons.MASTER_BUDGET: Remedy(CauseKind.UNKNOWN, "see why PrimeMaster ended: dljob logs --master"),
    reasons.MASTER_FAILED: Remedy(CauseKind.UNKNOWN, "a bug of dljob: please report it with dljob logs --master"),
    reasons.JOURNAL_FAILED: Remedy(
        CauseKind.NODE, "see that the volume of the job's folder is mounted, writable and not full"
    ),
    reasons.RAY_LOST: Remedy(
        CauseKind.NODE, "see who ended it: the machine's kernel log (dmesg) or its other users; then run the job again"
    ),
    reasons.RUNNER_KILLED: Remedy(
        CauseKind.STOPPED,
        "see who killed it: a user, a closed session, or the kernel for lack of memory (dmesg); then run the job again",
    ),
    reasons.RUNNER_FAILED: Remedy(
        CauseKind.UNKNOWN, "read the error, and what dljob run printed; then run the job again"
    ),
    reasons.MACHINE_RESTARTED: Remedy(CauseKind.NODE, "run the job again"),
    reasons.JOURNAL_STALLED: Remedy(
        CauseKind.NODE,
        "make room on that volume (df -h, df -i, dljob delete of old jobs): until then no lost rank is restarted;"
        " stop works",
    ),
    reasons.VOLUME_FULL: Remedy(
        CauseKind.NODE,
        "see what that volume lacks: bytes (df -h), inodes (df -i) or the right to write (findmnt);"
        " dljob delete of old jobs makes room; or set DLJOB_HOME to another one",
    ),
    reasons.MACHINE_PAUSED: Remedy(
        CauseKind.NODE,
        "keep the machine awake while jobs run (systemd-inhibit dljob run ...), or see who pauses it or its processes",
    ),
    reasons.CLOCK_STEPPED: Remedy(
        CauseKind.NODE, "see what sets the machine's clock: timedatectl, chronyc tracking; logs of ranks have its times"
    ),
    reasons.SHUTDOWN_FAILED: Remedy(
        CauseKind.USER_CODE,
        "the job counts as it ended; do what must not fail, such as saving the final model, at the end of run()",
    ),
    reasons.CHECKPOINT_NOT_SAVED: Remedy(
        CauseKind.NODE,
        "make that folder take files: df -h, df -i and the kernel log (dmesg) of its node; the next save tries again",
    ),
    reasons.CHECKPOINT_DAMAGED: Remedy(
        CauseKind.NODE, "check the disk of the checkpoints: dljob checkpoint verify JOB, and the kernel log (dmesg)"
    ),
    reasons.ITEM_SET_ASIDE: Remedy(
        CauseKind.USER_CODE,
        "mend the code that fails on them; DataQueue(...).dead() has the items that were set aside, with their errors",
    ),
    reasons.ITEMS_KEEP_FAILING: Remedy(
        CauseKind.USER_CODE,
        "correct the code: it fails on every item; DataQueue(...).dead() has them, with their errors",
    ),
    reasons.CPU_THROTTLED: Remedy(
        CauseKind.NODE, "raise the quota of that cgroup (cpu.max, a container's limits.cpu), or run fewer threads in it"
    ),
    reasons.MACHINE_BUSY: Remedy(
        CauseKind.NODE,
        "see what else runs on that machine (top), end it, or move the job; fewer loaders, OMP_NUM_THREADS",
    ),
    reasons.MEMORY_EXCEEDED: Remedy(
        CauseKind.MEMORY, "raise resources.memory of the role to what it uses, or see what it keeps from step to step"
    ),
    reasons.MEMORY_GROWS: Remedy(
        CauseKind.MEMORY, "see what it keeps from step to step: losses with their graph, lists, caches without a bound"
    ),
    reasons.SLOW_CALLEE: Remedy(
        CauseKind.UNKNOWN, "see what that role does in its calls (dljob stack), or give it more ranks (dljob advise)"
    ),
    reasons.SLOW_LOADER: Remedy(
        CauseKind.UNKNOWN, "see what its data set does at that line, and its disk; more num_workers, or cheaper samples"
    ),
    reasons.SLOW_PEER: Remedy(
        CauseKind.UNKNOWN, "see what that rank does at that line (dljob stack): its data, its disk, its node"
    ),
    reasons.STRAGGLER: FAULTS["Straggler"],
    "InvalidSpec": Remedy(CauseKind.SPEC, "correct the spec; dljob validate FILE shows all of its problems"),
    "DoesNotFit": Remedy(CauseKind.SPEC, "correct nodeGroups or the roles; dljob plan FILE shows what each rank takes"),
    "ForbiddenPod": Remedy(CauseKind.SPEC, "leave out what the message names, or ask an administrator to allow it"),
    "KubeRayMissing": Remedy(CauseKind.SPEC, "install the KubeRay operator, 1.6 or newer"),
    "KubeRayTooOld": Remedy(CauseKind.SPEC, "upgrade the KubeRay operator to 1.6 or newer"),
    "KubeRaySilent": Remedy(CauseKind.NODE, "see why the KubeRay operator does not act: kubectl logs of its pod"),
    "RayClusterNotFound": Remedy(CauseKind.SPEC, "create the RayCluster, or correct spec.rayClusterRef"),
    "NameTaken": Remedy(CauseKind.SPEC, "rename the job, or delete the object that the message names"),
    **dict.fromkeys(
        ("ImageWithoutDLJob", "PythonVersionMismatch", "RayVersionMismatch", "DLJobVersionMismatch"),
        Remedy(CauseKind.SPEC, "correct the image as the message says, then delete the job and apply it again"),
    ),
    "JobFailed": Remedy(CauseKind.UNKNOWN, "see how PrimeMaster and its launcher ended: dljob logs --master"),
    **dict.fromkeys(
        ("ImagePullBackOff", "ErrImagePull", "InvalidImageName", "ErrImageNeverPull"),
        Remedy(CauseKind.SPEC, "correct the image's name, its registry or its pull secret: kubectl describe pod"),
    ),
    **dict.fromkeys(
        ("CreateContainerConfigError", "ConfigMapNotFound", "SecretNotFound", "FailedMount"),
        Remedy(CauseKind.SPEC, "create the ConfigMap, Secret or claim that the message names; the pods then start"),
    ),
    **dict.fromkeys(
        ("CreationRefused", "FailedCreateHeadPod", "FailedCreateWorkerPod"),
        Remedy(
            CauseKind.SPEC,
            "have it allowed by what the message names (quota, admission rule), or ask for less; it is tried again",
        ),
    ),
    **dict.fromkeys(
        ("InvalidRayClusterSpec", "InvalidRayClusterMetadata"),
        Remedy(CauseKind.SPEC, "correct the spec as the message says; the job then begins anew"),
    ),
    "PodStuck": Remedy(CauseKind.NODE, "see the pod's node; the message has the command that deletes the pod by force"),
    "TokenUnknown": Remedy(CauseKind.SPEC, "let the operator read that token, as the message says"),
    **dict.fromkeys(
        ("SubmissionRefused", "HeadMisbehaves"), Remedy(CauseKind.UNKNOWN, "see the head: kubectl logs of its pod")
    ),
    "Unschedulable": Remedy(
        CauseKind.SPEC, "free machines, add some, or ask for less; the message has what the scheduler says"
    ),
    "HeadLost": Remedy(
        CauseKind.NODE, "see why the head pod ended: kubectl logs --previous and kubectl describe pod of it"
    ),
    "LivenessProbeFailed": Remedy(
        CauseKind.NODE, "give the pod more CPU and memory if its node is busy; kubectl logs --previous says what it did"
    ),
    "StartupProbeFailed": Remedy(
        CauseKind.SPEC,
        "give Ray longer by a startupProbe in the pod's template, or see what it waits for: kubectl logs",
    ),
    "ClusterGone": Remedy(CauseKind.STOPPED, "see who deleted the RayCluster: the API server's audit log"),
    "SubmissionFailed": Remedy(CauseKind.UNKNOWN, "see the head: kubectl logs of its pod"),
    "MasterLost": Remedy(CauseKind.UNKNOWN, "see how PrimeMaster and its launcher ended: dljob logs --master"),
    "ClusterRestartsExhausted": Remedy(CauseKind.NODE, "see why RayClusters were lost: kubectl get events"),
}
"""Reason of a job's phase -> its remedy; others are told by the fault that led to them."""
HEAD_MEMORY = Remedy(CauseKind.MEMORY, "raise head.memory or master.memory")
"""Of a head that the kernel ended for lack of memory."""
POD = Remedy(CauseKind.UNKNOWN, "see the pod that the message names: kubectl describe pod, kubectl logs --previous")
"""Of a reason of the kubelet's that has no remedy of its own, such as CrashLoopBackOff."""


def of_fault(reason: str, first_cause: str, rule: str = "") -> Remedy:
    """Return the remedy for a fault.

    Args:
        reason: why a process ended.
        first_cause: its own words, such as "ValueError: bad (at train.py:9 in main)".
        rule: the rule of evidence that recognized it; empty: none did.
    """
    if "cause unknown, it lost its peer" in first_cause:
        return LOST_PEER
    if reason == "UserError" and "ended with code 0" in first_cause:
        return EARLY_END
    # Behind "it ended" stands the caller of who raised, which is innocent.
    words = first_cause.partition("; it ended ")[0].partition("; at its end, ")[0]
    error, _, before = words.partition("; before that, ")
    # What Python ignored in a `__del__` is a hint; a thread that ended did not do its part.
    place, earlier = _place(error), _place(before) if before.startswith("thread ") else ""
    remedy = RULES.get(rule) or FAULTS.get(reason, FAULTS["Unknown"])
    if rule in RULES:
        return remedy._replace(advice=remedy.advice.replace("{place}", f" at {place}" if place else ""))
    if reason != "UserError":
        return remedy
    if not place and not earlier:
        return remedy._replace(advice=UNNAMED)
    places = f"{place}; look first at {earlier}, which failed before" if place and earlier else place or earlier
    return remedy._replace(advice=f"correct the code at {places}; then run the job again")


def _place(words: str) -> str:
    """Return the place that an error names: that of the exception from which it was raised, where it has one."""
    error, _, cause = words.partition(", while handling ")[0].partition(", caused by ")
    for text in (cause, error):
        if places := [in_parentheses or bare for bare, in_parentheses in _PLACE.findall(text)]:
            return places[-1]
    return ""
