"""What evidence of a failure says about its cause: one ordered table, the first rule that fits decides.

A pattern is a text that must occur, in any case, with `*` for anything between its parts: it is found in one pass, so
no pattern, of whomever, can take long. Each rule has a line of evidence as it was seen, and where it is documented.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Source(StrEnum):
    """Where a piece of evidence comes from."""

    END = "end"
    """What the host said of the end of a process that said nothing itself."""
    ERROR = "error"
    """The exception that user code ended with, as "Type: message"."""
    LOG = "log"
    """The end of the log of a process that ended by itself, without last words."""
    BACKEND = "backend"
    """What Ray says of an actor that is gone."""
    KERNEL = "kernel"
    """Lines of the machine's kernel log about the process, or about a device."""
    CGROUP = "cgroup"
    """What the memory controller counted while the process lived."""
    POD = "pod"
    """What Kubernetes says of the pod."""
    NOTICE = "notice"
    """What somebody announced about the machine."""
    MONITOR = "monitor"
    """What watches the progress of ranks found."""


class Of(StrEnum):
    """Which ends a rule may explain: a stranger's trouble on the same machine explains none."""

    ANY = "any"
    KILLED = "killed"
    """SIGKILL, or a process that vanished."""
    OUTSIDE = "outside"
    """The same, or SIGTERM."""
    DEVICE = "device"
    """The same, a crash, or an error of a device's runtime."""


@dataclass(frozen=True, slots=True)
class CauseRule:
    """One row. `reason` empty: as the host said. `secondary`: it only tells that somebody else is gone."""

    name: str
    source: Source
    patterns: tuple[str, ...]
    reason: str
    example: str
    documented: str
    of: Of = Of.ANY
    secondary: bool = False
    errors: tuple[str, ...] = ()
    """The exceptions that it is about; empty: any."""


NVIDIA_XID = (46, 48, 62, 64, 74, 79, 94, 95, 110, 119, 120, 136, 140, 143)
"""Xids that need the device reset or replaced; those that user code brings about (13, 31, 43, 45, ...) are not here."""

_RUNTIME = (
    *("RuntimeError", "OutOfMemoryError", "AcceleratorError", "SystemError", "OSError"),
    *("DistError", "DistBackendError", "DistNetworkError", "DistStoreError", "NPUError"),
)
_CUDA_OOM = ("cuda out of memory", "cuda error: out of memory", "hip out of memory", "cublas_status_alloc_failed")
_NPU_OOM = ("npu out of memory", "el0004:*failed to allocate memory")
_CUDA_BROKEN = (
    "uncorrectable ecc error",
    "uncorrectable nvlink error",
    "gpu is lost",
    "fallen off the bus",
    "cuda error: hardware stack error",
)
_NPU_BROKEN = (
    "uce error",
    "hbm multi bit ecc error",
    "suspect mem error",
    "hccs link error",
    "hardware execution error",
    "error code is 507053",
    "error code is 507054",
    "error code is 507056",
)
_PEER_GONE = (
    "connection reset by peer",
    "connection closed by peer",
    "connection closed by remote peer",
    "connection refused",
    "broken pipe",
    "remote process exited or there was a network error",
    "ncclremoteerror",
    "watchdog caught collective operation timeout",
    "failed to recv, got 0 bytes",
    "timed out waiting*for*operation to complete",
    "application timeout caused pair closure",
    "socket timeout",
)
_HCCL_PEER_GONE = (
    "ei0002:",
    "ei0006:",
    "getting socket times out",
    "hccl*task timeout",
    "hccl op retry failed",
    "suspect remote error",
)

