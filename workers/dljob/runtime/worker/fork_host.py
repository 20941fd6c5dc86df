"""The fork host: one Ray actor per role group, for entrypoints that are modules, scripts or commands.

Ranks are processes forked from a clean fork server. Each has its own main thread, signals, true exit code and process
group, and nothing that a rank started outlives it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import ray

from dljob.errors import UsageError
from dljob.linux import full_disks, interpreter
from dljob.master.state import causes
from dljob.master.state.actions import RankStart
from dljob.master.state.views import Outcome, Reason
from dljob.plan.serving import DrainPlan
from dljob.runtime.backend import ray_drivers
from dljob.runtime.checkpoint import saving
from dljob.runtime.process import environment, guard, preload
from dljob.runtime.process.context import SOCKET_ENV
from dljob.runtime.process.guard import EndCode, end
from dljob.runtime.process.logfile import STDIN, error_file, open_log
from dljob.runtime.process.messages import (
    CUT,
    KNOWN_S,
    Call,
    HostSpec,
    LoadOrder,
    LoadResult,
    NewestVersion,
    NotRun,
    Reply,
    Serves,
    StartOrder,
    StopOrder,
)
from dljob.runtime.process.outcome import CRASHES, clip, decode_outcome, from_status, read_end, with_earlier, with_log
from dljob.runtime.process.worker_context import CallTransport, ProgressCounter, peers_of
from dljob.runtime.rpc.call_trace import CallTraces
from dljob.runtime.rpc.client import CallCounts, RpcClient
from dljob.runtime.serving.ports import PortTakenError
from dljob.runtime.worker import numa, rank_settings
from dljob.runtime.worker.heartbeat import Steps
from dljob.runtime.worker.helper import Event, Helper
from dljob.runtime.worker.host import HEARD_S, TERM_GRACE_S, Host
from dljob.runtime.worker.host_socket import HostSocket
from dljob.runtime.worker.serving import HostServing, port_taken
from dljob.runtime.worker.supervise import SERVER_KILLED

log = logging.getLogger(__package__)

UP_S = 360.0
"""Seconds for the fork server to come up, its imports included."""
UNSEEN = Outcome(ok=False, reason=Reason.UNKNOWN, message=SERVER_KILLED)
"""The outcome of a rank whose exit status could not be collected."""
ACTOR_LOST = "ActorLost"
"""The error of a Ray driver that ended after one of its actors was lost."""
CLIENTS_S = 0.2
"""Seconds between two looks at the connections of a server that drains."""
KILLED_S = 10.0
"""Seconds for the kernel to end a killed rank and its descendants."""


@dataclass(slots=True)
class _Rank:
    """A rank's process, from the order to fork it until its end."""

    start: RankStart
    log: str
    log_from: int
    facts: Mapping[str, Any]
    place: Callable[[], Mapping[str, Any]]
    """Returns the rank's place in the node's saver; called when the rank first saves."""
    slot: int
    """The index of the rank's step counter in the host's segment."""
    progress: ProgressCounter
    env: dict[str, str]
    pid: int = 0
    stop_reason: str = ""
    """Why it was asked to end; empty as long as it was not."""
    failed: Outcome | None = None
    """Its end, where a probe decided it."""
    failing: Outcome | None = None
    """The error that ends it, from before it was told to end: its exit handlers run. None: it has not reported any."""
    ended: threading.Event = field(default_factory=threading.Event)
    stopped: Future[None] = field(default_factory=Future)
    """Done once it was told to end, also before it is forked."""
    forking: threading.Lock = field(default_factory=threading.Lock)
    """Held while it is forked unless it was told to end, and while it is told: its SIGTERM cannot precede the fork."""


