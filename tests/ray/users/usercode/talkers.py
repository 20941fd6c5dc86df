"""A role on a mesh of two by two, and who talks to it."""

from __future__ import annotations

import os
import signal
import threading
import time

import numpy as np

import dljob
from dljob import RoleGroup, current_worker, rpc


class Talker(dljob.Worker):
    def __init__(self):
        self.mesh = {"dp": -1, "tp": 2}
        self.seen = []
        self.made = 0
        self.closed = threading.Event()

    @rpc(dispatch="shard", collect="concat", mesh="dp")
    def double(self, batch, factor=2):
        self.seen.append(batch)
        return batch * factor if hasattr(batch, "shape") else [factor * x for x in batch]

    @rpc
    def why(self):
        return self.context.restart_reason

    @rpc
    def what_was_seen(self):
        seen, self.seen = self.seen, []
        return seen

    @rpc(dispatch="rank0", timeout=0.3)
    def hurried(self):
        time.sleep(5)

    @rpc(dispatch="rank0", stream=4)
    def count(self, n):
        try:
            for i in range(n):
                self.made = i + 1
                yield i
        finally:
            self.closed.set()

    @rpc(dispatch="rank0", stream=2, concurrency=8, timeout=60)
    def narrow(self, n):
        yield from range(n)

    @rpc(stream=2, concurrency=1)
    def one_at_a_time(self, n):
        yield from range(n)

    @rpc(dispatch="rank0")
    def how_far(self):
        return self.made

    @rpc(dispatch="rank0")
    def wait_closed(self):
        return self.closed.wait(10)

    @rpc
    def lengths(self, xs, ys=(), name="", table=None):
        return [(x, y, name, table) for x, y in zip(xs, ys or xs, strict=True)]

    @rpc
    def incarnation(self):
        return self.context.incarnation, os.getpid()


class Boss(dljob.Worker):
    """Talks, restarts the others, talks again, and says what it heard."""

    def run(self):
        talkers, job = RoleGroup("talker"), current_worker().job
        heard = {"before": talkers.double(np.arange(5)).tolist()}
        first = talkers.incarnation()
        # A rank may run before PrimeMaster has read the report that it is ready.
        while (phase := job.status()["phase"]) == "Scheduling":
            time.sleep(0.05)
        heard["phase"] = phase
        job.restart(role="talker")
        while True:  # the order is journaled: the old processes may yet answer
            again = talkers.options(idempotent=True).incarnation()
            if all(number == 2 for number, _ in again):
                break
        heard["restarted"] = sorted({number for number, _ in first} | {number for number, _ in again})
        listeners = RoleGroup("listener").options(idempotent=True)
        while any(number == 1 for number, _ in listeners.incarnation()):
            pass  # they are coupled to the talkers, and are taken down with them
        heard["coupled"] = listeners.why()
        heard["sizes"] = [self.resized(talkers, size) for size in (4, 2, 2)]
        heard["after"] = talkers.double([1, 2, 3])
        heard["streamed"] = list(talkers.count(10))
        return heard

    def resized(self, talkers, size):
        """Order another number of talkers; gives the incarnations of those that answer then."""
        pids = {pid for _, pid in talkers.incarnation()}
        current_worker().job.scale("talker", size)
        while len(talkers) != size:
            time.sleep(0.01)
        found = talkers.incarnation()
        assert {pid for _, pid in found[:2]} <= pids, "who stays is not restarted"
        return [number for number, _ in found]


class Ender(dljob.Worker):
    """A driver that would run for ever, but for its own order."""

    def run(self):
        current_worker().job.stop()
        self.context.stopping.wait()


class Passing(dljob.Worker):
    """Returns as soon as it was called."""

    def __init__(self):
        self._called = threading.Event()

    @rpc
    def add(self, a):
        self._called.set()
        return a + 1

    def run(self):
        self._called.wait()


class Insister(dljob.Worker):
    """Dies with a stream open, and then calls until it is told why it cannot."""

    def run(self):
        talker = dljob.RoleGroup("talker")[0]
        if current_worker().incarnation == 1:
            next(talker.one_at_a_time(10**6))
            os.kill(os.getpid(), signal.SIGKILL)
        assert list(talker.one_at_a_time(3)) == [0, 1, 2]
        while True:
            try:
                dljob.RoleGroup("passing").call_rank0("add", 1).result(45)
            except dljob.CallError as error:
                return str(error)
