"""The thread host: one Ray actor per rank, for entrypoints that are classes or functions.

User code runs in a thread of its own, beside the threads of control calls, the heartbeat and calls from other roles.
"""

from __future__ import annotations

import faulthandler
import logging
import math
import os
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import ray

from dljob.errors import UsageError
from dljob.linux import descendants, interpreter
from dljob.master.state import causes
from dljob.master.state.actions import RankStart
from dljob.master.state.views import Outcome, Reason
from dljob.runtime.checkpoint import saving
from dljob.runtime.forked_workers.raylet_command import is_forked
from dljob.runtime.process import activities, environment, preload
from dljob.runtime.process.context import current_worker, install
from dljob.runtime.process.guard import EndCode, end
from dljob.runtime.process.logfile import error_file, open_log, redirect_output
from dljob.runtime.process.loop import settle
from dljob.runtime.process.messages import (
    ANSWERS,
    CANCEL,
    CUT,
    Call,
    HoldOrder,
    HostSpec,
    LeaveOrder,
    LoadOrder,
    LoadResult,
    NewestVersion,
    NotRun,
    Reply,
    Serves,
    StartOrder,
    StopOrder,
)
from dljob.runtime.process.outcome import watch_earlier_errors, with_earlier
from dljob.runtime.process.thread_interrupt import AGAIN_S, ASK_S, PATIENCE_S, ThreadInterrupt
from dljob.runtime.process.wire import LARGE
from dljob.runtime.process.worker_context import (
    ProgressCounter,
    Stopping,
    WorkerContext,
    make_log,
    peers_of,
    read_only,
    renew,
    with_device,
)
from dljob.runtime.rpc.call_lines import LargeAnswers, LineServer
from dljob.runtime.rpc.call_lines import address as call_address
from dljob.runtime.rpc.call_trace import WELL_S, CallTraces
from dljob.runtime.rpc.caller_watch import Caller
from dljob.runtime.rpc.client import CallCounts, RpcClient
from dljob.runtime.rpc.kept_answers import SOON_S, KeptAnswers
from dljob.runtime.rpc.own_process import check_process
from dljob.runtime.rpc.server import RpcServer, has_methods
from dljob.runtime.serving.ports import PortTakenError
from dljob.runtime.worker import last_save, numa, rank_settings, torch_group
from dljob.runtime.worker.heartbeat import Steps
from dljob.runtime.worker.host import HEARD_S, TERM_GRACE_S, Host
from dljob.runtime.worker.lifecycle import Lifecycle
from dljob.runtime.worker.serving import HostServing, port_taken
from dljob.runtime.worker.supervise import HELPERS_S, left_words
from dljob.telemetry.wording import counted

log = logging.getLogger(__package__)
DRAIN_S = 5.0
"""Most seconds for callers to take the items of streams that go on elsewhere, before user code is asked to end."""
CLEANUP_S = 1.0
"""Seconds before its deadline at which a function that looks at `stopping`, and does not end, is interrupted."""
ENDED_S = 90.0
"""Seconds for PrimeMaster to say which callers have ended: longer than it waits for an end (`prime.LONGEST_S`)."""
LEFT = Outcome(ok=True, message="left its torch group, as ordered")


