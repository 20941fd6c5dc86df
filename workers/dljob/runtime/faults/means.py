"""How faults reach their victims: on this machine by signals. On Kubernetes `dljob.api.kubernetes.fault_means` does."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from dljob.master.state.views import Clue
from dljob.plan.model import JobPlan
from dljob.plan.targets import MASTER, NODE, OPERATOR, POD_DELETED, QUEUE, Target, chosen, ranked
from dljob.runtime.faults.signals import Signals, processes_of_node
from dljob.spec.loading.faults import FileFault
from dljob.telemetry.evidence import Source

ENDED = ("Succeeded", "Failed", "Stopped")


class FaultTarget(Protocol):
    """The job under test; `dljob.runtime.job.launch.JobConnection` is one."""

    def pids(self) -> dict[str, int]:
        """Return the processes as `master` and `<role>/<rank>` -> pid."""
        ...

    def learned(self, target: str, incarnation: int, clue: Clue) -> None:
        """Report evidence for an end, before or after it."""
        ...


class FaultMeans(Protocol):
    """The way to the processes and machines of one job."""

    def victims(self, target: Target, pids: Mapping[str, int], status: Mapping[str, Any]) -> dict[str, int]:
        """Return name -> pid of the processes to hit; of a node its ranks, and `node`. Empty: the fault waits."""
        ...

    def strike(self, fault: FileFault, target: Target, victims: Mapping[str, int], status: Mapping[str, Any]) -> None:
        """Inject a fault. What lasts goes on in the background."""
        ...

    def close(self) -> None:
        """End faults that last, and undo what outlives them."""
        ...


def ranks_of(target: Target, status: Mapping[str, Any]) -> list[str]:
    """Return the names of a target's ranks that have not ended."""
    ended = {f"{r['role']}/{r['rank']}" for r in status["ranks"] if r["phase"] in ENDED}
    return [name for rank in target.ranks if (name := f"{target.role}/{rank}") not in ended]


def ranks_on(node: str, status: Mapping[str, Any]) -> list[str]:
    """Return the names of the ranks on a node."""
    return [f"{r['role']}/{r['rank']}" for r in status["ranks"] if r["node"] == node]


def node_of(target: Target, status: Mapping[str, Any], nodes: tuple[str, ...]) -> str | None:
    """Return the node that a target means at present."""
    return chosen(target.node, ranked([unit["node"] for unit in status["units"]], nodes))


class LocalMeans:
    """Signals to processes of this machine."""

    def __init__(
        self, job: FaultTarget, plan: JobPlan, hand: Signals | None, raylets: Callable[[], Mapping[str, int]]
    ) -> None:
        """`raylets` returns node id -> pid of its raylet."""
        self._job = job
        self._plan = plan
        self._signals = hand or Signals()
        self._raylets = raylets

    def victims(self, target: Target, pids: Mapping[str, int], status: Mapping[str, Any]) -> dict[str, int]:
        """Return name -> pid of the processes to hit; of a node its ranks, and its raylet as `node`.

        Empty while a target has no process, or is on another machine.
        """
        if target.role == MASTER:
            return {MASTER: pids[MASTER]} if MASTER in pids else {}
        # Jobs of a machine have no operator: nothing is done, as in the simulator.
        if target.role == OPERATOR and OPERATOR not in self._plan.roles:
            return {OPERATOR: 0}
        if target.queue:
            name = f"{QUEUE}/{target.queue}"
            return {name: pids[name]} if name in pids else {}
        if target.role != NODE:
            names = ranks_of(target, status)
            local_names = self._local_ranks(status) & pids.keys()
            # All or nothing: a fault on a part of its target would be another fault.
            return {name: pids[name] for name in names} if local_names.issuperset(names) else {}
        # Raylets are read anew for each fault: nodes come and go while a file is at work.
        raylets = self._raylets()
        node = node_of(target, status, tuple(raylets))
        # The node is on another machine, or gone: the fault waits for one that it can hit.
        if node is None or node not in raylets:
            return {}
        return {NODE: raylets[node], **{name: pids[name] for name in ranks_on(node, status) if name in pids}}

    def _local_ranks(self, status: Mapping[str, Any]) -> set[str]:
        """Return the ranks of this machine: pids of other machines may belong to unrelated processes here."""
        raylets = self._raylets()
        return {f"{r['role']}/{r['rank']}" for r in status["ranks"] if r["node"] in raylets}

    def strike(self, fault: FileFault, target: Target, victims: Mapping[str, int], status: Mapping[str, Any]) -> None:
        """Send the signals of a fault."""
        if target.role == OPERATOR and OPERATOR not in self._plan.roles:
            return
        if fault.fault == "oom":
            self._announce(victims, status)
        if target.pod and fault.fault == "kill":
            self._job.learned(f"node/{self._node_of(victims[NODE])}", 0, Clue(Source.POD, POD_DELETED))
        self._do(fault, victims)

    def _announce(self, victims: Mapping[str, int], status: Mapping[str, Any]) -> None:
        """Report the line that the kernel would write for an OOM kill.

        Without it a rank would have been `killed, cause unknown`: the SIGKILL is real, the line is not (docs/adr/0026).
        """
        for name, pid in victims.items():
            self._job.learned(name, incarnation_of(name, status), oom_clue(name, pid))

    def _do(self, fault: FileFault, victims: Mapping[str, int]) -> None:
        node = victims.get(NODE)
        pids = list(victims.values())
        if node is not None:
            # Killing the raylet ends its processes, as with a lost machine. A freeze must stop each of them.
            pids = [node] if fault.fault == "kill" else processes_of_node(node)
        if fault.fault == "leave" and node is not None:
            self._signals.leave(self._node_of(node), node, fault.seconds or 1)
        elif fault.fault in ("stop", "cut"):
            # Nodes of one machine share its network: silence of a node is all that others see of a cut.
            self._signals.stop(pids, fault.seconds)
        elif fault.fault == "slow":
            self._signals.slow(pids, fault.factor or 2, fault.seconds or 1)
        elif fault.fault in ("kill", "oom"):
            self._signals.kill(pids)
        else:
            raise unknown(fault)

    def _node_of(self, raylet: int) -> str:
        return next(node for node, pid in self._raylets().items() if pid == raylet)

    def close(self) -> None:
        """Resume processes that were stopped for a time."""
        self._signals.close()


def incarnation_of(name: str, status: Mapping[str, Any]) -> int:
    """Return the incarnation of a rank in a status."""
    return next(int(r["incarnation"]) for r in status["ranks"] if f"{r['role']}/{r['rank']}" == name)


def oom_clue(name: str, pid: int) -> Clue:
    """Return the line that the kernel would write for an OOM kill."""
    return Clue(Source.KERNEL, f"Out of memory: Killed process {pid} ({name}), inflicted by a faults file")


def unknown(fault: FileFault) -> ValueError:
    """Return the error for a fault that means do not know.

    Not a kill by default: a fault added to the schema alone would end processes that it should not.
    """
    return ValueError(f"unknown fault {fault.fault!r}")
