"""A host's part in serving: ports for its ranks, their readiness by probes, and the endpoints of other roles."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

from dljob.master.state.actions import RankStart
from dljob.master.state.state import CLUSTER_NOT_GIVEN_YET
from dljob.master.state.views import Clue, Outcome, Reason
from dljob.plan.serving import ENDPOINTS, HOST, ProbePlan, endpoints_variable, port_variable
from dljob.plan.tensorflow import TF_CONFIG, checksum, tf_config
from dljob.runtime.process.messages import Call, HostSpec, LoadOrder, LoadResult, NewestVersion, Serves
from dljob.runtime.serving.endpoints import ANSWER_S, AsksMaster, EndpointFeed, one_line
from dljob.runtime.serving.monitor import ProbedRank, ProbeMonitor
from dljob.runtime.serving.ports import HostPorts, PortTakenError
from dljob.runtime.serving.probes import Answer, ProbeTarget, ask
from dljob.spec.references import expanded
from dljob.telemetry.evidence import Source

if TYPE_CHECKING:
    from dljob.runtime.worker.weights import HostWeights


class ServedRanks(Protocol):
    """A host, as far as serving concerns it."""

    def serves(self, rank: int, incarnation: int, news: Serves) -> None:
        """Report where a rank serves, and whether it gets requests."""
        ...

    def weights(self, rank: int, incarnation: int, news: NewestVersion | LoadResult) -> None:
        """Report news about weights."""
        ...

    def call_method(self, name: str, args: Sequence[Any]) -> Any:
        """Call a method of the user's object, and return its result."""
        ...

    def ready(self, rank: int, incarnation: int) -> None:
        """Report a rank as ready, once for an incarnation."""
        ...

    def unhealthy(self, rank: int, incarnation: int, outcome: Outcome) -> None:
        """End a rank whose startup or liveness probe failed."""
        ...