class ThreadHost(Host):
    """A host of one rank.

    A rank restarts in a new host, except for restarts in process: then the same process runs its next incarnation.
    """

    def __init__(self, spec: HostSpec) -> None:
        spec = environment.located(spec)
        self._kind = spec.role.accelerator[0] if spec.role.accelerator else ""
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._start: RankStart | None = None
        self._order: StartOrder | None = None
        self._entered: RankStart | None = None
        """The last start, with the devices that this process sees."""
        self._progress = ProgressCounter()
        self._stopping = Stopping()
        self._traces = CallTraces(spec.job, spec.role)
        self._serving = HostServing(spec, ray.util.get_node_ip_address, self._client, self)
        self._callee = RpcServer(spec.role.name, spec.job.code_dir, self._ask_ended, self._serving.why_behind)
        self._lifecycle: Lifecycle | None = None
        self._instance: Any = None
        self._calls: RpcClient | None = None
        self._sizes: dict[str, int] = {}
        self._numbers: dict[str, tuple[int, ...]] = {}
        """Role -> its number of ranks, and which, as told last."""
        self._lines: LineServer | None = None
        self._hold = 0, 0, ""
        """Incarnation and number of the last order about its calls, and why they wait; empty: they are served."""
        self._large = LargeAnswers()
        self._kept_answers = KeptAnswers(self._large)
        self._recall = ThreadInterrupt()
        self._left = 0
        """The highest incarnation that was ordered to leave its torch group, or to stop before it was started."""
        self._earlier: list[str] = []
        """Errors of this process that ended no incarnation, in words."""
        self._earlier_watched = False
        self._parts = 0
        """The highest incarnation that was ordered to leave for good, as its role shrinks."""
        self._done = threading.Event()
        self._report = 0
        self._killed = ""
        self._cores = numa.Cores(spec.role.numa_binding)
        super().__init__(spec)
        # PrimeMaster has looked for a forked worker, whose server has done these imports.
        early = () if is_forked() else preload.modules(spec.role, spec.job.code_dir)
        self._preload = preload.in_background(early)

    # -- orders

    def start_ranks(self, order: StartOrder) -> None:
        """Start the one rank of the order. Repeating an incarnation changes nothing."""
        if len(order.ranks) != 1:
            raise UsageError(f"a thread host starts one rank, got {len(order.ranks)}")
        start = order.ranks[0]
        with self._lock:
            # An order to leave or stop can overtake the order to start: the start is then void.
            if start.incarnation <= self._left:
                return
            if self._start is not None and not self._may_rejoin(start):
                # An order that was repeated may come after its incarnation was replaced.
                if self._start.rank == start.rank and start.incarnation <= self._start.incarnation:
                    return
                raise UsageError(
                    f"{self.actor_name} is {self.spec.role.name}/{self._start.rank}, incarnation "
                    f"{self._start.incarnation}, already; it cannot become rank {start.rank}, {start.incarnation}"
                )
            # From here on it is a first start, or a restart in process whose earlier incarnation has ended.
            self._progress = ProgressCounter(self.counters.slots[0], start.rank, start.incarnation)
            if self._start is not None:
                self._renew()
            self._start, self._order = start, order
            self._callee.trace = self._traces.of(start.rank)
            self._hold_calls(start.incarnation, start.calls_held, start.hold_reason)
            activities.report_to(self.counters.slots[0], start.rank, start.incarnation)
        threading.Thread(target=self._live, args=(order, start), name="user", daemon=True).start()

    def stop_ranks(self, order: StopOrder) -> None:
        """Ask user code to end and wait for the grace; then end the whole process, as a thread cannot be killed."""
        latest = dict(zip(order.ranks, order.incarnations, strict=False))
        with self._lock:
            start, done, callee = self._start, self._done, self._callee
            for number, incarnation in latest.items():
                if incarnation > max(self._left, 0 if start is None else start.incarnation):
                    self._left = incarnation
                    outcome = Outcome(ok=True, message=f"not started, as ordered ({order.reason})")
                    self.reports.add(number, incarnation, os.getpid(), outcome)
                    return
        # A late order is not about a later incarnation.
        if (
            start is None
            or latest.get(start.rank, start.incarnation) < start.incarnation
            or start.rank not in order.ranks
        ):
            return
        if order.leaves:
            callee.finish(order.grace_s)
            order = replace(order, grace_s=TERM_GRACE_S)
        if not self._wind_down(order.reason, order.grace_s, done, callee):
            message = f"did not end within {order.grace_s:g} s of being asked to stop ({order.reason})"
            self._end_reported(start, Outcome(ok=False, reason=Reason.UNKNOWN, message=message), 1, message)

    # -- restart in process: leaving the torch group, and joining the next one

    def leave_rank(self, order: LeaveOrder) -> None:
        """Interrupt user code until it returns, however long that takes: the deadline is PrimeMaster's."""
        with self._lock:
            early = self._start is None or self._start.incarnation < order.incarnation
            # Orders may arrive late: an older one must not void a newer start.
            if order.incarnation > self._left:
                self._left = order.incarnation
                if early:  # leave overtook start, which will be ignored: report the end now
                    self.reports.add(order.rank, order.incarnation, os.getpid(), LEFT)
            current = self._start is not None and self._start.incarnation == order.incarnation
            if not current or self._done.is_set():
                return
            recall, done = self._recall, self._done
            # Under the lock: once the rank ends, the next order may start its next incarnation in this process, which
            # must not be interrupted.
            recall.order()
            if order.parts:
                self._parts = order.incarnation
            # Calls end as lost, not as failed: their callers may send them to the next incarnation.
            self._callee.close(LEFT, cut=True)
            self._stopping.order(f"{'leaves for good' if order.parts else 'restart in process'}: {order.reason}")
        tells = threading.Timer(PATIENCE_S, _dump_stacks)  # a timer, because breaking off may itself hang in C code
        tells.start()
        try:
            self._interrupt_user(recall, done)
        finally:
            tells.cancel()

    def _interrupt_user(self, recall: ThreadInterrupt, done: threading.Event) -> None:
        """Break off collectives and raise in the user's thread, again and again until the incarnation has ended."""
        self._break_off(recall)
        # Most code ends by itself once its collectives fail. The exception comes only after ASK_S, because it can
        # strike between taking a lock and the block that releases it.
        while not done.wait(ASK_S):
            recall.interrupt(PATIENCE_S)
            if done.wait(AGAIN_S):
                break
            self._break_off(recall)

    def _break_off(self, recall: ThreadInterrupt) -> None:
        """Abort the process groups of the incarnation that `recall` belongs to, never those of a later one."""
        with self._lock:
            # The incarnation may have ended, and the next one have begun, while this thread waited for the lock.
            if self._recall is recall and self._order is not None:
                torch_group.abort(self._order.store)

    def _may_rejoin(self, start: RankStart) -> bool:
        """Whether this process may run `start`: a later incarnation of its rank, whose earlier one has ended."""
        old = self._start
        later = old is not None and old.rank == start.rank and old.incarnation < start.incarnation
        return later and self.spec.role.rejoins and self._done.is_set()

    def _renew(self) -> None:
        """Reset the state of the last incarnation; one that failed may have left a process group behind."""
        torch_group.abort(self._order.store if self._order else "")
        self._recall, self._done = ThreadInterrupt(), threading.Event()
        self._callee = RpcServer(self.spec.role.name, self.spec.job.code_dir, self._ask_ended, self._serving.why_behind)
        self._stopping.withdraw()

    def _report_left(self, start: RankStart) -> None:
        """Report that user code has left its group. A process that cannot run a next incarnation ends instead."""
        # Calls that still run may use the old group: the next incarnation begins after them.
        self._callee.wait_idle()
        last_save.close(ok=False)
        lifecycle = self._lifecycle
        # Left before user code ran, or after a complete setup: the next incarnation can run in this process.
        if lifecycle is None or lifecycle.left_over[0]:
            if self._parts == start.incarnation and lifecycle is not None:
                lifecycle.shutdown()
            self._ended(start, LEFT)
        else:
            end(EndCode.CANNOT_GO_ON, "user code is half set up or shut down: the rank cannot restart in this process")

    def terminated(self) -> None:
        """End after a SIGTERM from outside; user code may end its own way, but the outcome says SIGTERM."""
        if self._done.is_set():
            self.reports.wait_acked(self._report, HEARD_S)
            end(0)  # Ray sends SIGTERM, too, when it releases the job, whose console has no line of it
        self._killed = "SIGTERM from outside"
        start = self._start
        if start is None:
            return
        self._wind_down(self._killed, TERM_GRACE_S, self._done, self._callee)
        self._end_reported(start, self._terminated(), EndCode.SIGTERM, self._killed)

    # -- the user's thread

    def _live(self, order: StartOrder, start: RankStart) -> None:
        pid = os.getpid()
        recall = self._recall
        activities.begin_main()
        try:
            outcome = recall.run(lambda: self._live_on(order, start))
        except rank_settings.REFUSED as error:
            outcome = Outcome(ok=False, reason=Reason.USER_ERROR, code=1, message=str(error), fatal=True)
        except PortTakenError as error:
            outcome = port_taken(error)
        except interpreter.InterpreterError as error:
            outcome = interpreter.refused(error)
        except BaseException as error:  # noqa: BLE001 - a rank that cannot even be entered must be reported
            outcome = Outcome(ok=False, reason=Reason.UNKNOWN, code=1, message=f"{type(error).__name__}: {error}")
        if os.getpid() != pid:  # a child that user code forked returned to here: it must report nothing
            os._exit((outcome.code if outcome else 0) or 0)
        # SIGTERM wins over an order to leave: this process will not run another incarnation.
        if recall.ordered and not self._killed:
            self._report_left(start)
            return
        if outcome is None:  # a function that was interrupted because it was asked to stop
            last_save.close(ok=False)
            outcome = Outcome(ok=True, code=0, message=f"interrupted, as ordered ({self._stopping.reason})")
        self._ended(start, self._terminated() if self._killed else outcome)

    def _live_on(self, order: StartOrder, start: RankStart) -> Outcome:
        interpreter.check_worker(self.spec.role)
        lifecycle = self._enter(order, start)
        outcome = lifecycle.live()
        last_save.close(ok=outcome.ok)
        # As of scripts, nothing is said after an order to stop. A child that user code forked may return to here, too.
        if outcome.ok and not outcome.serves and not self._stopping.reason and os.getpid() == self._pid:
            outcome = _end_children(outcome)
        return outcome

    def _enter(self, order: StartOrder, start: RankStart) -> Lifecycle:
        spec = self._serving.resolved(start)
        start = self._entered = environment.keep_devices(self._kind, self._entered, start)
        # The log comes first, so that whatever fails below is written to it. No module of the user is imported before
        # environment, folder and cores are set.
        fd, log = open_log(spec.job, spec.role.name, start)
        self.logs.begin(log, os.lseek(fd, 0, os.SEEK_END) if log else 0)
        redirect_output(fd)
        env = environment.rank_environment(spec, order, start, error_file=error_file(log, start.incarnation))
        env |= self._serving.environment(start)
        environment.apply(env)
        environment.enter_code_dir(spec.job.code_dir)
        self._earlier.clear()
        if not self._earlier_watched:
            self._earlier_watched = True
            watch_earlier_errors(self._earlier.append, spec.job.code_dir)
        self._cores.find((start,), self._kind)
        self._preload.join()  # user code that imports torch while this thread does can abort the process
        rank_settings.apply(rank_settings.settings_of(spec.role, start, self._cores))
        sys.argv = [spec.role.entrypoint[1], *spec.role.args]
        context = self._installed(self._context(spec, order, start, env))
        joins = spec.role.uses_store and spec.role.init_process_group
        self._lifecycle = Lifecycle(
            context,
            spec.role,
            spec.job.code_dir,
            ready=lambda instance: self._ready(start, instance),
            join=(lambda: torch_group.join(spec.role, order, start)) if joins else None,
            leave=torch_group.leave if joins else None,
            recall=self._recall,
            kept_object=self._kept_object(),
        )
        return self._lifecycle

    def _kept_object(self) -> Any:
        """Return the user's object that a restart in process goes on with; None after `shutdown` was called on it."""
        goes_on, user_object = (False, None) if self._lifecycle is None else self._lifecycle.left_over
        return user_object if goes_on else None

    def _installed(self, context: WorkerContext) -> WorkerContext:
        """Install the context; a later incarnation updates the object that user code may still hold."""
        if self._lifecycle is None:
            install(context)
            return context
        known = current_worker()
        renew(known, replace(context, calls=known.calls))
        return known

    def _context(self, spec: HostSpec, order: StartOrder, start: RankStart, env: dict[str, str]) -> WorkerContext:
        job, role = spec.job, spec.role
        return WorkerContext(
            job_name=job.name,
            job_uid=job.uid,
            job_dir=job.dir,
            role=role.name,
            rank=start.rank,
            local_rank=start.local_rank,
            world_size=order.world_size,
            group=start.rank // role.group_size,
            incarnation=start.incarnation,
            restart_reason=start.restart_reason,
            config=read_only(role.config),
            peers=peers_of(job, order),
            devices=dict(start.devices),
            device_index=environment.device_index(self._kind, start, role),
            stopping=self._stopping,
            log=make_log(role.name, start.rank),
            calls=self._client(start.rank, order, start.incarnation),
            report=with_device(self._progress.put, self._progress.note),
            note=self._progress.note,
            env=env,
            attempt=job.attempt,
            saver=lambda: self._saver(order, start),
        )

    def _saver(self, order: StartOrder, start: RankStart) -> Mapping[str, Any]:
        """Return the rank's place in the node's saver, which Ray starts or finds."""
        check_process(self._pid, "checkpoint")
        return saving.place(self.spec, order, start)

    def _ask_ended(self, callers: list[Caller]) -> Future[Any]:
        """Ask PrimeMaster which callers have ended; the answer comes once one has."""
        rank = 0 if self._start is None else self._start.rank
        return self._client(rank).ask("ended_callers", (self.actor_name, callers), ENDED_S)

    def _client(self, rank: int, order: StartOrder | None = None, incarnation: int = 0) -> RpcClient:
        """Return the rank's client of other roles, which a restart in process keeps."""
        with self._lock:
            if self._calls is None:
                trace = self._traces.of(rank)
                self._calls = RpcClient(self.spec.job, f"{self.spec.role.name}/{rank}", trace)
            self._calls.incarnation = max(self._calls.incarnation, incarnation)
            if order is not None:
                # What was told last wins: the order to start may be older.
                self._calls.numbers.update({**dict(order.numbers), **self._numbers})
                self._calls.sizes.update({**dict(order.sizes), **self._sizes})
            return self._calls

    def learn_sizes(self, sizes: Mapping[str, int], numbers: Mapping[str, tuple[int, ...]]) -> None:
        """Have the rank's next calls go to the ranks that there are now."""
        with self._lock:
            self._sizes.update((role, size) for role, size in sizes.items() if role != CUT)
            self._numbers.update(numbers)
            if self._calls is not None:
                self._calls.numbers.update(numbers)
                self._calls.sizes.update(sizes)

    def _ready(self, start: RankStart, instance: Any) -> None:
        self._callee.open(instance)
        # Before it is ready: callers look for a line once.
        if self._lines is None and has_methods(type(instance)):
            try:
                self._lines = LineServer(call_address(self.spec.job.uid, self.actor_name), self._by_line)
            except (OSError, RuntimeError) as error:  # no descriptor or thread is left, or another has its address
                log.warning("%s is called by Ray alone, as no line to it can be opened: %s", self.actor_name, error)
        self._instance = instance
        self._serving.started(start)

    def ready(self, rank: int, incarnation: int) -> None:
        """Report the rank as ready."""
        self.reports.add(rank, incarnation, os.getpid(), None)

    def serves(self, rank: int, incarnation: int, news: Serves) -> None:
        """Report where the rank serves, and whether it gets requests."""
        self.reports.add(rank, incarnation, os.getpid(), None, news)

    def load_weights(self, order: LoadOrder) -> None:
        """Begin a load of weights."""
        self._serving.load(order)

    def hold_calls(self, order: HoldOrder) -> None:
        """Keep the rank's calls waiting, or serve them again."""
        with self._lock:
            self._hold_calls(order.incarnation, order.number, order.reason)

    def _hold_calls(self, incarnation: int, number: int, reason: str) -> None:
        """Obey an order about an incarnation's calls, now or at its start. The caller holds the lock."""
        self._hold = max(self._hold, (incarnation, number, reason))
        incarnation, _, reason = self._hold
        if self._start is not None and self._start.incarnation == incarnation:
            self._callee.hold(reason)

    def weights(self, rank: int, incarnation: int, news: NewestVersion | LoadResult) -> None:
        """Report news about weights."""
        self.reports.add(rank, incarnation, os.getpid(), None, weights=news)
        self._callee.recheck_weights()

    def call_method(self, name: str, args: Sequence[Any]) -> Any:
        """Call a method of the rank's object."""
        return settle(getattr(self._instance, name)(*args))

    def unhealthy(self, rank: int, incarnation: int, outcome: Outcome) -> None:
        """End this process, as a probe of its rank failed: a thread cannot be killed."""
        start = self._start
        if start is not None and (start.rank, start.incarnation) == (rank, incarnation):
            threading.Thread(
                target=self._end_reported, args=(start, outcome, 1, outcome.message), name="dljob-unhealthy"
            ).start()

    def _ended(self, start: RankStart, outcome: Outcome) -> int:
        """Report the end of an incarnation, only the first time. Returns the number of that report."""
        self._serving.ended(start)
        if outcome.ok:
            self._traces.write_out(WELL_S)
        with self._lock:
            if not self._done.is_set():
                full_outcome = self._progress.with_last_step(outcome)
                if not full_outcome.ok:
                    lost_children = causes.child_pids(full_outcome)
                    is_killed, children = lost_children is not None, lost_children or ()
                    clues = self.evidence.clues(os.getpid(), killed=is_killed, children=children)
                    full_outcome = causes.add_clues(with_earlier(full_outcome, self._earlier), clues)
                # Before the report: once PrimeMaster knows of the end, no call may reach this incarnation.
                if not outcome.serves:
                    self._callee.close(outcome)
                    if calls := self._callee.unread_calls():
                        count, names = counted(len(calls), "call"), ", ".join(calls[:8])
                        words = f"ends with {count} under way whose answers nobody reads: {names}"
                        print(f"[dljob] {words}", file=sys.stderr, flush=True)  # noqa: T201 - into the rank's log
                self._report = self.reports.add(start.rank, start.incarnation, os.getpid(), full_outcome)
                self._done.set()
            return self._report

    # -- ends that do not come from user code

    def _wind_down(self, reason: str, grace_s: float, done: threading.Event, callee: RpcServer) -> bool:
        """Ask the user code of one incarnation to end; return whether it was `done` within `grace_s` seconds."""
        deadline = time.monotonic() + grace_s
        # First: what user code ends now may be what its streams need for the item under way.
        callee.drain(min(DRAIN_S, grace_s / 2))
        with self._lock:
            # It may have ended meanwhile, and the next incarnation have begun in this process.
            if self._done is not done:
                return True
            lifecycle = self._lifecycle
            self._stopping.order(reason)
        if lifecycle is not None:
            # In a thread of its own: the hook may hang, and the grace must hold all the same.
            hook = threading.Thread(target=lifecycle.shutdown, name="dljob-shutdown", daemon=True)
            hook.start()
            if lifecycle.in_function:
                self._interrupt_function(deadline, min(CLEANUP_S, grace_s / 4) if self._stopping.watched else grace_s)
            done.wait(max(0.0, deadline - time.monotonic()))
            hook.join(max(0.0, deadline - time.monotonic()))
        return done.wait(max(0.0, deadline - time.monotonic()))

    def _interrupt_function(self, deadline: float, cleanup_s: float) -> None:
        """Raise once in a function that has not ended by itself `cleanup_s` seconds before the deadline.

        So `serve_forever()` ends in order. A function that has never looked at `stopping` is given ASK_S.
        """
        done, recall = self._done, self._recall
        if done.wait(max(ASK_S, deadline - cleanup_s - time.monotonic())):
            return
        while not recall.interrupt(math.inf) and not done.wait(ASK_S) and time.monotonic() < deadline:
            pass

    def _end_reported(self, start: RankStart, outcome: Outcome, code: int, reason: str) -> None:
        seq = self._ended(start, outcome)
        self.reports.wait_acked(seq, HEARD_S)
        end(code, reason)

    def _terminated(self) -> Outcome:
        return Outcome(ok=False, reason=Reason.UNKNOWN, code=int(EndCode.SIGTERM), message=self._killed)

    # -- calls and steps

    def _by_line(self, packed: bytes) -> bytes | Future[bytes]:
        call, payload = Call.unpacked(packed)
        try:
            reply = self._begin_answer(call, payload)
            if not isinstance(reply, Future):
                return self._packed(call, reply)
            later: Future[bytes] = Future()
            reply.add_done_callback(lambda done: later.set_result(self._packed(call, done.result())))
            return later
        except Exception as error:  # noqa: BLE001 - as by Ray: the caller hears of it, and does not wait for ever
            message = f"{self.spec.role.name}/{call.rank}.{call.method} failed in its host: {error!r}"
            return Reply(error_type="CallError", message=message, refused=NotRun.BAD_ARGUMENTS).packed()

    def _packed(self, call: Call, reply: Reply) -> bytes:
        """Pack a reply for a line; one that is too large is kept for the same call by Ray."""
        if len(reply.payload) < LARGE:
            return reply.packed()
        self._large.keep(call.id, reply)
        return Reply(refused=NotRun.BY_RAY).packed()

    def answer(self, call: Call, payload: bytes, common: bytes = b"") -> Reply:
        """Run a call by Ray on the rank's object; one that runs without a thread is answered later."""
        if call.method == ANSWERS:
            return Reply(payload=self._kept_answers.take(call.id))
        reply = self._begin_answer(call, payload, common)
        if not isinstance(reply, Future):
            return reply
        try:
            return reply.result(SOON_S)
        except TimeoutError:
            self._kept_answers.keep(call.id, reply)
            return Reply(refused=NotRun.RUNS)

    def _begin_answer(self, call: Call, payload: bytes, common: bytes = b"") -> Reply | Future[Reply]:
        """Run a call on the rank's object, once `setup` is done."""
        # A caller that has given up does not want it, but an answer to its cancel.
        if (kept_reply := self._large.take(call.id)) is not None and call.method != CANCEL:
            return kept_reply
        start = self._start
        # A caller may still hold the address of an earlier incarnation in the same process.
        mismatch = start is not None and (start.rank, start.incarnation) != (call.rank, call.incarnation)
        callee = self._callee
        if call.traced and callee.trace is not None:
            return callee.trace.serve(call, lambda: callee.begin_answer(call, payload, common, stale=mismatch))
        return callee.begin_answer(call, payload, common, stale=mismatch)

    def take_steps(self) -> Steps:
        """Return the rank's last step, if it is new."""
        start = self._start
        last = self._progress.take() if start is not None else None
        return {start.rank: (start.incarnation, *last)} if start is not None and last else {}

    def restore_steps(self) -> None:
        """Send the last step again."""
        self._progress.restore()

    def call_counts(self) -> Iterable[CallCounts]:
        """Return the counts of the rank's calls."""
        return () if self._calls is None else (self._calls.counts,)

    def busy(self) -> Mapping[int, int]:
        """Return the rank's calls under way, if others have called it."""
        start, calls = self._start, self._callee.under_way
        return {} if start is None or calls is None else {start.rank: calls}

    def served(self) -> Mapping[int, int]:
        """Return the milliseconds in which the rank ran calls, if others have called it."""
        start, spent = self._start, self._callee.served_ms
        return {} if start is None or spent is None else {start.rank: spent}

    def connections(self) -> Mapping[int, int]:
        """Return the open connections to the ranks' ports."""
        return self._serving.connections()

    def rank_pids(self) -> Mapping[int, int]:
        """Return the rank's pid, which is this process's."""
        start = self._start
        return {} if start is None else {start.rank: os.getpid()}


def _end_children(outcome: Outcome) -> Outcome:
    """Kill what a rank that ended well left running, as a script's supervisor does, and say so in its log and end."""
    words = left_words(descendants.end_children_of_user_code(HELPERS_S))
    if words:
        print(f"[dljob] {words}", file=sys.stderr, flush=True)  # noqa: T201 - into the rank's log
    return replace(outcome, message=outcome.message or words)


def _dump_stacks() -> None:
    """Print all stacks to the rank's log: nothing can be raised in a thread that is inside C code or a wait."""
    print(f"[dljob] has not left after {PATIENCE_S:g} s; its threads:", file=sys.stderr, flush=True)  # noqa: T201
    faulthandler.dump_traceback(sys.__stderr__ or 2)
