"""Classification of failures by their evidence: one ordered table, in which the first matching rule decides.

A pattern is a text to find, in any case, with `*` for anything between its parts: the search takes one pass, so that no
pattern, not even a user's, can take long. Each rule has an example of its evidence and the place that documents it.
"""

from __future__ import annotations

from dljob.telemetry.evidence import CauseRule, EvidenceScope, Source
from dljob.telemetry.memory_kills import LOW

NVIDIA_XID = (46, 48, 62, 64, 74, 79, 94, 95, 110, 119, 120, 136, 140, 143)
"""Xids that require a reset or replacement of the device; those of user code (13, 31, 43, 45, ...) are left out."""

_RUNTIME = (
    *("RuntimeError", "OutOfMemoryError", "AcceleratorError", "SystemError", "OSError"),
    *("DistError", "DistBackendError", "DistNetworkError", "DistStoreError", "NPUError"),
    # Those of C++ that end a process by SIGABRT: c10::Error, std::runtime_error, gloo::EnforceNotMet.
    *("Error", "runtime_error", "bad_alloc", "EnforceNotMet", "IoException", "TimeoutException"),
)
RUNTIME_ERRORS = frozenset({*_RUNTIME, "SystemExit"})
"""Types of general errors, by which libraries and programs tell what another exception told them."""
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
_TRANSPORTS = ("gloo", "pair.cc", "c10d", "tcpstore", "socketimpl", "nccl", "process group")
_BROKEN = (
    "connection reset by peer",
    "connection refused",
    "broken pipe",
    "socket timeout",
)
_PEER_GONE = (
    # What a transport between ranks says. A RuntimeError of the user's may say the same of a connection of their own.
    *(f"{transport}*{words}" for transport in _TRANSPORTS for words in _BROKEN),
    "connection closed by*peer",
    "remote process exited or there was a network error",
    "ncclremoteerror",
    "watchdog caught collective operation timeout",
    "c10::distbackenderror:",
    "failed to recv, got 0 bytes",
    "timed out waiting*for*operation to complete",
    "application timeout caused pair closure",
    "failed to pass monitoredbarrier",
)
_PARENT_ERRORS = (
    "RuntimeError",
    "CalledProcessError",
    "ProcessExitedException",
    "ProcessRaisedException",
    "BrokenProcessPool",
    "TerminatedWorkerError",
    "ChildFailedError",
)
_CLIENT_ERRORS = (
    *("gaierror", "herror", "TimeoutError", "URLError", "ConnectionError", "MaxRetryError", "NameResolutionError"),
    *("NewConnectionError", "ConnectTimeout", "ConnectError", "ClientConnectorError", "ClientConnectorDNSError"),
    *("EndpointConnectionError", "LocalEntryNotFoundError", "OfflineModeIsEnabled"),
)
"""Errors of Python's and of common HTTP clients."""
CHILD_KILLED = (
    *("is killed by signal: killed", "died with <signals.sigkill: 9>", "terminated with signal sigkill"),
    *(
        "exit status 137",
        "sigkill(-9)",
        "exit code -9",
        "exitcode -9",
        "exitcode=-9",
        "return code -9",
        "returncode=-9",
    ),
)
CHILD_LOST = (
    *("dataloader worker*exited unexpectedly", "a process in the process pool was terminated abruptly"),
    "a worker process managed by the executor was unexpectedly terminated",
)
_UNREACHABLE = (
    "no route to host",
    "network is unreachable",
    "network is down",
    "host is down",
    "host is unreachable",
    "[errno 110] connection timed out",
)
"""The kernel's words where a route or an interface is gone. A closed connection is none: a process has closed it."""
LOST_LOCAL_CONNECTION_RULE = "local-connection"
"""Rule of a connection to an address of the same machine: its other end may be a rank that has failed and still ends.
Otherwise the connection is the user's own affair."""
_HCCL_PEER_GONE = (
    "ei0002:",
    "ei0006:",
    "getting socket times out",
    "hccl*task timeout",
    "hccl op retry failed",
    "suspect remote error",
)

