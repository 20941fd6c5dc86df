"""Stalls: ranks that stand still because they wait for one activity that does not go on."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from immutables import Map

from dljob.master.state.ledger import RankKey
from dljob.telemetry.wording import moment, seconds

STOOD_STILL = "; it stood still: "
"""What stands between a verdict's own words and the stalls in which the job was, in its message."""


class RootState(StrEnum):
    """What the activity does that all of a stall wait for: it says what to do about the stall."""

    STANDS = "stands"
    CIRCLE = "circle"
    """It waits, in turn, for one of those that wait for it."""
    ENDED = "ended"
    """Its rank has ended well."""
    STOPPED = "stopped"
    """A signal has stopped its process."""
    ELSEWHERE = "elsewhere"
    """It goes on, and does not bring what is waited for."""


@dataclass(frozen=True, slots=True)
class Stall:
    """Ranks that wait for one activity which has finished nothing for too long, or for each other."""

    name: str
    """Identity of the stall: its root activity and the moment at which that stood still. A restarted PrimeMaster gives
    the same stall the same name."""
    since: float
    """When the oldest wait in it began (unix seconds)."""
    sentence: str
    """Who waits for whom, and where the root stands. It has "{}" where the length of the wait goes, so that the journal
    does not grow with each second: `describe` fills it in, with its unit ("61.0 s", "12m04s")."""
    root: str = ""
    """The rank that all wait for, as "<role>/<rank>"; it may have ended. Empty: a circle, or something outside of the
    job."""
    ranks: tuple[RankKey, ...] = ()
    """The ranks that stand still because of it: those that wait, and the root."""
    root_state: RootState = RootState.STANDS
    hung: bool = False
    """Whether it was found to hang, beyond the bounds of `faultTolerance.hang`, and is left standing all the same."""

    @property
    def is_circle(self) -> bool:
        """Whether its ranks wait for each other, so that none of them can go on."""
        return self.root_state is RootState.CIRCLE

    @property
    def blocker_text(self) -> str:
        """The ranks that must go on for it to end, in words: the root, else a circle's ranks, else the first waiter."""
        names = [f"{role}/{rank}" for role, rank in self.ranks]
        return self.root or (" and ".join(names) if self.is_circle and len(names) < 4 else "".join(names[:1])) or "job"


def describe(stall: Stall, now: float) -> str:
    """Return a stall's sentence with the present length of its oldest wait; `now` in unix seconds."""
    # Not str.format: the sentence quotes the user's lines, which may hold braces of their own.
    return stall.sentence.replace("{}", seconds(max(now - stall.since, 0.0)), 1)


def describe_since(stall: Stall) -> str:
    """Return a stall's sentence with the time since which it stands: a text that does not change while it lasts."""
    length = "for {}" if "for {}" in stall.sentence else "{}"
    return stall.sentence.replace(length, f"since {moment(stall.since)}", 1)


def stalled_ranks(stalls: Iterable[Stall]) -> Map[RankKey, float]:
    """Return rank -> when the oldest stall that it is in began (unix seconds). An index of the state's stalls."""
    index: dict[RankKey, float] = {}
    for stall in stalls:
        for key in stall.ranks:
            index[key] = min(index.get(key, stall.since), stall.since)
    return Map(index)