class HostServing:
    """Ports and probes of a host's ranks. `address()` returns the address on which they listen."""

    def __init__(
        self, spec: HostSpec, address: Callable[[], str], line: Callable[[int], AsksMaster], ranks: ServedRanks
    ) -> None:
        self._spec = spec
        self._address = address
        self._line = line
        self._ranks = ranks
        self._ports = HostPorts()
        self._probes = ProbeMonitor(self)
        self._lock = threading.Lock()
        self._feed: EndpointFeed | None = None
        self._targets: dict[int, ProbeTarget] = {}
        self._env: dict[int, Mapping[str, str]] = {}
        self._ready: set[ProbedRank] = set()
        self._weights: HostWeights | None = None
        if spec.role.weights is not None:
            # Not at the top: it imports Ray's object store, which most hosts do without.
            from dljob.runtime.worker.weights import HostWeights

            def find(rank: int) -> Callable[[str], Any]:
                return cast("Any", line(rank)).keeper

            self._weights = HostWeights(spec, spec.role.weights, ranks, find, self.target)

    def resolved(self, start: RankStart) -> HostSpec:
        """Return the host's spec with references to endpoints replaced by those of now."""
        spec, role = self._spec, self._spec.role
        if not spec.job.servers:
            return spec
        lines = self._lines(start)
        return replace(
            spec,
            role=replace(
                role,
                # A class or a module is a name, which holds no reference.
                entrypoint=expanded(role.entrypoint, lines),
                args=expanded(role.args, lines),
                env=expanded(role.env, lines),
                config=expanded(dict(role.config), lines),
            ),
        )

    def environment(self, start: RankStart) -> dict[str, str]:
        """Take a rank's ports; return its variables, those about servers of the job included.

        Raises:
            PortTakenError: A fixed port is in use.
            UnreachableError: PrimeMaster did not tell the endpoints of the job.
        """
        env = self._endpoints(start) if self._spec.job.servers else {}
        role = self._spec.role
        self._targets.pop(start.rank, None)
        if not role.ports:
            return env
        # One EndpointSlice has one number for each port: ranks in pods of their own begin with the same ones.
        seed = f"{self._spec.job.uid}/{role.name}" + ("" if role.service else f"/{start.rank}")
        ports = self._ports.take(start.rank, role.ports, seed, dict(start.ports))
        address = self._address()
        self._targets[start.rank] = ProbeTarget(address, ports)
        return {**env, HOST: address, **{port_variable(name): str(port) for name, port in ports.items()}}

    def meet(self, start: RankStart, stopped: Future[None]) -> dict[str, str] | None:
        """Tell a TensorFlow task's address and wait for those of all others; return TF_CONFIG, or None once stopped.

        Raises:
            UnreachableError: PrimeMaster does not answer.
        """
        role = self._spec.role
        if not role.tf:
            return {}
        addresses = self._addresses(start.rank)
        if addresses:
            self._ranks.serves(
                start.rank, start.incarnation, Serves(addresses, ready=False, cluster=CLUSTER_NOT_GIVEN_YET)
            )
        cluster: Mapping[str, Sequence[str]] = {}
        while not cluster:
            asked = self._line(start.rank).ask("tf_cluster", ({},), ANSWER_S)
            wait((asked, stopped), return_when=FIRST_COMPLETED)
            if stopped.done():
                asked.cancel()
                return None
            cluster = asked.result()
        if addresses:
            cluster_sum = checksum(cluster)
            self._ranks.serves(start.rank, start.incarnation, Serves(addresses, ready=False, cluster=cluster_sum))
        return {TF_CONFIG: tf_config(role, start.rank, cluster)}

    def _endpoints(self, start: RankStart) -> dict[str, str]:
        lines = {endpoints_variable(role): line for role, line in self._lines(start).items()}
        return {ENDPOINTS: str(self._file), **lines}

    def _lines(self, start: RankStart) -> dict[str, str]:
        """Return role -> its endpoints as they are now."""
        with self._lock:
            if self._feed is None:
                # One file for each host, under a name that its successor takes over.
                self._file = Path(self._spec.job.dir) / "endpoints" / f"{self._spec.role.name}-{start.rank}.json"
                self._feed = EndpointFeed(self._line(start.rank), self._file)
        return {role: one_line(rows) for role, rows in self._feed.refresh().items()}

    def started(self, start: RankStart, env: Mapping[str, str] | None = None) -> None:
        """Note that a rank runs: it is ready at once, or once its probes say so. `env` is that of its exec probes."""
        role, probed_rank = self._spec.role, ProbedRank(start.rank, start.incarnation)
        self._env[start.rank] = dict(os.environ if env is None else env)
        if self._weights is not None:
            self._weights.started(start)
        if not role.probed:
            self.serves(probed_rank, ready=True, reason="")
            return
        self._probes.begin(probed_rank, role, self.target(start.rank))

    def target(self, rank: int, **more: str) -> ProbeTarget:
        """Return where a rank that has started is asked; `more` variables are for commands."""
        target = self._targets.get(rank) or ProbeTarget(self._address())
        env = {**self._env.get(rank, {}), **more}
        return ProbeTarget(target.address, target.ports, env, self._spec.job.code_dir or "/")

    def connections(self) -> Mapping[int, int]:
        """Return rank -> open connections to its ports, of a role from which the least busy ranks go first."""
        return self._ports.connections() if self._spec.role.fleet else {}

    def clients(self, rank: int) -> int | None:
        """Return the number of open connections to a rank's ports; None where it has no ports."""
        return self._ports.connections().get(rank)

    def load(self, order: LoadOrder) -> None:
        """Begin a load of weights."""
        if self._weights is not None:
            self._weights.load(order)

    def why_behind(self, call: Call) -> str:
        """Return why a rank's weights are too old for a call, by what its caller has published; empty: they are not."""
        weights = self._weights
        return "" if weights is None else weights.why_behind(call.rank, call.incarnation, call.published)

    def ended(self, start: RankStart) -> None:
        """Stop probing an incarnation of a rank: nothing is reported about it any more."""
        self._probes.end(ProbedRank(start.rank, start.incarnation))

    def post(self, rank: int, request: ProbePlan) -> Answer:
        """Send a rank the request of its drain, and wait for the answer."""
        return asyncio.run(ask(request, self._targets.get(rank) or ProbeTarget(self._address())))

    # -- answers to probes

    def serves(self, probed_rank: ProbedRank, *, ready: bool, reason: str) -> None:
        """Report a rank's readiness, and at the first time the rank as ready."""
        if probed_rank.rank in self._targets or reason:
            # Before `ready`: roles that wait for this one find its address.
            self._ranks.serves(
                probed_rank.rank, probed_rank.incarnation, Serves(self._addresses(probed_rank.rank), ready, reason)
            )
        if ready and probed_rank not in self._ready:
            self._ready.add(probed_rank)
            self._ranks.ready(probed_rank.rank, probed_rank.incarnation)

    def _addresses(self, rank: int) -> tuple[tuple[str, str], ...]:
        """Return (port name, host:port) of a rank."""
        target = self._targets.get(rank)
        if target is None:
            return ()
        host = f"[{target.address}]" if ":" in target.address else target.address
        return tuple((name, f"{host}:{port}") for name, port in target.ports.items())

    def dead(self, probed_rank: ProbedRank, reason: str) -> None:
        """End a rank whose startup or liveness probe failed."""
        outcome = Outcome(ok=False, reason=Reason.UNHEALTHY, message=reason, clues=(Clue(Source.MONITOR, reason),))
        self._ranks.unhealthy(probed_rank.rank, probed_rank.incarnation, outcome)


def port_taken(error: PortTakenError) -> Outcome:
    """Return the end of a rank that could not start for want of a port."""
    return Outcome(
        ok=False, reason=Reason.PORT_TAKEN, code=1, error_type="PortTakenError", message=f"not started: {error}"
    )
