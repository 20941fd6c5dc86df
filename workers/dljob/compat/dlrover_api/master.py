"""`PrimeMasterApi` of DLRover, for code of the job: what it asks is asked of dljob's PrimeMaster."""

from __future__ import annotations

from typing import NoReturn

from dljob.compat.dlrover_api.models import ActorInfo, MasterStatus
from dljob.compat.dlrover_api.notes import refuse, tell_once
from dljob.compat.dlrover_api.payload import role_name
from dljob.compat.dlrover_api.submit import master_status
from dljob.compat.dlrover_api.worker import actors_of, info_of, own_job
from dljob.telemetry.wording import counted

POLL_S = 1.0
"""Seconds between two looks of `wait`."""


class PrimeMasterApi:
    """The job, for its own code."""

    def __init__(self, actor_name: str = "") -> None:
        del actor_name  # a job has one master

    @staticmethod
    def get_status() -> MasterStatus:
        """Return the job's stage."""
        return master_status(own_job().job.status())

    @staticmethod
    def start() -> None:
        """Do nothing: a job whose code runs is started."""
        tell_once("PrimeMasterApi.start", "the job runs")

    @staticmethod
    def restart() -> None:
        """Restart the whole job, the caller included."""
        own_job().job.restart()

    @staticmethod
    def wait() -> None:
        """Wait until the job is to stop."""
        stopping = own_job().stopping
        while not stopping.wait(POLL_S):
            pass

    @staticmethod
    def stop() -> None:
        """End the job."""
        own_job().job.stop()

    @staticmethod
    def shutdown() -> None:
        """End the job."""
        own_job().job.stop()

    @staticmethod
    def get_actor_info(name: str) -> ActorInfo:
        """Return a rank by its actor's name."""
        return info_of(name)

    @staticmethod
    def get_workers_by_role(role: str, optional: bool = False) -> list[ActorInfo]:  # noqa: FBT001, FBT002
        """Return the ranks of a role."""
        return actors_of(role, optional=optional)

    @staticmethod
    def get_all_roles() -> dict[str, list[ActorInfo]]:
        """Return the ranks of all roles, by the name that the user gave."""
        all_ranks = [actors_of(role) for role in own_job().peers]
        return {ranks[0].role: ranks for ranks in all_ranks if ranks}

    @staticmethod
    def restart_actors(actor_names: list[str]) -> None:
        """Restart some ranks."""
        job = own_job().job
        for info in map(info_of, actor_names):
            job.restart(role=role_name(info.role), rank=info.rank)

    @staticmethod
    def report_actor_restarted(name: str) -> None:
        """Do nothing: PrimeMaster sees restarts itself."""
        tell_once("report_actor_restarted", f"PrimeMaster sees that {name} restarted")

    @staticmethod
    def report_execution_result(name: str, result: object) -> None:
        """Do nothing: PrimeMaster sees how ranks end."""
        tell_once("report_execution_result", f"PrimeMaster sees how {name} ends ({result})")

    @staticmethod
    def report_diagnostic_info(name: str, diagnostic: object) -> None:
        """Do nothing: causes are judged by their evidence."""
        tell_once("report_diagnostic_info", f"the cause of {name} is judged by its evidence, not by {diagnostic}")

    @staticmethod
    def register_data_queue(name: str, owner_actor: str, size: int) -> None:
        """Do nothing: a queue needs no owner."""
        tell_once("register_data_queue", f"queue {name} of {counted(size, 'item')} needs no owner ({owner_actor})")

    @staticmethod
    def get_data_queue_owner(name: str) -> NoReturn:
        """Refuse: a queue has no owner.

        Raises:
            UsageError: always.
        """
        refuse("get_data_queue_owner", f"DataQueue({name!r}) reaches the queue from any rank")
