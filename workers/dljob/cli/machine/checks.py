"""Checks of this machine for `dljob doctor`. Pure: each check judges the facts and returns its result."""

from __future__ import annotations

import resource
import shlex
from collections.abc import Callable, Sequence
from importlib.util import find_spec

from dljob.cli.kubernetes.doctor import CheckResult
from dljob.cli.machine.facts import Facts, gather, names
from dljob.cli.machine.gpu_modes import GpuMode
from dljob.runtime.backend.machine import MOST_NODES, SCRATCH_BYTES, SHM, STORE_BYTES
from dljob.telemetry.wording import counted

LOW_BYTES = 1 << 30
"""Free memory or disk below which to warn."""
FEW_PORTS = 1000
"""Ports below which to warn: a raylet takes about ten, a rank two or three, and closed ones rest for a minute."""
FEW_FILES = 4096
"""Open files below which to warn: Ray's GCS and raylets hold a connection per process, and user code opens files."""
FEW_PROCESSES = 2048
"""Processes below which to warn: a process of Ray starts some thirty threads, a rank with torch a few per CPU."""
SHOWN = 6
_MIB = 1 << 20


def check_machine() -> list[CheckResult]:
    """Check this machine, if jobs can run on it at all."""
    if find_spec("ray") is None:
        return [CheckResult("machine", "skip", "not looked at: without Ray no job runs here")]
    return examine(gather())


def examine(facts: Facts) -> list[CheckResult]:
    """Run all checks, in the order of their display."""
    return [check(facts) for check in CHECKS]


def host_name(facts: Facts) -> CheckResult:
    """Check that the host name resolves."""
    host, addresses = facts.addresses.host, facts.addresses.resolved
    fix = f"echo {shlex.quote(f'127.0.1.1 {host}')} | sudo tee -a /etc/hosts"
    # Only a warning: an embedded Ray does not use the name, but libraries of user code do.
    if addresses is None:
        return CheckResult("host name", "warn", f"{host}: the resolver did not answer in time", fix)
    if not addresses:
        return CheckResult(
            "host name", "warn", f"{host} does not resolve; torch and NCCL of user code may want it", fix
        )
    return CheckResult("host name", "ok", f"{host} is {_some(addresses)}")


def localhost(facts: Facts) -> CheckResult:
    """Check that `localhost` is 127.0.0.1 at the first try."""
    addresses = facts.addresses.localhost
    if addresses is None or "127.0.0.1" not in addresses:
        problem = (
            "does not resolve in time" if addresses is None else f"is {_some(addresses) or 'unknown'}, not 127.0.0.1"
        )
        return CheckResult(
            "localhost", "warn", f"localhost {problem}", "echo '127.0.0.1 localhost' | sudo tee -a /etc/hosts"
        )
    # Servers of jobs listen on 127.0.0.1, and not on ::1.
    if addresses[0] != "127.0.0.1":
        message = f"localhost is {addresses[0]} first; a server that listens on 127.0.0.1 alone is not found at once"
        return CheckResult(
            "localhost", "warn", message, "echo 'precedence ::ffff:0:0/96 100' | sudo tee -a /etc/gai.conf"
        )
    return CheckResult("localhost", "ok", f"localhost is {_some(addresses)}")


def address(facts: Facts) -> CheckResult:
    """Report the address for other machines; a job on this machine needs only loopback."""
    outward = facts.addresses.outward
    if not outward:
        return CheckResult("address", "ok", "loopback alone: jobs run here, and no other machine takes part")
    return CheckResult("address", "ok", f"{outward} beside loopback; jobs here listen on loopback alone")


def loopback(facts: Facts) -> CheckResult:
    """Check that processes can connect over loopback."""
    if facts.loopback:
        trouble, fix = facts.loopback
        return CheckResult("loopback", "fail", f"127.0.0.1 cannot be used: {trouble}", fix)
    return CheckResult("loopback", "ok", "a server on 127.0.0.1 is reached")


def limits(facts: Facts) -> CheckResult:
    """Check that no limit of a process is too low for Ray to start."""
    if facts.limits:
        trouble, fix = facts.limits
        return CheckResult("limits", "fail", f"no job can start: {trouble}", fix)
    return CheckResult("limits", "ok", "address space, threads and open files are enough to start")


def ports(facts: Facts) -> CheckResult:
    """Check that there are enough ephemeral ports."""
    if facts.ports is None:
        return CheckResult("ports", "skip", "the kernel does not say which ports it gives out")
    first, last = facts.ports
    message = f"{last - first + 1} ports for connections ({first} to {last})"
    if last - first + 1 < FEW_PORTS:
        fix = "sudo sysctl -w net.ipv4.ip_local_port_range='32768 60999'"
        return CheckResult("ports", "warn", f"{message}: a job with many ranks runs out of them", fix)
    return CheckResult("ports", "ok", message)


