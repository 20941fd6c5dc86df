"""Hangs, pure: how ranks step -> who has been silent too long -> what was seen of them -> a verdict with its reason.

Two tiers. A silence of a few steps only makes PrimeMaster look; what is seen convicts at once only where it is proof (a
process that is stopped). A silence without proof must be much longer, and be no wait that is known to be one.
Times are seconds of one clock of the caller's, which may stand still.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dljob.spec.policy import HangPolicy

RECENT, GAPS = 32, 8
"""So many of the last times per step are kept, and of those between news."""
FEWEST = 5
"""So many must have been measured in a process before its silence means anything."""
LOOK_FACTOR, GAP_FACTOR, LOOK_S = 3.0, 1.5, 0.5
"""A silence of so many median steps, or of the usual times between news where each brings many, and seconds is looked
at; again when it has grown by AGAIN, at least AGAIN_S."""
AGAIN, AGAIN_S = 1.5, 1.0
IDLE_FACTOR, BUSY_FACTOR, LONGEST_FACTOR = 30.0, 300.0, 3.0
"""A silence without proof is at least so many median steps long, and so many times the longest that ended by itself."""
AT_WORK = 0.05
"""From this share of a CPU on, a process does something."""
SLOW, SLOW_ENDS = 2.0, 1.5
"""A straggler's median step is so many times that of its role; it is one until it falls below the second."""
SLOW_FEWEST, SLOW_RANKS = 10, 3
"""Steps that each rank must have told, and ranks that a role must have, before one of them is called slow."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How one process of a rank steps, as it was heard."""

    incarnation: int
    step: int
    at: float
    """When it last told a step."""
    times: tuple[float, ...] = ()
    """Seconds per step, the latest last."""
    longest: float = 0.0
    """The longest silence that ended by itself."""
    gaps: tuple[float, ...] = ()
    """Seconds between the last times that it was heard."""
    median: float = field(init=False, default=0.0)
    """Seconds of a usual step; 0 before any was measured. Kept: all ranks are looked through ten times a second."""
    gap: float = field(init=False, default=0.0)
    """Seconds that usually pass between two times that it is heard: of many nodes each tells rarely."""

    def __post_init__(self) -> None:
        if self.times:
            object.__setattr__(self, "median", median(self.times))
        if self.gaps:
            object.__setattr__(self, "gap", median(self.gaps))

    @property
    def measured(self) -> bool:
        """Whether enough is known to judge a silence."""
        return len(self.times) >= FEWEST


def paced(old: Pace | None, incarnation: int, step: int, now: float) -> Pace:
    """A step was told. Another process of the rank begins anew; a step told again is a sign of life all the same."""
    if old is None or old.incarnation != incarnation:
        return Pace(incarnation, step, now)
    silence = max(0.0, now - old.at)
    each = silence / max(1, step - old.step)
    times, gaps = (*old.times, each)[-RECENT:], (*old.gaps, silence)[-GAPS:]
    return Pace(incarnation, step, now, times, max(old.longest, silence), gaps)


# -- first tier: whom to look at


def look_after(pace: Pace) -> float:
    """How long a rank may be silent before somebody looks."""
    return max(LOOK_FACTOR * pace.median, GAP_FACTOR * pace.gap) + LOOK_S


def idle_after(pace: Pace, policy: HangPolicy) -> float:
    """How long a rank that does nothing may keep others waiting."""
    return max(policy.idle_seconds, IDLE_FACTOR * pace.median, LONGEST_FACTOR * pace.longest)


def busy_after(pace: Pace, policy: HangPolicy) -> float:
    """How long a rank may be silent of which nothing else is known, at work or alone."""
    return max(policy.busy_seconds, idle_after(pace, policy), BUSY_FACTOR * pace.median)


