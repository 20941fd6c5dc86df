"""The thread host: one Ray actor per rank, for entrypoints that are classes or functions.

User code runs in a thread of its own; control calls, the beacon and calls from other roles go on beside it.
"""

from __future__ import annotations

import faulthandler
import os
import sys
import threading
import time
from dataclasses import replace
from typing import Any

from dljob.errors import UsageError
from dljob.master.state.actions import RankStart
from dljob.master.state.views import Outcome, Reason
from dljob.runtime.checkpoint import saving
from dljob.runtime.process import environment, preload
from dljob.runtime.process.context import current_worker, install
from dljob.runtime.process.guard import EndCode, end
from dljob.runtime.process.logfile import open_log, redirect_output
from dljob.runtime.process.messages import Call, HostSpec, LeaveOrder, Reply, StartOrder, StopOrder
from dljob.runtime.process.thread_interrupt import AGAIN_S, ASK_S, PATIENCE_S, ThreadInterrupt
from dljob.runtime.process.worker_context import (
    ProgressCounter,
    Stopping,
    WorkerContext,
    make_log,
    peers_of,
    read_only,
    renew,
)
from dljob.runtime.rpc.client import RpcClient
from dljob.runtime.rpc.server import RpcServer
from dljob.runtime.worker import last_save, numa, torch_group
from dljob.runtime.worker.heartbeat import Steps
from dljob.runtime.worker.host import HEARD_S, TERM_GRACE_S, Host
from dljob.runtime.worker.lifecycle import Lifecycle

LEFT = Outcome(ok=True, message="left its torch group, as ordered")


