"""Stall watch: builds the wait graph of what ranks report, and tells the core who keeps whom waiting.

Nothing is asked of anybody: each rank's report comes with the heartbeat of its host when something in it has become
old (`process.activities`). The graph and its limits are pure (`dljob.master.state.waits`). Only where a root has stood
still for as long as a hang, its node is asked whether it uses a CPU, and for the stacks. The rank's own word is not
enough to end it: a process that is stopped, or whose C code holds the GIL, writes no new report, and its report has
nothing of its children, such as a data loader's workers.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import NamedTuple

from dljob.master.failure.stalling import standing_stalls
from dljob.master.state import events as ev
from dljob.master.state.hang import ProcessSample, Where
from dljob.master.state.stalls import Stall
from dljob.master.state.state import JobState, RankKey, RankPhase
from dljob.master.state.views import Reason
from dljob.master.state.waits import CONFIRMED_S, RankFacts, RankWaits, WaitFinding, WaitGraph, WaitId, parse
from dljob.master.status import serves_after_end
from dljob.runtime.backend.interface import Backend
from dljob.runtime.controller.heartbeat_log import HeartbeatLog
from dljob.runtime.controller.stack_collector import RankSampler
from dljob.runtime.journal.setup import Setup
from dljob.tasks import TaskOwner, nobody_waits

log = logging.getLogger(__package__)
EVERY_S, MOST_S, SHARE = 2.0, 10.0, 0.018
"""Seconds between two looks at the graph: so many that looking takes at most SHARE of a core, and at most MOST_S."""
SAME_S = 1.5
"""Seconds by which the beginning of a wait may differ between two reports of it: clocks are read at both ends."""
PAUSE_S = 2.0
"""Seconds between the two looks at a root that show whether it uses a CPU."""
SILENCE_GROWTH = 1.5
"""A root that works, or could not be looked at, is looked at again when its silence has grown by this factor."""
KNOWN_S = CONFIRMED_S + 2 * EVERY_S
"""Seconds after a rank's first report by which a stall that it is in is found."""
UNSURE_S = 30.0
"""Seconds for which a new PrimeMaster lets a recorded stall stand whose ranks it has not heard yet."""
MOST_RANKS = 16
"""Most ranks of a stall whose stacks are written down, the root's first, and most silent ranks that one look is at."""
SILENCE_S, SILENCE_AGAIN_S = 8.0, 30.0
"""Seconds of silence after which a rank's node is asked why, and again after no answer: before a stall is told."""

Offer = Callable[..., Awaitable[None]]


class SilentRank(NamedTuple):
    """A rank that is not heard, and why, as its node told."""

    incarnation: int
    asked_at: float
    sample: ProcessSample | None = None
    """None: its node has not answered."""