def silent(paces: Mapping[int, Pace], now: float) -> tuple[int, ...]:
    """The ranks of a role that have been silent for more than a few of their own steps."""
    late = (rank for rank, p in paces.items() if (silence := now - p.at) > LOOK_S and silence > look_after(p))
    return tuple(sorted(rank for rank in late if paces[rank].measured))


def look_again_at(silence: float) -> float:
    """The length of a silence at which to look again, after a look that proved nothing."""
    return max(silence * AGAIN, silence + AGAIN_S)


# -- second tier: what was seen


class Where(StrEnum):
    """What the thread of the user's code is doing, by its stack."""

    UNKNOWN = ""
    """Nobody could look."""
    USER = "in user code"
    COLLECTIVE = "in a collective"
    CALL = "in a call of another role"
    CHECKPOINT = "in a checkpoint"
    ORDER = "waiting to be told to stop"


@dataclass(frozen=True, slots=True)
class ProcessSample:
    """What its node saw of a rank's process, at one moment."""

    stopped: str = ""
    """Why it cannot run at all; empty: it can."""
    cpu_s: float = 0.0
    """CPU time of it and what it started."""
    where: Where = Where.UNKNOWN
    at_line: str = ""
    """The innermost line of the user's code, "file.py:12 in f"."""
    runs: bool = False
    """Whether a thread of it ran or waited for a CPU; like `where`, not known of every look."""


@dataclass(frozen=True, slots=True)
class Looks:
    """Two looks at a rank, and the seconds between them."""

    first: ProcessSample
    second: ProcessSample
    between: float

    @property
    def stopped(self) -> str:
        """Why it cannot run, when it could not at both."""
        return self.second.stopped if self.first.stopped else ""

    @property
    def where(self) -> Where:
        """Where it was both times; one that moved on between is in user code."""
        if Where.UNKNOWN in (self.first.where, self.second.where):
            return Where.UNKNOWN
        return self.second.where if self.first.where is self.second.where else Where.USER

    @property
    def works(self) -> bool:
        """Whether it used a CPU between the two, or would have if it had been given one."""
        used = self.second.cpu_s - self.first.cpu_s >= AT_WORK * self.between
        return used or (self.first.runs and self.second.runs)


@dataclass(frozen=True, slots=True)
class HangFinding:
    """A hang. `rank` None: the role stands still and no rank of it can be named."""

    rank: int | None
    why: str


def wants_stacks(paces: Mapping[int, Pace], now: float, policy: HangPolicy) -> bool:
    """Whether the silence is so long that it matters where ranks wait; before that only proof counts."""
    known = [p for p in paces.values() if p.measured]
    return bool(known) and now - max(p.at for p in known) > min(idle_after(p, policy) for p in known)


def judge(
    paces: Mapping[int, Pace], looks: Mapping[int, Looks], now: float, policy: HangPolicy, *, world: bool
) -> tuple[HangFinding, ...]:
    """Who hangs, of the ranks of a role that were looked at.

    Args:
        paces: Of the ranks that ever told a step.
        looks: Of the ranks that have a process.
        now: On the clock of the paces.
        policy: The job's bounds.
        world: Whether the ranks step together, so that one keeps all others waiting.
    """
    stopped = tuple(HangFinding(r, _said(paces, r, now, s.stopped)) for r, s in sorted(looks.items()) if s.stopped)
    if stopped:
        return stopped
    if not world:
        return _alone(paces, looks, now, policy)
    found = _together(paces, looks, now, policy)
    return (found,) if found else ()


def _alone(
    paces: Mapping[int, Pace], looks: Mapping[int, Looks], now: float, policy: HangPolicy
) -> tuple[HangFinding, ...]:
    """Ranks that step each for itself: nobody waits for one, so only the longest bound and its own stack speak."""
    long = [
        r
        for r in sorted(looks)
        if r in paces and paces[r].measured and now - paces[r].at > busy_after(paces[r], policy)
    ]
    return tuple(HangFinding(r, _said(paces, r, now, _doing(looks[r]))) for r in long if looks[r].where is Where.USER)


