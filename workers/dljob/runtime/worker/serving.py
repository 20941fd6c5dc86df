"""A host's part in serving: ports for its ranks, and their readiness by probes."""

from __future__ import annotations

from collections.abc import Callable

from dljob.master.state.actions import RankStart
from dljob.master.state.views import Outcome, Reason
from dljob.plan.role import RolePlan
from dljob.plan.serving import HOST, port_variable
from dljob.runtime.serving.monitor import ProbedRank, ProbeMonitor
from dljob.runtime.serving.ports import HostPorts, PortTakenError
from dljob.runtime.serving.probes import ProbeTarget


class HostServing:
    """Ports and probes of a host's ranks.

    `address()` returns the address on which they listen; `ready(rank, incarnation)` is called when one is ready.
    """

    def __init__(self, role: RolePlan, uid: str, address: Callable[[], str], ready: Callable[[int, int], None]) -> None:
        self._role = role
        self._uid = uid
        self._address = address
        self._ready = ready
        self._ports = HostPorts()
        self._probes = ProbeMonitor(lambda who: ready(who.rank, who.incarnation))
        self._targets: dict[int, ProbeTarget] = {}

    def environment(self, start: RankStart) -> dict[str, str]:
        """Take a rank's ports; return its variables.

        Raises:
            PortTakenError: A fixed port is in use.
        """
        if not self._role.ports:
            return {}
        seed = f"{self._uid}/{self._role.name}/{start.rank}"
        ports = self._ports.take(start.rank, self._role.ports, seed, {})
        address = self._address()
        self._targets[start.rank] = ProbeTarget(address, ports)
        return {HOST: address, **{port_variable(name): str(port) for name, port in ports.items()}}

    def started(self, rank: int, incarnation: int) -> None:
        """Note that a rank runs: it is ready at once, or once its probe says so."""
        if self._role.readiness is None:
            self._ready(rank, incarnation)
            return
        target = self._targets.get(rank) or ProbeTarget(self._address())
        self._probes.begin(ProbedRank(rank, incarnation), self._role, target)

    def ended(self, rank: int) -> None:
        """Stop probing a rank: it is not reported as ready any more."""
        self._probes.end(rank)


def port_taken(error: PortTakenError) -> Outcome:
    """Return the end of a rank that could not start for want of a port."""
    return Outcome(
        ok=False, reason=Reason.USER_ERROR, code=1, error_type="PortTakenError", message=f"not started: {error}"
    )
