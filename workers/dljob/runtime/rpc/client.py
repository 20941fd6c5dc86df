"""The caller's side of calls between roles, in a process that has Ray.

All calls of a process share one event loop in a thread of its own. A call knows its callee by (rank, incarnation),
which PrimeMaster tells once; it goes from process to process, so it flows on while PrimeMaster is away.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
import threading
import time
from collections.abc import Awaitable, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

import ray
from ray import exceptions as rx

from dljob.errors import CallError, UnreachableError
from dljob.runtime.process.messages import CANCEL, CLOSE, GROUPS, KEEPER, PULL, Call, JobInfo, NotRun, Peer, Reply
from dljob.runtime.process.worker_context import Outgoing
from dljob.runtime.ray_private import known_dead
from dljob.runtime.rpc import storage_actors
from dljob.runtime.rpc.direct import DirectCall, UnawaitedCalls, invoked, unpacked
from dljob.runtime.rpc.large_args import Parcels, Payload
from dljob.runtime.rpc.pending_call import ANSWER, LOSSES, LateError, PendingCall, told

RETRY_S = 0.1
"""Pause before PrimeMaster, or a process that could not be reached, is asked again."""
CANCEL_S, CANCEL_LEAST_S = 1.0, 0.1
"""A call that is late waits so long, or as long again as its timeout and the least, to hear whether it was run."""

T = TypeVar("T")


class RpcClient:
    """Calls over Ray; `caller` names the calling rank."""

    def __init__(self, job: JobInfo, caller: str) -> None:
        self._job = job
        self._caller = caller
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ids = itertools.count(1)
        self._peers: dict[tuple[str, int], Peer] = {}
        self._handles: dict[str, Any] = {}
        self._idempotent: dict[tuple[str, str], bool] = {}
        self.sizes: dict[str, int] = {}
        self.lives: dict[str, int] = {}
        self._process = secrets.token_hex(4)
        self._parcels = Parcels()
        self._master: Any = None
        self._unasked = UnawaitedCalls()

    def send(self, call: Outgoing) -> Future[Reply]:
        """Start a call: straight to a process that is known, else by the loop."""
        sending = PendingCall(call, f"{self._caller}:{self._process}:{next(self._ids)}")
        payload = self._parcels.of(sending)
        peer = self._peers.get((call.role, call.rank))
        handle = None if peer is None else self._handles.get(peer.actor)
        if peer is None or handle is None or known_dead(handle):
            return asyncio.run_coroutine_threadsafe(self._run(sending, payload), self._running_loop())
        sending.waiting = ANSWER
        answer = invoked(handle, call.method, self._message(sending, peer, payload), payload)
        made = DirectCall(
            answer,
            sending,
            lambda future: self._take_over(future, sending, peer, payload),
            lambda reply: self._learn(call, reply),
        )
        self._unasked.add(made, self._running_loop())
        return made

    def keeper(self, address: str) -> Any:
        """The actor that keeps what is at an address, for what passes references."""
        return storage_actors.made(self._job, address)[1]

    def _learn(self, call: Outgoing, reply: Reply) -> None:
        self._idempotent[call.role, call.method] = reply.idempotent

    def _take_over(self, future: DirectCall, sending: PendingCall, peer: Peer, payload: Payload) -> None:
        """The loop goes on with a call that a thread sent."""
        work = asyncio.run_coroutine_threadsafe(self._run(sending, payload, peer, future.ref), self._running_loop())

        def over(done: Future[Reply]) -> None:
            error = done.exception()
            if error is None:
                future.set_result(done.result())
            else:
                future.set_exception(error)

        work.add_done_callback(over)

    def ask(self, what: str, args: Sequence[Any], timeout_s: float) -> Future[Any]:
        """Ask PrimeMaster; while it restarts the question waits."""
        return asyncio.run_coroutine_threadsafe(self._ask(what, args, timeout_s), self._running_loop())

    async def _ask(self, what: str, args: Sequence[Any], timeout_s: float) -> Any:
        end = time.monotonic() + timeout_s
        why: object = "it is not there"
        while (left := end - time.monotonic()) > 0:
            try:
                master = await self._prime()
                return await asyncio.wait_for(_plain(getattr(master, what).remote(*args)), left)
            except rx.RayTaskError as error:
                raise error.cause or error from None
            except (rx.RayError, ValueError) as error:
                self._master, why = None, error
                await asyncio.sleep(min(RETRY_S, left))
            except TimeoutError:
                break
        raise UnreachableError(f"PrimeMaster of job {self._job.name} gave no answer within {timeout_s:g} s: {why}")

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=self._loop.run_forever, name="dljob-calls", daemon=True).start()
            return self._loop

    # -- one call

    async def _run(
        self, sending: PendingCall, payload: Payload, peer: Peer | None = None, answer: Awaitable[Any] | None = None
    ) -> Reply:
        """Bring a call to its end; it may be on its way to a process already."""
        call = sending.call
        try:
            while True:
                if peer is None or answer is None:
                    peer = await self._peer(sending)
                    answer = await self._sent(sending, peer, payload)
                reply = None if answer is None else await self._answered(sending, peer, answer)
                answer = None
                if reply is None and call.method in (PULL, CLOSE):
                    raise sending.lost_with(peer)  # a stream ends with its incarnation: no later one has it
                if reply is not None:
                    if reply.refused is None:
                        self._learn(call, reply)
                    return reply
        except LateError as late:
            hint = f"dljob logs {self._job.name} --role {call.role} --rank {call.rank} shows what it does"
            raise sending.late(late, hint) from None

    async def _sent(self, sending: PendingCall, peer: Peer, payload: Payload) -> Awaitable[Any] | None:
        """Send it to one incarnation; None when that is over."""
        handle = await self._in_time(self._handle(peer), sending)
        if handle is None or known_dead(handle):
            self._forget(sending, peer)
            return None
        sending.waiting = ANSWER
        return invoked(handle, sending.call.method, self._message(sending, peer, payload), payload)

    def _message(self, sending: PendingCall, peer: Peer, payload: Payload) -> bytes:
        call = sending.call
        return Call(
            sending.id,
            call.rank,
            peer.incarnation,
            call.method,
            sending.left,
            self._caller,
            again=sending.again,
            quiet=call.quiet,
            window=call.window,
        ).packed(b"" if payload else call.payload)

    async def _answered(self, sending: PendingCall, peer: Peer, answer: Awaitable[Any]) -> Reply | None:
        """The answer of one incarnation; None when it is to be sent to a later one."""
        call = sending.call
        try:
            reply = unpacked(await self._in_time(answer, sending))
        except LateError:
            sending.waiting = await self._cancel(sending, peer)
            raise
        except rx.RayTaskError as error:
            raise CallError(
                f"{sending.name} failed in its host: {error.cause or error}", role=call.role, rank=call.rank
            ) from None
        except LOSSES as error:
            await self._lost(sending, peer, error)
            return None
        except rx.RayError as error:  # a store that is full, an answer that cannot be read: it would be so again
            raise CallError(
                f"{sending.name}: its answer cannot be had: {type(error).__name__}: {error}",
                role=call.role,
                rank=call.rank,
            ) from error
        return self._judge(sending, peer, reply)

    async def _cancel(self, sending: PendingCall, peer: Peer) -> str:
        """Tell the callee that its caller has given up; what the caller is told of it."""
        call, handle = sending.call, self._handles.get(peer.actor)
        if handle is None or call.method in GROUPS or call.role.startswith(KEEPER):
            return sending.waiting
        who = f"{call.role}/{call.rank}"
        message = Call(sending.id, call.rank, peer.incarnation, CANCEL, CANCEL_S, self._caller).packed(b"")
        within_s = min(CANCEL_S, CANCEL_LEAST_S + (call.timeout_s or 0))
        try:
            said = await asyncio.wait_for(_plain(invoked(handle, CANCEL, message, ())), within_s)
        except (TimeoutError, ValueError, rx.RayError):
            return f"{ANSWER}; {who} does not say whether it runs"
        return told(who, unpacked(said).payload)

    def _judge(self, sending: PendingCall, peer: Peer, reply: Reply) -> Reply | None:
        match reply.refused:
            case NotRun.ENDED:
                self._forget(sending, peer)
                return None
            case NotRun.LATE:
                sending.waiting = reply.message
                raise LateError
            case NotRun.CUT_OFF:
                self._may_go_again(sending, peer)
                self._forget(sending, peer)
                return None
            case NotRun.NOT_AGAIN:
                raise sending.lost_with(peer)
            case _:
                return reply

    async def _lost(self, sending: PendingCall, peer: Peer, error: rx.RayError) -> None:
        """The callee's process died with the call in it, cannot be reached, or its answer is lost though it may live.

        Returns when it may be sent again.
        """
        died = isinstance(error, rx.RayActorError)
        sending.lost = "" if died else f"{type(error).__name__}: {' '.join(str(error).split())[:1000]}"
        self._may_go_again(sending, peer)
        if died and not isinstance(error, rx.ActorUnavailableError):
            self._forget(sending, peer)
        else:
            self._peers.pop((sending.call.role, sending.call.rank), None)
            await self._pause(sending)

    def _may_go_again(self, sending: PendingCall, peer: Peer) -> None:
        """A call that may have run is sent again where that does no harm; else PeerLostError is raised."""
        call = sending.call
        idempotent = call.idempotent or self._idempotent.get((call.role, call.method))
        if idempotent is False:
            self._forget(sending, peer)
            raise sending.lost_with(peer)
        sending.again, sending.tried = not call.idempotent, True

    # -- who is who

    async def _peer(self, sending: PendingCall) -> Peer:
        """The callee's living incarnation; waits until there is one."""
        call = sending.call
        key = (call.role, call.rank)
        known = self._peers.get(key)
        if known is not None and known.incarnation > sending.after:
            return known
        if call.role.startswith(KEEPER):
            return await self._keeper(sending)
        sending.waiting = f"for {call.role}/{call.rank} to be " + ("back" if sending.after else "ready")
        while True:
            try:
                master = await self._in_time(self._prime(), sending)
                peer: Peer = await self._in_time(master.await_peer.remote(call.role, call.rank, sending.after), sending)
            except (rx.RayError, ValueError):
                self._master = None
                await self._pause(sending)
                continue
            self._note_size(sending, peer)
            if peer.gone and sending.again:
                raise sending.lost_with(peer)
            if peer.gone:
                raise CallError(f"{sending.name}: {peer.gone}", role=call.role, rank=call.rank)
            if peer.ready and peer.actor and peer.incarnation > sending.after:
                self._peers[key] = peer
                if call.rank == 0:
                    self.lives[call.role] = peer.incarnation
                return peer
            await self._pause(sending)

    async def _keeper(self, sending: PendingCall) -> Peer:
        """The keeper of an address; each one that is found after another died is the next incarnation."""
        call = sending.call
        sending.waiting = "for what keeps it to be there"
        while True:
            if sending.after:
                await self._pause(sending)
            try:
                name, handle = await self._in_time(
                    asyncio.to_thread(storage_actors.made, self._job, call.role), sending
                )
            except (rx.RayError, ValueError):
                await self._pause(sending)
                continue
            peer = Peer(call.role, call.rank, sending.after + 1, name, ready=True)
            self._peers[call.role, call.rank], self._handles[name] = peer, handle
            return peer

    def _note_size(self, sending: PendingCall, peer: Peer) -> None:
        """A call of a role of another size than it has would reach only some of its ranks, or none."""
        call = sending.call
        if peer.size:
            self.sizes[call.role] = peer.size
        if call.ranks and peer.size not in (0, call.ranks):
            said = f"{sending.name}: {call.role} has {peer.size} ranks now, and the call was made for {call.ranks}"
            hint = "make it again: the next one knows; what other ranks were sent, they may have run"
            raise CallError(said, role=call.role, rank=call.rank, hint=hint)

    def _forget(self, sending: PendingCall, peer: Peer) -> None:
        """That incarnation is over: this call, and later ones, go to the next."""
        key = (sending.call.role, sending.call.rank)
        known = self._peers.get(key)
        if known is not None and known.incarnation <= peer.incarnation:
            del self._peers[key]
            self._handles.pop(peer.actor, None)
        sending.after = max(sending.after, peer.incarnation)

    async def _handle(self, peer: Peer) -> Any:
        """The actor's handle; None when there is no such actor any more."""
        if peer.actor not in self._handles:
            try:
                handle = await asyncio.to_thread(ray.get_actor, peer.actor, self._job.namespace)
            except (ValueError, rx.RayError):
                return None
            self._handles[peer.actor] = handle
        return self._handles.get(peer.actor)

    async def _prime(self) -> Any:
        if self._master is None:
            self._master = await asyncio.to_thread(ray.get_actor, self._job.master, self._job.namespace)
        return self._master

    # -- time

    async def _in_time(self, answer: Awaitable[T], sending: PendingCall) -> T:
        left = sending.left
        if left is not None and left <= 0:
            raise LateError
        try:
            return await asyncio.wait_for(_plain(answer), left)
        except TimeoutError:
            raise LateError from None

    async def _pause(self, sending: PendingCall) -> None:
        left = sending.left
        if left is not None and left <= 0:
            raise LateError
        await asyncio.sleep(RETRY_S if left is None else min(RETRY_S, left))


async def _plain(answer: Awaitable[T]) -> T:
    return await answer
