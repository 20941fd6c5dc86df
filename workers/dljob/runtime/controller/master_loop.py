"""PrimeMaster's main loop: takes events, folds them with the pure core, journals them, then executes the actions.

The loop decides nothing: `dljob.master.transition` does. Each batch of events is in the journal before an action of it
is performed; while one batch is being synced the next one gathers. After a crash a new master of the same job claims
the next epoch, replays the journal and goes on from there.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from dljob.errors import DLJobError
from dljob.master import status as snapshots
from dljob.master.persistence.codec import snapshot_records
from dljob.master.placement.reissue import kills, leftovers, live_hosts, ready_spares, reissue
from dljob.master.state import actions as ac
from dljob.master.state import events as ev
from dljob.master.state.evolve import evolve
from dljob.master.state.machine_time import compare_clocks
from dljob.master.state.problems import CLOCKS
from dljob.master.state.state import JobState, Phase
from dljob.master.status import numbers_of, sizes_of
from dljob.master.transition import next_wake
from dljob.runtime.backend.interface import Backend
from dljob.runtime.backend.ray_processes import replace_master_pid
from dljob.runtime.controller.decisions import entries, fold
from dljob.runtime.controller.executor import Executor
from dljob.runtime.controller.group_watch import GroupWatch
from dljob.runtime.controller.hang_watch import HangWatch
from dljob.runtime.controller.heartbeat_log import HeartbeatLog
from dljob.runtime.controller.metric_feed import DriverMetrics, MetricFeed
from dljob.runtime.controller.node_change_filter import NodeChangeFilter
from dljob.runtime.controller.node_watch import NodeWatch
from dljob.runtime.controller.rebuild import Rebuilding
from dljob.runtime.controller.relauncher import Relaunching
from dljob.runtime.controller.sampler import Autoscaler, SampledMaster, Sampler
from dljob.runtime.controller.services.cut_service import CutService
from dljob.runtime.controller.services.holder_ends import HolderEnds
from dljob.runtime.controller.slowness_watch import SlownessWatch
from dljob.runtime.controller.stack_collector import PeerWatch
from dljob.runtime.controller.stall_watch import StallWatch
from dljob.runtime.controller.witness_desk import WitnessDesk
from dljob.runtime.controller.worker_hosts import SpareId
from dljob.runtime.forked_workers import worker_ends
from dljob.runtime.journal.busy_times import without_stalls
from dljob.runtime.journal.cut_short import cut_short
from dljob.runtime.journal.first_start import JobOverError, begin, highest_claim
from dljob.runtime.journal.job_record import sign_off
from dljob.runtime.journal.journal import FencedError, Journal, Replay
from dljob.runtime.journal.kept_record import KeptRecord
from dljob.runtime.journal.setup import Setup
from dljob.runtime.journal.stores import JournalStore
from dljob.runtime.journal.timeline import Timeline
from dljob.runtime.journal.volume import largest_files, volume_problem
from dljob.runtime.process.clock import JobClock, clock_sample
from dljob.runtime.process.messages import BeaconReply, Heartbeat
from dljob.tasks import ErrorLog, TaskOwner, nobody_waits
from dljob.telemetry import reasons
from dljob.telemetry.process_ends import describe_exit

log = logging.getLogger(__package__)

# Folding a batch blocks the event loop: 1,000 deaths at once are spread over four turns, with heartbeats between them.
BATCH, SNAPSHOT_EVERY = 250, 2000
BATCHES = 8
"""Lower bound of a batch in large jobs: a wave of one event per rank takes at most this many batches, because the
record of a batch's changes costs a walk over all ranks."""
ASIDE_RANKS = 2000
"""Number of ranks from which a thread folds and encodes the batches: one event may touch all ranks, which takes seconds
at 80,000 ranks. The event loop answers heartbeats meanwhile."""
# The count of one master stays below this, so that versions keep growing when the next epoch begins its own count at 0.
VERSIONS_PER_EPOCH = 10**9
# Hosts attached between two turns of the event loop: each starts a task, and heartbeats must not wait for thousands.
ATTACHED_AT_ONCE = 200
# Changes are shown at once; mere progress every second: each time costs a client 10 ms of CPU and PrimeMaster 3 ms.
PROGRESS_S, STATUS_EVERY_S = 1.0, 1.0
CLOCKS_S, PASSED_S = 1.0, 600.0
"""Seconds between two looks at the machine's clocks, and for which the status shows what they said."""
STALL_SHOWN_S, ENDED_NAMED = 2.0, 8
"""Seconds between two looks at what waits for a journal that cannot be written, and ranks of it that are named."""
VOLUME_S = 2.0
"""Seconds between two looks at the volume of the job's folder."""


