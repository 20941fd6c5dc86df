"""Which of a job's two PrimeMasters commands: one follows the other, and claims the next epoch when that one is gone.

Both run the same code. A PrimeMaster that does not command asks the other one, again and again, and judges each
question here. A claim is for one number, the one after the highest segment that was claimed *before* the question: of
two that find each other not commanding one wins, and who finds the number taken asks again. So a claim never fences a
PrimeMaster that has answered.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

SILENT_S = 2.0
"""Seconds without an answer after which the other PrimeMaster counts as stopped."""
FIRST_SILENT_S = 6.0
"""The same for one that was not heard yet: the connection is made with the question, and either may be starting."""
LATE_S = 0.5
"""Most seconds by which the end of that time may be noticed late; later than that, the follower itself was stopped."""

MOST_FAILURES = 10
"""Failures in a row of a PrimeMaster that cannot begin, while the other one does not command, before it ends the job:
the default of `master.maxRestarts`, for a spec that cannot be read."""
AGAIN_S, MOST_AGAIN_S = 5.0, 60.0
"""Seconds before a PrimeMaster that cannot begin ends, and Ray starts it again: at first, and after many failures."""


class PeerState(StrEnum):
    """The end of one question to the other PrimeMaster."""

    COMMANDS = "Commands"
    """It answered that it commands, or has claimed an epoch and replays."""
    FOLLOWS = "Follows"
    """It answered that it does not command."""
    BROKEN = "Broken"
    """The call broke: its process is gone, or only the connection. Then it finds the claim by itself, and ends."""
    SILENT = "Silent"
    """It gave no answer for SILENT_S."""
    ABSENT = "Absent"
    """There is no such actor."""


@dataclass(frozen=True, slots=True)
class PeerQuestion:
    """One question to the other PrimeMaster."""

    state: PeerState
    claimed: int
    """The highest segment claimed before the question, or told in the answer."""
    took_s: float = 0.0
    """Seconds from the question to its end, by the clock of the one that asked."""
    limit_s: float = SILENT_S
    """The time after which the other one counted as silent."""


@dataclass(frozen=True, slots=True)
class TakeoverVerdict:
    """What the one that asked does next."""

    claim: int
    """The number to claim; 0: ask again."""
    reason: str
    fence: bool = False
    """Whether the other one may still run, and is to be ended once the claim is won."""
    lost: str = ""
    """How the other one was lost, for users; empty: it is not known."""


def judge(question: PeerQuestion) -> TakeoverVerdict:
    """Return whether to claim the next epoch after a question, and why."""
    state, number = question.state, question.claimed + 1
    if state is PeerState.COMMANDS:
        return TakeoverVerdict(0, "the other PrimeMaster commands")
    if state is PeerState.SILENT and question.took_s > question.limit_s + LATE_S:
        late = question.took_s - question.limit_s
        return TakeoverVerdict(0, f"this process was stopped itself for {late:.1f} s: the other one may have answered")
    if state is PeerState.SILENT:
        silence = f"gave no answer for {question.took_s:.1f} s"
        lost = f"it {silence}, and its standby took over"
        return TakeoverVerdict(number, f"the other PrimeMaster {silence}", fence=True, lost=lost)
    reasons = {
        PeerState.FOLLOWS: "the other PrimeMaster does not command",
        PeerState.BROKEN: "the call to the other PrimeMaster broke",
        PeerState.ABSENT: "there is no other PrimeMaster",
    }
    return TakeoverVerdict(number, reasons[state])


def start_again_after(failures: int, allowed: int) -> float | None:
    """Return the seconds before a PrimeMaster that cannot begin is to be started again; None: it is to end the job.

    Args:
        failures: Its failures in a row while the other one did not command; 0 if that one does.
        allowed: The most of them. The fault may pass, or Ray may bring the other one back; nobody else ends the job.
    """
    if failures > allowed:
        return None
    return min(AGAIN_S * 2.0 ** max(failures - 1, 0), MOST_AGAIN_S)
