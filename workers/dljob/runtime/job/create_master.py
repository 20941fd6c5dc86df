"""Creation of a job's PrimeMaster: its registry keys, its actor, its first answer; cleaned up when no answer comes."""

from __future__ import annotations

import asyncio
import json
import logging
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from dljob.errors import DeadlineError, UnreachableError
from dljob.runtime.backend.interface import ActorCallError, ActorLostError, ActorRef, Backend, find_actor
from dljob.runtime.backend.masters import actor_name, clear
from dljob.runtime.journal.job_record import ENDED, REGISTRY, JobRecord, MasterOrder, forget, is_final, master_actor

if TYPE_CHECKING:
    from dljob.runtime.job.outline import Outline

log = logging.getLogger(__package__)

NODES_S = 0.5
"""Seconds between looks for a first worker node, which a pod brings."""
RETRY_S = 0.05
"""Seconds between attempts to reach a master that Ray restarts."""


async def create(backend: Backend, order: MasterOrder, entry: JobRecord, job: Outline, *, away: bool) -> None:
    """Create the PrimeMaster of a job; return when it answers.

    `away` keeps it off the head's node, so that it outlives the head.

    Raises:
        DeadlineError: It did not answer within createTimeoutSeconds.
        UnreachableError: It could not be created.
        UsageError: The job has one already.
    """
    spawn: asyncio.Future[ActorRef] | None = None
    try:
        await backend.kv.delete(ENDED + order.uid)  # an earlier attempt's end would be taken for this one's
        # Keys before the actor: a master finds its spec in the store, and others find the master by the registry.
        await backend.kv.put(f"dljob/{order.uid}/spec", job.text.encode())
        await backend.kv.put(REGISTRY + order.uid, json.dumps(asdict(entry)).encode())
        head = await _head(backend, any_node=not away)
        order = replace(order, launcher=backend.own_node(), away=away)
        spawn = asyncio.ensure_future(backend.spawn(master_actor(order, head, avoid=away)))
        # Shielded: on Ctrl-C the spawn goes on, so that its actor is known and can be ended.
        await _first_answer(backend, await asyncio.shield(spawn), entry, job.create_timeout_s)
    except asyncio.CancelledError:
        await _unwanted(backend, spawn, order.uid)
        raise
    except Exception:
        await _forget_unless_made(backend, order.uid)
        raise


async def _unwanted(backend: Backend, spawn: asyncio.Future[ActorRef] | None, uid: str) -> None:
    """Undo the creation when its caller was cancelled (Ctrl-C): nobody else knows of the job.

    A master that another process created stays.
    """
    if spawn is not None:
        await _tear_down(backend, await spawn, uid)
    else:
        await _forget_unless_made(backend, uid)


async def _forget_unless_made(backend: Backend, uid: str) -> None:
    """Remove the job's keys, by which it would be listed for ever, unless a master of that name lives.

    The caller's spawn may have made one though it failed, or another process has.
    """
    try:
        master = await backend.lookup(actor_name(uid))
    except Exception as error:  # noqa: BLE001 - Ray cannot tell: a master that lives needs the keys
        log.warning("the keys of job %s stay, as Ray does not say whether it has a PrimeMaster: %r", uid, error)
        return
    if master is None:
        await forget(backend.kv, uid)


async def _first_answer(backend: Backend, ref: ActorRef, entry: JobRecord, timeout_s: float) -> None:
    try:
        async with asyncio.timeout(timeout_s):
            await _hello(backend, ref)
    except (TimeoutError, ActorLostError, ActorCallError) as error:
        if is_final(Path(entry.dir)):
            return  # a short job can end before its master answers
        await _tear_down(backend, ref, entry.uid)
        if isinstance(error, TimeoutError):
            raise DeadlineError(
                f"PrimeMaster of {entry.name} did not answer within createTimeoutSeconds = {timeout_s:g}"
            ) from error
        raise UnreachableError(f"PrimeMaster of {entry.name} could not be created: {error}") from error


async def _tear_down(backend: Backend, ref: ActorRef, uid: str) -> None:
    """Kill a master, and the actors and reservations it may have made by now."""
    # The master first: it would restart the actors that are killed below.
    await backend.kill(ref)
    with suppress(Exception):  # actors that are left end with their lease
        await clear(backend, uid)
    await forget(backend.kv, uid)


async def _head(backend: Backend, *, any_node: bool) -> str | None:
    """Return the head's node; unless `any_node`, wait for a second node, however long its machine takes."""
    while True:
        nodes = await backend.nodes()
        head = next((node.id for node in nodes if node.head), None)
        if any_node or (head and len(nodes) > 1):
            return head
        await asyncio.sleep(NODES_S)


async def _hello(backend: Backend, ref: ActorRef) -> None:
    """Wait for the master's first answer; Ray may restart it meanwhile."""
    while True:
        try:
            await backend.call(ref, "hello")
        except ActorLostError:
            # Ray drops the name only when no restart is left: until then the master is merely starting again.
            if await find_actor(backend, ref.name) is None:
                raise
            await asyncio.sleep(RETRY_S)
        else:
            return
