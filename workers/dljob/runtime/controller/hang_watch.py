"""Hang watch: measures the pace of each rank's steps, has nodes inspect silent ranks, and reports hangs to the core.

It also reports ranks that are slower than their role. The judgement itself is pure (`dljob.master.state.hang`): a
silence is only a reason to look, and two inspections of the process decide (docs/adr/0024-hang-detection.md). Time is
measured by the watch's own clock, which stands still while the event loop is late, as in `node_watch`. Steps are not
journaled: a restarted PrimeMaster measures anew. Until ranks of a role have a measured pace, only those whose process
is stopped are reported.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from typing import Any

from dljob.master.state import early_end, hang
from dljob.master.state import events as ev
from dljob.master.state.early_end import EndedRank
from dljob.master.state.hang import HangFinding, Pace, ProcessSample, SamplePair
from dljob.master.state.state import JobState, RankPhase
from dljob.master.state.views import Reason
from dljob.master.status import Progress
from dljob.runtime.backend.interface import Backend
from dljob.runtime.controller.stack_collector import RankSampler
from dljob.runtime.controller.witness_desk import WitnessDesk
from dljob.runtime.journal.setup import Setup
from dljob.runtime.node.stacks import ProcessStack
from dljob.tasks import TaskOwner
from dljob.telemetry import reasons

TICK_S, MOST_S = 0.1, 0.5
"""Seconds between evaluations of steps, and the most seconds that the watch's clock advances per turn."""
PAUSE_S, LONG_PAUSE_S = 0.25, 2.0
"""Pause (s) between the two inspections of a process: the short one shows whether it is stopped, the long one whether
it uses a CPU and where it waits."""
SLOW_EVERY_S = 2.0
SHOWN = 64
"""Largest number of ranks whose stacks are written to the file of a hang, the culprit's first."""

UNSEEN = SamplePair(ProcessSample(), ProcessSample(), 1.0)
"""Inspections of a rank whose node did not answer."""

Key = tuple[str, int]
Offer = Callable[..., Awaitable[None]]


