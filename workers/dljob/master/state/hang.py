"""Hang detection as pure functions: step times -> silent ranks -> observed processes -> a finding with its reason.

It has two tiers. A silence of a few steps only makes PrimeMaster look at the processes. A process that is stopped is
proof of a hang at once. A silence without proof must last much longer, and must not be explained by a known wait. Times
are seconds of one clock of the caller's, which may stand still.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from statistics import median
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from dljob.spec.policy import HangPolicy

RECENT, GAPS = 32, 8
"""Number of the last step times that are kept, and of the last intervals between two reports."""
FEWEST = 5
"""Steps that a process must have reported before its silence means anything."""
LOOK_FACTOR, GAP_FACTOR, LOOK_S = 3.0, 1.5, 0.5
"""PrimeMaster looks at a rank after LOOK_FACTOR median steps, or GAP_FACTOR intervals between reports, plus LOOK_S.

A false suspicion costs only two reads of /proc, so these factors are small.
"""
AGAIN, AGAIN_S = 1.5, 1.0
"""It looks again when the silence has grown by the factor AGAIN, and by AGAIN_S at least."""
QUIET_S, QUIET_NODES = 3.0, 64
"""Seconds between inspections of ranks whose silence means nothing yet, for each QUIET_NODES nodes: with so many, a
node is asked as rarely as it costs PrimeMaster 2 % of a core (two calls of half a millisecond each)."""
IDLE_FACTOR, BUSY_FACTOR, LONGEST_FACTOR = 30.0, 300.0, 3.0
"""Without proof, a silence must last IDLE_FACTOR or BUSY_FACTOR median steps, and LONGEST_FACTOR times the longest
earlier one: checkpoints, compilations and evaluations pause an honest job for a hundred steps."""
AT_WORK = 0.05
"""Share of a CPU from which on a process counts as working."""
SLOW, SLOW_ENDS = 2.0, 1.5
"""A straggler's median step is SLOW times its role's median, until it falls below SLOW_ENDS times (hysteresis)."""
SLOW_FEWEST, SLOW_RANKS = 10, 3
"""Steps that each rank must have reported, and ranks that a role must have, before one of them is called slow."""


@dataclass(frozen=True, slots=True)
class Pace:
    """The step times of one process of a rank, as it reported them."""

    incarnation: int
    step: int
    at: float
    """When it last reported a step."""
    times: tuple[float, ...] = ()
    """Seconds per step, the latest last."""
    longest: float = 0.0
    """Longest silence that ended by itself."""
    steps: int = 0
    """Number of steps after the first report; one report may cover several."""
    gaps: tuple[float, ...] = ()
    """Seconds between its last reports."""
    median: float = field(init=False, default=0.0)
    """Median seconds per step; 0 before any was measured. Cached, since all ranks are examined ten times a second."""
    gap: float = field(init=False, default=0.0)
    """Median seconds between two reports: in a large cluster each node reports rarely, with many steps at once."""

    def __post_init__(self) -> None:
        if self.times:
            object.__setattr__(self, "median", median(self.times))
        if self.gaps:
            object.__setattr__(self, "gap", median(self.gaps))

    @property
    def measured(self) -> bool:
        """Whether enough steps are known to judge a silence."""
        return self.steps >= FEWEST


def paced(old: Pace | None, incarnation: int, step: int, now: float) -> Pace:
    """Return the pace after a report of a step. A new process starts a new pace; a repeated step is a sign of life."""
    if old is None or old.incarnation != incarnation:
        return Pace(incarnation, step, now)  # measured from the first report of a process on
    silence = max(0.0, now - old.at)
    seconds_per_step = silence / max(1, step - old.step)  # one report may cover several steps
    times, gaps = (*old.times, seconds_per_step)[-RECENT:], (*old.gaps, silence)[-GAPS:]
    steps = old.steps + max(1, step - old.step)
    return Pace(incarnation, step, now, times, max(old.longest, silence), steps, gaps)


# -- first tier: which ranks to look at


def look_after(pace: Pace) -> float:
    """Return the seconds that a rank may be silent before PrimeMaster looks at it."""
    return max(LOOK_FACTOR * pace.median, GAP_FACTOR * pace.gap) + LOOK_S


class UsualTimes(Protocol):
    """How long steps of a rank, or waits of a kind, usually last, in seconds."""

    @property
    def median(self) -> float:
        """Of the last ones."""
        ...

    @property
    def longest(self) -> float:
        """The longest of all."""
        ...


def idle_after(usual: UsualTimes, policy: HangPolicy) -> float:
    """Return the seconds that an idle rank may keep others waiting before it counts as hanging."""
    return max(float(policy.idle_seconds), IDLE_FACTOR * usual.median, LONGEST_FACTOR * usual.longest)


def busy_after(usual: UsualTimes, policy: HangPolicy) -> float:
    """Return the seconds of silence allowed to a rank that uses a CPU, or that no other rank waits for."""
    return max(float(policy.busy_seconds), idle_after(usual, policy), BUSY_FACTOR * usual.median)


def silent(paces: Mapping[int, Pace], now: float) -> tuple[int, ...]:
    """Return the ranks of a role that have been silent for more than a few of their own steps."""
    # LOOK_S is the least bound of all: comparing with it first spares most ranks the arithmetic.
    late = (rank for rank, p in paces.items() if (silence := now - p.at) > LOOK_S and silence > look_after(p))
    return tuple(sorted(rank for rank in late if paces[rank].measured))


def look_again_at(silence: float) -> float:
    """Return the seconds of silence at which to look again, after a look that proved nothing."""
    return max(silence * AGAIN, silence + AGAIN_S)


def quiet_every(nodes: int) -> float:
    """Return the seconds between inspections of ranks without a measured pace: a stopped process is proof without."""
    return QUIET_S * max(1.0, nodes / QUIET_NODES)


# -- second tier: judging what was seen


class Where(StrEnum):
    """Activity of the thread of user code, by its stack."""

    UNKNOWN = ""
    """No stack could be read."""
    USER = "in user code"
    COLLECTIVE = "in a collective"
    """It waits for the other ranks of its world."""
    CALL = "in a call of another role"
    """It waits for a role that is not judged here."""
    CHECKPOINT = "in a checkpoint"
    """It waits for a disk or a saver, which may take long."""
    DEBUGGER = "in a debugger"
    """It waits for a person, who may take as long as they like."""
    ORDER = "waiting to be told to stop"
    """It waits for the order to stop, and has no step to make."""


@dataclass(frozen=True, slots=True)
class ProcessSample:
    """An observation of a rank's process by its node, at one moment."""

    stopped: str = ""
    """Why the process cannot run (state T or t, frozen control group); empty: it can."""
    cpu_s: float = 0.0
    """CPU seconds used by the process and its children."""
    activity: Where = Where.UNKNOWN
    at_line: str = ""
    """Innermost line of user code, "file.py:12 in f"."""
    call: str = ""
    """Function of torch.distributed that user code has called, such as "all_reduce"; empty: it is in none."""
    runs: bool = False
    """Whether one of its threads ran or waited for a CPU; like `where`, some looks do not tell it."""
    gil_line: str = ""
    """Innermost line of user code of the thread that holds the GIL; empty: no such thread has any."""