class MasterOverError(DLJobError):
    """Raised by `MasterLoop.offer` once the master has ended by an error."""


class MasterLoop:
    """The loop of one PrimeMaster. `run` returns when the job is over and nothing of it is left."""

    def __init__(self, setup: Setup, backend: Backend, store: JournalStore) -> None:
        self.setup = setup
        self.backend = backend
        self.journal = Journal(store, setup.core)
        self.timeline = Timeline(setup.folder)
        self._rebuilding = Rebuilding(setup, self.timeline)
        self.state: JobState = setup.initial(0.0)
        self.recovered = self.aborted = False
        self.final: dict[str, Any] | None = None
        self.why_lost = ""
        """How the PrimeMaster before this one was lost, as its standby knows it."""
        self.changed = asyncio.Condition()
        self.heartbeats = HeartbeatLog()
        self.progress = self.heartbeats.progress
        self.samples = Sampler(setup.info, self._view, backend, (role for role, _ in setup.chosen))
        self.record = KeptRecord(setup.info)
        self._node, self._alert_until = backend.own_node(), 0.0
        self._node_filter = NodeChangeFilter()
        self._inbox: asyncio.Queue[tuple[ev.Event, asyncio.Future[None] | None]] = asyncio.Queue()
        self._unanswered: dict[asyncio.Future[None], tuple[ev.Event, ...]] = {}
        """Events that are not journaled yet, by what their offers wait for."""
        self._over, self._ended_by = False, ""
        """Whether the loop has ended, so that events are refused; the error that ended it, empty at a regular end."""
        self._failure: BaseException | None = None
        self._count, self._clock = 0, JobClock()
        self._last, self._writing, self._progressed = 0.0, False, False
        # What a replay needs beside the spec; a master itself has it from its order.
        self.journal.on_stall = self._on_stall
        self._stop_ordered, self._large_files = False, ""
        """Whether a user has ordered the end; during a stall of the journal: what takes room on its volume."""
        self._facts = {"ownNodes": True} if setup.own_nodes else {}
        self._stall_watch: StallWatch | None = None
        self._dirty, self._look = asyncio.Event(), asyncio.Event()
        self._end: ac.Finish | None = None
        self._feed: MetricFeed | None = None
        self._tidying: asyncio.Task[None] | None = None
        epoch, widest = (lambda: self.journal.epoch), setup.plan.widest
        self.tasks = owner = TaskOwner(self._troubled, expected=(MasterOverError,))
        offer = self.offer
        self.executor = Executor(setup.info, widest, backend, offer=offer, epoch=epoch, on_loss=self.alert, owner=owner)
        self.executor.relaunching = Relaunching(setup.spec.fault_tolerance.node.relauncher or "")
        self.executor.sizes = lambda: sizes_of(self.state)
        self.cuts = CutService(self)
        self.executor.numbers = lambda: numbers_of(self.state)
        self.witnesses = WitnessDesk(setup, backend, offer, lambda: self.state, owner=owner, clock=self._clock.now)
        self.nodes = NodeWatch(
            setup.info,
            backend,
            offer,
            lambda: self.state,
            epoch=epoch,
            on_heartbeat=self.take_heartbeat,
            owner=owner,
            witnesses=self.witnesses,
        )

    # -- events in

    async def offer(self, *events: ev.Event) -> None:
        """Hand in events; return once the journal holds them, or once the job is over.

        Raises:
            MasterOverError: The master ended by an error before the events were journaled.
        """
        if self._over and self._ended_by:
            raise MasterOverError(self._ended_by)
        if self._over:
            return
        events = tuple(self.heartbeats.with_heartbeats(self._clock.now(), self.state, event) for event in events)
        acknowledgement: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        # The last event alone carries the future: the inbox keeps its order, so all are journaled once the last one is.
        for event in events[:-1]:
            self._inbox.put_nowait((event, None))
        self._inbox.put_nowait((events[-1], acknowledgement))
        self._unanswered[acknowledgement] = events
        try:
            await acknowledgement
        finally:
            del self._unanswered[acknowledgement]

    def alert(self, seconds: float = 3.0) -> None:
        """List the nodes at once, and more often for `seconds`: a lost host may mean a lost node."""
        self._alert_until = max(self._alert_until, time.monotonic() + seconds)
        self._look.set()

    def _troubled(self, error: BaseException) -> None:
        """End the job with an unhandled error of one of this master's tasks."""
        if self._failure is None and not isinstance(error, asyncio.CancelledError):
            self._failure = error
            self._inbox.put_nowait((ev.Tick(), None))  # wakes `_turn`, which raises the error before it folds

    def _close(self, ended_by: str) -> None:
        """Answer all callers of `offer` that still wait: nothing is journaled any more."""
        if self._over:
            return
        self._over, self._ended_by = True, ended_by
        for acknowledgement in [acknowledgement for acknowledgement in self._unanswered if not acknowledgement.done()]:
            if ended_by:
                acknowledgement.set_exception(MasterOverError(ended_by))
            else:
                acknowledgement.set_result(None)

    # -- the life of a master

    async def run(self, failed: Exception | None = None) -> None:
        """Recover from the journal, run the loop until the core says Finish, and write the final status.

        Args:
            failed: An error before the claim, by which the job ends at once.

        Raises:
            FencedError: A later master has claimed the next epoch. Nothing is cleaned up: all is the later one's.
            JobOverError: An earlier master has ended the job.
        """
        try:
            await self._recover(await self._opened(failed))
            shell = (self.setup, self.backend, self.offer, lambda: self.state)
            hangs = HangWatch(*shell, self.progress, owner=self.tasks, witnesses=self.witnesses)
            self._stall_watch = StallWatch(*shell, self.heartbeats, owner=self.tasks, now=self.now)
            self.tasks.repeat("node list", self._watch_nodes)
            self.tasks.repeat("status file", self._publish)
            self.tasks.repeat("node heartbeats", self.nodes.run)
            self.tasks.repeat("hang watch", hangs.run)
            self.tasks.repeat("stall watch", self._stall_watch.run)
            slowness = SlownessWatch(*shell[1:], self.heartbeats, owner=self.tasks, now=self.now)
            self.tasks.repeat("slowness watch", slowness.run, nobody_waits)
            self.tasks.repeat("peer watch", PeerWatch(*shell, self.now, owner=self.tasks).run)
            self.tasks.repeat("group watch", GroupWatch(*shell).run)
            self.tasks.repeat("autoscaler", Autoscaler(self._view, self.samples.queues, self.offer).run)
            self.tasks.repeat("cuts", self.cuts.run)
            self.tasks.repeat("ends of holders", HolderEnds(self).run)
            self._feed = self._metric_feed()
            self.tasks.repeat("samples", self.samples.run, nobody_waits)
            self.tasks.repeat("record on the volume", self.record.run, nobody_waits)
            self.tasks.repeat("fill of queues", self.samples.watch_queues, nobody_waits)
            self.tasks.repeat("volume of the job's folder", self._watch_volume, nobody_waits)
            self.tasks.repeat("clocks of the machine", self._watch_clocks, nobody_waits)
            # Started after the recovery: each of them reads the state, and what it reports must follow MasterStarted.
            while self._end is None:
                await self._turn()
            self._close("")
            await self._finish({})
        except (FencedError, JobOverError):
            raise
        except Exception as error:  # whatever stops a master, nothing may be left running
            log.exception("PrimeMaster of %s ends the job by an exception", self.setup.info.name)
            self._close(f"PrimeMaster ended: {error}")
            await self._abort(error)
        finally:
            self._close("PrimeMaster was ended")
            self.nodes.close()
            self.executor.close()
            self.tasks.close()
            try:
                await self.journal.close()
            except Exception as error:  # noqa: BLE001 - what was acknowledged is synced already
                log.warning("the journal could not be closed: %r", error)
            self.timeline.close()
            self.samples.close()
            self.record.close()

    async def _opened(self, failed: Exception | None) -> Replay:
        if failed is not None:
            raise failed
        if not self.journal.epoch:  # else it was claimed while this master followed another one
            await highest_claim(self.journal, self.backend.kv, self.setup.info)
        self.tasks.start("look for a later master", self.journal.watch_fence())
        return await self.journal.open()

    async def follow(self) -> None:
        """Fold what the commanding master has journaled since the last call, while this one is its standby."""
        replay = await self.journal.follow()
        await asyncio.to_thread(self._rebuilding.rebuild, replay)

    async def _recover(self, replay: Replay) -> None:
        """Rebuild the state from the journal, tell the core of the new epoch, and attach the actors that still live."""
        known = bool(replay.records)
        await self.record.restore(self.timeline, begun=known)
        # A log of its own for the replay: heartbeats that arrive meanwhile are newer, and win when the two are merged.
        rebuilt = await asyncio.to_thread(self._rebuilding.rebuild, replay)
        self.heartbeats.recall(self._rebuilding.evidence)
        self._rebuilding = Rebuilding(self.setup, self.timeline)  # frees the records
        self._last, self.state = rebuilt.last, rebuilt.state
        # 1. The clock: a machine whose clock is behind the journal's last record must not fold events in the past.
        self._clock.not_before(self._last)
        # 2. A state that cannot be taken over starts all ranks again: what ran for it would hold devices and ports.
        if rebuilt.anew:
            await self.executor.sweep()
        # 3. The earlier master died between the last event and the final status: only the status is left to write.
        if known and self.state.phase.final:
            self._end = ac.Finish(self.state.phase is Phase.SUCCEEDED, "", "")
            return
        if not known:
            replace_master_pid(self.setup.info.uid, os.getpid())
            now = self._now()
            self.state = self.setup.initial(now)
            record = {"k": "begin", "at": now, "plan": self.setup.plan.digest, **self._facts}
            await begin(self.journal, self.backend.kv, self.setup.info, record)
        # 4. A snapshot at the start of each epoch: the next replay does not read what this one read.
        await self._snapshot()
        log.info("epoch %d begins, after a replay of %d records", replay.epoch, len(replay.records))
        # First in the inbox: the core must know of the new epoch before it judges what any actor reports.
        cause = await asyncio.to_thread(self._why_lost) if known else ""
        chosen = () if known else self.setup.chosen
        self._inbox.put_nowait(
            (ev.MasterStarted(replay.epoch, cause, rebuilt.message, bool(rebuilt.anew), chosen), None)
        )
        if self.setup.carried is not None and not self.state.carried:
            self._inbox.put_nowait((self.setup.carried, None))
        if known:
            # 5. Nodes before actors: an actor that is gone with its node is then lost with the cause NodeLost.
            try:
                self._inbox.put_nowait((ev.NodesSeen(await self.backend.nodes()), None))
            except Exception as error:  # noqa: BLE001 - the watch over nodes asks again in a moment
                log.warning("the nodes are not known at the start: %r", error)
        # 6. The actions of the last journaled batch may not have been performed. Kills are repeated before the new
        #    turn; the rest after it, from the state that knows of the new epoch and of the nodes.
        self.executor.execute(kills(self.state))
        await self._turn()
        if known:
            await self._reattach(self.state)
            self.executor.execute(reissue(self.state, self._now()))
            # Beside: no rank waits for it, and a GCS that is silent with its head does not answer for a minute.
            self.tasks.repeat("release of leftovers", self._release_leftovers, nobody_waits)
            self._tell_sizes()
        self.recovered = True
        await self._show()

    def _why_lost(self) -> str:
        """Return how the PrimeMaster before this one ended, as far as this machine knows."""
        before = replace_master_pid(self.setup.info.uid, os.getpid())
        status = worker_ends.wait_status(before) if before and before != os.getpid() else None
        if status is not None:
            return describe_exit(f"it (pid {before})", status)
        return self.why_lost or "PrimeMaster was lost"

    async def _reattach(self, state: JobState) -> None:
        for number, (host, host_state) in enumerate(live_hosts(state), 1):
            self.executor.hosts.attach(
                host, host_state.incarnation, host_state.actor, node=host_state.node, pid=host_state.pid
            )
            if number % ATTACHED_AT_ONCE == 0:
                await asyncio.sleep(0)  # heartbeats are answered between them
        for (role, node, slot), spare in ready_spares(state):
            self.executor.hosts.attach(
                SpareId(role, node, slot), spare.incarnation, spare.actor, node=node, pid=spare.pid
            )

    async def _release_leftovers(self) -> None:
        """Give back the reservations that earlier masters gave up, and did not live to release."""
        reservations = await self.executor.reservations()
        self.executor.execute(leftovers(self.state, reservations))

    # -- one turn of the loop

    async def _turn(self) -> None:
        # 1. Fold on a thread where that would hold up heartbeats.
        batch = await self._batch()
        if self._failure is not None:
            raise self._failure
        now = self._now()
        events, self._writing = [event for event, _ in batch], True
        before, aside = self.state, len(self.state.ranks) >= ASIDE_RANKS
        folded = await asyncio.to_thread(fold, before, events, now) if aside else fold(before, events, now)
        # 2. The journal before all else: an action without its event would not be known to the next master.
        await self.journal.commit(folded.records, aside=aside)
        # 3. Only now does anybody see the new state, and only now are the callers of `offer` answered.
        self.state, actions = folded.state, folded.actions
        for event in events:
            self.heartbeats.record_end(event, now)
            self.heartbeats.record_folded(event)
            self._feed_end(event, now)
            if isinstance(event, ev.NodesSeen):
                self._node_filter.record(self.state, event.nodes)
        self._writing = False
        for _, acknowledgement in batch:
            if acknowledgement is not None and not acknowledgement.done():
                acknowledgement.set_result(None)
        # 4. Only now that the batch is durable: notes, log, actions, and the end of the job if the core ordered it.
        self._note(actions, now)
        for message, fields in entries(folded.decisions):
            log.info(message, extra={"fields": fields})
        self.executor.execute(actions)
        self._tell_sizes(before)
        self.nodes.reap(actions)
        self._end = next((action for action in actions if isinstance(action, ac.Finish)), self._end)
        if self.state is not before:
            await self._show()
        if self.journal.stalled_s:
            text = f"the volume of the journal was full for {self.journal.stalled_s:.1f} s: {self.journal.store.place}"
            self._inbox.put_nowait((ev.NoteReported(reasons.JOURNAL_STALLED, text), None))
            self.journal.stalled_s = 0.0
        # 5. The cost of a snapshot grows with the ranks, that of a replay with the records: keep them in proportion.
        if self.journal.snapshot_due(max(SNAPSHOT_EVERY, len(self.state.ranks) // 2)):
            await self._snapshot()

    def _tell_sizes(self, before: JobState | None = None) -> None:
        """Tell all live hosts how many ranks roles have now, if that changed. Without `before`: in any case."""
        if not self.state.sizes or (before and before.sizes is self.state.sizes):
            return
        if before and (sizes_of(before), numbers_of(before)) == (sizes_of(self.state), numbers_of(self.state)):
            return
        self.executor.tell_sizes(host_state.actor for _, host_state in live_hosts(self.state))

    async def _batch(self) -> list[tuple[ev.Event, asyncio.Future[None] | None]]:
        """Return the events that have come in, or a Tick when the core's next timer is due first."""
        # The core has no clock of its own: a Tick at the time that it named ends its deadlines and backoffs.
        wake = next_wake(self.state)
        try:
            async with asyncio.timeout(None if wake is None else max(0.0, wake - self._now())):
                batch = [await self._inbox.get()]
        except TimeoutError:
            return [(ev.Tick(), None)]
        # Without waiting for more: a batch is what gathered while the last one was synced.
        most = max(BATCH, len(self.state.ranks) // BATCHES)
        while len(batch) < most and not self._inbox.empty():
            batch.append(self._inbox.get_nowait())
        return batch

    def _now(self) -> float:
        """Return unix seconds that never go back within a job, whatever the machine's clock does."""
        self._last = max(self._last, self._clock.now())
        return self._last

    def _shown_at(self) -> float:
        """Return the time (unix seconds) at which a snapshot is valid.

        While a batch is being written this is the batch's own time: a status shown with a later one would have to
        contain the batch, which is not durable yet.
        """
        return self._last if self._writing else self._now()

    def _note(self, actions: Iterable[object], now: float) -> None:
        for action in actions:
            if isinstance(action, ac.Note):
                self.timeline.add(action, now)

    async def _snapshot(self) -> None:
        await self.timeline.flush()  # first: a replay from this snapshot does not fold these notes again
        records = await asyncio.to_thread(snapshot_records, self.state, self._last)
        await self.journal.snapshot((*records, {"k": "notes", "seq": self.timeline.seq, **self._facts}))
        if self._tidying is None or self._tidying.done():
            self._tidying = self.tasks.start("journal archive", self._tidy(), nobody_waits)  # the next one tries again

    async def _tidy(self) -> None:
        if dropped := await self.journal.forget():
            await self.offer(ev.NoteReported(reasons.JOURNAL_TRIMMED, f"dropped {dropped}"))

    # -- what is shown

    def _view(self) -> SampledMaster:
        return SampledMaster(self._shown_at(), self.state, dict(self.progress), dict(self.heartbeats.usage))

    @property
    def version(self) -> int:
        """A number that grows with every change, also from one master of the job to the next."""
        return self.journal.epoch * VERSIONS_PER_EPOCH + self._count

    def now(self) -> float:
        """Return the time of the job's clock (unix seconds)."""
        return self._clock.now()

    def status(self) -> dict[str, Any]:
        """Return the status of now, or the final one once the job is over."""
        if self.final is not None:
            return self.final
        snapshot, now = self._client_snapshot(snapshots.status), self._shown_at()
        return {**snapshot, "ranks": self.heartbeats.with_rank_fields(snapshot["ranks"], now)}

    def brief(self) -> dict[str, Any]:
        """Return the status without ranks and units."""
        if self.final is not None:
            return snapshots.brief_of(self.final)
        return self._client_snapshot(snapshots.brief)

    def _client_snapshot(
        self, snapshot: Callable[[JobState, float, snapshots.Progress], dict[str, Any]]
    ) -> dict[str, Any]:
        """Return a snapshot for clients, whose phase is not final before the last status is written.

        A client that sees the end may shut down the Ray whose key-value store the last status goes to.
        """
        facts = snapshot(self._client_state(), self._shown_at(), self.progress)
        return self._with_loop_facts(facts, self.heartbeats.rate.shown(), self.version)

    def _with_loop_facts(self, snapshot: dict[str, Any], rate: Mapping[str, Any], version: int) -> dict[str, Any]:
        """Return a snapshot with the facts that only the loop has; `masterNode` is where PrimeMaster's log is."""
        declared = {"declared": list(names)} if (names := self.setup.spec.progress_metrics) else {}
        progress = {**snapshot["progress"], **rate, **declared}
        facts = {
            "progress": progress,
            "version": version,
            "masterNode": self._node,
            "attempt": self.setup.info.attempt,
        }
        for row in snapshot.get("ranks", ()):
            row["log"] = f"{self.setup.info.dir}/logs/{row['role']}-{row['rank']}.log"
        places = () if self._stall_watch is None else self._stall_watch.starting_ranks
        starting = {"starting": list(places)} if places else {}
        usage = {"resourceUse": list(used)} if (used := self.samples.resource_use()) else {}
        # A stall cannot be in the state: nothing is folded while it lasts.
        stall = {"reason": reasons.JOURNAL_STALLED, "message": self._stall_words()} if self.journal.stall else {}
        return {**snapshot, **facts, **self._busy(snapshot), **usage, **starting, **stall}

    def _busy(self, snapshot: Mapping[str, Any]) -> dict[str, Any]:
        """Return the ledger of a snapshot with the busy time of each role whose ranks tell it."""
        busy = self.samples.busy_times()
        if not busy:
            return {}
        roles = [
            {**row, **({"busy": without_stalls(busy[row["name"]], row["accounts"])} if row["name"] in busy else {})}
            for row in snapshot["ledger"]["roles"]
        ]
        return {"ledger": {**snapshot["ledger"], "roles": roles}}

    def _client_state(self) -> JobState:
        # The core's phase is final before the last status is written; until then clients see Stopping.
        over = self.state.phase.final
        return evolve(self.state, phase=Phase.STOPPING, ended_at=None) if over else self.state

    async def _show(self) -> None:
        self._count += 1
        async with self.changed:
            self.changed.notify_all()
        await self.timeline.flush()
        self._dirty.set()

    def stop_without_journal(self) -> None:
        """Let the job end by an order of a user that the journal may not take: a full volume delays no stop."""
        self._stop_ordered = True
        if self.journal.stall:
            self.journal.end_writes()

    def _on_stall(self) -> None:
        """Show that the journal cannot be written: no event will wake the clients that wait for a change."""
        if self._stop_ordered:
            self.journal.end_writes()
            return
        folder, journal = self.setup.folder, Path(self.journal.store.place)

        async def show() -> None:
            self._large_files = await asyncio.to_thread(largest_files, (folder, journal), journal)
            while self.journal.stall and not self._over:
                self._count += 1
                async with self.changed:
                    self.changed.notify_all()
                await asyncio.sleep(STALL_SHOWN_S)  # ranks that end meanwhile are shown, too

        self.tasks.start("stall of the journal", show(), nobody_waits)

    def _stall_words(self) -> str:
        """Return why nothing is decided now, what that means, and what to free."""
        ends = (event for events in self._unanswered.values() for event in events)
        ended = sorted({name for event in ends for name in _ended_ranks(event, self.state)})
        lost = f"; {', '.join(ended[:ENDED_NAMED])} ended meanwhile" if ended else ""
        free = f"; to free: {self._large_files}" if self._large_files else ""
        return f"{self.journal.stall}: ranks run on, but none is restarted and no command is carried out{lost}{free}"

    async def _watch_clocks(self) -> None:
        """Report that the machine stood still, or that its clock was set; the status shows it for PASSED_S."""
        before = clock_sample()
        while True:
            await asyncio.sleep(CLOCKS_S)
            after = clock_sample()
            for reason, message in compare_clocks(before, after, CLOCKS_S):
                await self.offer(ev.ProblemReported(reason, "machine", message))
            before = clock_sample()
            for problem in self.state.problems:
                if problem.reason in CLOCKS and self._now() > problem.last_at + PASSED_S:
                    await self.offer(ev.ProblemReported(problem.reason, problem.target))

    async def _watch_volume(self) -> None:
        """Report that the volume of the job's folder takes no files, and that it does again."""
        while True:
            known = any(problem.reason == reasons.VOLUME_FULL for problem in self.state.problems)
            message = await asyncio.to_thread(volume_problem, self.setup.folder, known=known)
            if bool(message) != known:
                await self.offer(ev.ProblemReported(reasons.VOLUME_FULL, "job", message))
            await asyncio.sleep(VOLUME_S)

    async def _publish(self) -> None:
        """Wake the clients' long polls for progress, and write the status file at most once in STATUS_EVERY_S."""
        filed = 0.0
        while True:
            await self._dirty.wait()
            self._dirty.clear()
            if self._progressed:
                self._progressed = False
                # Progress is no change of the state, but a client's long poll has to return for it as well.
                self._count += 1
                async with self.changed:
                    self.changed.notify_all()
            if self._end is not None or self.aborted:
                return  # the last status is on its way, and nothing is written after it
            if time.monotonic() - filed >= STATUS_EVERY_S:
                filed = time.monotonic()
                await self._file_status()
            else:
                # Still dirty: the last change before a quiet time must reach the file, too.
                self._dirty.set()
            await asyncio.sleep(PROGRESS_S)

    async def _file_status(self) -> None:
        """Write the status file. A thread builds it (0.15 s at 10,000 ranks), so heartbeats are answered meanwhile."""
        state, shown_at, progress = self._client_state(), self._shown_at(), dict(self.progress)
        beside, version = self.heartbeats.rate.shown(), self.version
        snapshot = await asyncio.to_thread(snapshots.status, state, shown_at, progress)
        # Looked at again: while the thread built this status the final one may have been written, which must stay.
        if self._end is None and not self.aborted:
            await self.timeline.status(self._with_loop_facts(snapshot, beside, version))

    def take_heartbeat(self, heartbeat: Heartbeat) -> BeaconReply:
        """Take a heartbeat with progress; return the epoch, and whether the sender is known, else it must end."""
        # Queued, not offered: the answer, which renews the sender's lease, must not wait for the journal.
        now = self._clock.now()
        for event in self.heartbeats.record(self.state, heartbeat, now):
            self._inbox.put_nowait((event, None))
        if self._feed is not None:
            for rank, progress in heartbeat.steps.items():
                self._feed.put(heartbeat.role, rank, progress, now)
        if heartbeat.steps:
            self._progressed = True
            self._dirty.set()
        self.nodes.record_answer(self.executor.hosts.occupant_of(heartbeat.actor))
        # Before the recovery is complete no actor counts as unknown: live actors are only attached at its end.
        return BeaconReply(self.journal.epoch, not self.recovered or self.executor.hosts.knows(heartbeat.actor))

    def _metric_feed(self) -> MetricFeed | None:
        """Start the process of the metric sinks; None for a job that declares no metrics."""
        if not self.setup.spec.progress_metrics:
            return None
        loop = asyncio.get_running_loop()

        def tell(message: str) -> None:
            log.warning("%s", message)
            event = ev.NoteReported(reasons.METRIC_SINK_FAILED, message)
            with suppress(RuntimeError):  # the loop has ended, and the log has the message
                loop.call_soon_threadsafe(self._inbox.put_nowait, (event, None))

        declared = frozenset(self.setup.spec.progress_metrics)
        return MetricFeed(self.setup.info, DriverMetrics(self.state.job.drivers[0], declared), tell)

    def _feed_end(self, event: ev.Event, now: float) -> None:
        """Hand the last step of a rank's end to the sinks: it may have ended before the next heartbeat."""
        if self._feed is not None and isinstance(event, ev.RankEnded) and event.outcome.step is not None:
            progress = event.incarnation, event.outcome.step, dict(event.outcome.metrics)
            self._feed.put(event.role, event.rank, progress, now)

    # -- nodes

    async def _watch_nodes(self) -> None:
        """List the nodes again and again, and tell the core of changes that matter to it."""
        errors = ErrorLog("the list of nodes", log)
        while True:
            try:
                nodes = await self.backend.nodes()
                if self._node_filter.is_relevant(self.state, nodes):
                    await self.offer(ev.NodesSeen(nodes))
                errors.worked()
            except Exception as error:  # noqa: BLE001 - Ray's head may be away; the next look is soon
                errors.failed(error)
            self._look.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(0.1 if self._amiss() else 1.0):
                    await self._look.wait()

    def _amiss(self) -> bool:
        # A freed or new node is worth a faster look while units wait for one.
        recovering = self.state.phase in (Phase.RECOVERING, Phase.SCHEDULING)
        return recovering or time.monotonic() < self._alert_until

    # -- the end

    async def _finish(self, override: Mapping[str, Any]) -> None:
        """Write the final status, remove the job's keys, and wake the clients that wait for the end."""
        # First: who sees the end may shut down Ray, and with it the sinks' process.
        if self._feed is not None:
            await asyncio.to_thread(self._feed.close)
        shown = snapshots.status(self.state, self._shown_at(), self.progress)
        status = {**self._with_loop_facts(shown, {}, self.version + 1), **override}
        await self.samples.end()
        await self.timeline.flush()
        await self.timeline.status(status)
        await self.record.end()
        await sign_off(self.backend.kv, self.setup, status, self.timeline.after(0))
        self.final, self._count = status, self._count + 1
        async with self.changed:
            self.changed.notify_all()

    async def _abort(self, error: Exception) -> None:
        """End the job where the master cannot go on: its journal cannot be written or read, or a bug broke it."""
        # `aborted` first: from here on no status file may be written over the final one.
        self.aborted, clear_error = True, None
        self.nodes.close()
        try:
            await self.executor.clear()
        except Exception as again:  # noqa: BLE001 - of one trouble or two, the job ends now
            clear_error = again
        note, shown = cut_short(self.state.verdict, error, clear_error)
        self.timeline.add(note, self._now())
        await self._finish(shown)


def _ended_ranks(event: ev.Event, state: JobState) -> list[str]:
    """Return the ranks whose process has ended according to an event that is not folded yet."""
    if isinstance(event, ev.RankEnded):
        return [f"{event.role}/{event.rank}"]
    if isinstance(event, ev.HostLost):
        facts = state.job.roles[event.host.role]
        return [f"{role}/{rank}" for role, rank in state.ranks if facts.host_of(rank) == event.host]
    return []


async def until(condition: asyncio.Condition, check: Callable[[], bool], seconds: float | None) -> bool:
    """Wait until `check` holds, evaluating it whenever the condition is notified.

    Args:
        condition: notified by whoever changes what `check` reads.
        check: without arguments.
        seconds: the longest wait; None for no limit.

    Returns:
        Whether the check holds at the end.
    """
    async with condition:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await condition.wait_for(check)
        return check()
