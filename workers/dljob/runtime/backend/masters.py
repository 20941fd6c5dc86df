"""The PrimeMasters of a job: the names of the two actors, and the key that says which of them commands.

A job with a standby has two actors of one class, which take turns: the one that claimed the latest epoch commands. It
announces itself under a key with its epoch, so that a late announcement of an earlier master changes nothing. Hosts,
agents, the gateway and clients find the master by this key, and look again when a call to it fails.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any

from dljob.errors import DLJobError
from dljob.runtime.backend.interface import ActorCallError, ActorLostError, ActorRef, Backend, KeyValue

if TYPE_CHECKING:
    from dljob.runtime.process.messages import JobInfo

FIRST, SECOND = 1, 2
"""Numbers of the two actors. The first one is created with the job."""
LOOKS_S = (0.05, 0.1, 0.1, 0.1, 0.2, 0.5)
"""Seconds between the looks for a later master during a call; the last value repeats. Ray reports the death of an actor
to a call that was just sent only once the actor is back, 1 to 3 s later."""


class NotCommandingError(DLJobError):
    """Raised by a PrimeMaster that follows the other one: the caller looks again for the one that commands."""


def actor_name(uid: str, number: int = FIRST) -> str:
    """Return the name of one of the two actors."""
    return f"{uid[:8]}/master" if number == FIRST else f"{uid[:8]}/master/{number}"


def _prefix(uid: str) -> str:
    return f"dljob/{uid}/commands/"


def names(uid: str, keys: Sequence[str]) -> tuple[str, str]:
    """Return the names of both actors, the commanding one first, from the keys under which masters announced."""
    newest = max(keys, default="").removeprefix(_prefix(uid))
    number = int(newest.partition("/")[2] or FIRST)
    return actor_name(uid, number), actor_name(uid, FIRST + SECOND - number)


async def announce(kv: KeyValue, uid: str, epoch: int, number: int) -> None:
    """Announce the master of an epoch; drop the keys of earlier ones."""
    own_key = f"{_prefix(uid)}{epoch:09d}/{number}"
    await kv.put(own_key, b"1")
    for key in await kv.keys(_prefix(uid)):
        if key < own_key:
            await kv.delete(key)


async def find_commander(backend: Backend, uid: str) -> ActorRef | None:
    """Return the master that commands; the other one where that is gone; None without any.

    A job without a standby has no key, and one actor.

    Raises:
        ActorLostError: The backend cannot tell at present.
    """
    keys = await backend.kv.keys(_prefix(uid))
    first, second = names(uid, keys)
    first_ref = await backend.lookup(first)
    return first_ref if first_ref is not None or not keys else await backend.lookup(second)


async def call_commander(backend: Backend, ref: ActorRef, uid: str, method: str, *args: Any) -> Any:
    """Call a method of a master; give up once another one commands, which may not be known to Ray for seconds.

    Raises:
        ActorLostError: The master is gone, or does not command (any more).
        ActorCallError: The method raised.
    """
    call = asyncio.ensure_future(backend.call(ref, method, *args))
    try:
        await _settled_or_replaced(backend, ref, uid, call)
        return await call
    except ActorCallError as error:
        if error.error_type == NotCommandingError.__name__:
            raise ActorLostError(error.message, certain=False) from None
        raise
    finally:
        call.cancel()


async def _settled_or_replaced(backend: Backend, ref: ActorRef, uid: str, call: asyncio.Future[Any]) -> None:
    """Return once the call is over. Raises ActorLostError once another master has announced itself."""
    keys: tuple[str, ...] | None = None
    for pause in chain(LOOKS_S, repeat(LOOKS_S[-1])):
        # Without a key there is no other master that could announce itself: the call alone decides.
        done, _ = await asyncio.wait([call], timeout=None if keys == () else pause)
        if done:
            return
        with suppress(Exception):  # a store that does not answer says nothing: the call itself decides
            keys = await backend.kv.keys(_prefix(uid))
        if keys and names(uid, keys)[0] != ref.name:
            raise ActorLostError(f"{ref.name} does not command any more", certain=False)


def find_master(job: JobInfo) -> Any:
    """Return Ray's handle of the master that commands, in a process of the job.

    Raises:
        ValueError: There is no master (any more).
    """
    import ray

    if not job.standby:
        return ray.get_actor(job.master, job.namespace)
    from dljob.ray_private import kv_keys

    keys = sorted(key.decode() for key in kv_keys(_prefix(job.uid), namespace=job.namespace))
    first, second = names(job.uid, keys)
    with suppress(ValueError):  # it was ended for good, and the other one takes over
        return ray.get_actor(first, job.namespace)
    return ray.get_actor(second, job.namespace)


async def clear(backend: Backend, uid: str, keep: Sequence[str] = ()) -> None:
    """Kill a job's actors but those of these names, then release its reservations, where no master can sweep."""
    for name in await backend.actors(f"{uid[:8]}/"):
        if name not in keep and (actor_ref := await backend.lookup(name)) is not None:
            await backend.kill(actor_ref)
    for name in await backend.reservations(f"{uid[:8]}/"):
        await backend.release(name)