@dataclass(frozen=True, slots=True)
class SamplePair:
    """Two observations of a rank, and the seconds between them."""

    first: ProcessSample
    second: ProcessSample
    between: float

    @property
    def stopped(self) -> str:
        """Why the process cannot run, if it could not at both observations."""
        return self.second.stopped if self.first.stopped else ""

    @property
    def activity(self) -> Where:
        """Activity of the thread at both observations; one that moved in between counts as being in user code."""
        if Where.UNKNOWN in (self.first.activity, self.second.activity):
            return Where.UNKNOWN
        return self.second.activity if self.first.activity is self.second.activity else Where.USER

    @property
    def works(self) -> bool:
        """Whether the process used a CPU in between, or was ready to run but got none, as on a busy machine."""
        used = self.second.cpu_s - self.first.cpu_s >= AT_WORK * self.between
        return used or (self.first.runs and self.second.runs)


@dataclass(frozen=True, slots=True)
class HangFinding:
    """A detected hang. `rank` None: the role makes no progress, and no single rank can be blamed."""

    rank: int | None
    message: str


def wants_stacks(paces: Mapping[int, Pace], now: float, policy: HangPolicy) -> bool:
    """Whether the silence is long enough for stacks to matter; before that only a stopped process counts."""
    known = [p for p in paces.values() if p.measured]
    return bool(known) and now - max(p.at for p in known) > min(idle_after(p, policy) for p in known)