class ThreadHost(Host):
    """A host of one rank. A restart of the rank is another host, but for restarts in process of a torch group."""

    def __init__(self, spec: HostSpec) -> None:
        spec = environment.located(spec)
        self._kind = spec.role.accelerator[0] if spec.role.accelerator else ""
        self._lock = threading.Lock()
        self._start: RankStart | None = None
        self._order: StartOrder | None = None
        self._entered: RankStart | None = None
        """The last start, with the devices that this process sees."""
        self._progress = ProgressCounter()
        self._stopping = Stopping()
        self._callee = RpcServer(spec.role.name)
        self._life: Lifecycle | None = None
        self._recall = ThreadInterrupt()
        self._left = 0
        """The last incarnation that was told to leave."""
        self._parts = 0
        """The last incarnation that was told that its role is to have it no more."""
        self._done = threading.Event()
        self._report = 0
        self._killed = ""
        self._cores = numa.Cores(spec.role.numa_binding)
        super().__init__(spec)
        self._preload = preload.in_background(preload.modules(spec.role, spec.job.code_dir))

    # -- orders

    def start_ranks(self, order: StartOrder) -> None:
        """Start the one rank; the same incarnation again changes nothing."""
        if len(order.ranks) != 1:
            raise UsageError(f"a thread host starts one rank, got {len(order.ranks)}")
        start = order.ranks[0]
        with self._lock:
            if start.incarnation <= self._left:
                return
            if self._start is not None and not self._may_rejoin(start):
                if (self._start.rank, self._start.incarnation) == (start.rank, start.incarnation):
                    return
                raise UsageError(
                    f"{self.actor_name} is {self.spec.role.name}/{self._start.rank}, incarnation "
                    f"{self._start.incarnation}, already; it cannot become rank {start.rank}, {start.incarnation}"
                )
            self._progress = ProgressCounter(self.counters.slots[0], start.rank, start.incarnation)
            if self._start is not None:
                self._renew()
            self._start, self._order = start, order
        threading.Thread(target=self._live, args=(order, start), name="user", daemon=True).start()

    def stop_ranks(self, order: StopOrder) -> None:
        """Ask user code to end, wait for the grace, then end the process around it."""
        start = self._start
        if start is None or start.rank not in order.ranks:
            return
        if not self._wind_down(order.reason, order.grace_s):
            message = f"did not end within {order.grace_s:g} s of being asked to stop ({order.reason})"
            self._end_reported(start, Outcome(ok=False, reason=Reason.UNKNOWN, message=message), 1, message)

    # -- leaving the group, and meeting again

    def leave_rank(self, order: LeaveOrder) -> None:
        """Take the rank's thread back from user code, however often it takes; the core has a deadline for it."""
        with self._lock:
            early = self._start is None or self._start.incarnation < order.incarnation
            if order.incarnation > self._left:
                self._left = order.incarnation
                if early:  # the order to start it comes later, or never, and is not obeyed
                    self.reports.add(order.rank, order.incarnation, os.getpid(), LEFT)
            current = self._start is not None and self._start.incarnation == order.incarnation
            if not current or self._done.is_set():
                return
            recall, done = self._recall, self._done
            # Before the lock is given back: a rank that ends now may be told to start again here, as another one.
            recall.order()
            if order.parts:
                self._parts = order.incarnation
            self._callee.close(LEFT, cut=True)
            self._stopping.order(f"{'leaves for good' if order.parts else 'restart in process'}: {order.reason}")
        tells = threading.Timer(PATIENCE_S, _tell_where)  # also where what breaks off does not come back
        tells.start()
        try:
            self._have_left(recall, done)
        finally:
            tells.cancel()

    def _have_left(self, recall: ThreadInterrupt, done: threading.Event) -> None:
        self._break_off(recall)
        asked = float("-inf")
        while not done.wait(ASK_S):
            if time.monotonic() - asked >= PATIENCE_S and recall.interrupt():
                asked = time.monotonic()
            if done.wait(AGAIN_S):
                break
            self._break_off(recall)

    def _break_off(self, recall: ThreadInterrupt) -> None:
        """Break off the process groups of one life, and of no later one."""
        with self._lock:
            if self._recall is recall and self._order is not None:
                torch_group.abort(self._order.store)

    def _may_rejoin(self, start: RankStart) -> bool:
        """Whether this process may be a later incarnation of its rank: the one that it was has ended."""
        old = self._start
        later = old is not None and old.rank == start.rank and old.incarnation < start.incarnation
        return later and self.spec.role.rejoins and self._done.is_set()

    def _renew(self) -> None:
        """Make room for the next incarnation of the rank in this process; a group may be left of one that failed."""
        torch_group.abort(self._order.store if self._order else "")
        self._recall, self._done = ThreadInterrupt(), threading.Event()
        self._callee = RpcServer(self.spec.role.name)
        self._stopping.withdraw()

    def _has_left(self, start: RankStart) -> None:
        """User code is left; a process in which it cannot go on ends."""
        self._callee.wait_idle()
        last_save.close(ok=False)
        life = self._life
        if life is None or life.left_over[0]:
            if self._parts == start.incarnation and life is not None:
                life.shutdown()
            self._ended(start, LEFT)
        else:
            end(EndCode.CANNOT_GO_ON, "user code was left half set up, or shut down: it cannot go on in this process")

    def terminated(self) -> None:
        """SIGTERM from outside: user code may end in its own way, but the rank counts as ended from outside."""
        if self._done.is_set():
            self.reports.wait_acked(self._report, HEARD_S)
            end(0, "its rank has ended, and its work is done")  # as Ray ends it when the job is released
        self._killed = "SIGTERM from outside"
        start = self._start
        if start is None:
            return
        self._wind_down(self._killed, TERM_GRACE_S)
        self._end_reported(start, self._terminated(), EndCode.SIGTERM, self._killed)

    # -- the user's thread

    def _live(self, order: StartOrder, start: RankStart) -> None:
        pid = os.getpid()
        recall = self._recall
        try:
            outcome = recall.run(lambda: self._live_on(order, start))
        except numa.BindingError as error:
            outcome = Outcome(ok=False, reason=Reason.USER_ERROR, code=1, message=str(error), fatal=True)
        except BaseException as error:  # noqa: BLE001 - a rank that cannot even be entered must be reported
            outcome = Outcome(ok=False, reason=Reason.UNKNOWN, code=1, message=f"{type(error).__name__}: {error}")
        if os.getpid() != pid:  # user code forked, and this is the child that came back here
            os._exit((outcome.code if outcome else 0) or 0)
        if recall.ordered and not self._killed:
            self._has_left(start)
        else:
            self._ended(start, self._terminated() if self._killed or outcome is None else outcome)

    def _live_on(self, order: StartOrder, start: RankStart) -> Outcome:
        life = self._enter(order, start)
        self._preload.join()
        outcome = life.live()
        last_save.close(ok=outcome.ok)
        return outcome

    def _enter(self, order: StartOrder, start: RankStart) -> Lifecycle:
        spec = self.spec
        start = self._entered = environment.kept(self._kind, self._entered, start)
        fd, log = open_log(spec.job, spec.role.name, start)
        self.logs.begin(log, os.lseek(fd, 0, os.SEEK_END) if log else 0)
        redirect_output(fd)
        env = environment.rank_environment(spec, order, start)
        environment.apply(env)
        environment.enter_code_dir(spec.job.code_dir)
        self._bind(start)
        sys.argv = [spec.role.entrypoint[1], *spec.role.args]
        context = self._installed(self._context(order, start, env))
        joins = spec.role.uses_store and spec.role.init_process_group
        self._life = Lifecycle(
            context,
            spec.role,
            spec.job.code_dir,
            ready=lambda instance: self._ready(start, instance),
            join=(lambda: torch_group.join(spec.role, order, start)) if joins else None,
            leave=torch_group.leave if joins else None,
            recall=self._recall,
            kept=self._kept(),
        )
        return self._life

    def _bind(self, start: RankStart) -> None:
        """Bind this process to the cores near the rank's device, where the role says so."""
        self._cores.look((start,), self._kind)
        near = self._cores.of(start, self._kind)
        if near is not None:
            print(f"[dljob] {numa.bind(near)}", file=sys.stderr, flush=True)  # noqa: T201 - into the rank's log

    def _kept(self) -> Any:
        """The object of an earlier life that a later one goes on with; one that was shut down is none."""
        goes_on, kept = (False, None) if self._life is None else self._life.left_over
        return kept if goes_on else None

    def _installed(self, context: WorkerContext) -> WorkerContext:
        """The context of this process; in a later incarnation it is the object that user code may hold."""
        if self._life is None:
            install(context)
            return context
        known = current_worker()
        renew(known, replace(context, calls=known.calls))
        return known

    def _context(self, order: StartOrder, start: RankStart, env: dict[str, str]) -> WorkerContext:
        job, role = self.spec.job, self.spec.role
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
            calls=RpcClient(job, f"{role.name}/{start.rank}"),
            report=self._progress.put,
            env=env,
            attempt=job.attempt,
            saver=lambda: saving.place(self.spec, order, start),
        )

    def _ready(self, start: RankStart, instance: Any) -> None:
        self._callee.open(instance)
        self.reports.add(start.rank, start.incarnation, os.getpid(), None)

    def _ended(self, start: RankStart, outcome: Outcome) -> int:
        """Report the end, once; later ones are dropped. The number of the report."""
        with self._lock:
            if not self._done.is_set():
                said = self._progress.told_by(outcome)
                if not said.ok:
                    said = replace(said, clues=self.evidence.clues(os.getpid(), killed=False))
                self._callee.close(outcome)
                self._report = self.reports.add(start.rank, start.incarnation, os.getpid(), said)
                self._done.set()
            return self._report

    # -- ends that do not come from user code

    def _wind_down(self, reason: str, grace_s: float) -> bool:
        """Ask user code to end and wait; whether it did."""
        deadline = time.monotonic() + grace_s
        self._stopping.order(reason)
        if self._life is not None:
            hook = threading.Thread(target=self._life.shutdown, name="dljob-shutdown", daemon=True)
            hook.start()
            self._done.wait(max(0.0, deadline - time.monotonic()))
            hook.join(max(0.0, deadline - time.monotonic()))
        return self._done.wait(max(0.0, deadline - time.monotonic()))

    def _end_reported(self, start: RankStart, outcome: Outcome, code: int, why: str) -> None:
        seq = self._ended(start, outcome)
        self.reports.wait_acked(seq, HEARD_S)
        end(code, why)

    def _terminated(self) -> Outcome:
        return Outcome(ok=False, reason=Reason.UNKNOWN, code=int(EndCode.SIGTERM), message=self._killed)

    # -- calls and steps

    def answer(self, call: Call, payload: bytes, common: bytes = b"") -> Reply:
        """Run a call on the rank's object, once `setup` is done."""
        start = self._start
        mismatch = start is not None and (start.rank, start.incarnation) != (call.rank, call.incarnation)
        return self._callee.answer(call, payload, common, stale=mismatch)

    def take_steps(self) -> Steps:
        """The rank's last step, when it is new."""
        start = self._start
        last = self._progress.take() if start is not None else None
        return {start.rank: (start.incarnation, *last)} if start is not None and last else {}

    def steps_lost(self) -> None:
        """Send the last step again."""
        self._progress.again()


def _tell_where() -> None:
    """Into the rank's log, where its threads are: in what C code, or in what wait, nothing can be raised."""
    print(f"[dljob] has not left after {PATIENCE_S:g} s; its threads:", file=sys.stderr, flush=True)  # noqa: T201 - its log
    faulthandler.dump_traceback(sys.__stderr__ or 2)