class ForkHost(Host):
    """A host of the ranks of one role group. A restarted rank is forked again in the same host."""

    def __init__(self, spec: HostSpec) -> None:
        spec = environment.located(spec)
        self._prepare(spec, ray.util.get_node_ip_address)
        early = preload.of(spec.role, spec.job.code_dir)
        env = environment.of_fork_server(spec.role)
        # A rank with a quota is a Ray driver, which sees the devices of its machine; this actor asked for none, so Ray
        # hides them all from it.
        hidden = () if spec.role.quota is None else ray_drivers.hidden(os.environ)
        self._helper = self._fork_server(early, env, hidden)
        guard.at_end(self._helper.kill)
        guard.at_end(self._socket.close)
        super().__init__(spec)

    def _prepare(self, spec: HostSpec, address: Callable[[], str]) -> None:
        """Make what a host has with any backend; `address()` returns the address on which its ranks listen."""
        self._lock = threading.RLock()
        self._start_lock = threading.Lock()
        """Held from the look whether a rank is started already until it is registered."""
        self._ranks: dict[int, _Rank] = {}
        self._barred: dict[int, int] = {}
        """Rank -> the highest incarnation that was ordered to stop before its order to start was carried out."""
        self._calls: dict[int, RpcClient] = {}
        self._sizes: dict[str, int] = {}
        self._numbers: dict[str, tuple[int, ...]] = {}
        """Role -> its number of ranks, and which, as told last: an order to start may be older."""
        self._traces = CallTraces(spec.job, spec.role)
        self._socket = HostSocket(self._facts_of, self._counter_of, self._calls_of, self._saver_of)
        self._python: interpreter.Interpreter | None = None
        self._refused: Outcome | None = None
        """The end of each rank, where the role's interpreter cannot run any."""
        try:
            self._python = interpreter.choose(spec.role)
        except interpreter.InterpreterError as error:
            self._refused = interpreter.refused(error)
        self._library = interpreter.library(spec.job.dir) if self._python else ""
        code_dir = spec.job.code_dir
        self._import_path = [code_dir] if self._python else environment.script_import_path(code_dir)
        python = (self._python.path if self._python else "", self._library)
        self._cores = numa.Cores(spec.role.numa_binding, python, self._import_path)
        self._serving = HostServing(spec, address, self._calls_of, self)
        self._leaving = False
        self._last_report = 0

    def _fork_server(self, early: preload.Preload, env: Mapping[str, str], hidden: tuple[str, ...] = ()) -> Helper:
        self._early = early
        if self._python is None:
            return Helper(early, env, self._on_event, self._helper_gone, hidden, import_path=self._import_path)
        merged_env = {**os.environ, **env}
        env = {**env, **interpreter.environment(self._python, self._library, merged_env)}
        without, path = (*hidden, *interpreter.MISLEADING), self._import_path
        return Helper(
            early, env, self._on_event, self._helper_gone, without, python=self._python.path, import_path=path
        )

    # -- orders

    def start_ranks(self, order: StartOrder) -> None:
        """Fork the ranks of an order; one that runs in this incarnation, or was ordered to stop, is left alone."""
        if not self._helper.up.wait(UP_S):
            words = f"{self.actor_name}: the fork server did not come up within {UP_S:g} s"
            raise UsageError(f"{words}; {self._helper.failure}" if self._helper.failure else words)
        self._cores.find(order.ranks, self._kind)
        fresh = self._imports_changed()
        for start in order.ranks:
            # A new PrimeMaster repeats an order that the lost one gave: both may have waited for the fork server.
            with self._start_lock:
                with self._lock:
                    old = self._ranks.get(start.rank)
                    known = self._known(start.rank)
                if known >= start.incarnation:
                    continue
                # One process per rank: the predecessor has to be gone before its successor takes device, port and log.
                if old is not None and not old.ended.is_set():
                    self._ask_to_end(old, "its next incarnation starts")
                    self._helper.order("kill", start.rank, old.start.incarnation)
                    old.ended.wait(KILLED_S)
                spec, rank, refused = self._register(order, start)
            if not rank.ended.is_set():
                self._fork(order, spec, rank, refused, fresh=fresh)

    def _imports_changed(self) -> bool:
        """Whether the script, edited meanwhile, begins otherwise than with what the fork server has imported."""
        count = self._helper.import_count
        imports = preload.of(self.spec.role, self.spec.job.code_dir).imports if count else ()
        return imports[:count] != self._early.imports[:count]

    def _register(self, order: StartOrder, start: RankStart) -> tuple[HostSpec, _Rank, Outcome | None]:
        """Make a rank known to this host before it is forked; return its spec, and its end where it cannot start."""
        spec = self._serving.resolved(start)
        fd, log = open_log(spec.job, spec.role.name, start)
        env = environment.rank_environment(spec, order, start, error_file=error_file(log, start.incarnation))
        if spec.role.quota is not None:
            # Beneath the rank's own variables: what the role's `env` says about Ray wins.
            env = {**self._for_driver(start, fd if log else 2), **env}
        refused = self._refused
        try:
            env |= self._serving.environment(start)
        except PortTakenError as error:
            refused = port_taken(error)
        env[SOCKET_ENV] = self._socket.path
        # As under torchrun, what a script starts finds the code's folder only where the user's PYTHONPATH names it.
        code_dir = "" if spec.role.elastic else spec.job.code_dir
        variable = env.get("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
        paths = [self._library, environment.python_path(variable, code_dir)]
        env["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
        size = os.lseek(fd, 0, os.SEEK_END) if log else 0
        if log:
            os.close(fd)
            self.logs.begin(log, size)
        with self._lock:
            old = self._ranks.get(start.rank)
            # A restarted rank keeps its slot: the agent and the heartbeat know the rank by it.
            slot = len(self._ranks) if old is None else old.slot
            progress = ProgressCounter(self.counters.slots[slot], start.rank, start.incarnation)
            facts = self._facts(spec, order, start)
            rank = _Rank(start, log, size, facts, lambda: saving.place(spec, order, start), slot, progress, env)
            self._ranks[start.rank] = rank
            if start.incarnation <= self._barred.get(start.rank, 0):  # since the order to start was looked at
                rank.ended.set()
        return spec, rank, refused

    def _fork(self, order: StartOrder, spec: HostSpec, rank: _Rank, refused: Outcome | None, *, fresh: bool) -> None:
        """Have a rank forked; `fresh`: in an interpreter that has imported nothing."""
        start = rank.start
        met = None if refused is not None else self._serving.meet(start, rank.stopped)
        if met is None:
            self._ended(rank, refused or _unforked(rank))
            return
        rank.env |= met
        with rank.forking:
            if not (stopped := rank.stopped.done()):
                self._helper.order(
                    "fork",
                    start.rank,
                    start.incarnation,
                    entrypoint=spec.role.entrypoint,
                    args=environment.arguments(spec.role, start),
                    env=rank.env,
                    log=rank.log,
                    code_dir=spec.job.code_dir or "/",
                    store=order.store if spec.role.comm_backend is not None else "",
                    generation=order.generation,
                    settings=rank_settings.settings_of(spec.role, start, self._cores),
                    fresh=fresh,
                    stdin=self._stdin(spec.job.dir),
                )
        if stopped:
            self._ended(rank, _unforked(rank))

    def _stdin(self, job_dir: str) -> str:
        path = Path(job_dir, STDIN)
        return str(path) if path.is_symlink() else ""

    @property
    def _kind(self) -> str:
        return self.spec.role.accelerator[0] if self.spec.role.accelerator else ""

    def _for_driver(self, start: RankStart, log: int) -> dict[str, str]:
        """Return the variables of a rank that is a Ray driver, after removing what its earlier incarnations left."""
        job, role = self.spec.job, self.spec.role.name
        removed, remaining = ray_drivers.clear(ray_drivers.owner(job, role, start.rank))
        for words, fate in ((removed, "now removed"), (remaining, "still there")):
            if words:
                os.write(
                    log, f"[dljob] left in Ray by an earlier process of {role}/{start.rank}, {fate}: {words}\n".encode()
                )
        owner_name = ray_drivers.owner(job, role, start.rank, start.incarnation)
        return ray_drivers.environment(job, ray.get_runtime_context().gcs_address, owner_name)

    def _lost_first(self, start: RankStart) -> str:
        """Describe the actor of a Ray driver whose loss came first; empty if none was lost, or nobody knows."""
        owner_name = ray_drivers.owner(self.spec.job, self.spec.role.name, start.rank, start.incarnation)
        try:
            return ray_drivers.first_lost(owner_name)
        except Exception as error:  # noqa: BLE001 - it only explains an end, which is told in any case
            log.warning("which actor of %s was lost first is not known: Ray does not answer (%r)", owner_name, error)
            return ""

    def stop_ranks(self, order: StopOrder) -> None:
        """Send SIGTERM to each rank's process group, and SIGKILL to everything of it after the grace."""
        latest = dict(zip(order.ranks, order.incarnations, strict=False))
        with self._lock:
            for number, incarnation in latest.items():
                self._bar(number, incarnation, order.reason)
            present_ranks = [n for n in order.ranks if self._is_present(n, latest.get(n))]
        if order.leaves and self.spec.role.ports:
            # Clients hear of the smaller role at this moment: a server takes their requests until they have.
            with self._lock:
                first = next((self._ranks[n] for n in present_ranks), None)
            if first is not None:
                first.ended.wait(KNOWN_S)
        self._stop(tuple(present_ranks), order.reason, order.grace_s)

    def _is_present(self, number: int, latest: int | None) -> bool:
        """Whether a stop order that may arrive late is about the rank's present incarnation."""
        rank = self._ranks.get(number)
        return rank is not None and (latest is None or rank.start.incarnation <= latest)

    def _known(self, number: int) -> int:
        """Return the highest incarnation of a rank that was started or is barred. The caller holds the lock."""
        rank = self._ranks.get(number)
        return max(self._barred.get(number, 0), 0 if rank is None else rank.start.incarnation)

    def _bar(self, number: int, incarnation: int, reason: str) -> None:
        """Keep an incarnation that was not started yet from it, and report its end. The caller holds the lock.

        The order to start it may wait for the fork server, or may be lost with the PrimeMaster that gave it.
        """
        if incarnation > self._known(number):
            self._barred[number] = incarnation
            outcome = Outcome(ok=True, message=f"not started, as ordered ({reason})")
            self._last_report = self.reports.add(number, incarnation, 0, outcome)

    def _ask_to_end(self, rank: _Rank, reason: str) -> None:
        """Note that a rank is to end: it is not forked any more."""
        with rank.forking:
            # The first reason stays: a second order only repeats what ends the rank.
            rank.stop_reason = rank.stop_reason or reason
            if not rank.stopped.done():
                rank.stopped.set_result(None)

    def _stop(self, numbers: tuple[int, ...], reason: str, grace_s: float) -> None:
        # All are signalled before any is waited for: the grace is for all together.
        with self._lock:
            ranks = [rank for n in numbers if (rank := self._ranks.get(n)) is not None and not rank.ended.is_set()]
        for rank in ranks:
            self._ask_to_end(rank, reason)
        self._socket.stopping([rank.start.rank for rank in ranks], reason)
        # A grace of 0 is for ranks that would not react.
        if self.spec.role.drain is not None and grace_s:
            self._drain(ranks, self.spec.role.drain)
        for rank in ranks:
            self._helper.order("term", rank.start.rank, rank.start.incarnation)
        deadline = time.monotonic() + grace_s
        for rank in ranks:
            if not rank.ended.wait(max(0.0, deadline - time.monotonic())):
                rank.stop_reason = f"{rank.stop_reason}; it did not end within {grace_s:g} s of SIGTERM"
                self._helper.order("kill", rank.start.rank, rank.start.incarnation)
        for rank in ranks:
            rank.ended.wait(KILLED_S)

    def _drain(self, ranks: list[_Rank], drain: DrainPlan) -> None:
        """Let ranks finish their requests, all at once; PrimeMaster has taken them out of the endpoints."""
        threads = [threading.Thread(target=self._drain_one, args=(rank, drain), daemon=True) for rank in ranks]
        for thread in threads:
            thread.start()
        deadline = time.monotonic() + drain.timeout_s
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _drain_one(self, rank: _Rank, drain: DrainPlan) -> None:
        # A server that drains may answer probes as if it were ill.
        self._serving.ended(rank.start)
        if drain.signal and rank.pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(rank.pid, signal.Signals[drain.signal])
        if drain.post is None:
            # With a signal it ends by itself; without one only its connections tell when its requests are done.
            if drain.signal:
                rank.ended.wait(drain.timeout_s)
            else:
                self._await_clients(rank, drain.timeout_s)
            return
        answer = self._serving.post(rank.start.rank, drain.post)
        if not answer.ok:
            log.warning("%s/%d did not drain: %s", self.spec.role.name, rank.start.rank, answer.words)

    def _await_clients(self, rank: _Rank, timeout_s: float) -> None:
        """Wait until nobody has been connected to a rank's ports for `KNOWN_S`, it has ended, or the time is over."""
        last_client = began = time.monotonic()
        while (seconds_left := began + timeout_s - time.monotonic()) > 0 and not rank.ended.wait(
            min(CLIENTS_S, seconds_left)
        ):
            if self._serving.clients(rank.start.rank) != 0:
                last_client = time.monotonic()
            elif time.monotonic() - last_client >= KNOWN_S:
                return

    def terminated(self) -> None:
        """Pass a SIGTERM from outside on to all ranks, and wait for their end."""
        with self._lock:
            numbers = tuple(self._ranks)
        self._leaving = True
        self._stop(numbers, "SIGTERM from outside", TERM_GRACE_S)
        self.reports.wait_acked(self._last_report, HEARD_S)

    # -- events of the fork server

    def _on_event(self, event: Event) -> None:
        with self._lock:
            rank = self._ranks.get(event["rank"])
        # An event of an incarnation that has been replaced meanwhile says nothing about the present one.
        if rank is None or rank.start.incarnation != event["incarnation"]:
            return
        if event["event"] == "started":
            rank.pid = event["pid"]
            self._serving.started(rank.start, rank.env)
        elif event["event"] == "failing":
            if not rank.stop_reason:
                rank.failing = _reported(event["words"])
        else:
            self._ended(rank, self._outcome(rank, event))

    def ready(self, rank: int, incarnation: int) -> None:
        """Report a rank as ready."""
        self.reports.add(rank, incarnation, self._ranks[rank].pid, None)

    def serves(self, rank: int, incarnation: int, news: Serves) -> None:
        """Report where a rank serves, and whether it gets requests."""
        self.reports.add(rank, incarnation, self._ranks[rank].pid, None, news)

    def load_weights(self, order: LoadOrder) -> None:
        """Begin a load of weights."""
        self._serving.load(order)

    def weights(self, rank: int, incarnation: int, news: NewestVersion | LoadResult) -> None:
        """Report news about weights."""
        self.reports.add(rank, incarnation, self._ranks[rank].pid, None, weights=news)

    def call_method(self, name: str, args: Sequence[Any]) -> Any:
        """Refuse: a script has no methods. The spec's rules let none through."""
        del args
        raise UsageError(f"{self.spec.role.name} runs a {self.spec.role.entrypoint[0]}, which has no method {name}")

    def unhealthy(self, rank: int, incarnation: int, outcome: Outcome) -> None:
        """End a rank whose probe failed, in a thread of its own: it may need the grace."""
        with self._lock:
            rank_process = self._ranks[rank]
            if rank_process.start.incarnation != incarnation or rank_process.stop_reason or rank_process.ended.is_set():
                return
            rank_process.failed = outcome
        threading.Thread(target=self._end_unhealthy, args=(rank_process,), name="dljob-unhealthy", daemon=True).start()

    def _end_unhealthy(self, rank: _Rank) -> None:
        self._helper.order("term", rank.start.rank, rank.start.incarnation)
        if not rank.ended.wait(TERM_GRACE_S):
            self._helper.order("kill", rank.start.rank, rank.start.incarnation)

    def _ended(self, rank: _Rank, outcome: Outcome) -> None:
        # Before the report: nothing about this incarnation may follow its end.
        self._serving.ended(rank.start)
        if outcome.ok:
            self._traces.write_out()
            if outcome.message:
                _append(rank.log, f"[dljob] {outcome.message}\n")
        with self._lock:
            if not rank.ended.is_set():
                full_outcome = rank.progress.with_last_step(outcome)
                self._last_report = self.reports.add(rank.start.rank, rank.start.incarnation, rank.pid, full_outcome)
                rank.ended.set()

    def _outcome(self, rank: _Rank, event: Event) -> Outcome:
        """Combine the rank's own report with its true exit code; without a report, the status and its log's tail."""
        bare, words, tail = from_status(event["status"]), event["words"], _tail(rank)
        if rank.failed is not None:
            return replace(rank.failed, code=bare.code, detail=clip(tail))
        if bare.ok:
            return replace(bare, message=event.get("left", ""))
        if rank.failing is not None and rank.stop_reason:
            return rank.failing  # it was told to end, by a signal perhaps, after its own error
        # The words are the rank's, the code the kernel's: a script may exit otherwise after it reported an error.
        reported = decode_outcome(words) if words else None
        if reported is not None and (bare.code or 0) - 128 not in CRASHES:
            bare = replace(reported, code=bare.code, detail=reported.detail or clip(tail))
        else:
            is_command = self.spec.role.entrypoint[0] == "command"
            bare = with_log(bare, tail, self.spec.job.code_dir, command=is_command)
            if is_command and (lack := full_disks.describe_log(rank.log)):
                bare = replace(bare, message=f"{bare.message}; {lack}")
            if bare.code == self._helper.failure_code:
                bare = with_earlier(bare, (self._helper.failure,))
        bare = with_earlier(bare, event.get("earlier", ()))
        # Evidence is collected only for ends that were not ordered.
        if not rank.stop_reason:
            lost_children = causes.child_pids(bare)
            killed = causes.was_killed(bare) or lost_children is not None
            bare = causes.add_clues(bare, self.evidence.clues(rank.pid, killed=killed, children=lost_children or ()))
            if self.spec.role.quota is not None and (lost := self._lost_first(rank.start)):
                # It is no error of the program, which would end the job when it happens twice.
                bare = replace(bare, reason=Reason.UNKNOWN, error_type=ACTOR_LOST, message=f"{bare.message}; {lost}")
        if rank.stop_reason:
            return replace(bare, message=f"{bare.message} after it was told to stop ({rank.stop_reason})")
        return bare

    def _helper_gone(self) -> None:
        """Report the end of all ranks, which died with the fork server, and end this host."""
        with self._lock:
            unended_ranks = [rank for rank in self._ranks.values() if not rank.ended.is_set()]
        for rank in unended_ranks:
            self._ended(rank, UNSEEN)
        # The host ends for another reason, which `terminated` reports.
        if self._leaving:
            return
        self.reports.wait_acked(self._last_report, HEARD_S)
        end(EndCode.HELPER_GONE, "the fork server is gone")

    # -- requests of ranks, through the host socket

    def _facts(self, spec: HostSpec, order: StartOrder, start: RankStart) -> Mapping[str, Any]:
        job, role = spec.job, spec.role
        facts = {
            "job_name": job.name,
            "job_uid": job.uid,
            "job_dir": job.dir,
            "role": role.name,
            "rank": start.rank,
            "local_rank": start.local_rank,
            "world_size": order.world_size,
            "group": start.rank // role.group_size,
            "incarnation": start.incarnation,
            "attempt": job.attempt,
            "restart_reason": start.restart_reason,
            "devices": dict(start.devices),
            "device_index": environment.device_index(self._kind, start, role),
        }
        if order.numbers:
            self._calls_of(start.rank).numbers.update({**dict(order.numbers), **self._numbers})
        numbers = {role: list(ranks) for role, ranks in order.numbers if ranks}
        return {"facts": facts, "config": dict(role.config), "peers": dict(peers_of(job, order)), "numbers": numbers}

    def _facts_of(self, number: int, incarnation: int) -> Mapping[str, Any] | None:
        with self._lock:
            rank = self._ranks.get(number)
            sizes, numbers = dict(self._sizes), dict(self._numbers)
        if rank is None or rank.start.incarnation != incarnation:
            return None
        present = {role: list(ranks) for role, ranks in {**rank.facts["numbers"], **numbers}.items() if ranks}
        return {
            **rank.facts,
            "peers": {**rank.facts["peers"], **sizes},
            "numbers": present,
            "stopping": rank.stop_reason,
        }

    def _counter_of(self, number: int) -> tuple[int, int]:
        with self._lock:
            return self.counters.fd, self._ranks[number].slot

    def _saver_of(self, number: int) -> Mapping[str, Any]:
        with self._lock:
            rank = self._ranks[number]
        return rank.place()

    def _calls_of(self, number: int) -> CallTransport:
        with self._lock:
            # One client per rank, not per connection: a rank's forks share its callees and their descriptors.
            if number not in self._calls:
                name, trace = f"{self.spec.role.name}/{number}", self._traces.of(number)
                self._calls[number] = client = RpcClient(self.spec.job, name, trace)
                client.numbers.update(self._numbers)
                client.sizes.update(self._sizes)
            if number in self._ranks:
                self._calls[number].incarnation = self._ranks[number].start.incarnation
            return self._calls[number]

    def learn_sizes(self, sizes: Mapping[str, int], numbers: Mapping[str, tuple[int, ...]]) -> None:
        """Have the next calls of all ranks go to the ranks that there are now."""
        with self._lock:
            self._sizes.update((role, size) for role, size in sizes.items() if role != CUT)
            self._numbers.update(numbers)
            clients = list(self._calls.values())
        for calls in clients:
            calls.numbers.update(numbers)
            calls.sizes.update(sizes)
        self._socket.tell_sizes(sizes, numbers)

    # -- calls and steps

    def answer(self, call: Call, payload: bytes, common: bytes = b"") -> Reply:
        """Refuse a call: scripts have no methods to call."""
        del payload, common
        kind = self.spec.role.entrypoint[0]
        message = f"{self.spec.role.name}/{call.rank} runs a {kind}: only classes have methods to call"
        return Reply(error_type="CallError", message=message, refused=NotRun.NO_METHOD)

    def take_steps(self) -> Steps:
        """Return the last steps that are new."""
        with self._lock:
            ranks = list(self._ranks.items())
        steps_by_rank = ((n, rank.start.incarnation, rank.progress.take()) for n, rank in ranks)
        return {n: (incarnation, *last) for n, incarnation, last in steps_by_rank if last is not None}

    def call_counts(self) -> Iterable[CallCounts]:
        """Return the counts of the ranks' calls, which all go through this process."""
        with self._lock:
            return [calls.counts for calls in self._calls.values()]

    def connections(self) -> Mapping[int, int]:
        """Return the open connections to the ranks' ports."""
        return self._serving.connections()

    def rank_pids(self) -> Mapping[int, int]:
        """Return the pids of the ranks that run."""
        with self._lock:
            return {n: rank.pid for n, rank in self._ranks.items() if rank.pid and not rank.ended.is_set()}

    def failing_ranks(self) -> Mapping[int, tuple[int, Outcome]]:
        """Return the ranks whose script has failed and whose process has not ended yet."""
        with self._lock:
            return {
                n: (rank.start.incarnation, rank.failing)
                for n, rank in self._ranks.items()
                if rank.failing is not None and not rank.ended.is_set()
            }

    def restore_steps(self) -> None:
        """Send the last steps again."""
        with self._lock:
            for rank in self._ranks.values():
                rank.progress.restore()


def _unforked(rank: _Rank) -> Outcome:
    """Return the end of a rank that was told to end before it was forked."""
    return Outcome(ok=False, reason=Reason.UNKNOWN, message=f"not started: {rank.stop_reason}")


def _reported(words: Mapping[str, Any]) -> Outcome:
    """Return the rank's own report of its end."""
    outcome = decode_outcome(words)
    return replace(outcome, reason=Reason(outcome.reason) if outcome.reason else None)


def _append(log: str, line: str) -> None:
    """Add a line to a rank's log; a log that cannot be written has no reader either."""
    with contextlib.suppress(OSError), Path(log).open("a") as file:
        file.write(line)


def _tail(rank: _Rank) -> str:
    """Return the end of the rank's log, as far as this incarnation wrote it."""
    try:
        return read_end(Path(rank.log), rank.log_from)
    except OSError:
        return ""