def judge(
    paces: Mapping[int, Pace], looks: Mapping[int, SamplePair], now: float, policy: HangPolicy, *, world: bool
) -> tuple[HangFinding, ...]:
    """Return the ranks of a role that hang.

    Args:
        paces: Rank -> pace, for ranks that ever reported a step.
        looks: Rank -> observations, for ranks that have a process.
        now: Present time, on the clock of the paces.
        policy: The job's bounds.
        world: Whether the ranks step together, so that one of them keeps all others waiting.
    """
    # A stopped process is proof, whatever the silence lasts.
    stopped = tuple(
        HangFinding(r, _describe_finding(paces, r, now, s.stopped)) for r, s in sorted(looks.items()) if s.stopped
    )
    if stopped:
        return stopped
    if not world:
        return _judge_each(paces, looks, now, policy)
    finding = _judge_world(paces, looks, now, policy)
    return (finding,) if finding else ()


def _judge_each(
    paces: Mapping[int, Pace], looks: Mapping[int, SamplePair], now: float, policy: HangPolicy
) -> tuple[HangFinding, ...]:
    """Return the hung ranks of a role without a world: no peer waits, so the longest bound and its own stack count."""
    return tuple(
        HangFinding(r, _describe_finding(paces, r, now, _doing(looks[r])))
        for r in sorted(looks)
        if looks[r].activity is Where.USER and _overdue(paces, r, now, policy)
    )


def _overdue(paces: Mapping[int, Pace], rank: int, now: float, policy: HangPolicy) -> bool:
    """Whether a rank that no peer waits for has been silent for longer than the longest bound."""
    pace = paces.get(rank)
    return pace is not None and pace.measured and now - pace.at > busy_after(pace, policy)


def _judge_world(
    paces: Mapping[int, Pace], looks: Mapping[int, SamplePair], now: float, policy: HangPolicy
) -> HangFinding | None:
    """Return the hang of a world: a rank that is not in the collective where the others wait keeps them waiting."""
    known = {rank: p for rank, p in paces.items() if p.measured}
    places = {pair.activity for pair in looks.values()}
    if not known or not looks or places - {Where.USER, Where.COLLECTIVE}:
        return None  # a stack is missing, or a rank waits for something outside this role: no rank may be blamed
    last = max(known.values(), key=lambda p: p.at)
    silence = now - last.at
    idle, busy = (max(bound(p, policy) for p in known.values()) for bound in (idle_after, busy_after))
    absent = [rank for rank, pair in sorted(looks.items()) if pair.activity is Where.USER]
    # Only a minority is blamed: `work.wait()` of an asynchronous collective has no Python frame, so ranks that wait
    # there look idle in user code.
    if 2 * len(absent) < len(looks):
        for rank in absent:
            # A rank that uses a CPU may be compiling or evaluating, so it gets the longer bound.
            if silence > (busy if looks[rank].works else idle):
                call = next((pair.second.call for pair in looks.values() if pair.second.call), "a collective")
                waiting = f"{len(looks) - len(absent)} of {len(looks)} ranks wait for it in {call}"
                return HangFinding(rank, _describe_finding(paces, rank, now, f"{_doing(looks[rank])}; {waiting}"))
    if not absent and silence > idle:
        # All ranks wait for each other: only their steps can tell which one is behind.
        return _behind(paces, looks, now, "all ranks wait in a collective")
    if silence > busy:
        return _behind(paces, looks, now, "no rank makes progress, and no single rank can be blamed")
    return None


def unjudged(
    paces: Mapping[int, Pace], looks: Mapping[int, SamplePair], now: float, policy: HangPolicy, *, world: bool
) -> tuple[int, ...]:
    """Return the ranks for want of whose stacks a silence beyond the longest bound is not judged. Arguments: `judge`'s.

    A rank without a stack may wait for another role as well as hang, so it is reported, and not restarted.
    """
    unread = tuple(rank for rank, pair in sorted(looks.items()) if pair.activity is Where.UNKNOWN)
    if not world:
        return tuple(rank for rank in unread if _overdue(paces, rank, now, policy))
    known = [p for p in paces.values() if p.measured]
    explained = {pair.activity for pair in looks.values()} - {Where.USER, Where.COLLECTIVE, Where.UNKNOWN}
    if not known or explained:
        return ()
    return unread if now - max(p.at for p in known) > max(busy_after(p, policy) for p in known) else ()