def cpus(facts: Facts) -> CheckResult:
    """Check the CPUs; a control group may grant fewer than are counted."""
    cpu_text = counted(facts.cpus, "CPU")
    if facts.quota is not None and facts.quota < facts.cpus:
        # OpenMP and torch count CPUs, not quotas: too many threads are throttled together.
        granted = f"{cpu_text}, of which the control group grants {facts.quota:g}: libraries start threads for all"
        return CheckResult("CPUs", "warn", granted, f"export OMP_NUM_THREADS={max(1, int(facts.quota))}")
    return CheckResult("CPUs", "ok", cpu_text)


def memory(facts: Facts) -> CheckResult:
    """Check the free memory and the source of its limit."""
    if facts.memory is None:
        return CheckResult("memory", "skip", "the free memory is unknown")
    message = f"{_size(facts.memory)} are free {facts.memory_bound}"
    if facts.memory >= LOW_BYTES:
        return CheckResult("memory", "ok", message)
    contained = "container" in facts.memory_bound
    fix = "start the container with more memory: --memory 4g" if contained else "ps -eo rss,pid,args --sort=-rss | head"
    return CheckResult("memory", "warn", f"{message}; a Ray with one raylet takes about {_size(LOW_BYTES)}", fix)


def shared_memory(facts: Facts) -> CheckResult:
    """Check that the object stores of an embedded Ray fit: one for its head, and one for each planned machine."""
    fix = "sudo mount -o remount,size=1g /dev/shm; a container: start it with --shm-size=1g"
    elsewhere = "the stores of others lie on disk, which is slower for large objects"
    if facts.shm is None:
        return CheckResult(str(SHM), "warn", f"there is none: {elsewhere.replace('of others', 'of Ray')}", fix)
    stores = facts.shm // STORE_BYTES - 1  # the head has a store, too
    message = f"{_size(facts.shm)} are free"
    # No plan on an embedded Ray has more machines than that.
    if stores < MOST_NODES:
        fitting = counted(max(0, stores), "machine")
        return CheckResult(str(SHM), "warn", f"{message}: enough for plans of at most {fitting}; {elsewhere}", fix)
    return CheckResult(str(SHM), "ok", message)


def disks(facts: Facts) -> CheckResult:
    """Check that the folders of jobs and of Ray are writable, and have free space."""
    for disk in facts.disks:
        way = "DLJOB_HOME" if disk.use == "jobs" else "TMPDIR"
        elsewhere = f"export {way}=FOLDER, of another disk" if way == "DLJOB_HOME" else "export TMPDIR=FOLDER"
        fix = f"dljob prune; or {elsewhere}" if way == "DLJOB_HOME" else elsewhere
        if not disk.writable:
            # No `prune` here: more space does not make a folder writable.
            return CheckResult("disk", "fail", f"{disk.path}, for {disk.use}, cannot be written to", elsewhere)
        if disk.free < LOW_BYTES:
            message = f"{disk.path}, for {disk.use}, has {_size(disk.free)} free"
            return CheckResult("disk", "fail" if disk.free < SCRATCH_BYTES else "warn", message, fix)
    return CheckResult("disk", "ok", "; ".join(f"{_size(disk.free)} free in {disk.path}" for disk in facts.disks))


def open_files(facts: Facts) -> CheckResult:
    """Check the limit of open files of a process."""
    soft, hard = facts.files
    if soft == resource.RLIM_INFINITY:
        return CheckResult("open files", "ok", "no limit")
    if soft >= FEW_FILES:
        return CheckResult("open files", "ok", f"at most {soft}")
    new_limit = 65536 if hard == resource.RLIM_INFINITY else min(65536, hard)
    raised = f"ulimit -n {new_limit}"
    if new_limit <= soft:
        # The soft limit is at the hard one, which only root can raise.
        raised = "sudo prlimit --pid $$ --nofile=65536:65536; a container: --ulimit nofile=65536"
    return CheckResult(
        "open files", "warn", f"at most {soft} of a process; Ray holds one for each of its processes", raised
    )


def processes(facts: Facts) -> CheckResult:
    """Check the limit of processes and threads of this user or container."""
    if not facts.processes:
        return CheckResult("processes", "ok", "no limit")
    least = min(facts.processes, key=lambda limit: limit.most - limit.used)
    fix = "ulimit -u 65536; a container: start it with --pids-limit=-1"
    if full := next((limit for limit in facts.processes if limit.reached), None):
        return CheckResult("processes", "warn", f"{full}", fix)
    if least.most - least.used < FEW_PROCESSES:
        return CheckResult("processes", "warn", f"{least}; Ray starts hundreds", fix)
    return CheckResult("processes", "ok", f"{least}")


