"""The table of DLRover's import paths: for each name its home in dljob, or the reason why it has none.

Source: dlrover 0.6.1 and its main branch at 7c3e9648. docs/reference/dlrover.md is made from this table.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

HERE = "dljob.compat.dlrover_api"


class Kind(Enum):
    """How a name is served."""

    WORKS = "works"
    NO_EFFECT = "accepted, no effect"
    REFUSED = "error"


@dataclass(frozen=True, slots=True)
class Name:
    """One name of a module of DLRover."""

    kind: Kind
    home: str = ""
    """Module that has it; empty for a name whose import is refused."""
    reason: str = ""
    """Difference to DLRover, or what to write instead."""
    since: str = "0.6.1"


def _works(home: str, reason: str = "", since: str = "0.6.1") -> Name:
    return Name(Kind.WORKS, f"{HERE}.{home}", reason, since)


def _idle(home: str, reason: str) -> Name:
    return Name(Kind.NO_EFFECT, f"{HERE}.{home}", reason)


def _refused(way: str, home: str = "") -> Name:
    return Name(Kind.REFUSED, home and f"{HERE}.{home}", way)


_SUBMIT = "memory is MB, as DLRover documents it; `.resource(gpu=2)`, `npu=1` and `mem=` count"
_JOB = _works("models", "`submit` and `workloads[...]` as there; a wrong job is a ValueError with the field")
_BUILDER = _works("builder", _SUBMIT)
_RL_TYPE = _works("models")
_RPC = {
    "rpc": _works("calls", "a call runs at most once; a lost one raises PeerLostError instead of being sent again"),
    "export_rpc_method": _works("calls"),
    "export_rpc_instance": _works("calls"),
    "create_rpc_proxy": _works("calls", "`owner`: an actor's name as `actor_info.name` has it, or role/rank"),
    "UserRpcProxy": _works("calls"),
    "RoleActor": _works("calls"),
    "RoleGroup": _works("calls", "role names in any case; while a rank restarts its calls wait"),
    "FutureSequence": _works("calls"),
}
_QUEUE = _works("queues", "`get` waits for at least one item; items survive the owner")
_PATCH = _idle("loader", "a DataLoader's own workers fetch; set num_workers")
_WORKER = {"Worker": _works("worker"), "current_worker": _works("worker")}
_INFO = {"ActorInfo": _works("models"), "JobInfo": _works("models")}
_API = _works("master", "each call with a deadline of a minute")
_ACCELERATOR = _works("models", "NPU, HPU and NEURON too")
_STATUS = {"DiagnosticInfo": _works("models", since="main"), "ExecutionResult": _works("models")}
_STORAGE = _works("flash")
_OWN = "write it with dljob.checkpoint: `save(step, state)`, `load()`; see docs/howto/checkpoints.md"
_BACKEND = "derive from dljob.Worker; see docs/howto/extend.md"

MODULES: dict[str, dict[str, Name]] = {
    "dlrover.python.unified.api.builder": {
        "DLJob": _JOB,
        "DLJobBuilder": _BUILDER,
        "RLJobBuilder": _works("builder", _SUBMIT),
        "RLRoleType": _RL_TYPE,
    },
    "dlrover.python.unified.api.builder.base": {
        "DLJob": _JOB,
        "DLJobBuilder": _BUILDER,
        "RoleBuilder": _works("builder"),
        "ElasticTrainBuilder": _works("builder"),
        "SimpleWorkloadBuilder": _works("builder"),
        "submit": _works("submit"),
    },
    "dlrover.python.unified.api.builder.rl": {
        "RLJob": _works("builder", "any role beside the six"),
        "RLJobBuilder": _works("builder", _SUBMIT),
        "RLRoleType": _RL_TYPE,
    },
    "dlrover.python.unified.api.runtime": {
        **_RPC,
        **_WORKER,
        **_INFO,
        "DataQueue": _QUEUE,
        "RayDataLoaderIter": _idle("loader", "iterates as the DataLoader does; set num_workers"),
        "patch_dataloader_ray": _PATCH,
        "PrimeMasterApi": _API,
    },
    "dlrover.python.unified.api.runtime.worker": {**_WORKER, **_INFO},
    "dlrover.python.unified.api.runtime.queue": {"DataQueue": _QUEUE},
    "dlrover.python.unified.api.runtime.rpc_helper": {**_RPC, "RPC_REGISTRY": _works("calls")},
    "dlrover.python.unified.api.runtime.ray_dataloader_iter": {
        "RayDataLoaderIter": _idle("loader", "iterates as the DataLoader does; set num_workers"),
        "patch_dataloader_ray": _PATCH,
    },
    "dlrover.python.unified.common.enums": {
        "RLRoleType": _RL_TYPE,
        "DLStreamType": _idle("models", "DLRover reads it nowhere but in RLJob's check"),
        "ACCELERATOR_TYPE": _ACCELERATOR,
        "MasterStage": _works("models"),
        "MasterStateBackendType": _idle("models", "the journal is in the job's folder, and in Ray's GCS"),
        "WorkloadEntrypointType": _works("models"),
        "ExecutionResult": _works("models", "0.6.1's enum; main has the dataclass of this name in actor_base"),
        "ExecutionResultType": _works("models", since="main"),
        "DiagnosticInfoType": _works("models", since="main"),
        "DiagnosticResponsibility": _works("models", since="main"),
    },
    "dlrover.python.unified.common.config": {
        "DLConfig": _works("models"),
        "JobConfig": _works("models"),
        "WorkloadGroup": _works("models"),
        "ACCELERATOR_TYPE": _ACCELERATOR,
    },
    "dlrover.python.unified.common.workload_desc": {
        "ResourceDesc": _works("models"),
        "ElasticWorkloadDesc": _works("models"),
        "SimpleWorkloadDesc": _works("models"),
        "CustomWorkloadDesc": _refused("an entrypoint is a class or a function; " + _BACKEND, "models"),
        "WorkloadDesc": _works("models"),
        "BaseWorkloadDesc": _works("models"),
        "NodeGroupFailoverDesc": Name(
            Kind.NO_EFFECT, f"{HERE}.models", "machines are left one by one; see docs/howto/topology.md", "main"
        ),
        "get_entrypoint_type": _works("models"),
    },
    "dlrover.python.unified.common.actor_base": {
        **_INFO,
        **_STATUS,
        "NodeInfo": _works("models"),
        "ActorBase": _refused(_BACKEND),
    },
    "dlrover.python.unified.common.constant": {
        "DLWorkloadEnv": _works("models"),
        "InternalDLWorkloadRole": _works("models"),
        "JOB_OPTIONS_ENV_PREFIX": _works("models"),
    },
    "dlrover.python.unified.controller.api": {
        "PrimeMasterApi": _API,
        "MasterStatus": _works("models"),
        "MASTER_ACTOR_NAME": _refused(
            "a job's master is reached by dljob.job(NAME), in a rank by current_worker().job"
        ),
    },
    "dlrover.python.unified.controller.master": {"PrimeMaster": _works("submit", "`create(config)` and what it gives")},
    "dlrover.python.unified.controller.extension": {
        "ManagerExtension": _refused("write a dljob.NodeRelauncher; see docs/howto/extend.md")
    },
    "dlrover.python.unified.driver.main": {"main": _works("submit"), "submit": _works("submit")},
    "dlrover.python.unified.util.config_util": {
        "args_2_omega_conf": _works("config"),
        "omega_conf_2_args": _works("config"),
        "convert_str_values": _works("config"),
        "read_dict_from_envs": _works("config"),
    },
    "dlrover.python.unified.backend.common.base_worker": {"BaseWorker": _refused(_BACKEND)},
    "dlrover.python.unified.backend": {"ElasticWorker": _refused(_BACKEND)},
    "dlrover.python.common.log": {"default_logger": _works("logs"), "logger": _works("logs")},
    "dlrover.trainer.torch.elastic.sampler": {"ElasticDistributedSampler": _works("sampler")},
    "dlrover.trainer.torch.elastic.dataloader": {
        "ElasticDataLoader": _works("loader", "the batch size stays: nobody tunes it while the job runs")
    },
    "dlrover.trainer.torch.elastic.trainer": {"ElasticTrainer": _works("trainer", "steps are also dljob.progress")},
    "dlrover.trainer.torch.flash_checkpoint.checkpointer": {
        "Checkpointer": _works("flash"),
        "StorageType": _STORAGE,
    },
    "dlrover.trainer.torch.flash_checkpoint.ddp": {
        "DdpCheckpointer": _works("flash", "MEMORY is dljob.checkpoint; DISK also writes the file before it returns"),
        "Checkpointer": _works("flash"),
        "StorageType": _STORAGE,
    },
    "dlrover.trainer.torch.flash_checkpoint.fsdp": {
        "FsdpShardCheckpointer": _refused(_OWN),
        "FsdpFullCheckpointer": _refused(_OWN),
        "FsdpCheckpointer": _refused(_OWN),
        "StorageType": _STORAGE,
    },
    "dlrover.trainer.torch.flash_checkpoint.deepspeed": {
        "DeepSpeedCheckpointer": _refused(_OWN),
        "StorageType": _STORAGE,
    },
    "dlrover.trainer.torch.flash_checkpoint.hf_trainer": {"FlashCkptTrainer": _refused(_OWN)},
    "dlrover.trainer.torch.flash_checkpoint.megatron": {
        "save_checkpoint": _refused(_OWN),
        "load_checkpoint": _refused(_OWN),
        "StorageType": _STORAGE,
    },
    "dlrover.trainer.torch.flash_checkpoint.megatron_dist_ckpt": {
        "save_checkpoint": _refused(_OWN),
        "load_checkpoint": _refused(_OWN),
    },
}
"""Module of DLRover -> its names that are served here."""
CONSTANTS = frozenset({"dlrover.python.unified.common.constant"})
"""Modules of constants alone: where a dlrover is installed, they are its own."""