def _behind(paces: Mapping[int, Pace], looks: Iterable[int], now: float, cause: str) -> HangFinding:
    """Return a finding that names the one rank whose step is lowest; or the role, if several ranks share that step."""
    steps = sorted((paces[rank].step, rank) for rank in looks if rank in paces)
    if len(steps) > 1 and steps[0][0] < steps[1][0]:
        rank = steps[0][1]
        return HangFinding(
            rank, _describe_finding(paces, rank, now, f"{cause}; it is behind them, at step {steps[0][0]}")
        )
    last = max(paces.values(), key=lambda p: p.at)
    return HangFinding(None, f"no step for {now - last.at:.1f} s, median step {last.median:.3g} s: {cause}")


def _describe_finding(paces: Mapping[int, Pace], rank: int, now: float, cause: str) -> str:
    """Return a finding about a rank in words, with the length of its silence."""
    pace = paces.get(rank)
    if pace is None:
        return cause
    return f"no step for {now - pace.at:.1f} s after step {pace.step}, median step {pace.median:.3g} s: {cause}"


def _doing(pair: SamplePair) -> str:
    words = "it works" if pair.works else "it is idle"
    line = f" at {pair.second.at_line}" if pair.second.at_line else ""
    return f"{words} in user code{line}"


def with_witnesses(finding: HangFinding, hanging: Mapping[int, str], sampled: Iterable[int]) -> HangFinding:
    """Return a finding with what outside witnesses say: where it blames no rank, they may name the one.

    A monitor of devices calls a rank hung whose kernel does not end. One alone is the culprit; all but one wait for it.

    Args:
        finding: The hang, found without them.
        hanging: Rank of the role -> the words of a witness that it hangs.
        sampled: The ranks that were looked at.
    """
    if finding.rank is not None:
        witness = hanging.get(finding.rank, "")
        return HangFinding(finding.rank, f"{finding.message}; {witness}") if witness else finding
    if not hanging:
        return finding
    sampled_ranks = set(sampled)
    named, others = sampled_ranks & hanging.keys(), sampled_ranks - hanging.keys()
    if len(named) == 1 == len(hanging):
        (rank,) = named
        return HangFinding(rank, f"{finding.message}; {hanging[rank]}")
    ranks = ", ".join(map(str, sorted(hanging)))
    if len(others) == 1 and len(named) > 1:
        (rank,) = others
        return HangFinding(rank, f"{finding.message}; witnesses say that all others hang: ranks {ranks}")
    return HangFinding(None, f"{finding.message}; witnesses say that ranks {ranks} hang")


def collective_timeout_warning(comm_timeout_s: float, policy: HangPolicy) -> str:
    """Return a warning that torch's collective timeout ends before the hang bounds; empty: it does not.

    Then all peers fail with a timeout that names no culprit, before PrimeMaster can name it.
    """
    if policy.action == "Ignore":  # hangs are not looked for, so no bound can be crossed
        return ""
    for bound, name, state in (
        (policy.idle_seconds, "idleSeconds", "is idle"),
        (policy.busy_seconds, "busySeconds", "works elsewhere"),
    ):
        if comm_timeout_s <= bound:
            return (
                f"torch gives a collective up after comm.timeoutSeconds = {comm_timeout_s:g}, before a rank that "
                f"{state} is named (hang.{name} = {bound}): its peers fail with a timeout, which names nobody; "
                "set comm.timeoutSeconds above it"
            )
    return ""


# -- stragglers


def comparable(paces: Mapping[int, Pace]) -> bool:
    """Whether a role has enough ranks, each with enough steps, to tell which of them are slow."""
    return len(paces) >= SLOW_RANKS and all(len(p.times) >= SLOW_FEWEST for p in paces.values())


def stragglers(paces: Mapping[int, Pace], known: frozenset[int]) -> Mapping[int, float]:
    """Return straggler -> factor by which it is slower than its role's median rank. `known`: the stragglers so far.

    Ranks that wait for each other in every step are all as slow as the slowest one, so none is found among them.
    """
    if not comparable(paces):
        return {}
    # The median of medians: neither a slow rank nor a slow step of all ranks moves it.
    usual = median(p.median for p in paces.values())
    if usual <= 0:
        return {}
    slow = {rank: p.median / usual for rank, p in paces.items()}
    return {rank: times for rank, times in slow.items() if times >= (SLOW_ENDS if rank in known else SLOW)}
