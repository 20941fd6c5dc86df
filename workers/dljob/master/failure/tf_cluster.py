"""A cluster of TensorFlow: the addresses of its tasks, and the restart of a chief that has other ones.

The chief connects to the addresses that it started with, and hands them to the servers of the other tasks. So nobody
but the chief restarts when a task listens elsewhere: on another node, or where its port was taken meanwhile.
"""

from __future__ import annotations

from dljob.master.failure.policy import raise_to_allowed_level
from dljob.master.failure.restart import RestartOrder, begin_restart
from dljob.master.state.events import RankServes
from dljob.master.state.state import CLUSTER_NOT_GIVEN_YET, JobState, RankPhase, RankState
from dljob.master.state.transaction import StateTransaction
from dljob.master.state.views import Level
from dljob.plan.tensorflow import MEMBERS, PORT, checksum
from dljob.telemetry import reasons

_PHASES_WITH_PROCESS = (RankPhase.STARTING, RankPhase.READY)


def cluster_addresses(state: JobState | StateTransaction) -> dict[str, list[str]]:
    """Return task -> the addresses of its ranks; empty until the address of each present process is known."""
    addresses_by_task: dict[str, list[str]] = {}
    for name, facts in state.job.roles.items():
        if facts.plan.tf not in MEMBERS:
            continue
        rank_states = [state.ranks[name, rank] for rank in facts.ranks]
        if any(rank_state.phase not in _PHASES_WITH_PROCESS or not rank_state.cluster for rank_state in rank_states):
            return {}
        addresses_by_task[facts.plan.tf] = [dict(rank_state.addresses)[PORT] for rank_state in rank_states]
    return addresses_by_task


def restart_chief_on_new_address(tx: StateTransaction, event: RankServes, old_state: RankState) -> None:
    """Restart the chief where a task listens at another address than the chief was given."""
    chief = next((name for name, facts in tx.job.roles.items() if facts.plan.tf == "chief"), "")
    if not chief or not tx.phase.active:
        return
    chief_state = tx.ranks[chief, 0]
    current_addresses = cluster_addresses(tx)
    if not current_addresses or chief_state.cluster in ("", CLUSTER_NOT_GIVEN_YET, checksum(current_addresses)):
        return
    old_address = dict(old_state.addresses).get(PORT, "nowhere")
    new_address = dict(event.addresses).get(PORT, "nowhere")
    change = f": {event.role}/{event.rank} listens at {new_address}, not at {old_address}"
    cause = f"{chief}/0 was given other addresses than those that the tasks of its cluster listen at now"
    # It may be another task whose address changed before, while the cluster was incomplete.
    cause += change if new_address != old_address else ""
    level = raise_to_allowed_level(tx.facts(chief), Level.PROCESS, host_lost=False)
    begin_restart(tx, RestartOrder(level, chief, (0,), reasons.RESTARTED_WITH, cause))
