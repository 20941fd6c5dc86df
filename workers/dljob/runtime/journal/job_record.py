"""Facts about a job that need no master: its record in the cluster's registry, and the files in its folder.

This module imports little, so that the gateway and launchers start sooner.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dljob.linux.plain_files import open_plain, read_json
from dljob.runtime.backend.interface import ON_HEAD, ActorSpec
from dljob.runtime.backend.masters import actor_name
from dljob.runtime.journal.event_file import each_event, events_before, last_events
from dljob.runtime.journal.timeline import EVENTS, STATUS, write_atomically
from dljob.spec.status import TERMINAL
from dljob.telemetry.reasons import MASTER_FAILED

if TYPE_CHECKING:
    from dljob.runtime.backend.interface import KeyValue
    from dljob.runtime.journal.setup import Setup

REGISTRY = "dljob/jobs/"
"""Prefix of a job's record in the key-value store; the uid follows."""
ENDED = "dljob/ended/"
"""Prefix of a job's end in the store, from a master on another node than launcher and gateway; the uid follows."""
ENDED_AT = "dljob/ended-at/"
"""Prefix of the order of these ends: `<unix ms>/<uid>` follows."""
ENDS_KEPT = 16
"""Ends that a Ray keeps, the newest ones: an end of 10,000 ranks takes megabytes of its head's memory."""
SPEC = "spec.json"
log = logging.getLogger(__package__)

FINAL = (*TERMINAL, "Suspended")
"""The phases after which a master ends."""
MASTER_CLASS = "dljob.runtime.controller.prime_actor.PrimeMaster"
MASTER_CALLS = 20_000
"""Calls that a master has open at once: a parked call of every rank, heartbeats, long polls."""
_FIRST_BYTES = 4096
"""Bytes of a status file in which the job's phase is found."""
_PHASE = re.compile(rb'"phase":\s*"(\w+)"')
"""The job's own phase, which is the first one in the file.

Only name and uid come before it, and JSON escapes quotes in these.
"""


@dataclass(frozen=True, slots=True)
class JobRecord:
    """A job in the registry of its cluster."""

    uid: str
    name: str
    dir: str
    started: float


@dataclass(frozen=True, slots=True)
class MasterOrder:
    """The arguments of a new master. Ray keeps them for restarts in its head's memory, so they are small."""

    uid: str
    dir: str
    code_dir: str
    namespace: str
    backend: str
    options: Mapping[str, Any] = field(default_factory=dict)
    attempt: int = 1
    """Number of the attempt on Kubernetes; each has a journal of its own."""
    own_nodes: bool = False
    """Whether the operator makes the nodes of the plan for this job."""
    carried: str = ""
    """State of the previous attempt (`dljob.master.placement.previous_attempt`), some KiB; may be empty."""
    roams: bool = False
    """Whether its folder may be out of reach of the launcher and the gateway.

    Its end then goes into the key-value store, too.
    """
    launcher: str = ""
    """The node of the process that created it, empty for none; on any other node the master roams."""
    number: int = 1
    """Which of the job's two PrimeMasters it is (`dljob.runtime.backend.masters`)."""
    away: bool = False
    """Whether it is kept off the head's node, so that it outlives the head."""


def master_actor(order: MasterOrder, head: str | None, *, avoid: bool) -> ActorSpec:
    """Return the actor of a PrimeMaster; `avoid` keeps it off the head, else it is there: if it can, or in any case."""
    name = actor_name(order.uid, order.number)
    spec = ActorSpec(name, MASTER_CLASS, (order,), max_concurrency=MASTER_CALLS, immortal=True)
    if avoid:
        return replace(spec, avoid=head)
    # The folder of a journal is on the head alone, and a head that is replaced is a node with another id.
    files = order.options.get("journal") != "kv"
    return replace(spec, resources=ON_HEAD) if head is not None and files else replace(spec, prefer=head)