class StallWatch:
    """Watches the waits of one job."""

    def __init__(
        self,
        setup: Setup,
        backend: Backend,
        offer: Offer,
        state: Callable[[], JobState],
        heartbeats: HeartbeatLog,
        *,
        owner: TaskOwner,
        now: Callable[[], float],
    ) -> None:
        self._folder = setup.folder
        self._offer = offer
        self._state = state
        self._heartbeats = heartbeats
        self._owner = owner
        self._now = now
        self._parsed: dict[RankKey, tuple[tuple[int, float, str], RankWaits]] = {}
        """Rank -> the report that was read last, and what it says."""
        self._began = 0.0
        """When this watch looked at the graph first."""
        self._first_reports: dict[RankKey, float] = {}
        """Rank -> when this watch had its first report."""
        self._seen: dict[WaitId, tuple[float, float]] = {}
        """Wait -> when it began, and when this watch saw it first."""
        self._next_inquiry: dict[str, float] = {}
        """Stall -> the seconds of silence after which its root is looked at again."""
        self._inquiries: set[str] = set()
        """Stalls whose roots are being looked at."""
        self._silent_ranks: dict[RankKey, SilentRank] = {}
        self._sampler = RankSampler(backend, state)
        self.starting_ranks: tuple[str, ...] = ()
        """Where the ranks are that are not ready yet, in words."""
        self.pause_s = EVERY_S
        """Seconds until the next look."""

    async def run(self) -> None:
        """Watch until the job ends."""
        while True:
            await asyncio.sleep(self.pause_s)
            await self.turn()

    async def turn(self) -> None:
        """Look at the graph once, and offer what has changed."""
        state, now = self._state(), self._now()
        if state.verdict is not None:
            return
        self._began = self._began or now
        begin = time.thread_time()
        findings = self._findings(state, now)
        self.pause_s = min(MOST_S, max(EVERY_S, (time.thread_time() - begin) / SHARE))
        names = {finding.name for finding in findings}
        unsure_stalls = (stall for stall in state.stalls if stall.name not in names and self._is_unsure(stall, now))
        stalls = (*map(_stall, findings), *unsure_stalls)
        if standing_stalls(state, stalls) != state.stalls:
            await self._offer(ev.StallsFound(stalls))
        for finding in findings:
            self._look_at(state, finding)

    def _is_unsure(self, stall: Stall, now: float) -> bool:
        """Whether this watch may have begun too late to find a stall that an earlier PrimeMaster has recorded."""
        waits_known = all(now - self._first_reports.get(key, now) > KNOWN_S for key in stall.ranks)
        return not waits_known and now - self._began <= UNSURE_S

    def _findings(self, state: JobState, now: float) -> tuple[WaitFinding, ...]:
        reports = self._reports()
        for key in reports:
            self._first_reports.setdefault(key, now)
        rows = (activity for report in reports.values() for activity in report.activities)
        starting = any(state.ranks[key].phase is RankPhase.STARTING for key in reports if key in state.ranks)
        still = any(report.still_since is not None for report in reports.values())
        if not (starting or still) and not any(activity.waits or activity.steps for activity in rows):
            self._seen.clear()
            self._silent_ranks.clear()
            self.starting_ranks = ()
            return ()
        graph = WaitGraph(reports, self._facts(state, now), now)
        self.starting_ranks = graph.starting_ranks()
        known_waits: dict[WaitId, tuple[float, float]] = {}
        for wait, began in graph.waits():
            before = self._seen.get(wait)
            known_waits[wait] = before if before is not None and abs(before[0] - began) < SAME_S else (began, now)
        self._seen = known_waits
        self._ask_why_silent(state, graph.silent_ranks(SILENCE_S), now)
        return graph.findings(state.job.fault_tolerance.hang, {wait: at for wait, (_, at) in known_waits.items()})

    def _reports(self) -> Mapping[RankKey, RankWaits]:
        for key, row in self._heartbeats.activities.items():
            known = self._parsed.get(key)
            if known is None or known[0] is not row:
                incarnation, offset, text = row
                try:
                    self._parsed[key] = row, parse(incarnation, text, offset)
                except ValueError as error:
                    log.warning("the report of %s/%d is not read: %s", *key, error)
                    self._parsed[key] = row, RankWaits(incarnation)
        return {key: report for key, (_, report) in self._parsed.items()}

    def _facts(self, state: JobState, now: float) -> Mapping[RankKey, RankFacts]:
        facts: dict[RankKey, RankFacts] = {}
        for key, rank in state.ranks.items():
            role, number = key
            heard_at = self._heartbeats.heard_at(state.hosts[state.job.roles[role].host_of(number)].actor)
            silent_s = 0.0 if heard_at is None else max(0.0, now - heard_at)
            phase = RankPhase.READY if serves_after_end(state, role, number) else rank.phase
            silent_rank = self._silent_ranks.get(key)
            sample = None if silent_rank is None else silent_rank.sample
            is_ready = phase is RankPhase.READY
            awaited_ranks = _awaited_ranks(state, role) if phase is RankPhase.WAITING else ()
            facts[key] = RankFacts(
                rank.incarnation, phase.value, is_ready, rank.process_ordered_at, silent_s, sample, awaited_ranks
            )
        return facts

    # -- ranks that are silent

    def _ask_why_silent(self, state: JobState, ranks: Sequence[RankKey], now: float) -> None:
        """Have the nodes of silent ranks look at their processes: those cannot tell it themselves."""
        known = {
            key: before
            for key in ranks
            if (before := self._silent_ranks.get(key)) and before.incarnation == state.ranks[key].incarnation
        }
        without_answer = [
            key
            for key in ranks
            if key not in known or (known[key].sample is None and now - known[key].asked_at > SILENCE_AGAIN_S)
        ]
        asked = {key: SilentRank(state.ranks[key].incarnation, now) for key in without_answer[:MOST_RANKS]}
        self._silent_ranks = {**known, **asked}
        if asked:
            self._owner.start("look at silent ranks", self._look_at_silent(asked), nobody_waits)

    async def _look_at_silent(self, asked: Mapping[RankKey, SilentRank]) -> None:
        for key, look in (await self._sampler.sample(asked, stacks=True)).items():
            if self._silent_ranks.get(key) == asked[key]:  # neither heard again, nor restarted
                self._silent_ranks[key] = asked[key]._replace(sample=look.sample)

    # -- roots that stand as still as if they hung

    def _look_at(self, state: JobState, finding: WaitFinding) -> None:
        """Look at a root whose silence is as long as that of a hang, and report it if it is one."""
        policy = state.job.fault_tolerance.hang
        if (
            policy.action == "Ignore"
            or finding.root is None
            or not finding.is_restartable
            or finding.name in self._inquiries
        ):
            return
        if finding.silence <= max(finding.idle_after, self._next_inquiry.get(finding.name, 0.0)):
            return
        self._inquiries.add(finding.name)

        def failed(_: Exception) -> None:
            self._next_inquiry[finding.name] = finding.silence * SILENCE_GROWTH

        task = self._owner.start("stall inquiry", self._inquire(finding, finding.root), failed)
        task.add_done_callback(lambda _: self._inquiries.discard(finding.name))

    async def _inquire(self, finding: WaitFinding, root: RankKey) -> None:
        may_work = finding.silence <= finding.busy_after and not finding.is_circle
        works = may_work and await self._works(root)
        self._next_inquiry[finding.name] = finding.silence * SILENCE_GROWTH
        if works:
            return
        ranks = tuple(dict.fromkeys((root, *finding.ranks)))
        words = _sentence(finding, self._now())
        path, stacks = await self._sampler.write_stacks(self._folder, finding.incarnation, words, ranks, MOST_RANKS)
        if root in stacks and stacks[root].sample.activity is Where.DEBUGGER:
            return  # a person keeps it, and lets it go on
        state, now = self._state(), self._now()
        # It may have gone on while stacks were written.
        still_stands = any(later.name == finding.name for later in self._findings(state, now))
        if not still_stands or state.ranks[root].incarnation != finding.incarnation:
            return
        await self._offer(
            ev.HangFound(
                *(*root, finding.incarnation, Reason.HANG.value, _sentence(finding, now), path),
                whole=finding.is_circle,
                silent_s=round(finding.silence, 3),
                line=finding.line,
                finished=finding.finished_count,
            )
        )

    async def _works(self, root: RankKey) -> bool:
        """Whether a root uses a CPU, as far as its node tells: one that nobody can look at may do so."""
        pairs, _ = await self._sampler.sample_twice((root,), PAUSE_S, stacks=False)
        pair = pairs.get(root)
        return pair is None or (pair.works and not pair.second.stopped)


def _awaited_ranks(state: JobState, role: str) -> tuple[RankKey, ...]:
    """Return the ranks that must be ready, or have ended, before a role starts, and are not."""
    return tuple(
        (needed_role, rank)
        for needed_role, kind in state.job.roles[role].plan.depends_on
        if kind == "Complete" or not state.roles[needed_role].was_ready
        for rank in state.job.roles[needed_role].ranks
        if state.ranks[needed_role, rank].phase is RankPhase.STARTING
        or (kind == "Complete" and state.ranks[needed_role, rank].phase is RankPhase.READY)
    )


def _sentence(finding: WaitFinding, now: float) -> str:
    return finding.sentence.replace("{}", f"{now - finding.since:.0f} s")


def _stall(finding: WaitFinding) -> Stall:
    return Stall(
        name=finding.name,
        since=finding.since,
        sentence=finding.sentence,
        root="" if finding.root is None or finding.is_circle else f"{finding.root[0]}/{finding.root[1]}",
        ranks=finding.ranks,
        root_state=finding.root_state,
    )
