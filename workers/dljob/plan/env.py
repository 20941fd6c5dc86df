"""The environment of a rank as far as plan and start order determine it: torchrun's variables, and dljob's own."""

from __future__ import annotations

from collections.abc import Mapping

from dljob.plan.role import RolePlan
from dljob.spec.variables import RankVariable, StoreVariable, TorchVariable

NCCL_ERRORS = "TORCH_NCCL_ASYNC_ERROR_HANDLING"
SIGNALS = "TORCHELASTIC_SIGNALS_TO_HANDLE"
DEFAULT_SIGNALS = "SIGTERM,SIGINT,SIGHUP,SIGQUIT"
"""torchrun's default of `--signals-to-handle`; ranks inherit the variable from its agent."""
COLLECTIVES = "DLJOB_COLLECTIVES"
"""Variable with backends and groups of collectives as JSON.

It is in the environment of every role of a job that has some, so that processes that user code starts inherit it.
"""


def rank_env(
    role: RolePlan,
    rank: int,
    *,
    job: str,
    uid: str,
    job_dir: str,
    incarnation: int,
    local_rank: int,
    local_world_size: int,
    group_rank: int,
    group_world_size: int,
    world_size: int,
    generation: int,
    store: str = "",
    restart_reason: str = "",
    error_file: str = "",
    inherited: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Return the variables of one rank, to be laid over what it inherits.

    Ranks of an Elastic role get torchrun's variables. Those of an Actor role do not: a library that finds WORLD_SIZE
    waits for peers that never come. `store` is "host:port", or empty; `error_file`: where torch's `@record` writes an
    error, empty for nowhere; `inherited`: the process's present variables.
    """
    of_dljob: dict[RankVariable, str] = {
        "DLJOB_NAME": job,
        "DLJOB_UID": uid,
        "DLJOB_ROLE": role.name,
        "DLJOB_RANK": str(rank),
        "DLJOB_REPLICAS": str(world_size if role.elastic or role.resizes else role.replicas),
        "DLJOB_LOCAL_RANK": str(local_rank),
        "DLJOB_DIR": job_dir,
        "DLJOB_INCARNATION": str(incarnation),
        "DLJOB_RESTART_REASON": restart_reason,
    }
    # dljob's last, so that a role's own variables cannot lie about the rank.
    env: dict[str, str] = {**dict(role.env), **of_dljob}
    if role.elastic:
        # Source: torch 2.15, `torch/distributed/elastic/agent/server/local_elastic_agent.py`, one role an agent.
        of_torch: dict[TorchVariable, str] = {
            "RANK": str(rank),
            "WORLD_SIZE": str(world_size),
            "LOCAL_RANK": "0" if role.virtual_local_rank else str(local_rank),
            "LOCAL_WORLD_SIZE": str(local_world_size),
            "GROUP_RANK": str(group_rank),
            "GROUP_WORLD_SIZE": str(group_world_size),
            "ROLE_RANK": str(rank),
            "ROLE_WORLD_SIZE": str(world_size),
            "TORCHELASTIC_RESTART_COUNT": str(max(0, generation - 1)),  # generations count from 1, restarts from 0
            "TORCHELASTIC_MAX_RESTARTS": str(role.max_restarts),
            "TORCHELASTIC_ERROR_FILE": error_file,
        }
        # `dljob torchrun` passes the user's.
        defaults = {"ROLE_NAME": role.name, "TORCHELASTIC_RUN_ID": uid, SIGNALS: DEFAULT_SIGNALS}
        env = {**defaults, **env, **of_torch}
    if store:
        host, _, port = store.rpartition(":")
        meeting: dict[StoreVariable, str] = {"MASTER_ADDR": host, "MASTER_PORT": port}
        # This tells torch that another process serves the store; ranks with a SubMaster make their own.
        if not role.sub_master:
            meeting["TORCHELASTIC_USE_AGENT_STORE"] = "True"
        env = {**env, **meeting}
    return env | _defaults(role, local_world_size, {**(inherited or {}), **env})


def _defaults(role: RolePlan, local_world_size: int, known: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that torchrun sets unless they are set already."""
    env: dict[str, str] = {}
    if local_world_size > 1 and "OMP_NUM_THREADS" not in known:
        env["OMP_NUM_THREADS"] = "1"  # else each rank would use all cores of the machine
    if role.is_torchrun_script and NCCL_ERRORS not in known:
        env[NCCL_ERRORS] = "1"  # torchrun sets it for its scripts
    return env
