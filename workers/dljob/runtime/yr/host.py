"""The host of script ranks in the SDK's local mode, as a thread of one process: without Ray, lease and raylet.

The ranks are processes as everywhere: forked by the same helper, with their own environment, exit codes and logs. What
needs Ray (calls to other roles, checkpoints) is refused with a message.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, ClassVar, NoReturn

from dljob.errors import CallError, DLJobError, UnreachableError
from dljob.logs.watch import LogWatch
from dljob.runtime.process import environment, evidence, preload
from dljob.runtime.process.loop import settle
from dljob.runtime.process.messages import Heartbeat, Hello, HostSpec, Reply
from dljob.runtime.process.step_counters import StepCounters
from dljob.runtime.process.worker_context import CallTransport, RankCall
from dljob.runtime.worker.fork_host import UNSEEN, ForkHost
from dljob.runtime.worker.reports import Reports
from dljob.runtime.yr.cell import OWN_NAME

LOOPBACK = "127.0.0.1"
UNSET_PID = 2**62
"""An epoch above any master's: it ends calls that wait for reports."""
GONE_S = 10.0
"""Seconds to wait for the fork server's end."""


class YrHost(ForkHost):
    """A `ForkHost` in a thread. `close` ends its ranks, since no process ends with it."""

    carries_environment: ClassVar[bool] = True
    """The environment of its ActorSpec is for its ranks, not for this process."""

    def __init__(self, spec: HostSpec) -> None:  # pyright: ignore[reportMissingSuperCall] - that of a process
        spec = environment.located(spec)
        self.spec = spec
        self.actor_name = OWN_NAME.get()
        self.reports = Reports()
        self.reports.accept_epoch(spec.epoch)
        self.counters = StepCounters.create(spec.role.group_size)
        self.evidence = evidence.HostEvidence()
        self.logs = LogWatch()
        self._prepare(spec, lambda: LOOPBACK)
        self._closed = threading.Event()
        self._helper_ended = threading.Event()
        env = environment.of_fork_server(spec.role)
        early = preload.of(spec.role, spec.job.code_dir)
        self._helper = self._fork_server(early, env)
        threading.Thread(target=self._tell, name="dljob-beacon", daemon=True).start()

    def hello(self) -> Hello:  # pyright: ignore[reportIncompatibleVariableOverride] - there it is decorated for Ray
        """Answer PrimeMaster's first call: this host is up."""
        from dljob.runtime.yr import session

        return Hello(os.getpid(), session.local().own_node(), ())

    def leave(self, code: int) -> None:  # pyright: ignore[reportIncompatibleVariableOverride] - the same
        """End this host, but not its process, which others share."""
        del code
        self._end_me()

    def close(self) -> None:
        """End the ranks, and the calls that wait for reports."""
        self._leaving = True
        self._closed.set()
        self.reports.accept_epoch(UNSET_PID)
        self._helper.close()
        self._helper.wait(GONE_S)
        self._socket.close()

    # -- progress

    def _tell(self) -> None:
        """Send steps to PrimeMaster while there are new ones; close the counters at the end."""
        while not self._closed.wait(self.spec.job.beacon_s):
            with suppress(Exception):  # without evidence a rank's end has no cause, but the job goes on
                self.evidence.sample()
            self.counters.count_heartbeat()
            steps = self.take_steps()
            # Without new steps nothing is sent: there is no lease here that a heartbeat would renew.
            if steps:
                try:
                    self._send_heartbeat(Heartbeat(self.spec.role.name, self.actor_name, self.reports.epoch, steps))
                except DLJobError:
                    self.restore_steps()
        self._helper_ended.wait()  # until then ranks may still write their steps
        self.counters.close()

    def _send_heartbeat(self, heartbeat: Heartbeat) -> None:
        from dljob.runtime.yr.backend import YrBackend

        backend = YrBackend({"localMode": True})
        master = settle(backend.lookup(self.spec.job.master))
        if master is None:
            raise UnreachableError("PrimeMaster is gone")
        settle(backend.call(master, "beacon", heartbeat))

    # -- ends

    def _helper_gone(self) -> None:
        """End this host with its fork server, without which it can start no rank."""
        with self._lock:
            unended_ranks = [rank for rank in self._ranks.values() if not rank.ended.is_set()]
        for rank in unended_ranks:
            self._ended(rank, UNSEEN)
        self._helper_ended.set()
        if not self._leaving:
            threading.Thread(target=self._end_me, name="dljob-end", daemon=True).start()

    def _end_me(self) -> None:
        from dljob.runtime.yr import session
        from dljob.runtime.yr.backend import NAMESPACE, instance_name

        time.sleep(0.05)  # let the answer, or the last report, go out first
        session.local().yr.kill_instance(f"{NAMESPACE}-{instance_name(self.actor_name)}")

    # -- requests of ranks

    def _calls_of(self, number: int) -> CallTransport:
        return _NoCalls(f"{self.spec.role.name}/{number}")

    def _saver_of(self, number: int) -> NoReturn:
        raise UnreachableError(f"{self.spec.role.name}/{number}: the backend yr lacks checkpoints")


class _NoCalls(CallTransport):
    """A transport that refuses calls to other roles, which only Ray carries."""

    def __init__(self, caller_name: str) -> None:
        self._who = caller_name
        self.sizes: dict[str, int] = {}
        self.numbers: dict[str, tuple[int, ...]] = {}
        self.incarnations: dict[str, int] = {}

    def send(self, call: RankCall) -> Future[Reply]:
        """Return a future with the refusal."""
        message = f"{self._who} calls {call.name}: the backend yr carries no calls between roles"
        return _failed(CallError(message, role=call.role, rank=call.rank, hint="run the job on Ray"))

    def ask(self, method: str, args: Sequence[Any], timeout_s: float) -> Future[Any]:
        """Refuse a question to PrimeMaster in the same way."""
        del args, timeout_s
        return _failed(
            UnreachableError(f"{self._who} asks PrimeMaster ({method}): the backend yr carries no questions")
        )


def _failed(error: DLJobError) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_exception(error)
    return future
