"""A role whose ranks die and come back, with threads in the place of processes; the transport acts as RpcClient."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from dljob.errors import CallError
from dljob.master.state.views import Outcome
from dljob.runtime.process.messages import CLOSE, PULL, Call, NotRun, Peer, Reply
from dljob.runtime.process.worker_context import CallTransport, RankCall
from dljob.runtime.rpc.server import RpcServer


class Process:
    """One incarnation of a rank."""

    def __init__(self, incarnation: int, instance: Any) -> None:
        self.incarnation = incarnation
        self.instance = instance
        self.server = RpcServer("talker")
        self.server.open(instance)
        self.dead = False
        self.ended = False


class Fleet(CallTransport):
    """The ranks of the role `talker`: `make(rank, incarnation)` returns a worker. All are up at first."""

    def __init__(self, make: Callable[[int, int], Any], ranks: int) -> None:
        self.sizes: dict[str, int] = {}
        self.numbers: dict[str, tuple[int, ...]] = {}
        self.incarnations: dict[str, int] = {}
        self.sent: list[RankCall] = []
        self.gone: set[int] = set()
        self._make = make
        self._changed = threading.Condition()
        self._ids = itertools.count()
        self._pool = ThreadPoolExecutor(64)
        self.processes = {rank: Process(1, make(rank, 1)) for rank in range(ranks)}

    def __getitem__(self, rank: int) -> Any:
        return self.processes[rank].instance

    def kill(self, rank: int) -> None:
        """End a rank's process, with everything in it."""
        self._end(rank, dead=True)

    def stop(self, rank: int) -> None:
        """End a rank by order."""
        self._end(rank, dead=False)

    def _end(self, rank: int, *, dead: bool) -> None:
        process = self.processes[rank]
        with self._changed:
            process.dead, process.ended = dead, True
            self._changed.notify_all()
        process.server.close(Outcome(ok=True), cut=True)

    def drain(self, rank: int, timeout_s: float = 10.0) -> bool:
        """End a rank by order, once its streams are taken; False where a caller took too long."""
        in_time = self.processes[rank].server.drain(timeout_s)
        self.stop(rank)
        return in_time

    def lose(self, rank: int) -> None:
        """End a rank for good."""
        with self._changed:
            self.gone.add(rank)
        self.stop(rank)

    def revive(self, rank: int) -> None:
        """Start a rank's next incarnation."""
        later = self.processes[rank].incarnation + 1
        process = Process(later, self._make(rank, later))
        with self._changed:
            self.processes[rank] = process
            self._changed.notify_all()

    def ends(self, rank: int) -> bool:
        """Whether the rank's present process is ended."""
        process = self.processes[rank]
        return process.ended

    def ask(self, what: str, args: Sequence[Any], timeout_s: float) -> Future[Any]:
        assert (what, list(args)) == ("callees", ["talker"])
        assert timeout_s > 0
        told: Future[Any] = Future()
        told.set_result(
            [[n, p.incarnation, not self.ends(n), n in self.gone] for n, p in sorted(self.processes.items())]
        )
        return told

    def send(self, call: RankCall) -> Future[Reply]:
        call.id = f"me:0:{next(self._ids)}"
        self.sent.append(call)
        return self._pool.submit(self._run, call)

    def _run(self, call: RankCall) -> Reply:
        while True:
            process = self._process(call)
            said = Call(
                *(call.id, call.rank, process.incarnation, call.method, call.timeout_s, "me"), window=call.window
            )
            reply = process.server.answer(said, call.payload, call.common)
            if not process.dead and reply.refused in (None, NotRun.OTHER_VERSION):
                return reply
            if process.dead or call.once or call.method in (PULL, CLOSE):
                call.died = process.dead
                assert process.dead or reply.refused in (NotRun.ENDED, NotRun.CUT_OFF, NotRun.NOT_AGAIN), reply
                raise call.lost_with(Peer(call.role, call.rank, process.incarnation, "", ready=False))
            call.after = process.incarnation

    def _process(self, call: RankCall) -> Process:
        with self._changed:
            while True:
                process = self.processes[call.rank]
                if call.only and (call.only != process.incarnation or process.dead):
                    raise call.lost_with(Peer(call.role, call.rank, call.only, "", ready=False))
                if call.rank in self.gone:
                    raise CallError(f"{call.name}: it is gone", role=call.role, rank=call.rank)
                if call.only or (call.fits(process.incarnation) and not process.dead):
                    return process
                assert self._changed.wait(10), f"{call.name} waits for an incarnation above {call.after}"

    def close(self) -> None:
        """End all processes."""
        for process in self.processes.values():
            process.server.close(Outcome(ok=True), cut=True)
        self._pool.shutdown(wait=False)
