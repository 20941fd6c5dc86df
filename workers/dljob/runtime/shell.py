"""The loop around the core: event -> journal -> transition -> actions -> events. It decides nothing.

Everything that happens is written down before it is acted upon, in batches: while one batch is being synced the next
one gathers. A new master of the same job replays what is written, claims the next epoch, and goes on.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any

from dljob.master import actions as ac
from dljob.master import events as ev
from dljob.master import status as snapshots
from dljob.master.codec import event_record, snapshot_records
from dljob.master.evolve import evolve
from dljob.master.reissue import live_hosts, ready_spares, reissue
from dljob.master.state import JobState, Phase
from dljob.master.transition import next_wake, transition
from dljob.runtime.accounts import Evidence
from dljob.runtime.backend import Backend
from dljob.runtime.clock import JobClock
from dljob.runtime.cut_short import cut_short
from dljob.runtime.entries import sign_off
from dljob.runtime.executor import Executor
from dljob.runtime.group_watch import GroupWatch
from dljob.runtime.hang_watch import HangWatch
from dljob.runtime.hosts import SpareId
from dljob.runtime.journal import FencedError, Journal, Replay
from dljob.runtime.messages import Beacon, BeaconReply
from dljob.runtime.node_watch import NodeWatch
from dljob.runtime.rebuild import change_record, rebuild
from dljob.runtime.relauncher import Relaunching
from dljob.runtime.setup import Setup
from dljob.runtime.sightings import Sightings
from dljob.runtime.stores import JournalStore
from dljob.runtime.timeline import Timeline

BATCH, SNAPSHOT_EVERY = 1000, 2000
VERSIONS_PER_EPOCH = 10**9
PROGRESS_S, STATUS_EVERY_S = 0.25, 1.0


class Shell:
    """One master's loop. `run` returns when the job is over and nothing of it is left."""

    def __init__(self, setup: Setup, backend: Backend, store: JournalStore) -> None:
        self.setup = setup
        self.backend = backend
        self.journal = Journal(store, setup.core)
        self.timeline = Timeline(setup.folder)
        self.state: JobState = setup.initial(0.0)
        self.recovered = self.aborted = False
        self.final: dict[str, Any] | None = None
        self.changed = asyncio.Condition()
        self.evidence = Evidence()
        self.progress = self.evidence.progress
        self._alert_until = 0.0
        self._inbox: asyncio.Queue[tuple[ev.Event, asyncio.Future[None] | None]] = asyncio.Queue()
        self._trouble: BaseException | None = None
        self._count, self._clock = 0, JobClock()
        self._last, self._writing, self._progressed = 0.0, False, False
        self._dirty, self._look = asyncio.Event(), asyncio.Event()
        self._end: ac.Finish | None = None
        epoch, widest = (lambda: self.journal.epoch), setup.plan.widest
        self.executor = Executor(setup.info, widest, backend, offer=self.offer, epoch=epoch, on_loss=self.alert)
        self.executor.failed = self._troubled
        self.executor.relaunching = Relaunching(setup.spec.fault_tolerance.node.relauncher or "")
        self.executor.sizes = lambda: tuple((role, own.size) for role, own in sorted(self.state.sizes.items()))
        self.nodes = NodeWatch(setup.info, backend, self.offer, lambda: self.state, epoch=epoch, heard=self.heard)

    # -- events in

    async def offer(self, *events: ev.Event) -> None:
        """Hand in events; returns when they are in the journal."""
        events = tuple(self.evidence.told(self.state, event) for event in events)
        heard: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        for event in events[:-1]:
            self._inbox.put_nowait((event, None))
        self._inbox.put_nowait((events[-1], heard))
        await heard

    def alert(self, seconds: float = 3.0) -> None:
        """Something is amiss: look at the nodes more often for a while."""
        self._alert_until = max(self._alert_until, time.monotonic() + seconds)
        self._look.set()

    def _troubled(self, error: BaseException) -> None:
        """An error that is ours: the job ends with it."""
        if self._trouble is None and not isinstance(error, asyncio.CancelledError):
            self._trouble = error
            self._inbox.put_nowait((ev.Tick(), None))

    def _stopped(self, work: asyncio.Task[None]) -> None:
        if not work.cancelled() and (error := work.exception()):
            self._troubled(error)

    # -- the life of a master

    async def run(self) -> None:
        """Recover, go on, end."""
        beside: list[asyncio.Task[None]] = []
        try:
            replay = await self.journal.open()
            await self._recover(replay)
            hangs = HangWatch(self.setup, self.backend, self.offer, lambda: self.state, self.progress)
            groups = GroupWatch(self.setup, self.backend, self.offer, lambda: self.state)
            beside += map(asyncio.create_task, (self._watch_nodes(), self._publish(), self.nodes.run()))
            beside += map(asyncio.create_task, (hangs.run(), groups.run()))
            for work in beside:
                work.add_done_callback(self._stopped)
            while self._end is None:
                await self._turn()
            await self._finish({})
        except FencedError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever stops a master, nothing may be left running
            await self._abort(error)
        finally:
            for task in beside:
                task.cancel()
            self.executor.close()
            with suppress(Exception):
                await self.journal.close()
            self.timeline.close()

    async def _recover(self, replay: Replay) -> None:
        """Rebuild the state, tell the core that a master is here and what lives, hear the actors that live."""
        known, found = bool(replay.records), rebuild(replay, self.setup, self.timeline, self.evidence)
        self._last, self.state = found.last, found.state
        self._clock.not_before(self._last)
        if found.anew:
            await self.executor.sweep()
        if known and self.state.phase.final:
            self._end = ac.Finish(self.state.phase is Phase.SUCCEEDED, "", "")
            return
        if not known:
            now = self._now()
            self.state = self.setup.initial(now)
            await self.journal.commit([{"k": "begin", "at": now, "plan": self.setup.plan.digest}])
        await self._snapshot()
        cause = "PrimeMaster was lost" if known else ""
        self._inbox.put_nowait((ev.MasterStarted(replay.epoch, cause, found.said, bool(found.anew)), None))
        if self.setup.carried is not None and not self.state.carried:
            self._inbox.put_nowait((self.setup.carried, None))
        if known:
            # Before the actors: what died with its node is lost for that reason, and for no other.
            with suppress(Exception):
                self._inbox.put_nowait((ev.NodesSeen(await self.backend.nodes()), None))
        await self._turn()
        if known:
            self._reattach(self.state)
            self.executor.execute(reissue(self.state, self._now()))
        self.recovered = True
        await self._show()

    def _reattach(self, state: JobState) -> None:
        for host, seen in live_hosts(state):
            self.executor.hosts.attach(host, seen.life, seen.actor)
        for (role, node, slot), spare in ready_spares(state):
            self.executor.hosts.attach(SpareId(role, node, slot), spare.life, spare.actor)

    # -- one turn of the loop

    async def _turn(self) -> None:
        batch = await self._batch()
        if self._trouble is not None:
            raise self._trouble
        now = self._now()
        events, self._writing = [event for event, _ in batch], True
        before, after, actions = self.state, self.state, list[object]()
        for event in events:
            step = transition(after, event, now)
            after = step.state
            actions.extend(step.actions)
        written = change_record(before, after, actions, now)
        await self.journal.commit([*(event_record(event, now) for event in events), written])
        self.state = after
        for event in events:
            self.evidence.ended(event)
        self._writing = False
        for _, heard in batch:
            if heard is not None and not heard.done():
                heard.set_result(None)
        self._note(actions, now)
        self.executor.execute(actions)
        self.nodes.reap(actions)
        self._end = next((action for action in actions if isinstance(action, ac.Finish)), self._end)
        if self.state is not before:
            await self._show()
        if self.journal.since_snapshot >= SNAPSHOT_EVERY:
            await self._snapshot()

    async def _batch(self) -> list[tuple[ev.Event, asyncio.Future[None] | None]]:
        """What came in, or a Tick when the core's timer is due."""
        wake = next_wake(self.state)
        try:
            async with asyncio.timeout(None if wake is None else max(0.0, wake - self._now())):
                batch = [await self._inbox.get()]
        except TimeoutError:
            return [(ev.Tick(), None)]
        while len(batch) < BATCH and not self._inbox.empty():
            batch.append(self._inbox.get_nowait())
        return batch

    def _now(self) -> float:
        """Unix seconds, never going back within a job, whatever the machine's clock does."""
        self._last = max(self._last, self._clock.now())
        return self._last

    def _shown_at(self) -> float:
        """The time of what is shown; what is being written happens at its own time, and nothing was shown after it."""
        return self._last if self._writing else self._now()

    def _note(self, actions: Iterable[object], now: float) -> None:
        for action in actions:
            if isinstance(action, ac.Note):
                self.timeline.add(action, now)

    async def _snapshot(self) -> None:
        await self.timeline.flush()  # a replay from here on does not come past these notes again
        records = snapshot_records(self.state, self._last)
        await self.journal.snapshot((*records, {"k": "notes", "seq": self.timeline.seq}))

    # -- what is shown

    @property
    def version(self) -> int:
        """Grows with every change, over the masters of a job."""
        return self.journal.epoch * VERSIONS_PER_EPOCH + self._count

    def status(self) -> dict[str, Any]:
        """The status now; the final one when the job is over."""
        return self.final or self._told(snapshots.status)

    def brief(self) -> dict[str, Any]:
        """The status without ranks and units."""
        if self.final is not None:
            return snapshots.brief_of(self.final)
        return self._told(snapshots.brief)

    def _told(self, snapshot: Callable[[JobState, float, snapshots.Progress], dict[str, Any]]) -> dict[str, Any]:
        """What others hear: a job is over once its last status is written.

        Who sees the end may take down the Ray that we write it on.
        """
        over = self.state.phase.final
        seen = evolve(self.state, phase=Phase.STOPPING, ended_at=None) if over else self.state
        return {**snapshot(seen, self._shown_at(), self.progress), "version": self.version}

    async def _show(self) -> None:
        self._count += 1
        async with self.changed:
            self.changed.notify_all()
        await self.timeline.flush()
        self._dirty.set()

    async def _publish(self) -> None:
        """Show progress, and write the status file, not too often."""
        filed = 0.0
        while True:
            await self._dirty.wait()
            self._dirty.clear()
            if self._progressed:
                self._progressed = False
                self._count += 1
                async with self.changed:
                    self.changed.notify_all()
            if self._end is not None or self.aborted:
                return  # the last status is on its way, and nothing is written after it
            if time.monotonic() - filed >= STATUS_EVERY_S:
                filed = time.monotonic()
                await self.timeline.status(self.status())
            else:
                self._dirty.set()
            await asyncio.sleep(PROGRESS_S)

    def heard(self, beacon: Beacon) -> BeaconReply:
        """Take a beacon: progress in, lease out."""
        for event in self.evidence.heard(self.state, beacon, self._clock.now()):
            self._inbox.put_nowait((event, None))
        if beacon.steps:
            self._progressed = True
            self._dirty.set()
        self.nodes.spoke(self.executor.hosts.who(beacon.actor))
        return BeaconReply(self.journal.epoch, not self.recovered or self.executor.hosts.knows(beacon.actor))

    # -- nodes

    async def _watch_nodes(self) -> None:
        """Tell the core when the nodes change."""
        sightings = Sightings()
        while True:
            with suppress(Exception):
                nodes = await self.backend.nodes()
                if sightings.news(self.state, nodes):
                    await self.offer(ev.NodesSeen(nodes))
            self._look.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(0.1 if self._amiss() else 1.0):
                    await self._look.wait()

    def _amiss(self) -> bool:
        recovering = self.state.phase in (Phase.RECOVERING, Phase.SCHEDULING)
        return recovering or time.monotonic() < self._alert_until

    # -- the end

    async def _finish(self, override: Mapping[str, Any]) -> None:
        """Write the final status, remove the keys, let those who wait hear it."""
        shown = snapshots.status(self.state, self._shown_at(), self.progress)
        status = {**shown, "version": self.version + 1, **override}
        await self.timeline.flush()
        await self.timeline.status(status)
        await sign_off(self.backend.kv, self.setup, status, self.timeline.after(0))
        self.final, self._count = status, self._count + 1
        async with self.changed:
            self.changed.notify_all()

    async def _abort(self, error: Exception) -> None:
        """The master cannot go on (its journal cannot be written or read, or it is wrong): end the job with that."""
        self.aborted, left = True, None
        self.nodes.close()
        try:
            await self.executor.clear()
        except Exception as again:  # noqa: BLE001 - of one trouble or two, the job ends now
            left = again
        note, shown = cut_short(self.state.verdict, error, left)
        self.timeline.add(note, self._now())
        await self._finish(shown)


async def until(condition: asyncio.Condition, check: Callable[[], bool], seconds: float | None) -> bool:
    """Wait until a check holds, looking whenever the condition is notified; False when the time is over."""
    async with condition:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await condition.wait_for(check)
        return check()
