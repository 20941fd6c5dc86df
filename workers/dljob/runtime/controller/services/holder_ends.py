"""Reports to queues which processes of ranks have ended, so that their items go back, and which of them pay for it.

Every call may be repeated by a later master: a queue takes back what a process holds, and later it holds nothing.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Protocol

from dljob.calls.backlog import DEAD_STREAK_LIMIT, HolderEnd
from dljob.errors import DLJobError
from dljob.master.state import events as ev
from dljob.master.state.state import RankPhase
from dljob.tasks import TaskOwner, nobody_waits

if TYPE_CHECKING:
    from dljob.master.state.state import JobState, RankKey, RankState
    from dljob.runtime.backend.interface import Backend
    from dljob.runtime.journal.setup import Setup

log = logging.getLogger(__package__)

LOOK_S = 0.05
"""Least seconds between two looks at the ranks of a job, of which there may be 10,000."""
AGAIN_S = 1.0
"""Seconds after which the ends are reported again to a queue that did not answer."""
ANSWER_S = 60.0
"""Seconds for a queue to answer; it may write a file of its whole size."""


class QueueMaster(Protocol):
    """The part of a master that calls queues."""

    setup: Setup
    backend: Backend


class HolderMaster(QueueMaster, Protocol):
    """The part of a master that the service uses."""

    state: JobState
    changed: asyncio.Condition
    tasks: TaskOwner

    async def offer(self, *events: ev.Event) -> None:
        """Hand in events; return once the journal holds them."""
        ...


async def call_queue(shell: QueueMaster, name: str, method: str, *args: Any, without: Any = None) -> Any:
    """Call the process of a queue; None where it does not answer, and `without` where there is none."""
    try:
        async with asyncio.timeout(ANSWER_S):
            actor = await shell.backend.lookup(f"{shell.setup.info.uid[:8]}/queue/{name}")
            return without if actor is None else await shell.backend.call(actor, method, *args)
    except (DLJobError, TimeoutError) as error:
        log.info("queue %s does not answer %s: %r", name, method, error)
        return None


End = tuple[int, str, str]
"""Incarnation, a `HolderEnd`, and the error of a process that has ended."""


def end_of(rank: RankState) -> End | None:
    """Return how the last process of a rank that has ended did so; None before the first."""
    incarnation = rank.incarnation - rank.phase.live
    failure = rank.own_failure
    if incarnation < 1:
        return None
    if failure is not None and failure.incarnation == incarnation:
        return incarnation, HolderEnd.FAILED.value, failure.cause
    how = HolderEnd.DONE if rank.phase is RankPhase.SUCCEEDED else HolderEnd.LOST
    return incarnation, how.value, ""


class HolderEnds:
    """The service of one master."""

    def __init__(self, shell: HolderMaster) -> None:
        self._shell = shell
        self._known: dict[RankKey, End] = {}
        self._unreported: dict[str, dict[str, End]] = {}
        """Queue -> rank -> the end that it has not confirmed yet."""
        self._waiting: set[str] = set()
        """Queues that have not answered yet: each may take ANSWER_S, and the others do not wait for it."""

    async def run(self) -> None:
        """Serve until the task is cancelled."""
        while True:
            state = self._shell.state
            if state.cuts.queue_names:
                self._look(state)
                for queue, ends in self._unreported.items():
                    if ends and queue not in self._waiting:
                        self._waiting.add(queue)
                        report = self._report(queue, dict(ends))
                        self._shell.tasks.start("ends of holders for a queue", report, nobody_waits)
            await asyncio.sleep(LOOK_S)
            unconfirmed = any(self._unreported.values())
            async with self._shell.changed:
                changed = self._shell.changed.wait_for(lambda old=state: _ranks_changed(old, self._shell.state))
                try:
                    await asyncio.wait_for(changed, AGAIN_S if unconfirmed else None)
                except TimeoutError:
                    continue

    def _look(self, state: JobState) -> None:
        """Note which ranks' processes have ended since the last look; at first all that ever did."""
        new_ends = dict[str, End]()
        for key, rank in state.ranks.items():
            end = end_of(rank)
            if end is not None and self._known.get(key) != end:
                self._known[key] = end
                new_ends[f"{key[0]}/{key[1]}"] = end
        for queue in state.cuts.queue_names:
            self._unreported.setdefault(queue, {}).update(new_ends)

    async def _report(self, queue: str, ends: dict[str, End]) -> None:
        try:
            payers = await call_queue(self._shell, queue, "end_incarnations", ends, without={})
        finally:
            self._waiting.discard(queue)
        if payers is None:
            return
        unreported = self._unreported[queue]
        self._unreported[queue] = {rank: end for rank, end in unreported.items() if ends.get(rank) != end}
        events = list[ev.Event]()
        for rank, items in payers.items():
            role, _, number = rank.rpartition("/")
            dead_streak = DEAD_STREAK_LIMIT if items is None else 0
            events.append(ev.DeliveriesFailed(queue, role, int(number), ends[rank][0], tuple(items or ()), dead_streak))
        if events:
            await self._shell.offer(*events)


def _ranks_changed(old: JobState, new: JobState) -> bool:
    return new.ranks is not old.ranks or new.cuts.queue_names != old.cuts.queue_names
