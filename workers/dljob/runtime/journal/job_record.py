"""What is known of a job without its master: its entry in the registry of its cluster, and the files in its folder.

Light, since the gateway and launchers are up the sooner for it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dljob.runtime.journal.timeline import EVENTS, STATUS, write_atomically
from dljob.spec.status import TERMINAL
from dljob.telemetry.reasons import with_current_reasons

if TYPE_CHECKING:
    from dljob.runtime.backend.interface import KeyValue
    from dljob.runtime.journal.setup import Setup

REGISTRY = "dljob/jobs/"
"""Before a uid: the key of a job's entry."""
ENDED = "dljob/ended/"
"""Before a uid: what a master left that did not live where the launcher and the gateway do."""
ENDED_AT = "dljob/ended-at/"
"""Before `<unix ms>/<uid>`: the order of these ends."""
ENDS_KEPT = 16
"""How many of them a Ray keeps, the newest: an end of 10,000 ranks is megabytes of its head's memory."""
SPEC = "spec.json"
log = logging.getLogger(__package__)

FINAL = (*TERMINAL, "Suspended")
"""The phases in which a master ends."""
_FIRST_BYTES = 4096
_PHASE = re.compile(rb'"phase":\s*"(\w+)"')
"""Of the job itself, where it is the first: name and uid alone come before it, and JSON escapes the quotes in these."""


@dataclass(frozen=True, slots=True)
class JobRecord:
    """A job as the registry of its cluster knows it."""

    uid: str
    name: str
    dir: str
    started: float


@dataclass(frozen=True, slots=True)
class MasterOrder:
    """What a master is told when it is made; Ray keeps it for its restarts, so it is small."""

    uid: str
    dir: str
    code_dir: str
    namespace: str
    backend: str
    options: Mapping[str, Any] = field(default_factory=dict)
    attempt: int = 1
    """Which attempt of the job on Kubernetes; each has a journal of its own."""
    own_nodes: bool = False
    """Whether somebody makes the nodes of the plan for this job."""
    carried: str = ""
    """What the last attempt handed on (`dljob.master.placement.previous_attempt`), some KiB; empty: nothing."""
    roams: bool = False
    """Whether its folder may be out of reach of the launcher and the gateway: what it leaves at its end is then kept in
    the key-value store too."""
    launcher: str = ""
    """The node of who made it, empty for none; a master on another one leaves its end so too."""


def master_name(uid: str) -> str:
    """The name of a job's master."""
    return f"{uid[:8]}/master"


def read_notes(folder: Path, after_seq: int = 0) -> list[dict[str, Any]]:
    """The notes in a job's folder with a greater number, each once.

    A master that was fenced while it wrote may leave a note that its successor wrote too: numbers only grow here.
    """
    found: list[dict[str, Any]] = []
    try:
        # Cut at our own line ends alone, and whatever a writer that died in the middle of a character left.
        lines = (folder / EVENTS).read_text(encoding="utf-8", errors="replace").split("\n")
    except OSError:
        return found
    for line in lines:
        try:
            note = json.loads(line)
        except ValueError:
            continue  # a line that was being written when its writer died; the next master wrote it again
        if note["seq"] > after_seq:
            found.append(note)
            after_seq = note["seq"]
    return with_current_reasons(found)


def read_status(folder: Path) -> dict[str, Any]:
    """The last status in a job's folder; empty when there is none."""
    try:
        return json.loads((folder / STATUS).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}


def is_final(folder: Path) -> bool:
    """Whether the status in a job's folder is its last. Reads the beginning: of 10,000 ranks the whole is megabytes."""
    try:
        with (folder / STATUS).open("rb") as file:
            found = _PHASE.search(file.read(_FIRST_BYTES))
    except OSError:
        return False
    return found is not None and found[1].decode() in FINAL


async def sign_off(kv: KeyValue, setup: Setup, status: Mapping[str, Any], notes: Sequence[object]) -> None:
    """Remove all keys of a job that is over; keep its end for those who cannot read its folder."""
    if setup.roams:
        left = {"dir": setup.info.dir, "status": status, "notes": notes}
        try:
            await kv.put(ENDED + setup.info.uid, json.dumps(left).encode())
            await _drop_older(kv, setup.info.uid)
        except Exception as error:  # noqa: BLE001 - the job is over in any case; its launcher then knows no end
            log.warning("the end of job %s is kept in its folder alone: %r", setup.info.uid, error)
    await forget(kv, setup.info.uid)


async def _drop_older(kv: KeyValue, uid: str) -> None:
    """Keep the newest ends only, and this one: who is to read them may never come, and a Ray may live for months."""
    await kv.put(f"{ENDED_AT}{time.time_ns() // 1_000_000:015d}/{uid}", b"1")
    for key in (await kv.keys(ENDED_AT))[:-ENDS_KEPT]:
        await kv.delete(ENDED + key.rpartition("/")[2])
        await kv.delete(key)


async def bring(kv: KeyValue, uid: str) -> Path | None:
    """Put what a job left elsewhere into its folder here; None when it left nothing so."""
    text = await kv.get(ENDED + uid)
    return await asyncio.to_thread(_put_down, json.loads(text)) if text else None


async def over(kv: KeyValue, uid: str, folder: Path) -> bool:
    """Whether a job has ended; then its folder here says how."""
    return is_final(folder) or await bring(kv, uid) is not None


def _put_down(left: Mapping[str, Any]) -> Path:
    folder = Path(left["dir"])
    folder.mkdir(parents=True, exist_ok=True)
    if not is_final(folder):
        write_atomically(folder / EVENTS, "".join(f"{json.dumps(note)}\n" for note in left["notes"]))
        write_atomically(folder / STATUS, json.dumps(left["status"]))
    return folder


async def forget(kv: KeyValue, uid: str) -> None:
    """Remove all keys of a job."""
    for prefix in (f"dljob/jobs/{uid}", f"dljob/{uid}/"):
        with suppress(Exception):  # a store that is going takes its keys along
            await kv.delete(prefix)