RULES: tuple[CauseRule, ...] = (
    CauseRule(
        "ordered",
        Source.END,
        ("after it was told to stop", "of being asked to stop"),
        "",
        "ended by SIGTERM after it was told to stop (restart)",
        "dljob: what a host says of a rank that it ended on PrimeMaster's order",
        secondary=True,
    ),
    CauseRule(
        "hang",
        Source.MONITOR,
        ("hang:",),
        "Hang",
        "hang: no step for 31 s, median step 0.4 s",
        "dljob: what watches the progress of ranks",
    ),
    CauseRule(
        "pod-oom",
        Source.POD,
        ("oomkilled",),
        "OOMKilled",
        "OOMKilled: exit code 137",
        "kubernetes.io/docs/tasks/configure-pod-container/assign-memory-resource",
        of=Of.OUTSIDE,
    ),
    CauseRule(
        "pod-image",
        Source.POD,
        ("imagepullbackoff", "errimagepull", "invalidimagename", "errimageneverpull"),
        "ImagePull",
        'ImagePullBackOff: Back-off pulling image "train:v9"',
        "kubernetes.io/docs/concepts/containers/images",
        of=Of.OUTSIDE,
    ),
    CauseRule(
        "pod-preempted",
        Source.POD,
        ("evicted", "preempt", "terminationbykubelet", "deletionbytaintmanager", "evictionbyevictionapi"),
        "Preempted",
        "PreemptionByScheduler: preempting to accommodate a higher priority pod",
        "kubernetes.io/docs/concepts/workloads/pods/disruptions (pod disruption conditions)",
        of=Of.OUTSIDE,
    ),
    CauseRule(
        "notice",
        Source.NOTICE,
        ("",),
        "Preempted",
        "preemption notice: the machine is taken back at 12:04:30",
        "cloud.google.com/compute/docs/instances/preemptible; docs.aws.amazon.com, EC2 Spot interruption notices",
        of=Of.OUTSIDE,
    ),
    CauseRule(
        "ray-preempted",
        Source.BACKEND,
        ("died by preemption",),
        "Preempted",
        "Actor died by preemption.",
        "ray 2.60, ray.exceptions.RayActorError.preempted",
        of=Of.OUTSIDE,
    ),
    CauseRule(
        "kernel-oom",
        Source.KERNEL,
        ("out of memory: killed process", "oom-kill:constraint="),
        "OOMKilled",
        "Memory cgroup out of memory: Killed process 1894 (python) total-vm:67381244kB, anon-rss:33491232kB",
        "docs.kernel.org, mm/oom_kill.c; kernel-internals.org/mm/memcg-oom",
        of=Of.KILLED,
    ),
    CauseRule(
        "cgroup-oom",
        Source.CGROUP,
        ("oom_kill +",),
        "OOMKilled",
        "oom_kill +1, peak 2147483648 of 2147483648 bytes",
        "docs.kernel.org/admin-guide/cgroup-v2.html, memory.events",
        of=Of.KILLED,
    ),
    CauseRule(
        "ray-oom",
        Source.BACKEND,
        ("due to the node running low on memory", "node_out_of_memory", "due to memory pressure (oom)"),
        "OOMKilled",
        "Task was killed due to the node running low on memory.",
        "docs.ray.io/en/latest/ray-core/scheduling/ray-oom-prevention.html; ray-project/ray#28778",
        of=Of.KILLED,
    ),
    CauseRule(
        "xid",
        Source.KERNEL,
        tuple(f"nvrm: xid (*): {number}," for number in NVIDIA_XID),
        "DeviceError",
        "NVRM: Xid (PCI:0000:3b:00): 79, pid=4129, name=python, GPU has fallen off the bus.",
        "docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html; docs.nvidia.com/health-validation",
        of=Of.DEVICE,
    ),
    CauseRule(
        "self-check",
        Source.ERROR,
        ("selfcheckerror:",),
        "DeviceError",
        "SelfCheckError: worker/1: self_check() said no",
        "dljob: Worker.self_check",
    ),
    CauseRule(
        "cuda-oom",
        Source.ERROR,
        _CUDA_OOM,
        "OOMKilled",
        "OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
        "docs.pytorch.org/docs/stable/notes/cuda.html",
        errors=_RUNTIME,
    ),
    CauseRule(
        "npu-oom",
        Source.ERROR,
        _NPU_OOM,
        "OOMKilled",
        "RuntimeError: NPU out of memory. Tried to allocate 52.00 MiB",
        "github.com/vllm-project/vllm-omni/issues/1199; vllm-project/vllm-ascend/issues/1127",
        errors=_RUNTIME,
    ),
    CauseRule(
        "host-oom",
        Source.ERROR,
        (
            "memoryerror:",
            "[errno 12] cannot allocate memory",
            "cannot allocate memory (12)",
            "std::bad_alloc",
            "defaultcpuallocator: can't allocate memory",
            "due to the node running low on memory",
            "bus error*out of shared memory",
        ),
        "OOMKilled",
        "MemoryError: Unable to allocate 74.5 GiB for an array",
        "docs.python.org/3/library/exceptions.html#MemoryError",
        errors=("MemoryError", "_ArrayMemoryError", "BlockingIOError", *_RUNTIME),
    ),
    CauseRule(
        "xla-oom",
        Source.ERROR,
        ("resource_exhausted", "resourceexhaustederror:"),
        "OOMKilled",
        "XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 1073741824 bytes.",
        "docs.jax.dev/en/latest/gpu_memory_allocation.html",
        errors=("XlaRuntimeError", "JaxRuntimeError", "ResourceExhaustedError"),
    ),
    CauseRule(
        "loader-killed",
        Source.ERROR,
        ("dataloader worker*is killed by signal: killed",),
        "Unknown",
        "RuntimeError: DataLoader worker (pid 3214) is killed by signal: Killed.",
        "docs.pytorch.org/docs/stable/data.html: a child of the rank was ended, and it does not know by whom",
        errors=("RuntimeError",),
    ),
    CauseRule(
        "cuda-device",
        Source.ERROR,
        _CUDA_BROKEN,
        "DeviceError",
        "RuntimeError: CUDA error: uncorrectable ECC error encountered",
        "docs.nvidia.com/cuda/cuda-runtime-api (cudaErrorECCUncorrectable); vllm-project/vllm#5222",
        errors=_RUNTIME,
    ),
    CauseRule(
        "npu-device",
        Source.ERROR,
        _NPU_BROKEN,
        "DeviceError",
        "RuntimeError: [Error]: System Direct Memory Access (DMA) hardware execution error.",
        "gitee.com/ascend/pytorch (NPUQueue's errors); CANN aclError 507053, 507054, 507056; vllm-ascend#1993",
        errors=_RUNTIME,
    ),
    CauseRule(
        "call-timeout",
        Source.ERROR,
        ("calltimeouterror:",),
        "",
        "CallTimeoutError: rollout/1.generate: no answer within 1 s, waited 1.0 s for rollout/1",
        "dljob.errors.CallTimeoutError",
        secondary=True,
    ),
    CauseRule(
        "peer-lost",
        Source.ERROR,
        ("peerlosterror:", "distnetworkerror:", "diststoreerror:"),
        "Network",
        "DistNetworkError: The client socket has timed out after 60000ms while trying to connect to (10.0.0.7, 29500).",
        "docs.pytorch.org/docs/stable/distributed.html (torch.distributed.DistError)",
        secondary=True,
    ),
    CauseRule(
        "peer-gone",
        Source.ERROR,
        _PEER_GONE,
        "Network",
        "RuntimeError: [../gloo/transport/tcp/pair.cc:598] Connection closed by peer [10.0.0.7]:28048",
        "github.com/pytorch/pytorch/issues/75512; NVIDIA/nccl/issues/2076",
        secondary=True,
        errors=(
            "ConnectionResetError",
            "ConnectionRefusedError",
            "ConnectionAbortedError",
            "BrokenPipeError",
            *_RUNTIME,
        ),
    ),
    CauseRule(
        "hccl-peer-gone",
        Source.ERROR,
        _HCCL_PEER_GONE,
        "Network",
        "RuntimeError: EI0006: Getting socket times out. Reason: Remote Rank did not send the data in time.",
        "github.com/vllm-project/vllm-ascend/issues/486; Ascend/pytorch/issues/54",
        secondary=True,
        errors=_RUNTIME,
    ),
    CauseRule(
        "nccl-vague",
        Source.ERROR,
        ("unhandled cuda error", "unhandled system error", "internal error"),
        "Unknown",
        "DistBackendError: NCCL error in: NCCLUtils.hpp:317, unhandled cuda error, NCCL version 2.21.5",
        "docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html",
        secondary=True,
        errors=("DistBackendError",),
    ),
    CauseRule(
        "log-device-oom",
        Source.LOG,
        ("outofmemoryerror: cuda out of memory", *(f"error: {p}" for p in (_CUDA_OOM[0], _NPU_OOM[0]))),
        "OOMKilled",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB.",
        "docs.pytorch.org/docs/stable/notes/cuda.html",
    ),
    CauseRule(
        "log-host-oom",
        Source.LOG,
        ("memoryerror", "what():*std::bad_alloc"),
        "OOMKilled",
        "MemoryError",
        "docs.python.org/3/library/exceptions.html#MemoryError",
    ),
    CauseRule(
        "log-device",
        Source.LOG,
        tuple(f"error:*{p}" for p in (*_CUDA_BROKEN, *_NPU_BROKEN)),
        "DeviceError",
        "RuntimeError: CUDA error: uncorrectable ECC error encountered",
        "as cuda-device and npu-device",
    ),
    CauseRule(
        "log-watchdog",
        Source.LOG,
        ("watchdog caught collective operation timeout", "c10::distbackenderror", "error:*ei0006:", "error:*ei0002:"),
        "Network",
        "[Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=808, OpType=ALLREDUCE)",
        "github.com/pytorch/pytorch/issues/118369",
        secondary=True,
    ),
    CauseRule(
        "log-peer-gone",
        Source.LOG,
        tuple(f"error:*{p}" for p in _PEER_GONE),
        "Network",
        "RuntimeError: [pair.cc:598] Connection closed by peer [127.0.0.1]:14004",
        "github.com/pytorch/pytorch/issues/75512",
        secondary=True,
    ),
)
"""What was ordered comes first, then what others saw, then what the process said, then its log; first causes before
what only follows from them."""
