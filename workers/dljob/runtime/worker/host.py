"""The base of all worker hosts: lease guard, heartbeat, reports, log file, and an orderly end.

A host is a Ray actor with concurrency groups. Ray then runs its `__init__` in the main thread, where signal handlers
can be installed, and answers control calls while user code runs.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import ray
from ray import actor as ray_actor

from dljob.errors import UsageError
from dljob.linux import descendants
from dljob.logs.watch import LogWatch
from dljob.master.state.views import Clue, Outcome
from dljob.plan.role import HostKind
from dljob.ray_private import SYSTEM_GROUP
from dljob.runtime.node.host_channel import AgentLine, address
from dljob.runtime.process import evidence
from dljob.runtime.process.guard import EndCode, Guard, Lease, asleep_together, end, end_soon
from dljob.runtime.process.messages import (
    Call,
    Hello,
    HoldOrder,
    HostSpec,
    LeaveOrder,
    LoadOrder,
    NotRun,
    Reply,
    Report,
    SizesOrder,
    StartOrder,
    StopOrder,
)
from dljob.runtime.process.step_counters import StepCounters
from dljob.runtime.rpc import object_store
from dljob.runtime.rpc.client import CallCounts
from dljob.runtime.worker.heartbeat import HeartbeatThread, Steps
from dljob.runtime.worker.reports import Reports
from dljob.runtime.worker.usage import Usage

TERM_GRACE_S = 5.0
"""Seconds for user code to end after a SIGTERM from outside, before its process is ended."""
HEARD_S = 2.0
"""Seconds that an ending process waits for PrimeMaster to acknowledge its last reports."""


class Host:
    """The base class of all hosts. PrimeMaster creates them by dotted path, with these concurrency groups."""

    concurrency_groups: ClassVar[dict[str, int]] = {
        "ctl": 8, "watch": 4, "rpc": 64, "pull": 64, "ask": 4, "cancel": 1, SYSTEM_GROUP: 1,
    }  # fmt: skip
    """Threads per group; `messages.GROUPS` says what `pull`, `ask` and `cancel` are for."""

    def __init__(self, spec: HostSpec) -> None:
        self.spec = spec
        self.reports = Reports()
        self.reports.accept_epoch(spec.epoch)
        self.actor_name: str = ray.get_runtime_context().get_actor_name() or ""
        # A child that outlives this process keeps its sockets open, so nobody would notice that it died.
        descendants.adopt_orphans()
        descendants.end_forks_with_me()
        _keep_ray_connected()
        self.counters = StepCounters.create(spec.role.group_size if spec.role.host is HostKind.FORK else 1)
        lease = Lease(spec.job.lease_s, excused=asleep_together(spec.job.boot), answered_at=self._answered_at)
        self.guard = Guard(lease, self._sigterm)
        self.evidence = evidence.HostEvidence()
        self.logs = LogWatch()
        loads = {"busy": self.busy, "open": self.connections, "served": self.served}
        self.usage = Usage(sum(ranks for _, ranks in spec.job.roles), self.call_counts, self.rank_pids, loads)
        agent_address = address(spec.job.uid, ray.get_runtime_context().get_node_id())
        line = AgentLine(agent_address, spec.role.name, self.actor_name, self.counters)
        self.heartbeat_thread = HeartbeatThread(self, lease, line)

    # -- what PrimeMaster calls

    @ray.method(concurrency_group="ctl")
    def hello(self) -> Hello:
        """Return this host's pid, node, devices and address. PrimeMaster's first call: the host is up."""
        context = ray.get_runtime_context()
        ids: dict[str, list[str]] = context.get_accelerator_ids()
        devices = tuple((name, tuple(device_ids)) for name, device_ids in sorted(ids.items()) if device_ids)
        return Hello(
            pid=os.getpid(),
            node=context.get_node_id(),
            devices=devices,
            address=self.address(),
        )

    @ray.method(concurrency_group="ctl")
    def start(self, order: StartOrder) -> None:
        """Start the ranks of an order. Repeating an incarnation changes nothing.

        Raises:
            UsageError: The order is of an earlier epoch than the one that commands this host.
        """
        self._must_be_heard(order.epoch, "start")
        self.start_ranks(order)

    @ray.method(concurrency_group="watch")
    def watch(self, epoch: int, acked: int) -> tuple[Report, ...]:
        """Return the reports newer than `acked`, as soon as there are some.

        The call breaks when this process dies, which is how PrimeMaster notices a death: Ray announces none.
        """
        return self.reports.watch(epoch, acked)

    @ray.method(concurrency_group="ctl")
    def stop(self, order: StopOrder) -> None:
        """Ask ranks to shut down, and end them after the grace. Returns at once; `watch` reports their ends."""
        self._must_be_heard(order.epoch, "stop")
        threading.Thread(target=self.stop_ranks, args=(order,), name="dljob-stop", daemon=True).start()

    @ray.method(concurrency_group="ctl")
    def leave_group(self, order: LeaveOrder) -> None:
        """Make a rank leave its torch group. Returns at once; `watch` reports its end."""
        self._must_be_heard(order.epoch, "leave_group")
        threading.Thread(target=self.leave_rank, args=(order,), name="dljob-leave", daemon=True).start()

    @ray.method(concurrency_group="ctl")
    def load(self, order: LoadOrder) -> None:
        """Have a rank load a version of its weights. Returns at once; `watch` reports how it went."""
        self._must_be_heard(order.epoch, "load")
        self.load_weights(order)

    @ray.method(concurrency_group="ctl")
    def hold(self, order: HoldOrder) -> None:
        """Keep the calls of a rank waiting, or serve them again."""
        self._must_be_heard(order.epoch, "hold")
        self.hold_calls(order)

    @ray.method(concurrency_group="ctl")
    def resize(self, order: SizesOrder) -> None:
        """Learn that roles have other numbers of ranks; the next calls of this host's ranks go to those."""
        self._must_be_heard(order.epoch, "resize")
        self.learn_sizes(dict(order.sizes), dict(order.numbers))

    @ray.method(concurrency_group="ctl")
    def leave(self, code: int) -> None:
        """Answer, then end this process. On a busy machine it may be gone before Ray has sent the answer."""
        end_soon(code, "told to leave")

    @ray.method(concurrency_group="rpc")
    def invoke(self, packed: bytes, payload: bytes = b"", common: bytes = b"") -> bytes | Reply:
        """Run a call from another role. Small arguments are inside `packed`; large ones are in `payload`, `common`."""
        call, small = Call.unpacked(packed)
        reply = self.answer(call, payload or small, common)
        return object_store.answer(reply, f"{self.spec.role.name}/{call.rank}")

    @ray.method(concurrency_group="ctl")
    def clues(self, pid: int) -> tuple[Clue, ...]:
        """Return evidence about the end of another process of this machine that died without a report."""
        return self.evidence.clues(pid, killed=True)

    @ray.method(concurrency_group="ctl")
    def failures(self) -> Mapping[int, tuple[int, Outcome]]:
        """Return rank -> (incarnation, error) of ranks whose code has failed, and whose process has not ended yet."""
        return self.failing_ranks()

    # -- what subclasses override

    def failing_ranks(self) -> Mapping[int, tuple[int, Outcome]]:
        """Return the answer of `failures`. The end of a thread's code is reported at once, so there are none."""
        return {}

    def address(self) -> str:
        """Return host:port of the store or service that this host offers; empty for hosts of ranks."""
        return ""

    def start_ranks(self, order: StartOrder) -> None:
        """Start the ranks of an order whose epoch has been checked."""
        raise UsageError(f"{type(self).__name__} runs no ranks, got {len(order.ranks)}")

    def stop_ranks(self, order: StopOrder) -> None:
        """Stop ranks. Runs in a thread of its own, so it may wait for the grace."""
        del order

    def leave_rank(self, order: LeaveOrder) -> None:
        """Make a rank leave its torch group. Runs in a thread of its own."""
        del order

    def load_weights(self, order: LoadOrder) -> None:
        """Begin a load of weights. The base host has no ranks."""
        del order

    def hold_calls(self, order: HoldOrder) -> None:
        """Keep the calls of a rank waiting, or serve them again. The base host serves none."""
        del order

    def learn_sizes(self, sizes: Mapping[str, int], numbers: Mapping[str, tuple[int, ...]]) -> None:
        """Tell the ranks of this host how many ranks roles have now, and which. The base host has none."""
        del sizes, numbers

    def answer(self, call: Call, payload: bytes, common: bytes = b"") -> Reply:
        """Run a call from another role. The base host refuses it: it has no user object."""
        del payload, common
        return Reply(
            error_type="CallError",
            message=f"{call.method}: this process serves no calls",
            refused=NotRun.NO_METHOD,
        )

    def take_steps(self) -> Steps:
        """Return the steps that are new since the last call: rank -> (incarnation, step, metrics)."""
        return {}

    def restore_steps(self) -> None:
        """Take the last steps again at the next `take_steps`: their heartbeat was not answered."""

    def call_counts(self) -> Iterable[CallCounts]:
        """Return the counts of the calls that its ranks made."""
        return ()

    def rank_pids(self) -> Mapping[int, int]:
        """Return rank -> pid of its process."""
        return {}

    def busy(self) -> Mapping[int, int]:
        """Return rank -> calls of others that run in it, or wait there."""
        return {}

    def served(self) -> Mapping[int, int]:
        """Return rank -> milliseconds in which it ran calls of others."""
        return {}

    def connections(self) -> Mapping[int, int]:
        """Return rank -> open connections to its ports."""
        return {}

    def terminated(self) -> None:
        """Stop user code within TERM_GRACE_S after a SIGTERM from outside, and report its end."""

    # -- shared by all hosts

    def _answered_at(self) -> float | None:
        """Return when the node's agent sent the last heartbeat for this host that PrimeMaster answered as known."""
        renewal = self.counters.renewal()
        return renewal.sent_at if renewal is not None and renewal.known else None

    def _sigterm(self) -> None:
        try:
            self.terminated()
        except Exception as error:  # noqa: BLE001 - it ends in any case; the ranks' last words are missing then
            print(f"[dljob] no report of the end by SIGTERM: {error!r}", file=sys.stderr, flush=True)  # noqa: T201
        end(EndCode.SIGTERM, "SIGTERM from outside")

    def _must_be_heard(self, epoch: int, order_name: str) -> None:
        if not self.reports.accept_epoch(epoch):
            raise UsageError(
                f"{self.actor_name} refused {order_name} of epoch {epoch}: epoch {self.reports.epoch} commands it"
            )


def _keep_ray_connected() -> None:
    """Disable `ray.shutdown`, which would cut the rank off from its job, and make `exit_actor` a `sys.exit`."""

    def shutdown(*_: Any, **__: Any) -> None:
        print("[dljob] ray.shutdown() does nothing in a rank of a DLJob", file=sys.stderr)  # noqa: T201

    ray.shutdown = shutdown
    ray_actor.exit_actor = sys.exit