def _together(
    paces: Mapping[int, Pace], looks: Mapping[int, Looks], now: float, policy: HangPolicy
) -> HangFinding | None:
    """A world: whoever is not where the others wait keeps them waiting."""
    known = {rank: p for rank, p in paces.items() if p.measured}
    places = {seen.where for seen in looks.values()}
    if not known or not looks or places - {Where.USER, Where.COLLECTIVE}:
        return None  # nobody knows, or somebody waits for what is no rank of this role
    last = max(known.values(), key=lambda p: p.at)
    silence = now - last.at
    idle, busy = (max(bound(p, policy) for p in known.values()) for bound in (idle_after, busy_after))
    absent = [rank for rank, seen in sorted(looks.items()) if seen.where is Where.USER]
    if 2 * len(absent) < len(looks):
        for rank in absent:
            if silence > (busy if looks[rank].works else idle):
                waiting = f"{len(looks) - len(absent)} of {len(looks)} ranks wait for it in a collective"
                return HangFinding(rank, _said(paces, rank, now, f"{_doing(looks[rank])}; {waiting}"))
    if not absent and silence > idle:
        return _behind(paces, looks, now, "all ranks wait in a collective")
    if silence > busy:
        return _behind(paces, looks, now, "no rank goes on, and none waits for another that could be named")
    return None


def _behind(paces: Mapping[int, Pace], looks: Iterable[int], now: float, why: str) -> HangFinding:
    """The one rank that is behind all others by its steps; None where there is no such rank."""
    steps = sorted((paces[rank].step, rank) for rank in looks if rank in paces)
    if len(steps) > 1 and steps[0][0] < steps[1][0]:
        rank = steps[0][1]
        return HangFinding(rank, _said(paces, rank, now, f"{why}; it is behind them, at step {steps[0][0]}"))
    last = max(paces.values(), key=lambda p: p.at)
    return HangFinding(None, f"no step for {now - last.at:.1f} s, median step {last.median:.3g} s: {why}")


def _said(paces: Mapping[int, Pace], rank: int, now: float, why: str) -> str:
    pace = paces.get(rank)
    if pace is None:
        return why
    return f"no step for {now - pace.at:.1f} s after step {pace.step}, median step {pace.median:.3g} s: {why}"


def _doing(seen: Looks) -> str:
    what = "it works" if seen.works else "it does nothing"
    line = f" at {seen.second.at_line}" if seen.second.at_line else ""
    return f"{what} in user code{line}"


def crossed(comm_timeout_s: float, policy: HangPolicy) -> str:
    """Why a torch world's own timeout comes before the bounds, so that torch names nobody; empty: it does not."""
    if policy.action == "Ignore":
        return ""
    for bound, name, whom in (
        (policy.idle_seconds, "idleSeconds", "does nothing"),
        (policy.busy_seconds, "busySeconds", "works elsewhere"),
    ):
        if comm_timeout_s <= bound:
            return (
                f"torch gives a collective up after comm.timeoutSeconds = {comm_timeout_s:g}, before a rank that "
                f"{whom} is named (hang.{name} = {bound}): its peers fail with a timeout, which names nobody; "
                "set comm.timeoutSeconds above it"
            )
    return ""


# -- ranks that are slow


def stragglers(paces: Mapping[int, Pace], told: frozenset[int]) -> Mapping[int, float]:
    """Rank -> how many times slower it is than its role's median rank. `told`: who was one before.

    Ranks that wait for each other in every step are all as slow as the slowest: there is none to be found by its steps.
    """
    if len(paces) < SLOW_RANKS or any(len(p.times) < SLOW_FEWEST for p in paces.values()):
        return {}
    usual = median(p.median for p in paces.values())
    if usual <= 0:
        return {}
    slow = {rank: p.median / usual for rank, p in paces.items()}
    return {rank: times for rank, times in slow.items() if times >= (SLOW_ENDS if rank in told else SLOW)}