def notes(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the events in a job's folder, oldest first, each once: a folder may have a million."""
    return each_event(folder / EVENTS)


def read_notes(folder: Path, after_seq: int = 0) -> list[dict[str, Any]]:
    """Return the events in a job's folder with a number greater than `after_seq`, each once."""
    return list(each_event(folder / EVENTS, after_seq))


def last_notes(folder: Path, count: int) -> list[dict[str, Any]]:
    """Return the last `count` events in a job's folder, each once."""
    return last_events(folder / EVENTS, count)


def notes_until(folder: Path, seq: int, count: int) -> list[dict[str, Any]]:
    """Return the last `count` events in a job's folder with a number of at most `seq`, each once."""
    return events_before(folder / EVENTS, seq + 1, count, lambda _: True).events


def read_status(folder: Path) -> dict[str, Any]:
    """Return the last status in a job's folder; empty without one."""
    try:
        return read_json(folder / STATUS)
    except (OSError, ValueError):
        return {}


def is_final(folder: Path) -> bool:
    """Return whether the status in a job's folder is final.

    Only its beginning is read: with 10,000 ranks the whole file has megabytes.
    """
    try:
        with open_plain(folder / STATUS) as file:
            match = _PHASE.search(file.read(_FIRST_BYTES))
    except OSError:
        return False
    return match is not None and match[1].decode() in FINAL


async def sign_off(kv: KeyValue, setup: Setup, status: Mapping[str, Any], notes: Sequence[object]) -> None:
    """Remove all keys of an ended job; keep its end for processes that cannot read its folder."""
    if setup.roams:
        await _keep_end(kv, setup.info.uid, {"dir": setup.info.dir, "status": status, "notes": notes})
    # After the end is kept: a process that misses the job's keys looks for it there.
    await forget(kv, setup.info.uid)


async def sign_off_unplanned(kv: KeyValue, order: MasterOrder, message: str, *, roams: bool) -> None:
    """Write the end of a job over its last status, and remove its keys, where its spec cannot be read or planned.

    A job without a status has not begun: its creator hears the error. One whose status is final ended before its spec
    was deleted, and that end stays.
    """
    folder = Path(order.dir)
    last = await asyncio.to_thread(read_status, folder)
    if last and last.get("phase") not in FINAL:
        status = {**last, "phase": "Failed", "reason": MASTER_FAILED, "message": message}
        with suppress(OSError):  # as for every last status: a full volume must not keep the job from its end
            await asyncio.to_thread(write_atomically, folder / STATUS, json.dumps(status, ensure_ascii=False, indent=1))
        if roams:
            await _keep_end(kv, order.uid, {"dir": order.dir, "status": status, "notes": []})
    await forget(kv, order.uid)


async def _keep_end(kv: KeyValue, uid: str, end_record: Mapping[str, Any]) -> None:
    try:
        await kv.put(ENDED + uid, json.dumps(end_record).encode())
        await _drop_older(kv, uid)
    except Exception as error:  # noqa: BLE001 - the job has ended in any case; only its launcher misses how
        log.warning("the end of job %s is kept in its folder alone: %r", uid, error)


async def _drop_older(kv: KeyValue, uid: str) -> None:
    """Keep the newest ends and this one: their readers may never come, and a Ray may live for months."""
    # The number has a fixed width, so that the order of the keys is that of time.
    await kv.put(f"{ENDED_AT}{time.time_ns() // 1_000_000:015d}/{uid}", b"1")
    for key in (await kv.keys(ENDED_AT))[:-ENDS_KEPT]:
        # The end first: a death in between leaves a place of nothing, which the next call deletes.
        await kv.delete(ENDED + key.rpartition("/")[2])
        await kv.delete(key)


async def bring(kv: KeyValue, uid: str) -> Path | None:
    """Create the folder of a job that left its end in the store; None if it left none there."""
    text = await kv.get(ENDED + uid)
    return await asyncio.to_thread(_put_down, json.loads(text)) if text else None


async def has_ended(kv: KeyValue, uid: str, folder: Path) -> bool:
    """Return whether a job has ended; its folder on this node then holds the end."""
    return is_final(folder) or await bring(kv, uid) is not None


def _put_down(end_record: Mapping[str, Any]) -> Path:
    folder = Path(end_record["dir"])
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    # The status last: it marks the folder as complete.
    if not is_final(folder):
        write_atomically(folder / EVENTS, "".join(f"{json.dumps(note)}\n" for note in end_record["notes"]))
        write_atomically(folder / STATUS, json.dumps(end_record["status"]))
    return folder


async def forget(kv: KeyValue, uid: str) -> None:
    """Remove all keys of a job."""
    with suppress(Exception):  # a store that goes away takes its keys along
        # Its record first, or not at all: a master that finds the journal gone and the record there begins the job.
        await kv.delete(REGISTRY + uid)
        await kv.delete(f"dljob/{uid}/")