ABORT_LINES: tuple[tuple[str, str], ...] = (
    ("watchdog caught collective operation timeout", "c10::DistBackendError"),
    ("terminate called without an active exception", ""),
    ("pure virtual method called", ""),
    ("double free or corruption", ""),
    ("free(): invalid", ""),
    ("malloc(): ", ""),
    ("munmap_chunk(): ", ""),
    ("corrupted size vs. prev_size", ""),
    ("corrupted double-linked list", ""),
    ("stack smashing detected", ""),
    ("buffer overflow detected", ""),
    ("assertion `", ""),
    ("check failed: ", ""),
    ("panicked at ", ""),
)
"""What C code writes before it aborts (glibc, assert, glog, Rust, torch's watchdog) -> the type of its error, if it has
one. It counts only with SIGABRT."""

HINTS = ("error:", "exception:", "fatal", "out of memory", "no space left on device", "killed", *_BROKEN)
"""Words of a log line that may say why a process ended without a word of its own; they decide nothing."""

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
        "corruption",
        Source.MONITOR,
        ("silent corruption:",),
        "SilentCorruption",
        "silent corruption: rank 3's gradient norm differs from that of its replicas",
        "dljob: what a detector says by `current_worker().suspect`, or an outside witness",
    ),
    CauseRule(
        "probe",
        Source.MONITOR,
        ("liveness probe failed", "startup probe without success"),
        "Unhealthy",
        "liveness probe failed 3 times, last: GET /health at 127.0.0.1:24000: status 500",
        "dljob: what a host's probes say of a rank",
    ),
    CauseRule(
        "pod-oom",
        Source.POD,
        ("oomkilled",),
        "OOMKilled",
        "OOMKilled: exit code 137",
        "kubernetes.io/docs/tasks/configure-pod-container/assign-memory-resource",
        of=EvidenceScope.OUTSIDE,
    ),
    CauseRule(
        "pod-image",
        Source.POD,
        ("imagepullbackoff", "errimagepull", "invalidimagename", "errimageneverpull"),
        "ImagePull",
        'ImagePullBackOff: Back-off pulling image "train:v9"',
        "kubernetes.io/docs/concepts/containers/images",
        of=EvidenceScope.OUTSIDE,
    ),
    CauseRule(
        "pod-preempted",
        Source.POD,
        ("evicted", "preempt", "terminationbykubelet", "deletionbytaintmanager", "evictionbyevictionapi"),
        "Preempted",
        "PreemptionByScheduler: preempting to accommodate a higher priority pod",
        "kubernetes.io/docs/concepts/workloads/pods/disruptions (pod disruption conditions)",
        of=EvidenceScope.OUTSIDE,
    ),
    CauseRule(
        "pod-deleted",
        Source.POD,
        ("deleted: somebody deleted it", "excluded: annotation"),
        "Preempted",
        "Deleted: somebody deleted it",
        "dljob: what the operator says of a pod that somebody deletes, or that it will delete by a user's annotation",
        of=EvidenceScope.OUTSIDE,
    ),
    CauseRule(
        "pod-removed",
        Source.POD,
        ("removed: somebody deleted it by force",),
        "NodeLost",
        "Removed: somebody deleted it by force",
        "dljob: what the operator says of a pod that somebody deletes without a grace period",
        of=EvidenceScope.OUTSIDE,
    ),
    CauseRule(
        "notice",
        Source.NOTICE,
        ("",),
        "Preempted",
        "preemption notice: the machine is taken back at 12:04:30",
        "cloud.google.com/compute/docs/instances/preemptible; docs.aws.amazon.com, EC2 Spot interruption notices",
        of=EvidenceScope.OUTSIDE,
    ),
    CauseRule(
        "ray-preempted",
        Source.BACKEND,
        ("died by preemption",),
        "Preempted",
        "Actor died by preemption.",
        "ray 2.60, ray.exceptions.RayActorError.preempted",
        of=EvidenceScope.OUTSIDE,
    ),
    CauseRule(
        "kernel-oom",
        Source.KERNEL,
        ("out of memory: killed process", "oom-kill:constraint="),
        "OOMKilled",
        "Memory cgroup out of memory: Killed process 1894 (python) total-vm:67381244kB, anon-rss:33491232kB",
        "docs.kernel.org, mm/oom_kill.c; kernel-internals.org/mm/memcg-oom",
        of=EvidenceScope.KILLED,
    ),
    CauseRule(
        "cgroup-oom",
        Source.CGROUP,
        ("oom_kill +",),
        "OOMKilled",
        "oom_kill +1, peak 2147483648 of 2147483648 bytes",
        "docs.kernel.org/admin-guide/cgroup-v2.html, memory.events",
        of=EvidenceScope.KILLED,
    ),
    CauseRule(
        "ray-oom",
        Source.BACKEND,
        (LOW, "due to the node running low on memory", "node_out_of_memory", "due to memory pressure (oom)"),
        "OOMKilled",
        "node low on memory (23.1 of 23.5GB used): Ray's memory monitor killed 3, largest trainer/1 (1.9GB)",
        "docs.ray.io/en/latest/ray-core/scheduling/ray-oom-prevention.html; ray-project/ray#28778",
        of=EvidenceScope.KILLED,
    ),
    CauseRule(
        "raylet-ended",
        Source.NODE,
        ("raylet (pid *)",),
        "NodeLost",
        "the raylet (pid 7242) of cpu2-0 was ended by SIGKILL from outside",
        "dljob: what the parent of an embedded Ray's raylets writes down",
        of=EvidenceScope.OUTSIDE,
    ),
    CauseRule(
        "xid",
        Source.KERNEL,
        tuple(f"nvrm: xid (*): {number}," for number in NVIDIA_XID),
        "DeviceError",
        "NVRM: Xid (PCI:0000:3b:00): 79, pid=4129, name=python, GPU has fallen off the bus.",
        "docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html; docs.nvidia.com/health-validation",
        of=EvidenceScope.DEVICE,
    ),
    CauseRule(
        "self-check",
        Source.ERROR,
        ("selfcheckerror:",),
        "DeviceError",
        "SelfCheckError: worker/1: self_check() returned False",
        "dljob: Worker.self_check",
    ),
    CauseRule(
        "cuda-oom",
        Source.ERROR,
        _CUDA_OOM,
        "UserError",
        "OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
        "docs.pytorch.org/docs/stable/notes/cuda.html",
        errors=_RUNTIME,
    ),
    CauseRule(
        "npu-oom",
        Source.ERROR,
        _NPU_OOM,
        "UserError",
        "RuntimeError: NPU out of memory. Tried to allocate 52.00 MiB",
        "github.com/vllm-project/vllm-omni/issues/1199; vllm-project/vllm-ascend/issues/1127",
        errors=_RUNTIME,
    ),
    CauseRule(
        "ray-task-oom",
        Source.ERROR,
        ("due to the node running low on memory",),
        "OOMKilled",
        "OutOfMemoryError: Task was killed due to the node running low on memory.",
        "docs.ray.io/en/latest/ray-core/scheduling/ray-oom-prevention.html",
        errors=_RUNTIME,
    ),
    CauseRule(
        "host-oom",
        Source.ERROR,
        (
            "memoryerror",
            "[errno 12] cannot allocate memory",
            "cannot allocate memory (12)",
            "std::bad_alloc",
            "defaultcpuallocator: can't allocate memory",
            "bus error*out of shared memory",
        ),
        "UserError",
        "MemoryError: Unable to allocate 74.5 GiB for an array",
        "docs.python.org/3/library/exceptions.html#MemoryError",
        errors=("MemoryError", "_ArrayMemoryError", "BlockingIOError", *_RUNTIME),
    ),
    CauseRule(
        "xla-oom",
        Source.ERROR,
        ("resource_exhausted", "resourceexhaustederror:"),
        "UserError",
        "XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 1073741824 bytes.",
        "docs.jax.dev/en/latest/gpu_memory_allocation.html",
        errors=("XlaRuntimeError", "JaxRuntimeError", "ResourceExhaustedError"),
    ),
    CauseRule(
        "child-killed",
        Source.ERROR,
        CHILD_KILLED,
        "Killed",
        "RuntimeError: DataLoader worker (pid 3214) is killed by signal: Killed.",
        "docs.pytorch.org/docs/stable/data.html: a child of the rank was ended, and it does not know by whom",
        errors=_PARENT_ERRORS,
    ),
    CauseRule(
        "disk-full",
        Source.ERROR,
        ("; no room is left on *; its log says: ", "; no room is left on the volume of its log"),
        "Disk",
        "UnpicklingError: pickle data was truncated (in run); no room is left on /data (ext4, 0 of 20 MiB free); its "
        "log says: OSError: [Errno 28] No space left on device",
        "man7.org/linux/man-pages/man3/errno.3.html (ENOSPC): what could not be written is missing later",
    ),
    CauseRule(
        "child-raised",
        Source.CHILD_ERROR,
        ("",),
        "UserError",
        "RuntimeError: An attempt has been made to start a new process before the current process has finished its "
        "bootstrapping phase",
        "docs.python.org/3/library/multiprocessing.html#the-spawn-and-forkserver-start-methods",
    ),
    CauseRule(
        "child-lost",
        Source.ERROR,
        CHILD_LOST,
        "UserError",
        "RuntimeError: DataLoader worker (pid(s) 3214) exited unexpectedly",
        "docs.python.org/3/library/concurrent.futures.html#concurrent.futures.process.BrokenProcessPool",
        errors=_PARENT_ERRORS,
    ),
    CauseRule(
        "disk",
        Source.ERROR,
        (
            *("[errno 28]", "no space left on device", "os error 28", "[errno 122]", "disk quota exceeded"),
            *("[errno 30]", "read-only file system", "[errno 5] input/output error", "[errno 116]"),
            "pytorchstreamwriter failed writing file",
        ),
        "Disk",
        "OSError: [Errno 28] No space left on device: '/data/model.pt'",
        "man7.org/linux/man-pages/man3/errno.3.html (ENOSPC, EDQUOT, EROFS, EIO, ESTALE)",
        errors=(*_RUNTIME, "CheckpointError", "SafetensorError", "ArrowIOError"),
    ),
    CauseRule(
        "checkpoint-newer",
        Source.ERROR,
        ("is newer than this dljob's",),
        "",
        "CheckpointError: w/0 cannot load step 9 of run 1.1: format 99 is newer than this dljob's, 2",
        "dljob: what a later version wrote",
        errors=("CheckpointError",),
    ),
    CauseRule(
        "checkpoint-unloaded",
        Source.ERROR,
        (" cannot load",),
        "",
        "CheckpointError: w/0 cannot load step 9 of run 1.1: rank-00000.part is torn",
        "dljob: a checkpoint whose files are damaged or missing",
        errors=("CheckpointError",),
    ),
    CauseRule(
        "port-taken",
        Source.ERROR,
        ("address already in use", "eaddrinuse", "failed to bind to address", "porttakenerror:"),
        "PortTaken",
        "OSError: [Errno 98] Address already in use",
        "man7.org/linux/man-pages/man2/bind.2.html (EADDRINUSE)",
        errors=(*_RUNTIME, "PortTakenError"),
    ),
    CauseRule(
        "log-full",
        Source.END,
        ("; no room is left on the volume of its log",),
        "Disk",
        "exited with code 1; no room is left on the volume of its log (0 KiB free): programs that write to it fail",
        "man7.org/linux/man-pages/man3/errno.3.html (ENOSPC): a command that is the rank cannot say why it ended",
    ),
    CauseRule(
        "bus-error",
        Source.END,
        ("ended by sigbus",),
        "Killed",
        "ended by SIGBUS (at train.py:11 in <module>)",
        "man7.org/linux/man-pages/man2/mmap.2.html (SIGBUS): a page beyond the end of its file, or without room on the "
        "disk or in /dev/shm",
    ),
    CauseRule(
        "process-limit",
        Source.ERROR,
        (" allows * processes and threads, * are in use",),
        "ProcessLimit",
        "RuntimeError: can't start new thread (in run); pids.max of /sys/fs/cgroup allows 40 processes and threads, 40 "
        "are in use",
        "docs.kernel.org/admin-guide/cgroup-v2.html (pids.max); man7.org/linux/man-pages/man2/clone.2.html (EAGAIN)",
        errors=(*_RUNTIME, "BlockingIOError"),
    ),
    CauseRule(
        "name-resolution",
        Source.ERROR,
        (
            *("name or service not known", "temporary failure in name resolution", "failed to resolve '"),
            *("no address associated with hostname", "could not resolve host", "gai error:"),
        ),
        "Network",
        "gaierror: [Errno -3] Temporary failure in name resolution",
        "man7.org/linux/man-pages/man3/getaddrinfo.3.html",
        errors=(*_RUNTIME, *_CLIENT_ERRORS),
    ),
    CauseRule(
        "collective-mismatch",
        Source.ERROR,
        ("collective mismatch in your code", "mismatch between collectives", "op.preamble.length <= op.nbytes"),
        "UserError",
        "gloo::EnforceNotMet: [enforce fail at pair.cc:464] op.preamble.length <= op.nbytes. 1024 vs 4. Received data "
        "size doesn't match expected size. Is there a distributed collective mismatch in your code?",
        "docs.pytorch.org/docs/stable/distributed.html#debugging-torch-distributed-applications",
        errors=_RUNTIME,
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
        "driver-mismatch",
        Source.ERROR,
        (
            *("nvidia driver on your system is too old", "driver version is insufficient for cuda runtime version"),
            *("no kernel image is available for execution", "forward compatibility was attempted on non supported hw"),
            *("ptx was compiled with an unsupported toolchain", "driver/library version mismatch"),
        ),
        "DriverMismatch",
        "RuntimeError: The NVIDIA driver on your system is too old (found version 11040).",
        "docs.nvidia.com/deploy/cuda-compatibility; pytorch/pytorch#31981",
        errors=(*_RUNTIME, "NVMLError_LibRmVersionMismatch", "XlaRuntimeError", "JaxRuntimeError"),
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
        "unreachable",
        Source.ERROR,
        _UNREACHABLE,
        "Network",
        "OSError: [Errno 113] No route to host",
        "man7.org/linux/man-pages/man3/errno.3.html: ENETDOWN, ENETUNREACH, EHOSTDOWN, EHOSTUNREACH",
        secondary=True,
        errors=(*_RUNTIME, *_CLIENT_ERRORS),
    ),
    CauseRule(
        "unacknowledged",
        Source.ERROR,
        ("; what it sent to * is not acknowledged for ",),
        "Network",
        "RuntimeError: Timed out waiting 30000ms for recv operation to complete (in run); what it sent to "
        "10.0.0.7:40112 is not acknowledged for 28 s",
        "man7.org/linux/man-pages/man7/tcp.7.html (TCP_INFO): the other machine's kernel does not answer",
        secondary=True,
    ),
    CauseRule(
        "peer-lost",
        Source.ERROR,
        ("peerlosterror:", "collectiveabortederror:", "distnetworkerror:", "diststoreerror:"),
        "Unknown",
        "DistNetworkError: The client socket has timed out after 60000ms while trying to connect to (10.0.0.7, 29500).",
        "docs.pytorch.org/docs/stable/distributed.html (torch.distributed.DistError)",
        secondary=True,
    ),
    CauseRule(
        "peer-gone",
        Source.ERROR,
        _PEER_GONE,
        "Unknown",
        "RuntimeError: [../gloo/transport/tcp/pair.cc:598] Connection closed by peer [10.0.0.7]:28048",
        "github.com/pytorch/pytorch/issues/75512; NVIDIA/nccl/issues/2076",
        secondary=True,
        errors=_RUNTIME,
    ),
    CauseRule(
        "remote-connection",
        Source.CONNECTION,
        ("to another machine",),
        "Unknown",
        "to another machine, 10.0.0.7:443",
        "dljob: the other end of a Python connection that broke; one within the machine is the user's",
        secondary=True,
    ),
    CauseRule(
        LOST_LOCAL_CONNECTION_RULE,
        Source.CONNECTION,
        ("within this machine, at ",),
        "",
        "within this machine, at 127.0.0.1:29611",
        "dljob: the same, to an address of this machine",
    ),
    CauseRule(
        "hccl-peer-gone",
        Source.ERROR,
        _HCCL_PEER_GONE,
        "Unknown",
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
)
"""Order: announcements and orders, then observations by others, then the process's own words; first causes before
their consequences. Lines of its log decide nothing: they are user output."""