def devices(facts: Facts) -> CheckResult:
    """Check that torch and Ray see the GPUs of the drivers, and say which of these are divided."""
    result = _seen_devices(facts)
    notes, served = [result.message], ", ".join(f"GPU {mode.index}" for mode in facts.modes if mode.mps)
    if served:
        notes.append(f"a server of MPS runs on {served}: kernels of several ranks run there at once")
    fixes = [result.fix] if result.fix else []
    divided = [mode for mode in facts.modes if mode.mig]
    for mode in divided:
        notes.append(_divided(mode))
        first = mode.instances[0].uuid if mode.instances else ""
        switch_off = (
            f"export CUDA_VISIBLE_DEVICES={first}" if first else f"sudo nvidia-smi mig -i {mode.index} -cgi 0 -C"
        )
        fixes.append(f"{switch_off}; or sudo nvidia-smi -i {mode.index} -mig 0")
    state = "warn" if divided and result.state == "ok" else result.state
    return CheckResult("devices", state, "; ".join(notes), "; ".join(fixes))


def _divided(mode: GpuMode) -> str:
    """Say what MIG does to a GPU's ranks."""
    if not mode.instances:
        return f"GPU {mode.index} has MIG on and no instance, so CUDA finds no device"
    named = ", ".join(f"{instance.profile} {instance.uuid}" for instance in mode.instances)
    return (
        f"GPU {mode.index} has MIG on ({named}): CUDA shows a process one instance at most, "
        "Ray counts the GPU, and an accelerator.count below 1 is a share of one instance"
    )


def _seen_devices(facts: Facts) -> CheckResult:
    driver_text = ", ".join(f"{count} {kind}" for kind, count in sorted(facts.devices.items())) or "no GPUs or NPUs"
    gpus, torch, ray = facts.devices.get("GPU", 0), facts.torch, facts.ray
    # Such a variable is the usual reason for different numbers, so it is shown with them.
    hidden = "".join(f"; {name}={value}" for name, value in sorted(facts.hiding.items()))
    for name, view in (("torch", torch), ("Ray", ray)):
        if view is not None and view.trouble:
            fix = f"python -c 'import {name.lower()}'"
            return CheckResult("devices", "warn", f"{driver_text}; {name} cannot be asked: {view.trouble}", fix)
    views = [(name, view.count) for name, view in (("torch", torch), ("Ray", ray)) if view is not None]
    if all(count == gpus for _, count in views):
        counts_text = " and ".join(name for name, _ in views)
        return CheckResult(
            "devices",
            "ok",
            f"{driver_text}{f', and {counts_text} see as many' if gpus and counts_text else ''}{hidden}",
        )
    counts_text = ", ".join(f"{name} sees {count}" for name, count in views)
    message = f"{driver_text}; {counts_text}{hidden}"
    if torch is not None and not torch.count and not torch.build:
        message += "; this torch is built without CUDA and ROCm"
        fix = "pip install --force-reinstall torch, in the build of pytorch.org/get-started for this machine"
        return CheckResult("devices", "warn", message, fix)
    return CheckResult("devices", "warn", message, "nvidia-smi; for AMD rocm-smi")


def leftovers(facts: Facts) -> CheckResult:
    """Report remains of earlier jobs, with a command to remove each kind."""
    remains = facts.leftovers
    problems: list[tuple[str, str]] = []
    if remains.processes:
        sentence = f"{counted(len(remains.processes), 'process', plural='processes')} of a Ray that is over: "
        problems.append(
            (
                sentence + names(remains.processes[:SHOWN]),
                f"kill -9 {' '.join(str(pid) for pid, _ in remains.processes)}",
            )
        )
    if remains.jobs:
        listed = ", ".join(f"{name} ({uid[:8]})" for name, uid in remains.jobs[:SHOWN])
        words = " ".join(uid[:8] for _, uid in remains.jobs)
        problems.append(
            (f"{counted(len(remains.jobs), 'job')} whose runner is gone: {listed}", f"dljob delete {words}")
        )
    for paths, kind in ((remains.folders, "unused folder of Ray"), (remains.sockets, "socket without a listener")):
        if paths:
            plural = "unused folders of Ray" if paths is remains.folders else "sockets without a listener"
            problems.append(
                (f"{counted(len(paths), kind, plural=plural)}: {_some(paths)}", f"rm -r -- {shlex.join(paths)}")
            )
    if not problems:
        return CheckResult("leftovers", "ok", "none of earlier jobs")
    return CheckResult(
        "leftovers", "warn", "; ".join(sentence for sentence, _ in problems), "; ".join(fix for _, fix in problems)
    )


CHECKS: tuple[Callable[[Facts], CheckResult], ...] = (
    host_name,
    localhost,
    address,
    loopback,
    limits,
    ports,
    cpus,
    memory,
    shared_memory,
    disks,
    open_files,
    processes,
    devices,
    leftovers,
)


def _some(words: Sequence[str]) -> str:
    return ", ".join(words[:SHOWN]) + (f" and {len(words) - SHOWN} more" if len(words) > SHOWN else "")


def _size(count: int) -> str:
    return f"{count / (1 << 30):.1f} GiB" if count >= 1 << 30 else f"{count // _MIB} MiB"