class HangWatch:
    """Watches the ranks of one job; `run` returns only where `hang.action` is Ignore."""

    def __init__(
        self,
        setup: Setup,
        backend: Backend,
        offer: Offer,
        state: Callable[[], JobState],
        progress: Progress,
        *,
        owner: TaskOwner,
        witnesses: WitnessDesk | None = None,
    ) -> None:
        self._folder = setup.folder
        self._offer = offer
        self._owner = owner
        self._state = state
        self._progress = progress
        """Last step of each rank; each report replaces the tuple, so identity tells a new report of the same step."""
        self._clock = 0.0
        self._last = 0.0
        self._slow_at = self._quiet_at = 0.0
        self._ended: dict[Key, tuple[int, EndedRank]] = {}
        """Rank of a world that ended with code 0 -> its incarnation, and its end on the watch's clock."""
        self._paces: dict[str, dict[int, Pace]] = {}
        self._reported: dict[Key, object] = {}
        """The report of each rank that was evaluated last."""
        self._next: dict[Key, float] = {}
        """When a silent rank is inspected again, by the watch's clock."""
        self._first_seen: dict[Key, tuple[int, float]] = {}
        """(incarnation, time of the last step) of ranks reported to the core: not reported again before they step."""
        self._slow: dict[str, dict[int, int]] = {}
        """Role -> the stragglers that were reported, each in its incarnation."""
        self._unread: set[tuple[str, int, int]] = set()
        """(role, rank, incarnation) of processes that were reported because their stacks cannot be read."""
        self._looking: dict[str, asyncio.Task[None]] = {}
        self._sampler = RankSampler(backend, state)
        self._witnesses = witnesses
        """Outside witnesses, which may name the culprit of a hang."""

    async def run(self) -> None:
        """Watch until the job ends."""
        if self._state().job.fault_tolerance.hang.action == "Ignore":
            return
        loop = asyncio.get_running_loop()
        self._last = loop.time()
        try:
            while True:
                await asyncio.sleep(TICK_S)
                await self.turn(loop.time())
        finally:
            for task in self._looking.values():
                task.cancel()

    async def turn(self, now: float) -> None:
        """Advance the clock, take in new steps and start inquiries; `now` is the event loop's time (s)."""
        self._clock += min(now - self._last, MOST_S)
        self._last = now
        state = self._state()
        if state.verdict is not None or state.running_at is None:
            return
        self._hear(state)
        # 1. Ranks with a pace whose silence exceeds it.
        for role, paces in self._paces.items():
            late = hang.silent(paces, self._clock)
            if any(self._is_due((role, rank)) for rank in self._of(state, role, late)):
                self._inquire(role, self._look_at(role))
        # 2. Ranks without a pace: stopped processes only.
        if self._clock - self._quiet_at >= hang.quiet_every(len(state.nodes)):
            self._quiet_at = self._clock
            for role in state.job.roles:
                if quiet := self._quiet(state, role):
                    self._inquire(role, self._look_for_proof(role, quiet))
        # 3. Ranks that step, but slower than their role.
        if self._clock - self._slow_at >= SLOW_EVERY_S:
            self._slow_at = self._clock
            await self._seek_stragglers(state)
            self._seek_early_ends(state)

    def _hear(self, state: JobState) -> None:
        """Update the paces with the steps reported since the last turn."""
        for key, report in self._progress.items():
            if report is self._reported.get(key) or key not in state.ranks:
                continue
            self._reported[key] = report
            # A step ends the silence; the next one is looked into without the pauses that the old one had earned.
            self._next.pop(key, None)
            role, rank = key
            paces = self._paces.setdefault(role, {})
            paces[rank] = hang.paced(paces.get(rank), state.ranks[key].incarnation, report[0], self._clock)

    def _of(self, state: JobState, role: str, among: Iterable[int] | None = None) -> dict[int, Pace]:
        """Return the paces of a role's ranks (of `among` only) that are ready in the incarnation that was measured."""
        paces = self._paces.get(role, {})
        chosen = paces if among is None else {rank: paces[rank] for rank in among}
        return {
            rank: pace
            for rank, pace in chosen.items()
            if (rank_state := state.ranks[role, rank]).phase is RankPhase.READY
            and rank_state.incarnation == pace.incarnation
        }

    def _is_due(self, key: Key) -> bool:
        return self._clock >= self._next.get(key, 0.0)

    # -- worlds of which a rank has ended

    def _seek_early_ends(self, state: JobState) -> None:
        """Look at worlds whose rest has not made a step for long since a rank of them has ended with code 0."""
        for role, counts in state.roles.items():
            if not (state.job.roles[role].is_torch_world and counts.succeeded_count and counts.ready_count):
                continue
            ended = self._ended_ranks(state, role)
            are_due = all(self._is_due((role, rank)) for rank in ended)
            if are_due and early_end.must_look(
                ended, self._of(state, role), self._clock, state.job.fault_tolerance.hang
            ):
                self._inquire(role, self._look_for_early_end(role))

    def _ended_ranks(self, state: JobState, role: str) -> dict[int, EndedRank]:
        ended_ranks = dict[int, EndedRank]()
        for rank in state.job.roles[role].ranks:
            rank_state = state.ranks[role, rank]
            if rank_state.phase is not RankPhase.SUCCEEDED:
                continue
            incarnation, ended = self._ended.get((role, rank), (0, None))
            if ended is None or incarnation != rank_state.incarnation:
                ended = EndedRank(rank_state.end_step, self._clock)
                self._ended[role, rank] = rank_state.incarnation, ended
            ended_ranks[rank] = ended
        return ended_ranks

    async def _look_for_early_end(self, role: str) -> None:
        looks = await self._twice(role, self._ready(self._state(), role), stacks=True)
        state = self._state()
        ready = self._ready(state, role)
        self._next.update({(role, rank): self._clock + 2 * SLOW_EVERY_S for rank in self._ended_ranks(state, role)})
        # Whoever was not seen may be the one that all others wait for.
        present_pairs = dict.fromkeys(ready, UNSEEN) | {rank: pair for rank, pair in looks.items() if rank in ready}
        finding = self._wait_for_ended(state, role, present_pairs)
        if finding is not None:
            await self._report_hang(state, role, finding, present_pairs)

    def _wait_for_ended(self, state: JobState, role: str, samples: Mapping[int, SamplePair]) -> HangFinding | None:
        """Return the finding that a world waits for a rank that has ended with code 0; None: it does not."""
        ended, paces = self._ended_ranks(state, role), self._of(state, role)
        if not early_end.must_look(ended, paces, self._clock, state.job.fault_tolerance.hang):
            return None
        return early_end.find_wait(role, ended, paces, samples)

    # -- inquiries about a role with silent ranks

    def _inquire(self, role: str, work: Coroutine[Any, Any, None]) -> None:
        """Start an inquiry about a role, unless one is under way."""
        if role in self._looking:
            work.close()
            return

        def failed(_: Exception) -> None:
            """Put off the next inquiry: an inquiry that fails would else be repeated at each tick."""
            ranks = self._paces.get(role, ())
            self._next.update({(role, rank): self._clock + SLOW_EVERY_S for rank in ranks})

        task = self._looking[role] = self._owner.start("hang inquiry", work, failed)
        task.add_done_callback(lambda _: self._looking.pop(role, None))

    def _quiet(self, state: JobState, role: str) -> tuple[int, ...]:
        """Return the ready ranks with too few steps heard by this master to judge a silence."""
        paces = self._of(state, role)
        return tuple(r for r in self._ready(state, role) if r not in paces or not paces[r].measured)

    async def _look_for_proof(self, role: str, ranks: tuple[int, ...]) -> None:
        state = self._state()
        before = {rank: state.ranks[role, rank].incarnation for rank in ranks}
        await self._judge(role, before, await self._twice(role, ranks, stacks=False), stacks=False)

    async def _look_at(self, role: str) -> None:
        state = self._state()
        policy = state.job.fault_tolerance.hang
        world = state.job.roles[role].is_torch_world
        paces = self._of(state, role)
        silent = hang.silent(paces, self._clock)
        measured = {rank for rank, pace in paces.items() if pace.measured}
        # Where a whole world is silent all may wait for a rank without a pace, so every ready rank is inspected.
        together = world and measured == set(silent)
        asked = self._ready(state, role) if together else silent
        # py-spy takes a second or more, so early looks, at which only a stopped process counts, do without.
        stacks = hang.wants_stacks({rank: paces[rank] for rank in silent}, self._clock, policy)
        before = {rank: state.ranks[role, rank].incarnation for rank in asked}
        looks = await self._twice(role, asked, stacks=stacks)
        paces = self._of(self._state(), role)
        for rank in silent:
            if rank in paces:
                self._next[role, rank] = paces[rank].at + hang.look_again_at(self._clock - paces[rank].at)
        # A node that is too busy to look may be the one that all others wait for.
        await self._judge(role, before, dict.fromkeys(asked, UNSEEN) | looks, stacks=stacks)

    async def _judge(
        self, role: str, before: Mapping[int, int], looks: Mapping[int, SamplePair], *, stacks: bool
    ) -> None:
        """Report the ranks that hang to the core. `before`: rank -> the incarnation that was inspected."""
        state = self._state()
        paces, policy = self._of(state, role), state.job.fault_tolerance.hang
        # A rank that restarted meanwhile is another process: nothing seen of the old one counts against it.
        present_pairs = {
            rank: pair for rank, pair in looks.items() if state.ranks[role, rank].incarnation == before[rank]
        }
        world = state.job.roles[role].is_torch_world
        verdicts = hang.judge(paces, present_pairs, self._clock, policy, world=world)
        # A rank that has ended explains the silence of the others; a stopped process is proof.
        if (
            verdicts
            and world
            and state.roles[role].succeeded_count
            and not any(pair.stopped for pair in present_pairs.values())
        ):
            finding = self._wait_for_ended(state, role, present_pairs)
            verdicts = verdicts if finding is None else (finding,)
        for verdict in verdicts:
            if self._witnesses is not None:
                verdict = hang.with_witnesses(verdict, self._witnesses.hanging(role), present_pairs)  # noqa: PLW2901 - the same
            await self._report_hang(state, role, verdict, present_pairs)
        if stacks:  # without, no rank has one, and that says nothing
            unread = hang.unjudged(paces, present_pairs, self._clock, policy, world=world)
            await self._report_unread({(role, rank, before[rank]) for rank in unread})

    async def _report_unread(self, processes: Iterable[tuple[str, int, int]]) -> None:
        """Report, once for each process, that only its stack would tell whether it hangs."""
        new = sorted(set(processes) - self._unread)
        self._unread.update(new)
        if new:
            names = ", ".join(f"{role}/{rank}" for role, rank, _ in new)
            words = "no step within any bound of faultTolerance.hang, and whether it is a hang is not known"
            words = f"{words}: the stack cannot be read (`dljob stack` says why) of {names}"
            await self._offer(ev.NoteReported(reasons.STACKS_UNREADABLE, words))

    def _ready(self, state: JobState, role: str) -> tuple[int, ...]:
        ranks = state.job.roles[role].ranks
        return tuple(rank for rank in ranks if state.ranks[role, rank].phase is RankPhase.READY)

    async def _twice(self, role: str, ranks: Iterable[int], *, stacks: bool) -> dict[int, SamplePair]:
        """Inspect each rank twice; return the ranks whose node answered both times."""
        keys = [(role, rank) for rank in ranks]
        pairs, _ = await self._sampler.sample_twice(keys, LONG_PAUSE_S if stacks else PAUSE_S, stacks=stacks)
        return {rank: pair for (_, rank), pair in pairs.items()}

    async def _report_hang(
        self, state: JobState, role: str, verdict: HangFinding, looks: Mapping[int, SamplePair]
    ) -> None:
        rank = verdict.rank if verdict.rank is not None else min(looks)
        incarnation = state.ranks[role, rank].incarnation
        pace = self._paces.get(role, {}).get(rank)
        # Incarnation and last step name one silence: it is reported once, and a later one anew.
        mark = (incarnation, pace.at if pace is not None else 0.0)
        if self._first_seen.get((role, rank)) == mark:
            return
        # Dumping stacks takes seconds; the rank is looked at once more after it, before anybody is blamed.
        dumps = () if self._witnesses is None else self._witnesses.dump(role, f"{role}-{rank}-{incarnation}")
        path, culprit_look = await self._write_down(role, rank, incarnation, verdict.message)
        if self._witnesses is not None:
            await self._witnesses.wait_for_dumps()
        woke = (
            rank in looks and bool(looks[rank].stopped) and culprit_look is not None and not culprit_look.sample.stopped
        )
        if woke or self._paces.get(role, {}).get(rank) is not pace:
            return  # it runs again: a debugger, or the migration of a virtual machine, has resumed it meanwhile
        self._first_seen[role, rank] = mark
        is_role_wide, silent = verdict.rank is None, 0.0 if pace is None else self._clock - pace.at
        kind = Reason.HANG.value
        # A late dump is written when it comes; each file says so itself where none came.
        words = f"{verdict.message}; dumps: {', '.join(dumps)}" if dumps else verdict.message
        look = looks.get(rank, UNSEEN)
        line = "" if is_role_wide or look.stopped else look.second.at_line
        await self._offer(
            ev.HangFound(role, rank, incarnation, kind, words, path, is_role_wide, round(silent, 3), line=line)
        )

    async def _write_down(
        self, role: str, rank: int, incarnation: int, sentence: str
    ) -> tuple[str, ProcessStack | None]:
        """Write the stacks of a role's ranks to a file in the job's folder.

        Returns:
            The path of the file, empty when it could not be written; and the sample of `rank`, None when its node did
            not answer.
        """
        # The culprit first: the file is cut at SHOWN ranks.
        others = (number for number in self._ready(self._state(), role) if number != rank)
        keys = [(role, number) for number in (rank, *others)]
        path, samples = await self._sampler.write_stacks(
            self._folder, incarnation, f"{role}/{rank}: {sentence}", keys, SHOWN
        )
        return path, samples.get((role, rank))

    # -- ranks that are slow

    async def _seek_stragglers(self, state: JobState) -> None:
        for role in self._paces:
            paces = self._of(state, role)
            known_stragglers = self._slow.get(role, {})
            before = frozenset(rank for rank, pace in paces.items() if known_stragglers.get(rank) == pace.incarnation)
            # Where a peer has restarted, and has too few steps, nothing is known, and what was told stands.
            slow = hang.stragglers(paces, before) if hang.comparable(paces) else dict.fromkeys(before, 0.0)
            self._slow[role] = {rank: paces[rank].incarnation for rank in slow}
            # Only those that have become slow: a straggler is reported once until it is fast again.
            for rank in slow.keys() - before:
                words = f"median step {paces[rank].median:.3g} s, {slow[rank]:.1f} times that of its role"
                await self._offer(ev.HangFound(role, rank, paces[rank].incarnation, Reason.STRAGGLER.value, words))
            for problem in state.problems:
                name, _, rank = problem.target.partition("/")
                if problem.reason == reasons.STRAGGLER and name == role and int(rank) not in slow:
                    await self._offer(ev.ProblemReported(problem.reason, problem.target))
